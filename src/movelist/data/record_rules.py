"""What holds for every recorded episode, whatever file it came from; and how its rewards become credit.

Rewards in a file are as an engine knows them when it writes a step:

    a number   looks back: what the mover received since their own last step. What came after a player's last step is
               in nobody's step, so `returns` completes it.
    a list     looks on: what each seat received from this step to the next one of anybody, or the end. It is complete
               by itself; if `returns` are there too, both have to agree.

Episodes.reward_N is what the mover receives from a step to their own next one, or the end. Example, A B A with returns
[1, -1]: numbers [0, 0, 2] say that A received 2 between their two steps; credit: A 2, then 1 - 2 = -1; B -1. Lists
[[0, 0], [2, 0], [-1, -1]] say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import listed_twice, to_text
from movelist.core.errors import DataError
from movelist.data.episode import (
    LARGEST,
    LOWEST_LOG_PROB,
    RANGE,
    REFUSED_TWICE,
    Episodes,
    beyond_reason,
    concatenate,
    credit,
    not_finite,
    ranges,
)
from movelist.data.record_format import Widths

Array = NDArray[Any]
NO_REWARD, LOOKING_BACK, LOOKING_ON = 0, 1, 2
NO_VERSION = -1
_ROWS = ("reward_form_E", "has_final_E", "version_EP", "ordinal_E", "line_E", "next_E4")  # of Columns, one an episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something in a file that costs an episode, or is worth knowing.

    Attributes:
        kind: A word or two, to count by.
        file: The file.
        place: "line 3" or "row 120".
        ordinal: Number of the episode in its file, from 0; -1 if it belongs to none.
        step: Number of the step in its episode; -1 if it belongs to none.
        field: The field.
        what: What is wrong.
        got: What was found.
        expected: What would have been right.
        do: What to do about it.
        harmless: Nothing was lost that could have been used.
    """

    kind: str
    file: str
    place: str
    ordinal: int = -1
    step: int = -1
    field: str = ""
    what: str = ""
    got: object = None
    expected: object = None
    do: str | None = None
    harmless: bool = False

    def error(self) -> DataError:
        """The same as an error; its text is how people read a problem."""
        where = [self.file, self.place]
        where += [f"episode {self.ordinal}"] if self.ordinal >= 0 else []
        where += [f"step {self.step}"] if self.step >= 0 else []
        where += [f"field {self.field}"] if self.field else []
        return DataError(self.what, got=self.got, expected=self.expected, where=", ".join(where), do=self.do)

    def __str__(self) -> str:
        return str(self.error())


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on.

    Attributes:
        offset: Byte (of what gz holds) where the next line or batch begins; 0 reads from the beginning.
        ordinal: Number of the next episode.
        line: Number of the next line, from 1; or of the next row, from 0.
        skip: Rows of the batch at `offset` that are done with; 0 in `.jsonl`.
        stream: Byte where the schema of that batch begins; 0 in `.jsonl`.
    """

    offset: int = 0
    ordinal: int = 0
    line: int = 0
    skip: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Some recorded episodes as they stand in the file.

    Attributes:
        widths: Constant in the file.
        raw: The columns; `reward_N` looks back and is NaN without, `return_EP` is NaN without, and forced turns are in.
        reward_NP: float64 [N, P], rewards that look on; None if no episode here has any.
        reward_form_E: int8, NO_REWARD, LOOKING_BACK or LOOKING_ON.
        has_final_E: bool, whether final states are there.
        version_EP: int64, the policy version of each seat; NO_VERSION without.
        ordinal_E: int64, the number of each episode in its file.
        line_E: int64, the line, or the first row.
        next_E4: int64 [E, 4], where reading goes on after each episode: Position's offset, line, skip and stream.
    """

    widths: Widths
    raw: Episodes
    reward_NP: Array | None
    reward_form_E: Array
    has_final_E: Array
    version_EP: Array
    ordinal_E: Array
    line_E: Array
    next_E4: Array

    def __len__(self) -> int:
        return len(self.raw)

    def position(self, index: int) -> Position:
        """Where reading goes on after episode number `index` of these."""
        offset, line, skip, stream = self.next_E4[index].tolist()
        return Position(offset, int(self.ordinal_E[index]) + 1, line, skip, stream)

    def take(self, index_E: Array) -> Columns:
        """Some of the episodes."""
        step_N = ranges(self.raw.episode_offsets, index_E)
        return replace(
            self,
            raw=self.raw.take(index_E),
            reward_NP=None if self.reward_NP is None else self.reward_NP[step_N],
            **{name: getattr(self, name)[index_E] for name in _ROWS},
        )

    def recorded_in(self, file: str, unit: str) -> Columns:
        """The same; each episode knows its file and line, or row."""
        origins = [f"{file}, {unit} {line}" for line in self.line_E.tolist()]
        return replace(self, raw=replace(self.raw, origin_E=np.array(origins, object)))

    def episodes(self, *, keep_forced: bool = False) -> Episodes:
        """The episodes as training takes them: rewards credited, then forced turns dropped."""
        reward_N, return_EP = _credit(self)
        credited = replace(self.raw, reward_N=reward_N, return_EP=return_EP, num_turns=self.raw.num_steps)
        return credited if keep_forced else credited.without_forced()


