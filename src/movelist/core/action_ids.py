"""64-bit action ids: opaque bit patterns, never numbers.

An id is kept as the signed 64-bit integer with its bit pattern (`int64` in numpy and torch), because neither library
computes with `uint64`. Ids are never floats and meet no arithmetic other than `(id >> k) & 1`.

torch is imported inside `to_bits` only: games need ids, and the processes that play them need no torch.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import DataError

if TYPE_CHECKING:
    import torch

_UNSIGNED = 1 << 64
_TEXT = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_LONGEST_TEXT = 100
_SIGNED_MIN, _SIGNED_MAX = -(1 << 63), (1 << 63) - 1


def parse(value: object) -> int:
    """Read an id from an integer or text and return its signed 64-bit pattern.

    Args:
        value: An integer of Python or numpy, or text in decimal or `0x` hexadecimal; signed (-2^63 and up) or unsigned
            (to 2^64 - 1).

    Returns:
        The same 64 bits as a signed integer, -2^63 to 2^63 - 1.

    Raises:
        DataError: The value is a bool, a float, not a number, or does not fit 64 bits.

    Example:
        >>> parse(2**64 - 1), parse("0xff"), parse("-7")
        (-1, 255, -7)
    """
    number = _integer(value)
    if not _SIGNED_MIN <= number < _UNSIGNED:
        raise DataError(
            "an action id does not fit 64 bits",
            got=_shown(value),
            expected="-2^63 to 2^64 - 1",
            do="Hash or pack it into 64 bits.",
        )
    return number - _UNSIGNED if number > _SIGNED_MAX else number


def _integer(value: object) -> int:
    """The integer that `value` stands for; floats and bools stand for none: they have lost the id or never had it."""
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT and _TEXT.fullmatch(value):
            return _UNSIGNED  # too large, whatever it is; Python takes long to read thousands of digits, and refuses
        if match := _TEXT.fullmatch(value):
            return int(value, 16 if match[1][:2] in ("0x", "0X") else 10)
    elif not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise DataError(
        "an action id is not an integer",
        got=f"{value!r} ({type(value).__name__})",
        expected="an integer, or text such as '17' or '0x11'",
        do="Write ids as integers; a float cannot hold 64 bits.",
    )


def _shown(value: object) -> str:
    """The value for a message, unless it is too long to print."""
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST_TEXT:
        return f"an integer of {value.bit_length():,} bits"
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text):,} characters)"


def parse_list(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
    """Read many ids at once; numpy alone would turn [7, 2**63 + 1] into floats without a word.

    Returns:
        int64 [A], the bit patterns.

    Raises:
        DataError: As `parse`.
    """
    if isinstance(values, np.generic | str | bytes | Mapping | Set) or not hasattr(values, "__len__"):
        raise DataError("action ids are not a row", got=_shown(values), expected="a list or an array [A]")
    # Only integers are safe with numpy: it takes True for 1 and lists of lists for tables.
    if isinstance(values, np.ndarray) or set(map(type, values)) <= {int}:
        array = np.asarray(values)
        if array.ndim == 1 and array.dtype in (np.int64, np.uint64):
            return array.view(np.int64)
    return np.array([parse(value) for value in values], dtype=np.int64)


def to_text(action_id: int) -> str:
    """The id as people read it: hexadecimal, all 64 bits, as in `0x8000000000000000`."""
    return f"0x{int(action_id) & (_UNSIGNED - 1):016x}"


def to_bits(action_id_A: torch.Tensor) -> torch.Tensor:
    """The 64 bits of each id, bit 0 first.

    Args:
        action_id_A: int64 [A].

    Returns:
        float32 [A, 64] of zeros and ones, on the same device; equal to Python's `((id & (2**64 - 1)) >> k) & 1`.
    """
    import torch

    if action_id_A.dtype != torch.int64:
        raise DataError("action ids have the wrong dtype", got=action_id_A.dtype, expected="torch.int64")
    shift = torch.arange(64, device=action_id_A.device)
    return ((action_id_A.unsqueeze(-1) >> shift) & 1).to(torch.float32)


# An odd factor loses no bit of a 64-bit number.
_ODD_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def listed_twice(action_id_A: NDArray[np.int64], count_N: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which lists hold an id twice, bool [N].

    Args:
        action_id_A: int64 [A], all lists one after another.
        count_N: int [N], their lengths.
    """
    step_A = np.repeat(np.arange(len(count_N)), count_N)
    twice_N = np.zeros(len(count_N), bool)
    # Lists in ascending order, as most engines write them, show at a glance that no id stands twice.
    falls_A = (np.diff(action_id_A) <= 0) & (step_A[1:] == step_A[:-1])
    unsure_N = np.zeros(len(count_N), bool)
    unsure_N[step_A[1:][falls_A]] = True
    if unsure_N.any():
        unsure_A = unsure_N[step_A]
        step, ids = step_A[unsure_A], action_id_A[unsure_A]
        # The same id in the same list has the same key; a plain sort of the keys is several times quicker than the
        # exact one by list and id, which is left for data in which two keys are equal.
        key = np.sort(ids.view(np.uint64) * _ODD_FACTORS[0] + step.astype(np.uint64) * _ODD_FACTORS[1])
        if (np.diff(key) == 0).any():
            order = np.lexsort((ids, step))
            same = (np.diff(ids[order]) == 0) & (np.diff(step[order]) == 0)
            twice_N[step[order][1:][same]] = True
    return twice_N


def first_copies(action_id_A: NDArray[np.int64], count_N: NDArray[np.integer]) -> NDArray[np.int64]:
    """For each entry, the place of the first one with the same id in the same list, int64 [A]; mostly its own.

    Args:
        action_id_A: int64 [A], all lists one after another.
        count_N: int [N], their lengths.

    Example: the lists [7, 9, 7] and [9] give [0, 1, 0, 3].
    """
    first_A = np.arange(len(action_id_A))
    step_A = np.repeat(np.arange(len(count_N)), count_N)
    place = np.flatnonzero(listed_twice(action_id_A, count_N)[step_A])
    if len(place):
        step, ids = step_A[place], action_id_A[place]
        order = np.lexsort((ids, step))  # stable: copies stay in the order of the list
        begins = np.r_[True, (np.diff(ids[order]) != 0) | (np.diff(step[order]) != 0)]
        first_A[place[order]] = place[order][begins][np.cumsum(begins) - 1]
    return first_A
