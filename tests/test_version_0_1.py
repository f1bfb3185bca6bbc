"""What version 0.1 wrote is still read: a run, recordings, a store and exports, with its numbers of then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import movelist
from movelist.cli import main
from movelist.core.settings import PlaySettings
from movelist.data.store import Store
from movelist.games.catalog import make_game
from movelist.play.deals import MATCHES, outcomes
from movelist.play.exported import load_exported
from movelist.play.policy import RandomPolicy, Turns, derive_seeds
from movelist.play.selfplay import play_games
from movelist.run import checkpoint
from movelist.run.players import find_player

KEPT = Path(__file__).parent / "version_0_1"
EXPECTED = json.loads((KEPT / "expected.json").read_text(encoding="utf-8"))
EXPORTS = ("policy.onnx", "policy_sentis.onnx", "policy.safetensors")
RECORDINGS = [str(KEPT / name) for name in ("recording.jsonl", "recording.arrows")]
QUIET = ["--eval_games", "0", "--no-tensorboard", "--device", "cpu"]
ROUNDING = 1e-6  # expected.json has six digits
needs_the_game = pytest.mark.usefixtures("the_game")


@pytest.fixture
def the_game():
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")


def kept_turns():
    """The turns of expected.json, and their probabilities one after another."""
    turns = EXPECTED["turns"]
    nothing = np.zeros(len(turns), np.int64)
    return Turns(
        np.array([turn["state"] for turn in turns], np.float32),
        np.array([len(turn["actions"]) for turn in turns]),
        np.concatenate([turn["actions"] for turn in turns]),
        nothing,
        nothing,
    ), np.concatenate([turn["probabilities"] for turn in turns])


def summary(path, capsys):
    """`movelist check --json` of recordings, which finds nothing wrong."""
    assert main(["check", *path, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_loads_and_gives_its_probabilities():
    turns, expected_A = kept_turns()
    policy = movelist.load(KEPT / "run")
    np.testing.assert_allclose(np.exp(policy.log_probs(turns)), expected_A, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_gives_the_probabilities_of_its_run(name):
    if name.endswith(".onnx"):
        pytest.importorskip("onnxruntime")
    turns, expected_A = kept_turns()
    policy = load_exported(KEPT / name)
    np.testing.assert_allclose(np.exp(policy.log_probs(turns)), expected_A, rtol=0, atol=ROUNDING)


@needs_the_game
@pytest.mark.parametrize("name", ["run", *EXPORTS])
def test_it_plays_the_same_match(name):
    if name.endswith(".onnx"):
        pytest.importorskip("onnxruntime")
    game = make_game("leduc_poker")
    policy, _ = find_player(str(KEPT / name), game, greedy=True)
    seat_G = np.arange(200) % 2  # a match of version 0.1: other cards in each game
    seats_GP = np.where(np.arange(2) == seat_G[:, None], 0, 1)
    seed_G = derive_seeds(0, MATCHES, 0, 200)
    return_GP = play_games(game, [policy, RandomPolicy()], seats_GP, seed_G, PlaySettings()).return_EP
    own_G = np.arange(200), seat_G
    result = ((outcomes(return_GP)[own_G] + 1).mean() / 2, return_GP[own_G].mean())
    assert result == (EXPECTED["match_win_rate"], EXPECTED["match_mean_return"])


@needs_the_game
def test_a_run_is_resumed(tmp_path, capsys):
    run = shutil.copytree(KEPT / "run", tmp_path / "run")
    before = checkpoint.load(run)
    goal = before["counters"]["steps"] + 1  # one more update
    assert main(["train", "--resume", str(run), "--total_steps", str(goal), *QUIET]) == 0, capsys.readouterr()
    after = checkpoint.load(run)
    assert after["learner"]["num_updates"] == before["learner"]["num_updates"] + 1
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["charts/updates"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


def test_recordings_are_sound_and_both_say_the_same(capsys):
    one, other = (summary([path], capsys) for path in RECORDINGS)
    assert (one["episodes"], one["problems"], one["recorded"]) == (40, [], other["recorded"])
    both = summary([*RECORDINGS, str(KEPT / "store")], capsys)
    assert (both["episodes"], both["problems"]) == (80, [])
    assert list(both["stores"].values()) == [{"episodes": 80, "steps": 347}]


def test_the_same_recordings_become_the_same_store(tmp_path):
    assert main(["convert", *RECORDINGS, "--out", str(tmp_path / "store")]) == 0
    everything = np.arange(80)
    old, new = (Store(path).take(everything) for path in (KEPT / "store", tmp_path / "store"))
    for name in ("version_EP", "turns_E"):
        np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
    for name in ("state_NS", "action_offsets", "action_id_A", "chosen_N", "log_prob_N", "reward_N", "return_EP"):
        np.testing.assert_array_equal(getattr(old.episodes, name), getattr(new.episodes, name), err_msg=name)


@pytest.mark.parametrize("ending", ["jsonl", "arrows"])
def test_a_store_becomes_a_recording(tmp_path, capsys, ending):
    out = tmp_path / f"again.{ending}"
    assert main(["convert", str(KEPT / "store"), "--out", str(out)]) == 0
    assert (again := summary([str(out)], capsys))["problems"] == [] and again["episodes"] == 80
    assert again["steps"] == 347


@pytest.mark.parametrize("data", [*RECORDINGS, str(KEPT / "store")], ids=["jsonl", "arrows", "store"])
def test_they_are_trained_from(tmp_path, data):
    out = tmp_path / "run"
    assert main(["train", "--data", data, "--hidden_dim", "8", "--out", str(out), *QUIET]) == 0
    assert checkpoint.load(out)["learner"]["num_updates"] >= 1
