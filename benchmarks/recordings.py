"""How fast recordings are read: both formats, the store, and plain json and pyarrow.json, in one run.

    python benchmarks/recordings.py [--episodes 1000] [--train]

Steps are turns as recorded, forced ones too, in every row. "rollout" means ready for training: checked, credited,
forced turns dropped. `--train` also trains from the store at the default network and says how
long it waited.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.json

from movelist.data import recordings
from movelist.data.store import Store


def fastest(work: Callable[[], object], repetitions: int = 3) -> float:
    """Seconds of the fastest of some runs."""
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def read(path: Path) -> None:
    """Read and check."""
    for _ in recordings.read(path):
        pass


def rollout(path: Path) -> None:
    """Read, check, credit, drop forced turns."""
    for columns in recordings.read(path):
        columns.episodes()


def plain_json(path: Path) -> None:
    """Python's json, nothing checked."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            json.loads(line)


def from_store(store: Store) -> None:
    """Rollouts of 256 episodes in random order."""
    order = np.random.default_rng(0).permutation(len(store))
    for first in range(0, len(order), 256):
        store.take(order[first : first + 256])


def movelist(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "movelist", *words], check=True, capture_output=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines, arrows, store_path = (Path(folder) / name for name in ("a.jsonl", "a.arrows", "store"))
        movelist("record", "--episodes", str(arguments.episodes), "--out", str(arrows))
        movelist("convert", str(arrows), "--out", str(lines))
        movelist("convert", str(arrows), "--out", str(store_path))
        bare = lines.with_name("bare.jsonl")  # pyarrow.json takes the header for a row of its own, so it gets none
        bare.write_bytes(b"".join(lines.open("rb").readlines()[1:]))
        steps = sum(columns.raw.num_steps for columns in recordings.read(arrows))
        store = Store(store_path)
        from_store(store)  # checksums are held the first time
        rows: list[tuple[str, Path, Callable[[], object]]] = [
            ("json, unchecked", bare, lambda: plain_json(bare)),
            ("pyarrow.json, unchecked", bare, lambda: pyarrow.json.read_json(
                bare, read_options=pyarrow.json.ReadOptions(block_size=1 << 26))),
            (".jsonl, checked", lines, lambda: read(lines)),
            (".arrows, checked", arrows, lambda: read(arrows)),
            (".jsonl to rollout", lines, lambda: rollout(lines)),
            (".arrows to rollout", arrows, lambda: rollout(arrows)),
            ("store to rollout", store_path, lambda: from_store(store)),
        ]  # fmt: skip
        print(f"{arguments.episodes:,} episodes of dou_dizhu, {steps:,} steps")
        for name, path, work in rows:
            seconds = fastest(work)
            files = path.iterdir() if path.is_dir() else [path]
            size = sum(file.stat().st_size for file in files)
            print(
                f"{name:<24} {steps / seconds:>12,.0f} steps/s {size / seconds / 1e6:>8,.0f} MB/s {size / 1e6:>8.1f} MB"
            )
        if arguments.train:
            run = Path(folder) / "run"
            movelist("train", "--data", str(store_path), "--learn_from", "all", "--eval_games", "0", "--out", str(run))
            metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            waited = sum(row["data/wait_seconds"] for row in metrics)
            trained = sum(row["perf/rollout_share"] for row in metrics) / len(metrics)
            seconds = metrics[-1]["time"] - metrics[0]["time"]
            print(f"training from the store: waited {waited:.3f} s; collecting took {trained:.2%} of an update's time, "
                  f"{seconds:.0f} s from the first to the last update")  # fmt: skip


if __name__ == "__main__":
    main()
