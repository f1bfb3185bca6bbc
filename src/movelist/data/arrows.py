"""`.arrows`: Arrow IPC streams, one row a step, one stream after another; read batch by batch, written likewise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.data.arrow_columns import (
    SEATS,
    check_schema,
    columns_of_rows,
    episode_crcs,
    extra_columns,
    extra_widths,
    metadata,
    null_rows,
)
from movelist.data.arrow_frames import Frame, content, frame_at, frames
from movelist.data.column import Column
from movelist.data.episode import offsets_of
from movelist.data.record_format import Widths, arrow_name
from movelist.data.record_rules import Columns, Position, Problem

Array = NDArray[Any]
Report = Callable[[Problem], None]
ENDS = ["terminated", "truncated"]
# What Arrow raises for bytes that make no message; a length that was damaged may ask for more memory than there is.
BROKEN = (pa.ArrowException, OSError, MemoryError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)
_ANEW = "Copy the file anew from where it was written."


def read_arrows(
    path: Path, start: Position, expected: Widths | None, report: Report, end: int | None = None
) -> Iterator[Columns]:
    """Read a file's episodes, unchecked but of one width. Arguments and errors as in `jsonl.read_jsonl`."""
    # Not memory-mapped: pages of a mapped file count as the process's memory, and Windows would lock the file.
    with path.open("rb") as file:
        size = file.seek(0, 2)
        size = size if end is None else min(size, end)
        reader = _Reader(file, str(path), start, expected, report)
        for frame in frames(file, start.offset, size):
            yield from reader.take(frame)
            if reader.stopped:
                return
        reader.finish()


