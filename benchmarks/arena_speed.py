"""Does an arena play as many games a second as self-play does with as many networks? By turns, in processor seconds.

python benchmarks/arena_speed.py [--game dou_dizhu] [--players 4] [--rounds 3]
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro

from movelist.core.settings import PlaySettings
from movelist.games.catalog import make_game
from movelist.games.game import action_encoder, game_name, state_size
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.policy import NetPolicy, derive_seeds
from movelist.play.selfplay import GAMES, play_games
from movelist.play.tournament import Entrant, Results, tournament


@dataclass(frozen=True)
class Options:
    """Play the same number of games in both ways and print the ratio."""

    game: str = "dou_dizhu"
    """What is played."""

    players: int = 4
    """Networks."""

    num_games: int = 120
    """Of each pairing."""

    rounds: int = 3
    """Of both, by turns."""

    hidden_dim: int = 128
    """Width of the networks."""


def main(options: Options) -> None:
    """Print games for each processor second of both, and the median of the ratios."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    game: Any = make_game(options.game)
    table = {"num_actions": game.num_actions} if action_encoder(game) == "table" else {}
    shape = ModelShape(
        state_size=state_size(game), hidden_dim=options.hidden_dim, action_encoder=action_encoder(game), **table
    )
    players = [NetPolicy(PolicyValueNet(shape)) for _ in range(options.players)]
    entrants = [Entrant(f"network {number}", str(number), player) for number, player in enumerate(players)]
    ratios = []
    for number in range(options.rounds):
        started = time.process_time()
        results = Results(None, {"game": game_name(game)})
        result = tournament(entrants, game, results, num_games=options.num_games, seed=number, say=lambda text: None)
        arena = result.games / (time.process_time() - started)
        seats_GP = np.random.default_rng(number).integers(0, options.players, (result.games, game.num_players))
        started = time.process_time()
        play_games(game, players, seats_GP, derive_seeds(number, GAMES, 0, result.games), PlaySettings())
        self_play = result.games / (time.process_time() - started)
        ratios.append(arena / self_play)
        print(f"{result.games:,} games: arena {arena:,.0f}, self-play {self_play:,.0f} a second; {ratios[-1]:.2f}")
    print(f"{options.game}, {options.players} networks: the arena is {statistics.median(ratios):.2f} times as fast")


if __name__ == "__main__":
    main(tyro.cli(Options))
