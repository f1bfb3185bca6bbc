"""Ratings: by hand for two players, exact where all scores fit, finite after a clean sweep, and who fits least."""

import numpy as np
import pytest

from movelist.play.rating import POINTS, Meeting, expected_score, fit, rate


def meeting(x, y, scores):
    return Meeting(x, y, np.arange(len(scores)), np.array(scores, float))


def test_two_players_by_hand():
    """30 of 40 deals and a drawn one: 30.5 of 41, so log-odds of log(30.5 / 10.5) = 1.06636, times 400 / log 10."""
    ratings = rate(2, [meeting(0, 1, [1.0] * 30 + [0.0] * 10)], zero=1)
    assert ratings.rating_K == pytest.approx([1.06636 * 173.7178, 0.0], abs=0.01)
    assert ratings.low_K[0] < ratings.rating_K[0] < ratings.high_K[0]
    assert ratings.low_K[1] == ratings.high_K[1] == 0
    assert rate(2, [meeting(0, 1, [1.0] * 30 + [0.0] * 10)]).rating_K.sum() == pytest.approx(0)


def test_who_reads_the_pairing_the_other_way_gets_the_same():
    scores = np.array([1.0, 0.5, 0.0, 1.0, 1.0, 0.5])
    one, other = rate(2, [meeting(0, 1, scores)], zero=0), rate(2, [meeting(1, 0, 1 - scores)], zero=0)
    np.testing.assert_allclose(one.rating_K, other.rating_K, atol=1e-6)


def test_a_clean_sweep_has_a_rating_and_its_interval_is_that_of_jeffreys():
    ratings = rate(2, [meeting(0, 1, [1.0] * 20)], zero=1)
    assert ratings.rating_K[0] == pytest.approx(POINTS * np.log(20.5 / 0.5), abs=0.01)
    # Beta(20.5, 0.5): its quantiles of 0.025 and 0.975 are 0.8829 and 0.99998; of 1,000 draws the first scatters.
    assert expected_score(ratings.low_K[0] / POINTS) == pytest.approx(0.883, abs=0.03)
    assert np.isfinite(ratings.high_K[0])
    alone = rate(3, [meeting(0, 1, []), meeting(1, 2, [])], zero=0)  # nothing was played yet
    assert alone.rating_K == pytest.approx([0, 0, 0])
    assert alone.worst is None


def test_scores_that_fit_give_back_the_ratings():
    truth_K = np.array([0.0, -1.0, 0.5, 1.5, 2.0])
    expected_KK = expected_score(truth_K[:, None] - truth_K)
    won_BKK = (1000 * expected_KK * (1 - np.eye(5)))[None]
    np.testing.assert_allclose(fit(won_BKK)[0], truth_K - truth_K.mean(), atol=1e-8)


def test_fit_is_the_most_likely_one():
    """No neighbour is likelier, by the formula."""
    chance = np.random.default_rng(0)
    won_KK = chance.random((6, 6)) * 30 * (1 - np.eye(6))
    best_K = fit(won_KK[None])[0]

    def log_likelihood(strength_K):
        return (won_KK * np.log(expected_score(strength_K[:, None] - strength_K))).sum()

    for _ in range(50):
        other_K = best_K + 0.01 * chance.standard_normal(6)
        assert log_likelihood(other_K) < log_likelihood(best_K) + 1e-9


def test_more_deals_narrow_the_interval_and_equal_deals_more_so():
    chance = np.random.default_rng(1)
    games = chance.integers(0, 2, 400).astype(float)

    def width(scores):
        ratings = rate(2, [meeting(0, 1, scores)], zero=1)
        return ratings.high_K[0] - ratings.low_K[0]

    assert width(games) < 0.6 * width(games[:100])
    assert width(np.full(400, 0.5)) < 0.2 * width(games)


def test_the_same_deals_in_two_pairings_are_weighed_together():
    """Luck of the cards that both share cancels in the difference of their ratings."""
    chance = np.random.default_rng(2)
    cards = chance.integers(0, 2, 200).astype(float)
    same = rate(3, [meeting(0, 2, cards), meeting(1, 2, cards)], zero=0)
    shuffled = rate(3, [meeting(0, 2, cards), meeting(1, 2, chance.permutation(cards))], zero=0)
    assert same.high_K[1] - same.low_K[1] < 0.5 * (shuffled.high_K[1] - shuffled.low_K[1])


def test_what_fits_least_is_named():
    """Rock, paper, scissors: equal ratings, and each pairing far from what they say."""
    scores = [1.0] * 80 + [0.0] * 20
    ratings = rate(3, [meeting(0, 1, scores), meeting(1, 2, scores), meeting(2, 0, scores)])
    assert ratings.rating_K == pytest.approx([0, 0, 0], abs=1e-6)
    worst = ratings.worst
    assert (worst.score, worst.is_luck) == (0.8, False)
    assert worst.expected == pytest.approx(0.5)
    assert worst.deviations == pytest.approx(0.3 / (0.25 / 100) ** 0.5, rel=0.05)
    chance = np.random.default_rng(3)
    even = [meeting(x, y, chance.integers(0, 2, 100)) for x, y in ((0, 1), (1, 2), (2, 0))]
    assert rate(3, even).worst.is_luck


def test_the_same_seed_gives_the_same_intervals():
    pairings = [meeting(0, 1, [1, 0, 1, 0.5]), meeting(1, 2, [0, 0, 1, 0.5]), meeting(0, 2, [1, 1])]
    first = rate(3, pairings, zero=0)
    again = rate(3, pairings, zero=0)
    np.testing.assert_array_equal(first.low_K, again.low_K)
