"""A log file that grows by whole pieces and outlives a full disk."""

from __future__ import annotations

import os
from pathlib import Path

MOST_KEPT = 64 << 20  # bytes of pieces that wait for space; with more than that, the newest are lost


class GrowingFile:
    """A file that pieces are added to, each written at once. One that cannot be written waits for the next.

    The file is opened for each piece, so that nothing waits in a buffer and no other program is locked out.

    Args:
        path: The file; pieces go behind what is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._whole: int | None = None  # the size without what was written of a piece that did not fit

    def add(self, piece: bytes) -> None:
        """Write a piece, behind those that wait.

        Raises:
            OSError: It cannot be written now; it waits for the next call.
        """
        if sum(map(len, self._waiting)) + len(piece) <= MOST_KEPT:
            self._waiting.append(piece)
        with self.path.open("ab") as file:
            if self._whole is not None:
                file.truncate(self._whole)
            self._whole = file.seek(0, os.SEEK_END)
            file.write(b"".join(self._waiting))
        self._waiting, self._whole = [], None

    def finish(self) -> None:
        """A last try for what still waits.

        Raises:
            OSError: It still cannot be written, and is lost.
        """
        if self._waiting:
            self.add(b"")
