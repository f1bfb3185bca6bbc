"""OpenSpiel's games, as games to be played here: about 100, from tic_tac_toe to dou_dizhu.

pyspiel is imported inside functions only, so everything else works without it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import GameError, MissingExtraError, nearest
from movelist.games import dou_dizhu

LARGEST_TABLE = 65_536  # actions; beyond that, a learned row for each of them is no longer small

# OpenSpiel does not say who plays together.
_TEAMS = dict.fromkeys(("bridge", "tiny_bridge_4p", "spades", "euchre"), ((0, 2), (1, 3)))
_SIDES = {"dou_dizhu": ("landlord", "peasants"), "skat": ("solo player", "opponents")}  # one against two, by bidding

_CHANCE = -1  # pyspiel.PlayerId.CHANCE, as current_player returns it
_SEED_BITS = (1 << 64) - 1
_MISSING_TENSORS = {"crossword"}  # OpenSpiel 2.0 announces a tensor and has none


class OpenSpielGame:
    """One of OpenSpiel's games.

    A state shows the information-state tensor where the game has one, for it holds all that the player saw, else the
    observation tensor; behind it the player's seat as one-hot [P]. Chance turns are played from the seed alone. A game
    whose players move at the same time is played in OpenSpiel's turn-based form of it, where nobody sees what others
    chose before all have chosen.

    Attributes:
        name: The game and its parameters, as OpenSpiel reads them.
        num_players: Seats.
        num_actions: Actions in the whole game.
        action_encoder: "bits" for dou_dizhu, whose ids say what is played, and for games of more than 65,536 actions;
            otherwise "table". Ids other than dou_dizhu's are OpenSpiel's numbers of the actions.
        state_size: Values in an observation.
        notes: What is worth saying once of how it is played here.
        teams: Seats that play together, as in bridge; None in most games.
        side_names: Of the sides that form by bidding, as in dou_dizhu.

    Args:
        name: "leduc_poker", or with parameters "leduc_poker(players=3)".

    Raises:
        MissingExtraError: OpenSpiel is not installed.
        GameError: There is no such game, its parameters are wrong, or it cannot be played here.

    Example:
        >>> game = OpenSpielGame("leduc_poker(players=3)")
        >>> game.num_players, game.action_encoder, game.new_state(seed=7).legal_actions()
        (3, 'table', [1, 2])
    """

    action_encoder: Literal["bits", "table"]

    def __init__(self, name: str) -> None:
        self.name = name
        self._game = _load(name)
        at_once = self._game.get_type().dynamics.name == "SIMULTANEOUS"
        if at_once:
            self._game = import_pyspiel().convert_to_turn_based(self._game)
        kind = self._game.get_type()
        _refuse(kind, name)
        tensor = "information-state" if kind.provides_information_state_tensor else "observation"
        self.notes: tuple[str, ...] = (f"A state is OpenSpiel's {tensor} tensor and the seat.",)
        if at_once:
            self.notes += ("Its players move at the same time: played in turns, and nobody sees the others' choices.",)
        self._observer = _make_observer(self._game, name)
        self.num_players: int = self._game.num_players()
        self.num_actions: int = self._game.num_distinct_actions()
        together = kind.utility.name == "IDENTICAL"  # all seats earn the same, as in hanabi
        self.teams = (tuple(range(self.num_players)),) if together else _TEAMS.get(kind.short_name)
        self.side_names = _SIDES.get(kind.short_name, ())
        self._ids = _dou_dizhu_ids() if kind.short_name == "dou_dizhu" else None
        self.action_encoder = "table" if self._ids is None and self.num_actions <= LARGEST_TABLE else "bits"
        # All chance turns of dou_dizhu are fair deals; chance_outcomes would build 51 pairs for each of its 52 cards.
        self._draw = _draw_evenly if kind.short_name == "dou_dizhu" else _draw_weighted
        self._rewards_come_last = kind.reward_model.name == "TERMINAL"
        self._no_returns: tuple[float, ...] = (0.0,) * self.num_players
        self._tensor_size = len(self._new_observation()[1])
        self.state_size = self._tensor_size + self.num_players
        self._empty_rows = list(np.eye(self.num_players, self.state_size, self._tensor_size, dtype=np.float32))

    def __reduce__(self) -> tuple[type[OpenSpielGame], tuple[str]]:
        """A pickle holds the name: OpenSpiel's own objects stay in their process."""
        return OpenSpielGame, (self.name,)

    def new_state(self, seed: int) -> OpenSpielState:
        """Start a game; the seed decides all of its chance turns."""
        return OpenSpielState(self, seed)

    def _new_observation(self) -> tuple[Any, NDArray[np.float32]]:
        """A buffer that OpenSpiel fills, and its view in numpy."""
        # Below open_spiel.python.observation, whose wrapper costs 5 us more for each state. Filling a buffer takes
        # 0.25 us where state.observation_tensor() and its conversion take 4.5 us (dou_dizhu) or 132 us (hearts).
        observation = import_pyspiel()._Observation(self._game, self._observer)
        return observation, np.frombuffer(observation, np.float32)


