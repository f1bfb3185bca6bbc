"""One training at a time in a run folder.

The system's own lock on a file: it ends with the process, however that ends, so a killed run never blocks the next. The
file says who holds it, for the message. A drive that keeps no locks, as some network drives, is used without one,
unless the file names a process of this computer that lives.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from movelist.core.errors import CheckpointError, SaveError

LOCK = "in_use.lock"
PLACE = 1 << 30  # of the locked byte: Windows lets nobody read a locked byte, and the file's text is to be read
TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}  # the answers if somebody else holds the lock


@contextmanager
def only_training(folder: Path) -> Iterator[None]:
    """Hold the folder's lock inside this block.

    Raises:
        CheckpointError: Another process trains in the folder; names it.
        SaveError: The file of the lock cannot be made.
    """
    path = folder / LOCK
    number = _open_locked(path)
    try:
        yield
    finally:
        _release(number, path)


def _open_locked(path: Path) -> int:
    """The lock's file, open and locked."""
    while True:
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise SaveError("the run folder cannot be locked", got=error.strerror, where=str(path)) from None
        holder = _holder(path)
        if not _locked(number, holder):
            os.close(number)
            raise CheckpointError(
                "another process trains in this folder",
                got=f"process {holder.get('process', 'unknown')} on {holder.get('computer', 'an unknown computer')}",
                where=str(path.parent),
                do="Stop that one first, or choose another folder with --out.",
            )
        if _is_still(number, path):
            _write_holder(number)
            return number
        os.close(number)  # who held it has just deleted it: lock the one that is there now


def _locked(number: int, holder: dict[str, Any]) -> bool:
    """Whether the file is locked now; True also where nothing can be locked and nobody known holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(number, PLACE, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in TAKEN and not _lives(holder)
    return True


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the process that a lock's file names runs on this computer; its start tells it from a later one."""
    if holder.get("computer") != socket.gethostname():
        return False
    try:
        started: float = psutil.Process(int(holder["process"])).create_time()
        return abs(started - float(holder["started"])) < 2.0
    except (psutil.Error, KeyError, ValueError):
        return False


def _is_still(number: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return sys.platform == "win32" or os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False


def _holder(path: Path) -> dict[str, Any]:
    """What the file says; nothing where it says nothing."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _write_holder(number: int) -> None:
    own = {"process": os.getpid(), "computer": socket.gethostname(), "started": psutil.Process().create_time()}
    with contextlib.suppress(OSError):  # a full disk: then the message names nobody
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
        os.write(number, json.dumps(own).encode("utf-8"))


def _release(number: int, path: Path) -> None:
    """Unlock and delete: before it is closed where that can be done, so that nobody locks a file without a name."""
    if sys.platform == "win32":
        os.close(number)
    with contextlib.suppress(OSError):
        path.unlink()
    if sys.platform != "win32":
        os.close(number)
