"""Which files are one: a copy under another name holds no new episodes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

FINGERPRINT_BYTES = 4096
_PIECE_BYTES = 1 << 20


def fingerprint(path: Path, num_bytes: int, start: int = 0) -> list[int]:
    """How many bytes from `start` on, and their checksum."""
    with path.open("rb") as file:
        file.seek(start)
        return [num_bytes, zlib.crc32(file.read(num_bytes))]


def tail(path: Path, size: int) -> list[int]:
    """The fingerprint of the last bytes of the first `size` ones."""
    count = min(size, FINGERPRINT_BYTES)
    return fingerprint(path, count, size - count)


def digest(path: Path, num_bytes: int) -> str:
    """The checksum of a file's first bytes, by which it is the same under any name."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while num_bytes > 0 and (piece := file.read(min(num_bytes, _PIECE_BYTES))):
            found.update(piece)
            num_bytes -= len(piece)
    return found.hexdigest()


def distinct(files: Sequence[Path], say: Callable[[str], None]) -> list[Path]:
    """The files without those that hold the same bytes as one before; `say` is told how many are left out.

    Whole files are read only where size, beginning and end are the same.
    """
    kept: dict[tuple[object, ...], list[Path]] = {}
    chosen: list[Path] = []
    copies: list[tuple[Path, Path]] = []
    for file in files:
        try:
            size = file.stat().st_size
            alike = kept.setdefault((size, *fingerprint(file, FINGERPRINT_BYTES), *tail(file, size)), [])
            same = next((one for one in alike if size and digest(one, size) == digest(file, size)), None)
        except OSError:  # who reads it says so
            chosen.append(file)
            continue
        if same is None:
            alike.append(file)
            chosen.append(file)
        else:
            copies.append((file, same))
    if copies:
        copy, original = copies[0]
        more = f", and {len(copies) - 1:,} more such files" if len(copies) > 1 else ""
        say(f"Left out: {copy} holds the same bytes as {original}{more}.")
    return chosen
