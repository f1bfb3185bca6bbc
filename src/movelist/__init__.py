"""PPO for games whose legal actions change every turn.

    movelist.train(game="dou_dizhu", total_steps=500_000)     train; the settings of `movelist train --help`
    movelist.load("runs/mine")                                a policy that plays: policy.act(state, legal_actions)
    movelist.match("runs/mine", "random")                     how strong it is, with intervals
    movelist.arena(["runs/mine@all", "random"])               everyone against everyone: a table and ratings
    movelist.exploitability("runs/mine")                      how far from an equilibrium, in a small OpenSpiel game
    movelist.export("runs/mine", "policy.onnx")               a file that a game engine can run
    movelist.play_game("runs/mine")                           play against it yourself
    movelist.check_game(MyGame())                             does a game of your own keep the rules?

Names are imported when they are first used, so that `import movelist` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from movelist.core.errors import MovelistError
    from movelist.core.ragged import Segments
    from movelist.core.settings import TrainSettings
    from movelist.data.column import Column
    from movelist.data.episode import Episodes, Source
    from movelist.games.catalog import make_game
    from movelist.games.check import check_game
    from movelist.games.game import Game, State
    from movelist.learn.model import ModelShape, Network, PolicyValueNet
    from movelist.play.policy import NetPolicy, Policy, RandomPolicy
    from movelist.play.selfplay import Opponents
    from movelist.run.api import arena, exploitability, export, load, match, play_game, train
    from movelist.run.start import Update

_HOME = {
    "MovelistError": "core.errors",
    "Segments": "core.ragged",
    "TrainSettings": "core.settings",
    "Column": "data.column",
    "Episodes": "data.episode",
    "Source": "data.episode",
    "Game": "games.game",
    "State": "games.game",
    "check_game": "games.check",
    "ModelShape": "learn.model",
    "Network": "learn.model",
    "PolicyValueNet": "learn.model",
    "NetPolicy": "play.policy",
    "Opponents": "play.selfplay",
    "Policy": "play.policy",
    "Update": "run.start",
    "make_game": "games.catalog",
    "RandomPolicy": "play.policy",
    "arena": "run.api",
    "exploitability": "run.api",
    "export": "run.api",
    "load": "run.api",
    "match": "run.api",
    "play_game": "run.api",
    "train": "run.api",
}
__all__ = [
    "Column",
    "Episodes",
    "Game",
    "ModelShape",
    "MovelistError",
    "NetPolicy",
    "Network",
    "Opponents",
    "Policy",
    "PolicyValueNet",
    "RandomPolicy",
    "Segments",
    "Source",
    "State",
    "TrainSettings",
    "Update",
    "arena",
    "check_game",
    "exploitability",
    "export",
    "load",
    "make_game",
    "match",
    "play_game",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("movelist")
    if name not in _HOME:
        raise AttributeError(f"module 'movelist' has no attribute {name!r}")
    return getattr(importlib.import_module(f"movelist.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
