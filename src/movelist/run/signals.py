"""Signals: the first is a wish to stop, the second leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# SIGBREAK is what Windows sends for Ctrl-Break, and to a process that is asked to end.
WISHES = [number for name in ("SIGINT", "SIGTERM", "SIGBREAK") if (number := getattr(signal, name, None)) is not None]


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Turn Ctrl-C and SIGTERM into a wish to stop; a second one leaves at once.

    Yields:
        The signals that came so far; empty while the training may go on.
    """
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)  # at once: the last checkpoint is whole, whatever is half done now
        came.append(number)
        # A signal may come in the middle of a write to the same stream, which cannot be entered twice.
        with contextlib.suppress(RuntimeError, OSError):
            say("Stopping after this update. Once more to leave at once.")

    with _handled_by(on_signal):
        yield came


@contextmanager
def break_off_on_signals() -> Iterator[None]:
    """Let SIGTERM break off what is going on as Ctrl-C does.

    Raises:
        KeyboardInterrupt: One came.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(on_signal):
        yield


@contextmanager
def _handled_by(on_signal: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    try:
        before = {number: signal.signal(number, on_signal) for number in WISHES}
    except ValueError:  # not in the main thread: whoever started this one handles signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
