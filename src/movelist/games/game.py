"""What a game must offer to be played here: a Game that starts States, and a State with five methods.

Chance, forced turns and other players need nothing special: a State shows the seat to move until the game is over, and
resolves chance by itself from the seed that the Game was given.
"""

from __future__ import annotations

import math
import operator
import random
import traceback
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core import action_ids
from movelist.core.errors import DataError, GameError, MovelistError

LARGEST_SEED = 2**63 - 1  # of a game, as training hands them out
LARGEST_OBSERVATION = 1e16  # beyond it the squares of gradients, which grow with what is seen, leave float32
FLOAT32_INTEGERS = 2**24  # up to here float32 holds every integer
SEE_TRACEBACK = "Called from Python, movelist.train and movelist.check_game show its traceback."


class State(Protocol):
    """One game in progress; it changes in place.

    Example: tic-tac-toe after X took the middle: `current_player()` is 1, `legal_actions()` is
    [0, 1, 2, 3, 5, 6, 7, 8], `observe(1)` is the board as O sees it, `apply(2)` puts O on square 2, `returns()` is
    [0.0, 0.0].
    """

    def current_player(self) -> int | None:
        """The seat to move, 0 to num_players - 1, or None when the game is over. Never a chance turn."""

    def legal_actions(self) -> Sequence[int]:
        """The 64-bit ids of the mover's legal actions: at least one, all different, in a fixed order.

        A list, a tuple or an array. It is copied, so the same one may be filled again, as may what `observe` returns.
        """

    def observe(self, player: int) -> ArrayLike:
        """All that `player` may know, as numbers [S]; the same width for every seat and turn.

        They become float32: integers beyond 2^24 have to be split or scaled, and nothing may be beyond 1e16.
        """

    def apply(self, index: int) -> None:
        """Play `legal_actions()[index]`, then any chance turns that follow."""

    def returns(self) -> Sequence[float]:
        """What each seat has earned so far, in the game's own units [P]; the final scores once the game is over."""


class Game(Protocol):
    """The rules of a game; a State is one play of it.

    A game may also have the attributes `name` (default: its class name), `action_encoder` ("bits", the default, where
    the 64 bits of an id mean something, or "table" where ids are small dense numbers) and `num_actions` (for "table":
    ids are 0 to num_actions - 1). A State may have `action_name(index) -> str` and `describe(player) -> str` (what that
    seat sees) for people to read. What else it may have for networks of your own says games/columns.py.
    """

    num_players: int

    def new_state(self, seed: int) -> State:
        """Start a game. The same seed gives the same cards, dice and every other chance, whoever plays.

        Seeds are 0 to 2^63 - 1, most of them beyond 32 bits: a generator that takes only 32, as np.random.RandomState
        does, is given `seed % 2**32`.
        """


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
        GameError: `observe` returns something other than a row of numbers, or the game is none.
    """
    _check_players(game)
    where = game_name(game)
    state = start_game(game, 0, game.num_players)
    try:
        return len(read_observation(state, state.current_player() or 0, where))
    except MovelistError:
        raise
    except Exception as error:
        raise code_failed(error, f"{where}, seed 0, turn 1") from error


# --- What a game answers, read by the same rules in check_game and in self-play


def start_game(game: Game, seed: int, num_players: int) -> State:
    """A new state of a game that had `num_players` before.

    Raises:
        GameError: It fails, or has another number of players now.
    """
    try:
        state = game.new_state(seed)
    except MovelistError:
        raise
    except Exception as error:
        raise code_failed(error, f"game with seed {seed}, new_state", _seed_cure(game, seed)) from error
    if game.num_players != num_players:
        raise GameError(
            "num_players changes with the seed",
            got=game.num_players,
            expected=f"{num_players} as before",
            where=f"game with seed {seed}",
            do="Make one game for each number of players.",
        )
    return state


def _seed_cure(game: Game, seed: int) -> str | None:
    """What to do with a seed that a game cannot take, tried on the game."""
    for bits in (32, 31):
        if seed >= 2**bits:
            try:
                game.new_state(seed % 2**bits)
            except Exception:  # whatever a game raises
                continue
            return f"Seeds are 0 to 2^63 - 1, and this one is taken as seed % 2**{bits}: let new_state do that."
    return None


def code_failed(error: Exception, where: str, do: str | None = None) -> GameError:
    """The error of a game whose own code raised an exception, to be raised from it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return GameError(
        f"the game's own code failed: {type(error).__name__}: {error} at {last.filename}, line {last.lineno}",
        where=where,
        do=do or SEE_TRACEBACK,
    )


def read_player(state: State, num_players: int, where: object) -> int | None:
    """The seat to move, or None; `where` is written out only in an error."""
    player = state.current_player()
    return None if player is None else seat_of(player, num_players, where)


