"""What a game's states tell beside what they show: columns of one's own, for networks of one's own.

A game declares them as its attribute `columns`, a sequence of `Column` objects; then its States have a method
`columns() -> Mapping[str, ArrayLike]`, the values by name. At each decision those per step [width] and per action
[length of the list, width] are read, once the game is over or cut off those per episode [width] and seat [P, width].
`critic_state` (per step) and `action_features` (per action) go to the fields that Episodes has for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core.errors import GameError
from movelist.data.column import Column, further
from movelist.data.episode import COLUMNS, FURTHER
from movelist.games.game import Game, State, game_name

Array = NDArray[Any]


def game_columns(game: Game) -> tuple[Column, ...]:
    """The columns that a game's states tell beside what they show.

    Raises:
        DataError: One cannot be kept.
    """
    if not (declared := getattr(game, "columns", ())):
        return ()
    own = {column.label: column.per for column in FURTHER}
    columns = further(declared, {column.name: None for column in COLUMNS}, game_name(game))
    for column in columns:
        per = own.get(column.name, column.per)
        if (column.per, column.dtype) != (per, "float32" if column.name in own else column.dtype):
            raise GameError("a column of Episodes is declared in another way", got=f"per {column.per}, {column.dtype}",
                            expected=f"per {per}, float32", where=f"{game_name(game)}, {column.name}")  # fmt: skip
    return columns


def read_columns(
    state: State, columns: Sequence[Column], rows: Mapping[str, int], where: object
) -> dict[Column, Array]:
    """What a state tells of some columns, [width] or [rows, width].

    Args:
        state: Of a game that declares them.
        columns: Those to be read.
        rows: How many rows there are to be of what has several: "action" and "seat".
        where: For the error.

    Raises:
        GameError: One is missing, or of another form.
    """
    told: Mapping[str, ArrayLike] = state.columns()  # type: ignore[attr-defined]  # of a game that declares columns
    made: dict[Column, Array] = {}
    for column in columns:
        form = (*([rows[column.per]] if column.per in rows else []), column.width or 0)
        if column.name in told:
            with np.errstate(over="ignore"):  # becomes infinity, which the rules of Episodes refuse
                value = np.asarray(told[column.name]).astype(column.dtype)
        elif column.optional:
            value = np.full(form, column.fill, column.dtype)
        else:
            raise GameError("a state does not tell a column", got=sorted(told), expected=column.name,
                            where=str(where))  # fmt: skip
        if value.shape != form:
            raise GameError("a column has another form", got=f"shape {list(value.shape)}", expected=f"{list(form)}",
                            where=f"{where}, {column.name}")  # fmt: skip
        made[column] = value
    return made
