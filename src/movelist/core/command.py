"""What a command of the command line is: its name, what can be set, and what it does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from movelist.core.settings import TrainSettings


@dataclass(frozen=True)
class Command:
    """One command. Listed in cli.COMMANDS it is parsed, has its help, and is proposed where its name is misspelt.

    Args:
        name: The word behind `movelist`.
        settings: A dataclass: its docstring is the command's help, its fields are the flags.
        run: Called with the settings and the words that were typed; returns the exit code. It imports what it needs.
        default: Makes the flags' defaults of those of a training, which --resume and --preset decide; None takes the
            dataclass's own.
    """

    name: str
    settings: type
    run: Callable[[Any, Sequence[str]], int]
    default: Callable[[TrainSettings], Any] | None = None


def is_first_process() -> bool:
    """Whether this one speaks, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"
