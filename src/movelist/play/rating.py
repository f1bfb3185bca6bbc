"""Ratings from the deals of many pairings: Bradley-Terry by maximum likelihood, intervals by a bootstrap over deals.

A player of rating r scores 1 / (1 + 10^((s - r) / 400)) of a deal against one of rating s: 100 points more are 0.64,
200 are 0.76, 400 are 0.91. Each pairing is given one drawn deal beside those that were played, so that who won all of
them has a rating, too. Only differences of ratings mean anything; 0 is one player's, or the mean of all.

Source: Bradley and Terry 1952, "Rank Analysis of Incomplete Block Designs"; the bootstrap is Rubin's of 1981, "The
Bayesian Bootstrap", in which each deal has a random weight, and the drawn deal is half a won and half a lost one: a
single pairing that was won throughout so has the interval of Jeffreys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.play.deals import games_worth

Array = NDArray[Any]
POINTS = 400 / math.log(10)  # of a rating, for each unit of log-odds
BOOTSTRAPS = 1_000
ITERATIONS = 100  # of Newton's method at most; 5 to 10 are needed
LARGEST_STEP = 2.0  # of it, in log-odds


@dataclass(frozen=True)
class Meeting:
    """What two players scored against each other.

    Attributes:
        x: The number of the one whose scores these are.
        y: The number of the other.
        number_D: int64 [D], the deals' numbers; equal numbers in two meetings are equal cards.
        score_D: float64 [D], 0 to 1.
    """

    x: int
    y: int
    number_D: Array
    score_D: Array


@dataclass(frozen=True)
class Residual:
    """How far a pairing is from what the ratings say.

    Attributes:
        x: The one that scored more than expected.
        y: The other.
        score: The mean of x's deals.
        expected: By the ratings.
        deviations: Their difference in standard errors.
        is_luck: Whether the largest of so many differences is often as large by luck alone (5 %).
    """

    x: int
    y: int
    score: float
    expected: float
    deviations: float
    is_luck: bool


@dataclass(frozen=True)
class Ratings:
    """Ratings of K players, in points.

    Attributes:
        rating_K: float64 [K].
        low_K: Lower ends of 95 % intervals; the one at 0 has none, and its own uncertainty is in those of the others.
        high_K: Upper ends.
        worst: The pairing that fits the ratings least; None without any.
    """

    rating_K: Array
    low_K: Array
    high_K: Array
    worst: Residual | None


def rate(num_players: int, meetings: Sequence[Meeting], *, zero: int | None = None, seed: int = 0) -> Ratings:
    """Ratings of players who met.

    Args:
        num_players: K.
        meetings: Each pairing once; one without deals counts as drawn. They have to connect all players.
        zero: Whose rating is 0; None puts the mean there.
        seed: Of the bootstrap.
    """
    weights = np.random.default_rng(seed)
    count = max((int(m.number_D.max(initial=-1)) for m in meetings), default=-1) + 1
    weight_BD = np.concatenate([np.ones((1, count)), weights.standard_exponential((BOOTSTRAPS, count))])
    half_BM2 = np.concatenate(
        [np.full((1, len(meetings), 2), 0.5), weights.standard_gamma(0.5, (BOOTSTRAPS, len(meetings), 2))]
    )
    won_BKK = np.zeros((BOOTSTRAPS + 1, num_players, num_players))
    for number, meeting in enumerate(meetings):
        mine_BD = weight_BD[:, meeting.number_D]
        won_BKK[:, meeting.x, meeting.y] += mine_BD @ meeting.score_D + half_BM2[:, number, 0]
        won_BKK[:, meeting.y, meeting.x] += mine_BD @ (1 - meeting.score_D) + half_BM2[:, number, 1]
    strength_BK = fit(won_BKK)
    rating_BK = POINTS * (strength_BK - (0.0 if zero is None else strength_BK[:, [zero]]))
    low_K, high_K = np.quantile(rating_BK[1:], (0.025, 0.975), axis=0)
    return Ratings(rating_BK[0], low_K, high_K, _worst(meetings, strength_BK[0]))


def fit(won_BKK: Array) -> Array:
    """The most likely log-odds of strength [B, K], their mean 0, of B tables of wins.

    Args:
        won_BKK: float64 [B, K, K], what the row's player won against the column's.
    """
    num_players = won_BKK.shape[1]
    played_BKK = won_BKK + won_BKK.transpose(0, 2, 1)
    strength_BK = np.zeros(won_BKK.shape[:2])
    for _ in range(ITERATIONS):
        expected_BKK = expected_score(strength_BK[:, :, None] - strength_BK[:, None, :])
        slope_BK = (won_BKK - played_BKK * expected_BKK).sum(2)
        curve_BKK = -played_BKK * expected_BKK * (1 - expected_BKK)
        diagonal = np.arange(num_players)
        curve_BKK[:, diagonal, diagonal] -= curve_BKK.sum(2)
        # Added in the direction in which nothing changes: all ratings together.
        step_BK = np.linalg.solve(curve_BKK + 1.0 / num_players, slope_BK[:, :, None])[:, :, 0]
        step_BK *= np.minimum(1.0, LARGEST_STEP / np.maximum(1e-300, np.abs(step_BK).max(1, keepdims=True)))
        strength_BK += step_BK
        if np.abs(step_BK).max() < 1e-10:
            break
    mean_B1 = strength_BK.mean(1, keepdims=True)
    centred_BK: Array = strength_BK - mean_B1
    return centred_BK


def expected_score(log_odds: Array) -> Array:
    """What a player scores who is ahead by these log-odds."""
    score: Array = 1 / (1 + np.exp(-log_odds))
    return score


def _worst(meetings: Sequence[Meeting], strength_K: Array) -> Residual | None:
    found = []
    for meeting in meetings:
        if not len(meeting.score_D):
            continue
        expected = float(expected_score(strength_K[meeting.x] - strength_K[meeting.y]))
        score = float(meeting.score_D.mean())
        deviations = (score - expected) / (expected * (1 - expected) / games_worth(meeting.score_D)) ** 0.5
        found.append((abs(deviations), deviations, meeting, score, expected))
    if not found:
        return None
    size, deviations, meeting, score, expected = max(found, key=lambda row: row[0])
    is_luck = size < NormalDist().inv_cdf(1 - 0.025 / len(found))
    if deviations < 0:
        return Residual(meeting.y, meeting.x, 1 - score, 1 - expected, size, is_luck)
    return Residual(meeting.x, meeting.y, score, expected, size, is_luck)