class OpenSpielState:
    """One game in progress; see `State` for what the methods promise.

    This is the inner loop of self-play: what a turn needs twice is kept until the next move.
    """

    __slots__ = ("_actions", "_game", "_ids", "_observation", "_player", "_random", "_seed", "_state", "_view")

    _actions: list[int]  # OpenSpiel's numbers; valid once _ids is there
    _ids: list[int] | None
    _player: int | None

    def __init__(self, game: OpenSpielGame, seed: int) -> None:
        self._game = game
        self._seed = seed
        self._random: Callable[[], float] | None = None
        self._state = game._game.new_initial_state()
        self._observation, self._view = game._new_observation()
        self._begin_turn()

    def current_player(self) -> int | None:
        """The seat to move, or None when the game is over."""
        return self._player

    def legal_actions(self) -> Sequence[int]:
        """The ids of the legal actions, ascending by OpenSpiel's numbers; the same list until the next move."""
        if self._ids is None:
            self._actions = self._state.legal_actions()
            table = self._game._ids
            self._ids = self._actions if table is None else [table[action] for action in self._actions]
        return self._ids

    def observe(self, player: int) -> NDArray[np.float32]:
        """The tensor as `player` sees it and the seat, float32 [S]; the array is the caller's to keep."""
        self._observation.set_from(self._state, player)
        row = self._game._empty_rows[player].copy()
        row[: self._game._tensor_size] = self._view
        return row

    def observe_all(self) -> NDArray[np.float32]:
        """What all players see together, float32 [P * T]: one tensor behind the other."""
        row = np.empty((self._game.num_players, self._game._tensor_size), np.float32)
        for player in range(self._game.num_players):
            self._observation.set_from(self._state, player)
            row[player] = self._view
        return row.reshape(-1)

    def apply(self, index: int) -> None:
        """Play one of the legal actions, and the chance turns that follow.

        Raises:
            GameError: The list has no such index.
        """
        if self._ids is None:
            self.legal_actions()
        if not 0 <= index < len(self._actions):
            raise GameError(
                "no such legal action",
                got=f"index {index}",
                expected=f"0 to {len(self._actions) - 1}" if self._actions else "no move, for the game is over",
                where=self._game.name,
            )
        self._state.apply_action(self._actions[index])
        self._begin_turn()

    def returns(self) -> Sequence[float]:
        """What each seat has earned so far; nothing before the end where OpenSpiel says that rewards come last."""
        if self._player is not None and self._game._rewards_come_last:
            return self._game._no_returns
        return cast(list[float], self._state.returns())

    def sides(self) -> list[int] | None:
        """0 for the seat that plays against the two others, 1 for these; None before the end and in other games."""
        if not self._game.side_names or self._player is not None:
            return None
        returns = self._state.returns()  # theirs have one sign, the single seat's the other
        alone = [seat for seat, own in enumerate(returns) if sum(own * other < 0 for other in returns) > 1]
        return [int(seat != alone[0]) for seat in range(len(returns))] if alone else None

    def action_name(self, index: int) -> str:
        """The action as OpenSpiel writes it."""
        self.legal_actions()
        return str(self._state.action_to_string(self._player, self._actions[index]))

    def describe(self, player: int) -> str:
        """What `player` sees, as OpenSpiel writes it for people; empty where it has no text."""
        kind = self._game._game.get_type()
        if kind.provides_observation_string:
            return str(self._state.observation_string(player))
        return str(self._state.information_state_string(player)) if kind.provides_information_state_string else ""

    def _begin_turn(self) -> None:
        self._actions = []
        self._ids = None
        player = self._state.current_player()
        if player == _CHANCE:
            player = self._play_chance()
        self._player = player if player >= 0 else None

    def _play_chance(self) -> int:
        """Draw until a player is to move or the game is over; OpenSpiel's number of that player."""
        if self._random is None:
            # random() alone: Python promises that its sequence for a seed never changes. 4 us, so only where needed.
            self._random = random.Random(operator.index(self._seed) & _SEED_BITS).random
        draw, state, player = self._game._draw, self._state, _CHANCE
        while player == _CHANCE:
            state.apply_action(draw(state, self._random()))
            player = state.current_player()
        return int(player)


def game_names() -> list[str]:
    """The games that can be played here as they are, without parameters.

    Raises:
        MissingExtraError: OpenSpiel is not installed.
    """
    kinds = import_pyspiel().registered_games()
    return [
        kind.short_name
        for kind in kinds
        if kind.default_loadable and _why_not(kind) is None and kind.short_name not in _MISSING_TENSORS
    ]


def import_pyspiel() -> Any:
    try:
        return importlib.import_module("pyspiel")
    except ImportError as error:
        raise MissingExtraError.of("OpenSpiel's games need", "games", error) from None


