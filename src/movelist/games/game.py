"""What a game must offer to be played here: a Game that starts States, and a State with five methods.

Chance, forced turns and other players need nothing special: a State shows the seat to move until the game is over, and
resolves chance by itself from the seed that the Game was given.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core import action_ids
from movelist.core.errors import DataError, GameError


class State(Protocol):
    """One game in progress; it changes in place.

    Example: tic-tac-toe after X took the middle: `current_player()` is 1, `legal_actions()` is
    [0, 1, 2, 3, 5, 6, 7, 8], `observe(1)` is the board as O sees it, `apply(2)` puts O on square 2, `returns()` is
    [0.0, 0.0].
    """

    def current_player(self) -> int | None:
        """The seat to move, 0 to num_players - 1, or None when the game is over. Never a chance turn."""

    def legal_actions(self) -> Sequence[int]:
        """The 64-bit ids of the mover's legal actions: at least one, all different, in a fixed order."""

    def observe(self, player: int) -> ArrayLike:
        """All that `player` may know, as numbers [S]; the same width for every seat and turn."""

    def apply(self, index: int) -> None:
        """Play `legal_actions()[index]`, then any chance turns that follow."""

    def returns(self) -> Sequence[float]:
        """What each seat has earned so far, in the game's own units [P]; the final scores once the game is over."""


class Game(Protocol):
    """The rules of a game; a State is one play of it.

    A game may also have the attributes `name` (default: its class name), `action_encoder` ("bits", the default, where
    the 64 bits of an id mean something, or "table" where ids are small dense numbers) and `num_actions` (for "table":
    ids are 0 to num_actions - 1). A State may have `action_name(index) -> str` and `describe(player) -> str` (what that
    seat sees) for people to read.
    """

    num_players: int

    def new_state(self, seed: int) -> State:
        """Start a game. The same seed gives the same cards, dice and every other chance, whoever plays."""


def game_name(game: Game) -> str:
    """The name of a game for people and files; its class name if it has none of its own."""
    return str(getattr(game, "name", type(game).__name__))


def action_encoder(game: Game) -> Literal["bits", "table"]:
    """How a game's ids become numbers for the network.

    Raises:
        GameError: The game names another encoder, or a table without saying how many actions there are.
    """
    encoder = getattr(game, "action_encoder", "bits")
    if encoder not in ("bits", "table"):
        raise GameError(
            "no such action encoder", got=repr(encoder), expected="'bits' or 'table'", where=game_name(game)
        )
    if encoder == "table" and getattr(game, "num_actions", None) is None:
        raise GameError(
            "a table needs to know how many actions there are",
            where=game_name(game),
            do="Give the game num_actions, or the action_encoder 'bits'.",
        )
    return "table" if encoder == "table" else "bits"  # plain, whatever kind of text the game gave: it is saved


