"""Break a training in every way we know, for as long as you like, and print a table of what held.

    python scripts/soak.py                                       the long form: 200 kills, an hour of self-play
    python scripts/soak.py --kills 20 --minutes 2                a short form
    python scripts/soak.py --only kills flips                    some rows

    kills     kill -9 of the process group at random moments of a training that saves after every update. After each
              kill all checkpoints load and the steps stand once in metrics.jsonl; at the end weights, metrics and
              TensorBoard are those of a training that was never disturbed
    signals   SIGTERM at random moments: exit code 0, and the last update is saved
    flips     one flipped bit, at places all over a checkpoint file: each is seen, and the checkpoint before is taken
    disk      a disk that fills up and gets space again (a small tmpfs; needs the right to mount one): the training goes
              on, saves when it can, and ends with the weights of an undisturbed one
    memory    self-play for --minutes: how much the resident memory grows over the second half
    commands  further tests, each a row: the faults of several processes

The memory row runs beside the others. Ctrl-C ends the row that runs; its line says how far it came. Needs fork and
OpenSpiel. Exit code 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console

from movelist.core.errors import CheckpointError
from movelist.core.settings import TrainSettings
from movelist.run import checkpoint
from movelist.run.folder import numbered
from movelist.run.train import train

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {"faults of one rank among two": ["-m", "pytest", "-q", "tests/run/test_ranks.py"]}
SMALL = {"game": "leduc_poker", "hidden_dim": 32, "batch_size": 64, "update_frequency": 32, "epochs_per_update": 2}
SMALL |= {"save_every": 1, "eval_every": 5, "eval_games": 8, "device": "cpu", "num_threads": 1}
CLOCK = {"time", "charts/SPS", "charts/seconds_left", "legal/actions_per_second"}
CLOCK |= {"perf/rollout_share", "perf/update_share", "perf/wait_share", "perf/cpu_use", "perf/process_memory"}
CLOCK |= {"perf/gpu_use", "perf/gpu_memory", "perf/gpu_allocated", "perf/gpu_reserved"}
LONGEST_DELAY = 1.5  # seconds before a kill
ENDLESS = 10**9
SAMPLE_SECONDS = 2.0


@dataclass
class Row:
    """A line of the table."""

    name: str
    done: str
    result: str
    good: bool


class Broken(Exception):
    """A promise that did not hold; says which."""


# --- Trainings as children


def start(folder: Path, **flat: Any) -> int:
    """A training in a process group of its own, forked from this process, which has imported everything; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        with (folder.parent / f"{folder.name}.log").open("a", encoding="utf-8") as log:
            run(folder, Console(file=log, width=200), **flat)
        code = 0
    except BaseException as error:  # what ends a forked child must not go on as a second soak
        with (folder.parent / f"{folder.name}.log").open("a", encoding="utf-8") as log:
            print(f"ended by {type(error).__name__}: {error}", file=log)
    finally:
        os._exit(code)


def greetings(folder: Path) -> int:
    """How many trainings of this folder have come to their first update."""
    log = folder.parent / f"{folder.name}.log"
    return log.read_text(encoding="utf-8").count("Settings: ") if log.exists() else 0


def wait_for_greeting(folder: Path, before: int) -> None:
    """Until one more has."""
    end = time.monotonic() + 120
    while greetings(folder) == before:
        if time.monotonic() > end:
            raise Broken(f"a training does not start; see {folder.name}.log")
        time.sleep(0.01)


def run(folder: Path, console: Console, **flat: Any) -> None:
    """Train in this process; the same command starts and goes on."""
    train(TrainSettings.from_flat({**SMALL, "out": str(folder), "total_steps": ENDLESS, **flat}), console=console)


def kill(child: int) -> None:
    """kill -9 of the child's process group, and wait for its end."""
    while os.getpgid(child) != child:  # it has not come to setsid yet
        time.sleep(0.001)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def check(folder: Path) -> int:
    """All checkpoints load and each step stands once in the metrics, up to the newest; its update."""
    files = numbered(folder / "checkpoints")
    for file in files:
        checkpoint.load_newest(file, say=lambda text: None)
    if not files:
        return 0
    state = checkpoint.load_newest(folder, say=_refuse)[1]
    update, step = state["learner"]["num_updates"], state["counters"]["steps"]
    rows = [row for row in rows_of(folder) if row["step"] <= step]
    if [row["charts/updates"] for row in rows] != list(range(1, update + 1)):
        raise Broken(f"the metrics up to update {update} have {len(rows)} lines")
    return int(update)


def _refuse(text: str) -> None:
    raise Broken(text)


def compare(folder: Path, other: Path) -> None:
    """Two finished runs are the same, but for the clock."""
    one, two = (checkpoint.load(path) for path in (folder, other))
    for part in ("learner", "source"):
        if not _equal(one[part], two[part]):
            raise Broken(f"the {part} is not that of an undisturbed run")
    timeless = [[{k: v for k, v in row.items() if k not in CLOCK} for row in rows_of(path)] for path in (folder, other)]
    if timeless[0] != timeless[1]:
        raise Broken("the metrics are not those of an undisturbed run")
    if tensorboard_steps(folder) != [row["step"] for row in rows_of(folder)]:
        raise Broken("TensorBoard does not have each step once")


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return bool(one == two)


