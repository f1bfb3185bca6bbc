"""What do worker processes bring? Plays the same games with --rollout_workers 0, 1, 2, ... and compares.

    python benchmarks/workers.py [--repetitions 3] [--workers 0 1 2] [--json FILE]

Prints steps per second of self-play (no training) with a network of random weights: dou dizhu as it is, and a game
made slow on purpose, which burns processor time in each turn, or sleeps as one does that waits for an engine.
All numbers of workers take turns within one run, since a machine is not equally fast all the time. It also says whether
the games were the same, and what it costs to start the workers and how much memory each takes.

The workers import this file, so what needs torch is imported in functions.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import tyro

from movelist.core.settings import PlaySettings
from movelist.games.catalog import make_game
from movelist.games.game import Game, State, action_encoder, game_name, state_size

if TYPE_CHECKING:
    from movelist.learn.model import PolicyValueNet
    from movelist.play.selfplay import SelfPlay


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare numbers of workers."""

    game: str = "dou_dizhu"
    """The game that is played as it is."""

    hidden_dims: tuple[int, ...] = (512, 128)
    """Widths of the network."""

    slow_game: str = "leduc_poker"
    """The game that is made slow."""

    slow_hidden_dim: int = 128
    """Width of the network for it."""

    burn_us: float = 500.0
    """Processor time burnt in each turn of the slow game, in microseconds."""

    sleep_us: float = 1000.0
    """Or time slept, in microseconds."""

    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of workers."""

    sleep_workers: tuple[int, ...] = (0, 1, 2, 4, 8)
    """The same for the game that sleeps, which needs no core meanwhile."""

    num_games: int = 256
    """Games at once, and in each repetition."""

    repetitions: int = 3
    """How often each number has its turn."""

    num_threads: int | None = None
    """Of the network. None leaves torch's choice."""

    json: Path | None = None
    """Also write the figures here."""


class Slow:
    """A game whose every turn takes longer than it needs.

    Args:
        game: A name.
        burn_us: Processor time in each `apply`, in microseconds.
        sleep_us: Time slept in each.
    """

    def __init__(self, game: str, *, burn_us: float = 0.0, sleep_us: float = 0.0) -> None:
        self.game = make_game(game)
        self.burn_us, self.sleep_us = burn_us, sleep_us
        self.num_players, self.action_encoder = self.game.num_players, action_encoder(self.game)
        self.num_actions = getattr(self.game, "num_actions", 0)
        self.name = f"{game_name(self.game)} + {burn_us:g} us burnt, {sleep_us:g} us slept a turn"

    def new_state(self, seed: int) -> SlowState:
        return SlowState(self, self.game.new_state(seed))


class SlowState:
    def __init__(self, game: Slow, state: State) -> None:
        self.game, self.state = game, state
        self.current_player, self.legal_actions = state.current_player, state.legal_actions
        self.observe, self.returns = state.observe, state.returns

    def apply(self, index: int) -> None:
        end = time.thread_time() + self.game.burn_us * 1e-6
        while time.thread_time() < end:
            pass
        if self.game.sleep_us:
            time.sleep(self.game.sleep_us * 1e-6)
        self.state.apply(index)


@dataclass(frozen=True)
class Row:
    """What was measured for one number of workers."""

    game: str
    hidden_dim: int
    workers: int
    steps_per_second: list[float]
    first_seconds: float  # of the first games, with the start of the processes
    worker_mb: float  # memory that each worker has to itself
    same_games: bool

    @property
    def median(self) -> float:
        return statistics.median(self.steps_per_second)


def make_net(game: Game, hidden_dim: int) -> PolicyValueNet:
    import torch

    from movelist.learn.model import ModelShape, PolicyValueNet

    torch.manual_seed(0)
    encoder = action_encoder(game)
    num_actions = int(getattr(game, "num_actions", 0)) if encoder == "table" else 0
    return PolicyValueNet(
        ModelShape(state_size=state_size(game), hidden_dim=hidden_dim, action_encoder=encoder, num_actions=num_actions)
    )


def compare(game: Game, hidden_dim: int, numbers: tuple[int, ...], options: Options) -> list[Row]:
    """Let each number of workers play in turn."""
    from movelist.play.policy import NetPolicy
    from movelist.play.selfplay import SelfPlay

    net = make_net(game, hidden_dim)
    sources = {
        number: SelfPlay(game, PlaySettings(num_games=options.num_games, rollout_workers=number)) for number in numbers
    }
    try:
        chosen: dict[int, Any] = {}
        first: dict[int, float] = {}
        for number, source in sources.items():
            started = time.perf_counter()
            episodes = source.collect(NetPolicy(net), options.num_games)
            first[number] = time.perf_counter() - started
            chosen[number] = np.concatenate([episodes.chosen_N, episodes.action_id_A])
        rates: dict[int, list[float]] = {number: [] for number in numbers}
        for _ in range(options.repetitions):
            for number, source in sources.items():
                started = time.perf_counter()
                episodes = source.collect(NetPolicy(net), options.num_games)
                rates[number].append(episodes.num_steps / (time.perf_counter() - started))
        return [
            Row(
                game=game_name(game),
                hidden_dim=hidden_dim,
                workers=number,
                steps_per_second=rates[number],
                first_seconds=first[number],
                worker_mb=memory_of(source),
                same_games=np.array_equal(chosen[number], chosen[numbers[0]]),
            )
            for number, source in sources.items()
        ]
    finally:
        for source in sources.values():
            source.close()


def memory_of(source: SelfPlay) -> float:
    """Memory that each worker has to itself, in MB, averaged."""
    crew = source.workers.crew if source.workers else []
    return statistics.mean([psutil.Process(w.process.pid).memory_full_info().uss / 2**20 for w in crew] or [0.0])


def show(rows: list[Row]) -> None:
    print(f"\n{rows[0].game}, hidden {rows[0].hidden_dim}")
    print("| workers | steps/s | against the first | first games | memory of each | same games |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        spread = f"{row.median:,.0f} ({min(row.steps_per_second):,.0f} to {max(row.steps_per_second):,.0f})"
        ratio = f"{row.median / rows[0].median:.2f}x"
        memory = f"{row.worker_mb:.0f} MB" if row.workers else "-"
        same = "yes" if row.same_games else "NO"
        print(f"| {row.workers} | {spread} | {ratio} | {row.first_seconds:.1f} s | {memory} | {same} |", flush=True)


def main() -> None:
    import torch

    options = tyro.cli(Options, description=__doc__)
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    print(
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for the network, torch {torch.__version__}; "
        f"{options.num_games} games at once, {options.repetitions} repetitions."
    )
    rows: list[Row] = []
    game = make_game(options.game)
    parts = [(game, hidden_dim, options.workers) for hidden_dim in options.hidden_dims]
    parts.append((Slow(options.slow_game, burn_us=options.burn_us), options.slow_hidden_dim, options.workers))
    parts.append((Slow(options.slow_game, sleep_us=options.sleep_us), options.slow_hidden_dim, options.sleep_workers))
    for played, hidden_dim, numbers in parts:
        rows += (part := compare(played, hidden_dim, numbers, options))
        show(part)
    if options.json:
        figures = [asdict(row) for row in rows]
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
