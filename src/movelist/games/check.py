"""Does a game keep its promises? Random games, each played twice at once, held to the rules that training needs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core import action_ids
from movelist.core.errors import DataError, GameError, MovelistError
from movelist.data.column import Column
from movelist.games.columns import game_columns, read_columns
from movelist.games.game import (
    Game,
    State,
    action_encoder,
    check_players,
    code_failed,
    copy_actions,
    game_name,
    read_observation,
    read_player,
    read_returns,
    read_sides,
    shortened,
    start_game,
    state_size,
    teams_of,
)
from movelist.games.repeated import merging

LARGEST_SEED = 2**63 - 1  # of a game, as training hands them out
REPEATED = (
    'If both are the same action, say --repeated_actions merge, or repeated_actions = "merge" in the game\'s class; '
    "two different actions need two ids."
)


@dataclass(frozen=True, kw_only=True)
class GameReport:
    """What `check_game` saw in a game that kept its promises.

    Args:
        name: The game's name.
        num_players: Seats.
        state_size: Values in an observation.
        num_games: Games played.
        num_steps: Turns of a player in them, forced ones too.
        mean_legal_actions: Length of the list of legal actions, averaged over these turns.
        max_legal_actions: The longest list.
        forced_share: Share of the turns with one legal action, 0 to 1.
        num_cut_off: Games that were cut off at max_turns.
        notes: What is allowed and worth knowing, one sentence each.
    """

    name: str
    num_players: int
    state_size: int
    num_games: int
    num_steps: int
    mean_legal_actions: float
    max_legal_actions: int
    forced_share: float
    num_cut_off: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        cut_off = f", cut off {self.num_cut_off:,}" if self.num_cut_off else ""
        return (
            f"{self.name} keeps its promises: random games {self.num_games:,}, turns {self.num_steps:,}, "
            f"players {self.num_players}, state size {self.state_size:,}, "
            f"legal actions {self.mean_legal_actions:.1f} on average and {self.max_legal_actions:,} at most, "
            f"forced turns {self.forced_share:.0%}{cut_off}{''.join(f'. {note}' for note in self.notes)}"
        )


def check_game(
    game: Game, *, num_games: int = 20, seed: int = 0, max_turns: int = 100_000, cut_off: bool = False
) -> GameReport:
    """Play random games and see whether a game keeps the promises of Game and State.

    Each game is played twice at the same time, from the same seed and with the same choices: what the two show must be
    equal at every turn. So states that share something, or draw chance from somewhere else, are found as well.

    Args:
        game: The game.
        num_games: Games to play; their seeds are 0 to 2^63 - 1, as in training.
        seed: Decides the games' seeds and all moves.
        max_turns: A game longer than this counts as endless.
        cut_off: Take a game of `max_turns` turns for one that training would cut off there, and not for a fault.

    Raises:
        GameError: The first broken promise, with the game's seed and the turn where it shows; an exception in the
            game's own code is its cause.

    Example:
        >>> from movelist.games.catalog import make_game
        >>> check_game(make_game("tic_tac_toe"), num_games=1).state_size
        29
    """
    game = merging(game)
    num_players = check_players(game)
    fresh = start_game(game, 0, num_players)
    size, told = state_size(game, fresh), game_columns(game, fresh, critic=hasattr(fresh, "observe_all"))
    columns = tuple(column for column in told if column.by_turn)
    seen = _Seen(num_players=num_players, state_size=size, columns=columns)
    teams_of(game)
    numbers = random.Random(seed)
    for _ in range(num_games):
        _play_twice(game, seen, numbers.randint(0, LARGEST_SEED), max_turns, cut_off)
    lengths = np.array(seen.lengths, np.int64)
    return GameReport(
        name=game_name(game),
        num_players=seen.num_players,
        state_size=seen.state_size,
        num_games=num_games,
        num_steps=len(lengths),
        mean_legal_actions=float(lengths.mean()) if len(lengths) else 0.0,
        max_legal_actions=int(lengths.max(initial=0)),
        forced_share=float((lengths == 1).mean()) if len(lengths) else 0.0,
        num_cut_off=seen.num_cut_off,
        notes=tuple(seen.notes()),
    )


@dataclass(kw_only=True)
class _Seen:
    """What the games of a check have shown so far."""

    num_players: int
    state_size: int
    columns: tuple[Column, ...] = ()  # per step and per action
    num_cut_off: int = 0
    lengths: list[int] = field(default_factory=list)  # of the lists of legal actions
    num_observations: int = 0
    observations: set[bytes] = field(default_factory=set)  # two different ones at most
    refilled: set[str] = field(default_factory=set)

    def observe(self, turn: _Turn) -> None:
        """Count what the seats see, up to the second thing that they can tell apart."""
        self.num_observations += len(turn.observations)
        if len(self.observations) < 2:
            self.observations.update(row.tobytes() for row in turn.observations)

    def notes(self) -> list[str]:
        """What training copes with, and its user should know."""
        notes = []
        if len(self.observations) == 1 and self.num_observations > 1:
            notes.append("observe shows the same numbers to every seat at every turn, so play cannot depend on them")
        notes += [
            f"{method} hands out the same array again with other content: training copies it, code of your own has to"
            for method in sorted(self.refilled)
        ]
        return notes


@dataclass(frozen=True)
class _Turn:
    """All that a state shows at one turn; the lists are empty once the game is over."""

    player: int | None
    legal_actions: list[int]
    returns: list[float]
    observations: list[NDArray[np.float32]]
    told: dict[Column, NDArray[Any]] = field(default_factory=dict)  # action_features and observe_all, where it has them


def _play_twice(game: Game, seen: _Seen, seed: int, max_turns: int, cut_off: bool) -> None:
    """Play one random game in two states at once."""
    chooser = random.Random(seed)
    states = [start_game(game, seed, seen.num_players) for _ in range(2)]
    shared = _Shared(seen.refilled)
    for number in range(max_turns):
        where = f"{game_name(game)}, seed {seed}, turn {number + 1}"
        try:
            turn, other = (_look(game, state, seen, where) for state in states)
            _check_same(turn, other, where)
            seen.observe(turn)
            if turn.player is None:
                return
            shared.look(states, seen.num_players)
            index = chooser.randrange(len(turn.legal_actions))
            _read_words(states[0], index, turn.player, where)
            for state in states:
                state.apply(index)
        except MovelistError:
            raise
        except Exception as error:
            raise code_failed(error, where) from error
        seen.lengths.append(len(turn.legal_actions))
    if cut_off:
        seen.num_cut_off += 1
        return
    raise GameError(
        "a game does not end",
        got=f"{max_turns:,} turns",
        where=f"{game_name(game)}, seed {seed}",
        do="Let current_player return None at the end, or raise max_turns.",
    )


class _Shared:
    """Looks for lists and arrays that a game hands out again with other content, of another seat or another state."""

    def __init__(self, found: set[str]) -> None:
        self.found = found
        self.kept: dict[str, tuple[Any, list[Any]]] = {}  # what two states handed out both, and what was in it

    def look(self, states: Sequence[State], num_players: int) -> None:
        """Ask both states for what they show at this turn, and the first one as every seat."""
        rows: list[Any] = [states[0].observe(player) for player in range(num_players)]
        before = [np.array(states[0].observe(player)) for player in range(num_players)]
        if any(not np.array_equal(row, own) for row, own in zip(rows, before, strict=True)):
            self.found.add("observe")
        self._compare("observe", *(state.observe(0) for state in states))
        self._compare("legal_actions", *(state.legal_actions() for state in states))

    def _compare(self, method: str, one: Any, other: Any) -> None:
        """The two states are equal, so that they share what changes shows at a later turn."""
        arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        if not (np.shares_memory(one, other) if arrays else one is other):
            return
        kept, content = self.kept.setdefault(method, (one, list(one)))
        if list(kept) != content:
            self.found.add(method)


def _read_words(state: State, index: int, player: int, where: str) -> None:
    """Ask for what people read, where a state offers it."""
    for method, argument in (("action_name", index), ("describe", player)):
        ask = getattr(state, method, None)
        if ask is not None and not isinstance(text := ask(argument), str):
            raise GameError(f"{method} does not return text", got=repr(text), expected="a str", where=where)


def _look(game: Game, state: State, seen: _Seen, where: str) -> _Turn:
    """Ask a state everything, observe it as every seat, and ask everything again."""
    size = seen.state_size
    turn = _ask(game, state, where)
    if turn.player is None:
        return turn
    turn.observations.extend(read_observation(state, player, where) for player in range(game.num_players))
    for player, observation in enumerate(turn.observations):
        if len(observation) != size:
            raise GameError(
                "observe changes its width",
                got=f"{len(observation)} values for player {player}",
                expected=f"{size} as in a fresh state",
                where=where,
                do="Pad with zeros to one width for every seat and turn.",
            )
    turn.told.update(_read_columns(state, seen.columns, len(turn.legal_actions), where))
    again = _ask(game, state, where)
    again.told.update(_read_columns(state, seen.columns, len(turn.legal_actions), where))
    again.observations.extend(read_observation(state, player, where) for player in range(game.num_players))
    if (field := _difference(turn, again)) is not None:
        raise GameError("observe changes the state", got=f"another {field} after it", where=where, do="Only apply may.")
    return turn


def _read_columns(state: State, columns: Sequence[Column], num_actions: int, where: str) -> dict[Column, NDArray[Any]]:
    """What the state tells beside what it shows, at this turn."""
    told = read_columns(state, columns, {"action": num_actions}, where) if columns else {}
    for column, array in told.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise GameError("a column holds NaN or infinity", expected="finite numbers",
                            where=f"{where}, {column.name}")  # fmt: skip
    return told


def _ask(game: Game, state: State, where: str) -> _Turn:
    """Everything but the observations."""
    player = read_player(state, game.num_players, where)
    returns = read_returns(state, game.num_players, where)
    if player is None:
        read_sides(state, game.num_players, where)
        return _Turn(None, [], returns, [])
    legal_actions = _read_legal_actions(game, state, where)
    again = _read_legal_actions(game, state, where)
    if again != legal_actions:
        raise GameError(
            "legal_actions changes between two calls without a move",
            got=shortened(again),
            expected=shortened(legal_actions),
            where=where,
            do="Let it only read the state, and keep one order (a set has none).",
        )
    return _Turn(player, legal_actions, returns, [])


def _read_legal_actions(game: Game, state: State, where: str) -> list[int]:
    """The ids as signed 64-bit patterns, after checking each."""
    ids = [_read_id(value, where) for value in copy_actions(state.legal_actions(), where)]
    if not ids:
        raise GameError(
            "there is no legal action",
            expected="at least one",
            where=where,
            do="Offer a pass, or let the game be over.",
        )
    if len(set(ids)) < len(ids):
        twice = next(action_id for place, action_id in enumerate(ids) if action_id in ids[:place])
        raise GameError(
            "an id is there twice",
            got=f"{twice} at places {_places(ids, twice)}",
            expected="ids that differ within one list",
            where=where,
            do=REPEATED,
        )
    if action_encoder(game) == "table":
        num_actions: int = game.num_actions  # type: ignore[attr-defined]  # action_encoder has seen that it is there
        outside = [action_id for action_id in ids if not 0 <= action_id < num_actions]
        if outside:
            raise GameError(
                "an id is not in the table",
                got=outside[0],
                expected=f"0 to {num_actions - 1}",
                where=where,
                do="Raise num_actions, or use the action_encoder 'bits'.",
            )
    return ids


def _places(ids: list[int], action_id: int) -> str:
    return " and ".join(str(place) for place, each in enumerate(ids) if each == action_id)


def _read_id(value: object, where: str) -> int:
    try:
        if isinstance(value, str):  # fine in a file, not in a game
            raise DataError("an action id is not an integer", got=repr(value))
        return action_ids.parse(value)
    except DataError as error:
        raise GameError(
            error.what, got=error.got, expected="an integer, -2^63 to 2^64 - 1", where=where, do="Pack it into 64 bits."
        ) from None


def _check_same(turn: _Turn, other: _Turn, where: str) -> None:
    if (field := _difference(turn, other)) is not None:
        raise GameError(
            "the same seed and choices do not give the same game",
            got=f"another {field}",
            where=where,
            do="Take all chance from random.Random(seed), and let states share nothing.",
        )


def _difference(turn: _Turn, other: _Turn) -> str | None:
    """The first thing in which two turns differ, in words, or None."""
    if turn.player != other.player:
        return f"player to move: {other.player} instead of {turn.player}"
    if turn.legal_actions != other.legal_actions:
        return f"list of legal actions: {shortened(other.legal_actions)} instead of {shortened(turn.legal_actions)}"
    if turn.returns != other.returns:
        return f"score: {shortened(other.returns)} instead of {shortened(turn.returns)}"
    for player, (row, other_row) in enumerate(zip(turn.observations, other.observations, strict=True)):
        if not np.array_equal(row, other_row):
            return f"observation of player {player}"
    for column, array in turn.told.items():
        if not np.array_equal(array, other.told[column]):
            return f"column {column.name}"
    return None
