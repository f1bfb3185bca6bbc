"""Exporting runs and checkpoints: from a training to a file that plays as strongly."""

import json
import shutil

import numpy as np
import pytest
import torch

import movelist
from movelist import cli
from movelist.core.errors import CheckpointError, SettingsError
from movelist.play.exported import load_exported
from movelist.play.policy import RandomPolicy
from movelist.run import checkpoint
from movelist.run.players import load_player

SMALL = {
    "hidden_dim": 16,
    "batch_size": 32,
    "update_frequency": 20,
    "epochs_per_update": 1,
    "total_steps": 300,
    "tensorboard": False,
    "eval_games": 0,
    "device": "cpu",
}


class Higher:
    """Each of two players takes one of three numbers; who took more wins."""

    name, num_players = "higher", 2

    def new_state(self, seed):
        return HigherState(seed)


class HigherState:
    def __init__(self, seed):
        self.offers = np.random.default_rng(seed).permutation(20)[:6].reshape(2, 3).tolist()
        self.taken = []

    def current_player(self):
        return len(self.taken) if len(self.taken) < 2 else None

    def legal_actions(self):
        return self.offers[len(self.taken)]

    def observe(self, player):
        return [float(player), float(len(self.taken))]

    def apply(self, index):
        self.taken.append(self.legal_actions()[index])

    def returns(self):
        if len(self.taken) < 2:
            return [0.0, 0.0]
        lead = 1.0 if self.taken[0] > self.taken[1] else -1.0
        return [lead, -lead]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "higher"
    movelist.train(Higher(), **SMALL, out=folder)
    return folder


def test_a_run_is_exported_and_plays_as_strongly(run, tmp_path):
    path = tmp_path / "policy.safetensors"
    report = movelist.export(run, path, "weights")
    assert report.info.game == "higher"
    assert report.info.policy_version == checkpoint.load(run)["learner"]["num_updates"] > 0
    assert report.info.state_layout == "float32[2]"
    own = movelist.match(run, "random", game=Higher(), num_games=200)
    # The same games, the same choices: not only about as strong.
    assert movelist.match(path, "random", game=Higher(), num_games=200) == own
    assert movelist.match(path, run, game=Higher(), num_games=50, greedy=False).num_games == 50


def test_onnx_plays_as_strongly_too(run, tmp_path):
    pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    own = movelist.match(run, "random", game=Higher(), num_games=200)
    for profile in ("ort", "sentis15"):
        movelist.export(run, tmp_path / "policy.onnx", profile, value=True)
        assert movelist.match(tmp_path / "policy.onnx", "random", game=Higher(), num_games=200) == own


def test_the_metadata_comes_from_the_run(run):
    state = checkpoint.load(run)
    info = checkpoint.policy_info(state, "mine-v2")
    assert info.state_layout == "mine-v2"
    assert info.settings_hash and info.settings_hash == checkpoint.policy_info(state).settings_hash
    returns = state["learner"]["returns"]
    assert info.return_scale == pytest.approx((returns["squares"] / returns["count"]) ** 0.5)
    state["settings"]["scale_returns"] = False
    assert checkpoint.policy_info(state).return_scale == 1.0
    assert checkpoint.policy_info(state).settings_hash != info.settings_hash


def test_an_export_of_another_game_is_refused(run, tmp_path):
    path = tmp_path / "policy.safetensors"
    with pytest.raises(CheckpointError, match="of another game: got higher, expected chess"):
        movelist.export(run, path, "weights", game="chess")
    assert not path.exists()
    movelist.export(run, path, "weights", game="higher")

    class Wider(Higher):
        def new_state(self, seed):
            state = HigherState(seed)
            state.observe = lambda player: [0.0, 0.0, 0.0]
            return state

    with pytest.raises(CheckpointError, match="of another state_size: got 2, expected 3"):
        load_player(path, Wider(), greedy=True)

    class Chess(Higher):
        name = "chess"

    with pytest.raises(CheckpointError, match="of another game: got higher, expected chess"):
        movelist.match(path, game=Chess())


def test_an_exported_policy_is_not_exported_again(run, tmp_path):
    path = tmp_path / "policy.safetensors"
    movelist.export(run, path, "weights")
    for again in (path, load_exported(path)):
        with pytest.raises(CheckpointError, match=r"an exported policy is no checkpoint: .*movelist match"):
            movelist.export(again, tmp_path / "again.safetensors", "weights", game="higher")
    assert not (tmp_path / "again.safetensors").exists()


