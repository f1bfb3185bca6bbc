"""The agents that RLCard brings along for its games, as players of them: rlcard:doudizhu-rule-v1.

An agent's dice are thrown anew at each turn, from the game's seed and the moves so far: a choice depends neither on
which other games are played nor on how many processes play.
"""

from __future__ import annotations

import copy
import importlib
import zlib
from typing import Any

import numpy as np

from movelist.core.errors import GameError, SettingsError
from movelist.games.bot import refuse_unknown
from movelist.games.game import Game, State, game_name
from movelist.games.rlcard import RLCardGame, RLCardState


class RLCardBot:
    """One of RLCard's agents.

    Args:
        name: As RLCard calls it, "doudizhu-rule-v1".
        game: What it plays.

    Raises:
        SettingsError: RLCard has no such agent for the game.
        GameError: The game is not RLCard's.
        MissingExtraError: RLCard is not installed.
    """

    greedy = False  # most of them draw lots where their rules say nothing

    def __init__(self, name: str, game: Game) -> None:
        if not isinstance(game, RLCardGame):
            raise GameError("RLCard's agents play RLCard's games only", got=game_name(game), where=f"rlcard:{name}")
        refuse_unknown(f"RLCard has no such agent for {game.name}", "rlcard:", name, agents_of(game))
        self.name, self.spec, self.game = f"rlcard:{name}", name, game
        try:
            self.agents = importlib.import_module("rlcard.models").load(name).agents
        except Exception as error:  # whatever RLCard's own code raises
            got = f"{type(error).__name__}: {error}"
            raise SettingsError("RLCard cannot make this agent", got=got, where=self.name) from None

    def __reduce__(self) -> tuple[type[RLCardBot], tuple[str, RLCardGame]]:
        """A pickle holds the names: RLCard's objects stay in their process."""
        return RLCardBot, (self.spec, self.game)

    def choose(self, state: State, seat: int) -> int:
        """See `Bot`."""
        assert isinstance(state, RLCardState)
        env, ids = state._env, state.legal_actions()
        agent = self.agents[seat % len(self.agents)]
        seen = copy.deepcopy(state._see(seat))  # agents take cards out of it
        before = np.random.get_state()
        np.random.seed(zlib.crc32(f"{state._seed} {env.action_recorder}".encode()))
        try:
            answer = agent.eval_step(seen)[0]
        finally:
            np.random.set_state(before)
        if not agent.use_raw:
            return ids.index(int(answer))
        return [str(env._decode_action(action)) for action in ids].index(str(answer))


def agents_of(game: RLCardGame) -> list[str]:
    """The names of RLCard's agents for a game."""
    models: Any = importlib.import_module("rlcard.models.registration")
    importlib.import_module("rlcard.models")
    return sorted(name for name in models.model_registry.model_specs if name.startswith(f"{game._game_id}-"))
