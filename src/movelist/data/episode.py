"""Episodes: many games as flat columns with offsets, which is how they travel from the game to the loss.

Worked example, two short games of two players with 1-wide states:

    game 0: player 0 sees [0.], may choose 7 or 9, chooses 9; player 1 sees [1.], may choose 5, 6 or 8, chooses 5;
            player 0 wins 1 point.
    game 1: player 1 sees [2.], may choose 7 or 9, chooses 7 and wins 3 points.

    state_NS         [[0.], [1.], [2.]]          action_offsets   [0, 2, 5, 7]
    player_N         [0, 1, 1]                   action_id_A      [7, 9, 5, 6, 8, 7, 9]
    chosen_N         [1, 0, 0]  (an index into the step's own list)
    reward_N         [1., -1., 3.]               episode_offsets  [0, 2, 3]
    return_EP        [[1., -1.], [-3., 3.]]

Dimensions here: N steps, E episodes, A legal actions of all steps, S state width, P players.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from movelist.core.action_ids import listed_twice, to_text
from movelist.core.errors import DataError
from movelist.data.column import Column, Per, declared

# Beyond it no number of an episode is taken: its square, a million times, is the most that float32 holds, as in the
# length of a gradient; and float64 counts whole points up to there, also in sums.
LARGEST = 2.0**50
LOWEST_LOG_PROB = -40.0  # 4e-18; PPO divides by the probability, and nobody draws such an action in a life of games
REFUSED_TWICE = (
    "If both are the same action, --repeated_actions merge makes one of them; two different actions need two ids."
)
POLICY, HUMAN, OTHER = 0, 1, 2  # who moves a seat: PPO learns from POLICY seats, the others shape the returns

RANGE = f"a number from {-LARGEST:.2g} to {LARGEST:.2g}"

Array = NDArray[Any]
Share = Callable[[int], slice]  # which of so many things are this process's; see learn/parallel.py


def everything(count: int) -> slice:
    """The `Share` of a process that trains alone."""
    return slice(0, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Whole games as columns; `check` says whether they keep the rules.

    A column is declared here and nowhere else: what picks, joins, keeps and sends episodes follows the declarations.

    Attributes:
        state_NS: float32, float16 or uint8 [N, S]; what the mover knew.
        player_N: int64 [N], the mover's seat.
        action_offsets: int64 [N+1]; step n's legal actions are `action_id_A[action_offsets[n]:action_offsets[n+1]]`.
        action_id_A: int64 [A], 64-bit patterns, distinct within a step.
        chosen_N: int64 [N], index of the chosen action in its step's list.
        log_prob_N: float32 [N], of the chosen action when it was chosen; NaN where nobody recorded it.
        reward_N: float64 [N], all that the mover receives from this step to their own next step or the end.
        episode_offsets: int64 [E+1], over steps.
        return_EP: float64 [E, P], final scores in the game's own units.
        truncated_E: bool [E], cut off before the end.
        final_state_EPS: [E, P, S], each seat's view of where a truncated episode stopped; None if none was.
        controller_EP: int8 [E, P]: POLICY, HUMAN or OTHER.
        critic_state_NC: float32 [N, C], what a critic may know beyond the state; None without.
        final_critic_EC: float32 [E, C], the same of where a truncated episode stopped; NaN where nobody recorded it and
            in episodes that ended, None without any.
        feature_AF: float32 [A, F], what is known of each legal action beside its id; None without.
        side_EP: int8 [E, P], who played together in the end (`State.sides`), all different and below 0 in an episode
            that does not tell it; None without.
        origin_E: str [E], where each episode was recorded, as "games/a.jsonl, line 7"; None where nobody knows.
        extra: Further columns, each [rows, width], by their declarations; see `Column`.
        num_turns: All turns of all players, forced ones too, however many of them are steps here.
    """

    state_NS: Array = field(metadata=declared("step", np.float32, None))
    player_N: Array = field(metadata=declared("step", np.int64))
    action_offsets: Array
    action_id_A: Array = field(metadata=declared("action", np.int64))
    chosen_N: Array = field(metadata=declared("step", np.int64))
    log_prob_N: Array = field(metadata=declared("step", np.float32))
    reward_N: Array = field(metadata=declared("step", np.float64))
    episode_offsets: Array
    return_EP: Array = field(metadata=declared("seat", np.float64))
    truncated_E: Array = field(metadata=declared("episode", np.bool_))
    controller_EP: Array = field(metadata=declared("seat", np.int8))
    final_state_EPS: Array | None = field(default=None, metadata=declared("seat", np.float32, None, optional=True))
    critic_state_NC: Array | None = field(
        default=None, metadata=declared("step", np.float32, None, optional=True, field="critic_state")
    )
    feature_AF: Array | None = field(
        default=None, metadata=declared("action", np.float32, None, optional=True, field="action_features")
    )
    final_critic_EC: Array | None = field(
        default=None, metadata=declared("episode", np.float32, None, optional=True, fill=np.nan)
    )
    side_EP: Array | None = field(default=None, metadata=declared("seat", np.int8, optional=True, stored=False))
    origin_E: Array | None = field(default=None, metadata=declared("episode", object, optional=True, stored=False))
    extra: Mapping[Column, Array] = field(default_factory=dict)
    num_turns: int = 0

    @property
    def num_steps(self) -> int:
        """N."""
        return len(self.player_N)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.truncated_E)

    @property
    def num_actions(self) -> int:
        """A, the legal actions of all steps together."""
        return len(self.action_id_A)

    @property
    def num_players(self) -> int:
        """P."""
        return int(self.return_EP.shape[1])

    @property
    def episode_N(self) -> Array:
        """int64 [N], each step's episode."""
        return np.repeat(np.arange(self.num_episodes), np.diff(self.episode_offsets))

    @property
    def rows(self) -> dict[Per, tuple[int, ...]]:
        """How many rows a column has, by what they are for."""
        seats = (self.num_episodes, self.num_players)
        return {"step": (self.num_steps,), "action": (self.num_actions,), "episode": seats[:1], "seat": seats}

    def columns(self) -> dict[Column, Array]:
        """All columns that are there."""
        own = {column: getattr(self, column.name) for column in COLUMNS}
        return {column: array for column, array in own.items() if array is not None} | dict(self.extra)

    def further(self) -> dict[Column, Array]:
        """The columns that not all episodes have, but for final states: those of networks that look at more."""
        own = {column: getattr(self, column.name) for column in FURTHER}
        return {column: array for column, array in own.items() if array is not None} | dict(self.extra)

    def __len__(self) -> int:
        return self.num_episodes

    def __getitem__(self, index: int) -> Episode:
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        return Episode(self, index % len(self))

    def __iter__(self) -> Iterator[Episode]:
        return (Episode(self, index) for index in range(len(self)))

    def place(self, step: int) -> str:
        """Step number `step` of the columns as people read it: "episode 3, step 5", and where it was recorded."""
        episode = int(np.searchsorted(self.episode_offsets, step, side="right")) - 1
        return f"episode {episode}, step {step - int(self.episode_offsets[episode])}{self.recorded(episode)}"

    def recorded(self, episode: int) -> str:
        """Where an episode was recorded, as the end of a place; empty where nobody knows."""
        origin = None if self.origin_E is None else self.origin_E[episode]
        return f", recorded in {origin}" if origin else ""

    def place_of_action(self, action: int) -> str:
        """The place of the step in whose list entry number `action` of the columns stands."""
        return self.place(int(np.searchsorted(self.action_offsets, action, side="right")) - 1)

    def check(self, where: str = "episodes") -> Episodes:
        """Hold the rules above; return the same episodes.

        Raises:
            DataError: The first breach, with episode, step and field.
        """
        _check_shapes(self, where)
        _check_values(self, where)
        return self

    def select_steps(self, keep_N: Array) -> Episodes:
        """The same episodes with only the steps where `keep_N` (bool [N]) is true. Rewards are not moved."""
        count_N = np.diff(self.action_offsets)
        kept_before = np.concatenate([[0], np.cumsum(keep_N)])
        keep = {"step": keep_N, "action": np.repeat(keep_N, count_N)}
        columns = {
            column: array[keep[column.per]] if column.per in keep else array for column, array in self.columns().items()
        }
        return replace(
            self,
            **arguments(columns),
            action_offsets=offsets_of(count_N[keep_N]),
            episode_offsets=kept_before[self.episode_offsets],
        )

    def take(self, index_E: Array) -> Episodes:
        """Some episodes in the given order; `num_turns` is not known of a part, so it becomes the number of steps."""
        step_N = ranges(self.episode_offsets, index_E)
        action_A = ranges(self.action_offsets, step_N)
        row = {"step": step_N, "action": action_A, "episode": index_E, "seat": index_E}
        return Episodes(
            **arguments({column: array[row[column.per]] for column, array in self.columns().items()}),
            action_offsets=offsets_of(np.diff(self.action_offsets)[step_N]),
            episode_offsets=offsets_of(np.diff(self.episode_offsets)[index_E]),
            num_turns=len(step_N),
        )

    def without_forced(self) -> Episodes:
        """Drop the turns with one legal action; each one's reward goes to the mover's step before it.

        What a player received before their first real decision counts in `return_EP` only.
        """
        keep_N = np.diff(self.action_offsets) > 1
        order = np.lexsort((self.player_N, self.episode_N))
        trajectory = self.episode_N[order] * self.num_players + self.player_N[order]
        starts = np.r_[True, trajectory[1:] != trajectory[:-1]] if len(order) else np.zeros(0, bool)
        # A group begins at each kept step and at each trajectory's start; its rewards add up into its first step.
        group = np.cumsum(keep_N[order] | starts) - 1
        reward = np.zeros(self.num_steps)
        reward[order] = np.bincount(group, self.reward_N[order], minlength=self.num_steps)[group]
        return replace(self, reward_N=reward).select_steps(keep_N)

    def learnable(self) -> Episodes:
        """Only the steps of seats that the policy moved."""
        mine_N = self.controller_EP[self.episode_N, self.player_N] == POLICY
        return self if mine_N.all() else self.select_steps(mine_N)


