"""The episode format movelist/1: the one description of its fields, for both encodings (docs/episode_format.md).

A `.jsonl` line is a `Record`. A row of `.arrows` is a `Step` with the same names, and an episode's own fields stand in
the row of its last step, the only one where `end` is not null.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.data.column import Column, further, spoken
from movelist.data.episode import COLUMNS, FURTHER, HUMAN, OTHER, POLICY

FORMAT = "movelist/1"
DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "uint8": np.uint8}
CONTROLLERS = {"policy": POLICY, "human": HUMAN, "other": OTHER}
CONTROLLER_NAMES = {number: name for name, number in CONTROLLERS.items()}

Array = NDArray[Any]


class Step(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One decision of one player.

    Attributes:
        player: The mover's seat.
        state: What the mover knew, flat, in the header's dtype.
        actions: The ids of the legal actions: distinct, at least one; integers or text, decimal or 0x.
        chosen: Index in `actions`.
        reward: A number: what the mover received since their own last step. A list: what each seat received from this
            step to the next one of anybody, or the end.
        log_prob: Of the chosen action, when it was chosen.
        critic_state: What a critic may know beyond the state.
        action_features: A row of numbers for each legal action.
        extra: The further columns that the header declares, by name: numbers, or a row of them for each legal action.
    """

    player: int
    state: list[float]
    actions: list[int | str]
    chosen: int
    reward: float | list[float] | UnsetType = UNSET
    log_prob: float | UnsetType = UNSET
    critic_state: list[float] | UnsetType = UNSET
    action_features: list[list[float]] | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET


class Player(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Who moved a seat; `policy_version` is the number of the checkpoint, if it was a policy."""

    controller: Literal["policy", "human", "other"]
    policy_version: int | UnsetType = UNSET


class Record(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One episode; `crc32` is the last field of its line and covers all bytes before `,"crc32"`.

    `extra` holds the declared columns of an episode (numbers) or a seat (a row of numbers for each).
    """

    format: str
    game: str
    players: list[Player]
    steps: list[Step]
    end: Literal["terminated", "truncated"]
    episode: int | str | UnsetType = UNSET
    returns: list[float] | UnsetType = UNSET
    final_states: list[list[float]] | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET
    crc32: str | UnsetType = UNSET


class Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A first line of `.jsonl`, or the metadata of `.arrows`; without one, states are flat float32.

    `columns` declares what `extra` holds; see `Column`.
    """

    format: str
    state_shape: list[int]
    state_dtype: Literal["float32", "float16", "uint8"]
    columns: list[dict[str, Any]] | UnsetType = UNSET
    crc32: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Widths:
    """What is constant in a file, and has to agree with the run.

    Attributes:
        game: Its name.
        num_players: P.
        state_shape: Of one state; a state is flat in the file.
        state_dtype: "float32", "float16" or "uint8".
        critic_size: Width of `critic_state`; 0 without.
        feature_size: Width of a row of `action_features`; 0 without.
        columns: The further columns.
    """

    game: str
    num_players: int
    state_shape: tuple[int, ...]
    state_dtype: str = "float32"
    critic_size: int = 0
    feature_size: int = 0
    columns: tuple[Column, ...] = ()

    @property
    def further(self) -> dict[Column, int]:
        """The columns that not all recordings have, and their widths."""
        own = dict(zip(FURTHER, (self.critic_size, self.feature_size), strict=True))
        return {column: width for column, width in own.items() if width} | {
            column: column.width or 0 for column in self.columns
        }

    @property
    def state_size(self) -> int:
        """S."""
        return math.prod(self.state_shape)

    def difference(self, other: Widths) -> tuple[str, object, object] | None:
        """The first field that differs, with what stands here and there; None if these agree."""
        for name, field in (
            ("game", "game"),
            ("num_players", "players"),
            ("state_size", "state"),
            ("state_dtype", "state_dtype"),
            ("critic_size", "critic_state"),
            ("feature_size", "action_features"),
            ("columns", "columns"),
        ):
            if getattr(self, name) != getattr(other, name):
                return field, getattr(self, name), getattr(other, name)
        return None


def check_header(header: Header, where: str) -> tuple[tuple[int, ...], str]:
    """The state's shape and dtype.

    Raises:
        DataError: Another format, or a shape that holds nothing.
    """
    if header.format != FORMAT:
        raise DataError("this is another format", got=repr(header.format), expected=FORMAT, where=f"{where}, format")
    if not header.state_shape or min(header.state_shape) < 1:
        raise DataError("a state has no such shape", got=header.state_shape, where=f"{where}, state_shape")
    return tuple(header.state_shape), header.state_dtype


def arrow_schema(widths: Widths, *, episode: pa.DataType, reward: pa.DataType | None = None) -> pa.Schema:
    """The columns of `.arrows`.

    Args:
        widths: Of the file.
        episode: int64 or utf8.
        reward: float64 (looking back) or a list of them (one for each seat).
    """
    state = pa.list_(pa.from_numpy_dtype(DTYPES[widths.state_dtype]), widths.state_size)
    columns: dict[str, pa.DataType] = {
        "episode": episode,
        "player": pa.int32(),
        "state": state,
        "actions": pa.list_(pa.uint64()),
        "chosen": pa.int32(),
        "reward": reward or pa.float64(),
        "log_prob": pa.float32(),
    }
    for column, width in widths.further.items():
        columns[arrow_name(column)] = arrow_type(column, width)
    columns["returns"] = pa.list_(pa.float64())
    columns["end"] = pa.utf8()
    columns["final_states"] = pa.list_(state)
    columns["players"] = pa.list_(pa.struct([("controller", pa.utf8()), ("policy_version", pa.int64())]))
    columns["crc32"] = pa.uint32()
    metadata = {
        "format": FORMAT,
        "game": widths.game,
        "state_shape": ",".join(map(str, widths.state_shape)),
        "state_dtype": widths.state_dtype,
    }
    if widths.columns:
        metadata["columns"] = msgspec.json.encode(spoken(widths.columns)).decode("ascii")
    return pa.schema(list(columns.items()), metadata=metadata)


ARROW_FIELDS = {*Step.__struct_fields__, *Record.__struct_fields__} - {"format", "game", "steps", "extra"}


def arrow_name(column: Column) -> str:
    """A column's name in `.arrows`, where a further one cannot be taken for a field of the format."""
    return column.field or f"extra.{column.name}"


def arrow_type(column: Column, width: int) -> pa.DataType:
    """A column's type in `.arrows`: what an episode or a seat has stands in the row of the last step."""
    row = pa.list_(pa.from_numpy_dtype(np.dtype(column.dtype)), width)
    return pa.list_(row) if column.per in ("action", "seat") else row


def declared_columns(columns: Any, where: str) -> tuple[Column, ...]:
    """The further columns that a header declares.

    Raises:
        DataError: One cannot be kept.
    """
    return (
        ()
        if columns is UNSET
        else further(columns, dict.fromkeys([*ARROW_FIELDS, *(column.name for column in COLUMNS)]), where)
    )


def rows_crc(columns: Sequence[Array]) -> int:
    """CRC-32 of an episode's arrays one after another, as docs/episode_format.md lists them."""
    crc = 0
    for column in columns:
        crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
    return crc


def line_crc(line: bytes) -> tuple[int, int] | None:
    """The checksum that a line states and the one that it has; None if it states none."""
    head, mark, tail = line.rpartition(b',"crc32":"')
    if not mark or len(tail) != 10 or tail[8:] != b'"}':
        return None
    try:
        return int(tail[:8], 16), zlib.crc32(head)
    except ValueError:
        return None
