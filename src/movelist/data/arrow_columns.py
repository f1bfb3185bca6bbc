"""Rows of `.arrows` as columns: the schema checked, missing values found, the arrays viewed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.data.column import Column
from movelist.data.episode import Episodes, arguments
from movelist.data.record_format import (
    ARROW_FIELDS,
    CONTROLLER_NAMES,
    DTYPES,
    Header,
    Widths,
    arrow_name,
    arrow_type,
    check_header,
    declared_columns,
    rows_crc,
)
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, NO_REWARD, NO_VERSION, Columns

Array = NDArray[Any]
SEATS = [CONTROLLER_NAMES[number] for number in sorted(CONTROLLER_NAMES)]


def metadata(schema: pa.Schema) -> tuple[tuple[int, ...], str, str]:
    """State shape, dtype and game of a stream.

    Raises:
        DataError: They are missing or make no sense.
    """
    said = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in (schema.metadata or {}).items()
    }
    for key in ("format", "game", "state_shape", "state_dtype"):
        if key not in said:
            raise DataError("the schema's metadata lack a key", expected=key, where=key)
    if said["state_dtype"] not in DTYPES or not said["state_shape"].replace(",", "").isdecimal():
        got = f"{said['state_dtype']} {said['state_shape']}"
        raise DataError("a state has no such dtype or shape", got=got, expected=sorted(DTYPES), where="state_dtype")
    shape = [int(size) for size in said["state_shape"].split(",") if size]
    header = Header(format=said["format"], state_shape=shape, state_dtype=said["state_dtype"])
    return *check_header(header, "metadata"), said["game"]


def check_schema(schema: pa.Schema) -> None:
    """Refuse columns that the format does not have, or not of that type.

    Raises:
        DataError: Names the first one.
    """
    types = pa.types

    def is_numbers(kind: Any) -> bool:
        return bool(types.is_floating(kind))

    def is_list(kind: Any) -> bool:
        return bool(types.is_list(kind) or types.is_fixed_size_list(kind))

    def is_seat(kind: Any) -> bool:
        fields = {field.name: field.type for field in kind}
        version = fields.pop("policy_version", pa.int64())
        return fields == {"controller": pa.utf8()} and types.is_integer(version) and version != pa.uint64()

    checks: dict[str, Callable[[Any], bool]] = {
        "episode": lambda kind: types.is_integer(kind) or types.is_string(kind),
        "player": types.is_integer,
        "state": types.is_fixed_size_list,
        "actions": lambda kind: types.is_list(kind) and kind.value_type in (pa.uint64(), pa.int64()),
        "chosen": types.is_integer,
        "reward": lambda kind: is_numbers(kind) or (types.is_list(kind) and is_numbers(kind.value_type)),
        "log_prob": is_numbers,
        "critic_state": lambda kind: types.is_fixed_size_list(kind) and is_numbers(kind.value_type),
        "action_features": lambda kind: types.is_list(kind)
        and types.is_fixed_size_list(kind.value_type)
        and is_numbers(kind.value_type.value_type),
        "returns": lambda kind: types.is_list(kind) and is_numbers(kind.value_type),
        "end": types.is_string,
        "final_states": lambda kind: types.is_list(kind) and types.is_fixed_size_list(kind.value_type),
        "players": lambda kind: types.is_list(kind) and types.is_struct(kind.value_type) and is_seat(kind.value_type),
        "crc32": lambda kind: kind == pa.uint32(),
    }  # fmt: skip
    for name in ("episode", "player", "state", "actions", "chosen", "end", "players"):
        if name not in schema.names:
            raise DataError("a column is missing", expected=name, where=name)
    for column in extra_columns(schema):
        name, kind = arrow_name(column), arrow_type(column, column.width or 0)
        if name not in schema.names:
            raise DataError("a column is missing", expected=name, where=name)
        checks[name] = kind.__eq__
    for field in schema:
        if field.name not in checks or schema.names.count(field.name) > 1:
            raise DataError(
                "there is no such column, or twice", got=field.name, expected=sorted(ARROW_FIELDS), where=field.name
            )
        if not checks[field.name](field.type):
            raise DataError(
                "a column has another type", got=str(field.type), expected="docs/episode_format.md", where=field.name
            )
    _, dtype, _ = metadata(schema)
    state = schema.field("state").type
    if state.value_type != pa.from_numpy_dtype(DTYPES[dtype]):
        raise DataError(
            "states have another dtype than the metadata say", got=str(state), expected=dtype, where="state"
        )
    if state.list_size != int(np.prod(metadata(schema)[0])):
        raise DataError("states have another width than the metadata say", got=state.list_size, where="state")
    if "final_states" in schema.names:
        final = schema.field("final_states").type.value_type
        if (final.value_type, final.list_size) != (state.value_type, state.list_size):
            raise DataError("final states are no states", got=str(final), expected=str(state), where="final_states")


def extra_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """The further columns that a stream's metadata declare.

    Raises:
        DataError: They cannot be read.
    """
    said = (schema.metadata or {}).get(b"columns", b"[]")
    try:
        return declared_columns(msgspec.json.decode(said, type=list[dict[str, Any]]), "columns")
    except msgspec.MsgspecError as error:
        raise DataError("the columns in the schema's metadata cannot be read", got=error, where="columns") from None


def extra_widths(rows: dict[str, Any]) -> tuple[int, int]:
    critic = rows["critic_state"].type.list_size if "critic_state" in rows else 0
    return critic, rows["action_features"].type.value_type.list_size if "action_features" in rows else 0


def null_rows(column: Any) -> list[int]:
    """Rows without a value, or with one that has a gap inside."""
    rows: list[int] = []
    if column.null_count:
        rows += np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
    if hasattr(column, "flatten") and (inside := column.flatten()).null_count:
        parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        rows += parents[inside.is_null().to_numpy(zero_copy_only=False)].tolist()
    return rows


def _numbers(column: Any, dtype: type = np.float64) -> Array:
    """Floats where a missing value is NaN, and NaN itself, which no field may be, is infinity."""
    with np.errstate(over="ignore"):  # becomes infinity, which the rules refuse
        values: Array = column.to_numpy(zero_copy_only=False).astype(dtype)
    if np.isnan(values).any():
        values[np.isnan(values) & column.is_valid().to_numpy(zero_copy_only=False)] = np.inf
    return values


def _matrix(column: Any, width: int, dtype: Any) -> Array:
    """A list column of one width as [rows, width]; a missing row is NaN (0 in integers)."""
    flat = column.flatten()
    with np.errstate(over="ignore"):
        values = flat.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    if np.issubdtype(dtype, np.floating) and flat.null_count:
        values = np.where(flat.is_null().to_numpy(zero_copy_only=False), np.inf, values).astype(dtype)
    if not column.null_count:
        block: Array = values.reshape(len(column), width)
        return block
    full = np.full((len(column), width), np.nan if np.issubdtype(dtype, np.floating) else 0, dtype)
    full[column.is_valid().to_numpy(zero_copy_only=False)] = values.reshape(-1, width)
    return full


def columns_of_rows(rows: dict[str, Any], offsets: Array, widths: Widths, places: dict[str, Array]) -> Columns:
    """Rows of whole episodes as columns; `places` are Columns' ordinal_E, line_E and next_E4."""
    players, size, dtype = widths.num_players, widths.state_size, DTYPES[widths.state_dtype]
    num_rows = int(offsets[-1])
    last = pa.array(offsets[1:] - 1)
    ends = {name: rows[name].take(last) for name in ("returns", "final_states", "players", "end") if name in rows}
    action_offsets = rows["actions"].offsets.to_numpy().astype(np.int64)
    ids = rows["actions"].values.to_numpy()[action_offsets[0] : action_offsets[-1]].view(np.int64)
    reward = rows.get("reward")
    lists = reward is not None and pa.types.is_list(reward.type)
    reward_NP = _matrix(reward, players, np.float64) if lists else None
    reward_N = np.full(num_rows, np.nan) if lists or reward is None else _numbers(reward)
    given_N = np.zeros(num_rows, bool) if reward is None else reward.is_valid().to_numpy(zero_copy_only=False)
    given_E = np.maximum.reduceat(given_N, offsets[:-1])
    final_EPS, has_final_E = None, np.zeros(len(last), bool)
    if "final_states" in ends and ends["final_states"].null_count < len(last):
        has_final_E = ends["final_states"].is_valid().to_numpy(zero_copy_only=False)
        final_EPS = np.zeros((len(last), players, size), dtype)
        final_EPS[has_final_E] = _matrix(ends["final_states"].flatten(), size, dtype).reshape(-1, players, size)
    seats = ends["players"].flatten()
    controller = pc.index_in(pc.struct_field(seats, "controller"), pa.array(SEATS)).to_numpy(zero_copy_only=False)
    version = np.full(len(seats), NO_VERSION, np.int64)
    if any(field.name == "policy_version" for field in seats.type):
        stated = pc.fill_null(pc.struct_field(seats, "policy_version").cast(pa.int64()), NO_VERSION)
        version = stated.to_numpy(zero_copy_only=False)
    raw = Episodes(
        state_NS=_matrix(rows["state"], size, dtype),
        player_N=rows["player"].to_numpy().astype(np.int64),
        action_offsets=action_offsets - action_offsets[0],
        action_id_A=ids,
        chosen_N=rows["chosen"].to_numpy().astype(np.int64),
        log_prob_N=_numbers(rows["log_prob"], np.float32)
        if "log_prob" in rows
        else np.full(num_rows, np.nan, np.float32),
        reward_N=reward_N,
        episode_offsets=offsets,
        return_EP=_matrix(ends["returns"], players, np.float64)
        if "returns" in ends
        else np.full((len(last), players), np.nan),
        truncated_E=pc.equal(ends["end"], "truncated").to_numpy(zero_copy_only=False),
        controller_EP=controller.astype(np.int8).reshape(-1, players),
        final_state_EPS=final_EPS,
        **arguments({column: _further(column, rows, last, widths) for column in widths.further}),
        num_turns=num_rows,
    )
    return Columns(
        widths=widths,
        raw=raw,
        reward_NP=reward_NP,
        reward_form_E=np.where(given_E, LOOKING_ON if lists else LOOKING_BACK, NO_REWARD).astype(np.int8),
        has_final_E=has_final_E,
        version_EP=version.reshape(-1, players),
        **places,
    )


