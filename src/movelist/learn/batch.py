"""A rollout on the device, and the plan of the update that is made of it.

All that the device would have to be asked is known on the host: list lengths, which steps go into which batch, which
ids are unique in it. So the host plans every index of every batch first and copies the plan over once; a batch is then
gathered on the device without a question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.errors import DataError
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
        source_A: int64 [A], each legal action's place in the rollout, if a column has a row for each.
    """

    step_B: torch.Tensor
    segments: Segments
    unique_A: torch.Tensor
    row_U: torch.Tensor
    chosen_B: torch.Tensor
    num_unique: int
    order: PairOrder | None = None
    source_A: torch.Tensor | None = None


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
        columns: The further columns per step and per action on the device, by their names in games and recordings.
    """

    def __init__(self, episodes: Episodes, encode_ids: Any, device: torch.device) -> None:
        self.episodes = episodes
        self.device = device
        self.count_N = np.diff(episodes.action_offsets)
        self.unique_id_R, row_A = np.unique(episodes.action_id_A, return_inverse=True)
        self.row_A = row_A.reshape(-1)
        further = {column: array for column, array in episodes.further().items() if column.by_turn}
        self.has_action_columns = any(column.per == "action" for column in further)
        self._per = {column.label: column.per for column in further}
        own = {"state_NS": episodes.state_NS, "unique ids": self.unique_id_R}  # no column can have these names
        there = to_device(own | {column.label: array for column, array in further.items()}, device)
        self.state_NS = there.pop("state_NS")
        # In parts: on the way to 256 bytes an id takes four times that.
        parts = [encode_ids(part) for part in there.pop("unique ids").split(ENCODED_AT_ONCE)]
        self.encoded_R = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.columns: dict[str, torch.Tensor] = there

    @property
    def num_steps(self) -> int:
        """N."""
        return self.episodes.num_steps

    def gather(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch's states [B, S] and its unique actions as the network takes them."""
        return self.state_NS.index_select(0, batch.step_B), self.encoded_R.index_select(0, batch.row_U)

    def gather_columns(self, batch: Batch, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The batch's rows of further columns, [B, width] per step and [A, width] per action, by their names.

        Raises:
            DataError: The episodes have no such column.
        """
        for name in names:
            if name not in self.columns:
                raise DataError("the episodes lack a column that the network looks at", got=sorted(self.columns),
                                expected=name, do="Let the game or the recording declare it.")  # fmt: skip
        place: dict[str, Any] = {"step": batch.step_B, "action": batch.source_A}
        return {name: self.columns[name].index_select(0, place[self._per[name]]) for name in names}


def rollout_bytes(episodes: Episodes, num_epochs: int, *, encoder: str = "bits") -> int:
    """About what a rollout and the plan of its update keep on the device, beside the network and one batch's work."""
    num_unique = len(np.unique(episodes.action_id_A))
    id_bytes = 8 + 64 * 4 if encoder == "bits" else 8  # ids, and their bits as float32; a table's rows are the ids
    targets = 4 * 4 * episodes.num_steps  # `loss.Targets`
    planned = 3 * episodes.num_steps + 3 * episodes.num_actions  # 64-bit indices of an epoch, see `_plan`
    further = [(column, array.nbytes) for column, array in episodes.further().items() if column.by_turn]
    planned += episodes.num_actions * any(column.per == "action" for column, _ in further)
    told = sum(size for _, size in further)
    return int(episodes.state_NS.nbytes + told + id_bytes * num_unique + targets + 8 * num_epochs * planned)


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
    arrays = [array for plan in plans for array in plan if array is not None]
    there = to_device({"plan": np.concatenate(arrays) if arrays else np.zeros(0, np.int64), **columns}, rollout.device)
    pieces = iter(there.pop("plan").split([array.size for array in arrays]))
    on_device = [BatchPlan(*(None if array is None else next(pieces) for array in plan)) for plan in plans]
    return [_batch(plan) for plan in on_device], there


class BatchPlan(NamedTuple):
    """The indices of one batch, int64 arrays on the host or tensors on the device; see Batch and PairOrder.

    Attributes:
        step_B: The steps' places in the rollout.
        offsets: [B+1], of the lists.
        step_A: Each legal action's step in the batch.
        unique_A: Each legal action's row in `row_U`.
        row_U: The unique ids' rows in the rollout's table.
        chosen_B: The chosen actions' places in the flat list.
        source_A: Each legal action's place in the rollout; None where no column has a row for each.
        order_A: The order of sums, where it is planned.
        unique_offsets: [U+1], of that order.
    """

    step_B: Any
    offsets: Any
    step_A: Any
    unique_A: Any
    row_U: Any
    chosen_B: Any
    source_A: Any = None
    order_A: Any = None
    unique_offsets: Any = None


def _plan(rollout: Rollout, step_B: Array, ordered: bool) -> BatchPlan:
    """The indices of one batch on the host."""
    count_B = rollout.count_N[step_B]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_B)])
    step_A = np.repeat(np.arange(len(step_B)), count_B)
    # Where each legal action lies in the rollout: its list's start there, plus its place in the list.
    source_A = np.arange(offsets[-1]) + (rollout.episodes.action_offsets[step_B] - offsets[:-1])[step_A]
    row_A = rollout.row_A[source_A]
    # Remapping by a table is three times faster than a sort of each batch's ids.
    seen_R = np.zeros(len(rollout.unique_id_R), np.int64)
    seen_R[row_A] = 1
    row_U = np.flatnonzero(seen_R)
    seen_R[row_U] = np.arange(len(row_U))
    unique_A = seen_R[row_A]
    chosen_B = offsets[:-1] + rollout.episodes.chosen_N[step_B]
    kept_A = source_A if rollout.has_action_columns else None
    order = _order(unique_A, len(row_U)) if ordered else (None, None)
    return BatchPlan(step_B, offsets, step_A, unique_A, row_U, chosen_B, kept_A, *order)


def _order(unique_A: Array, num_unique: int) -> tuple[Array, Array]:
    """`order_A` and `unique_offsets` of a PairOrder."""
    # 16-bit keys get numpy's radix sort, which is stable and linear in A; wider ones a merge sort.
    keys = unique_A.astype(np.uint16) if num_unique <= 1 << 16 else unique_A
    count_U = np.bincount(unique_A, minlength=num_unique)
    return np.argsort(keys, kind="stable"), np.concatenate([np.zeros(1, np.int64), np.cumsum(count_U)])


def _batch(plan: BatchPlan) -> Batch:
    """A batch of a plan on the device."""
    segments = Segments(plan.offsets, plan.step_A, len(plan.step_B), len(plan.step_A))
    order = None if plan.order_A is None else PairOrder(plan.offsets, plan.order_A, plan.unique_offsets)
    num_unique = len(plan.row_U)
    return Batch(plan.step_B, segments, plan.unique_A, plan.row_U, plan.chosen_B, num_unique, order, plan.source_A)
