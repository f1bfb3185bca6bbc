"""The lines of `.jsonl` and `.jsonl.gz`, and what is wrong with one that is no record."""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from movelist.data.record_format import Record

MAX_LINE_BYTES = 256 << 20  # an episode of 50,000 steps with 1,000 numbers each; beyond, the line costs no more memory
_PIECE_BYTES = 1 << 20
_PATH = re.compile(r"`\$\.?([^`]*)`")


class Bad(Exception):
    """What is wrong with one record; caught where records are read."""

    def __init__(self, kind: str, what: str, **place: Any) -> None:
        super().__init__(what)
        self.facts = {"kind": kind, "what": what, **place}


def lines(path: Path, start: int, end: int | None = None) -> Iterator[tuple[bytes, int, bool]]:
    """Lines without their ends, where the next one begins, and whether the line has an end.

    Raises:
        Bad: The file is compressed and damaged from here on.
    """
    parts: list[bytes] = []
    size, position = 0, start
    for piece in _pieces(path, start, end):
        begin = 0
        while (newline := piece.find(b"\n", begin)) >= 0:
            line = b"".join([*parts, piece[begin:newline]])
            begins, position = position, position + size + newline - begin + 1
            yield _trimmed(line, begins), position, True
            parts, size, begin = [], 0, newline + 1
        if size <= MAX_LINE_BYTES:  # of a longer line only its length is kept
            parts.append(piece[begin:])
        size += len(piece) - begin
    if size:
        yield _trimmed(b"".join(parts), position), position + size, False


def _trimmed(line: bytes, begins: int) -> bytes:
    """Without the carriage return and the byte order mark that programs on Windows add."""
    return (line if begins else line.removeprefix(b"\xef\xbb\xbf")).rstrip(b"\r")


def is_packed(path: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return path.suffix.lower() == ".gz"


def _pieces(path: Path, start: int, end: int | None) -> Iterator[bytes]:
    """The file's bytes from `start` on, unpacked; of the file as it is on the disk, the first `end` ones."""
    left = sys.maxsize if end is None else end
    with path.open("rb") as file:
        if not is_packed(path):
            file.seek(start)
            left -= start
            while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
                left -= len(piece)
                yield piece
            return
        for piece in _unpacked(file, left):
            skipped = min(start, len(piece))
            start -= skipped
            if skipped < len(piece):
                yield piece[skipped:]


def _unpacked(file: IO[bytes], left: int) -> Iterator[bytes]:
    """What `left` bytes of gzip hold, of all its members; what a broken end leaves readable is read."""
    unpack = zlib.decompressobj(wbits=31)
    while packed := file.read(min(1 << 16, left)):
        left -= len(packed)
        while packed:
            if unpack.eof:  # another member follows
                unpack = zlib.decompressobj(wbits=31)
            try:
                yield unpack.decompress(packed)
            except zlib.error as error:
                raise Bad("damaged", "the compressed file is damaged, and nothing can be read behind this place",
                           got=error, do="Copy the file anew from where it was written.") from None  # fmt: skip
            packed = unpack.unused_data
    if not unpack.eof:
        raise Bad("unfinished", "the compressed file is not finished; the rest is read once it is", harmless=True,
                  ordinal=-1)  # fmt: skip


def explained(line: bytes, error: Exception, decoder: msgspec.json.Decoder[Record]) -> Bad:
    """Step, field and cure of a line that is no record."""
    if not isinstance(error, msgspec.ValidationError):
        try:
            # Python's json also reads NaN, which other writers write; with a text in its place the field gets its name.
            clean = json.dumps(json.loads(line, parse_constant=lambda name: f"<{name}>"))
            decoder.decode(clean)
        except msgspec.ValidationError as named:
            return _named(str(named), "NaN and infinity are no numbers of JSON." if b"NaN" in line else None)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            pass
        return _no_json(line, error)
    return _named(str(error), None)


def _named(message: str, do: str | None) -> Bad:
    path = match[1] if (match := _PATH.search(message)) else ""
    what = message.partition(" - at ")[0].replace("`", "")
    step = int(number[1]) if (number := re.match(r"steps\[(\d+)\]", path)) else -1
    field = re.sub(r"^steps\[\d+\]\.?|\[\d+\].*$", "", path)
    if inner := re.search(r"field `(\w+)`", message):
        field = inner[1]
    do = do or "Write the field as docs/episode_format.md says."
    return Bad("field", f"a field is wrong: {what}", step=step, field=field or "the record", do=do)


def _no_json(line: bytes, error: Exception) -> Bad:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    match = re.search(r"byte (\d+)", text)
    place = int(match[1]) if match else len(line)
    before = line[:place]
    names = re.findall(rb'"(\w{1,40})"\s*:', before[-100_000:])
    field = names[-1].decode("ascii", "replace") if names else "the record"
    step = before.count(b'"player"') - 1 if b'"steps"' in before else -1
    what = "a line is no JSON" + (", for it holds a NUL byte" if b"\0" in line else "")
    return Bad("json", what, got=text, step=step, field=field, do=_cure(line))


def _cure(line: bytes) -> str:
    """What to do about a line that is no JSON."""
    if line.startswith(b"\x1f\x8b"):
        return "A compressed file's name ends in .jsonl.gz."
    zeros = max(line[half::2].count(0) for half in (0, 1))
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * zeros > len(line):  # in UTF-16 every other byte of Latin text
        return "Write UTF-8, not UTF-16."
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        if line.lstrip().startswith(b"{") and b"\0" not in line:
            return "Write text as UTF-8, not in the language of the system, and half of a surrogate pair not at all."
        return "These bytes are no text: copy the file anew from where it was written; the next line is read as usual."
    if "\0" in text:
        return "The system stopped before the bytes were on the disk; the next line is read as usual."
    if re.search(r"\\u[dD][89a-fA-F]", text):
        return "Write both halves of a surrogate pair, or the letter itself as UTF-8."
    return "One writer at a time, a whole line at once; the next line is read as usual."
