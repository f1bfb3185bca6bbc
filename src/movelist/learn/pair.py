"""The score of each (state, legal action) pair: `score = w . relu(state + action + features)`.

The states of B steps and the U unique actions went through their towers once each; a pair costs one addition, one relu
and one dot product of width H. There are A pairs and A is large, so `[A, H]` is never held: the pairs are worked off in
chunks that stay in the processor's cache, and backward computes each chunk again. What is known of a legal action
beside its id differs from pair to pair, so its product with a matrix [F, H] is added in the chunk, too.

On a CPU the cores share the rows of a chunk, so what matters is that every operation gives the same rows to the same
core: then nothing moves between their caches. Elementwise operations and row sums do. A matrix-vector product does not,
and made the gather after it ten times slower on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# 1,024 rows of width 512 make 2 MB: small enough for the caches, large enough that two cores are worth their meeting
# after each operation; docs/LOG.md has the times. A GPU has other caches and pays for each launch.
CHUNK_BYTES = {"cpu": 1 << 21, "cuda": 1 << 26}


def pair_score(
    state_BH: torch.Tensor,
    action_UH: torch.Tensor | None,
    weight_H: torch.Tensor,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
    feature_AF: torch.Tensor | None = None,
    matrix_FH: torch.Tensor | None = None,
) -> torch.Tensor:
    """Score every pair.

    Args:
        state_BH: [B, H], float32 or float64 (bfloat16 or float16 under autocast).
        action_UH: [U, H], same dtype; None leaves it out of the sum.
        weight_H: [H].
        step_A: int64 [A], each pair's row in `state_BH`.
        unique_A: int64 [A], each pair's row in `action_UH`.
        feature_AF: [A, F], numbers of each pair; no gradient. None without.
        matrix_FH: [F, H], what they are multiplied with.

    Returns:
        [A], float32 (float64 for float64);
        `score_A[a] = weight_H . relu(state_BH[step_A[a]] + action_UH[unique_A[a]] + feature_AF[a] . matrix_FH)`.

    Source: own; tests/learn/test_pair.py holds it against the same formula written out.
    """
    if torch.compiler.is_compiling():
        # A compiler makes one loop of the formula written out and holds no [A, H] either; the loop over chunks below
        # would fix their number in a graph. An exporter understands this one too.
        sum_AH = state_BH.index_select(0, step_A)
        if action_UH is not None:
            sum_AH = sum_AH + action_UH.index_select(0, unique_A)
        if feature_AF is not None and matrix_FH is not None:
            sum_AH = sum_AH + feature_AF.to(state_BH.dtype) @ matrix_FH.to(state_BH.dtype)
        active_AH = torch.relu(sum_AH)
        return (active_AH * weight_H.to(state_BH.dtype)).sum(-1, dtype=_sum_dtype(state_BH))
    dtype = state_BH.dtype
    features = (None, None) if feature_AF is None or matrix_FH is None else (feature_AF.to(dtype), matrix_FH.to(dtype))
    score_A: torch.Tensor = _PairScore.apply(  # type: ignore[no-untyped-call]
        state_BH, action_UH, weight_H.to(dtype), step_A, unique_A, *features
    )
    return score_A


class _PairScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state_BH: torch.Tensor,
        action_UH: torch.Tensor | None,
        weight_H: torch.Tensor,
        step_A: torch.Tensor,
        unique_A: torch.Tensor,
        feature_AF: torch.Tensor | None,
        matrix_FH: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(state_BH, action_UH, weight_H, step_A, unique_A, feature_AF, matrix_FH)
        score_A = state_BH.new_empty(step_A.shape, dtype=_sum_dtype(state_BH))
        for part, sum_CH in _pair_sums(state_BH, action_UH, step_A, unique_A, feature_AF, matrix_FH):
            torch.sum(sum_CH.relu_().mul_(weight_H), 1, dtype=score_A.dtype, out=score_A[part])
        return score_A

    @staticmethod
    @once_differentiable  # a gradient of the gradient is refused in words
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        state_BH, action_UH, weight_H, step_A, unique_A, feature_AF, matrix_FH = ctx.saved_tensors
        (grad_A,) = grads
        dtype, sum_dtype = state_BH.dtype, grad_A.dtype
        gates_BH = torch.zeros_like(state_BH, dtype=sum_dtype)
        gates_UH = None if action_UH is None else torch.zeros_like(action_UH, dtype=sum_dtype)
        gates_FH = None if matrix_FH is None else torch.zeros_like(matrix_FH, dtype=sum_dtype)
        for part, sum_CH in _pair_sums(state_BH, action_UH, step_A, unique_A, feature_AF, matrix_FH):
            # The score's gradient where the relu lets something through.
            gate_CH = sum_CH.gt_(0).to(grad_A.dtype).mul_(grad_A[part].unsqueeze(1))
            gates_BH.index_add_(0, step_A[part], gate_CH)
            if gates_UH is not None:
                gates_UH.index_add_(0, unique_A[part], gate_CH)
            if gates_FH is not None:
                gates_FH.addmm_(feature_AF[part].t().to(sum_dtype), gate_CH)
        # A row's gates added up are all that is needed: the weight is the same for each of its pairs, and
        # relu(s + a) = gate * (s + a) gives the weight's own gradient from the same sums.
        grad_weight_H = (gates_BH * state_BH).sum(0)
        for gates_RH, row_RH in ((gates_UH, action_UH), (gates_FH, matrix_FH)):
            if gates_RH is not None:
                grad_weight_H = grad_weight_H + (gates_RH * row_RH).sum(0)
        return (
            gates_BH.mul_(weight_H).to(dtype),
            None if gates_UH is None else gates_UH.mul_(weight_H).to(dtype),
            grad_weight_H.to(dtype),
            None,
            None,
            None,
            None if gates_FH is None else gates_FH.mul_(weight_H).to(dtype),
        )


def _pair_sums(
    state_BH: torch.Tensor,
    action_UH: torch.Tensor | None,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
    feature_AF: torch.Tensor | None,
    matrix_FH: torch.Tensor | None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Chunk by chunk, which pairs, and their sums [C, H]: a buffer that the next chunk overwrites."""
    row_bytes = state_BH.shape[1] * state_BH.element_size()
    size = max(1, min(len(step_A), CHUNK_BYTES.get(state_BH.device.type, 1 << 26) // row_bytes))
    # Buffers of our own: a fresh one for each chunk costs page faults. index_select, not advanced indexing, which is
    # slower on a CPU.
    left, right = (state_BH.new_empty(size, state_BH.shape[1]) for _ in range(2))
    for start in range(0, len(step_A), size):
        part = slice(start, min(start + size, len(step_A)))
        num_pairs = part.stop - part.start
        torch.index_select(state_BH, 0, step_A[part], out=left[:num_pairs])
        sum_CH = left[:num_pairs]
        if action_UH is not None:
            torch.index_select(action_UH, 0, unique_A[part], out=right[:num_pairs])
            sum_CH.add_(right[:num_pairs])
        if feature_AF is not None and matrix_FH is not None:
            sum_CH.addmm_(feature_AF[part], matrix_FH)
        yield part, sum_CH


def _sum_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
