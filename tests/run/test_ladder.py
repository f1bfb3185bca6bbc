"""Progress that does not saturate: a thin ladder of checkpoints, and ratings against it."""

import itertools
import json
import math

import pytest
import torch

import movelist
from movelist.core.settings import TrainSettings
from movelist.play.policy import NetPolicy
from movelist.run import checkpoint, ladder
from movelist.run.folder import RunFolder, numbered
from movelist.run.ladder import RANDOM, Ladder, Rung, closest, rated
from movelist.run.players import every_player
from movelist.run.training import Training
from play.toys import Odd

SMALL = {"game": "odd", "hidden_dim": 16, "batch_size": 32, "update_frequency": 16, "device": "cpu", "live": False,
         "tensorboard": False}  # fmt: skip


def training_in(path, **options):
    settings = TrainSettings.from_flat(SMALL | {"eval_games": 24, "eval_every": 1} | options)
    return Training(settings, Odd(), RunFolder(path))


def test_a_rating_by_hand():
    """Three of four of 99 games, and one drawn: 74.75 of 100, log-odds of log(74.75 / 25.25) = 1.0853."""
    found = rated(7, [(RANDOM, 0.75, 99.0)])
    assert (found.update, found.rating) == (7, pytest.approx(1.0853 * 400 / math.log(10), abs=0.05))
    assert found.error == pytest.approx(400 / math.log(10) / (100 * 0.7475 * 0.2525) ** 0.5, abs=0.01)
    other = rated(8, [(found, 0.5, 50.0)])
    assert other.rating == pytest.approx(found.rating, abs=0.01)
    assert other.error == pytest.approx(math.hypot(found.error, 400 / math.log(10) / (51 / 4) ** 0.5), abs=0.01)


def test_several_rungs_are_weighed_and_a_clean_sweep_is_finite():
    rungs = [Rung(1, 100.0, 10.0), Rung(2, 300.0, 10.0)]
    between = rated(3, [(rungs[0], 0.76, 200.0), (rungs[1], 0.5, 200.0)])
    assert between.rating == pytest.approx(300, abs=15)
    assert rated(3, [(rungs[1], 1.0, 100.0)]).rating < 2_000
    assert rated(3, [(rungs[1], 0.0, 100.0)]).rating > -2_000


def test_which_one_is_dropped():
    assert closest([10, 20, 40, 50, 100]) == 2
    assert closest([1, 2]) == 0
    updates = []
    for update in range(10, 5010, 10):
        updates.append(update)
        if len(updates) > 8:
            updates.pop(closest(updates))
    assert updates[0] == 10
    assert updates[-1] == 5000
    assert len(updates) == 8
    ratios = [after / before for before, after in itertools.pairwise(updates)]
    assert max(ratios[:-1]) < 5  # from the whole run, and none of its parts is left out


def test_the_ladder_is_thin_few_and_can_be_played(tmp_path):
    training = training_in(tmp_path)
    steps = Ladder(tmp_path)
    for update in range(1, 30):
        steps.add(update, training._state(training.counters))
    files = numbered(tmp_path / "ladder")
    assert len(files) == 8
    assert (files[0].name, files[-1].name) == ("update-000001.pt", "update-000029.pt")
    training.learner.num_updates = 1
    whole = training.save()
    assert files[0].stat().st_size < 0.7 * whole.stat().st_size  # the optimiser is as large as two of the network
    state = checkpoint.load(files[0])
    net = checkpoint.load_net(state, torch.device("cpu"))
    for name, tensor in training.net.state_dict().items():
        assert torch.equal(tensor, net.state_dict()[name])
    assert [int(file[-9:-3]) for file in every_player([f"{tmp_path}@all"])] == [int(file.stem[-6:]) for file in files]
    assert movelist.match(files[3], game=Odd(), num_games=4).num_games == 4
    steps.forget_after(3)
    assert max(int(file.stem[-6:]) for file in numbered(tmp_path / "ladder")) <= 3