def columns_of(episodes: Episodes, game: str, version_EP: Array | None = None, *, first: int = 0) -> Columns:
    """Played episodes as a recording holds them: rewards look back, and all of them have returns.

    Args:
        episodes: From play, forced turns and all.
        game: Its name.
        version_EP: int64 [E, P]; None for no version.
        first: Ordinal of the first one.
    """
    num_episodes, num_players = episodes.return_EP.shape
    sizes = {size: 0 if array is None else array.shape[1] for size, array in (
        ("critic_size", episodes.critic_state_NC), ("feature_size", episodes.feature_AF))}  # fmt: skip
    widths = Widths(game, num_players, (episodes.state_NS.shape[1],), str(episodes.state_NS.dtype), **sizes,
                    columns=tuple(episodes.extra))  # fmt: skip
    ordinal_E = np.arange(first, first + num_episodes)
    return Columns(
        widths=widths,
        raw=replace(episodes, reward_N=_look_back(episodes)),
        reward_NP=None,
        reward_form_E=np.full(num_episodes, LOOKING_BACK, np.int8),
        has_final_E=episodes.truncated_E.copy(),
        version_EP=np.full((num_episodes, num_players), NO_VERSION) if version_EP is None else version_EP,
        ordinal_E=ordinal_E,
        line_E=ordinal_E,
        next_E4=np.zeros((num_episodes, 4), np.int64),
    )


def no_row(file: str, place: str, num_actions: int) -> Problem:
    """An episode of a store with an id that the network's table lacks."""
    return Problem(kind="table", file=file, place=place, field="actions", what=_NO_ROW,
                   expected=f"0 to {num_actions - 1}", do=_DO["table"])  # fmt: skip


def keep_good(columns: Columns, file: str, unit: str, num_actions: int = 0) -> tuple[Columns, list[Problem]]:
    """Hold the rules; hand back the episodes that keep them, and a problem for each other one.

    Args:
        columns: As read.
        file: Its file.
        unit: "line" or "row".
        num_actions: Rows of the network's table of actions; 0 for no table.
    """
    found: dict[int, Problem] = {}
    by_episode = [column.label for column in columns.raw.extra if not column.by_turn]
    for kind, field, what, expected, broken, values in chain(_rules(columns), _table_rule(columns.raw, num_actions)):
        per_step = field not in ("steps", "returns", "final_states", *by_episode)
        for index in np.flatnonzero(broken).tolist():
            episode = index
            if per_step:
                episode = int(np.searchsorted(columns.raw.episode_offsets, index, side="right")) - 1
            if episode in found:
                continue
            step = index - int(columns.raw.episode_offsets[episode]) if per_step else -1
            line = int(columns.line_E[episode]) + (step if per_step and unit == "row" else 0)
            found[episode] = Problem(
                kind=kind,
                file=file,
                place=f"{unit} {line}",
                ordinal=int(columns.ordinal_E[episode]),
                step=step,
                field=field,
                what=what,
                got=None if values is None else values(index),
                expected=expected,
                do=_DO.get(kind),
                harmless=kind == "no step",
            )
    if not found:
        return columns, []
    good_E = np.array([episode for episode in range(len(columns)) if episode not in found], np.int64)
    return columns.take(good_E), [found[episode] for episode in sorted(found)]


