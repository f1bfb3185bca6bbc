"""What a game must offer to be played here: a Game that starts States, and a State with five methods.

Chance, forced turns and other players need nothing special: a State shows the seat to move until the game is over, and
resolves chance by itself from the seed that the Game was given.
"""

from __future__ import annotations

import math
import operator
import traceback
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core.errors import GameError, MovelistError

LARGEST_OBSERVATION = 1e16  # beyond it the squares of gradients, which grow with what is seen, leave float32
LARGEST_SIDE = 127  # of a seat
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
    ids are 0 to num_actions - 1), and `repeated_actions` = "merge" if its lists may name an action more than once: the
    copies count as one, and the first is played. A State may have `action_name(index) -> str` and `describe(player) ->
    str` (what that seat sees) for people to read. It may also have `action_features() -> [A, F]`, numbers of each legal
    action beside its id (damage, cost), which the network then looks at, and `observe_all() -> [C]`, what a critic may
    know while training with --critic_sees all. `state_names` and `feature_names` of a Game name the columns of its
    states and action features: then --init_from takes weights by name, whatever a patch adds or removes. What else a
    State may have for networks of your own says games/columns.py.

    Where seats play together, matches want to know: a game names fixed teams, `teams = ((0, 2), (1, 3))`; where they
    form in play, as by bidding, its States have `sides() -> Sequence[int] | None`, each seat's side, 0 to 127, once the
    game is over (None: everyone for themselves), and the game may name them, `side_names = ("landlord", "peasants")`.
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


def state_size(game: Game, fresh: State | None = None) -> int:
    """The number of values that a state shows, read from a fresh one: the given one, or one that is made.

    Raises:
        GameError: `observe` returns something other than a row of numbers, or the game is none.
    """
    check_players(game)
    where = game_name(game)
    state = start_game(game, 0, game.num_players) if fresh is None else fresh
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
            got=shortened(values) if values else repr(returns),
            expected=f"{num_players} finite numbers",
            where=str(where),
        )
    return values


def read_sides(state: State, num_players: int, where: object) -> list[int] | None:
    """Each seat's side at the end; None where the game does not tell it."""
    tell = getattr(state, "sides", None)
    told = None if tell is None else tell()
    if told is None:
        return None
    try:
        sides = [operator.index(side) for side in told]
    except TypeError:
        sides = []
    if len(sides) != num_players or not all(0 <= side <= LARGEST_SIDE for side in sides):
        raise GameError(
            "sides is not one small number for each seat",
            got=repr(told),
            expected=f"{num_players} integers from 0 to {LARGEST_SIDE}, or None",
            where=str(where),
        )
    return sides


def teams_of(game: Game) -> tuple[tuple[int, ...], ...]:
    """The seats that are taken together: the game's fixed teams, else each seat by itself.

    Raises:
        GameError: The teams do not hold every seat once.
    """
    teams = getattr(game, "teams", None)
    if teams is None:
        return tuple((seat,) for seat in range(game.num_players))
    try:
        units = tuple(tuple(operator.index(seat) for seat in team) for team in teams)
    except TypeError:
        units = ()
    if sorted(seat for unit in units for seat in unit) != list(range(game.num_players)):
        raise GameError(
            "teams do not hold every seat once",
            got=repr(teams),
            expected=f"groups of the seats 0 to {game.num_players - 1}, as in ((0, 2), (1, 3))",
            where=game_name(game),
        )
    return units


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


def shortened(values: Sequence[float]) -> str:
    """A list in a message: its first values and its length."""
    if len(values) <= 6:
        return str(list(values))
    return f"[{', '.join(map(str, values[:6]))}, ...] of length {len(values)}"


def check_players(game: Game) -> int:
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
