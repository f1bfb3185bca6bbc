"""A rollout on the device, and the plan of the update that is made of it.

All that the device would have to be asked is known on the host: list lengths, which steps go into which batch, which
ids are unique in it. So the host plans every index of every batch first and copies the plan over once; a batch is then
gathered on the device without a question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.ragged import Segments
from movelist.data.episode import Episodes
from movelist.learn.device import to_device

Array = NDArray[Any]
EVALUATION_STEPS = 4096  # a batch without gradient: large enough for a full device, small enough for its memory
EVALUATION_ACTIONS = 1 << 18
ENCODED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class PairOrder:
    """In which order a batch's pairs are summed, once per step and once per unique id; a kernel that follows it needs
    no atomic additions, and the same batch gives the same bytes.

    Attributes:
        offsets: int64 [B+1], those of the lists: step b's pairs are `offsets[b]` to `offsets[b + 1] - 1`.
        order_A: int64 [A], all pairs, those of unique id 0 first, then those of id 1, and so on.
        unique_offsets: int64 [U+1]: the pairs of unique id u are `order_A[unique_offsets[u]:unique_offsets[u + 1]]`.

    Example: two steps that offer ids [7, 9] and [9], with the unique ids 7 and 9: `offsets` [0, 2, 3], `order_A`
    [0, 1, 2], `unique_offsets` [0, 1, 3].
    """

    offsets: torch.Tensor
    order_A: torch.Tensor
    unique_offsets: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """One forward and backward pass: B steps, A legal actions, U unique ids among them.

    Attributes:
        step_B: int64 [B], the steps' places in the rollout.
        segments: The lists.
        unique_A: int64 [A], each legal action's row in `row_U`.
        row_U: int64 [U], the unique ids' rows in the rollout's table of ids.
        chosen_B: int64 [B], the chosen action's place in the flat list.
        num_unique: U.
        order: The order of sums, if it was planned.
    """

    step_B: torch.Tensor
    segments: Segments
    unique_A: torch.Tensor
    row_U: torch.Tensor
    chosen_B: torch.Tensor
    num_unique: int
    order: PairOrder | None = None


@dataclass(frozen=True)
class Minibatch:
    """One optimiser step: one or more batches, and their steps together over all processes."""

    batches: list[Batch]
    num_steps: int


class Rollout:
    """The episodes of one update: columns on the host for planning, states and ids on the device.

    Attributes:
        episodes: The steps to learn from.
        unique_id_R: int64 [R], the rollout's unique ids, sorted; `row_A` [A] is each legal action's row in it.
        state_NS: [N, S] on the device.
        encoded_R: The unique ids as the network takes them, on the device.
    """

    def __init__(self, episodes: Episodes, encode_ids: Any, device: torch.device) -> None:
        self.episodes = episodes
        self.device = device
        self.count_N = np.diff(episodes.action_offsets)
        self.unique_id_R, row_A = np.unique(episodes.action_id_A, return_inverse=True)
        self.row_A = row_A.reshape(-1)
        columns = to_device({"state_NS": episodes.state_NS, "unique_id_R": self.unique_id_R}, device)
        self.state_NS = columns["state_NS"]
        # In parts: on the way to 256 bytes an id takes four times that.
        parts = [encode_ids(part) for part in columns["unique_id_R"].split(ENCODED_AT_ONCE)]
        self.encoded_R = parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def num_steps(self) -> int:
        """N."""
        return self.episodes.num_steps

    def gather(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch's states [B, S] and its unique actions as the network takes them."""
        return self.state_NS.index_select(0, batch.step_B), self.encoded_R.index_select(0, batch.row_U)


def rollout_bytes(episodes: Episodes, num_epochs: int, *, encoder: str = "bits") -> int:
    """About what a rollout and the plan of its update keep on the device, beside the network and one batch's work."""
    num_unique = len(np.unique(episodes.action_id_A))
    id_bytes = 8 + 64 * 4 if encoder == "bits" else 8  # ids, and their bits as float32; a table's rows are the ids
    targets = 4 * 4 * episodes.num_steps  # `loss.Targets`
    planned = 3 * episodes.num_steps + 3 * episodes.num_actions  # 64-bit indices of an epoch, see `_plan`
    return int(episodes.state_NS.nbytes + id_bytes * num_unique + targets + 8 * num_epochs * planned)


