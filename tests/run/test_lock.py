"""One training at a time in a run folder; a killed one blocks nobody."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types

import psutil
import pytest

from movelist.core.errors import CheckpointError, SaveError
from movelist.run.lock import LOCK, PLACE, only_training

HOLD = """
import sys
from pathlib import Path
from movelist.run.lock import only_training
with only_training(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder):
    """Another process that holds the lock until its standard input is closed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline().strip() == b"held"
    return process


def refused(folder):
    with pytest.raises(CheckpointError) as caught, only_training(folder):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path):
    with hold(tmp_path) as process:
        assert refused(tmp_path) == (
            f"another process trains in this folder: got process {process.pid} on {socket.gethostname()} ({tmp_path}). "
            "Stop that one first, or choose another folder with --out."
        )
        process.stdin.close()
        process.wait()
    with only_training(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text(encoding="utf-8"))["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_second_training_in_the_same_process_is_refused_too(tmp_path):
    messages = []
    with only_training(tmp_path):
        thread = threading.Thread(target=lambda: messages.append(refused(tmp_path)))
        thread.start()
        thread.join()
    assert messages[0].startswith(f"another process trains in this folder: got process {os.getpid()} on ")


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_a_killed_process_blocks_nobody(tmp_path):
    with hold(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()
    with only_training(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text(encoding="utf-8"))["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), only_training(tmp_path):
        raise ZeroDivisionError
    with only_training(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_a_lock_that_was_just_deleted_is_not_taken_for_the_one_that_is_there(tmp_path, monkeypatch):
    """Between opening and locking the holder may delete the file: a lock on it would keep nobody out."""
    fcntl = pytest.importorskip("fcntl", reason="Windows does not delete an open file")
    original, opened = fcntl.flock, []

    def lock(number, how):
        opened.append(number)
        if len(opened) == 1:
            (tmp_path / LOCK).unlink()
        original(number, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with only_training(tmp_path):
        assert len(opened) == 2
        assert "another process trains" in refused(tmp_path)


# --- Drives that keep no locks


@pytest.fixture
def no_locks(monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="plays a POSIX drive")

    def refuse(number, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_drive_without_locks_is_used_and_a_living_process_respected(tmp_path, no_locks):
    with hold(tmp_path) as process:  # it lives, and its own lock counts for nothing here
        assert f"got process {process.pid} on " in refused(tmp_path)
        process.kill()
        process.wait()
    with only_training(tmp_path):
        assert f"got process {os.getpid()} on " in refused(tmp_path)


@pytest.mark.parametrize(
    "holder",
    [
        {"process": os.getpid(), "computer": socket.gethostname(), "started": 5.0},  # an earlier one of this number
        {"process": os.getpid(), "computer": "another", "started": psutil.Process().create_time()},
        {"process": 2**22 + 5, "computer": socket.gethostname(), "started": 5.0},
        {"computer": socket.gethostname()},
        [],
        "half a fi",
    ],
)
def test_whoever_is_not_known_to_live_blocks_nobody_there(tmp_path, no_locks, holder):
    text = holder if isinstance(holder, str) else json.dumps(holder)
    (tmp_path / LOCK).write_text(text, encoding="utf-8")
    with only_training(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text(encoding="utf-8"))["process"] == os.getpid()


def test_a_folder_that_takes_no_lock_file(tmp_path):
    message = "the run folder cannot be locked: got No such file or directory"
    with pytest.raises(SaveError, match=message), only_training(tmp_path / "gone"):
        pass


# --- Windows, played


def test_windows_locks_a_byte_far_behind_the_text(tmp_path, monkeypatch):
    """A locked byte cannot be read there, so it is not one of the text that says who holds the lock."""
    calls, taken = [], []

    def locking(number, how, length):
        calls.append((os.lseek(number, 0, os.SEEK_CUR), how, length))
        if taken:
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr("movelist.run.lock.sys", types.SimpleNamespace(platform="win32"))
    with only_training(tmp_path):
        assert calls == [(PLACE, 2, 1)]
        taken.append(True)
        assert f"got process {os.getpid()} on " in refused(tmp_path)
    assert list(tmp_path.iterdir()) == []