def test_large_networks_leave_fewer_files(tmp_path, monkeypatch):
    training, steps = training_in(tmp_path), Ladder(tmp_path)
    monkeypatch.setattr(ladder, "MOST_BYTES", 1)
    for update in range(1, 6):
        steps.add(update, training._state(training.counters))
    assert len(numbered(tmp_path / "ladder")) == 2


def test_against_random_until_beaten_then_against_earlier_checkpoints(tmp_path, monkeypatch):
    training, met = training_in(tmp_path), []
    played = training._match

    def watched(num_games, opponent=None):
        met.append(opponent)
        return played(num_games, opponent)

    monkeypatch.setattr(training, "_match", watched)
    first = training.quick_match()
    assert met == [None]
    assert {"arena/win_rate", "eval/rating", "eval/rating_low", "eval/rating_high"} <= set(first)
    assert [rung[0] for rung in training.counters.rungs] == [0]
    assert not training.counters.beats_random
    training.counters.beats_random = True
    training.learner.num_updates = 1
    with torch.no_grad():
        next(training.net.parameters()).add_(0.5)
    second = training.quick_match()
    assert isinstance(met[1], NetPolicy)
    assert len(met) == 2
    assert "arena/win_rate" not in second
    assert second["eval/rating_low"] < second["eval/rating"] < second["eval/rating_high"]
    assert list(training.counters.last_figures) == ["rating"]
    before = met[1].net.state_dict()
    old = checkpoint.load(tmp_path / "ladder" / "update-000000.pt")["learner"]["net"]
    assert all(torch.equal(before[name], old[name]) for name in old)
    assert [rung[0] for rung in training.counters.rungs] == [0, 1]
    width = second["eval/rating_high"] - second["eval/rating_low"]
    assert width > first["eval/rating_high"] - first["eval/rating_low"]  # the error of the rung is in it


def test_random_players_are_left_when_they_are_beaten(tmp_path):
    training = training_in(tmp_path)
    training._match = lambda num_games, opponent=None: movelist.match(Odds(), game=Odd(most_turns=40), num_games=60)
    assert training.quick_match()["arena/win_rate"] >= 0.9
    assert training.counters.beats_random


class Odds:
    def choose(self, state, seat):
        return next((place for place, action in enumerate(state.legal_actions()) if action % 2), 0)


def test_best_json_is_the_newest_unless_an_older_one_is_significantly_better(tmp_path):
    training, best = training_in(tmp_path), tmp_path / "checkpoints" / "best.json"
    names = []
    for update, (rating, error) in enumerate([(400, 20), (410, 20), (380, 20), (300, 20), (395, 20), (500, 20)]):
        training.learner.num_updates = update
        training.counters.matched_update = update
        training.counters.last_match = {"eval/rating": rating}
        training.counters.last_figures = {"rating": (rating, rating - 1.96 * error, rating + 1.96 * error)}
        training.save()
        names.append(int(json.loads(best.read_text(encoding="utf-8"))["file"][-9:-3]))
    assert names == [
        0,
        1,
        2,
        2,
        4,
        5,
    ]  # 300 is beyond luck below 410: the distance is 110, of 2 * 20 * 1.96 / 2^0.5 = 55
    assert json.loads(best.read_text(encoding="utf-8"))["rating"] == 500


def test_a_training_logs_its_rating_and_goes_on_with_its_ladder(tmp_path):
    options = SMALL | {"game": Odd(), "eval_games": 24, "eval_every": 1, "save_every": 1}
    movelist.train(**options, out=tmp_path / "run", total_steps=150)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all("eval/rating" in row for row in rows)
    updates = [int(row["charts/updates"]) for row in rows]
    assert {int(file.stem[-6:]) for file in numbered(tmp_path / "run" / "ladder")} == set(updates[-8:])
    whole = movelist.train(**options, out=tmp_path / "whole", total_steps=300)
    resumed = movelist.train(game=Odd(), resume=tmp_path / "run", total_steps=300)
    assert resumed.updates == whole.updates
    one, other = (checkpoint.load(tmp_path / name)["counters"]["rungs"] for name in ("run", "whole"))
    assert one == other
    names = [sorted(file.name for file in numbered(tmp_path / name / "ladder")) for name in ("run", "whole")]
    assert names[0] == names[1]