COLUMNS = tuple(Column(column.name, **column.metadata) for column in fields(Episodes) if column.metadata)
_OWN = frozenset(COLUMNS)
FURTHER = tuple(column for column in COLUMNS if column.field)  # optional ones that games and recordings may have


def arguments(columns: Mapping[Column, Array]) -> dict[str, Any]:
    """Columns as arguments of `Episodes`: its own by their names, the others as `extra`."""
    own = {column.name: array for column, array in columns.items() if column in _OWN}
    return own | {"extra": {column: array for column, array in columns.items() if column not in _OWN}}


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of an `Episodes`, as views into its columns."""

    episodes: Episodes
    index: int

    @property
    def steps(self) -> range:
        """The numbers of its steps in the columns."""
        return range(*(int(edge) for edge in self.episodes.episode_offsets[self.index : self.index + 2]))

    @property
    def returns(self) -> Array:
        """float64 [P]."""
        returns: Array = self.episodes.return_EP[self.index]
        return returns

    def actions(self, step: int) -> Array:
        """int64: the legal actions of step number `step` in the columns."""
        start, end = self.episodes.action_offsets[step : step + 2]
        actions: Array = self.episodes.action_id_A[start:end]
        return actions


class Source(Protocol):
    """Where episodes come from: self-play, recordings, other machines. A training loop knows nothing else of them."""

    def collect(self, policy: Any, num_episodes: int) -> Episodes:
        """The next `num_episodes` episodes, checked. Fewer, or none, once the source is exhausted."""

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands, of types that a checkpoint holds."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def close(self) -> None:
        """Give back files and processes."""


def beyond_reason(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Whether any number along `axis` is NaN, infinite or beyond `LARGEST`."""
    limit = np.float32(LARGEST)  # with a dtype: in float16, a number without one would become infinite, with a warning
    return np.asarray(~((values.max(axis, initial=0) <= limit) & (values.min(axis, initial=0) >= -limit)))


