"""Do 95 % intervals of ratings hold the truth? Tournaments between players of known strength, with draws.

    python benchmarks/arena_coverage.py [--repetitions 200]

Six players from -200 to 300 points meet on 50 deals of two games each, all pairings on the same deals. A deal's luck
favours a seat in both of its games, so that its mean scatters less than two games by themselves; a share of the games
is drawn. Of 200 repetitions, between 182 and 198 intervals of each player are to hold its rating: with 95 % it is 190,
and 182 to 198 is what luck leaves 99 times of 100.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tyro

from movelist.play.deals import deal_interval
from movelist.play.rating import POINTS, Meeting, expected_score, rate

RATINGS = (0.0, -200.0, 50.0, 100.0, 180.0, 300.0)
DRAWS = 0.2  # of the games
LUCK = 1.5  # of a seat, in log-odds


@dataclass(frozen=True)
class Options:
    """Count the intervals that hold the truth."""

    repetitions: int = 200
    """Tournaments."""

    deals: int = 50
    """Of each pairing."""

    seed: int = 0
    """Of them all."""


def deals_between(difference: float, luck_D: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Scores of deals of two games, whose mean is exactly what the ratings say, whatever the luck.

    A deal is easy for seat 0 or for seat 1 by its luck: in both games the seat's player gets more, in the mean nothing.
    """
    expected = float(expected_score(np.array(difference / POINTS)))
    room = min(expected, 1 - expected) * (1 - DRAWS)
    tilt_D = room * np.tanh(luck_D)
    scores = []
    for sign in (1, -1):
        # Win, draw or loss with a mean of `expected`, and a share of draws that such a mean leaves room for.
        mean_D = np.clip(expected + sign * tilt_D, 0.0, 1.0)
        drawn_D = DRAWS * 2 * np.minimum(mean_D, 1 - mean_D)
        number_D = chance.random(len(luck_D))
        scores.append(np.where(number_D < drawn_D, 0.5, number_D < drawn_D + (mean_D - drawn_D / 2)))
    return np.mean(scores, axis=0)


def coverage(repetitions: int, deals: int, seed: int) -> tuple[np.ndarray, int]:
    """How many intervals of each player's rating held the truth, and of one pairing's score."""
    chance, truth_K = np.random.default_rng(seed), np.array(RATINGS)
    held_K, held_score = np.zeros(len(truth_K), int), 0
    for repetition in range(repetitions):
        luck_D = LUCK * chance.standard_normal(deals)
        meetings = [
            Meeting(x, y, np.arange(deals), deals_between(truth_K[x] - truth_K[y], luck_D, chance))
            for x in range(len(truth_K))
            for y in range(x)
        ]
        ratings = rate(len(truth_K), meetings, zero=0, seed=repetition)
        held_K += (ratings.low_K <= truth_K) & (truth_K <= ratings.high_K)
        low, high = deal_interval(meetings[-1].score_D)
        pair = meetings[-1]
        held_score += low <= float(expected_score(np.array((truth_K[pair.x] - truth_K[pair.y]) / POINTS))) <= high
    return held_K[1:], held_score


def main(options: Options) -> int:
    """Print the counts; 1 if one is out of bounds."""
    held_K, held_score = coverage(options.repetitions, options.deals, options.seed)
    for rating, held in zip(RATINGS[1:], held_K.tolist(), strict=True):
        print(f"{rating:+6.0f} points: {held} of {options.repetitions} intervals hold it")
    print(f"  a score: {held_score} of {options.repetitions}")
    low, high = 0.91 * options.repetitions, 0.99 * options.repetitions
    return 0 if all(low <= held <= high for held in (*held_K.tolist(), held_score)) else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options)))
