"""What does watching cost? The same training's updates in turn with and without --live, in one process.

    python benchmarks/live.py [--game dou_dizhu] [--hidden_dim 512] [--pairs 30]

Prints the median of the paired ratios of seconds a step, with the live numbers over without, and the range of the
middle half. Two updates never have the same games, so single ratios scatter; the median of many is what counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import tyro

from movelist.core.settings import TrainSettings
from movelist.games.catalog import make_game
from movelist.run.folder import RunFolder
from movelist.run.training import Training


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare updates that are watched with updates that are not."""

    game: str = "dou_dizhu"
    """The game."""

    hidden_dim: int = 512
    """Width of the network."""

    update_frequency: int = 64
    """Games for an update."""

    pairs: int = 30
    """How often each is timed."""

    num_threads: int | None = None
    """CPU threads; None leaves torch's choice."""

    device: str = "auto"
    """Where to compute."""


def step_seconds(training: Training, *, live: bool) -> float:
    """Seconds of one update, for each of its steps."""
    with training.watched() if live else nullcontext():
        started = time.perf_counter()
        episodes = training.collect()
        training.update(training.prepare(episodes))
        seconds = time.perf_counter() - started
        training.pace(training.totals, collect_seconds=seconds / 2, learn_seconds=seconds / 2)
        return (time.perf_counter() - started) / episodes.num_steps


def main(options: Options) -> None:
    """Measure and print."""
    flat = {name: value for name, value in vars(options).items() if name != "pairs"}
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        training = Training(TrainSettings.from_flat(flat), make_game(options.game), RunFolder(Path(folder)))
        step_seconds(training, live=True)
        for pair in range(options.pairs):
            first = pair % 2 == 0  # each goes first as often
            seconds = {live: step_seconds(training, live=live) for live in (first, not first)}
            ratios.append(seconds[True] / seconds[False])
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"with live numbers / without: {statistics.median(ratios):.4f}, half of them {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
