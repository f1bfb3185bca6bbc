"""The pair score as Triton kernels for a GPU: `score = w . relu(state + action)`, its gradients, and no atomics.

The reference is learn/pair.py; the numbers are the same up to rounding. Importing this module needs triton, which CUDA
builds of torch for Linux bring along; `device.triton_missing` says beforehand whether it can be used here.

Forward, a program scores BLOCK_A pairs: it fetches their state and action rows piece by piece, BLOCK_H columns at a
time, and keeps nothing but a running sum for each pair, so `[A, H]` exists only in registers.

Backward, the gradient of a state row is a sum over the pairs of that step, that of an action row a sum over all pairs
with that id, wherever they lie:

    grad_state[b]  = w * sum of grad[a] where state[b] + action[unique[a]] > 0, over the pairs a of step b
    grad_action[u] = w * sum of grad[a] where state[step[a]] + action[u] > 0,   over the pairs a of id u
    grad_w         =     sum of grad[a] * relu(state[step[a]] + action[unique[a]]), over all pairs a

The usual way, an atomic addition for each pair, collides where an id occurs often ("pass" is legal in almost every
step), and adds in an order that nobody chose, so two runs differ. Here one program owns one row of a gradient and adds
its pairs in the order that the host planned (batch.PairOrder): the pairs of a step lie side by side, those of an id are
listed in `order_A`. The weight's gradient falls out of the pass over the steps, as one partial sum for each step.

Not measured on a GPU yet: block sizes are a plausible start, not a result.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from movelist.learn.batch import PairOrder

SCORE_PAIRS = 32  # rows fetched together: many loads in flight hide memory's delay
GRADIENT_PAIRS = 16  # fewer, since most lists and most ids have fewer pairs than that, and rows without a pair idle
MAX_COLUMNS = 128  # 32 x 128 float32 sums are 32 registers for each of a program's 128 threads


def ordered_pair_score(
    state_BH: torch.Tensor,
    action_UH: torch.Tensor,
    weight_H: torch.Tensor,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
    order: PairOrder,
) -> torch.Tensor:
    """Score every pair; as `pair.pair_score`, but summed in the given order.

    Args:
        state_BH: [B, H], float32, float64, float16 or bfloat16.
        action_UH: [U, H], same dtype.
        weight_H: [H], cast to it.
        step_A: int64 [A], each pair's row in `state_BH`.
        unique_A: int64 [A], each pair's row in `action_UH`.
        order: Which pairs belong to which step and id; must agree with `step_A` and `unique_A`, which nobody checks.

    Returns:
        [A], float32 (float64 for float64);
        `score_A[a] = weight_H . relu(state_BH[step_A[a]] + action_UH[unique_A[a]])`.

    Source: own; tests/learn/test_pair_triton.py holds it against the same formula written out.
    """
    score_A: torch.Tensor = _score(
        state_BH,
        action_UH,
        weight_H.to(state_BH.dtype),
        step_A,
        unique_A,
        order.offsets,
        order.order_A,
        order.unique_offsets,
    )
    return score_A


# --- The operators: what torch.compile and autograd see. To them each is one opaque call with known output shapes.


@torch.library.custom_op("movelist::ordered_pair_score", mutates_args=())
def _score(
    state_BH: torch.Tensor,
    action_UH: torch.Tensor,
    weight_H: torch.Tensor,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
    offsets: torch.Tensor,
    order_A: torch.Tensor,
    unique_offsets: torch.Tensor,
) -> torch.Tensor:
    state_BH, action_UH, weight_H = state_BH.contiguous(), action_UH.contiguous(), weight_H.contiguous()
    score_A = state_BH.new_empty(step_A.shape, dtype=_sum_dtype(state_BH))
    num_pairs, width = len(step_A), state_BH.shape[1]
    with torch.cuda.device_of(state_BH):  # Triton starts kernels on the current device, whatever its tensors say
        _score_kernel[(triton.cdiv(num_pairs, SCORE_PAIRS),)](
            state_BH, action_UH, weight_H, step_A, unique_A, score_A, num_pairs, width,
            **_blocks(state_BH, SCORE_PAIRS),
        )  # fmt: skip
    return score_A


@_score.register_fake
def _(state_BH: torch.Tensor, action_UH: torch.Tensor, weight_H: torch.Tensor, step_A: torch.Tensor,
      unique_A: torch.Tensor, offsets: torch.Tensor, order_A: torch.Tensor,
      unique_offsets: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return state_BH.new_empty(step_A.shape, dtype=_sum_dtype(state_BH))


@torch.library.custom_op("movelist::ordered_pair_gradients", mutates_args=())
def _gradients(
    grad_A: torch.Tensor,
    state_BH: torch.Tensor,
    action_UH: torch.Tensor,
    weight_H: torch.Tensor,
    step_A: torch.Tensor,
    unique_A: torch.Tensor,
    offsets: torch.Tensor,
    order_A: torch.Tensor,
    unique_offsets: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_A, weight_H = grad_A.contiguous(), weight_H.contiguous()
    state_BH, action_UH = state_BH.contiguous(), action_UH.contiguous()
    grad_state_BH, grad_action_UH = torch.empty_like(state_BH), torch.empty_like(action_UH)
    partial_BH = torch.empty_like(state_BH, dtype=_sum_dtype(state_BH))  # each step's share of the weight's gradient
    width, blocks = state_BH.shape[1], _blocks(state_BH, GRADIENT_PAIRS)
    column_blocks = triton.cdiv(width, blocks["BLOCK_H"])
    with torch.cuda.device_of(state_BH):
        _row_gradient_kernel[(len(state_BH), column_blocks)](
            state_BH, action_UH, weight_H, grad_A, offsets, order_A, unique_A, grad_state_BH, partial_BH, width,
            LISTED=False, WITH_WEIGHT=True, **blocks,
        )  # fmt: skip
        _row_gradient_kernel[(len(action_UH), column_blocks)](
            action_UH, state_BH, weight_H, grad_A, unique_offsets, order_A, step_A, grad_action_UH, partial_BH, width,
            LISTED=True, WITH_WEIGHT=False, **blocks,
        )  # fmt: skip
    return grad_state_BH, grad_action_UH, partial_BH.sum(0).to(weight_H.dtype)


@_gradients.register_fake
def _(grad_A: torch.Tensor, state_BH: torch.Tensor, action_UH: torch.Tensor, weight_H: torch.Tensor,
      step_A: torch.Tensor, unique_A: torch.Tensor, offsets: torch.Tensor, order_A: torch.Tensor,
      unique_offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    rows = (state_BH.new_empty(state_BH.shape), action_UH.new_empty(action_UH.shape))
    return (*rows, weight_H.new_empty(weight_H.shape))


def _remember(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


@once_differentiable  # a gradient of the gradient is refused in words
def _backward(ctx: Any, grad_A: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*_gradients(grad_A, *ctx.saved_tensors), None, None, None, None, None)


_score.register_autograd(_backward, setup_context=_remember)


def _sum_dtype(rows: torch.Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _blocks(rows: torch.Tensor, num_pairs: int) -> dict[str, Any]:
    """The kernels' compile-time constants: block sizes (powers of two) and the dtype of sums."""
    return {
        "BLOCK_A": num_pairs,
        "BLOCK_H": min(MAX_COLUMNS, triton.next_power_of_2(rows.shape[1])),
        "SUM": tl.float64 if _sum_dtype(rows) == torch.float64 else tl.float32,
    }


