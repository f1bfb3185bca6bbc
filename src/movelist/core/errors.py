"""What can go wrong, and how it is said.

    MovelistError
    ├── SettingsError      a flag or a setting is wrong             exit code 2
    ├── GameError          a game is unknown, cannot serve, or breaks its promises    2
    ├── MissingExtraError  an optional package is not installed    2
    ├── CheckpointError    a run folder or checkpoint cannot be used    2
    ├── DeviceError        the device asked for is not there    2
    ├── DataError          an episode breaks the rules    1
    ├── SaveError          a file cannot be written    1
    ├── DeviceMemoryError  the device has too little memory for a batch    1
    ├── WorkerError        a process that plays games failed, and failed again    1
    ├── PlayerError        a player raised an exception, or chose no legal action    1
    ├── NonFiniteError     NaN or infinity turned up in training    1
    └── ProcessError       another process of the same training failed, with its exit code or    1

Every message answers, in one line: what happened, what was found, what was expected, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class MovelistError(Exception):
    """The root of the errors that movelist raises on purpose.

    Args:
        what: What happened, as a short sentence without the closing point.
        got: The value found.
        expected: What would have been right.
        where: File, line, episode, step, field: whatever leads to the place.
        do: The next thing to try, as a sentence.

    Example:
        >>> str(MovelistError("width differs", got=3, expected=4, where="episode 7", do="Write 4 numbers."))
        'width differs: got 3, expected 4 (episode 7). Write 4 numbers.'
    """

    exit_code = 1

    def __init__(
        self, what: str, *, got: object = None, expected: object = None, where: str | None = None, do: str | None = None
    ) -> None:
        self.what, self.got, self.expected, self.where, self.do = what, got, expected, where, do
        super().__init__(self._message())

    def _message(self) -> str:
        facts = []
        if self.got is not None:
            facts.append(f"got {self.got}")
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        message = self.what
        if facts:
            message += ": " + ", ".join(facts)
        if self.where:
            message += f" ({self.where})"
        if self.do:
            message += f". {self.do}"
        return " ".join(message.splitlines())


class SettingsError(MovelistError):
    """A flag or a setting is wrong."""

    exit_code = 2


class GameError(MovelistError):
    """A game is unknown, cannot serve, or breaks its promises."""

    exit_code = 2


class MissingExtraError(MovelistError):
    """An optional package is needed for this and is not installed."""

    exit_code = 2

    @classmethod
    def of(cls, what: str, extra: str, error: ImportError) -> MissingExtraError:
        """The error where something needs an extra, as in `of("RLCard's games need", "rlcard", error)`."""
        do = f'Install it with: pip install "movelist[{extra}]".'
        return cls(f"{what} an extra that is not installed", got=str(error), do=do)


class CheckpointError(MovelistError):
    """A run folder or a checkpoint cannot be used."""

    exit_code = 2


class DeviceError(MovelistError):
    """The device that was asked for is not there."""

    exit_code = 2


class DataError(MovelistError):
    """An episode breaks the rules of the data."""


class SaveError(MovelistError):
    """A file cannot be written: the disk is full, or gone, or another program holds the file."""


class DeviceMemoryError(MovelistError):
    """The device has too little memory for what it was given."""


class WorkerError(MovelistError):
    """A process that plays games failed, and failed again when its games were played anew."""


class PlayerError(MovelistError):
    """A player raised an exception, or answered something that is no choice; the game goes no further."""


class NonFiniteError(MovelistError):
    """NaN or infinity turned up in training; the weights were not changed by it.

    Attributes:
        minibatch: The steps that it turned up in, as named arrays, where they are known.
    """

    minibatch: Mapping[str, Any] | None = None


class ProcessError(MovelistError):
    """Another process of the same training failed; the exit code is that process's."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None