def test_a_network_of_your_own_is_exported_by_its_games_name(run, tmp_path):
    policy = movelist.load(run)
    with pytest.raises(SettingsError, match="needs to know its game"):
        movelist.export(policy, tmp_path / "a.safetensors", "weights")
    with pytest.raises(SettingsError, match="this cannot be exported: got RandomPolicy, expected a run, a checkpoint"):
        movelist.export(RandomPolicy(), tmp_path / "a.safetensors", "weights", game=Higher())
    report = movelist.export(policy.net, tmp_path / "a.safetensors", "weights", game=Higher())
    assert (report.info.game, report.info.policy_version) == ("higher", 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 3, "batch_size": 8},
        {"use_amp": True},
        {"action_encoder": "bits", "hidden_dim": 24},
    ],
)
def test_whatever_it_was_trained_with(settings, tmp_path):
    movelist.train(Higher(), **{**SMALL, "total_steps": 40, **settings}, out=tmp_path / "run")
    assert movelist.export(tmp_path / "run", tmp_path / "a.safetensors", "weights").max_logit_error <= 1e-5


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here, and torch.compile needs one")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch, by its own compiler
def test_a_compiled_training_is_exported(tmp_path):
    settings = {**SMALL, "total_steps": 40, "hidden_dim": 4, "compile": "on"}
    movelist.train(Higher(), **settings, out=tmp_path / "run")
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["perf/compiled"] > 0
    assert movelist.export(tmp_path / "run", tmp_path / "a.safetensors", "weights").max_logit_error <= 1e-5


def test_a_table_is_exported(tmp_path):
    class Table(Higher):
        action_encoder, num_actions = "table", 20

    movelist.train(Table(), **{**SMALL, "total_steps": 40}, out=tmp_path / "run")
    report = movelist.export(tmp_path / "run", tmp_path / "a.safetensors", "weights")
    assert (report.info.action_encoder, report.info.num_actions) == ("table", 20)


def test_the_command(run, tmp_path, capsys):
    path = tmp_path / "policy.safetensors"
    assert cli.main(["export", str(run), "--out", str(path), "--profile", "weights", "--state_layout", "v7"]) == 0
    assert "equal to torch on 200 lists" in capsys.readouterr().out
    assert cli.main(["export", str(run), "--out", str(path), "--profile=weights", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["state_size"] == 2
    assert cli.main(["export", str(tmp_path / "none"), "--out", str(path)]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_command_without_onnx_names_the_extra(run, tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["export", str(run), "--out", str(tmp_path / "policy.onnx")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and 'pip install "movelist[onnx]"' in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_weights_after_use_in_compiled_form(tmp_path):
    # torch.compile wraps modules; the state dict of what it wrapped keeps plain names.
    net = movelist.PolicyValueNet(movelist.ModelShape(state_size=3, hidden_dim=8))
    compiled = torch.compile(net.state_encoder, backend="eager")
    compiled(torch.zeros(2, 3))
    report = movelist.export(net, tmp_path / "a.safetensors", "weights", game="x")
    assert report.num_lists == 200


def test_watching_publishes_onnx_too(tmp_path):
    pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    games = tmp_path / "games"
    games.mkdir()
    step = {"player": 0, "state": [0.5, 1.0], "actions": [7, -9, 4], "chosen": 1, "reward": 0.0, "log_prob": -1.1}
    episode = {
        "format": "movelist/1",
        "game": "of an engine",
        "players": [{"controller": "policy", "policy_version": 0}],
        "steps": [step],
        "returns": [1.0],
        "end": "terminated",
    }
    text = "".join(json.dumps({**episode, "episode": number}) + "\n" for number in range(4))
    (games / "a.jsonl").write_text(text, encoding="utf-8")
    out = tmp_path / "run"
    flags = ["--update_frequency=4", "--hidden_dim=8", "--total_steps=4", "--no-tensorboard", "--device=cpu"]
    assert cli.main(["train", "--data", str(games), "--watch", "--publish=sentis15", "--out", str(out), *flags]) == 0
    latest = json.loads((out / "policies" / "latest.json").read_text(encoding="utf-8"))
    assert latest == {"policy_version": 1, "weights": "policy-1.safetensors", "onnx": "policy-1.onnx"}
    player = load_exported(out / "policies" / latest["onnx"], game="of an engine", state_layout="float32[2]")
    assert player.info.policy_version == 1
    # The version before was published before the first update: the engine can play from the start.
    assert (out / "policies" / "policy-0.onnx").is_file()


def test_an_unknown_profile_to_publish_is_refused_before_anything_is_read(tmp_path, capsys):
    words = ["--data", str(tmp_path / "games"), "--watch", "--publish=tflite", "--out", str(tmp_path / "run")]
    assert cli.main(["train", *words]) == 2
    assert "there is no such profile: got tflite, expected ort, sentis15 or weights" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