def seat_of(player: Any, num_players: int, where: object) -> int:
    """The seat that a game names, as an integer of Python."""
    try:
        seat = -1 if isinstance(player, bool) else operator.index(player)
    except TypeError:
        seat = -1
    if 0 <= seat < num_players:
        return seat
    raise GameError(
        "current_player is no seat",
        got=repr(player),
        expected=f"0 to {num_players - 1}, or None when the game is over",
        where=str(where),
        do="Write int(...) around it." if isinstance(player, bool) else "Play chance turns inside new_state and apply.",
    )


def copy_actions(actions: Any, where: object) -> list[Any]:
    """A list of legal actions that is ours: a game may fill the same one for its next turn, or for another state."""
    if type(actions) is list:
        return actions.copy()
    if isinstance(actions, np.ndarray) and actions.ndim == 1:
        return cast(list[Any], actions.tolist())  # Python's integers, which are read several times faster
    if hasattr(actions, "__len__") and not isinstance(actions, np.ndarray | np.generic | str | bytes | Mapping | Set):
        return list(actions)
    raise GameError(
        "legal_actions is not a row of ids",
        got=type(actions).__name__,
        expected="a list, a tuple or an array [A]",
        where=str(where),
        do="Return a list: list(...), and sorted(...) of a set.",
    )


def read_returns(state: State, num_players: int, where: object) -> list[float]:
    """A copy of what each seat has earned so far."""
    returns: Any = state.returns()
    try:
        values = [float(value) for value in returns]
    except (TypeError, ValueError):
        values = []
    if len(values) != num_players or not all(map(math.isfinite, values)):  # quicker than numpy for a few
        raise GameError(
            "returns is not one finite number for each seat",
            got=_shortened(values) if values else repr(returns),
            expected=f"{num_players} finite numbers",
            where=str(where),
        )
    return values


def read_observation(state: State, player: int, where: object) -> NDArray[np.float32]:
    """A copy of what a seat sees, checked."""
    shown = state.observe(player)
    try:
        values = np.asarray(shown)
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is found below
            observation = np.array(values, dtype=np.float32)
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
    _check_size(values, observation, f"{where}, player {player}")
    return observation


def _check_size(values: NDArray[Any], observation: NDArray[np.float32], where: str) -> None:
    """Refuse numbers that float32 rounds without a word, or that overflow while the network learns."""
    largest = int(np.argmax(np.abs(observation)))
    if values.dtype.kind in "iuO" and abs(observation[largest]) >= FLOAT32_INTEGERS:
        rounded = [place for place, value in enumerate(values.tolist()) if value != float(observation[place])]
        if rounded:
            raise GameError(
                "an observation is an integer that float32 would round",
                got=f"{values[rounded[0]]} at {rounded[0]}",
                expected=f"at most {FLOAT32_INTEGERS:,}",
                where=where,
                do="Split it into several values (a set of cards into one 0 or 1 for each), or scale it.",
            )
    if abs(observation[largest]) > LARGEST_OBSERVATION:
        raise GameError(
            "an observation is too large to learn from",
            got=f"{observation[largest]:g} at {largest}",
            expected=f"at most {LARGEST_OBSERVATION:g}",
            where=where,
            do="Scale it, best to between -1 and 1.",
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
    seen = _Seen(num_players=_check_players(game), state_size=state_size(game))
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


def _play_twice(game: Game, seen: _Seen, seed: int, max_turns: int, cut_off: bool) -> None:
    """Play one random game in two states at once."""
    chooser = random.Random(seed)
    states = [start_game(game, seed, seen.num_players) for _ in range(2)]
    shared = _Shared(seen.refilled)
    for number in range(max_turns):
        where = f"{game_name(game)}, seed {seed}, turn {number + 1}"
        try:
            turn, other = (_look(game, state, seen.state_size, where) for state in states)
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


def _look(game: Game, state: State, size: int, where: str) -> _Turn:
    """Ask a state everything, observe it as every seat, and ask everything again."""
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
    again = _ask(game, state, where)
    again.observations.extend(read_observation(state, player, where) for player in range(game.num_players))
    if (field := _difference(turn, again)) is not None:
        raise GameError("observe changes the state", got=f"another {field} after it", where=where, do="Only apply may.")
    return turn


def _ask(game: Game, state: State, where: str) -> _Turn:
    """Everything but the observations."""
    player = read_player(state, game.num_players, where)
    returns = read_returns(state, game.num_players, where)
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
            do="Name each action once, as list(dict.fromkeys(actions)) does; apply's index then refers to that list.",
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


def _check_players(game: Game) -> int:
    """The number of seats of something that is a game, and not the class of one."""
    if isinstance(game, type):
        raise GameError(
            "a game is wanted, not its class",
            got=game.__name__,
            expected="an instance",
            do=f"Write {game.__name__}() for it.",
        )
    num_players = getattr(game, "num_players", None)
    if not isinstance(num_players, int) or isinstance(num_players, bool) or num_players < 1:
        raise GameError(
            "a game needs players",
            got=f"num_players {num_players!r}",
            expected="an integer of at least 1",
            where=game_name(game),
        )
    return num_players
