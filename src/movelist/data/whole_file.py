"""Files that appear whole or not at all, also when the machine stops."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from movelist.core.errors import SaveError

UNFINISHED = ".tmp"  # at the end of a file's name while it is written


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that it appears whole or not at all, also when the machine stops.

    Raises:
        SaveError: The disk is full, or another program holds the old file open for good.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _replace(beside, path)
    except OSError as error:
        raise SaveError(
            "a file cannot be written", got=error.strerror, where=str(path), do="What was there before is whole."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # held by a virus scanner: the next start of the run deletes it
            beside.unlink(missing_ok=True)


def json_bytes(content: Any, *, indent: int) -> bytes:
    """JSON for people: letters of all languages as they are, in UTF-8.

    Bytes in a file's name that are no UTF-8 are half a pair of surrogates each in Python; JSON's escape of it (\\udcc5)
    is what json.loads makes the same name of.
    """
    return (json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def delete_unfinished(folder: Path) -> None:
    """Delete what killed processes left half written; nobody else may be writing in the folder.

    A file of a process that lives is left alone, unless it has this one's number: in a container every process may
    have the same.
    """
    for path in folder.glob(f"*{UNFINISHED}"):
        number = path.name.removesuffix(UNFINISHED).rpartition(".")[2]
        if number.isdecimal() and (int(number) == os.getpid() or not psutil.pid_exists(int(number))):
            with contextlib.suppress(OSError):
                path.unlink()


def _replace(beside: Path, path: Path) -> None:
    for attempt in range(10):
        try:
            beside.replace(path)
            return
        except PermissionError:  # on Windows while a virus scanner or a reader holds the old file
            if attempt == 9:
                raise
            time.sleep(0.05 * (attempt + 1))
