"""How fast does a whole training run here? Trains dou dizhu for a minute and says where the time went.

    python benchmarks/end_to_end.py [--seconds 60] [--hidden_dim 512] [--json FILE]

Prints steps, games and legal actions per second, the shares of rollout and update, and the update's share of this
machine's matrix product rate: the operations that the formulas ask for (PolicyValueNet.flops), over the seconds of the
update, over the rate of a plain matrix product. The rate is measured between the updates of the same run, since
a machine that others use too is not equally fast all the time.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from movelist.core.settings import TrainSettings
from movelist.games.catalog import make_game
from movelist.measure.benchmark import machine
from movelist.measure.clock import matmul_rate
from movelist.play.arena import match
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.run.folder import RunFolder
from movelist.run.training import Training


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train for some time and say where it went."""

    game: str = "dou_dizhu"
    """The game."""

    seconds: float = 60.0
    """Of training; measuring the matrix product comes on top."""

    hidden_dim: int = 512
    """Width of the network."""

    epochs_per_update: int = 4
    """Passes over each update's episodes."""

    batch_size: int = 1024
    """Steps in one forward and backward pass."""

    seed: int = 0
    """Of everything random."""

    device: str = "auto"
    """Where to compute."""

    num_games: int = 3_000
    """Games of the match against random players afterwards; 0 plays none."""

    json: Path | None = None
    """Write the figures there too."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    """Train, and return the figures."""
    settings = TrainSettings.from_flat(
        {
            "game": options.game,
            "hidden_dim": options.hidden_dim,
            "epochs_per_update": options.epochs_per_update,
            "batch_size": options.batch_size,
            "seed": options.seed,
            "device": options.device,
        }
    )
    training = Training(settings, make_game(options.game), RunFolder(folder))
    device = training.learner.world.device
    training.update(training.prepare(training.collect()))  # warm up: caches, threads, allocator
    seconds = {"collect": 0.0, "prepare": 0.0, "update": 0.0}
    steps = games = actions = 0
    shares = []
    while sum(seconds.values()) < options.seconds:
        started = time.perf_counter()
        episodes = training.collect()
        collected = time.perf_counter()
        prepared = training.prepare(episodes)
        ready = time.perf_counter()
        metrics = training.update(prepared)
        ended = time.perf_counter()
        for name, part in zip(seconds, (collected - started, ready - collected, ended - ready), strict=True):
            seconds[name] += part
        steps, games, actions = steps + episodes.num_steps, games + len(episodes), actions + episodes.num_actions
        rate = matmul_rate(options.hidden_dim, device, rows=settings.update.batch_size)
        shares.append(metrics["perf/update_flops"] / (ended - ready) / rate)
    total = sum(seconds.values())
    figures = {
        "machine": machine(device),
        "steps_per_second": steps / total,
        "games_per_second": games / total,
        "legal_actions_per_second": actions / total,
        "update_steps_per_second_and_epoch": steps * options.epochs_per_update / seconds["update"],
        "rollout_steps_per_second": steps / seconds["collect"],
        **{f"{name}_share": part / total for name, part in seconds.items()},
        "update_share_of_matmul_rate": statistics.median(shares),
        "update_share_of_matmul_rate_range": (min(shares), max(shares)),
        "matmul_rate_gflops_last": rate / 1e9,
        "updates": len(shares),
        "steps": steps,
        "seconds": total,
    }
    if options.num_games:
        policy = NetPolicy(training.net, greedy=True)
        figures["against_random"] = str(match(policy, RandomPolicy(), training.game, num_games=options.num_games))
    return figures


def main() -> None:
    """Read the options, measure, print."""
    import tempfile

    options = tyro.cli(Options)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    for name, value in figures.items():
        print(f"{name:36} {value:,.3f}" if isinstance(value, float) else f"{name:36} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
