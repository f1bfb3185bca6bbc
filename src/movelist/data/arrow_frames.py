"""The messages of an Arrow IPC stream, found one after another, also behind damage.

A message is 0xFFFFFFFF, the length of its metadata, the metadata (a flatbuffer that says its kind and the length of its
body), and the body; a length of 0 ends a stream. Arrow has no checksums and its readers trust these lengths. Here a
length has to lead to the next message or to the end of the file; where it does not, the next message is searched for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

MAX_MESSAGE_BYTES = 256 << 20  # a length beyond is taken for damage; a batch of 8,192 rows has a few MB
_MARK = b"\xff\xff\xff\xff"
_LIKELY = re.compile(rb"(?=\xff\xff\xff\xff(?s:...)\x00)")  # metadata of less than 16 MB; ids before may end in ff
_KINDS: dict[int, Literal["schema", "batch"]] = {1: "schema", 2: "batch", 3: "batch"}  # 2 has a dictionary
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """A stretch of the file.

    Attributes:
        kind: "schema", "batch" or "end" (of a stream): a message. "lost": bytes that are none. "unfinished": the
            beginning of one, up to the end of the file.
        start: Its first byte.
        end: The byte behind its last one.
    """

    kind: Literal["schema", "batch", "end", "lost", "unfinished"]
    start: int
    end: int


def frames(file: IO[bytes], place: int, size: int) -> Iterator[Frame]:
    """All of the file from byte `place` to byte `size`, in order.

    Raises:
        OSError: The file cannot be read.
    """
    while place < size:
        frame = frame_at(file, place, size)
        whole = frame is not None and frame.kind != "unfinished"
        if frame is not None and whole and (frame.end == size or _begins(file, frame.end, size)):
            yield frame
            place = frame.end
            continue
        # Here no message begins; or its length does not lead to the next one; or it was cut, and more was written.
        found = _next(file, place + 1, size)
        behind = place
        if frame is not None and whole and (found is None or found >= frame.end):
            yield frame
            behind = frame.end
        if found is None and frame is not None and not whole and not _is_closed(file, size):
            yield frame
        elif behind < (end := size if found is None else found):
            yield Frame("lost", behind, end)
        place = size if found is None else found


def frame_at(file: IO[bytes], place: int, size: int) -> Frame | None:
    """The message that begins there; None if none does."""
    head = _read(file, place, min(8, size - place))
    if len(head) < 8:
        return Frame("unfinished", place, size) if head[:4] == _MARK[: len(head)] else None
    length = int.from_bytes(head[4:], "little")
    if head[:4] != _MARK or length > MAX_MESSAGE_BYTES:
        return None
    if not length:
        return Frame("end", place, place + 8)
    if place + 8 + length > size:
        return Frame("unfinished", place, size)
    said = _message(_read(file, place + 8, length))
    if said is None:
        return None
    kind, body = said
    end = place + 8 + length + body
    return Frame("unfinished", place, size) if end > size else Frame(kind, place, end)


def content(file: IO[bytes], frame: Frame) -> bytes:
    """The bytes of a message."""
    return _read(file, frame.start, frame.end - frame.start)


def _read(file: IO[bytes], place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)


def _begins(file: IO[bytes], place: int, size: int) -> bool:
    """Whether a message, whole or not, may begin there."""
    head = _read(file, place, min(4, size - place))
    return head == _MARK[: len(head)]


def _is_closed(file: IO[bytes], size: int) -> bool:
    """Whether the file ends with the end of a stream, so that nobody is going to finish what is cut in it."""
    return _read(file, max(0, size - 8), 8) == _MARK + bytes(4)


def _next(file: IO[bytes], place: int, size: int) -> int | None:
    """The first byte from `place` on where a whole schema or batch begins."""
    while place < size:
        piece = _read(file, place, min(_PIECE_BYTES, size - place))
        for match in _LIKELY.finditer(piece):
            frame = frame_at(file, place + match.start(), size)
            if frame is not None and frame.kind in ("schema", "batch"):
                return frame.start
        if len(piece) < _PIECE_BYTES:
            return None
        place += len(piece) - 7  # one may begin at the piece's end
    return None


def _message(metadata: bytes) -> tuple[Literal["schema", "batch"], int] | None:
    """Kind and length of the body, from a flatbuffer `Message`; None if it is none."""
    try:
        (table,) = struct.unpack_from("<I", metadata)
        (back,) = struct.unpack_from("<i", metadata, table)
        fields = table - back
        if fields < 0:
            return None
        (fields_size,) = struct.unpack_from("<H", metadata, fields)
        version, kind, header, body = (
            struct.unpack_from("<H", metadata, fields + 4 + 2 * slot)[0] if 4 + 2 * slot < fields_size else 0
            for slot in range(4)
        )
        if not (version and kind and header) or struct.unpack_from("<h", metadata, table + version)[0] not in (3, 4):
            return None
        (length,) = struct.unpack_from("<q", metadata, table + body) if body else (0,)
        number = metadata[table + kind]
    except (struct.error, IndexError):
        return None
    return (_KINDS[number], length) if number in _KINDS and 0 <= length <= MAX_MESSAGE_BYTES else None