_NO_ROW = "an action id has no row in the table"
_DO = {
    "empty list": "A turn without a legal action is no step: leave it out.",
    "duplicate id": REFUSED_TWICE,
    "chosen": "`chosen` is the index of the action in the list, not its id.",
    "player": "Seats are counted from 0; `players` has an entry for each.",
    "reward": "Write `reward` in every step of an episode or in none, as finite numbers.",
    "returns": "Write `returns`, the final score of each seat.",
    "returns disagree": "Leave out one of the two, or let the lists include what the end pays.",
    "truncated": "Write `final_states`, each seat's view of where the episode was cut off.",
    "log_prob": "Write the natural logarithm of a probability, or leave it out.",
    "table": "Say --action_encoder bits, or write the ids that the game has here.",
    "small log_prob": "Write the logarithm of the probability that the choice was drawn with, or leave it out.",
    "state": "Look for what divides by zero, overflows the dtype or was never set.",
    "too large": "Look for a score that overflowed or was never set, or count in larger units.",
}


def _rules(columns: Columns) -> Iterator[tuple[str, str, str, object, Array, Any]]:
    """(kind, field, what, expected, which steps or episodes break it, what was found there), the first rule first."""
    raw = columns.raw
    count_N = np.diff(raw.action_offsets)
    players = raw.num_players
    yield "no step", "steps", "an episode has no step", None, np.diff(raw.episode_offsets) == 0, None
    yield "empty list", "actions", "a list of legal actions is empty", "at least 1", count_N < 1, None
    bad_N = (raw.chosen_N < 0) | (raw.chosen_N >= count_N)
    got = raw.chosen_N.__getitem__
    yield "chosen", "chosen", "the chosen index is outside the list", "less than the list's length", bad_N, got
    bad_N = (raw.player_N < 0) | (raw.player_N >= players)
    yield "player", "player", "there is no such player", f"0 to {players - 1}", bad_N, raw.player_N.__getitem__
    twice_N, which = _duplicates(raw, count_N)
    yield "duplicate id", "actions", "an action id stands twice in one list", "distinct ids", twice_N, which
    if raw.state_NS.dtype != np.uint8:
        yield from _state_rules("state", "a state", raw.state_NS, beyond_reason(raw.state_NS, 1))
    bad_N = np.isinf(raw.log_prob_N) | (raw.log_prob_N > 1e-4)
    yield "log_prob", "log_prob", "a log-probability is impossible", "at most 0", bad_N, raw.log_prob_N.__getitem__
    bad_N, what = raw.log_prob_N < LOWEST_LOG_PROB, "a log-probability is too small to train with"
    expected = f"at least {LOWEST_LOG_PROB:.0f}"
    yield "small log_prob", "log_prob", what, expected, bad_N, raw.log_prob_N.__getitem__
    yield from _reward_rules(columns)
    for column, broken in not_finite(raw):
        yield "state", column.label, f"{column.label} holds NaN or infinity", "finite numbers", broken, None


