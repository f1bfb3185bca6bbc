"""PettingZoo's turn-based (AEC) environments with an action mask, as games to be played here.

pettingzoo is imported inside functions only, so everything else works without it.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from movelist.core import by_name
from movelist.core.errors import GameError, MissingExtraError, MovelistError
from movelist.games.game import code_failed
from movelist.games.spaces import MASK, filled, flat_size, flatten, with_seat

SEEDS = 2**31  # NumPy's older generator takes 32 bits, and the OpenSpiel below hanabi a signed integer of 32

_NAME = re.compile(r"(?P<place>[a-z]\w*(?:/[a-z]\w*)+)(?P<keywords>\(.*\))?", re.DOTALL)


class PettingZooGame:
    """One of PettingZoo's environments, or one of one's own with its interface.

    Its agents become seats, in the order of `possible_agents`; an action's id is its number there. A parallel
    environment is played through PettingZoo's own converter: nobody sees what others chose for the same step. What a
    seat sees is flattened as `spaces.flatten` says; an agent that is gone sees zeros. An episode that the environment
    truncates counts as over.

    Attributes:
        name: The game's name, with "pettingzoo:" in front.
        num_players: Seats.
        num_actions: One more than the largest action number.
        seats: The agents' names.
        state_size: Values in an observation.

    Args:
        name: "classic/connect_four_v3", with keywords "classic/go_v5(board_size=9)"; or one's own "file.py:env" or
            "module:env", a function or class that makes an environment.

    Raises:
        MissingExtraError: PettingZoo, or a package that this environment needs, is not installed.
        GameError: There is no such environment, or it cannot be played here.

    Example:
        >>> game = PettingZooGame("classic/tictactoe_v3")
        >>> game.seats, game.new_state(seed=7).legal_actions()
        (('player_1', 'player_2'), [0, 1, 2, 3, 4, 5, 6, 7, 8])
    """

    action_encoder: Literal["table"] = "table"

    def __init__(self, name: str) -> None:
        self._given = name
        self.name = f"pettingzoo:{name}"
        _library()
        self._make = _maker(name)
        env = self._new_env()
        if ":" in name:  # where one's own stands is no name for files that go to other machines
            self.name = f"pettingzoo:{env.metadata.get('name') or name.rpartition(':')[2]}"
        self.seats: tuple[str, ...] = tuple(getattr(env, "possible_agents", ()))
        if not self.seats:
            raise GameError("an environment has to say its possible_agents", where=self.name)
        self.num_players = len(self.seats)
        self._seat_of = {agent: seat for seat, agent in enumerate(self.seats)}
        self.num_actions = max(_num_actions(env.action_space(agent), self.name) for agent in self.seats)
        self._spaces = [env.observation_space(agent) for agent in self.seats]
        sizes = [flat_size(space, self.name) for space in self._spaces]
        self._width = max(sizes)
        self._empty_PS: NDArray[np.float32] = with_seat(sizes)
        self.state_size: int = self._empty_PS.shape[1]
        env.close()

    def __reduce__(self) -> tuple[type[PettingZooGame], tuple[str]]:
        """A pickle holds the name: environments stay in their process."""
        return PettingZooGame, (self._given,)

    def new_state(self, seed: int) -> PettingZooState:
        """Start a game; its chance is what the environment draws from `reset(seed=seed % 2**31)`."""
        return PettingZooState(self, seed)

    def _new_env(self) -> Any:
        """A fresh environment whose agents take turns."""
        try:
            env = self._make()
        except Exception as error:  # whatever an environment raises
            if isinstance(error, ImportError) and ":" not in self._given:  # some import only then what they need
                raise _missing(error) from None
            raise code_failed(error, self.name) from error
        if hasattr(env, "agent_iter"):
            return env
        if not hasattr(env, "possible_agents"):
            raise GameError("this makes no PettingZoo environment", got=type(env).__name__, where=self.name)
        return importlib.import_module("pettingzoo.utils.conversions").parallel_to_aec(env)


class PettingZooState:
    """One game in progress; see `State` for what the methods promise."""

    _ids: list[int] | None  # of the turn, once somebody asked
    _player: int | None

    def __init__(self, game: PettingZooGame, seed: int) -> None:
        self._game = game
        self._env = game._new_env()
        self._returns = [0.0] * game.num_players
        self._env.reset(seed=seed % SEEDS)
        self._begin_turn()

    def current_player(self) -> int | None:
        """The seat to move, or None when no agent is left."""
        return self._player

    def legal_actions(self) -> Sequence[int]:
        """The numbers of the actions that the mask allows, ascending; all of them where there is no mask."""
        if self._ids is None:
            self._ids = self._allowed()
        return self._ids

    def observe(self, player: int) -> NDArray[np.float32]:
        """What the agent of this seat sees, float32 [S]; zeros once it is gone."""
        game, agent = self._game, self._game.seats[player]
        if agent not in self._env.agents:
            return np.array(game._empty_PS[player])
        values = flatten(game._spaces[player], self._env.observe(agent))
        return filled(game._empty_PS[player], values, game._width, game.name)

    def apply(self, index: int) -> None:
        """Play one of the legal actions, and the empty steps of agents that are out.

        Raises:
            GameError: The list has no such index.
        """
        actions = self.legal_actions() if self._player is not None else []
        if not 0 <= index < len(actions):
            raise GameError(
                "no such legal action", got=f"index {index}", expected=f"below {len(actions)}", where=self._game.name
            )
        self._env.step(actions[index])
        # What each agent earned by this one step; _cumulative_rewards would hold some of it twice.
        for agent, reward in self._env.rewards.items():
            self._returns[self._game._seat_of[agent]] += float(reward)
        self._begin_turn()

    def returns(self) -> Sequence[float]:
        """The sum of each agent's rewards so far."""
        return list(self._returns)

    def action_name(self, index: int) -> str:
        """The action's number, for environments have no names for them."""
        return f"action {self.legal_actions()[index]}"

    def describe(self, player: int) -> str:
        """The agent's name, and the environment as text where it draws one."""
        env = self._env
        drawn = env.render() if getattr(env.unwrapped, "render_mode", None) == "ansi" else None
        return f"{self._game.seats[player]}\n{drawn}" if isinstance(drawn, str) else self._game.seats[player]

    def _begin_turn(self) -> None:
        env = self._env
        self._ids = None
        self._player = None
        while env.agents:
            agent = env.agent_selection
            if not (env.terminations[agent] or env.truncations[agent]):
                self._player = self._game._seat_of[agent]
                return
            env.step(None)  # as PettingZoo wants it of an agent that is out, which then leaves

    def _allowed(self) -> list[int]:
        assert self._player is not None
        env, agent = self._env, self._game.seats[self._player]
        seen = env.observe(agent)
        mask = seen.get(MASK) if isinstance(seen, dict) else None
        if mask is None:
            mask = env.infos[agent].get(MASK)
        space = env.action_space(agent)
        start, count = int(space.start), int(space.n)
        if mask is None:
            return list(range(start, start + count))
        if np.shape(mask) != (count,):
            raise GameError(
                "an action mask is of another length", got=np.shape(mask), expected=f"({count},)", where=self._game.name
            )
        return [start + place for place in np.flatnonzero(mask).tolist()]


