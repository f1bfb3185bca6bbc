"""Games for worker processes, in a module that a fresh interpreter can import without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path


class Timed:
    """Two players take six turns in turn; each may choose among `num_actions` ids.

    Args:
        num_actions: Length of every list.
        fault: What goes wrong, or "" for nothing; with "tell" a state's last value says whether torch is imported.
        seed: In the game with this seed, at turn 3; None in every game.
        where: The method in which it goes wrong.
        mark: A file that is written when it goes wrong; once it is there, all goes well.
    """

    name = "timed"
    num_players = 2

    def __init__(
        self,
        num_actions: int = 3,
        *,
        fault: str = "",
        seed: int | None = None,
        where: str = "apply",
        mark: Path | None = None,
    ) -> None:
        self.num_actions, self.fault, self.seed, self.where, self.mark = num_actions, fault, seed, where, mark

    def new_state(self, seed: int) -> TimedState:
        return TimedState(self, seed)


class TimedState:
    def __init__(self, game: Timed, seed: int) -> None:
        self.game, self.seed, self.turn = game, seed, 0

    def current_player(self) -> int | None:
        return self.turn % 2 if self.turn < 6 else None

    def legal_actions(self) -> Sequence[int]:
        return range(self.turn, self.turn + self.game.num_actions)

    def observe(self, player: int) -> Sequence[float]:
        self.perhaps_fail("observe")
        return [player, self.turn, float(self.game.fault == "tell" and "torch" in sys.modules)]

    def apply(self, index: int) -> None:
        self.perhaps_fail("apply")
        self.turn += 1

    def returns(self) -> Sequence[float]:
        return [1.0, -1.0]

    def perhaps_fail(self, where: str) -> None:
        game = self.game
        if not game.fault or where != game.where or self.turn != 3 or game.seed not in (None, self.seed):
            return
        if game.mark is not None:
            if game.mark.exists():
                return
            game.mark.touch()
        if game.fault == "raise":
            raise ZeroDivisionError("no piece\nleft")
        if game.fault == "exit":
            raise SystemExit(3)
        if game.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if game.fault == "segfault":
            ctypes.string_at(0)
        if game.fault == "hang":
            time.sleep(600)


class Unmakeable(Timed):
    """A game that is made of something that only this process has."""

    def __reduce__(self):
        return make_nothing, ()


def make_nothing() -> None:
    raise FileNotFoundError("no engine here")
