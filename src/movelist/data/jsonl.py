"""`.jsonl` and `.jsonl.gz`: one episode a line, read in pieces of constant memory, written line by line."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from movelist.core.errors import DataError
from movelist.data.column import spoken
from movelist.data.record_format import FORMAT, Header, Record, Widths, check_header, declared_columns, line_crc
from movelist.data.record_json import arrays, record_of, stack
from movelist.data.record_lines import MAX_LINE_BYTES, Bad, explained, is_packed, lines
from movelist.data.record_rules import Columns, Position, Problem

Report = Callable[[Problem], None]
_PIECE_STEPS, _PIECE_BYTES = 4096, 16 << 20  # of text, whose numbers take 16 times as much as Python's floats


def read_jsonl(
    path: Path, start: Position, expected: Widths | None, report: Report, end: int | None = None
) -> Iterator[Columns]:
    """Read a file's episodes, unchecked but of one width, some thousand steps at a time.

    Args:
        path: The file.
        start: Where to begin; `Position()` is the beginning.
        expected: Widths of the run; None takes the file's own.
        report: Told of each record that cannot be read.
        end: How many bytes of the file are read; None reads all that is there.

    Raises:
        OSError: The file cannot be read.
    """
    reader = _Reader(str(path), expected, report)
    records: list[tuple[Record, dict[str, Any]]] = []
    num_steps, num_bytes, ordinal, number = 0, 0, start.ordinal, max(1, start.line)
    if start.offset:
        reader.header_of(path)
    for line, behind, whole in reader.lines(path, start.offset, end):
        place = {"line": number, "next": number + whole, "end": behind, "ordinal": ordinal}
        reader.last_line = number
        kind = reader.kind(line, whole, place)
        number += 1
        if kind == "record" and not reader.other_header and (record := reader.decode(line, whole, place)) is not None:
            records.append((record, place))
            num_steps, num_bytes = num_steps + len(record.steps), num_bytes + len(line)
        ordinal += kind == "record" and whole
        if num_steps >= _PIECE_STEPS or num_bytes >= _PIECE_BYTES:
            yield from reader.columns(records)
            records, num_steps, num_bytes = [], 0, 0
    yield from reader.columns(records)


class _Reader:
    """Turns the lines of one file into columns; knows the file's widths once it has seen a record."""

    def __init__(self, file: str, expected: Widths | None, report: Report) -> None:
        self.file, self.widths, self.report = file, expected, report
        self.shape: tuple[int, ...] | None = expected.state_shape if expected else None
        self.dtype = expected.state_dtype if expected else "float32"
        self.declared = expected.columns if expected else ()
        self.decoder = msgspec.json.Decoder(Record)
        self.last_line = 0
        self.other_header = False  # what follows is of another kind

    def lines(self, path: Path, start: int, end: int | None = None) -> Iterator[tuple[bytes, int, bool]]:
        """The file's lines; damage of a compressed file is told, and ends it."""
        try:
            yield from lines(path, start, end)
        except Bad as bad:
            self._tell(bad, {"line": self.last_line + 1})

    def header_of(self, path: Path) -> None:
        """Read the header of a file that is taken up in the middle; only broken and blank lines stand before one."""
        for line, _, whole in self.lines(path, 0):
            if self.kind(line, whole, {"line": 1}) == "header" or (b'"steps"' in line and line.endswith(b"}")):
                return

    def kind(self, line: bytes, whole: bool, place: dict[str, Any]) -> str:
        """ "blank", "header" or "record"; a header is taken in."""
        if not line.strip():
            return "blank"
        if not whole or b'"state_shape"' not in line[:200]:
            return "record"
        try:
            header = msgspec.json.decode(line, type=Header)
            _check_crc(line, header.crc32)
            shape, dtype = check_header(header, f"{self.file}, line {place['line']}")
            declared = declared_columns(header.columns, f"{self.file}, line {place['line']}, columns")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "record"  # which it is not either, and decode says what is wrong with it
        except Bad as bad:
            self._tell(bad, place | {"ordinal": -1})
            return "header"
        except DataError as error:
            self._tell(Bad("header", error.what, got=error.got, expected=error.expected, field="format"), place)
            return "header"
        if self.widths is None and self.shape is None:
            self.shape, self.dtype, self.declared = shape, dtype, declared
        mine = self.widths.state_size if self.widths else math.prod(self.shape or ())
        facts: tuple[str, str, str] | None = None
        if (math.prod(shape), dtype) != (mine, self.dtype):
            facts = "state", f"{shape} {dtype}", f"{mine} numbers, {self.dtype}"
        elif declared != self.declared:
            facts = "columns", str(spoken(declared)), str(spoken(self.declared))
        self.other_header = facts is not None
        if facts is not None:
            self._tell(Bad("header", "a header differs, and what follows it is left out", got=facts[1],
                            expected=facts[2], field=facts[0],
                            do="Record different states into different files."), place)  # fmt: skip
        return "header"

    def decode(self, line: bytes, whole: bool, place: dict[str, Any]) -> Record | None:
        """One line as a record; a problem is told, and an unfinished last line is a note."""
        try:
            if len(line) > MAX_LINE_BYTES:
                what = f"a line is longer than {MAX_LINE_BYTES >> 20} MB"
                raise Bad("long line", what, do="Write one episode a line, and truncate endless ones.")
            try:
                record = self.decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                if not whole:
                    raise Bad("unfinished", "the last record is not finished; it is read once it is", harmless=True,
                               ordinal=-1) from None  # fmt: skip
                raise explained(line, error, self.decoder) from None
            _check_crc(line, record.crc32)
            if record.format != FORMAT:
                raise Bad("format", "this is another format", got=repr(record.format), expected=FORMAT, field="format")
        except Bad as bad:
            self._tell(bad, place)
            return None
        return record

    def columns(self, records: Sequence[tuple[Record, dict[str, Any]]]) -> Iterator[Columns]:
        """The records as one piece; those of other widths are told and left out."""
        parts = []
        for record, place in records:
            try:
                widths = self._fit(record)
                parts.append((arrays(record, widths), place))
                self.widths = widths  # only now: a bad first record costs no other
            except Bad as bad:
                self._tell(bad, place)
        if parts and self.widths:
            yield stack(parts, self.widths)

    def _fit(self, record: Record) -> Widths:
        """The file's widths, or this record's where none is known yet; refuses a record of another kind."""
        steps = record.steps
        first = steps[0] if steps else None
        shape = self.shape or ((len(first.state),) if first and first.state else None)
        widths = self.widths
        if widths is None:
            if not record.players or shape is None or first is None:
                raise _no_width(record)
            features = first.action_features
            widths = Widths(
                record.game,
                len(record.players),
                shape,
                self.dtype,
                0 if first.critic_state is UNSET else len(first.critic_state),
                0 if features is UNSET or not features else len(features[0]),
                self.declared,
            )
        for field, got, expected in (
            ("game", record.game, widths.game),
            ("players", len(record.players), widths.num_players),
        ):
            if got != expected:
                raise Bad("width", "an episode is of another kind than its file or the run", field=field, got=got,
                           expected=expected, do="Record different games into different files.")  # fmt: skip
        return widths

    def _tell(self, bad: Bad, place: dict[str, Any]) -> None:
        facts = {"ordinal": place.get("ordinal", -1), **bad.facts}
        self.report(Problem(file=self.file, place=f"line {place['line']}", **facts))


