"""RLCard's card games, as games to be played here.

rlcard is imported inside functions only, so everything else works without it.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from movelist.core.by_name import keywords_in
from movelist.core.errors import GameError, MissingExtraError, nearest
from movelist.games.spaces import filled, with_seat

_NAME = re.compile(r"(?P<game>[a-z][a-z0-9-]*)(?P<keywords>\(.*\))?", re.DOTALL)


class RLCardGame:
    """One of RLCard's games.

    An action's id is RLCard's number of it, and a state is RLCard's own observation, row by row; where the seats'
    observations differ in width, as in doudizhu, they are padded and a one-hot of the seat follows. What players earn
    comes at the end. Chance is what RLCard draws from its own generator, which the seed starts.

    Attributes:
        name: The game's name, with "rlcard:" in front.
        num_players: Seats.
        num_actions: Actions in the whole game.
        state_size: Values in an observation.

    Args:
        name: "doudizhu", or with RLCard's settings "limit-holdem(game_num_players=3)".

    Raises:
        MissingExtraError: RLCard is not installed.
        GameError: There is no such game, or its settings are wrong.

    Example:
        >>> game = RLCardGame("leduc-holdem")
        >>> game.num_players, game.num_actions, game.state_size
        (2, 4, 36)
    """

    action_encoder: Literal["table"] = "table"

    def __init__(self, name: str) -> None:
        self._given = name
        self.name = f"rlcard:{name}"
        self._game_id, self._config = _parsed(name)
        env = self._new_env(0)
        self.num_players = int(env.num_players)
        self.num_actions = int(env.num_actions)
        sizes = [math.prod(shape) for shape in env.state_shape]
        self._width = max(sizes)
        self._empty_PS: NDArray[np.float32] = with_seat(sizes)
        self.state_size: int = self._empty_PS.shape[1]

    def __reduce__(self) -> tuple[type[RLCardGame], tuple[str]]:
        """A pickle holds the name: RLCard's objects stay in their process."""
        return RLCardGame, (self._given,)

    def new_state(self, seed: int) -> RLCardState:
        """Start a game; the seed decides what RLCard's own generator draws."""
        return RLCardState(self, seed)

    def _new_env(self, seed: int) -> Any:
        try:
            env = _library().make(self._game_id, config={**self._config, "seed": seed})
            env.reset()
        except MissingExtraError:
            raise
        except Exception as error:  # whatever RLCard makes of a setting
            raise GameError(
                "RLCard cannot make this game",
                got=repr(self._given),
                where=f"RLCard says: {type(error).__name__}: {error}",
            ) from None
        return env


class RLCardState:
    """One game in progress; see `State` for what the methods promise."""

    _ids: list[int] | None  # of the turn, once somebody asked
    _player: int | None
    _seen: dict[int, dict[str, Any]]

    def __init__(self, game: RLCardGame, seed: int) -> None:
        self._game, self._seed = game, seed
        self._env = game._new_env(seed)
        self._begin_turn()

    def current_player(self) -> int | None:
        """The seat to move, or None when the game is over."""
        return self._player

    def legal_actions(self) -> Sequence[int]:
        """RLCard's numbers of the legal actions, ascending: its own order may come from a set."""
        if self._ids is None:
            self._ids = [] if self._player is None else sorted(map(int, self._see(self._player)["legal_actions"]))
        return self._ids

    def observe(self, player: int) -> NDArray[np.float32]:
        """RLCard's observation for this seat, float32 [S]; zeros for a seat of which RLCard cannot tell it yet."""
        game = self._game
        try:
            row = np.asarray(self._see(player)["obs"], np.float32).ravel()
        except Exception:  # doudizhu's fails for who has to move after the landlord, before the landlord's first move
            if player == self._player:
                raise
            row = np.zeros(0, np.float32)
        return filled(game._empty_PS[player], row, game._width, game.name)

    def apply(self, index: int) -> None:
        """Play one of the legal actions.

        Raises:
            GameError: The list has no such index.
        """
        actions = self.legal_actions()
        if not 0 <= index < len(actions):
            raise GameError(
                "no such legal action", got=f"index {index}", expected=f"below {len(actions)}", where=self._game.name
            )
        self._env.step(actions[index])
        self._begin_turn()

    def returns(self) -> Sequence[float]:
        """What each seat has earned: nothing before the end."""
        if not self._env.is_over():
            return [0.0] * self._game.num_players
        return [float(value) for value in self._env.get_payoffs()]

    def action_name(self, index: int) -> str:
        """The action as RLCard writes it."""
        return str(self._env._decode_action(self.legal_actions()[index]))

    def _begin_turn(self) -> None:
        env = self._env
        self._ids = None
        self._seen = {}
        self._player = None if env.is_over() else int(env.get_player_id())

    def _see(self, player: int) -> dict[str, Any]:
        """RLCard's state for a seat, which it takes long to make: once a turn."""
        if player not in self._seen:
            self._seen[player] = self._env.get_state(player)
        return self._seen[player]


def _library() -> Any:
    try:
        return importlib.import_module("rlcard")
    except ImportError as error:
        raise MissingExtraError.of("RLCard's games need", "rlcard", error) from None


def game_names() -> list[str]:
    """RLCard's games.

    Raises:
        MissingExtraError: RLCard is not installed.
    """
    _library()
    return sorted(importlib.import_module("rlcard.envs.registration").registry.env_specs)


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """(RLCard's name, its settings).

    Raises:
        GameError: There is no such game, or its settings are no plain values.
    """
    known, match = game_names(), _NAME.fullmatch(name)
    if match is None or match["game"] not in known:
        close = nearest(name.partition("(")[0], known)
        do = f"Did you mean rlcard:{close}?" if close else None
        raise GameError("RLCard has no such game", got=repr(name), expected=f"one of {', '.join(known)}", do=do)
    config = keywords_in(match["keywords"] or "")
    if config is None:
        expected = f'settings as in "{match["game"]}(game_num_players=3)"'
        raise GameError("this names no game", got=repr(name), expected=expected)
    return match["game"], config
