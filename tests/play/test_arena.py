"""Matches: every seat equally often, every game another one, and intervals that agree with hand-computed ones."""

import json

import numpy as np
import pytest
import torch

from movelist.core.errors import GameError
from movelist.core.settings import PlaySettings
from movelist.games.catalog import make_game
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.arena import match, result_of
from movelist.play.deals import MATCHES, Alone, Deals, games_worth, outcomes, wilson_interval
from movelist.play.policy import NetPolicy, RandomPolicy, derive_seeds
from movelist.play.selfplay import GAMES
from play.toys import Odd, Picker, Scripted

ROUNDING = 1e-12  # of a few operations in float64


# --- Intervals and sums


@pytest.mark.parametrize(
    ("rate", "num_games", "interval"),
    [
        # Centre (p + z^2/2n) / (1 + z^2/n), half width z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n), z = 1.96:
        (0.5, 100, (0.4038, 0.5962)),  # centre 0.5, half width 1.96 sqrt(0.0025 + 0.00009604) / 1.038416 = 0.09617
        (0.0, 10, (0.0, 0.2775)),  # 3.8416 / 13.8416
        (1.0, 10, (0.7225, 1.0)),
        (0.1, 20, (0.0279, 0.3010)),  # a worked example in many textbooks
        (1.0, 1, (0.2065, 1.0)),  # 1 / 4.8416
    ],
)
def test_wilson_interval(rate, num_games, interval):
    assert wilson_interval(rate, num_games) == pytest.approx(interval, abs=5e-5)


def test_wilson_interval_stays_inside_and_is_symmetric():
    for num_games in (1, 2, 7, 1000, 10**6):
        for rate in np.linspace(0, 1, 9):
            low, high = wilson_interval(rate, num_games)
            assert 0.0 <= low <= rate + ROUNDING
            assert rate - ROUNDING <= high <= 1.0
            assert wilson_interval(1 - rate, num_games) == pytest.approx((1 - high, 1 - low))


def deals_of(outcome_DU, return_DU, **alone):
    """Deals of a game for two, by what X got in its two games of each; Y got the opposite, its units the other way."""
    outcome_DU, return_DU = np.array(outcome_DU, float), np.array(return_DU, float)
    none = {"role_DU": np.full(outcome_DU.shape, -1), "truncated_DU": np.zeros(outcome_DU.shape, bool)} | alone
    x = Alone(outcome_DU=outcome_DU, return_DU=return_DU, **none)
    y = Alone(outcome_DU=-outcome_DU[:, ::-1], return_DU=-return_DU[:, ::-1], **none)
    return Deals(x=x, y=y, num_games=2, forfeits_D2=np.zeros((len(outcome_DU), 2), int))


def test_score_by_hand():
    """Two deals of a game for two: two wins, and a draw and a loss; returns 3 and 1, 0 and -2."""
    total = result_of(deals_of([[1, 1], [0, -1]], [[3, 1], [0, -2]], truncated_DU=np.array([[0, 1], [0, 0]], bool)))
    assert (total.truncated, total.truncated_share) == (1, 0.25)
    assert (total.num_games, total.wins, total.draws, total.losses, total.deals) == (4, 2, 1, 1, 2)
    assert (total.win_rate, total.draw_rate, total.mean_return, total.equal_rate) == (0.625, 0.25, 0.5, 0.5)
    # The deals' means are 2 and -1, their deviation sqrt(2 * 1.5^2) = 2.1213, over sqrt(2), times 1.96: 2.94.
    assert total.mean_return_interval == pytest.approx((-2.44, 3.44), abs=1e-4)
    # Scores 1 and 0.25, and 0 and 1 beside them: mean 0.5625, variance 0.19922, so 2 * 0.24609 / 0.19922 = 2.4706.
    assert games_worth(np.array([1.0, 0.25])) == pytest.approx(2.4706, abs=1e-4)
    assert total.win_rate_interval == pytest.approx(wilson_interval(0.625, 2.4706), abs=1e-4)
    # Seat 0: a win and a draw, seat 1: a win and a loss. Y had 0 and 0.5 on seat 1, 0 and 1 on seat 0.
    assert [(seat.wins, seat.draws, seat.losses) for seat in total.seats] == [(1, 1, 0), (1, 0, 1)]
    assert [seat.win_rate for seat in total.seats] == [0.75, 0.5]
    assert [seat.equal_rate for seat in total.seats] == [(0.75 + 0.5) / 2, (0.5 + 0.25) / 2]


