"""Trainings that are given processor seconds, for machines that do other things at the same time."""

from __future__ import annotations

import signal
import time
from typing import Any

from rich.console import Console

from movelist.core.settings import TrainSettings
from movelist.run.parts import Parts
from movelist.run.train import TrainResult, train


def train_for(seconds: float, flat: dict[str, Any], game: Any = None) -> TrainResult:
    """Train on one thread until this process has used so many seconds of a processor, at the end of an update."""
    began = time.process_time()

    def stop_in_time(update: object) -> None:
        if time.process_time() - began > seconds:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the training ends and keeps what it has

    common = {"total_steps": None, "eval_games": 0, "live": False, "num_threads": 1, "tensorboard": False}
    settings = TrainSettings.from_flat(common | flat)
    return train(settings, game, parts=Parts(after_update=stop_in_time), console=Console(quiet=True))