def _check_crc(line: bytes, stated: str | UnsetType) -> None:
    """Hold a line's checksum, if it states one."""
    crc = line_crc(line)
    if stated is not UNSET and (crc is None or crc[0] != crc[1]):
        got = "none that can be read" if crc is None else f"{crc[1]:08x}"
        raise Bad("checksum", "the line is damaged", got=got, expected=stated, field="crc32",
                  do="Copy the file anew from where it was written.")  # fmt: skip


def _no_width(record: Record) -> Bad:
    if not record.steps:
        return Bad("no step", "an episode has no step", field="steps", harmless=True)
    return Bad("width", "an episode has no players or no state", field="players" if not record.players else "state")


class JsonlWriter:
    """Writes episodes line by line, each with its checksum.

    Args:
        path: Ends in .jsonl or .jsonl.gz; added to if it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        packed = is_packed(path)
        torn = not packed and path.exists() and _last_byte(path) not in (b"", b"\n")
        self._file: Any = (gzip.open if packed else open)(path, "ab")
        self._file.write(b"\n" * torn)  # what a crash left half written ends here
        self._needs_header = True

    def write(self, columns: Columns) -> None:
        """Add these episodes."""
        if self._needs_header:
            widths = columns.widths
            header: dict[str, Any] = {"format": FORMAT, "state_shape": widths.state_shape}
            header["state_dtype"] = widths.state_dtype
            header |= {"columns": spoken(widths.columns)} if widths.columns else {}
            self._file.write(_sealed(msgspec.json.encode(header)))
            self._needs_header = False
        for episode in range(len(columns)):
            self._file.write(_sealed(msgspec.json.encode(record_of(columns, episode))))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        return file.read(1)


def _sealed(body: bytes) -> bytes:
    """A line with its checksum."""
    return body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body[:-1])
