"""The bots that OpenSpiel's wheel has for a game, as players of it: openspiel:NAME or openspiel:NAME(PARAMETER=VALUE).

A bot's dice are thrown anew at each turn, from the game's seed and the moves so far: a choice depends neither on which
other games are played nor on how many processes play.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

from movelist.core.by_name import plain_call
from movelist.core.errors import GameError, SettingsError
from movelist.games.bot import refuse_unknown
from movelist.games.game import Game, State, game_name
from movelist.games.openspiel import OpenSpielGame, OpenSpielState, import_pyspiel

SEEDS = 2**31 - 1  # OpenSpiel takes 32 bits with a sign
MEMORY_MB = 100  # of a search tree
# Where a search over hidden cards is known to answer: OpenSpiel cannot deal dou_dizhu's anew, and with hearts it does
# not come back.
SEARCHED = ("kuhn_poker", "leduc_poker")
EXPLORATION = 2.0  # of UCT, as in OpenSpiel's own examples for returns from -1 to 1


class OpenSpielBot:
    """One of OpenSpiel's bots.

    Args:
        name: "uniform_random", or with parameters "mcts(simulations=200)".
        game: What it plays.

    Raises:
        SettingsError: The game has no such bot, or the bot no such parameter.
        GameError: The game is not OpenSpiel's.
    """

    def __init__(self, name: str, game: Game) -> None:
        if not isinstance(game, OpenSpielGame):
            raise GameError(
                "OpenSpiel's bots play OpenSpiel's games only", got=game_name(game), where=f"openspiel:{name}"
            )
        self.name, self.game = f"openspiel:{name}", game
        self.spec = name
        kind, parameters = plain_call(name)
        makers = bots_of(game)
        refuse_unknown(f"OpenSpiel has no such bot for {game.name}", "openspiel:", kind, makers)
        self.make = makers[kind]
        self.parameters = parameters
        self.greedy = kind == "fixed_action_preference"
        try:
            self.make(0, 0, **parameters)
        except (TypeError, RuntimeError, ValueError) as error:
            raise SettingsError(
                "OpenSpiel cannot make this bot", got=" ".join(str(error).split()), where=self.name
            ) from None

    def __reduce__(self) -> tuple[type[OpenSpielBot], tuple[str, OpenSpielGame]]:
        """A pickle holds the names: OpenSpiel's own objects stay in their process."""
        return OpenSpielBot, (self.spec, self.game)

    def choose(self, state: State, seat: int) -> int:
        """See `Bot`."""
        assert isinstance(state, OpenSpielState)
        inner = state._state
        seed = zlib.crc32(f"{state._seed} {inner.history_str()}".encode()) % SEEDS
        action = self.make(seat, seed, **self.parameters).step(inner.clone())
        return int(inner.legal_actions().index(action))


def bots_of(game: OpenSpielGame) -> dict[str, Callable[..., Any]]:
    """The bots that play a game, by name: called with (seat, seed) and keywords each makes one of pyspiel's."""
    pyspiel, inner = import_pyspiel(), game._game
    kind = inner.get_type()
    makers: dict[str, Callable[..., Any]] = {
        "uniform_random": lambda seat, seed: pyspiel.make_uniform_random_bot(seat, seed),
        "fixed_action_preference": lambda seat, seed: pyspiel.load_bot("fixed_action_preference", inner, seat),
    }
    if kind.information.name == "PERFECT_INFORMATION":
        makers["mcts"] = functools.partial(_mcts, inner)
    if kind.short_name in SEARCHED:
        makers["ismcts"] = _ismcts
    return makers


def _mcts(game: Any, seat: int, seed: int, simulations: int = 100, rollouts: int = 1) -> Any:
    pyspiel = import_pyspiel()
    evaluator = pyspiel.RandomRolloutEvaluator(rollouts, seed)
    return pyspiel.MCTSBot(game, evaluator, EXPLORATION, simulations, MEMORY_MB, False, seed, False)


def _ismcts(seat: int, seed: int, simulations: int = 100, rollouts: int = 1) -> Any:
    pyspiel = import_pyspiel()
    return pyspiel.ISMCTSBot(seed, pyspiel.RandomRolloutEvaluator(rollouts, seed), EXPLORATION, simulations)
