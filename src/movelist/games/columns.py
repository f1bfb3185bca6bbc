"""What a game's states tell beside what they show: columns of one's own, for networks of one's own.

A game declares them as its attribute `columns`, a sequence of `Column` objects; then its States have a method
`columns() -> Mapping[str, ArrayLike]`, the values by name. At each decision those per step [width] and per action
[length of the list, width] are read, once the game is over or cut off those per episode [width] and seat [P, width].
`critic_state` (per step) and `action_features` (per action) go to the fields that Episodes has for them. These two need
no declaration where a State has a method for them: `action_features() -> [A, F]` and `observe_all() -> [C]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core.errors import GameError
from movelist.data.column import Column, further
from movelist.data.episode import COLUMNS, FURTHER
from movelist.games.game import Game, State, code_failed, game_name, start_game

Array = NDArray[Any]
FEATURES, CRITIC = "action_features", "critic_state"
_METHODS = {FEATURES: "action_features", CRITIC: "observe_all"}  # of a State, where `columns` does not tell it
_FORMS = {FEATURES: "a row of numbers for each legal action, [A, F]", CRITIC: "a row of numbers, [C]"}


def game_columns(game: Game, fresh: State | None = None, *, critic: bool = False) -> tuple[Column, ...]:
    """The columns that a game's states tell beside what they show.

    Args:
        game: The game.
        fresh: A fresh state of it, which is asked for the widths; None makes one.
        critic: Read what a critic may know, too, where it has to be asked for.

    Raises:
        DataError: One cannot be kept.
        GameError: A method returns something else, or there is none for a critic.
    """
    columns = _declared(game)
    names = [column.name for column in columns]
    state = start_game(game, 0, game.num_players) if fresh is None else fresh
    where = f"{game_name(game)}, seed 0, turn 1"
    if FEATURES not in names and hasattr(state, _METHODS[FEATURES]):
        columns += (Column(FEATURES, per="action", width=_width(state, FEATURES, where)),)
    if critic and CRITIC not in names:
        if not hasattr(state, _METHODS[CRITIC]):
            raise GameError("a critic is to see all, and this game does not tell it", where=game_name(game),
                            do="Give its states a method observe_all, or say --critic_sees state.")  # fmt: skip
        columns += (Column(CRITIC, per="step", width=_width(state, CRITIC, where)),)
    return columns


def width_of(columns: Sequence[Column], name: str) -> int:
    """The width of the column of this name; 0 without."""
    return next((column.width or 0 for column in columns if column.name == name), 0)


def _width(state: State, name: str, where: str) -> int:
    """How many numbers a row has that a fresh state tells by a method of its own."""
    try:
        value = np.asarray(getattr(state, _METHODS[name])())
    except Exception as error:
        raise code_failed(error, where) from error
    if value.ndim != (2 if name == FEATURES else 1) or not value.shape[-1] or value.dtype.kind not in "fiub":
        raise GameError(f"{_METHODS[name]} returns something else", got=f"{value.dtype} {list(value.shape)}",
                        expected=_FORMS[name], where=where)  # fmt: skip
    return int(value.shape[-1])


def _declared(game: Game) -> tuple[Column, ...]:
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
    told = _told(state, columns)
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


def _told(state: State, columns: Sequence[Column]) -> Mapping[str, ArrayLike]:
    """What the state says, by name: by `columns`, where it has that, and by the methods for single ones."""
    methods = {column.name: _METHODS[column.name] for column in columns if column.name in _METHODS}
    told: dict[str, ArrayLike] = {}
    if len(methods) < len(columns) or hasattr(state, "columns"):
        told.update(state.columns())  # type: ignore[attr-defined]  # of a game that declares columns
    for name, method in methods.items():
        if name not in told and hasattr(state, method):
            told[name] = getattr(state, method)()
    return told
