"""What a column of episodes is: its name, what it has rows for, its numbers, and what stands where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from movelist.core.errors import DataError

Array = NDArray[Any]
Per = Literal["step", "action", "episode", "seat"]
EXTRA_DTYPES = ("float32", "float64", "float16", "int64", "int8", "uint8")  # what recordings and the store can hold


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `Episodes`: one of its own, or one that a game, a recording or a program of yours declares.

    Example: `Column("hint", per="step", width=3)` of a game whose states answer `columns()` with
    `{"hint": [0.0, 1.0, 0.0]}` is float32 [N, 3] in `Episodes.extra`.

    Attributes:
        name: In `Episodes`; a further column's name is the same in games and recordings.
        per: What it has a row for: a step, each legal action of a step, an episode, or each seat of an episode.
        dtype: Of its numbers, by numpy's name.
        width: Numbers in a row; 0 is a number without a dimension of its own, None is any width.
        optional: Episodes without it are fine.
        fill: What stands in the rows of episodes without it, where others beside them have it.
        stored: A store keeps it.
        field: The name of one of `Episodes`' own columns in games and recordings, if it differs.
    """

    name: str
    per: Per
    dtype: str = "float32"
    width: int | None = 1
    optional: bool = False
    fill: float = 0.0
    stored: bool = True
    field: str = ""

    @property
    def label(self) -> str:
        """The name in games and recordings."""
        return self.field or self.name

    @property
    def by_turn(self) -> bool:
        """Whether it is known at each decision, and not only when the episode is over."""
        return self.per in ("step", "action")

    def check(self, array: Array, rows: tuple[int, ...], where: str) -> None:
        """Refuse another shape or kind of number.

        Raises:
            DataError: Names the column.
        """
        kind = np.dtype(self.dtype).kind
        if array.dtype.kind not in _KINDS[kind]:
            expected = {"b": "bool", "f": "a number"}.get(kind, "an integer")
            raise _refusal("a column has the wrong dtype", where, self.name, array.dtype, expected)
        if array.shape[: len(rows)] != rows or (self.width == 0 and array.ndim != len(rows)):
            if len(rows) == 1:
                raise _refusal("columns differ in length", where, self.name, len(array), rows[0])
            raise _refusal("columns differ in shape", where, self.name, list(array.shape), list(rows))
        if self.width and array.shape[len(rows) :] != (self.width,):
            raise _refusal("a column has another width", where, self.name, list(array.shape), [*rows, self.width])

    def filled(self, rows: tuple[int, ...], like: Array) -> Array:
        """Rows that are missing, beside others of this width and dtype."""
        fill = None if like.dtype == object else self.fill
        return np.full((*rows, *like.shape[len(rows) :]), fill, like.dtype)


_KINDS = {"i": "iu", "u": "iu", "b": "b", "f": "fiub", "O": "O"}


def _refusal(what: str, where: str, name: str, got: object, expected: object) -> DataError:
    return DataError(what, got=got, expected=expected, where=f"{where}, field {name}")


def declared(per: Per, dtype: DTypeLike, width: int | None = 0, **facts: Any) -> dict[str, Any]:
    """The metadata of a dataclass field that is a column; see `Column`."""
    return {"per": per, "dtype": np.dtype(dtype).name, "width": width, **facts}


def further(columns: Any, reserved: Mapping[str, object], where: str) -> tuple[Column, ...]:
    """Columns that are not `Episodes`' own, checked.

    Args:
        columns: What a game declares: `Column` objects; or what a file says: mappings of their attributes.
        reserved: Names that are taken.
        where: For the error.

    Raises:
        DataError: One is none that can be kept, or a name is there twice.
    """
    made: list[Column] = []
    try:
        for column in columns:
            made.append(column if isinstance(column, Column) else Column(**column))
    except TypeError as error:
        raise DataError("this declares no column", got=error, expected="Column(name, per=...)", where=where) from None
    names = set(reserved)
    for column in made:
        if not isinstance(column.name, str) or not column.name.isidentifier() or column.name in names:
            raise DataError("a column cannot have this name", got=repr(column.name), where=where,
                            expected="letters, digits and _, and no name that is taken")  # fmt: skip
        names.add(column.name)
        if column.per not in get_args(Per):
            raise DataError("a column has rows for something else", got=repr(column.per),
                            expected=" or ".join(get_args(Per)), where=f"{where}, {column.name}")  # fmt: skip
        if column.dtype not in EXTRA_DTYPES:
            raise DataError("a column cannot have this dtype", got=repr(column.dtype), where=f"{where}, {column.name}",
                            expected=" or ".join(EXTRA_DTYPES))  # fmt: skip
        if not isinstance(column.width, int) or column.width < 1 or column.field:
            raise DataError("a column needs a width", got=column.width, where=f"{where}, {column.name}",
                            expected="at least 1, and no other name in recordings")  # fmt: skip
    return tuple(made)


def spoken(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """What a file says of its columns; `further` reads it."""
    return [asdict(column) for column in columns]
