"""Observations of other libraries as one row of numbers: flattened, padded to one width, the seat behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import GameError

MASK = "action_mask"


def flat_size(space: Any, where: str) -> int:
    """How many numbers `flatten` makes of what lies in a space of Gymnasium's.

    Raises:
        GameError: It is of a kind whose values have no fixed number of numbers.
    """
    kind = type(space).__name__
    if kind in ("Box", "MultiBinary"):
        return math.prod(space.shape)
    if kind == "Discrete":
        return int(space.n)
    if kind == "MultiDiscrete":
        return int(np.sum(space.nvec))
    if kind == "Dict":
        return sum(flat_size(space[key], where) for key in _keys(space.spaces))
    if kind == "Tuple":
        return sum(flat_size(part, where) for part in space.spaces)
    raise GameError(
        "this game cannot be played here, because its observations are no numbers of a fixed count",
        got=kind,
        expected="Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of them",
        where=where,
    )


def flatten(space: Any, value: Any) -> NDArray[np.float32]:
    """A value of a space as numbers: a Dict's keys in alphabetical order without "action_mask", arrays row by row.

    A number out of n (Discrete, MultiDiscrete) becomes n numbers, of which one is 1.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return _one_hot([int(value) - int(space.start)], [int(space.n)])
    if kind == "MultiDiscrete":
        start = np.broadcast_to(getattr(space, "start", 0), space.nvec.shape)
        return _one_hot((np.asarray(value) - start).ravel().tolist(), space.nvec.ravel().tolist())
    if kind == "Dict":
        parts = [flatten(space[key], value[key]) for key in _keys(space.spaces)]
    elif kind == "Tuple":
        parts = [flatten(part, one) for part, one in zip(space.spaces, value, strict=True)]
    else:
        return np.asarray(value, np.float32).ravel()
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def with_seat(sizes: Sequence[int]) -> NDArray[np.float32]:
    """An empty row for each seat, [P, S]: wide enough for the widest observation.

    Where the seats' widths differ, a one-hot of the seat stands behind it [P], for zeros alone would not tell them.
    """
    width, num_players = max(sizes), len(sizes)
    seats = np.eye(num_players, dtype=np.float32) if len(set(sizes)) > 1 else np.zeros((num_players, 0), np.float32)
    return np.concatenate([np.zeros((num_players, width), np.float32), seats], axis=1)


def filled(empty_S: NDArray[np.float32], values: NDArray[np.float32], width: int, where: str) -> NDArray[np.float32]:
    """A row of `with_seat` with an observation in it.

    Raises:
        GameError: The observation is wider than the game announced.
    """
    if len(values) > width:
        raise GameError("an observation is wider than announced", got=len(values), expected=f"{width}", where=where)
    row = empty_S.copy()
    row[: len(values)] = values
    return row


def _keys(spaces: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in spaces if key != MASK)


def _one_hot(places: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float32]:
    row = np.zeros(sum(sizes), np.float32)
    row[np.cumsum([0, *sizes[:-1]]) + np.asarray(places)] = 1.0
    return row
