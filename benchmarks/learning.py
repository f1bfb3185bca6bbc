"""How strong does a training get in a given time? Against random players, greedy, all seats together.

    python benchmarks/learning.py [--games dou_dizhu gin_rummy backgammon] [--seconds 60] [--seeds 0 1 2]

All settings are the defaults; the seconds count training only, not the match.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass

import tyro
from rich.console import Console

import movelist
from movelist.core.settings import TrainSettings
from movelist.run.train import train


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train each game with each seed, then play against random players."""

    games: tuple[str, ...] = ("dou_dizhu", "gin_rummy", "backgammon")
    """Names of games."""

    seconds: float = 60.0
    """Of training, for each game and seed."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One training each."""

    num_games: int = 3_000
    """Games of each match."""


def main() -> None:
    """Train, play, print."""
    options = tyro.cli(Options)
    print(f"movelist {movelist.__version__}, default settings, {options.seconds:g} s of training each")
    for game in options.games:
        rates = []
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                given = {"max_seconds": options.seconds, "total_steps": None, "out": folder, "eval_games": 0}
                settings = TrainSettings.from_flat({"game": game, "seed": seed, **given})
                result = train(settings, console=Console(quiet=True))
                match = movelist.match(result.policy, "random", game=game, num_games=options.num_games)
            rates.append(match.win_rate)
            seats = ", ".join(f"{score.win_rate:.3f}" for score in match.seats)
            print(
                f"{game} seed {seed}: {match}; seats {seats}; {result.steps:,} steps, {result.seconds:.0f} s",
                flush=True,
            )
        print(f"{game} median win rate: {statistics.median(rates):.3f}", flush=True)


if __name__ == "__main__":
    main()
