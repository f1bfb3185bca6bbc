"""How fast, and how strong after equal seconds, beside what others have? Dou dizhu, one run, one trainer at a time.

    python benchmarks/peers.py [--seconds 60] [--threads 1] [--trainers maskable_ppo openspiel_ppo douzero]

Install the peers with: pip install -c constraints.txt --group baselines (pip 25.1 or newer, in this repository).
One that needs another torch or numpy gets a Python of its own: --maskable_python PATH, --openspiel_python PATH,
--douzero_python PATH. Such a one also needs numpy, psutil and open_spiel.

sb3-contrib's MaskablePPO and OpenSpiel's PyTorch PPO play and learn the same game, OpenSpiel's dou_dizhu, with the same
hidden width and number of epochs, one shared policy on all three seats, every return credited to its own seat; see
benchmarks/peer_tables.py for how. DouZero's trainer plays its own dou dizhu, without bidding, by another method, so
only its turns a second are compared. movelist trains before and after the peers, with its defaults, and its rates are
those of both trainings together; the first one plays the matches.

Every trainer runs in a process of its own with the same number of threads, and stops at the end of the update in which
the seconds are over; a slow one so gets some more seconds. What is counted:

games            finished ones, and half of those under way at the end
turns            of all players, forced ones too; DouZero's are what its two actors played from the first turn on
cores            processor seconds over seconds. On a machine that others use too, each trainer gets another share of
                 it, and two threads may wait for each other for most of the time: then use --by_processor and
                 --threads 1, and compare `a core-second`
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import torch
import tyro
from peer_training import action_numbers
from rich.console import Console
from rich.table import Table

import movelist
from movelist.core import ragged
from movelist.core.ragged import Segments
from movelist.games.catalog import make_game
from movelist.play.arena import match
from movelist.play.policy import Policy, RandomPolicy, Turns, gumbel

ROOT = Path(__file__).resolve().parents[1]
INSTALL = "pip install -c constraints.txt --group baselines (pip 25.1 or newer, in the repository's folder)"
Peer = Literal["maskable_ppo", "openspiel_ppo", "douzero"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train each for the same time, compare speed and strength."""

    trainers: tuple[Peer, ...] = ("maskable_ppo", "openspiel_ppo", "douzero")
    """Whom to compare with."""

    seconds: float = 60.0
    """Of each training."""

    by_processor: bool = False
    """Count the seconds by the processor's time that a training got, which is fair on a machine that others use too.
    DouZero's are always seconds of the clock."""

    threads: int = 1
    """Threads of arithmetic in each process."""

    hidden_dim: int = 512
    """Width of the hidden layers."""

    epochs: int = 4
    """Passes over each rollout."""

    maskable_batch_size: int = 64
    """Steps in one minibatch of MaskablePPO; 64 is its default."""

    num_games: int = 999
    """Of each match."""

    seed: int = 0
    """Of everything random."""

    maskable_python: str = sys.executable
    """The Python that has sb3-contrib."""

    openspiel_python: str = sys.executable
    """The Python that has open_spiel."""

    douzero_python: str = sys.executable
    """The Python that has douzero and GitPython."""

    json: Path | None = None
    """Write the figures there too."""


class PeerPolicy:
    """A peer's trained actor as movelist's arena wants it, without the peer's library.

    Args:
        path: Weights and biases of its linear layers, with a tanh between them.
        number_of_id: Each action id's row in the last layer.
        greedy: Always the likeliest action instead of drawing by probability.
    """

    def __init__(self, path: Path, number_of_id: dict[int, int], *, greedy: bool = True) -> None:
        with np.load(path) as arrays:
            weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        *self.hidden, self.last = [(weights[f"weight{n}"], weights[f"bias{n}"]) for n in range(len(weights) // 2)]
        self.number_of_id, self.greedy = number_of_id, greedy

    def choose(self, turns: Turns) -> tuple[Any, Any]:
        """See `movelist.play.policy.Policy`; only the legal actions' logits are computed."""
        hidden_BH = torch.from_numpy(turns.state_BS)
        for weight, bias in self.hidden:
            hidden_BH = torch.tanh(torch.nn.functional.linear(hidden_BH, weight, bias))
        segments = Segments.from_counts(turns.count_B)
        number_A = torch.tensor([self.number_of_id[action] for action in turns.action_id_A.tolist()])
        weight, bias = self.last
        logit_A = (hidden_BH[segments.step_A] * weight[number_A]).sum(1) + bias[number_A]
        log_prob_A = ragged.log_softmax(logit_A, segments)
        noise_A = 0.0 if self.greedy else torch.from_numpy(gumbel(turns))
        index_B = ragged.argmax(log_prob_A + noise_A, segments)
        return index_B.numpy(), log_prob_A[segments.offsets[:-1] + index_B].numpy()


def train(name: str, options: Options, folder: Path) -> dict[str, Any]:
    """Run one training in its own process.

    Returns:
        Its figures; {"missing": why} if something is not installed; {"failed": last words} if it ended without figures.
    """
    folder.mkdir()
    order = {"folder": str(folder), "seconds": options.seconds, "hidden_dim": options.hidden_dim, "seed": options.seed}
    order |= {"epochs": options.epochs, "batch_size": options.maskable_batch_size, "by_processor": options.by_processor}
    pythons = {"maskable_ppo": options.maskable_python, "openspiel_ppo": options.openspiel_python}
    python = (pythons | {"douzero": options.douzero_python}).get(name, sys.executable)
    number = str(options.threads)
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "PYTHONPATH": path}
    command = [python, str(ROOT / "benchmarks" / "peer_training.py"), name, json.dumps(order)]
    load = psutil.getloadavg()[0]
    said = folder / "said.txt"
    with said.open("w", encoding="utf-8") as file:
        subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    try:
        figures: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"failed": said.read_text(encoding="utf-8", errors="replace").strip()[-2000:]}
    return figures | {"load_before": load}