def test_what_deals_are_worth():
    """Deals that are one game each count as such, two games by themselves as two, and equal ones for many."""
    assert games_worth(np.array([1.0] * 30 + [0.0] * 20)) == pytest.approx(50)
    two = np.random.default_rng(0).integers(0, 2, (4000, 2)).mean(1)
    assert games_worth(two) == pytest.approx(8000, rel=0.05)
    assert games_worth(np.full(50, 0.5)) == pytest.approx(50 * 52 / 2)
    assert games_worth(np.ones(50)) == pytest.approx(50)


@pytest.mark.parametrize(
    ("returns", "seat", "outcome"),
    [
        ([1, -1], 0, 1),
        ([1, -1], 1, -1),
        ([0, 0], 0, 0),
        ([5, 5], 1, 0),  # equal is a draw, also where both are paid
        ([2, -1, -1], 0, 1),  # one against two
        ([2, -1, -1], 1, -1),  # -1 against a mean of 0.5
        ([1, 0, -1], 1, 0),
        ([3, 2, 0], 1, 1),  # second of three, above the mean of the others, 1.5
        ([0.1 + 0.2, 0.3], 0, 0),  # a rounding error is no victory
        ([1e-12, -1e-12], 0, 1),  # whatever the unit
        ([1e-9 * (0.1 + 0.2), 1e-9 * 0.3], 0, 0),
        ([1e9 * (0.1 + 0.2), 1e9 * 0.3], 0, 0),
        ([1e6 + 0.01, 1e6], 1, -1),
        ([4], 0, 1),  # alone: above 0
        ([0], 0, 0),
        ([-4], 0, -1),
    ],
)
def test_who_has_won(returns, seat, outcome):
    for unit in (1.0, 1e-12, 1e12):  # of whatever size a point is
        assert outcomes(unit * np.array([returns], float))[0, seat] == outcome


def test_what_is_left_of_sums_that_cancel_is_no_victory():
    left_over = 0.1 + 0.2 - 0.3
    assert left_over > 0
    assert outcomes(np.array([[left_over, 0.0], [0.3, 0.1]])).tolist() == [[0, 0], [1, -1]]
    assert outcomes(np.array([[1e12, -1e12], [0.5, -0.5]])).tolist() == [[1, -1], [1, -1]]


# --- Matches


def test_the_better_policy_wins_every_game_on_every_seat():
    """Lists of two: the odd picker gains at every turn, the even picker loses at every one."""
    game = Scripted(2, [(0, [1, 2], [0, 0]), (1, [3, 4], [0, 0])])

    class Paid(type(game.new_state(0))):
        def apply(self, index):
            player, ids, _ = self.script[self.turn]
            gain = 1.0 if ids[index] % 2 else -1.0
            self.scores[player] += gain
            self.turn += 1

    game.new_state = lambda seed: Paid(game)
    draws_lots = Picker(parity=1)
    draws_lots.greedy = False  # so equal games are no repetition
    result = match(draws_lots, Picker(parity=0), game, num_games=20)
    assert (result.wins, result.draws, result.losses, result.deals) == (20, 0, 0, 10)
    assert result.win_rate == 1.0
    assert result.win_rate_interval == pytest.approx((0.7225, 1.0), abs=5e-5)  # 10 / 13.8416, for deals are counted
    assert (result.mean_return, result.mean_return_interval) == (1.0, (1.0, 1.0))
    assert [(seat.num_games, seat.wins) for seat in result.seats] == [(10, 10), (10, 10)]
    assert match(Picker(parity=0), draws_lots, game, num_games=20).win_rate == 0.0