def _load(name: str) -> Any:
    """Have OpenSpiel make a game, or say in one line why it cannot."""
    pyspiel = import_pyspiel()
    short_name = name.partition("(")[0]
    names = pyspiel.registered_names()
    if short_name not in names:  # asked first, because load_game answers with all 126 names
        close = nearest(short_name, names)
        raise GameError(
            "there is no such game",
            got=repr(name),
            expected="one of OpenSpiel's",
            do=f"Did you mean {close}?" if close else "List them with movelist.games.catalog.names().",
        )
    if "(" in name and not name.endswith(")"):  # OpenSpiel would ignore what follows the bracket
        raise GameError("a game's parameters end with a bracket", got=repr(name), expected=f"{short_name}(NAME=VALUE)")
    try:
        with _quiet_errors():
            return pyspiel.load_game(name)
    except (RuntimeError, LookupError) as error:
        raise _bad_parameters(name, short_name, error) from None


def _bad_parameters(name: str, short_name: str, error: Exception) -> GameError:
    kinds = {kind.short_name: kind for kind in import_pyspiel().registered_games()}
    parameters = kinds[short_name].parameter_specification
    do = f"Write {short_name}(NAME=VALUE)." if parameters else f"Write {short_name}."
    if any(isinstance(default, dict) for default in parameters.values()):
        do = f"Write {short_name}(NAME=VALUE), and a game as a value with its brackets: game=tic_tac_toe()."
    return GameError(
        "OpenSpiel cannot make this game",
        got=repr(name),
        expected=f"parameters among {', '.join(parameters)}" if parameters else "no parameters",
        where=f"OpenSpiel says: {_one_line(error)}",
        do=do,
    )


def _one_line(error: Exception) -> str:
    """OpenSpiel's own message without its source paths, its line breaks and its lists of names."""
    message = str(error).partition(" Available ")[0]
    lines = (" ".join(word for word in line.split() if ".cc:" not in word) for line in message.splitlines())
    return "; ".join(line for line in lines if line)[:200]


@contextlib.contextmanager
def _quiet_errors() -> Iterator[None]:
    """Keep what C++ writes to the process's stderr, and pass it on unless an exception says the same.

    OpenSpiel prints each of its exceptions before Python sees it, past sys.stderr.
    """
    saved = os.dup(2)
    with tempfile.TemporaryFile() as heard:
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        heard.seek(0)
        sys.stderr.write(heard.read().decode("utf-8", "replace"))


def _why_not(kind: Any) -> str | None:
    """Why games of this pyspiel.GameType cannot be played here, or None if they can."""
    if kind.dynamics.name == "MEAN_FIELD":
        return "it is a mean-field game, without players that take turns"
    if kind.chance_mode.name == "SAMPLED_STOCHASTIC":
        return "its chance is drawn inside OpenSpiel, so no seed can repeat a game"
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        return "OpenSpiel does not write its states as numbers"
    return None


def _refuse(kind: Any, name: str) -> None:
    """Raise where `_why_not` has a reason."""
    if (reason := _why_not(kind)) is not None:
        raise GameError(f"this game cannot be played here, because {reason}", got=repr(name))


def _make_observer(game: Any, name: str) -> Any:
    """OpenSpiel's way to write a state into a buffer: what `information_state_tensor` or `observation_tensor` returns.

    Raises:
        GameError: The game announces such a tensor and has none, as crossword does.
    """
    pyspiel = import_pyspiel()
    contents = pyspiel.IIGObservationType(
        perfect_recall=game.get_type().provides_information_state_tensor,
        public_info=True,
        private_info=pyspiel.PrivateInfoType.SINGLE_PLAYER,
    )
    try:
        with _quiet_errors():
            observer = game.make_observer(contents, {})
        if observer is None:  # pyspiel._Observation would crash on it
            raise RuntimeError("no observer")
        return observer
    except RuntimeError as error:
        raise GameError(
            "this game cannot be played here, because OpenSpiel does not write its states as numbers",
            got=repr(name),
            where=f"OpenSpiel says: {_one_line(error)}",
        ) from None


@functools.cache  # 0.2 s, once per process
def _dou_dizhu_ids() -> tuple[int, ...]:
    """The 64-bit id of each action of dou_dizhu, by OpenSpiel's number."""
    game = import_pyspiel().load_game("dou_dizhu")
    state = game.new_initial_state()
    return tuple(dou_dizhu.encode(state.action_to_string(0, action)) for action in range(game.num_distinct_actions()))


def _draw_evenly(state: Any, number: float) -> int:
    """A chance outcome where all are equally likely; `number` is random in [0, 1)."""
    actions = state.legal_actions()
    return int(actions[int(number * len(actions))])


def _draw_weighted(state: Any, number: float) -> int:
    """A chance outcome by its probability; `number` is random in [0, 1)."""
    outcomes = state.chance_outcomes()
    for action, probability in outcomes:
        number -= probability
        if number < 0:
            return int(action)
    return int(max(outcomes, key=operator.itemgetter(1))[0])  # the probabilities summed to a bit less than 1
