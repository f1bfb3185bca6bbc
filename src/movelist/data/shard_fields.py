"""What a shard of a store keeps beside what training takes, so that a store can become a recording again.

A store with forced turns holds each recorded field. One without holds the decisions: rewards are written so that they
credit each decision with the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.data.column import Column
from movelist.data.episode import COLUMNS, Episodes, arguments
from movelist.data.record_format import DTYPES, Widths
from movelist.data.record_rules import Columns, columns_of

Array = NDArray[Any]


def tensors_of(episodes: Episodes) -> dict[str, Array]:
    """The columns of these episodes that a store keeps, by their names in a shard."""
    columns = {_name(column): array for column, array in episodes.columns().items() if column.stored}
    return columns | {"action_offsets": episodes.action_offsets, "episode_offsets": episodes.episode_offsets}


def episodes_of(tensors: Mapping[str, Array], declared: Sequence[Column]) -> Episodes:
    """The episodes of a shard; `declared` are the further columns that the store says it has."""
    there = {column: tensors[_name(column)] for column in (*COLUMNS, *declared) if _name(column) in tensors}
    offsets = tensors["action_offsets"], tensors["episode_offsets"]
    return Episodes(**arguments(there), action_offsets=offsets[0], episode_offsets=offsets[1])


def _name(column: Column) -> str:
    return column.name if column in COLUMNS else f"extra.{column.name}"


def shard_fields(columns: Columns, *, keep_forced: bool) -> dict[str, Array]:
    """The fields of these episodes that training does not take, by their names in a shard."""
    raw = columns.raw
    fields: dict[str, Array] = {"has_final_E": columns.has_final_E}
    if keep_forced:
        fields["recorded_reward_N"] = raw.reward_N
        fields["reward_form_E"] = columns.reward_form_E
        fields["has_return_E"] = np.asarray(np.isfinite(raw.return_EP).any(axis=1))
        nothing_NP = np.full((raw.num_steps, raw.num_players), np.nan)
        fields["reward_NP"] = nothing_NP if columns.reward_NP is None else columns.reward_NP
    return fields


def join_fields(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Several parts' fields as one, in order; lists of rewards only where there are any."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "reward_NP" in joined and np.isnan(joined["reward_NP"]).all():
        del joined["reward_NP"]
    return joined


def recorded_again(episodes: Episodes, fields: Mapping[str, Array], widths: Widths, *, first: int) -> Columns:
    """The episodes of a shard as a recording holds them; those without a step, all forced turns once, are left out.

    Args:
        episodes: Credited, as training takes them.
        fields: All tensors of the shard.
        widths: Of the store.
        first: Number of the first episode.
    """
    dtype, final = DTYPES[widths.state_dtype], episodes.final_state_EPS
    wide = replace(
        episodes,
        state_NS=episodes.state_NS.astype(dtype),
        final_state_EPS=None if final is None else final.astype(dtype),
        num_turns=episodes.num_steps,
    )
    columns = columns_of(wide, widths.game, fields["version_EP"], first=first)
    columns = replace(
        columns,
        widths=widths,
        has_final_E=fields.get("has_final_E", columns.has_final_E),
    )
    if "recorded_reward_N" in fields:
        return_EP = np.where(fields["has_return_E"][:, None], wide.return_EP, np.nan)
        columns = replace(
            columns,
            raw=replace(wide, reward_N=fields["recorded_reward_N"], return_EP=return_EP),
            reward_NP=fields.get("reward_NP"),
            reward_form_E=fields["reward_form_E"],
        )
    return columns.take(np.flatnonzero(np.diff(wide.episode_offsets) > 0))