def test_seats_with_different_chances_are_told_apart():
    """Seat 0 always wins 2, whoever sits there; seats rotate, so the match is even."""
    result = match(RandomPolicy(), RandomPolicy(), Scripted(2, [(0, [1, 2], [2, -2])]), num_games=10)
    assert (result.wins, result.losses, result.mean_return) == (5, 5, 0.0)
    assert [(seat.wins, seat.losses, seat.mean_return) for seat in result.seats] == [(5, 0, 2.0), (0, 5, -2.0)]


def test_draws_count_half():
    result = match(RandomPolicy(), RandomPolicy(), Scripted(2, [(0, [1, 2], [3, 3])]), num_games=8)
    assert (result.wins, result.draws, result.losses, result.win_rate, result.draw_rate) == (0, 8, 0, 0.5, 1.0)
    assert result.draw_rate_interval == pytest.approx(wilson_interval(1.0, 4))  # 4 deals


@pytest.mark.parametrize(("num_players", "asked", "played"), [(2, 7, 8), (3, 1, 6), (3, 9, 12), (1, 5, 5), (2, 1, 2)])
def test_the_number_of_games_is_rounded_up_to_whole_deals(num_players, asked, played):
    result = match(RandomPolicy(), RandomPolicy(), Odd(num_players), num_games=asked)
    assert result.num_games == played
    alone = result.alone or result
    assert alone.num_games == (played // 2 if num_players > 2 else played)
    assert [seat.num_games for seat in result.seats] == [alone.num_games // num_players] * num_players
    for name in ("wins", "draws", "losses"):
        assert getattr(alone, name) == sum(getattr(seat, name) for seat in result.seats)
    assert result.mean_return == pytest.approx(np.mean([seat.mean_return for seat in result.seats]))


def test_each_policy_sits_where_the_seatings_say():
    game, policy, opponent = Odd(3), Picker(parity=1), Picker(parity=0)
    match(policy, opponent, game, num_games=30, play=PlaySettings(num_games=7), openings=0)
    seeds = derive_seeds(0, MATCHES, 0, 5).tolist()
    assert game.seeds[-30:] == [seed for seed in seeds for _ in range(6)]
    seen = {(who is policy, seed): set() for who in (policy, opponent) for seed in seeds}
    for who in (policy, opponent):
        for turns in who.asked:
            for seed, player in zip(turns.seed_B.tolist(), turns.state_BS[:, 0], strict=True):
                seen[who is policy, seed].add(int(player))
    assert all(seats <= {0, 1, 2} for seats in seen.values())
    assert sum(map(len, seen.values())) > 20  # each has all seats of a deal, but for games in which nothing is decided


def test_match_deals_are_distinct_and_never_training_games():
    game = Odd()
    match(RandomPolicy(), RandomPolicy(), game, num_games=1000)
    seeds = set(game.seeds[1:])
    assert len(seeds) == 500
    assert not seeds & set(derive_seeds(0, GAMES, 0, 100_000).tolist())


def test_same_seed_same_result():
    first = match(RandomPolicy(), RandomPolicy(), Odd(), num_games=50, seed=3)
    assert match(RandomPolicy(), RandomPolicy(), Odd(), num_games=50, seed=3) == first
    assert match(RandomPolicy(), RandomPolicy(), Odd(), num_games=50, seed=4) != first


def test_how_many_games_run_at_once_changes_nothing():
    torch.manual_seed(0)
    policy = NetPolicy(PolicyValueNet(ModelShape(state_size=4, hidden_dim=16)), greedy=True)
    results = [match(policy, RandomPolicy(), Odd(), num_games=30, play=PlaySettings(num_games=n)) for n in (1, 4, 64)]
    assert results[0] == results[1] == results[2]


def test_a_perfect_policy_beats_random_players():
    result = match(Picker(parity=1), RandomPolicy(), Odd(most_turns=20), num_games=200)
    assert result.win_rate_interval[0] > 0.8  # not 1: forced turns may lose a game
    assert result.mean_return_interval[0] > 0
    # and in a game of one, where random players end around 0
    assert match(Picker(parity=1), RandomPolicy(), Odd(1), num_games=100).win_rate_interval[0] > 0.7
    assert match(RandomPolicy(), RandomPolicy(), Odd(1), num_games=200).mean_return == pytest.approx(0.0, abs=1.0)


def test_a_match_of_random_players_is_even():
    for num_players in (1, 2, 3):
        result = match(RandomPolicy(), RandomPolicy(), Odd(num_players), num_games=120)
        assert result.win_rate == pytest.approx(0.5, abs=ROUNDING)  # both play the same games
        low, high = result.win_rate_interval
        assert low < 0.5 < high
        assert high - low < 0.2


def test_a_return_that_is_no_number_is_no_loss():
    with pytest.raises(
        GameError, match=r"returns is not one finite number for each seat: got \[nan, 0.0\], expected 2"
    ):
        match(RandomPolicy(), RandomPolicy(), Scripted(2, [(0, [1, 2], [np.nan, 0.0])]), num_games=4)


def test_max_turns_ends_the_games_of_a_match():
    result = match(RandomPolicy(), RandomPolicy(), Odd(most_turns=10**9), num_games=4, play=PlaySettings(max_turns=50))
    assert result.num_games == 4


def test_games_that_were_cut_off_are_counted_and_said():
    """The seat that leads seems to win each game, and none was played out."""
    lead = Scripted(2, [(0, [1, 2], [2, -2])] + [(1, [1, 2], [0, 0])] * 99 + [(1, [1, 2], [-5, 5])])
    cut = match(RandomPolicy(), RandomPolicy(), lead, num_games=10, play=PlaySettings(max_turns=50))
    assert [seat.win_rate for seat in cut.seats] == [1.0, 0.0]
    assert (cut.truncated, cut.truncated_share) == (10, 1.0)
    assert [(seat.truncated, seat.truncated_share) for seat in cut.seats] == [(5, 1.0), (5, 1.0)]
    assert (cut.to_json()["truncated"], cut.to_json()["seats"][0]["truncated_share"]) == (10, 1.0)
    assert str(cut).endswith("10 games of 5 deals, 10 games (100.0%) cut off at max_turns")
    whole = match(RandomPolicy(), RandomPolicy(), lead, num_games=10)
    assert [seat.win_rate for seat in whole.seats] == [0.0, 1.0]
    assert (whole.truncated, "cut off" in str(whole)) == (0, False)


def test_openspiel_tic_tac_toe_has_draws():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    result = match(RandomPolicy(), RandomPolicy(), make_game("tic_tac_toe"), num_games=800)
    # Random play, known exactly: the first player wins 0.585, the second 0.288, and 0.127 are drawn. Of 800 and 400
    # games, four standard errors.
    assert result.draw_rate == pytest.approx(0.127, abs=4 * 0.333 / 800**0.5)
    assert result.seats[0].win_rate == pytest.approx(0.585 + 0.127 / 2, abs=4 * 0.5 / 400**0.5)


# --- What people and programs read


def test_to_json_is_plain_and_complete():
    result = match(Picker(parity=1), RandomPolicy(), Odd(), num_games=20)
    text = json.dumps(result.to_json(), allow_nan=False)
    read = json.loads(text)
    assert read["num_games"] == 20
    assert read["win_rate_interval"] == list(result.win_rate_interval)
    assert [seat["num_games"] for seat in read["seats"]] == [10, 10]
    assert set(read["seats"][0]) == set(read) & set(read["seats"][0])
    assert {"deals", "repeated", "openings", "forfeits", "roles", "alone"} <= set(read)


@pytest.mark.parametrize("num_games", [1, 2])
def test_to_json_of_a_single_game_for_each_seat(num_games):
    """One game has no deviation: its interval is unknown, and JSON has no infinity."""
    result = match(RandomPolicy(), RandomPolicy(), Odd(), num_games=num_games)
    assert result.seats[0].mean_return_interval == (-np.inf, np.inf)
    read = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert read["seats"][0]["mean_return_interval"] == [None, None]
    assert read["num_games"] == 2


def test_a_result_reads_as_one_line():
    result = match(RandomPolicy(), RandomPolicy(), Scripted(2, [(0, [1, 2], [2, -2])]), num_games=100)
    # 50 deals of exactly 0.5 are worth 50 * 52 / 2 games.
    assert str(result) == "win rate 0.500 (0.473 to 0.527), draws 0.0%, mean return +0.00, 100 games of 50 deals"