def _library() -> Any:
    try:
        return importlib.import_module("pettingzoo")
    except ImportError as error:
        raise _missing(error) from None


def _missing(error: ImportError) -> MissingExtraError:
    return MissingExtraError.of("PettingZoo's environments need", "pettingzoo", error)


def _maker(name: str) -> Callable[[], Any]:
    """What makes the environment of a name.

    Raises:
        GameError: There is none.
        MissingExtraError: A package that it needs is not installed.
    """
    if ":" in name:
        return by_name.find(name)
    match = _NAME.fullmatch(name)
    if match is None:
        raise GameError("this names no environment", got=repr(name), expected='as in "classic/connect_four_v3"')
    place = f"pettingzoo.{match['place'].replace('/', '.')}"
    try:
        with warnings.catch_warnings():
            # The modules work in all versions; PettingZoo 1.27's registry, to which their warning points, does not.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not place.startswith(error.name or "\0"):
            raise _missing(error) from None
        do = "PettingZoo's documentation lists them; the version belongs to the name."
        raise GameError("PettingZoo has no such environment", got=repr(name), do=do) from None
    except ImportError as error:  # PettingZoo names the version that took the place of this one
        text = " ".join(str(error).split())
        raise GameError("PettingZoo has no such environment", got=repr(name), where=text) from None
    made = "env" if hasattr(module, "env") else "parallel_env"
    if not hasattr(module, made):
        raise GameError("PettingZoo has no such environment", got=repr(name), expected="a module with env()")
    try:
        return by_name.find(f"{place}:{made}{match['keywords'] or ''}")
    except MovelistError as error:
        raise GameError(error.what, got=repr(name), expected='keywords as in "classic/go_v5(board_size=9)"') from None


def _num_actions(space: Any, where: str) -> int:
    """Rows that a table needs for the actions of a space.

    Raises:
        GameError: They are not numbered.
    """
    if type(space).__name__ != "Discrete" or space.start < 0:
        raise GameError(
            "this game cannot be played here, because its actions are not numbered from 0",
            got=str(space),
            expected="Discrete(n)",
            where=where,
        )
    return int(space.start) + int(space.n)
