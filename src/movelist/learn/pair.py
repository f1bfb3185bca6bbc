"""The score of each (state, legal action) pair: `score = w . relu(state + action)`.

The states of B steps and the U unique actions went through their towers once each; a pair costs one addition, one relu
and one dot product of width H. There are A pairs and A is large, so `[A, H]` is never held: the pairs are worked off in
chunks that stay in the processor's cache, and backward computes each chunk again.
"""

from __future__ import annotations

from typing import Any

import torch

# Rows of width 512 in a chunk make 1 MB, half of the second-level cache of a common core. Measured in docs/LOG.md.
CHUNK_BYTES = 1 << 20


def pair_score(
    state_BH: torch.Tensor,
    action_UH: torch.Tensor,
    weight_H: torch.Tensor,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
) -> torch.Tensor:
    """Score every pair.

    Args:
        state_BH: [B, H], float32 or float64 (bfloat16 under autocast).
        action_UH: [U, H], same dtype.
        weight_H: [H], same dtype.
        step_A: int64 [A], each pair's row in `state_BH`.
        unique_A: int64 [A], each pair's row in `action_UH`.

    Returns:
        [A]; `score_A[a] = weight_H . relu(state_BH[step_A[a]] + action_UH[unique_A[a]])`.

    Source: own; tests/learn/test_pair.py holds it against the same formula written out.
    """
    score_A: torch.Tensor = _PairScore.apply(  # type: ignore[no-untyped-call]
        state_BH, action_UH, weight_H.to(state_BH.dtype), step_A, unique_A
    )
    return score_A


def _chunks(num_pairs: int, row: torch.Tensor) -> list[slice]:
    size = max(1, CHUNK_BYTES // (row.shape[-1] * row.element_size()))
    return [slice(start, min(start + size, num_pairs)) for start in range(0, num_pairs, size)]


def _activate(
    state_BH: torch.Tensor, action_UH: torch.Tensor, step: torch.Tensor, unique: torch.Tensor
) -> torch.Tensor:
    # index_select, not advanced indexing: the latter is several times slower on a CPU.
    return state_BH.index_select(0, step).add_(action_UH.index_select(0, unique)).relu_()


class _PairScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state_BH: torch.Tensor,
        action_UH: torch.Tensor,
        weight_H: torch.Tensor,
        step_A: torch.Tensor,
        unique_A: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(state_BH, action_UH, weight_H, step_A, unique_A)
        score_A = state_BH.new_empty(step_A.shape)
        for part in _chunks(len(step_A), weight_H):
            torch.mv(_activate(state_BH, action_UH, step_A[part], unique_A[part]), weight_H, out=score_A[part])
        return score_A

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        state_BH, action_UH, weight_H, step_A, unique_A = ctx.saved_tensors
        (grad_A,) = grads
        grad_state_BH, grad_action_UH = torch.zeros_like(state_BH), torch.zeros_like(action_UH)
        grad_weight_H = torch.zeros_like(weight_H)
        for part in _chunks(len(step_A), weight_H):
            step, unique, grad = step_A[part], unique_A[part], grad_A[part]
            active = _activate(state_BH, action_UH, step, unique)
            grad_weight_H.addmv_(active.t(), grad)
            # The score's gradient where the relu let something through. The weight is the same for all pairs of a row
            # of the sums, so it is multiplied in once at the end instead of once a pair.
            open_gate = torch.ops.aten.threshold_backward(grad.unsqueeze(1).expand_as(active), active, 0.0)
            grad_state_BH.index_add_(0, step, open_gate)
            grad_action_UH.index_add_(0, unique, open_gate)
        return grad_state_BH.mul_(weight_H), grad_action_UH.mul_(weight_H), grad_weight_H, None, None