def add_rates(figures: dict[str, Any]) -> dict[str, Any]:
    """Put a second's and a core-second's worth beside the counts."""
    core_seconds = figures["seconds"] * figures["cores"]
    for name in {"games", "turns", "decisions"} & figures.keys():
        figures[f"{name}_per_second"] = figures[name] / figures["seconds"]
        figures[f"{name}_per_core_second"] = figures[name] / core_seconds
    return figures


def together(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two trainings of movelist as one."""
    summed = {name: first[name] + second[name] for name in ("seconds", "games", "turns", "decisions", "updates")}
    core_seconds = sum(one["seconds"] * one["cores"] for one in (first, second))
    return first | summed | {"cores": core_seconds / summed["seconds"]}


def measure(options: Options, folder: Path) -> dict[str, dict[str, Any]]:
    """All trainings one after another, movelist first and last; figures by trainer, without peers that failed.

    Raises:
        SystemExit: movelist's own training failed.
    """
    order = ["movelist", *options.trainers, "movelist again"]
    figures = {}
    for number, name in enumerate(order):
        one = train(name.split()[0], options, folder / str(number))
        if "missing" in one:
            print(f"{name} is left out, since something is missing ({one['missing']}); install it with: {INSTALL}")
            continue
        if "failed" in one:
            print(f"{name} is left out, since its training failed. Its last words:\n{one['failed']}", flush=True)
            if name.startswith("movelist"):
                raise SystemExit(1)
            continue
        print(f"{name}: {one['seconds']:.0f} s, load average before it {one['load_before']:.1f}", flush=True)
        figures[name] = one
    own = together(figures.pop("movelist"), figures.pop("movelist again"))
    return {"movelist": add_rates(own), **{name: add_rates(one) for name, one in figures.items()}}


def play_matches(figures: dict[str, dict[str, Any]], options: Options) -> dict[str, str]:
    """Everyone against random players, and movelist against each peer; greedy."""
    game, number_of_id = make_game("dou_dizhu"), action_numbers("dou_dizhu")
    own = movelist.load(figures["movelist"]["checkpoint"], greedy=True)
    players: dict[str, Policy] = {
        name: PeerPolicy(Path(one["actor"]), number_of_id) for name, one in figures.items() if "actor" in one
    }
    pairs: dict[str, tuple[Policy, Policy]] = {"movelist against random": (own, RandomPolicy())}
    for name, player in players.items():
        pairs[f"{name} against random"] = player, RandomPolicy()
        pairs[f"movelist against {name}"] = own, player
        pairs[f"{name} against movelist"] = player, own
    results = {}
    for title, (policy, opponent) in pairs.items():
        result = match(policy, opponent, game, num_games=options.num_games, seed=options.seed)
        seats = ", ".join(f"{seat.win_rate:.2f}" for seat in result.seats)
        results[title] = f"{result}; seats {seats}"
    return results


def show(figures: dict[str, dict[str, Any]], console: Console) -> None:
    """The table; a ratio is movelist's rate over the peer's, by seconds and by core-seconds."""
    own = figures["movelist"]
    names = ["seconds", "cores", "updates", "games", "games/s", "turns/s", "ratio games/s", "ratio turns/s"]
    table = Table("trainer", *names, "games a core-second", "turns a core-second", box=None)
    for name, one in figures.items():
        cells = [f"{one['seconds']:.0f}", f"{one['cores']:.2f}", str(one["updates"])]
        cells += [_number(one.get(key)) for key in ("games", "games_per_second", "turns_per_second")]
        cells += [_ratio(own, one, "games"), _ratio(own, one, "turns")]
        cells += [_number(one.get(f"{kind}_per_core_second")) for kind in ("games", "turns")]
        table.add_row(name, *cells)
    console.print(table)
    console.print(f"movelist's turns with a choice: {own['decisions_per_second']:,.0f} a second")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _ratio(own: dict[str, Any], one: dict[str, Any], kind: str) -> str:
    if f"{kind}_per_second" not in one:
        return ""
    by = [own[key] / one[key] for key in (f"{kind}_per_second", f"{kind}_per_core_second")]
    return f"{by[0]:,.1f} ({by[1]:,.1f} by core-seconds)"


def main() -> None:
    """Read the options, train, compare, print."""
    options = tyro.cli(Options)
    console = Console(width=max(180, Console().width), soft_wrap=True)
    print(
        f"movelist {movelist.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{psutil.cpu_count()} cores, {options.threads} threads; "
        f"{options.seconds:g} {'processor ' * options.by_processor}seconds each, "
        f"{options.hidden_dim} wide, {options.epochs} epochs",
        flush=True,
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        figures = measure(options, Path(folder))
        for name, one in figures.items():
            print(name, " ".join(f"{package} {version}" for package, version in one["versions"].items()))
        show(figures, console)
        matches = play_matches(figures, options) if options.num_games else {}
    for title, result in matches.items():
        print(f"{title}: {result}")
    if options.json:
        everything = {"trainings": figures, "matches": matches}
        options.json.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
