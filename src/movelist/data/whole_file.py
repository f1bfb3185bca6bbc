"""Files that appear whole or not at all, also when the machine stops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from movelist.core.errors import CheckpointError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that it appears whole or not at all, also when the machine stops.

    Raises:
        CheckpointError: The disk is full, or another program holds the old file open for good.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _replace(beside, path)
    except OSError as error:
        raise CheckpointError(
            "a file cannot be written", got=error.strerror, where=str(path), do="What was there before is whole."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _replace(beside: Path, path: Path) -> None:
    for attempt in range(10):
        try:
            beside.replace(path)
            return
        except PermissionError:  # on Windows while a virus scanner or a reader holds the old file
            if attempt == 9:
                raise
            time.sleep(0.05 * (attempt + 1))
