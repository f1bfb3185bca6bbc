"""Scores of recorded players: by hand for small games, and as many tags after a hundred versions as after two."""

from dataclasses import replace

import numpy as np
import pytest

from movelist.core.returns import Moments
from movelist.data.episode import HUMAN, OTHER, POLICY
from movelist.data.loader import nothing
from movelist.data.record_format import Widths
from movelist.play.survey import Incoming, Tally


def games(*seats, returns):
    """Games without steps, and their versions; a seat is "human", "other" or a policy's version."""
    code = {"human": HUMAN, "other": OTHER}
    controller_EP = np.array([[code.get(seat, POLICY) for seat in game] for game in seats], np.int8)
    version_EP = np.array([[-1 if seat in code else seat for seat in game] for game in seats])
    none = nothing(Widths("toy", len(seats[0]), (1,)))
    count = len(seats)
    episodes = replace(none, episode_offsets=np.zeros(count + 1, np.int64), return_EP=np.array(returns, float),
                       truncated_E=np.zeros(count, bool), controller_EP=controller_EP)  # fmt: skip
    return episodes.check(), version_EP


def test_two_newest_policies_are_followed_by_opponent():
    incoming = Incoming()
    seats = [(7, "human"), ("human", 7), (7, 6), (6, "human"), (6, 6), (3, "human")]
    incoming.add(*games(*seats, returns=[[1, -1], [3, -3], [0, 0], [-2, 2], [5, -5], [9, -9]]))
    metrics = incoming.metrics()
    # Policy 7 won 1 and lost 3 against people, and drew with 6; policy 6 lost 2, drew, and won and lost against itself.
    assert metrics == {
        "data/policy_version": 7,
        "data/games_against_human": 2,
        "data/win_rate_against_human": 0.5,
        "data/return_against_human": -1,
        "data/games_against_policy": 1,
        "data/win_rate_against_policy": 0.5,
        "data/return_against_policy": 0,
        "data/previous_policy_version": 6,
        "data/previous_games_against_human": 1,
        "data/previous_win_rate_against_human": 0,
        "data/previous_return_against_human": -2,
        "data/previous_games_against_policy": 1,
        "data/previous_win_rate_against_policy": 0.5,
        "data/previous_return_against_policy": 0,
        "data/previous_games_against_itself": 2,
        "data/previous_win_rate_against_itself": 0.5,
        "data/previous_return_against_itself": 0,
    }
    incoming.add(*games((7, "human"), returns=[[1, -1]]))
    assert incoming.metrics()["data/win_rate_against_human"] == 2 / 3  # of all games so far
    incoming.add(*games((8, "other"), returns=[[1, -1]]))
    metrics = incoming.metrics()
    assert metrics["data/previous_win_rate_against_human"] == 2 / 3 and metrics["data/games_against_other"] == 1


def test_three_players_and_those_without_a_version():
    incoming = Incoming()
    seats = [(-1, "human", "human"), (-1, "human", "other"), (-1, 4, "human"), ("human", "human", "other")]
    incoming.add(*games(*seats, returns=[[2, -1, -1], [2, -1, -1], [-3, 3, 0], [0, 0, 0]]))
    metrics = incoming.metrics()
    assert metrics["data/policy_version"] == 4 and metrics["data/win_rate_against_mixed"] == 1
    assert "data/previous_policy_version" not in metrics
    assert metrics["data/previous_return_against_human"] == 2
    assert metrics["data/previous_games_against_mixed"] == 2 and metrics["data/previous_win_rate_against_mixed"] == 0.5


def test_the_tags_stay_few_however_many_versions_come():
    incoming, tags = Incoming(), set()
    for version in range(1, 100):
        seats = [(version, "human"), (version, "other"), (version, version), (version, version - 1)]
        incoming.add(*games(*seats, returns=[[1, -1]] * 4))
        tags |= set(incoming.metrics())
    assert len(tags) == 2 * (1 + 3 * 4) and len(incoming.tallies) == 2


def test_games_without_a_policy_have_no_numbers():
    incoming = Incoming()
    incoming.add(*games(("human", "other"), returns=[[1, -1]]))
    assert incoming.metrics() == {}


def test_intervals_of_large_returns_are_those_of_small_ones():
    few, many = Tally(), Tally()
    spread_G = np.random.default_rng(0).normal(size=1000)
    for part_G in np.array_split(spread_G, 7):
        few.add(part_G, np.zeros(len(part_G)))
        many.add(1e9 + part_G, np.zeros(len(part_G)))
    (low, high), (far_low, far_high) = (tally.summary()["mean_return_interval"] for tally in (few, many))
    assert high - low == pytest.approx(2 * 1.96 * spread_G.std(ddof=1) / 1000**0.5)
    assert far_high - far_low == pytest.approx(high - low, rel=1e-6)  # 1e9 leaves 7 places behind the point


def test_tallies_of_version_0_1_are_read():
    incoming, old = Incoming(), {"games": 3, "wins": 2, "draws": 0, "total": 3.0, "squares": 5.0}  # 1, 2 and 0
    incoming.load_state_dict([[7, "human", old]])
    assert incoming.metrics()["data/return_against_human"] == 1
    incoming.add(*games((7, "human"), returns=[[5, -5]]))
    (tally,) = incoming.tallies[7].values()
    assert tally.returns == Moments.of(np.array([1.0, 2.0, 0.0, 5.0]))
    other = Incoming()
    other.load_state_dict(incoming.state_dict())
    assert other.tallies == incoming.tallies
