"""The script that counts whether intervals hold the truth, in short; and the means of its deals."""

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """The module benchmarks/arena_coverage.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena_coverage

    return arena_coverage


def test_most_intervals_hold_the_truth(script):
    """Of 60 with 95 % each, 57 are expected; below 50 or at none missed would be one case in thousands."""
    held_K, held_score = script.coverage(60, 40, seed=0)
    assert (held_K >= 50).all()
    assert held_score >= 50
    assert held_K.sum() + held_score < 6 * 60  # intervals that always hold it would be too wide


def test_intervals_half_as_wide_are_found_out(script, monkeypatch):
    """The count would show it if the intervals were wrong."""
    honest = script.rate

    def narrow(*arguments, **options):
        ratings = honest(*arguments, **options)
        halves = ((ratings.low_K + ratings.rating_K) / 2, (ratings.high_K + ratings.rating_K) / 2)
        return type(ratings)(ratings.rating_K, *halves, ratings.worst)

    monkeypatch.setattr(script, "rate", narrow)
    assert script.coverage(60, 40, seed=0)[0].max() < 50


@pytest.mark.parametrize("difference", [-300, 0, 100])
def test_its_deals_have_the_mean_of_the_ratings(script, difference):
    chance = np.random.default_rng(0)
    score_D = script.deals_between(difference, 1.5 * chance.standard_normal(200_000), chance)
    assert score_D.mean() == pytest.approx(1 / (1 + 10 ** (-difference / 400)), abs=0.004)
    assert {0.0, 0.25, 0.5, 0.75, 1.0} == set(np.unique(score_D))
