"""Recorded lists that name an action twice, made into lists that name each once.

A log-prob in a file is that of the entry that was chosen. What is trained on is the action, so its copies'
probabilities add up. A policy of movelist gives all copies of an action the same probability, in any of its readers, so
k copies are k times as likely as the chosen one: its log-prob grows by log k. Of another player nobody knows what the
other copies had; there the log-prob counts as missing. Where the chosen action has no copy it stays, whoever played.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import first_copies, to_text
from movelist.data.episode import POLICY, Episodes, arguments, offsets_of
from movelist.data.record_rules import NO_VERSION, Columns, Rule

Array = NDArray[Any]
LARGEST_LOG_PROB = 1e-4  # rounding; as for log-probs that are read


@dataclass
class Merging:
    """That copies are merged, and how many were.

    Attributes:
        lists: Lists that named an action more than once.
        entries: Entries left out of them.
    """

    lists: int = 0
    entries: int = 0

    def rules(self, columns: Columns) -> Iterator[Rule]:
        """What breaks a list whose copies are to be merged, in place of the rule against copies."""
        copies = _Copies.of(columns)
        if copies is None:
            return
        raw = columns.raw
        for column, array in raw.further().items():
            if column.per == "action":
                differs_A = np.asarray((array != array[copies.first_A]).reshape(len(array), -1).any(axis=1))
                differs_A &= ~np.isnan(array.reshape(len(array), -1).astype(np.float64)).any(axis=1)  # said elsewhere
                bad_N = np.asarray(np.bincount(copies.step_A, differs_A, raw.num_steps) > 0)
                ids = {
                    int(step): to_text(int(raw.action_id_A[place]))
                    for place, step in zip(np.flatnonzero(differs_A), copies.step_A[differs_A], strict=True)
                }
                what = "copies of an action have different numbers"
                yield "different copies", column.label, what, "the same for the same id", bad_N, ids.__getitem__
        log_prob_N = copies.log_probs(columns)
        bad_N = np.asarray(log_prob_N > LARGEST_LOG_PROB) & np.asarray(raw.log_prob_N <= LARGEST_LOG_PROB)
        what = "the copies of an action are together more likely than certain"
        yield "log_prob", "log_prob", what, "the log-prob of the entry chosen", bad_N, raw.log_prob_N.__getitem__

    def merged(self, columns: Columns) -> Columns:
        """The same episodes, which keep the rules, with each action once in its list; they are counted."""
        copies = _Copies.of(columns)
        if copies is None:
            return columns
        raw, kept_A = columns.raw, copies.kept_A
        count_N = np.bincount(copies.step_A[kept_A], minlength=raw.num_steps)
        self.lists += int((count_N < np.diff(raw.action_offsets)).sum())
        self.entries += int((~kept_A).sum())
        offsets = offsets_of(count_N)
        taken = {column: array[kept_A] if column.per == "action" else array for column, array in raw.columns().items()}
        merged: Episodes = replace(raw, **arguments(taken), action_offsets=offsets)
        chosen_N = np.cumsum(kept_A)[copies.chosen_N] - 1 - offsets[:-1]
        log_prob_N = np.minimum(copies.log_probs(columns), 0.0).astype(np.float32)
        return replace(columns, raw=replace(merged, chosen_N=chosen_N, log_prob_N=log_prob_N))


@dataclass(frozen=True)
class _Copies:
    """Where the actions of some lists stand first.

    Attributes:
        first_A: int64 [A], the first place of each entry's action in its list.
        step_A: int64 [A], each entry's step.
        kept_A: bool [A], whether an entry is the first of its action.
        chosen_N: int64 [N], the first place of the chosen action.
    """

    first_A: Array
    step_A: Array
    kept_A: Array
    chosen_N: Array

    @classmethod
    def of(cls, columns: Columns) -> _Copies | None:
        """None where no list names an action twice."""
        raw = columns.raw
        count_N = np.diff(raw.action_offsets)
        first_A = first_copies(raw.action_id_A, count_N)
        kept_A = first_A == np.arange(len(first_A))
        if kept_A.all():
            return None
        # An index outside its list is told by another rule, and must not lead outside the column here.
        chosen_N = np.clip(raw.action_offsets[:-1] + raw.chosen_N, 0, len(first_A) - 1)
        return cls(first_A, np.repeat(np.arange(raw.num_steps), count_N), kept_A, first_A[chosen_N])

    def log_probs(self, columns: Columns) -> Array:
        """float64 [N], of the chosen actions with all their copies; NaN where nobody knows it."""
        raw = columns.raw
        number_N = np.bincount(self.first_A, minlength=len(self.first_A))[self.chosen_N]
        seat_N = np.clip(raw.player_N, 0, raw.num_players - 1)
        ours_N = (raw.controller_EP == POLICY)[raw.episode_N, seat_N]
        ours_N &= (columns.version_EP != NO_VERSION)[raw.episode_N, seat_N]
        together_N = raw.log_prob_N.astype(np.float64) + np.log(np.maximum(number_N, 1))
        return np.where(ours_N | (number_N == 1), together_N, np.nan)
