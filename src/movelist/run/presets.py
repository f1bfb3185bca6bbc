"""Settings with a name: `movelist train --preset fast`, `guide`, or a file that `movelist profile --tune` wrote, or the
settings.json of a run that is to be made anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from movelist.core.errors import MovelistError, SettingsError
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.data.whole_file import json_bytes, write_whole
from movelist.learn.device import amp_dtype, choose_device

# By the kind of device, as docs/performance.md has it measured. On a plain CPU the same as the defaults, but said, so
# that a preset stays what it is when defaults move.
FAST: dict[str, dict[str, Any]] = {
    "cpu": {"batch_size": 1024, "update_frequency": 256, "num_games": 256},
    "cpu with bfloat16": {"batch_size": 2048, "update_frequency": 256, "num_games": 256, "use_amp": True},
}
GUIDE: dict[str, Any] = {"batch_size": 128, "update_frequency": 5, "epochs_per_update": 4, "use_amp": True}
NAMES = ("fast", "guide")
# What belongs to one run and not to a way of training.
OF_A_RUN = ("out", "resume", "preset", "data", "init_from", "watch", "publish", "seed", "total_steps", "max_seconds")


def preset(name: str, device: str = "auto") -> dict[str, Any]:
    """The settings of a preset, by their plain names.

    Args:
        name: "fast", "guide", or a file.
        device: As in --device; "fast" depends on it.

    Raises:
        SettingsError: There is no such preset, or the file holds no settings.
    """
    if name == "guide":
        return dict(GUIDE)
    if name == "fast":
        return dict(FAST.get(_kind(device), {}))
    path = Path(name)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"{type(values).__name__} instead of an object")
        values = {key: value for key, value in values.items() if key not in ("preset", "out", "resume")}
        TrainSettings.from_flat(values)
    except FileNotFoundError:
        raise SettingsError(
            "there is no such preset", got=name, expected=f"{' or '.join(NAMES)}, or a file",
            do="movelist profile --tune writes one.",
        ) from None  # fmt: skip
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingsError("a preset cannot be read", got=error, where=str(path)) from None
    except MovelistError as error:
        raise SettingsError(f"a preset cannot be used, {error}", where=str(path)) from None
    return values


def describe(name: str, settings: TrainSettings) -> str:
    """What a preset set in these settings, in one line, and which of it a flag took back."""
    asked, flat = preset(name, settings.run.device), settings.to_flat()
    kept = {key: value for key, value in asked.items() if flat[key] == value}
    defaults = TrainSettings().to_flat()
    told = {key: value for key, value in kept.items() if name in NAMES or value != defaults[key]}
    words = ", ".join(f"{key}={value}" for key, value in told.items()) or "nothing"
    others = [f"--{key} {flat[key]} was given" for key in asked if key not in kept]
    why = {"fast": _why_fast(settings.run.device), "guide": ""}.get(name, "")
    return f"--preset {name} set {words}{why}.{' ' if others else ''}{', '.join(others)}{'.' if others else ''}"


def _why_fast(device: str) -> str:
    kind = _kind(device)
    if kind in FAST:
        return f", the fastest measured on a {kind}; movelist profile --tune measures yours"
    return f": nothing was measured on a {kind} yet; movelist profile --tune finds what is fast on yours"


def _kind(name: str) -> str:
    device = choose_device(name)
    return "cpu with bfloat16" if device.type == "cpu" and amp_dtype(device) is not None else device.type


def write_preset(settings: TrainSettings, path: Path) -> None:
    """Write all settings but those of a single run as a preset."""
    values = {name: value for name, value in settings.to_flat().items() if name not in OF_A_RUN}
    write_whole(path, lambda file: file.write(json_bytes(values, indent=2)))


def command_line(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """`movelist train` with the settings that are not the defaults, and the changes; in a new folder."""
    defaults = TrainSettings().to_flat() | {name: settings[name] for name in ("out", "preset")}
    flags = {name: value for name, value in settings.items() if value != defaults[name]} | dict(changes)
    return " ".join(["movelist train", *flag_words(flags)])


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Settings as they are typed."""
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(quoted, map(Path, value))]
        elif value is not None:
            words += [f"--{name}", quoted(Path(value)) if isinstance(value, str) else str(value)]
    return words
