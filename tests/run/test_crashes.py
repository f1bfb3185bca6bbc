"""kill -9 at random moments of saves: what is there is whole, and each step stands in the metrics once.

The short form; `make soak` kills whole trainings 200 times.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from movelist.run import checkpoint
from movelist.run.folder import named_file
from saving_child import number_of, refuse

KILLS = 20
SERVER = Path(__file__).resolve().parents[1] / "saving_child.py"


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="makes many processes quickly by fork")


class Server:
    """Starts children that save."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def start(self, dies_at=0):
        print(dies_at, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def wait(self):
        assert self.process.stdout.readline() == "dead\n"


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    with made.process:
        yield made
        made.process.stdin.close()


def test_killed_at_random_moments_of_saves(tmp_path, server):
    choose, before, save_seconds = random.Random(0), 0, 0.0
    for kill in range(KILLS):
        child = server.start()
        saved = wait_for_a_save(tmp_path, before)
        if not kill:  # a save takes another time on each machine
            started = time.monotonic()
            wait_for_a_save(tmp_path, saved)
            save_seconds = time.monotonic() - started
        time.sleep(choose.uniform(0.0, 2 * save_seconds))
        os.kill(child, signal.SIGKILL)
        server.wait()
        number = check(tmp_path)
        assert number > before, kill
        before = number


def test_killed_at_each_operation(tmp_path, server):
    """Deterministic, and sure to fall into the short moments too; two saves and more, with a best one among them."""
    before = 0
    for operation in range(1, 36):
        server.start(dies_at=operation)
        server.wait()
        number = check(tmp_path) if list((tmp_path / "checkpoints").glob("update-*.pt")) else 0
        assert number >= before, operation
        before = number
    assert before > 10  # the later ones died after a save or two


def wait_for_a_save(folder, before):
    """Until the child has saved a later checkpoint than `before`; its number. Starting may take as long as it likes."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        named = named_file(folder / "checkpoints" / "latest.json")
        if named and (number := int(named.stem.removeprefix("update-"))) > before:
            return number
        time.sleep(0.001)
    raise AssertionError("the child saves nothing")


def check(folder):
    """All that is there under a checkpoint's name loads, without anything being said; the newest one's number."""
    for file in (folder / "checkpoints").glob("update-*.pt"):
        assert number_of(checkpoint.load_newest(file, say=refuse)[1]) == int(file.stem.removeprefix("update-"))
    best = folder / "checkpoints" / "best.json"
    if best.exists():
        number_of(checkpoint.load_newest(best, say=refuse)[1])
    named = named_file(folder / "checkpoints" / "latest.json")
    newest = number_of(checkpoint.load_newest(folder, say=refuse)[1])
    assert not named or newest - 1 <= int(named.stem.removeprefix("update-")) <= newest  # one may die between the two
    steps = whole_steps(folder)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= newest
    return newest


def whole_steps(folder):
    """The steps of metrics.jsonl; a line that a kill cut is the last one, and is left out."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    assert all(line.endswith("\n") for line in lines[:-1])
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]
