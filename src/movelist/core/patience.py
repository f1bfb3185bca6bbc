"""When to say that something is waited for: after half a minute, then ever more rarely, for as long as it lasts."""

from __future__ import annotations

import sys
import time

FIRST_SECONDS = 30.0  # of silence before the first word
MOST_SECONDS = 600.0  # between two words; each time twice as long as before, up to this


class Patience:
    """One wait, from its making on."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._said, self._pause = self.began, FIRST_SECONDS

    @property
    def seconds_left(self) -> float:
        """Until the next word."""
        return max(0.0, self._said + self._pause - time.monotonic())

    def word_is_due(self) -> str | None:
        """How long it has taken so far, as "30 s", if it is time to say so; then the next word is due later."""
        if self.seconds_left:
            return None
        self._said, self._pause = time.monotonic(), min(2 * self._pause, MOST_SECONDS)
        return f"{time.monotonic() - self.began:,.0f} s"


def say_on_standard_error(text: str) -> None:
    """For whom nobody gave a place to say it: standard output may be somebody's data."""
    print(text, file=sys.stderr, flush=True)
