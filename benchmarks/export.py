"""How long one decision takes on one CPU thread: torch, onnxruntime, and the readers for engines.

    python benchmarks/export.py [--hidden_dim 512] [--state_size 901] [--rounds 100]

One state with 1, 30 or 300 legal actions (64-bit ids, encoded as bits), median of the rounds; the states' numbers are 0
or 1. All columns are of one run on one machine, so that they can be compared. "new ids" is the first meeting with each
id; torch's policy and the readers keep the action's half of the score, onnxruntime computes it anew each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy come

import numpy as np
import torch

from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.export import export_net
from movelist.play.exported import load_exported
from movelist.play.policy import NetPolicy, Turns
from movelist.play.policy_info import describe

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (1, 30, 300)


def main() -> None:
    """Export a fresh network and time every way of playing it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hidden_dim", type=int, default=512)
    parser.add_argument("--state_size", type=int, default=901)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net = PolicyValueNet(ModelShape(state_size=arguments.state_size, hidden_dim=arguments.hidden_dim))
    info = describe(net.shape, version="benchmark", game="benchmark", policy_version=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_net(net, info, folder / "policy.safetensors", "weights")
        rows = {"torch, `policy.act`": python_row(lambda: NetPolicy(net, greedy=True), arguments)}
        for profile in ("ort", "sentis15"):
            path = folder / f"{profile}.onnx"
            export_net(net, info, path, profile)  # type: ignore[arg-type]
            label = f"onnxruntime, `{profile}`"
            rows[label] = python_row(lambda path=path: load_exported(path), arguments)  # type: ignore[misc]
        rows |= engine_rows(folder, arguments.rounds)
    print(f"hidden {arguments.hidden_dim}, state {arguments.state_size}, one thread, microseconds, median of "
          f"{arguments.rounds}\n")  # fmt: skip
    heads = [f"{count} {kind}" for count in COUNTS for kind in ("new ids", "known ids")]
    print("| way | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads))
    for label, times in rows.items():
        print(f"| {label} | " + " | ".join(f"{value:,.0f}" for value in times) + " |")


def python_row(make: Callable[[], object], arguments: argparse.Namespace) -> list[float]:
    """Medians in microseconds, new and known ids for each count."""
    generator = np.random.default_rng(1)
    row = []
    for count in COUNTS:
        policy, seconds = make(), ([], [])
        for _ in range(arguments.rounds):
            state = generator.integers(0, 2, (1, arguments.state_size)).astype(np.float32)
            ids = generator.integers(-(2**63), 2**63 - 1, count)
            turns = Turns(state, np.array([count]), ids, np.zeros(1, np.int64), np.zeros(1, np.int64))
            for times in seconds:
                started = time.perf_counter()
                policy.choose(turns)  # type: ignore[attr-defined]
                times.append(time.perf_counter() - started)
        row += [statistics.median(times) * 1e6 for times in seconds]
    return row


def engine_rows(folder: Path, rounds: int) -> dict[str, list[float]]:
    """The C++ reader as compilers build it for a release; no row without a compiler."""
    if not shutil.which("g++"):
        return {}
    rows = {}
    for flags in (["-O3"], ["-O3", "-march=native"]):
        program = folder / "policy_check"
        source = ROOT / "tests" / "engines" / "policy_check.cpp"
        subprocess.run(["g++", "-std=c++17", *flags, "-o", program, source], check=True)
        rows[f"C++ reader, `{' '.join(flags)}`"] = timed([program], folder, rounds)
    if shutil.which("mcs") and shutil.which("mono"):
        program = folder / "PolicyCheck.exe"
        sources = [ROOT / "tests" / "engines" / "PolicyCheck.cs", ROOT / "examples" / "engines" / "MovelistPolicy.cs"]
        subprocess.run(["mcs", "-optimize+", f"-out:{program}", *sources], check=True)
        rows["C# reader, mono"] = timed(["mono", program], folder, rounds)
    return rows


def timed(command: Sequence[str | Path], folder: Path, rounds: int) -> list[float]:
    """What a check program says for each count."""
    row = []
    for count in COUNTS:
        done = subprocess.run(
            [*command, "time", folder / "policy.safetensors", str(count), str(rounds)],
            capture_output=True, encoding="utf-8", check=True,
        )  # fmt: skip
        row += [float(word) for word in done.stdout.split()]
    return row


if __name__ == "__main__":
    main()
