"""Says which call of a game does not come back, where games are played in this process.

A thread looks about once a second where the playing thread stands, in its stack, so playing pays nothing for it. It
only tells; a call that keeps Python's global lock, as some extensions do, keeps this thread silent, too.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from movelist.core.patience import Patience
from movelist.games import game as game_module
from movelist.play import running

LOOK_SECONDS = 1.0
Call = tuple[int, int]  # the game's seed, its turn


@contextmanager
def telling_what_hangs(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, say so if a call of a game that this thread plays takes long, and go on saying it."""
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(threading.get_ident(), over, say), name="movelist watchdog", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(thread: int, over: threading.Event, say: Callable[[str], None]) -> None:
    before, patience = None, Patience()
    while not over.wait(min(LOOK_SECONDS, patience.seconds_left or LOOK_SECONDS)):
        call, place = _standing(sys._current_frames().get(thread))
        if call is None or call != before:
            before, patience = call, Patience()
        elif waited := patience.word_is_due():
            seed, turn = call
            say(f"Waiting for {waited} for the game: game with seed {seed}, turn {turn}, in {place}.")


def _standing(frame: FrameType | None) -> tuple[Call | None, str]:
    """Which game's call a thread is in, and where in the game's code; None if it is in none."""
    inner: list[FrameType] = []
    while frame is not None and frame.f_code.co_filename != running.__file__:
        if frame.f_code.co_filename != game_module.__file__:  # which calls the game's code, and is not it
            inner.append(frame)
        frame = frame.f_back
    if frame is None:
        return None, ""
    slot, seed = frame.f_locals.get("slot"), frame.f_locals.get("seed")
    if isinstance(slot, running.Running):
        call = slot.seed, slot.turn
    elif seed is not None:  # the game is being made
        call = int(seed), 0
    else:
        return None, ""
    file, line = Path((inner or [frame])[0].f_code.co_filename), (inner or [frame])[0].f_lineno
    if inner:
        return call, f"{inner[-1].f_code.co_name} ({file.name}, line {line})"
    # No code in Python: the line that called it.
    return call, linecache.getline(str(file), line).strip()
