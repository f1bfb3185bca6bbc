"""Games of odd kinds, through all that a game goes through: training, resuming, a match, recordings and back."""

import json
from pathlib import Path

import numpy as np
import pytest

import movelist
from movelist import cli
from movelist.core.settings import PlaySettings
from movelist.data.record_rules import join
from movelist.play.policy import RandomPolicy, derive_seeds
from movelist.play.selfplay import RECORDINGS, play_games
from movelist.run import checkpoint
from play import odd_games
from play.odd_games import GAMES, Long, Never, Out, Patient, Rich, Richer
from recorded import read_all

FILE = Path(odd_games.__file__)
KINDS = pytest.mark.parametrize("kind", GAMES, ids=lambda kind: kind.name)
THOUSANDS = (Long, Patient)
QUICK = {"hidden_dim": 8, "eval_games": 0, "tensorboard": False, "live": False, "device": "cpu", "batch_size": 512,
         "epochs_per_update": 1, "seed": 2}  # fmt: skip


def sizes(kind):
    """Two updates of a training, and how many games make them."""
    games = 2 if kind in THOUSANDS else 8
    return {"update_frequency": games, "total_steps": 1 if kind in THOUSANDS else 30}, games


def named(kind):
    return f"{FILE}:{kind.__name__}"


def played(game, num_games, *, max_turns=10_000):
    seeds = derive_seeds(3, RECORDINGS, 0, num_games)
    seats = np.zeros((num_games, game.num_players), np.int64)
    settings = PlaySettings(keep_forced=True, max_turns=max_turns, num_games=256)
    return play_games(game, [RandomPolicy()], seats, seeds, settings), seeds


def credited_by_hand(game, episodes, seeds):
    """What each step's mover receives up to their next step or the end, by playing the same choices once more."""
    rewards = []
    for episode, seed in zip(episodes, seeds.tolist(), strict=True):
        state, before = game.new_state(seed), []
        for step in episode.steps:
            before.append((state.current_player(), state.returns()))
            state.apply(int(episodes.chosen_N[step]))
        assert state.current_player() is None
        for place, (player, scores) in enumerate(before):
            later = next((score for mover, score in before[place + 1 :] if mover == player), state.returns())
            rewards.append(later[player] - scores[player])
    return rewards


@KINDS
def test_each_step_is_credited_with_what_its_player_received(kind):
    game = kind()
    episodes, seeds = played(game, 2 if kind in THOUSANDS else 30)
    episodes.check()
    assert episodes.reward_N.tolist() == credited_by_hand(game, episodes, seeds)
    if kind is Long:  # rewards of forced turns go to the decision before them, to the last digit
        decided = episodes.without_forced()
        first = [int(start) for start in decided.episode_offsets[:-1]]
        assert decided.num_steps == 2 * 30 and decided.reward_N[first].any()
        assert np.diff(decided.action_offsets).min() == 3
    if kind in (Rich, Richer):
        assert (episodes.return_EP > 2**29).all() and len(np.unique(episodes.return_EP)) > 3


def test_a_game_of_thousands_of_decisions(tmp_path):
    options, _ = sizes(Patient)
    result = movelist.train(named(Patient), out=tmp_path / "run", **QUICK, **options)
    assert checkpoint.load(tmp_path / "run")["counters"]["steps"] == 4_000
    assert movelist.match(movelist.RandomPolicy(), game=named(Patient), num_games=2).num_games == 2
    assert result.policy.net.shape.num_actions == 3


@pytest.mark.parametrize("kind", [kind for kind in GAMES if kind is not Patient], ids=lambda kind: kind.name)
def test_training_a_match_and_going_on(kind, tmp_path):
    options, _ = sizes(kind)
    half, whole = tmp_path / "half", tmp_path / "whole"
    movelist.train(named(kind), out=half, **QUICK, **options)
    steps = checkpoint.load(half)["counters"]["steps"]
    assert steps >= options["total_steps"]
    movelist.train(resume=half, total_steps=steps + 1)
    movelist.train(named(kind), out=whole, **QUICK, **(options | {"total_steps": steps + 1}))
    states = [checkpoint.load(run) for run in (half, whole)]
    assert states[0]["counters"]["steps"] == states[1]["counters"]["steps"] > steps
    for name, tensor in states[0]["learner"]["net"].items():
        assert tensor.numpy().tobytes() == states[1]["learner"]["net"][name].numpy().tobytes(), name
    result = movelist.match(half, num_games=2 * kind().num_players)
    assert result.num_games == 2 * kind().num_players and len(result.seats) == kind().num_players
    assert np.isfinite(result.to_json()["mean_return"])


@KINDS
@pytest.mark.parametrize("ending", [".jsonl", ".arrows"])
def test_recording_and_training_from_it(kind, ending, tmp_path, capsys):
    _, games = sizes(kind)
    file = tmp_path / f"games{ending}"
    words = ["record", "--game", named(kind), "--episodes", str(games), "--seed", "3", "--out", str(file)]
    assert cli.main(words) == 0
    episodes, _ = played(kind(), games)
    parts, problems = read_all(file)
    assert all(problem.harmless for problem in problems)
    back = join(parts).episodes(keep_forced=True)
    with_steps = np.flatnonzero(np.diff(episodes.episode_offsets))
    # A line without steps is counted and skipped; in rows there is nothing to skip.
    assert len(problems) == (games - len(with_steps) if ending == ".jsonl" else 0)
    assert (len(with_steps) < games) == (kind is Never)
    np.testing.assert_array_equal(back.reward_N, episodes.reward_N)
    np.testing.assert_array_equal(back.return_EP, episodes.return_EP[with_steps])
    np.testing.assert_array_equal(back.chosen_N, episodes.chosen_N)
    capsys.readouterr()
    assert cli.main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == len(with_steps)
    options = QUICK | {"update_frequency": 4, "learn_from": "all"}
    movelist.train(named(kind), data=file, out=tmp_path / "run", **options)
    decisions = back.without_forced().num_steps
    assert checkpoint.load(tmp_path / "run")["counters"]["steps"] == decisions


@pytest.mark.parametrize("kind", [Out, Rich], ids=lambda kind: kind.name)
def test_they_are_learnt(kind, tmp_path):
    options = QUICK | {"epochs_per_update": 4, "lr": 5e-3, "hidden_dim": 16, "batch_size": 256}
    result = movelist.train(named(kind), out=tmp_path / "run", update_frequency=64, total_steps=9_000, **options)
    state = kind().new_state(0)
    assert result.policy.act(state.observe(0), [0, 1, 2])[0] == 0  # worth the most
    assert movelist.match(tmp_path / "run", num_games=60).win_rate > 0.9


def test_a_long_game_that_is_cut_off(tmp_path):
    episodes, _ = played(Long(), 2, max_turns=2_000)
    assert episodes.truncated_E.all() and np.diff(episodes.episode_offsets).tolist() == [2_000, 2_000]
    options = QUICK | {"max_turns": 2_000, "update_frequency": 2, "total_steps": 30}
    movelist.train(named(Long), out=tmp_path / "run", **options)
    assert movelist.match(tmp_path / "run", num_games=2).num_games == 2


def test_what_float32_cannot_hold_is_said(tmp_path, capsys):
    """Beside 2^40 the points that are played for are nothing; beside 2^24 they are not."""
    options = QUICK | {"update_frequency": 16, "total_steps": 60}
    movelist.train(named(Richer), out=tmp_path / "run", **options)
    said = capsys.readouterr().out
    assert "times as far from 0, at 1.1e+12, as they differ. Values in float32 are rounded by more" in said
    assert "it learns the same" not in said
