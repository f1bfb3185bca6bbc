"""Which checkpoint counts as the best, where win rates saturate, cannot move, or scatter."""

import json
from dataclasses import asdict

import pytest

from movelist.core.settings import TrainSettings
from movelist.play.arena import MatchResult
from movelist.play.deals import wilson_interval
from movelist.run.best import at_least_as_good, figures, highest, known_win_rate, surpasses
from movelist.run.folder import RunFolder
from movelist.run.start import Counters
from movelist.run.training import Training
from play.toys import Odd


def match_of(rate, mean, num_games=200, error=0.3):
    return MatchResult(
        num_games=num_games,
        wins=round(rate * num_games),
        draws=0,
        losses=num_games - round(rate * num_games),
        win_rate=rate,
        win_rate_interval=wilson_interval(rate, num_games),
        draw_rate=0.0,
        draw_rate_interval=(0.0, 0.0),
        mean_return=mean,
        mean_return_interval=(mean - error, mean + error),
        seats=[],
    )


def chosen(matches, num_players=2):
    """The numbers of the matches after which best.json changes."""
    best, numbers = {}, []
    for number, result in enumerate(matches):
        now = figures(result, num_players)
        if at_least_as_good(now, best):
            best = highest(now, best)
            numbers.append(number)
    return numbers


def test_a_higher_win_rate_wins_and_a_lower_one_loses():
    # Newcombe's bound, 200 games each: 0.5 to 0.7 is 0.2 against sqrt(0.066^2 + 0.068^2) = 0.095; 0.5 to 0.58 is not.
    assert surpasses((0.7, *wilson_interval(0.7, 200)), (0.5, *wilson_interval(0.5, 200)))
    assert not surpasses((0.58, *wilson_interval(0.58, 200)), (0.5, *wilson_interval(0.5, 200)))
    assert chosen([match_of(0.5, 0.0), match_of(0.7, 0.0), match_of(0.5, 0.0), match_of(0.8, 0.0)]) == [0, 1, 3]


def test_a_win_rate_counts_before_the_mean_return():
    assert chosen([match_of(0.5, 9.0), match_of(0.7, 0.0), match_of(0.7, 5.0), match_of(0.5, 9.0)]) == [0, 1, 2]


def test_where_win_rates_saturate_the_mean_return_decides_then_the_newer():
    assert chosen([match_of(1.0, 1.0), match_of(1.0, 3.0), match_of(1.0, 2.0), match_of(1.0, 2.9)]) == [0, 1, 3]


def test_where_all_share_their_return_it_is_what_counts():
    """Each game is a draw; the returns rise from 3.8 to 6.2."""
    assert chosen([match_of(0.5, 1.0), match_of(0.5, 3.8), match_of(0.5, 6.2)]) == [0, 1, 2]
    assert chosen([match_of(0.5, 6.2), match_of(0.5, 3.8)]) == [0]


def test_alone_only_the_mean_return_counts():
    """A win is a return above 0 there, which says nothing: more of them, and less return, is no better."""
    assert chosen([match_of(0.5, 6.1), match_of(1.0, 5.0), match_of(0.4, 11.0)], num_players=1) == [0, 2]


def test_small_losses_do_not_add_up():
    """Each is luck beside the one before; held against the highest, the fourth is a loss."""
    rates = [0.80, 0.76, 0.72, 0.68, 0.64]
    assert chosen([match_of(rate, 0.0) for rate in rates]) == [0, 1, 2]


def test_a_run_that_kept_the_win_rate_only_is_compared_by_it():
    best = known_win_rate(0.7, 200)
    assert not at_least_as_good(figures(match_of(0.5, 99.0), 2), best)
    assert at_least_as_good(figures(match_of(0.7, -99.0), 2), best)
    assert at_least_as_good(figures(match_of(0.5, -99.0), 1), best)  # alone it was no measure


def test_a_single_game_says_nothing():
    assert chosen([match_of(1.0, 1.0, 1, float("inf")), match_of(0.0, -1.0, 1, float("inf"))]) == [0, 1]


@pytest.mark.parametrize(("num_players", "names"), [(1, ["mean_return"]), (2, ["win_rate", "mean_return", "rating"])])
def test_a_quick_match_notes_what_decides_and_best_json_names_its_score(tmp_path, num_players, names):
    settings = TrainSettings.from_flat(
        {"game": "odd", "hidden_dim": 16, "batch_size": 32, "device": "cpu", "eval_games": 20, "eval_every": 1}
    )
    training = Training(settings, Odd(num_players), RunFolder(tmp_path))
    assert not training._is_best()
    metrics = training.quick_match()
    assert list(training.counters.last_figures) == names
    assert training._is_best()
    path = training.save()
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text(encoding="utf-8")) == {
        "file": path.name,
        **{name.partition("/")[2]: value for name, value in metrics.items()},
    }
    assert list(training.counters.best_figures) == names
    training.counters.last_figures = {name: (-99.0, -99.0, -99.0) for name in names}
    assert not training._is_best()


def test_counters_of_an_older_version_load_and_hold_their_best(tmp_path):
    new = {"best_figures", "last_figures"}
    old = {name: value for name, value in asdict(Counters(best_win_rate=0.9)).items() if name not in new}
    training = Training(
        TrainSettings.from_flat({"game": "odd", "hidden_dim": 16, "device": "cpu"}), Odd(), RunFolder(tmp_path)
    )
    training.counters = Counters(**old)
    training.counters.matched_update = 0
    assert not training._is_best()  # there is no match with figures yet
    training.counters.last_figures = figures(match_of(0.5, 0.0), 2)
    assert not training._is_best()
    training.counters.last_figures = figures(match_of(0.9, 0.0), 2)
    assert training._is_best()
