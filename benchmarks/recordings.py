"""How fast recordings are read, how long a training waits for them, and how much memory that takes.

    python benchmarks/recordings.py [--episodes 1000]               both formats, the store, plain json, pyarrow.json
    python benchmarks/recordings.py --train [--hidden_dim 512]      also train from each, and say how long it waited
    python benchmarks/recordings.py --gigabytes 2 [--seconds 60]    only memory: resident peaks of check, convert, train

Steps are turns as recorded, forced ones too, in every row. "rollout" means ready for training: checked, credited,
forced turns dropped. `--gigabytes` makes recordings of that size in the folder for temporary files (three times that
much disk) and trains for `--seconds` from each; it needs a Unix.
"""

import argparse
import json
import os
import shutil
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


def movelist(*words: object) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "movelist", *map(str, words)], check=True, capture_output=True)


def measure_reading(lines: Path, arrows: Path, store_path: Path) -> None:
    """Print the table of speeds."""
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
    print(f"{len(store):,} episodes of dou_dizhu, {steps:,} steps")
    for name, path, work in rows:
        seconds = fastest(work)
        size = size_of(path)
        print(f"{name:<24} {steps / seconds:>12,.0f} steps/s {size / seconds / 1e6:>8,.0f} MB/s {size / 1e6:>8.1f} MB")


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder's files."""
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


def measure_waiting(path: Path, folder: Path, hidden_dim: int) -> None:
    """Train once through a recording or a store, and print how long the updates waited for it.

    The first update waits for the reading to begin; from the second on, the thread reads while the network learns.
    """
    run = folder / f"run-{path.name}"
    size = ("--hidden_dim", hidden_dim)
    movelist("train", "--data", path, "--learn_from", "all", "--eval_games", 0, *size, "--out", run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = np.diff([0, *(row["step"] for row in rows)])
    seconds = steps / np.array([row["charts/SPS"] for row in rows])
    waited = np.array([row["data/wait_seconds"] for row in rows])
    text = f"train from {path.name:<10} {len(rows)} updates, waited {waited[0]:.3f} s for the first"
    if len(rows) > 1:
        share, speed = waited[1:].sum() / seconds[1:].sum(), steps[1:].sum() / seconds[1:].sum()
        text += f", then {share:.2%} of the time, at {speed:,.0f} steps/s"
    print(text, flush=True)


def peak_megabytes(*words: object) -> int:
    """Run a command to its end; the largest resident memory that it had."""
    process = subprocess.Popen(
        [sys.executable, "-m", "movelist", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    talk = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(talk.decode(errors="replace"))
    return usage.ru_maxrss // (1024 if sys.platform == "linux" else 1 << 20)


def measure_memory(folder: Path, gigabytes: float, seconds: float) -> None:
    """Print the peaks of check, convert and train on recordings of that size."""
    seed = folder / "seed.arrows"
    movelist("record", "--episodes", 1000, "--out", seed)
    for ending in ("jsonl", "arrows"):
        part, whole = folder / f"part.{ending}", folder / f"whole.{ending}"
        movelist("convert", seed, "--out", part)
        content = part.read_bytes()
        with whole.open("wb") as file:
            while file.tell() < gigabytes * 1e9:
                file.write(content)
        store, run = folder / f"store-{ending}", folder / f"run-{ending}"
        flags = ("--learn_from", "all", "--eval_games", 0, "--max_seconds", seconds, "--out")
        print(f".{ending}, {whole.stat().st_size / 1e9:.2f} GB: check {peak_megabytes('check', whole):,} MB", end="")
        print(f", convert {peak_megabytes('convert', whole, '--out', store):,} MB", end="", flush=True)
        print(f", train from it {peak_megabytes('train', '--data', whole, *flags, run):,} MB", end="", flush=True)
        peak = peak_megabytes("train", "--data", store, *flags, folder / f"run-store-{ending}")
        print(f", train from its store ({size_of(store) / 1e9:.2f} GB) {peak:,} MB")
        shutil.rmtree(store)
        whole.unlink()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--hidden_dim", type=int, default=512)
    parser.add_argument("--gigabytes", type=float)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.gigabytes:
            measure_memory(folder, arguments.gigabytes, arguments.seconds)
            return
        lines, arrows, store = (folder / name for name in ("a.jsonl", "a.arrows", "store"))
        movelist("record", "--episodes", arguments.episodes, "--out", arrows)
        movelist("convert", arrows, "--out", lines)
        movelist("convert", arrows, "--out", store)
        measure_reading(lines, arrows, store)
        if arguments.train:
            for path in (lines, arrows, store):
                measure_waiting(path, folder, arguments.hidden_dim)


if __name__ == "__main__":
    main()