def tensorboard_steps(folder: Path) -> list[int]:
    """The steps that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("losses/policy_loss")]


# --- The rows


def kills(folder: Path, count: int, seed: int) -> Iterator[str]:
    """See the top of this file; yields how far it came."""
    choose, run_folder, update = random.Random(seed), folder / "killed", 0
    for number in range(1, count + 1):
        begun = greetings(run_folder)
        child = start(run_folder)
        if number % 5:  # the others fall into the start
            wait_for_greeting(run_folder, begun)
        time.sleep(choose.uniform(0.0, LONGEST_DELAY))
        kill(child)
        before, update = update, check(run_folder)
        if update < before:
            raise Broken(f"after kill {number} the run is at update {update}; it was at {before}")
        yield f"{number:,} of {count:,} kills, {update:,} updates"
    done = checkpoint.load(run_folder)["counters"]["steps"] if update else 0
    for path in (run_folder, folder / "undisturbed"):
        run(path, Console(quiet=True), total_steps=done + 1, eval_games=SMALL["eval_games"])
    compare(run_folder, folder / "undisturbed")
    yield f"{count:,} kills, {update:,} updates, equal to an undisturbed run"


def signals(folder: Path, count: int, seed: int) -> Iterator[str]:
    choose, run_folder = random.Random(seed), folder / "stopped"
    for number in range(1, count + 1):
        begun = greetings(run_folder)
        child = start(run_folder, save_every=10**6)  # so that only the stop saves
        wait_for_greeting(run_folder, begun)  # before that, SIGTERM ends it as any process
        time.sleep(choose.uniform(0.0, LONGEST_DELAY / 2))
        os.kill(child, signal.SIGTERM)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise Broken(f"exit code {code} after SIGTERM {number}")
        update = check(run_folder)
        if len(rows_of(run_folder)) != update:
            raise Broken(f"after SIGTERM {number} the last update is not saved")
        yield f"{number:,} of {count:,} SIGTERM, {update:,} updates"


def flips(folder: Path, count: int, seed: int) -> Iterator[str]:
    choose, run_folder = random.Random(seed), folder / "flipped"
    child = start(run_folder, total_steps=600)
    os.waitpid(child, 0)
    *_, before, newest = numbered(run_folder / "checkpoints")
    whole = newest.read_bytes()
    places = np.linspace(0, len(whole) - 1, count).astype(int).tolist()
    places += range(len(whole) - 1_000, len(whole))  # the directory of the zip file, its end and the seal
    for number, place in enumerate(places, 1):
        content = bytearray(whole)
        content[place] ^= 1 << choose.randrange(8)
        newest.write_bytes(content)
        try:
            checkpoint.load(newest)
        except CheckpointError:
            if number % 100 == 0:
                yield f"{number:,} of {len(places):,} bits in {len(whole):,} bytes"
            continue
        raise Broken(f"a flipped bit in byte {place:,} of {len(whole):,} was not seen")
    said: list[str] = []
    file, _ = checkpoint.load_newest(run_folder, say=said.append)
    if file != before or len(said) != 1:
        raise Broken(f"the damaged one was not replaced by the one before: {said}")
    yield f"{len(places):,} bits in {len(whole):,} bytes"


def disk(folder: Path, count: int, seed: int) -> Iterator[str]:
    place = folder / "small disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        raise Skipped("no right to mount a tmpfs")
    try:
        yield from _fill(folder, place, count)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _fill(folder: Path, place: Path, count: int) -> Iterator[str]:
    run_folder, filler, log = place / "run", place / "filler", place / "run.log"
    for number in range(1, count + 1):
        begun = greetings(run_folder)
        child = start(run_folder)
        wait_for_greeting(run_folder, begun)
        time.sleep(1.0)
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 4096)
                file.flush()
        time.sleep(1.5)
        filler.unlink()
        time.sleep(1.0)
        os.kill(child, signal.SIGTERM)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise Broken(f"exit code {code}: {log.read_text(encoding='utf-8').splitlines()[-1:]}")
        update = check(run_folder)
        yield f"full {number:,} times of {count:,}, {update:,} updates"
    done = checkpoint.load(run_folder)["counters"]["steps"]
    with (folder / "roomy.log").open("a", encoding="utf-8") as roomy:
        run(folder / "roomy", Console(file=roomy), total_steps=done)
    compare(run_folder, folder / "roomy")
    warned = log.read_text(encoding="utf-8").count("Warning: ")
    yield f"full {count:,} times, {warned:,} warnings, {update:,} updates, equal to an undisturbed run"


class Skipped(Exception):
    """A row that cannot run here; says why."""


ROWS: dict[str, tuple[Callable[[Path, int, int], Iterator[str]], Callable[[int], int]]] = {
    "kills": (kills, lambda count: count),
    "signals": (signals, lambda count: max(1, count // 10)),
    "flips": (flips, lambda count: 20 * count),
    "disk": (disk, lambda count: max(1, count // 40)),
}


def say(text: str) -> None:
    """How far it is, in place."""
    print(f"  {text:<70}", end="\r", file=sys.stderr, flush=True)


def row(name: str, steps: Iterator[str], tick: Callable[[], None]) -> Row:
    """Go through a row's steps, calling `tick` at each; a fault, a missing right or Ctrl-C ends it."""
    done = "nothing"
    try:
        for done in steps:
            tick()
            say(f"{name}: {done}")
    except Skipped as reason:
        return Row(name, "not run", str(reason), True)
    except KeyboardInterrupt:
        return Row(name, done, "held as far as it came; ended by Ctrl-C", True)
    except Exception as error:
        return Row(name, done, f"FAILED: {type(error).__name__}: {error}", False)
    return Row(name, done, "held", True)


