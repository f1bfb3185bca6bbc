"""Is an update faster compiled? The same updates in turn without and with --compile on, in one process.

    python benchmarks/compile.py [--hidden_dim 512] [--num_threads 1] [--repetitions 10]

Plays some games of self-play once, then updates two copies of the network on them by turns, since a machine that others
use too is not equally fast all the time. Prints the seconds of the first compiled update, then median and best seconds
of both ways and their ratio: above 1 the compiled one is faster. CPU seconds, summed over threads, leave out the time
in which others had the cores.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass, replace

import torch
import tyro

from movelist.core.settings import PlaySettings, UpdateSettings
from movelist.games.catalog import make_game
from movelist.games.game import action_encoder, state_size
from movelist.learn.device import choose_device, set_up
from movelist.learn.learner import Learner, Prepared
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy
from movelist.play.selfplay import SelfPlay


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare compiled with plain updates."""

    game: str = "dou_dizhu"
    """The game."""

    hidden_dim: int = 512
    """Width of the network."""

    num_games: int = 64
    """Games to learn from; the same in every update."""

    num_threads: int | None = None
    """CPU threads; None leaves torch's choice."""

    repetitions: int = 10
    """Updates of each kind that count."""

    kernels: str = "torch"
    """torch or triton, for both."""

    device: str = "auto"
    """Where to compute."""


def seconds_of(learner: Learner, prepared: Prepared) -> tuple[float, float]:
    """Seconds and CPU seconds of one update on a rollout."""
    started, cpu_started = time.perf_counter(), time.process_time()
    learner.update(prepared)  # ends with a read from the device, so the device is done too
    return time.perf_counter() - started, time.process_time() - cpu_started


def main(options: Options) -> None:
    """Measure and print."""
    device = choose_device(options.device)
    set_up(device, options.num_threads)
    torch.manual_seed(0)
    game = make_game(options.game)
    encoder = action_encoder(game)
    num_actions = int(getattr(game, "num_actions", 0)) if encoder == "table" else 0
    shape = ModelShape(
        state_size=state_size(game), hidden_dim=options.hidden_dim, action_encoder=encoder, num_actions=num_actions
    )
    net = PolicyValueNet(shape).to(device)
    episodes = SelfPlay(game, PlaySettings(), seed=0).collect(NetPolicy(net), options.num_games)
    plain = UpdateSettings(epochs_per_update=1, kernels=options.kernels)  # type: ignore[arg-type]
    learners = {way: Learner(copy.deepcopy(net), replace(plain, compile=way), World(device)) for way in ("off", "on")}
    prepared = {way: learner.prepare(episodes) for way, learner in learners.items()}
    first = {way: seconds_of(learner, prepared[way]) for way, learner in learners.items()}
    seconds: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
    for _ in range(options.repetitions):
        for way, learner in learners.items():
            seconds[way].append(seconds_of(learner, prepared[way]))
    compiled = learners["on"].compiled
    print(*learners["on"].take_notices(), sep="\n")
    print(
        f"{episodes.num_steps:,} steps, {episodes.num_actions:,} legal actions, width {options.hidden_dim}, "
        f"{torch.get_num_threads()} threads on {device}; first compiled update {first['on'][0]:.1f} s, "
        f"{compiled.num_graphs if compiled else 0} graphs"
    )
    for clock, kind in enumerate(("wall", "CPU")):
        for name, of in (("median", statistics.median), ("best", min)):
            off, on = (of([pair[clock] for pair in seconds[way]]) for way in ("off", "on"))
            print(f"{kind} {name}: plain {off:.4f} s, compiled {on:.4f} s, ratio {off / on:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