def spread(num_items: int, largest: int) -> list[int]:
    """Cut into as few parts as `largest` allows, as equal as can be: 65 with 64 is [33, 32], never [64, 1]."""
    return shares(num_items, -(-num_items // largest))


def shares(num_items: int, num_parts: int) -> list[int]:
    """Cut into this many parts, as equal as can be: 2 in 3 parts is [1, 1, 0]."""
    base, extra = divmod(num_items, max(1, num_parts))
    return [base + (part < extra) for part in range(num_parts)]


def plan_minibatches(
    order_N: Array,
    count_N: Array,
    *,
    batch_size: int,
    accumulation: int,
    max_actions: int,
    num_minibatches: int | None = None,
) -> Iterator[list[Array]]:
    """Cut one epoch's order of steps into minibatches, each a list of batches of steps.

    Args:
        order_N: int64 [N], the steps in the order of this epoch.
        count_N: int64 [N], each step's number of legal actions.
        batch_size: Steps in a batch, at most.
        accumulation: A minibatch has at most `batch_size` times this many steps.
        max_actions: Legal actions in a batch, at most, unless a single step has more.
        num_minibatches: How many, where another process needs more than this one; then some may be empty.
    """
    start = 0
    fewest = -(-len(order_N) // (batch_size * accumulation))
    for size in shares(len(order_N), num_minibatches or fewest):
        edges = np.cumsum([0, *spread(size, batch_size)]) + start
        yield [part for a, b in pairwise(edges) for part in _halve(order_N[a:b], count_N, max_actions)]
        start += size


def evaluation_parts(count_N: Array, max_actions: int | None = None) -> list[Array]:
    """Cut all steps, in order, into batches bounded by steps and by legal actions, at most `max_actions`."""
    most = EVALUATION_ACTIONS if max_actions is None else min(EVALUATION_ACTIONS, max_actions)
    edges, last = [0], 0
    total = np.concatenate([[0], np.cumsum(count_N)])
    while last < len(count_N):
        fits = int(np.searchsorted(total, total[last] + most, side="right")) - 1
        last = min(max(fits, last + 1), last + EVALUATION_STEPS, len(count_N))
        edges.append(last)
    return [np.arange(a, b) for a, b in pairwise(edges)]


def _halve(step_B: Array, count_N: Array, max_actions: int) -> list[Array]:
    """Cut steps in halves until each part has few enough legal actions, or is a single step."""
    if len(step_B) <= 1 or count_N[step_B].sum() <= max_actions:
        return [step_B]
    middle = len(step_B) // 2
    return _halve(step_B[:middle], count_N, max_actions) + _halve(step_B[middle:], count_N, max_actions)


def plan_batches(
    rollout: Rollout, parts: Sequence[Array], columns: dict[str, Array], *, ordered: bool = False
) -> tuple[list[Batch], dict[str, torch.Tensor]]:
    """Plan every batch on the host and copy all indices over at once.

    Args:
        rollout: Where the steps are.
        parts: For each batch the numbers of its steps.
        columns: Further arrays to send along in the same copy.
        ordered: Plan the order of sums too, for kernels that follow it; a sort of each batch's ids on the host.

    Returns:
        The batches, on the rollout's device, and `columns` there.
    """
    plans = [_plan(rollout, step_B, ordered) for step_B in parts]
    flat = np.concatenate([array for plan in plans for array in plan]) if plans else np.zeros(0, np.int64)
    there = to_device({"plan": flat, **columns}, rollout.device)
    pieces = iter(there.pop("plan").split([array.size for plan in plans for array in plan]))
    return [_batch(pieces, ordered) for _ in plans], there


def _plan(rollout: Rollout, step_B: Array, ordered: bool) -> tuple[Array, ...]:
    """The indices of one batch, in the order of `_batch`."""
    count_B = rollout.count_N[step_B]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_B)])
    place_B = np.repeat(np.arange(len(step_B)), count_B)
    # Where each legal action lies in the rollout: its list's start there, plus its place in the list.
    source_A = np.arange(offsets[-1]) + (rollout.episodes.action_offsets[step_B] - offsets[:-1])[place_B]
    row_A = rollout.row_A[source_A]
    # Remapping by a table is three times faster than a sort of each batch's ids.
    seen_R = np.zeros(len(rollout.unique_id_R), np.int64)
    seen_R[row_A] = 1
    row_U = np.flatnonzero(seen_R)
    seen_R[row_U] = np.arange(len(row_U))
    unique_A = seen_R[row_A]
    plan = step_B, offsets, place_B, unique_A, row_U, offsets[:-1] + rollout.episodes.chosen_N[step_B]
    return (*plan, *_order(unique_A, len(row_U))) if ordered else plan


def _order(unique_A: Array, num_unique: int) -> tuple[Array, Array]:
    """`order_A` and `unique_offsets` of a PairOrder."""
    # 16-bit keys get numpy's radix sort, which is stable and linear in A; wider ones a merge sort.
    keys = unique_A.astype(np.uint16) if num_unique <= 1 << 16 else unique_A
    count_U = np.bincount(unique_A, minlength=num_unique)
    return np.argsort(keys, kind="stable"), np.concatenate([np.zeros(1, np.int64), np.cumsum(count_U)])


def _batch(pieces: Iterator[torch.Tensor], ordered: bool) -> Batch:
    step_B, offsets, place_A, unique_A, row_U, chosen_B = (next(pieces) for _ in range(6))
    segments = Segments(offsets, place_A, len(step_B), len(place_A))
    order = PairOrder(offsets, next(pieces), next(pieces)) if ordered else None
    return Batch(step_B, segments, unique_A, row_U, chosen_B, len(row_U), order)