def state_size(game: Game) -> int:
    """The number of values that a state shows, read from a fresh one.

    Raises:
        GameError: `observe` returns something other than a row of numbers.
    """
    state = game.new_state(0)
    return len(_read_observation(state, state.current_player() or 0, game_name(game)))


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
    """

    name: str
    num_players: int
    state_size: int
    num_games: int
    num_steps: int
    mean_legal_actions: float
    max_legal_actions: int
    forced_share: float

    def __str__(self) -> str:
        return (
            f"{self.name} keeps its promises: random games {self.num_games:,}, turns {self.num_steps:,}, "
            f"players {self.num_players}, state size {self.state_size:,}, "
            f"legal actions {self.mean_legal_actions:.1f} on average and {self.max_legal_actions:,} at most, "
            f"forced turns {self.forced_share:.0%}"
        )


def check_game(game: Game, *, num_games: int = 20, seed: int = 0, max_turns: int = 100_000) -> GameReport:
    """Play random games and see whether a game keeps the promises of Game and State.

    Each game is played twice at the same time, from the same seed and with the same choices: what the two show must be
    equal at every turn. So states that share something, or draw chance from somewhere else, are found as well.

    Args:
        game: The game.
        num_games: Games to play, from the seeds `seed`, `seed + 1`, ...
        seed: The first game's seed; it chooses the moves, too.
        max_turns: A game longer than this counts as endless.

    Raises:
        GameError: The first broken promise, with the seed and the turn where it shows.

    Example:
        >>> from movelist.games.catalog import make_game
        >>> check_game(make_game("tic_tac_toe"), num_games=1).state_size
        29
    """
    _check_players(game)
    size = state_size(game)
    seeds = range(seed, seed + num_games)
    lengths = np.array(
        [length for each in seeds for length in _play_twice(game, size, each, max_turns)], dtype=np.int64
    )
    return GameReport(
        name=game_name(game),
        num_players=game.num_players,
        state_size=size,
        num_games=num_games,
        num_steps=len(lengths),
        mean_legal_actions=float(lengths.mean()) if len(lengths) else 0.0,
        max_legal_actions=int(lengths.max(initial=0)),
        forced_share=float((lengths == 1).mean()) if len(lengths) else 0.0,
    )


@dataclass(frozen=True)
class _Turn:
    """All that a state shows at one turn; the lists are empty once the game is over."""

    player: int | None
    legal_actions: list[int]
    returns: list[float]
    observations: list[NDArray[np.float32]]


def _play_twice(game: Game, size: int, seed: int, max_turns: int) -> list[int]:
    """Play one random game in two states at once; the lengths of its lists of legal actions."""
    chooser = random.Random(seed)
    states = [game.new_state(seed), game.new_state(seed)]
    lengths: list[int] = []
    while len(lengths) < max_turns:
        where = f"{game_name(game)}, seed {seed}, turn {len(lengths) + 1}"
        turn, other = (_look(game, state, size, where) for state in states)
        _check_same(turn, other, where)
        if turn.player is None:
            return lengths
        index = chooser.randrange(len(turn.legal_actions))
        for state in states:
            state.apply(index)
        lengths.append(len(turn.legal_actions))
    raise GameError(
        "a game does not end",
        got=f"{max_turns:,} turns",
        where=f"{game_name(game)}, seed {seed}",
        do="Let current_player return None at the end, or raise max_turns.",
    )


def _look(game: Game, state: State, size: int, where: str) -> _Turn:
    """Ask a state everything, observe it as every seat, and ask everything again."""
    turn = _ask(game, state, where)
    if turn.player is None:
        return turn
    turn.observations.extend(_read_observation(state, player, where) for player in range(game.num_players))
    for player, observation in enumerate(turn.observations):
        if len(observation) != size:
            raise GameError(
                "observe changes its width",
                got=f"{len(observation)} values for player {player}",
                expected=f"{size} as in a fresh state",
                where=where,
                do="Pad with zeros to one width for every seat and turn.",
            )
    again = _ask(game, state, where)
    again.observations.extend(_read_observation(state, player, where) for player in range(game.num_players))
    if (field := _difference(turn, again)) is not None:
        raise GameError("observe changes the state", got=f"another {field} after it", where=where, do="Only apply may.")
    return turn


def _ask(game: Game, state: State, where: str) -> _Turn:
    """Everything but the observations."""
    player = _read_player(game, state, where)
    returns = _read_returns(game, state, where)
    if player is None:
        return _Turn(None, [], returns, [])
    legal_actions = _read_legal_actions(game, state, where)
    again = _read_legal_actions(game, state, where)
    if again != legal_actions:
        raise GameError(
            "legal_actions changes between two calls without a move",
            got=_shortened(again),
            expected=_shortened(legal_actions),
            where=where,
            do="Let it only read the state, and keep one order (a set has none).",
        )
    return _Turn(player, legal_actions, returns, [])


def _read_player(game: Game, state: State, where: str) -> int | None:
    player = state.current_player()
    if player is None:
        return None
    try:
        seat = operator.index(player)
    except TypeError:
        seat = -1
    if not 0 <= seat < game.num_players:
        raise GameError(
            "current_player is no seat",
            got=repr(player),
            expected=f"0 to {game.num_players - 1}, or None when the game is over",
            where=where,
            do="Play chance turns inside new_state and apply.",
        )
    return seat


def _read_returns(game: Game, state: State, where: str) -> list[float]:
    returns = [float(value) for value in state.returns()]
    if len(returns) != game.num_players or not np.isfinite(returns).all():
        raise GameError(
            "returns is not one finite number for each seat",
            got=_shortened(returns),
            expected=f"{game.num_players} finite numbers",
            where=where,
        )
    return returns


def _read_legal_actions(game: Game, state: State, where: str) -> list[int]:
    """The ids as signed 64-bit patterns, after checking each."""
    ids = [_read_id(value, where) for value in state.legal_actions()]
    if not ids:
        raise GameError(
            "there is no legal action",
            expected="at least one",
            where=where,
            do="Offer a pass, or let the game be over.",
        )
    if len(set(ids)) < len(ids):
        twice = next(action_id for place, action_id in enumerate(ids) if action_id in ids[:place])
        raise GameError("an id is there twice", got=twice, expected="ids that differ within one list", where=where)
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


def _read_id(value: object, where: str) -> int:
    try:
        if isinstance(value, str):  # fine in a file, not in a game
            raise DataError("an action id is not an integer", got=repr(value))
        return action_ids.parse(value)
    except DataError as error:
        raise GameError(
            error.what, got=error.got, expected="an integer, -2^63 to 2^64 - 1", where=where, do="Pack it into 64 bits."
        ) from None


def _read_observation(state: State, player: int, where: str) -> NDArray[np.float32]:
    """A copy of what a seat sees, checked."""
    try:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is found below
            observation = np.array(state.observe(player), dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise GameError("observe does not return numbers", got=error, where=f"{where}, player {player}") from error
    if observation.ndim != 1 or not len(observation):
        raise GameError(
            "observe does not return one row of numbers",
            got=f"shape {observation.shape}",
            expected="shape [S]",
            where=f"{where}, player {player}",
            do="Flatten it.",
        )
    if not np.isfinite(observation).all():
        place = int(np.flatnonzero(~np.isfinite(observation))[0])
        raise GameError(
            "an observation is not finite", got=f"{observation[place]} at {place}", where=f"{where}, player {player}"
        )
    return observation


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
        return f"list of legal actions: {_shortened(other.legal_actions)} instead of {_shortened(turn.legal_actions)}"
    if turn.returns != other.returns:
        return f"score: {_shortened(other.returns)} instead of {_shortened(turn.returns)}"
    for player, (row, other_row) in enumerate(zip(turn.observations, other.observations, strict=True)):
        if not np.array_equal(row, other_row):
            return f"observation of player {player}"
    return None


def _shortened(values: Sequence[float]) -> str:
    """A list in a message: its first values and its length."""
    if len(values) <= 6:
        return str(list(values))
    return f"[{', '.join(map(str, values[:6]))}, ...] of length {len(values)}"


def _check_players(game: Game) -> None:
    num_players = getattr(game, "num_players", None)
    if not isinstance(num_players, int) or isinstance(num_players, bool) or num_players < 1:
        raise GameError(
            "a game needs players",
            got=f"num_players {num_players!r}",
            expected="an integer of at least 1",
            where=game_name(game),
        )