def _further(column: Column, rows: dict[str, Any], last: Any, widths: Widths) -> Array:
    """A further column."""
    values, width = rows[arrow_name(column)], widths.further[column]
    values = values if column.by_turn else values.take(last)
    flat = values.flatten() if column.per in ("action", "seat") else values
    block = _matrix(flat, width, np.dtype(column.dtype))
    if column.optional and not column.field and flat.null_count:
        block[flat.is_null().to_numpy(zero_copy_only=False)] = column.fill
    return block.reshape(-1, widths.num_players, width) if column.per == "seat" else block


def episode_crcs(columns: Columns) -> list[int]:
    """The checksum of each episode, over its arrays in this order, a missing number as 0."""
    raw = columns.raw
    per_step = [raw.player_N, raw.state_NS, np.diff(raw.action_offsets)]
    behind = [raw.chosen_N, np.nan_to_num(raw.reward_N, nan=0.0), np.nan_to_num(raw.log_prob_N, nan=0.0)]
    if columns.reward_NP is not None:
        behind.append(np.nan_to_num(columns.reward_NP, nan=0.0))
    behind += [] if raw.critic_state_NC is None else [raw.critic_state_NC]
    rows = [
        np.nan_to_num(raw.return_EP, nan=0.0),
        raw.truncated_E.astype(np.int8),
        raw.controller_EP,
        columns.version_EP,
    ]
    crcs = []
    for e, (start, stop) in enumerate(pairwise(raw.episode_offsets.tolist())):
        actions = slice(int(raw.action_offsets[start]), int(raw.action_offsets[stop]))
        parts = [column[start:stop] for column in per_step]
        parts.append(raw.action_id_A[actions])
        parts += [column[start:stop] for column in behind]
        parts += [column[e : e + 1] for column in rows]
        if columns.has_final_E[e] and raw.final_state_EPS is not None:
            parts.append(raw.final_state_EPS[e])
        parts += [] if raw.feature_AF is None else [raw.feature_AF[actions]]
        places: dict[str, Any] = {"step": slice(start, stop), "action": actions, "episode": e, "seat": e}
        parts += [array[places[column.per]] for column, array in raw.extra.items()]
        crcs.append(rows_crc(parts))
    return crcs
