"""What settings check when they are made; each says in one line which flag is wrong. Free of torch: --help is quick."""

from __future__ import annotations

import sys
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from movelist.core.errors import SettingsError


def require(settings: Any, good: bool, name: str, expected: str) -> None:
    """Refuse the field `name` unless `good`; `settings.command`, if there is one, names the command with its help.

    Raises:
        SettingsError: It is not good.
    """
    if not good:
        raise SettingsError(
            f"--{name} cannot be used",
            got=getattr(settings, name),
            expected=expected,
            do=f"movelist {getattr(settings, 'command', 'train')} --help explains each flag.",
        )


def check_kinds(settings: Any) -> None:
    """Refuse values of another type than their field's: from Python anything can come in.

    What is a number or a text by inheritance only (np.float64, np.str_, an IntEnum) becomes a plain one: checkpoints
    and settings.json hold plain values.

    Raises:
        SettingsError: Names the first one.
    """
    hints = get_type_hints(type(settings))
    for name in (field.name for field in fields(settings)):
        require(settings, _fits(getattr(settings, name), hints[name]), name, _kind_name(hints[name]))
        object.__setattr__(settings, name, plain(getattr(settings, name)))


def plain(value: Any) -> Any:
    """The int, float or str that a value is by inheritance; anything else as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)  # str(value) of an enum would be its name
    return value


def at_least(settings: Any, minimum: float, *names: str) -> None:
    """Refuse fields below `minimum`; None passes.

    Raises:
        SettingsError: Names the first one.
    """
    for name in names:
        value = getattr(settings, name)
        require(settings, _is_finite(value), name, "a finite number")
        require(settings, value is None or value >= minimum, name, f"at least {minimum}")


def above_zero(settings: Any, *names: str) -> None:
    """Refuse fields that are 0 or less; None passes.

    Raises:
        SettingsError: Names the first one.
    """
    for name in names:
        value = getattr(settings, name)
        require(settings, _is_finite(value), name, "a finite number")
        require(settings, value is None or value > 0, name, "above 0")


def _is_finite(value: float | None) -> bool:
    return value is None or abs(value) <= sys.float_info.max  # math.isfinite raises for an int of 400 digits


def _fits(value: object, hint: Any) -> bool:
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in parts
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _kind_name(hint: Any) -> str:
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(parts)}" if len(parts) > 1 else str(parts[0])
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_kind_name, parts))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
