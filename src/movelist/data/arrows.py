"""`.arrows`: Arrow IPC streams, one row a step, one stream after another; read batch by batch, written likewise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    extra_widths,
    metadata,
    null_rows,
)
from movelist.data.episode import offsets_of
from movelist.data.record_format import Widths
from movelist.data.record_rules import Columns, Position, Problem

Array = NDArray[Any]
Report = Callable[[Problem], None]
ENDS = ["terminated", "truncated"]
# What Arrow raises for bytes that make no stream; a length that was damaged may ask for more memory than there is.
BROKEN = (pa.ArrowException, OSError, MemoryError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)
_TAIL = ("expected to be able to read", "expected to read", "unexpected end", "but only read", "eos")


def read_arrows(path: Path, start: Position, expected: Widths | None, report: Report) -> Iterator[Columns]:
    """Read a file's episodes, unchecked but of one width. Arguments and errors as in `jsonl.read_jsonl`."""
    reader = _Reader(str(path), start.ordinal, expected, report)
    # Not memory-mapped: pages of a mapped file count as the process's memory, and Windows would lock the file.
    with pa.OSFile(str(path), "rb") as file:
        size = file.size()
        while file.tell() < size and not reader.stopped:
            yield from reader.stream(file, size)


class _Reader:
    """Turns the batches of one file into columns."""

    def __init__(self, file: str, skip: int, expected: Widths | None, report: Report) -> None:
        self.file, self.skip, self.widths, self.report = file, skip, expected, report
        self.row = self.ordinal = 0
        self.pending: list[pa.RecordBatch] = []
        self.stopped = False

    def stream(self, file: Any, size: int) -> Iterator[Columns]:
        """One stream of the file."""
        if self.pending:
            self._tell("no end", "an episode has no end", "end", do="Write `end` in the row of each last step.")
            self.pending, self.ordinal = [], self.ordinal + 1
        try:
            reader = pa.ipc.open_stream(file)
            shape, dtype, game = metadata(reader.schema)
            check_schema(reader.schema)
        except DataError as error:
            self._stop("header", error.what, str(error.where), got=error.got, expected=error.expected)
            return
        except BROKEN as error:
            self._broken(error)
            return
        while (batch := self._next(reader)) is not None:
            yield from self._batch(batch, shape, dtype, game)
        if self.pending and not self.stopped and file.tell() >= size:
            self._tell("unfinished", "the last episode is not finished; it is read once it is", "end", harmless=True)

    def _next(self, reader: Any) -> pa.RecordBatch | None:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)  # offsets that point outside, before anything follows them
            return batch
        except StopIteration:
            return None
        except BROKEN as error:
            self._broken(error)
            return None

    def _batch(self, batch: pa.RecordBatch, shape: tuple[int, ...], dtype: str, game: str) -> Iterator[Columns]:
        """All episodes that end in this batch."""
        ends = np.flatnonzero(batch.column("end").is_valid().to_numpy(zero_copy_only=False))
        if not len(ends):
            self.pending.append(batch)
            return
        cut = int(ends[-1]) + 1
        table = pa.Table.from_batches([*self.pending, batch.slice(0, cut)]).combine_chunks()
        self.pending = [batch.slice(cut)] if cut < len(batch) else []
        rows = {name: table.column(name).chunk(0) for name in table.column_names}
        yield from self._rows(rows, table.num_rows, shape, dtype, game)
        self.row += table.num_rows

    def _rows(
        self, rows: dict[str, Any], num_rows: int, shape: tuple[int, ...], dtype: str, game: str
    ) -> Iterator[Columns]:
        has_end = rows["end"].is_valid().to_numpy(zero_copy_only=False)
        episode = rows["episode"]
        other = pc.fill_null(pc.not_equal(episode[1:], episode[:-1]), True).to_numpy(zero_copy_only=False)
        last = has_end.copy()
        last[:-1] |= other  # another number: what came before it is over, with an end or without
        edges = np.concatenate([[0], np.flatnonzero(last) + 1])
        starts, stops = edges[:-1], edges[1:]
        faults = self._faults(rows, starts, stops, has_end, shape, dtype, game)
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
        columns = columns_of_rows(rows, offsets_of(counts), self.widths, first + good_E, self.row + starts[good_E])
        yield from self._sound(columns, rows)

    def _faults(
        self,
        rows: dict[str, Any],
        starts: Array,
        stops: Array,
        has_end: Array,
        shape: tuple[int, ...],
        dtype: str,
        game: str,
    ) -> dict[int, dict[str, Any]]:
        """What keeps an episode from becoming columns, by its number here."""
        faults: dict[int, dict[str, Any]] = {}

        def fault(row: int, step: bool, kind: str, what: str, field: str, **facts: Any) -> None:
            e = int(np.searchsorted(stops, row, side="right"))
            place = {"step": row - int(starts[e])} if step else {}
            faults.setdefault(e, {"kind": kind, "what": what, "field": field, **place, **facts})

        for e in np.flatnonzero(~has_end[stops - 1]).tolist():
            fault(int(starts[e]), False, "no end", "an episode has no end, and another one follows", "end",
                  do="Write `end` in the row of each last step.")  # fmt: skip
        for name in ("player", "state", "actions", "chosen"):
            for row in null_rows(rows[name]):
                fault(row, True, "field", "a value is missing", name, expected="a value in each row")
        last = rows["players"].take(pa.array(stops - 1))
        if self.widths is None:
            lengths = pc.list_value_length(last).drop_null()
            if not len(lengths) or lengths[0].as_py() < 1:
                fault(0, False, "width", "an episode has no players", "players")
                return faults
            self.widths = Widths(game, lengths[0].as_py(), shape, dtype, *extra_widths(rows))
        here = Widths(game, self.widths.num_players, shape, dtype, *extra_widths(rows))
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
        if pa.types.is_list(rows["reward"].type) if "reward" in rows else False:
            lengths = pc.fill_null(pc.list_value_length(rows["reward"]), players).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(lengths != players).tolist():
                fault(row, True, "width", "reward has not one entry for each seat", "reward", expected=players)
        self._name_faults(rows, stops, fault)
        if self.widths.feature_size:
            same = pc.equal(pc.list_value_length(rows["actions"]), pc.list_value_length(rows["action_features"]))
            for row in np.flatnonzero(~pc.fill_null(same, False).to_numpy(zero_copy_only=False)).tolist():
                fault(row, True, "width", "there is not one row of features for each legal action", "action_features")
        return faults

    def _name_faults(self, rows: dict[str, Any], stops: Array, fault: Any) -> None:
        """Words that the format does not know."""
        unknown = pc.and_(pc.is_valid(rows["end"]), pc.is_null(pc.index_in(rows["end"], pa.array(ENDS))))
        for row in np.flatnonzero(unknown.to_numpy(zero_copy_only=False)).tolist():
            fault(row, False, "field", "there is no such end", "end", got=rows["end"][row].as_py(), expected=ENDS)
        players = rows["players"].take(pa.array(stops - 1))
        flat = players.flatten()
        wrong = pc.is_null(pc.index_in(pc.struct_field(flat, "controller"), pa.array(SEATS)))
        parents = pc.list_parent_indices(players).to_numpy(zero_copy_only=False)
        for cell in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist():
            fault(int(stops[parents[cell]]) - 1, False, "field", "there is no such controller", "players",
                  got=flat[cell].as_py()["controller"], expected=SEATS)  # fmt: skip

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
                                do="Copy the file anew from where it was written."))  # fmt: skip
        if good:
            yield columns if len(good) == len(columns) else columns.take(np.array(good))

    def _broken(self, error: BaseException) -> None:
        text = str(error).split("\n")[0] or type(error).__name__
        if any(mark in text.lower() for mark in _TAIL):
            self._tell("unfinished", "the file ends within a batch; it is read once it is whole", "the batch",
                       got=text, harmless=True)  # fmt: skip
            self.stopped = True
            return
        self._stop("damaged", "the file is damaged, and nothing can be read behind this place", "the batch", got=text,
                   do="Copy the file anew from where it was written.")  # fmt: skip

    def _stop(self, kind: str, what: str, field: str, **facts: Any) -> None:
        self.stopped = True
        self._tell(kind, what, field, **facts)

    def _tell(self, kind: str, what: str, field: str, **facts: Any) -> None:
        self.report(Problem(kind=kind, file=self.file, place=f"row {self.row}", what=what, field=field, **facts))
