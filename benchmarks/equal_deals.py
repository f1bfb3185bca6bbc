"""What equal deals buy: how many times fewer games give the same interval as games on cards of their own.

    python benchmarks/equal_deals.py GAME PLAYER AGAINST [--num_games 6000]

The same two players play a match on equal deals, and the same number of games, in the same seatings, each on other
cards. The ratio is that of the variances of the two scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tyro

from movelist.games.catalog import make_game
from movelist.games.openings import Openings, opening_length
from movelist.play.deals import Pairing, play_deals, seatings
from movelist.run.players import find_player


@dataclass(frozen=True)
class Options:
    """Compare the spread of deals' means with that of as many single games."""

    game: tyro.conf.Positional[str]
    """Its name."""

    player: tyro.conf.Positional[str]
    """As in movelist match."""

    against: tyro.conf.Positional[str]
    """As in movelist match."""

    num_games: int = 6_000
    """Of each kind."""


def main(options: Options) -> None:
    """Print the ratio."""
    game = make_game(options.game)
    length = opening_length(game)
    opened = Openings(game, length) if length else game
    players = [find_player(text, game, greedy=True)[0] for text in (options.player, options.against)]
    num_games = seatings(game).num_games
    num_deals = options.num_games // num_games
    (equal,) = play_deals(players, [Pairing(0, 1, 0, num_deals)], opened)
    (others,) = play_deals(players, [Pairing(0, 1, num_deals, options.num_games)], opened)
    # Of each deal one game, all seatings by turns: each game has its own cards.
    game_DK = np.concatenate([others.x.win_DU, 1 - others.y.win_DU], axis=1)[:, :num_games]
    single = game_DK[np.arange(options.num_games), np.arange(options.num_games) % num_games]
    mean_of_single = single[: num_deals * num_games].reshape(-1, num_games).mean(1)
    ratio = mean_of_single.var(ddof=1) / equal.score_D.var(ddof=1)
    print(f"{options.game}: score {equal.score_D.mean():.3f} on equal deals, {single.mean():.3f} on single games; "
          f"{ratio:.2f} times fewer games for the same interval")  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options))
