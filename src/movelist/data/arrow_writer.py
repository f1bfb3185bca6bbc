"""Writes `.arrows`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from movelist.data.arrow_columns import SEATS, episode_crcs
from movelist.data.record_format import arrow_name, arrow_schema
from movelist.data.record_rules import LOOKING_ON, NO_VERSION, Columns

Array = NDArray[Any]
BATCH_ROWS = 8192
BATCH_BYTES = 64 << 20  # a reader refuses batches of more than arrow_frames.MAX_MESSAGE_BYTES


class ArrowsWriter:
    """Writes episodes in batches of about 8,192 rows or 64 MB; another kind of reward begins a stream.

    Args:
        path: Ends in .arrows; added to, as a further stream, if it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = path.open("ab")
        self._stream: Any = None
        self._stream_schema: Any = None

    def write(self, columns: Columns) -> None:
        """Add these episodes."""
        ends = columns.raw.episode_offsets
        first = 0
        while first < len(columns):
            last = max(first + 1, int(np.searchsorted(ends, ends[first] + BATCH_ROWS, side="right")) - 1)
            on_E = columns.reward_form_E[first:last] == LOOKING_ON
            changes = np.flatnonzero(on_E != on_E[0])
            last = first + int(changes[0]) if len(changes) else last
            whole = first == 0 and last == len(columns)
            self._write_batch(columns if whole else columns.take(np.arange(first, last)))
            first = last

    def close(self) -> None:
        """Finish the file."""
        stream, self._stream = self._stream, None
        try:
            if stream is not None:
                stream.close()
        finally:
            self._file.close()

    def _write_batch(self, columns: Columns) -> None:
        lists = columns.reward_form_E[0] == LOOKING_ON
        reward = pa.list_(pa.float64()) if lists else pa.float64()
        schema = arrow_schema(columns.widths, episode=pa.int64(), reward=reward)
        if self._stream is None or self._stream_schema != schema:
            if self._stream is not None:
                self._stream.close()
            self._stream, self._stream_schema = pa.ipc.new_stream(self._file, schema), schema
        # Lists that stand beside, in other episodes of a piece, are in no column here, so they belong into no checksum.
        arrays = _arrays(columns if lists else replace(columns, reward_NP=None), lists)
        self._write(pa.record_batch([arrays[field.name].cast(field.type) for field in schema], schema=schema))

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.nbytes <= BATCH_BYTES or len(batch) == 1:
            self._stream.write_batch(batch)
            return
        half = len(batch) // 2
        self._write(batch.slice(0, half))
        self._write(batch.slice(half))


def _arrays(columns: Columns, lists: bool) -> dict[str, Any]:
    raw = columns.raw
    last = raw.episode_offsets[1:] - 1
    size, state = columns.widths.state_size, raw.state_NS
    reward = pa.array(raw.reward_N, mask=np.isnan(raw.reward_N))
    if lists and columns.reward_NP is not None:
        reward = _list(columns.reward_NP)
    has_returns = ~np.isnan(raw.return_EP).all(axis=1)
    versions = columns.version_EP.reshape(-1)
    seats = pa.StructArray.from_arrays(
        [
            pa.array(np.array(SEATS, object)[raw.controller_EP.reshape(-1)], pa.utf8()),
            pa.array(versions, pa.int64(), mask=versions == NO_VERSION),
        ],
        names=["controller", "policy_version"],
    )
    arrays = {
        "episode": pa.array(columns.ordinal_E[raw.episode_N]),
        "player": pa.array(raw.player_N),
        "state": pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), size),
        "actions": pa.ListArray.from_arrays(
            pa.array(raw.action_offsets, pa.int32()), pa.array(raw.action_id_A.view(np.uint64))
        ),
        "chosen": pa.array(raw.chosen_N),
        "reward": reward,
        "log_prob": pa.array(raw.log_prob_N, mask=np.isnan(raw.log_prob_N)),
        "returns": _at(raw.num_steps, last[has_returns], _list(raw.return_EP[has_returns])),
        "end": _at(raw.num_steps, last, pa.array(np.where(raw.truncated_E, "truncated", "terminated"))),
        "players": _at(raw.num_steps, last, _rows_of(seats, len(last), columns.widths.num_players)),
        "crc32": _at(raw.num_steps, last, pa.array(episode_crcs(columns), pa.uint32())),
    }
    none = np.zeros((0, columns.widths.num_players, size), state.dtype)
    has_final = columns.has_final_E if raw.final_state_EPS is not None else np.zeros(len(last), bool)
    final = none if raw.final_state_EPS is None else raw.final_state_EPS[has_final]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(final.reshape(-1)), size)
    arrays["final_states"] = _at(raw.num_steps, last[has_final], _rows_of(rows, len(final), columns.widths.num_players))
    for column, values in raw.further().items():
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[-1])
        if column.per == "action":
            rows = pa.ListArray.from_arrays(pa.array(raw.action_offsets, pa.int32()), rows)
        elif column.per == "seat":
            rows = _rows_of(rows, len(last), columns.widths.num_players)
        arrays[arrow_name(column)] = rows if column.by_turn else _at(raw.num_steps, last, rows)
    return arrays


def _list(block: Array) -> Any:
    return _rows_of(pa.array(block.reshape(-1)), *block.shape)


def _rows_of(flat: Any, num_rows: int, width: int) -> Any:
    return pa.ListArray.from_arrays(pa.array(np.arange(num_rows + 1) * width, pa.int32()), flat)


def _at(num_rows: int, places: Array, values: Any) -> Any:
    """The values at these rows, and nothing elsewhere."""
    index = np.zeros(num_rows, np.int64)
    index[places] = np.arange(len(places))
    mask = np.ones(num_rows, bool)
    mask[places] = False
    return values.take(pa.array(index, mask=mask))