# --- Memory


class Memory:
    """Self-play in a process of its own, and its resident memory over time.

    Args:
        folder: Of the run.
        minutes: How long.
    """

    def __init__(self, folder: Path, minutes: float) -> None:
        self.minutes, self.log = minutes, (folder / "memory.log").open("w", encoding="utf-8")
        command = [sys.executable, "-m", "movelist", "train", "--out", str(folder / "memory"), "--hidden_dim", "64"]
        command += ["--total_steps", "None", "--max_seconds", str(ENDLESS), "--eval_games", "200", "--num_threads", "1"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=ROOT, start_new_session=True)
        self.started, self.megabytes, self.folder = time.monotonic(), [], folder / "memory"

    def wait(self) -> Row:
        """Sample until the time is over; then stop the training."""
        done = "ended by Ctrl-C"
        try:
            while (elapsed := time.monotonic() - self.started) < 60 * self.minutes:
                self.sample()
                if self.process.poll() is not None:
                    return Row("memory", "", f"FAILED: exit code {self.process.returncode}; see memory.log", False)
                say(f"memory: {elapsed / 60:.1f} of {self.minutes:g} minutes")
                time.sleep(SAMPLE_SECONDS)
            done = "done"
        except KeyboardInterrupt:
            pass
        minutes = (time.monotonic() - self.started) / 60
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        self.log.close()
        return self._row(minutes, done, code)

    def sample(self) -> None:
        """Note the resident memory, if the training runs."""
        if self.process.poll() is None:
            self.megabytes.append((time.monotonic(), psutil.Process(self.process.pid).memory_info().rss / 2**20))

    def _row(self, minutes: float, done: str, code: int) -> Row:
        second_half = [(at, size) for at, size in self.megabytes if at >= self.started + 30 * minutes]
        text = f"{minutes:.0f} minutes of self-play ({done}), {check(self.folder):,} updates"
        if len(second_half) < 10:
            return Row("memory", text, "too short to say anything", code == 0)
        at, size = np.array(second_half).T
        slope = float(np.polyfit(at, size, 1)[0]) * (at[-1] - at[0])
        growth = slope / size.mean()
        good = bool(growth < 0.01) and code == 0
        result = f"{growth:+.2%} over the second half (fitted line), {size.min():,.0f} to {size.max():,.0f} MB"
        return Row("memory", text, f"{'held' if good else 'FAILED'}: {result}; exit code {code}", good)


def further(name: str, command: list[str]) -> Row:
    """A command of COMMANDS as a row."""
    if not Path(ROOT / command[-1]).exists():
        return Row(name, "not run", f"{command[-1]} is not there", True)
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    last = ended.stdout.strip().splitlines()[-1:]
    return Row(name, f"`{' '.join(command[1:])}`", " ".join(last) or ended.stderr[-200:], ended.returncode == 0)


def table(rows: list[Row], seconds: float) -> str:
    """Markdown."""
    lines = ["| what | how far | result |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.done} | {row.result} |" for row in rows]
    where = f"torch {torch.__version__}, {psutil.cpu_count()} cores, {sys.platform}"
    return "\n".join([*lines, "", f"{seconds / 60:.0f} minutes in all; {where}."])


def main(argv: list[str] | None = None) -> int:
    """Run the rows; 0 if everything held, 1 if not, 2 where it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills; the other rows follow in proportion")
    parser.add_argument("--minutes", type=float, default=60.0, help="of self-play for the memory row")
    names = [*ROWS, "memory", "commands"]
    parser.add_argument("--only", nargs="+", default=names, choices=names, help="only these rows")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places")
    parser.add_argument("--keep", type=Path, help="a new folder for all runs, which stays; else they are deleted")
    options = parser.parse_args(argv)
    if not hasattr(os, "fork"):
        print("The soak needs fork: Linux or macOS.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="movelist-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), []
    memory = Memory(folder, options.minutes) if "memory" in options.only else None
    try:
        for name in [name for name in ROWS if name in options.only]:
            steps, count = ROWS[name]
            tick = memory.sample if memory else lambda: None
            rows.append(row(name, steps(folder, count(options.kills), options.seed), tick))
        if "commands" in options.only:
            rows += [further(name, command) for name, command in COMMANDS.items()]
        rows += [memory.wait()] if memory else []
    finally:
        if memory and memory.process.poll() is None:
            memory.process.kill()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(rows, time.monotonic() - began))
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
