"""When a checkpoint is saved, which is the best, and what happens when there is no space for it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from movelist.core.errors import CheckpointError, SaveError
from movelist.core.shell import quoted
from movelist.run import checkpoint, folder
from movelist.run.training import Training
from run.test_train import SMALL, learnt, rows, run, without_clock

ENDLESS = {**SMALL, "total_steps": 10**6}


def saved_updates(monkeypatch):
    """The numbers of all saves, as they come."""
    numbers = []
    original = folder.RunFolder.save

    def save(self, number, *words, **options):
        numbers.append(number)
        return original(self, number, *words, **options)

    monkeypatch.setattr(folder.RunFolder, "save", save)
    return numbers


class Clock:
    """The monotonic clock: an update takes a second, and a save as long as it is told."""

    def __init__(self, monkeypatch, *, save_seconds):
        self.now, self.save_seconds = 0.0, save_seconds
        monkeypatch.setattr("movelist.run.training.time", self)
        collect, write = Training.collect, Training._write
        monkeypatch.setattr(Training, "collect", lambda training: (self.sleep(1.0), collect(training))[1])
        monkeypatch.setattr(
            Training, "_write", lambda training, *what: (write(training, *what), self.sleep(self.save_seconds))[0]
        )

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def stop_after(monkeypatch, updates):
    collect = Training.collect

    def collect_or_stop(training):
        if training.learner.num_updates == updates - 1:
            training.stop.append(0)
        return collect(training)

    monkeypatch.setattr(Training, "collect", collect_or_stop)


@pytest.mark.parametrize(
    ("flat", "save_seconds", "expected"),
    [
        # 1/32 s for a save allows one in 3.125 s, so after 4 updates; the first has nothing to go by and is saved.
        ({}, 1 / 32, [1, 5, 9, 13, 14]),
        ({}, 0.0625, [1, 8, 14]),  # 6.25 s: after the seventh update since the last
        ({"save_every": 5}, 0.5, [5, 10, 14]),
        ({"save_minutes": 4 / 60}, 1.0, [1, 5, 9, 13, 14]),  # 1 s for a save would allow one in 100 s
        ({"save_every": 6, "save_minutes": 4 / 60}, 0.0, [4, 6, 10, 12, 14]),
    ],
)
def test_when_a_checkpoint_is_saved(tmp_path, monkeypatch, flat, save_seconds, expected):
    Clock(monkeypatch, save_seconds=save_seconds)
    stop_after(monkeypatch, 14)
    numbers = saved_updates(monkeypatch)
    run(tmp_path, **{**ENDLESS, **flat})
    assert numbers == expected


def note_match(training, rate):
    """A quick match so long that its win rate is known to a hundredth."""
    training.counters.last_match = {"arena/win_rate": rate}
    training.counters.last_figures = {"win_rate": (rate, rate - 0.01, rate + 0.01)}
    training.counters.matched_update = training.learner.num_updates


def test_the_best_of_the_quick_matches_is_kept(tmp_path, monkeypatch):
    """A tie goes to the newer; the figures are part of the checkpoint, so a resumed run compares with them."""
    scores = iter([0.4, 0.7, 0.7, 0.5, 0.6, 0.8, 0.1])

    def quick_match(training):
        if training.learner.num_updates % 2 == 0:
            note_match(training, next(scores))
        return {}

    monkeypatch.setattr(Training, "quick_match", quick_match)
    numbers = saved_updates(monkeypatch)
    best = tmp_path / "checkpoints" / "best.json"
    for stop, name, rate in [
        (9, "update-000006.pt", 0.7),
        (11, "update-000006.pt", 0.7),
        (14, "update-000012.pt", 0.8),
    ]:
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            run(tmp_path, **{**ENDLESS, "save_every": 100, "keep_checkpoints": 1})
        assert json.loads(best.read_text(encoding="utf-8")) == {"file": name, "win_rate": rate}
        files = [path.name for path in sorted((tmp_path / "checkpoints").glob("*.pt"))]
        assert files == [name, f"update-{stop:06d}.pt"]
        assert checkpoint.load(tmp_path)["counters"]["best_win_rate"] == rate
    assert checkpoint.load(best)["learner"]["num_updates"] == 12
    assert numbers == [2, 4, 6, 9, 11, 12, 14]  # a new best is saved at once, or its weights would be gone


# --- No space


def fail_saves(monkeypatch, *, at):
    """Checkpoints of these updates do not fit on the disk; `at` may be changed meanwhile."""
    original = folder.write_sealed

    def write(state, file):
        if state["learner"]["num_updates"] in at:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(state, file)

    monkeypatch.setattr(folder, "write_sealed", write)


def test_a_save_that_fails_is_told_once_and_tried_again_and_changes_nothing(tmp_path, monkeypatch):
    run(tmp_path / "whole", save_every=2, total_steps=450)
    numbers = saved_updates(monkeypatch)
    fail_saves(monkeypatch, at={4, 5, 6})
    result, text = run(tmp_path / "parts", save_every=2, total_steps=450)
    assert numbers[:6] == [2, 4, 5, 6, 7, 8]
    warnings = [line for line in text.splitlines() if "Warning: a file" in line or line.startswith("Saving works")]
    checkpoints = tmp_path / "parts" / "checkpoints"
    assert warnings == [
        f"Warning: a file cannot be written: got No space left on device ({checkpoints / 'update-000004.pt'}). "
        f"The last good checkpoint is {quoted(checkpoints / 'update-000002.pt')}. "
        "The training goes on, and each update tries again to save.",
        "Saving works again: update-000007.pt.",
    ]
    assert result.checkpoint.name == f"update-{result.updates:06d}.pt"
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")
    assert without_clock(tmp_path / "parts") == without_clock(tmp_path / "whole")
    assert not list(checkpoints.glob("*.tmp"))


def test_no_space_at_the_very_end_is_an_error_that_names_the_last_good_one(tmp_path, monkeypatch):
    fail_saves(monkeypatch, at=set(range(3, 99)))
    with pytest.raises(SaveError) as caught:
        run(tmp_path, save_every=2, total_steps=450)
    assert caught.value.exit_code == 1
    good = tmp_path / "checkpoints" / "update-000002.pt"
    assert str(caught.value).endswith(f"The last good checkpoint is {quoted(good)}.")
    assert "\n" not in str(caught.value)
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == 2
    # And with space again the run is finished as if nothing had been.
    monkeypatch.undo()
    run(tmp_path, save_every=2, total_steps=450)
    run(tmp_path / "whole", save_every=2, total_steps=450)
    assert learnt(tmp_path) == learnt(tmp_path / "whole")


def test_no_space_for_the_first_checkpoint(tmp_path, monkeypatch):
    fail_saves(monkeypatch, at=set(range(99)))
    with pytest.raises(SaveError, match=r"There is no checkpoint yet\.$"):
        run(tmp_path)


def test_a_best_checkpoint_that_did_not_fit_does_not_count(tmp_path, monkeypatch):
    """Its weights are gone: a later, lesser one must be able to be the best."""
    scores = {2: 0.5, 4: 0.9, 6: 0.6}

    def quick_match(training):
        if rate := scores.get(training.learner.num_updates):
            note_match(training, rate)
        return {}

    monkeypatch.setattr(Training, "quick_match", quick_match)
    fail_saves(monkeypatch, at={4})
    stop_after(monkeypatch, 7)
    run(tmp_path, **{**ENDLESS, "save_every": 100})
    best = json.loads((tmp_path / "checkpoints" / "best.json").read_text(encoding="utf-8"))
    assert best == {"file": "update-000006.pt", "win_rate": 0.6}


@pytest.mark.parametrize(("target", "name"), [(Path, "open"), (os, "fsync"), (Path, "replace")])
def test_no_space_at_any_operation_of_a_training(tmp_path, monkeypatch, target, name):
    """The n-th operation after the start fails, for each n: the training ends well, or with a clear error; what is
    there loads; and going on gives what an undisturbed run gives."""
    run(tmp_path / "whole", save_every=1, total_steps=60)
    expected = learnt(tmp_path / "whole")
    for number in range(1, 12):
        out = tmp_path / str(number)
        original, calls = getattr(target, name), []

        def failing(*words, original=original, calls=calls, number=number, out=out, **options):
            if target is os or str(out) in str(words[0]):
                calls.append(words)
                if len(calls) == number:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return original(*words, **options)

        with monkeypatch.context() as patch:
            patch.setattr(target, name, failing)
            try:
                run(out, save_every=1, total_steps=60)
            except (CheckpointError, SaveError) as error:
                assert "No space left on device" in str(error)
        run(out, save_every=1, total_steps=60)
        assert learnt(out) == expected, number
        assert without_clock(out) == without_clock(tmp_path / "whole"), number


LIMITED = """
import resource, signal, sys
sys.path.insert(0, sys.argv.pop(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write past the limit fails as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from movelist import cli
from movelist.run import recorded
from play.toys import Odd
recorded.make_game = lambda name: Odd()
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for the size of files")
def test_files_that_may_not_grow_any_further(tmp_path):
    """The system itself refuses: room for the settings and some lines, none for a checkpoint."""
    tests = str(Path(__file__).resolve().parents[1])
    flags = [f"--{name}={value}" for name, value in {**SMALL, "out": tmp_path / "run"}.items() if value is not False]
    command = [sys.executable, "-c", LIMITED, tests, "6000", *flags, "--no-tensorboard"]
    ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert ended.returncode == 1
    assert "Warning: a file cannot be written: got File too large" in ended.stdout
    assert ended.stderr.count("\n") == 1
    assert "There is no checkpoint yet." in ended.stderr
    assert not list((tmp_path / "run").rglob("*.tmp"))
    command[4] = str(1 << 30)
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    assert rows(tmp_path / "run")[-1]["step"] == checkpoint.load(tmp_path / "run")["counters"]["steps"]
