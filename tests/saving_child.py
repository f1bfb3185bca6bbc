"""A process whose children save in a loop, for tests that kill them: `python saving_child.py FOLDER`.

For each line on standard input it forks a child and prints its number; once the child is dead it prints "dead". So
torch is imported once for all of them. The line says at which operation on a file the child kills itself; at 0 it lives
until it is killed. A child goes on as a resumed training does: lock, clean up, read the newest
checkpoint, cut the metrics, then line after line and checkpoint after checkpoint.
"""

import io
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch

from movelist.learn.model import ModelShape
from movelist.run import checkpoint
from movelist.run.folder import RunFolder, numbered
from movelist.run.growing_file import GrowingFile
from movelist.run.lock import only_training

KEEP = 3
SHAPE = ModelShape(state_size=4, hidden_dim=16)
WEIGHTS = 100_000


def state_of(number):
    """A state that tells its number in every weight, so that a mixture of two would be seen."""
    return checkpoint.pack(
        settings={"game": "odd"},
        shape=SHAPE,
        learner={"weights": torch.full((WEIGHTS,), float(number)), "last": torch.full((WEIGHTS,), float(number))},
        source={"num_started": number},
        recorded=None,
        handed_in={},
        counters={"steps": number},
        device=torch.device("cpu"),
    )


def number_of(state):
    """The number of a state that is whole.

    Raises:
        ValueError: It is a mixture.
    """
    number = state["counters"]["steps"]
    expected = torch.full((WEIGHTS,), float(number))
    parts = state["learner"]
    if not (torch.equal(parts["weights"], expected) and torch.equal(parts["last"], expected)):
        raise ValueError(f"weights of another update than {number}")
    if state["source"]["num_started"] != number:
        raise ValueError(f"a source of update {state['source']['num_started']} beside weights of {number}")
    return number


def refuse(text):
    """Nothing may be damaged by a kill."""
    raise ValueError(text)


def save_for_ever(path):
    folder = RunFolder(path)
    with only_training(path):
        folder.clean()
        number = 0
        if numbered(folder.checkpoints):
            number = number_of(checkpoint.load_newest(path, say=refuse)[1])
        folder.cut_metrics(number)
        metrics = GrowingFile(path / "metrics.jsonl")
        while True:
            number += 1
            metrics.add(json.dumps({"step": number, "filler": "x" * 300}).encode("utf-8") + b"\n")
            folder.save(
                number, state_of(number), keep=KEEP, best={"win_rate": number / 1e6} if number % 5 == 0 else None
            )


def die_at(number):
    """Kill this process at its operation of this number: before an opening, in the middle of a write, before a flush
    to the disk, a renaming, a deletion."""
    operations = itertools.count(1)

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    class Dying(io.BufferedWriter):
        def write(self, content):
            if next(operations) == number:
                super().write(content[: len(content) // 2])
                self.flush()
                kill()
            return super().write(content)

    def dying(original):
        def call(*words, **options):
            if next(operations) == number:
                kill()
            return original(*words, **options)

        return call

    original_open = Path.open

    def open_(path, mode="r", *words, **options):
        if mode not in ("wb", "ab"):
            return original_open(path, mode, *words, **options)
        return dying(lambda: Dying(io.FileIO(path, mode)))()

    Path.open, os.fsync = open_, dying(os.fsync)
    Path.replace, Path.unlink = dying(Path.replace), dying(Path.unlink)


def serve(path):
    for line in sys.stdin:
        child = os.fork()
        if not child:
            if int(line):
                die_at(int(line))
            save_for_ever(path)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print("dead" if os.WIFSIGNALED(status) else f"ended with {status}", flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