def offsets_of(count_N: Array) -> Array:
    """int64 [N+1]: where each of N lists of these lengths starts, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(count_N, dtype=np.int64)])


def ranges(offsets: Array, row_R: Array) -> Array:
    """int64: the places of all entries of some rows, where row r is `offsets[r]` to `offsets[r + 1] - 1`.

    Example: rows 2 and 0 of offsets [0, 2, 3, 5] are the entries [3, 4, 0, 1].
    """
    count_R = offsets[row_R + 1] - offsets[row_R]
    ends = np.cumsum(count_R)
    total = int(ends[-1]) if len(ends) else 0
    places: Array = np.arange(total) + np.repeat(offsets[row_R] - (ends - count_R), count_R)
    return places


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """Several batches of episodes as one, in order.

    Raises:
        DataError: There are none, or their widths differ.
    """
    if not parts:
        raise DataError("no episodes to put together")
    widths = {(part.state_NS.shape[1], part.num_players, part.state_NS.dtype) for part in parts}
    if len(widths) > 1:
        raise DataError("episodes differ in state width, players or dtype", got=sorted(map(str, widths)))
    present = [part.columns() for part in parts]
    joined: dict[Column, Array] = {}
    for column in {column: None for columns in present for column in columns}:
        first = next(columns[column] for columns in present if column in columns)
        if not column.optional and not all(column in columns for columns in present):
            raise DataError("some episodes have a column that others lack", got=column.name)
        arrays = [
            columns[column] if column in columns else column.filled(part.rows[column.per], first)
            for columns, part in zip(present, parts, strict=True)
        ]
        sizes = {array.shape[len(part.rows[column.per]) :] for array, part in zip(arrays, parts, strict=True)}
        if len(sizes) > 1:
            raise DataError("episodes differ in the width of a column", got=sorted(sizes), where=column.name)
        joined[column] = np.concatenate(arrays)
    return Episodes(
        **arguments(joined),
        action_offsets=offsets_of(np.concatenate([np.diff(part.action_offsets) for part in parts])),
        episode_offsets=offsets_of(np.concatenate([np.diff(part.episode_offsets) for part in parts])),
        num_turns=sum(part.num_turns for part in parts),
    )


def no_episodes(state_size: int, num_players: int, state_dtype: DTypeLike = np.float32) -> Episodes:
    """No episodes, of these widths."""
    rows: dict[Per, tuple[int, ...]] = {"step": (0,), "action": (0,), "episode": (0,), "seat": (0, num_players)}
    columns = {column: np.zeros(rows[column.per], column.dtype) for column in COLUMNS if not column.optional}
    none = Episodes(**arguments(columns), action_offsets=np.zeros(1, np.int64), episode_offsets=np.zeros(1, np.int64))
    return replace(none, state_NS=np.zeros((0, state_size), state_dtype))


def credit(score_N: Array, player_N: Array, episode_offsets: Array, return_EP: Array) -> Array:
    """Rewards from running scores: what the mover gains from each step to their own next step, or the end.

    Args:
        score_N: float64 [N], the mover's score just before the step.
        player_N: int64 [N].
        episode_offsets: int64 [E+1].
        return_EP: float64 [E, P], the final scores.

    Returns:
        float64 [N].
    """
    episode_N = np.repeat(np.arange(len(return_EP)), np.diff(episode_offsets))
    order = np.lexsort((player_N, episode_N))
    episode, player, score = episode_N[order], player_N[order], score_N[order]
    later = return_EP[episode, player]
    same = (episode[1:] == episode[:-1]) & (player[1:] == player[:-1])
    later[:-1][same] = score[1:][same]
    reward_N = np.empty(len(order))
    reward_N[order] = later - score
    return reward_N


def _check_shapes(episodes: Episodes, where: str) -> None:
    if episodes.return_EP.ndim != 2:
        got = f"shape {list(episodes.return_EP.shape)}"
        _refuse("returns have the wrong form", where, "return_EP", got=got, expected="[E, P]")
    rows = episodes.rows
    for column, array in episodes.columns().items():
        if column.name not in ("action_id_A", "final_state_EPS"):  # held below
            column.check(array, rows[column.per], where)
    steps, players = episodes.num_steps, episodes.num_players
    if episodes.state_NS.ndim != 2 or episodes.state_NS.dtype not in (np.float32, np.float16, np.uint8):
        got = f"{episodes.state_NS.dtype} {list(episodes.state_NS.shape)}"
        _refuse("states have the wrong form", where, "state_NS", got=got, expected="float32, float16 or uint8 [N, S]")
    if episodes.action_id_A.dtype != np.int64:
        _refuse(
            "action ids have the wrong dtype", where, "action_id_A", got=episodes.action_id_A.dtype, expected="int64"
        )
    for name, end, num_rows in (
        ("action_offsets", episodes.num_actions, steps),
        ("episode_offsets", steps, episodes.num_episodes),
    ):
        offsets = getattr(episodes, name)
        falls = name == "episode_offsets" and (np.diff(offsets) < 0).any()  # a fall in the other is an empty list
        if len(offsets) != num_rows + 1 or offsets[0] != 0 or offsets[-1] != end or falls:
            got = f"{len(offsets)} offsets ending at {offsets[-1] if len(offsets) else 'nothing'}"
            _refuse("offsets do not cover the column", where, name, got=got, expected=f"{num_rows + 1} from 0 to {end}")
    if episodes.final_state_EPS is not None:
        form = [episodes.num_episodes, players, episodes.state_NS.shape[1]]
        if list(episodes.final_state_EPS.shape) != form:
            shape = list(episodes.final_state_EPS.shape)
            _refuse("final states have the wrong form", where, "final_state_EPS", got=shape, expected=form)


def _check_values(episodes: Episodes, where: str) -> None:
    """One rule a line: (which steps break it, the field, what to say)."""
    count_N = np.diff(episodes.action_offsets)
    rules: list[tuple[Array, str, str]] = [
        (count_N < 1, "action_offsets", "a list of legal actions is empty"),
        ((episodes.chosen_N < 0) | (episodes.chosen_N >= count_N), "chosen_N", "the chosen index is outside the list"),
        ((episodes.player_N < 0) | (episodes.player_N >= episodes.num_players), "player_N", "there is no such player"),
        (~np.isfinite(episodes.reward_N), "reward_N", "a reward is not a finite number"),
        # A difference of two numbers that are not.
        (np.abs(episodes.reward_N) > 2 * LARGEST, "reward_N", "a reward is too large to train with"),
        (np.isinf(episodes.log_prob_N) | (episodes.log_prob_N > 1e-4), "log_prob_N", "a log-probability is impossible"),
    ]
    if episodes.state_NS.dtype != np.uint8:
        finite_N = np.asarray(np.isfinite(episodes.state_NS).all(axis=1))
        rules.append((~finite_N, "state_NS", "a state holds NaN or infinity"))
    for broken_N, name, what in rules:
        if broken_N.any():
            _refuse_step(episodes, int(np.flatnonzero(broken_N)[0]), what, where, name)
    for column, broken in not_finite(episodes):
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            place = episodes.place(first) if column.by_turn else f"episode {first}"
            _refuse(f"{column.label} holds NaN or infinity", f"{where}, {place}", column.name)
    _check_distinct(episodes, count_N, where)
    broken_E = beyond_reason(episodes.return_EP, 1)
    if broken_E.any():
        first = int(np.flatnonzero(broken_E)[0])
        finite = np.isfinite(episodes.return_EP[first]).all()
        what = "a return is too large to train with" if finite else "a return is not a finite number"
        _refuse(what, f"{where}, episode {first}", "return_EP")
    if not np.isin(episodes.controller_EP, (POLICY, HUMAN, OTHER)).all():
        _refuse("there is no such controller", where, "controller_EP", expected=f"{POLICY}, {HUMAN} or {OTHER}")
    if episodes.final_state_EPS is not None and not np.isfinite(episodes.final_state_EPS).all():
        _refuse("a final state holds NaN or infinity", where, "final_state_EPS")
    broken_E = lacking(episodes.final_critic_EC, episodes.num_episodes)
    if broken_E.any():
        first = int(np.flatnonzero(broken_E)[0])
        _refuse("a final critic state holds NaN or infinity", f"{where}, episode {first}", "final_critic_EC")
    if episodes.truncated_E.any() and episodes.final_state_EPS is None:
        first = np.flatnonzero(episodes.truncated_E)[0]
        _refuse("a truncated episode has no final states", f"{where}, episode {first}", "final_state_EPS")


def lacking(final_EC: Array | None, num_episodes: int) -> Array:
    """Which final critic states [E, C] hold a number that is not finite beside others; a row of NaN alone is none."""
    if final_EC is None:
        return np.zeros(num_episodes, bool)
    return np.asarray(~np.isfinite(final_EC).all(axis=1) & ~np.isnan(final_EC).all(axis=1))


def not_finite(episodes: Episodes) -> Iterator[tuple[Column, Array]]:
    """Of each further column of floats: which steps, or which episodes, have a number in it that is not finite."""
    for column, array in episodes.further().items():
        if array.dtype.kind != "f":
            continue
        broken = np.asarray(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
        if column.per == "action":
            step_A = np.repeat(np.arange(episodes.num_steps), np.diff(episodes.action_offsets))
            broken = np.asarray(np.bincount(step_A, broken, episodes.num_steps) > 0)
        yield column, broken


def _check_distinct(episodes: Episodes, count_N: Array, where: str) -> None:
    twice_N = listed_twice(episodes.action_id_A, count_N)
    if twice_N.any():
        step = int(np.flatnonzero(twice_N)[0])
        ids = np.sort(episodes.action_id_A[slice(*episodes.action_offsets[step : step + 2])])
        what = f"the action id {to_text(ids[:-1][np.diff(ids) == 0][0])} stands twice in one list"
        _refuse_step(episodes, step, what, where, "action_id_A", do=REFUSED_TWICE)


def _refuse_step(episodes: Episodes, step: int, what: str, where: str, field: str, do: str | None = None) -> None:
    place = f"{where}, {episodes.place(step)}"
    got = getattr(episodes, field)[step] if field in ("chosen_N", "player_N", "reward_N", "log_prob_N") else None
    expected = None
    if field == "chosen_N":
        expected = f"0 to {episodes.action_offsets[step + 1] - episodes.action_offsets[step] - 1}"
    _refuse(what, place, field, got=got, expected=expected, do=do)


def _refuse(
    what: str, where: str, field: str, got: object = None, expected: object = None, do: str | None = None
) -> None:
    raise DataError(what, got=got, expected=expected, where=f"{where}, field {field}", do=do)