def _reward_rules(columns: Columns) -> Iterator[tuple[str, str, str, object, Array, Any]]:
    raw, form_E = columns.raw, columns.reward_form_E
    form_N = form_E[raw.episode_N]
    bad_N = (form_N == LOOKING_BACK) & ~np.isfinite(raw.reward_N)
    if columns.reward_NP is not None:
        bad_N |= (form_N == LOOKING_ON) & ~np.isfinite(columns.reward_NP).all(axis=1)
    yield "reward", "reward", "a reward is missing or not a finite number", "a number or one for each seat", bad_N, None
    yield from _size_rules(columns)
    missing_E = np.isnan(raw.return_EP).all(axis=1)
    bad_E = np.asarray(~np.isfinite(raw.return_EP).all(axis=1)) & ~missing_E
    yield "returns", "returns", "a return is not a finite number", "a finite number for each seat", bad_E, None
    bad_E = missing_E & (form_E == NO_REWARD)
    yield "returns", "returns", "nothing says what the episode paid", "returns or rewards", bad_E, None
    bad_E = missing_E & (form_E == LOOKING_BACK) & ~raw.truncated_E
    what = "an episode ended, and nothing says what came after each player's last step"
    yield "returns", "returns", what, "returns, since a number as reward looks back", bad_E, None
    bad_E = raw.truncated_E & ~columns.has_final_E
    yield "truncated", "final_states", "a truncated episode has no final states", "one for each seat", bad_E, None
    if raw.final_state_EPS is not None and raw.final_state_EPS.dtype != np.uint8:
        bad_E = columns.has_final_E & beyond_reason(raw.final_state_EPS, (1, 2))
        yield from _state_rules("final_states", "a final state", raw.final_state_EPS, bad_E)
    if columns.reward_NP is not None:
        total_EP, size_EP = _totals(columns.reward_NP, raw), _totals(np.abs(columns.reward_NP), raw)
        with np.errstate(invalid="ignore"):  # what is not finite was found above
            far_EP = np.abs(total_EP - raw.return_EP) > 1e-6 * np.maximum(1.0, size_EP)
        bad_E = (form_E == LOOKING_ON) & ~missing_E & far_EP.any(axis=1)
        yield (
            "returns disagree",
            "returns",
            "returns and rewards disagree",
            "the sum of the rewards",
            bad_E,
            (lambda episode: f"{raw.return_EP[episode].tolist()} and a sum of {total_EP[episode].tolist()}"),
        )


def _table_rule(raw: Episodes, num_actions: int) -> Iterator[tuple[str, str, str, object, Array, Any]]:
    """Ids that are no row of the table of a network; recordings themselves know of no table."""
    bad_A = (raw.action_id_A < 0) | (raw.action_id_A >= num_actions)
    if num_actions and bad_A.any():
        place_A = np.flatnonzero(bad_A)
        first, at = np.unique(np.searchsorted(raw.action_offsets, place_A, side="right") - 1, return_index=True)
        ids = dict(zip(first.tolist(), raw.action_id_A[place_A[at]].tolist(), strict=True))
        bad_N = np.zeros(raw.num_steps, bool)
        bad_N[first] = True
        yield "table", "actions", _NO_ROW, f"0 to {num_actions - 1}", bad_N, ids.__getitem__


def _state_rules(
    field: str, what: str, states: Array, bad: Array
) -> Iterator[tuple[str, str, str, object, Array, Any]]:
    """Which of the rows that are beyond reason hold no number, and which one that is too large."""
    missing = bad.copy()
    missing[bad] = ~np.isfinite(states[bad]).all(axis=tuple(range(1, states.ndim)))
    yield "state", field, f"{what} holds NaN or infinity", "finite numbers", missing, None
    yield "too large", field, f"{what} holds a number too large to train with", RANGE, bad & ~missing, None


def _size_rules(columns: Columns) -> Iterator[tuple[str, str, str, object, Array, Any]]:
    """Rewards and returns that no statistic of training can hold; those that are no numbers are found elsewhere."""
    raw = columns.raw
    size_N = np.abs(np.nan_to_num(raw.reward_N, nan=0.0))
    cell_N = raw.episode_N * raw.num_players + np.clip(raw.player_N, 0, raw.num_players - 1)
    size_EP = np.bincount(cell_N, size_N, minlength=raw.return_EP.size).reshape(raw.return_EP.shape)
    if columns.reward_NP is not None:
        size_NP = np.abs(np.nan_to_num(columns.reward_NP, nan=0.0))
        size_N, size_EP = np.maximum(size_N, size_NP.max(axis=1)), size_EP + _totals(size_NP, raw)
    what = "a reward is too large to train with"
    yield "too large", "reward", what, RANGE, size_N > LARGEST, lambda step: float(size_N[step])
    what = "the rewards of an episode are too large to train with"
    total = f"at most {LARGEST:.2g} for a seat, added up without their signs"
    bad_E = np.asarray((size_EP > LARGEST).any(axis=1))
    yield "too large", "returns", what, total, bad_E, lambda episode: float(size_EP[episode].max())
    bad_E = np.asarray((np.abs(raw.return_EP) > LARGEST).any(axis=1))
    what = "a return is too large to train with"
    yield "too large", "returns", what, f"{RANGE} for each seat", bad_E, lambda e: raw.return_EP[e].tolist()