# --- The kernels. `tl` is Triton's language: a program works on whole blocks, and a mask keeps it inside the arrays.


@triton.jit  # type: ignore[untyped-decorator]
def _score_kernel(
    state: tl.tensor,
    action: tl.tensor,
    weight: tl.tensor,
    step: tl.tensor,
    unique: tl.tensor,
    score: tl.tensor,
    num_pairs: int,
    width: int,
    BLOCK_A: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SUM: tl.constexpr,
) -> None:
    """Score BLOCK_A pairs that lie side by side."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK_A + tl.arange(0, BLOCK_A)
    is_pair = pair < num_pairs
    # Row numbers are int64, so that row * width does not overflow in large tables.
    state_row = tl.load(step + pair, mask=is_pair, other=0) * width
    action_row = tl.load(unique + pair, mask=is_pair, other=0) * width
    # Each thread sums what it fetched; threads meet once, at the end.
    total = tl.zeros((BLOCK_A, BLOCK_H), dtype=SUM)
    for start in range(0, width, BLOCK_H):
        column = start + tl.arange(0, BLOCK_H)
        inside = is_pair[:, None] & (column < width)[None, :]
        w = tl.load(weight + column, mask=column < width, other=0.0).to(SUM)
        x = tl.load(state + state_row[:, None] + column[None, :], mask=inside, other=0.0).to(SUM)
        x += tl.load(action + action_row[:, None] + column[None, :], mask=inside, other=0.0).to(SUM)
        # Not maximum(x, 0), which may turn NaN into 0: the learner must see bad numbers.
        total += tl.where(x <= 0, 0.0, x) * w[None, :]
    tl.store(score + pair, tl.sum(total, axis=1), mask=is_pair)


@triton.jit  # type: ignore[untyped-decorator]
def _row_gradient_kernel(
    own: tl.tensor,
    other: tl.tensor,
    weight: tl.tensor,
    grad: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    other_row: tl.tensor,
    grad_own: tl.tensor,
    partial: tl.tensor,
    width: int,
    BLOCK_A: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SUM: tl.constexpr,
    LISTED: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
) -> None:
    """The gradient of one row of `own`, BLOCK_H columns of it, from the pairs that the row is in.

    `own` and `other` are states and actions, or the other way round. The row's pairs have the numbers offsets[row] to
    offsets[row + 1] - 1, or stand in `order` there if LISTED; pair a meets row other_row[a] of `other`.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_column = column < width
    here = row * width + column
    mine = tl.load(own + here, mask=is_column, other=0.0).to(SUM)
    own_sum = tl.zeros((BLOCK_A, BLOCK_H), dtype=SUM)
    weight_sum = tl.zeros((BLOCK_A, BLOCK_H), dtype=SUM)
    last = tl.load(offsets + row + 1)
    for start in range(tl.load(offsets + row), last, BLOCK_A):
        place = start + tl.arange(0, BLOCK_A)
        is_pair = place < last
        pair = tl.load(order + place, mask=is_pair, other=0) if LISTED else place
        there = tl.load(other_row + pair, mask=is_pair, other=0) * width
        g = tl.load(grad + pair, mask=is_pair, other=0.0).to(SUM)[:, None]
        inside = is_pair[:, None] & is_column[None, :]
        x = mine[None, :] + tl.load(other + there[:, None] + column[None, :], mask=inside, other=0.0).to(SUM)
        # Rows behind the last pair have gradient 0, so they add nothing.
        g = tl.where(x <= 0, 0.0, g)
        own_sum += g
        if WITH_WEIGHT:
            weight_sum += g * x
    # The weight is the same for all pairs of the row, so it is multiplied in once.
    w = tl.load(weight + column, mask=is_column, other=0.0).to(SUM)
    tl.store(grad_own + here, tl.sum(own_sum, axis=0) * w, mask=is_column)
    if WITH_WEIGHT:
        tl.store(partial + here, tl.sum(weight_sum, axis=0), mask=is_column)
