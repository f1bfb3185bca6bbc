"""What does saving cost? Trains for a while with the default cadence and says which share of the time went into saves.

    python benchmarks/saving.py [--seconds 60] [--hidden_dim 512] [--game dou_dizhu] [--out FOLDER]

The default saves when the time since the last save is 100 times what that one took, so the share should lie below 1 %;
the first save, which has nothing to go by, comes after the first update. Also printed: the seconds of a save, the size
of a checkpoint, and what each part of a save takes, each the median of several.
"""

from __future__ import annotations

import hashlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

from movelist.core.settings import TrainSettings
from movelist.run.checkpoint import load_newest
from movelist.run.train import train
from movelist.run.training import Training


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train for some time and say what saving took of it."""

    game: str = "dou_dizhu"
    """The game."""

    seconds: float = 60.0
    """Of training."""

    hidden_dim: int = 512
    """Width of the network."""

    device: str = "auto"
    """Where to compute."""

    out: Path | None = None
    """A new run folder on the disk that is of interest; None takes a temporary one, which is deleted."""


def main(options: Options) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="movelist-saving-") as folder:
        out = options.out or Path(folder) / "run"
        save_seconds = time_saves()
        flat = {"game": options.game, "hidden_dim": options.hidden_dim, "device": options.device, "eval_games": 0}
        settings = TrainSettings.from_flat(
            flat | {"max_seconds": options.seconds, "total_steps": None, "out": str(out)}
        )
        result = train(settings, console=Console(quiet=True))
        report(result.updates, result.seconds, save_seconds, out)


def time_saves() -> list[float]:
    """A list that gets the seconds of each save from now on."""
    seconds: list[float] = []
    original = Training._write

    def write(training: Training, *what: Any) -> Any:
        started = time.perf_counter()
        path = original(training, *what)
        seconds.append(time.perf_counter() - started)
        return path

    Training._write = write  # type: ignore[method-assign]
    return seconds


def report(updates: int, train_seconds: float, save_seconds: list[float], out: Path) -> None:
    """Print what was measured."""
    total = train_seconds + sum(save_seconds)
    file, state = load_newest(out, say=print)
    size = file.stat().st_size
    print(f"{updates:,} updates in {train_seconds:.1f} s, {len(save_seconds):,} saves of {size / 1e6:,.1f} MB")
    print(f"a save takes {statistics.median(save_seconds):.3f} s (median; longest {max(save_seconds):.3f} s)")
    print(f"saving takes {sum(save_seconds) / total:.2%} of the time")
    content = file.read_bytes()

    def write_and_sync() -> None:
        with (out / "probe").open("wb") as probe:
            probe.write(content)
            probe.flush()
            os.fsync(probe.fileno())

    for name, part in (
        ("torch.save into memory", lambda: torch.save(state, io.BytesIO())),
        ("SHA-256", lambda: hashlib.sha256(content).digest()),
        ("write and fsync", write_and_sync),
    ):
        print(f"  {name}: {median_seconds(part):.4f} s")
    (out / "probe").unlink()


def median_seconds(call: Callable[[], object], times: int = 7) -> float:
    """Of some calls."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
