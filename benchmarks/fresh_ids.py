"""What do action ids cost that never come again? Many games name each action anew: this unit to that square, now.

    python benchmarks/fresh_ids.py [--calls 6000] [--updates 6] [--actions 50] [--hidden_dim 512]

Two things are measured, each in a process of its own: `NetPolicy.act`, called with new ids each time, whose memory and
time a call should stand still; and updates by self-play, whose peak is held against what a training says that it keeps.
Times of two quarters of the same run are compared, as their ratio.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

import movelist
from movelist.core.settings import TrainSettings
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.policy import NetPolicy
from movelist.run.train import train

TURNS, STATE_SIZE = 20, 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure ids that never repeat."""

    calls: int = 6000
    """Of `NetPolicy.act`."""

    updates: int = 6
    """Of self-play, 256 games each."""

    actions: int = 50
    """New ids a turn."""

    hidden_dim: int = 512
    """Width of the network."""


class NeverAgain:
    """A game of one player: TURNS turns, each with ids that no other turn of any game has; even ids win a point."""

    name, num_players = "never_again", 1

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def new_state(self, seed: int) -> NeverAgainState:
        """Each seed has ids of its own."""
        return NeverAgainState(seed, self.actions)


class NeverAgainState:
    """A game in progress."""

    def __init__(self, seed: int, actions: int) -> None:
        self.rng, self.actions, self.turn, self.score = np.random.default_rng(seed), actions, 0, 0.0
        self._deal()

    def _deal(self) -> None:
        self.ids = self.rng.integers(-(2**63), 2**63, self.actions).tolist()
        self.seen = self.rng.random(STATE_SIZE, np.float32)

    def current_player(self) -> int | None:
        """Always the only one, until the end."""
        return 0 if self.turn < TURNS else None

    def legal_actions(self) -> list[int]:
        """New ids."""
        return list(self.ids)

    def observe(self, player: int) -> np.ndarray:
        """Noise."""
        return self.seen

    def apply(self, index: int) -> None:
        """Choose one."""
        self.score += 1.0 - (self.ids[index] & 1)
        self.turn += 1
        self._deal()

    def returns(self) -> list[float]:
        """Even ids chosen."""
        return [self.score]


def peak_megabytes() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held_megabytes() -> float:
    """What it holds now; Linux only."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def act(options: Options) -> None:
    """Calls of `NetPolicy.act`."""
    torch.manual_seed(0)
    policy = NetPolicy(PolicyValueNet(ModelShape(state_size=STATE_SIZE, hidden_dim=options.hidden_dim)))
    rng = np.random.default_rng(0)
    quarters: list[list[float]] = [[], [], [], []]
    held = []
    for call in range(options.calls):
        ids, state = rng.integers(-(2**63), 2**63, options.actions), rng.random(STATE_SIZE, np.float32)
        started = time.perf_counter()
        policy.act(state, ids)
        quarters[4 * call // options.calls].append(1000 * (time.perf_counter() - started))
        if call % max(1, options.calls // 8) == 0:
            held.append(held_megabytes())
    first, *_, last = (statistics.median(quarter) for quarter in quarters)
    print(f"act, {options.calls:,} calls with {options.actions} new ids each: {first:.2f} ms a call in the first "
          f"quarter, {last:.2f} in the last, {last / first:.2f} times")  # fmt: skip
    print(f"     memory from {held[1]:,.0f} MB after an eighth of them to {held[-1]:,.0f} MB at the end")


def update(options: Options) -> None:
    """Updates by self-play."""
    flat = {"hidden_dim": options.hidden_dim, "update_frequency": 256, "eval_games": 0, "tensorboard": False}
    flat |= {"total_steps": options.updates * 256 * TURNS, "live": False, "device": "cpu"}
    said, before = io.StringIO(), held_megabytes()
    with tempfile.TemporaryDirectory(prefix="movelist-fresh-ids-") as folder, contextlib.redirect_stdout(said):
        train(TrainSettings.from_flat({**flat, "out": f"{folder}/run"}), NeverAgain(options.actions))
    (keeps,) = re.findall(r"It keeps about ([\d,]+) MB", said.getvalue())
    ids = 256 * TURNS * options.actions
    print(f"update, {options.updates} of 256 games with {ids:,} ids each: held {before:,.0f} MB before, "
          f"{peak_megabytes():,.0f} at the most; it says that it keeps {keeps} MB")  # fmt: skip


def main(options: Options) -> None:
    """Each in a process of its own, so that one's memory is not the other's."""
    print(f"movelist {movelist.__version__}, torch {torch.__version__}, width {options.hidden_dim}")
    context = multiprocessing.get_context("spawn")
    parts: tuple[Callable[[Options], None], ...] = (act, update)
    for part in parts:
        process = context.Process(target=part, args=(options,))
        process.start()
        process.join()


if __name__ == "__main__":
    main(tyro.cli(Options))
