"""Scores of recorded players: by hand for small games, and as many tags after a hundred versions as after two."""

from dataclasses import replace

import numpy as np

from movelist.data.episode import HUMAN, OTHER, POLICY
from movelist.data.loader import nothing
from movelist.data.record_format import Widths
from movelist.play.survey import Incoming


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
