"""What do several processes of one thread give, against one process with as many threads? Both by turns, in one run.

    python benchmarks/ranks.py [--num_processes 2] [--hidden_dim 512] [--repetitions 10]

Each repetition is one update of each kind (self-play, values, epochs), with the same games, first by the one process,
then by the several, while the others sleep. `batch_size` is per process, so the several see that many times as many
steps in an optimiser step. Prints steps per second, the ratio, and what the sums over processes take of an update: the
copies into and out of one buffer, the message itself (of each sum the time of the process that came last), and the
waiting for a process that had more to do.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import tyro

from movelist.core.settings import PlaySettings, UpdateSettings
from movelist.games.catalog import make_game
from movelist.games.game import action_encoder, state_size
from movelist.learn.device import set_up
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World, join
from movelist.play.policy import NetPolicy
from movelist.play.selfplay import SelfPlay


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare several processes of one thread with one process of several threads."""

    game: str = "dou_dizhu"
    """The game."""

    hidden_dim: int = 512
    """Width of the network."""

    num_games: int = 256
    """Games for an update, over all processes."""

    batch_size: int = 512
    """Steps of a process in an optimiser step."""

    epochs: int = 4
    """Passes over an update's games."""

    num_processes: int = 2
    """Processes, and threads of the one."""

    repetitions: int = 10
    """Updates of each kind that count."""


@dataclass(frozen=True)
class Timing:
    """One process's part of an update: steps, and for each optimiser step the seconds of copies and sum, and of the
    sum alone."""

    steps: int
    whole_M: list[float]
    message_M: list[float]


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The function, noting how long each call takes."""

    def run(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - started)
        return result

    return run


def work(pipe: Connection, options: Options, num_threads: int, environment: dict[str, str]) -> None:
    """A process: an update each time that it is asked for one, until the pipe says None."""
    os.environ.update(environment)
    whole_M: list[float] = []
    message_M: list[float] = []
    World.sum_gradients = timed(World.sum_gradients, whole_M)  # type: ignore[method-assign]
    World.all_reduce = timed(World.all_reduce, message_M)  # type: ignore[method-assign]
    with join("cpu") as world:
        set_up(world.device, num_threads)
        torch.manual_seed(0)
        game = make_game(options.game)
        encoder = action_encoder(game)
        num_actions = int(getattr(game, "num_actions", 0)) if encoder == "table" else 0
        net = PolicyValueNet(
            ModelShape(
                state_size=state_size(game),
                hidden_dim=options.hidden_dim,
                action_encoder=encoder,
                num_actions=num_actions,
            )
        )
        settings = UpdateSettings(batch_size=options.batch_size, epochs_per_update=options.epochs)
        learner, source = Learner(net, settings, world), SelfPlay(game, PlaySettings(), share=world.share)
        while pipe.recv() is not None:
            episodes = source.collect(NetPolicy(net), options.num_games)
            learner.update(learner.prepare(episodes))
            pipe.send(Timing(episodes.num_steps, list(whole_M), list(message_M)))
            whole_M.clear()
            message_M.clear()


class Team:
    """Processes that make an update together."""

    def __init__(self, options: Options, size: int, num_threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        port = free_port()
        for rank in range(size):
            ours, theirs = context.Pipe()
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            environment = {name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
            context.Process(target=work, args=(theirs, options, num_threads, environment), daemon=True).start()
            theirs.close()  # so that a process that dies is noticed
            self.pipes.append(ours)

    def update(self) -> tuple[float, list[Timing]]:
        """Seconds by the clock, and what each process did."""
        started = time.perf_counter()
        for pipe in self.pipes:
            pipe.send("update")
        timings = [pipe.recv() for pipe in self.pipes]
        return time.perf_counter() - started, timings

    def close(self) -> None:
        """Let the processes end."""
        for pipe in self.pipes:
            pipe.send(None)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main(options: Options) -> None:
    """Measure and print."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
    teams = {"one": Team(options, 1, options.num_processes), "several": Team(options, options.num_processes, 1)}
    for team in teams.values():
        team.update()  # warm
    rates: dict[str, list[float]] = {name: [] for name in teams}
    shares: dict[str, list[float]] = {"copies": [], "message": [], "waiting": []}
    for _ in range(options.repetitions):
        for name, team in teams.items():
            seconds, timings = team.update()
            rates[name].append(sum(timing.steps for timing in timings) / seconds)
        whole_RM = np.array([timing.whole_M for timing in timings])
        message_RM = np.array([timing.message_M for timing in timings])
        message = message_RM.min(axis=0).sum()
        shares["copies"].append((whole_RM - message_RM).sum(axis=1).mean() / seconds)
        shares["message"].append(message / seconds)
        shares["waiting"].append((message_RM.sum(axis=1).mean() - message) / seconds)
    for team in teams.values():
        team.close()
    one, several = (statistics.median(rates[name]) for name in teams)
    ratios = [b / a for a, b in zip(rates["one"], rates["several"], strict=True)]
    size = options.num_processes
    print(f"{options.game}, width {options.hidden_dim}, {options.num_games} games, batch {options.batch_size}")
    print(f"one process, {size} threads: {one:,.0f} steps/s; {size} processes, 1 thread each: {several:,.0f} steps/s")
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"ratio, median of {len(ratios)} pairs: {statistics.median(ratios):.2f} ({span})")
    parts = ", ".join(f"{name} {statistics.median(share):.1%}" for name, share in shares.items())
    print(f"of an update of {size} processes, sums over processes: {parts}")


if __name__ == "__main__":
    main(tyro.cli(Options))