class _Reader:
    """Turns the batches of one file into columns."""

    def __init__(self, file: IO[bytes], name: str, start: Position, expected: Widths | None, report: Report) -> None:
        self.bytes, self.file, self.widths, self.report = file, name, expected, report
        # Without a byte to begin at, a position says only how many episodes are done with.
        self.skip = 0 if start.offset else start.ordinal
        self.ordinal, self.row = (start.ordinal, start.line) if start.offset else (0, 0)
        self.done_rows = start.skip  # of the next batch
        self.pending: list[pa.RecordBatch] = []
        self.after_gap = self.stopped = False
        self.schema: pa.Schema | None = None
        self.declared: tuple[Column, ...] = ()  # the schema's further columns
        self.stream: tuple[int, tuple[int, ...], str, str] = (0, (), "", "")  # where its schema begins; what that says
        if start.offset:
            opened = frame_at(file, start.stream, file.seek(0, 2))
            self._open(opened if opened is not None else Frame("lost", start.stream, start.offset))

    def take(self, frame: Frame) -> Iterator[Columns]:
        """The episodes that end in this stretch of the file."""
        if frame.kind == "schema":
            if self.pending:
                self._tell("no end", "an episode has no end", "end", do="Write `end` in the row of each last step.")
                self._drop_pending()
            self._open(frame)
        elif frame.kind == "batch" and self.schema is not None:
            try:
                batch = pa.ipc.read_record_batch(self._message(frame), self.schema)
                batch.validate(full=True)  # offsets that point outside, before anything follows them
            except BROKEN as error:
                self._lost(frame, got=str(error).split("\n")[0] or type(error).__name__)
                return
            yield from self._batch(batch, frame)
        elif frame.kind == "lost":
            self._lost(frame)
        elif frame.kind == "unfinished":
            self._tell("unfinished", "the file ends within a batch; it is read once it is whole", "the batch",
                       harmless=True)  # fmt: skip

    def finish(self) -> None:
        """The file is read."""
        if self.pending:
            self._tell("unfinished", "the last episode is not finished; it is read once it is", "end", harmless=True)

    def _message(self, frame: Frame) -> Any:
        return pa.ipc.read_message(pa.py_buffer(content(self.bytes, frame)))

    def _open(self, frame: Frame) -> None:
        """A stream begins; if its schema cannot be used, nothing of it can."""
        self.schema, self.after_gap = None, False
        try:
            if frame.kind != "schema":
                raise ValueError("no schema")
            schema = pa.ipc.read_schema(self._message(frame))
            self.stream = (frame.start, *metadata(schema))
            check_schema(schema)
            self.schema, self.declared = schema, extra_columns(schema)
        except DataError as error:
            self._tell("header", error.what, str(error.where), got=error.got, expected=error.expected)
        except BROKEN as error:
            what = "the schema of a stream is damaged, so nothing of the stream can be read"
            self._lost(frame, got=str(error).split("\n")[0], what=what)

    def _lost(self, frame: Frame, *, got: str | None = None, what: str = "the file is damaged") -> None:
        """Bytes that cannot be read, and the episode that began before them."""
        kind, what, do = "damaged", f"{what}, {frame.end - frame.start:,} bytes", _ANEW
        if frame.start == 0 and (other := _other_format(self.bytes)):
            self.stopped, kind, (what, do) = True, "header", other
        self.report(Problem(kind=kind, file=self.file, place=f"byte {frame.start}", what=what, got=got,
                            field="the batch", do=do))  # fmt: skip
        self.after_gap, self.done_rows = True, 0
        self._drop_pending()

    def _drop_pending(self) -> None:
        self.ordinal += bool(self.pending)
        self.row += sum(map(len, self.pending))
        self.pending = []

    def _batch(self, batch: pa.RecordBatch, frame: Frame) -> Iterator[Columns]:
        """All episodes that end in this batch."""
        whole, done, self.done_rows = len(batch), self.done_rows, 0
        batch = batch.slice(done)
        cut = self._rows_over(batch)
        if cut is None:
            self.pending += [batch] if len(batch) else []
            return
        table = pa.Table.from_batches([*self.pending, batch.slice(0, cut)]).combine_chunks()
        before = sum(map(len, self.pending)) - done  # rows of this table that stand before this batch
        self.pending = [batch.slice(cut)] if cut < len(batch) else []
        rows = {name: table.column(name).chunk(0) for name in table.column_names}

        def next_E4(stop_E: Array) -> Array:
            """Where reading goes on after episodes that stop before these rows of the table."""
            skip_E = stop_E - before
            over_E = skip_E == whole
            offset_E = np.where(over_E, frame.end, frame.start)
            stream_E = np.full(len(stop_E), self.stream[0])
            return np.stack([offset_E, self.row + stop_E, np.where(over_E, 0, skip_E), stream_E], axis=1)

        yield from self._rows(rows, table.num_rows, next_E4)
        self.row += table.num_rows
        self.after_gap = False

    def _rows_over(self, batch: pa.RecordBatch) -> int | None:
        """How many rows belong to episodes that are over, with an end or for another number follows; None if none is.

        Without the second, a file that lacks all ends would be kept in memory.
        """
        over = batch.column("end").is_valid().to_numpy(zero_copy_only=False)
        over[:-1] |= _other_follows(batch.column("episode"))
        rows = np.flatnonzero(over)
        if len(rows):
            return int(rows[-1]) + 1
        before = self.pending[-1:] if len(batch) else []
        return 0 if any(one.column("episode")[-1] != batch.column("episode")[0] for one in before) else None

    def _rows(self, rows: dict[str, Any], num_rows: int, next_E4: Callable[[Array], Array]) -> Iterator[Columns]:
        has_end = rows["end"].is_valid().to_numpy(zero_copy_only=False)
        last = np.ones(num_rows, bool)
        # Another number: what came before it is over, with an end or without.
        last[:-1] = has_end[:-1] | _other_follows(rows["episode"])
        edges = np.concatenate([[0], np.flatnonzero(last) + 1])
        starts, stops = edges[:-1], edges[1:]
        faults = self._faults(rows, starts, stops, has_end)
        first = self.ordinal
        self.ordinal += len(starts)
        good_E = np.array(
            [e for e in range(len(starts)) if e not in faults and first + e >= self.skip], np.int64
        )  # fmt: skip
        for e, facts in sorted(faults.items()):
            if first + e >= self.skip:
                step = facts.pop("step", -1)
                place = f"row {self.row + int(starts[e]) + max(0, step)}"
                self.report(Problem(file=self.file, place=place, ordinal=first + e, step=step, **facts))
        if not len(good_E) or self.widths is None:
            return
        if len(good_E) < len(starts):
            keep = np.concatenate([np.arange(starts[e], stops[e]) for e in good_E])
            rows = {name: column.take(pa.array(keep)) for name, column in rows.items()}
        counts = (stops - starts)[good_E]
        places = {"ordinal_E": first + good_E, "line_E": self.row + starts[good_E], "next_E4": next_E4(stops[good_E])}
        columns = columns_of_rows(rows, offsets_of(counts), self.widths, places)
        yield from self._sound(columns, rows)

    def _faults(self, rows: dict[str, Any], starts: Array, stops: Array, has_end: Array) -> dict[int, dict[str, Any]]:
        """What keeps an episode from becoming columns, by its number here."""
        faults: dict[int, dict[str, Any]] = {}
        _, shape, dtype, game = self.stream

        def fault(row: int, step: bool, kind: str, what: str, field: str, **facts: Any) -> None:
            e = int(np.searchsorted(stops, row, side="right"))
            place = {"step": row - int(starts[e])} if step else {}
            faults.setdefault(e, {"kind": kind, "what": what, "field": field, **place, **facts})

        if self.after_gap and not ("crc32" in rows and rows["crc32"][int(stops[0]) - 1].is_valid):
            fault(0, False, "damaged", "the beginning of an episode may be lost with the damage before it", "episode",
                  do=_ANEW)  # fmt: skip
        for e in np.flatnonzero(~has_end[stops - 1]).tolist():
            fault(int(starts[e]), False, "no end", "an episode has no end, and another one follows", "end",
                  do="Write `end` in the row of each last step.")  # fmt: skip
        for name in ("episode", "player", "state", "actions", "chosen"):
            for row in null_rows(rows[name]):
                fault(row, True, "field", "a value is missing", name, expected="a value in each row")
        last = rows["players"].take(pa.array(stops - 1))
        if self.widths is None:
            seats_E = pc.fill_null(pc.list_value_length(last), 0).to_numpy(zero_copy_only=False)
            if not seats_E.any():
                for start in starts.tolist():
                    fault(start, False, "width", "an episode has no players", "players")
                return faults
            self.widths = Widths(game, int(seats_E[seats_E > 0][0]), shape, dtype, *extra_widths(rows), self.declared)
        here = Widths(game, self.widths.num_players, shape, dtype, *extra_widths(rows), self.declared)
        if difference := self.widths.difference(here):
            for e in range(len(starts)):
                fault(int(starts[e]), False, "width", "an episode is of another kind than its file or the run",
                      difference[0], got=difference[2], expected=difference[1])  # fmt: skip
            return faults
        players = self.widths.num_players
        for name in ("players", "returns", "final_states"):
            column = rows[name].take(pa.array(stops - 1)) if name in rows else None
            if column is None:
                continue
            lengths = pc.fill_null(pc.list_value_length(column), players if name != "players" else -1)
            for e in np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != players).tolist():
                fault(int(starts[e]), False, "width", f"{name} has not one entry for each seat", name, expected=players)
            if name == "final_states":  # a gap in integers would become a 0
                parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
                for seat in null_rows(column.flatten()):
                    fault(int(starts[parents[seat]]), False, "field", "a value is missing", name)
        if pa.types.is_list(rows["reward"].type) if "reward" in rows else False:
            lengths = pc.fill_null(pc.list_value_length(rows["reward"]), players).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(lengths != players).tolist():
                fault(row, True, "width", "reward has not one entry for each seat", "reward", expected=players)
        self._name_faults(rows, stops, fault)
        self._further_faults(rows, stops, fault)
        return faults

    def _further_faults(self, rows: dict[str, Any], stops: Array, fault: Any) -> None:
        """Further columns without a row for each."""
        for column in self.widths.further if self.widths else ():
            values, one = rows[arrow_name(column)], "of features for each legal action"
            if column.per == "action":
                one = one if column.field else "for each action"
                same = pc.equal(pc.list_value_length(rows["actions"]), pc.list_value_length(values))
                for row in np.flatnonzero(~pc.fill_null(same, False).to_numpy(zero_copy_only=False)).tolist():
                    fault(row, True, "width", f"there is not one row {one}", column.label)
            elif column.per == "step" and not column.field and not column.optional:
                for row in null_rows(values):
                    fault(row, True, "field", "a value is missing", column.label, expected="a value in each row")
            elif not column.by_turn:
                of_ends = values.take(pa.array(stops - 1))
                wrong = np.array(of_ends.is_null())
                if column.per == "seat":
                    seats = pc.fill_null(pc.list_value_length(of_ends), -1).to_numpy(zero_copy_only=False)
                    wrong = seats != self.widths.num_players  # type: ignore[union-attr]
                for e in np.flatnonzero(wrong).tolist():
                    fault(int(stops[e]) - 1, False, "field", "a value is missing", column.label,
                          expected=f"one for each {column.per} in the row of the last step")  # fmt: skip

    def _name_faults(self, rows: dict[str, Any], stops: Array, fault: Any) -> None:
        """Words that the format does not know."""
        unknown = pc.and_(pc.is_valid(rows["end"]), pc.is_null(pc.index_in(rows["end"], pa.array(ENDS))))
        for row in np.flatnonzero(unknown.to_numpy(zero_copy_only=False)).tolist():
            fault(row, False, "field", "there is no such end", "end", got=rows["end"][row].as_py(), expected=ENDS)
        players = rows["players"].take(pa.array(stops - 1))
        flat = players.flatten()
        controller = pc.struct_field(flat, "controller")
        wrong = pc.is_null(pc.index_in(controller, pa.array(SEATS)))
        parents = pc.list_parent_indices(players).to_numpy(zero_copy_only=False)
        for cell in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist():
            fault(int(stops[parents[cell]]) - 1, False, "field", "there is no such controller", "players",
                  got=controller[cell].as_py(), expected=SEATS)  # fmt: skip

    def _sound(self, columns: Columns, rows: dict[str, Any]) -> Iterator[Columns]:
        """Leave out the episodes whose checksum is stated and wrong."""
        if "crc32" not in rows or rows["crc32"].null_count == len(rows["crc32"]):
            yield columns
            return
        stated = pc.fill_null(rows["crc32"].cast(pa.int64()), -1).to_numpy()[columns.raw.episode_offsets[1:] - 1]
        good = []
        for e, (expected, crc) in enumerate(zip(stated.tolist(), episode_crcs(columns), strict=True)):
            if expected in (-1, crc):
                good.append(e)
                continue
            self.report(Problem(kind="checksum", file=self.file, place=f"row {columns.line_E[e]}",
                                ordinal=int(columns.ordinal_E[e]), field="crc32", what="the episode is damaged",
                                got=f"{crc:08x}", expected=f"{expected:08x}",
                                do=_ANEW))  # fmt: skip
        if good:
            yield columns if len(good) == len(columns) else columns.take(np.array(good))

    def _tell(self, kind: str, what: str, field: str, **facts: Any) -> None:
        self.report(Problem(kind=kind, file=self.file, place=f"row {self.row}", what=what, field=field, **facts))


def _other_follows(episode: pa.Array) -> Array:
    """Which rows but the last are followed by one of another number."""
    other: Array = pc.fill_null(pc.not_equal(episode[1:], episode[:-1]), True).to_numpy(zero_copy_only=False)
    return other


def _other_format(file: IO[bytes]) -> tuple[str, str] | None:
    """What a file is that is no Arrow stream, and what to do about it."""
    file.seek(0)
    head = file.read(6)
    if head == b"ARROW1":
        return "this is Arrow's file format", "Write the stream format, which has no footer."
    if head.lstrip(b"\xef\xbb\xbf").startswith(b"{"):
        return "this is JSON", "Give it a name that ends in .jsonl."
    return None