def _duplicates(raw: Episodes, count_N: Array) -> tuple[Array, Any]:
    """Which steps list an id twice, and a function that says which one."""
    twice_N = listed_twice(raw.action_id_A, count_N)

    def which(step: int) -> str:
        ids, counts = np.unique(
            raw.action_id_A[raw.action_offsets[step] : raw.action_offsets[step + 1]], return_counts=True
        )
        return to_text(int(ids[counts > 1][0]))

    return twice_N, which


def _totals(reward_NP: Array, raw: Episodes) -> Array:
    """Sums over each episode's steps, [E, P]."""
    cell_NP = raw.episode_N[:, None] * raw.num_players + np.arange(raw.num_players)
    total = np.bincount(cell_NP.reshape(-1), reward_NP.reshape(-1), minlength=raw.return_EP.size)
    return total.reshape(raw.return_EP.shape)


def _own_order(raw: Episodes) -> tuple[Array, Array]:
    """Steps sorted by episode and player, and whether the same player's next step is behind it (all but the last)."""
    order = np.lexsort((raw.player_N, raw.episode_N))
    trajectory = raw.episode_N[order] * raw.num_players + raw.player_N[order]
    return order, trajectory[1:] == trajectory[:-1]


def _credit(columns: Columns) -> tuple[Array, Array]:
    """reward_N as Episodes has it, and return_EP without gaps."""
    raw, form_E = columns.raw, columns.reward_form_E
    back_N = np.where(np.isnan(raw.reward_N), 0.0, raw.reward_N)
    own_EP = np.bincount(raw.episode_N * raw.num_players + raw.player_N, back_N, minlength=raw.return_EP.size).reshape(
        raw.return_EP.shape
    )
    total_EP = own_EP if columns.reward_NP is None else own_EP + _totals(np.nan_to_num(columns.reward_NP), raw)
    return_EP = np.where(np.isnan(raw.return_EP), total_EP, raw.return_EP)
    # Looking back: a step is credited with what stands in the mover's next one; the last with what is left of returns.
    order, same = _own_order(raw)
    reward_N = (return_EP - own_EP)[raw.episode_N, raw.player_N]
    credited = reward_N[order]
    credited[:-1][same] = back_N[order][1:][same]
    reward_N[order] = credited
    if columns.reward_NP is not None:
        before_NP = np.zeros_like(columns.reward_NP)
        for start, stop in pairwise(raw.episode_offsets.tolist()):  # a running sum over all would mix their roundings
            before_NP[start + 1 : stop] = np.cumsum(columns.reward_NP[start:stop], axis=0)[:-1]
        score_N = before_NP[np.arange(raw.num_steps), raw.player_N]
        on_N = credit(score_N, raw.player_N, raw.episode_offsets, total_EP)
        reward_N = np.where(form_E[raw.episode_N] == LOOKING_ON, on_N, reward_N)
    return reward_N, return_EP


def _look_back(episodes: Episodes) -> Array:
    """The rewards of played episodes as numbers that look back: `_credit` the other way round."""
    order, same = _own_order(episodes)
    sum_EP = np.bincount(
        episodes.episode_N * episodes.num_players + episodes.player_N,
        episodes.reward_N,
        minlength=episodes.return_EP.size,
    ).reshape(episodes.return_EP.shape)
    # A player's first step holds what they received before it.
    back = (episodes.return_EP - sum_EP)[episodes.episode_N, episodes.player_N][order]
    back[1:][same] = episodes.reward_N[order][:-1][same]
    back_N = np.empty(episodes.num_steps)
    back_N[order] = back
    return back_N


def join(parts: Sequence[Columns]) -> Columns:
    """Several pieces of one file as one."""
    if len(parts) == 1:
        return parts[0]
    nothing = [np.full((part.raw.num_steps, part.raw.num_players), np.nan) for part in parts]
    with_lists = any(part.reward_NP is not None for part in parts)
    return Columns(
        widths=parts[0].widths,
        raw=concatenate([part.raw for part in parts]),
        reward_NP=np.concatenate(
            [n if p.reward_NP is None else p.reward_NP for p, n in zip(parts, nothing, strict=True)]
        )
        if with_lists
        else None,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROWS},
    )
