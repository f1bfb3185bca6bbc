"""Does the dual clip help training from recorded games? The same recordings, learnt from with it and without.

    python benchmarks/dual_clip.py [--episodes 6000] [--passes 2] [--seeds 3] [--hidden_dim 128] [--games 1500]

Random players' games of dou dizhu, from which the policy soon moves far away; strength is that of the greedy policy
against random players after the same number of passes, so no clock is involved.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

import movelist
from movelist.cli import main as command
from movelist.learn.loss import ppo_loss, recorded_ppo_loss


@dataclass(frozen=True, kw_only=True)
class Options:
    """Learn from the same games with and without the dual clip."""

    game: str = "dou_dizhu"
    """The game."""

    episodes: int = 6000
    """Recorded."""

    passes: int = 2
    """Over the recordings."""

    seeds: int = 3
    """Trainings of each kind."""

    hidden_dim: int = 128
    """Width of the network."""

    games: int = 1500
    """Of each match."""


def main(options: Options) -> None:
    """Record, train, play, print."""
    rates: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory(prefix="movelist-dual-clip-") as folder:
        recording = Path(folder) / "random.arrows"
        words = ["record", "--game", options.game, "--episodes", str(options.episodes), "--out", str(recording)]
        if command(words):
            raise SystemExit("nothing was recorded")
        for seed in range(options.seeds):
            for name, loss in (("with", recorded_ppo_loss), ("without", ppo_loss)):
                out = Path(folder) / f"{name}-{seed}"
                movelist.train(
                    data=[recording], data_passes=options.passes, learn_from="all", loss=loss, seed=seed, out=out,
                    hidden_dim=options.hidden_dim, eval_games=0, tensorboard=False, live=False,
                )  # fmt: skip
                match = movelist.match(out, game=options.game, num_games=options.games)
                rates[name].append(match.win_rate)
    for name, found in rates.items():
        shown = ", ".join(f"{rate:.3f}" for rate in found)
        print(f"{name} dual clip: {shown}; median {statistics.median(found):.3f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
