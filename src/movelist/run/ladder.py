"""How strong a training became, where random players have long lost: rated against its own earlier checkpoints.

RUN/ladder keeps thin checkpoints, weights without the optimiser, at most 8 and a few megabytes, spread over the whole
run: of neighbours that are close to each other, by the ratio of their updates, one is dropped. A rung is one of them
and its rating; 0 is a random player. The present policy is rated by how it scores against some rungs, and its error
holds theirs, too: the farther a run has come, the less sure the way from 0, and not the last steps of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from movelist.data.whole_file import delete_unfinished, write_whole
from movelist.play.rating import POINTS
from movelist.run.folder import number_of, numbered
from movelist.run.seal import write_sealed

MOST_FILES = 8
MOST_BYTES = 16 << 20  # of all files, as long as there are two
BEATEN = 0.9  # from this rate on random players are no measure any more
OPPONENTS = 3  # rungs that a quick match is played against
THIN = ("format", "settings", "shape", "num_players", "game_name", "handed_in")


@dataclass(frozen=True)
class Rung:
    """A rated checkpoint.

    Attributes:
        update: Its number.
        rating: In points; 0 is a random player.
        error: Standard error of it, in points.
    """

    update: int
    rating: float
    error: float


RANDOM = Rung(-1, 0.0, 0.0)


class Ladder:
    """The thin checkpoints of a run.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / "ladder"

    def file(self, update: int) -> Path:
        """Where the checkpoint of an update lies, if it is kept."""
        return self.path / f"update-{update:06d}.pt"

    def add(self, update: int, state: dict[str, Any]) -> None:
        """Keep the weights of a checkpoint's state, and drop another one if there are many.

        Raises:
            SaveError: The disk is full.
        """
        self.path.mkdir(exist_ok=True)
        delete_unfinished(self.path)
        learner = {name: state["learner"][name] for name in ("net", "num_updates", "returns")}
        thin = {name: state[name] for name in THIN} | {"learner": learner}
        write_whole(self.file(update), lambda file: write_sealed(thin, file))
        files = numbered(self.path)
        most = min(MOST_FILES, max(2, MOST_BYTES // max(1, self.file(update).stat().st_size)))
        while len(files) > most:
            dropped = files.pop(closest([number_of(file) for file in files]))
            with contextlib.suppress(OSError):  # held open by a reader on Windows: it is tried again
                dropped.unlink()

    def forget_after(self, update: int) -> None:
        """Delete what a run that goes on from this update has not reached yet."""
        for file in numbered(self.path):
            if number_of(file) > update:
                with contextlib.suppress(OSError):
                    file.unlink()

    def opponents(self, rungs: Sequence[Rung]) -> list[Rung]:
        """The newest rungs whose files are there."""
        return [rung for rung in rungs if self.file(rung.update).is_file()][-OPPONENTS:]

    def kept(self, rungs: Sequence[Rung]) -> list[Rung]:
        """The rungs whose files are there."""
        return [rung for rung in rungs if self.file(rung.update).is_file()]


def closest(updates: Sequence[int]) -> int:
    """The place of the one between whose neighbours the ratio is smallest; never the first or the last one.

    Example: of 10, 20, 40, 50, 100 it is 40, for 50 / 20 is less than 40 / 10 and 100 / 40.
    """
    gaps = [math.log(after / max(1, before)) for before, after in zip(updates, updates[2:], strict=False)]
    return 1 + gaps.index(min(gaps)) if gaps else 0


def rated(update: int, scores: Sequence[tuple[Rung, float, float]]) -> Rung:
    """The rating that makes scores against rungs most likely, each with one drawn game beside.

    Args:
        update: Whose rating it is.
        scores: Against whom, the score from 0 to 1, and as how many games it counts.
    """
    games = [(rung.rating / POINTS, worth + 1, score * worth + 0.5) for rung, score, worth in scores]
    low, high = -30.0, 30.0
    for _ in range(60):  # halves the range; what is won in excess of the expected falls with the rating
        middle = (low + high) / 2
        excess = sum(won - worth * _expected(middle - other) for other, worth, won in games)
        low, high = (middle, high) if excess > 0 else (low, middle)
    weights = [worth * _expected(low - other) * (1 - _expected(low - other)) for other, worth, _ in games]
    total = sum(weights)
    theirs = sum(weight / total * rung.error for weight, (rung, _, _) in zip(weights, scores, strict=True))
    return Rung(update, POINTS * low, math.hypot(POINTS / math.sqrt(total), theirs))


def _expected(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))
