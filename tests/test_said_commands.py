"""The commands that a training prints can be typed as they stand, and its checkpoints hold plain values."""

import enum
import json
import shlex
import signal

import numpy as np
import pytest

import movelist
from movelist import cli
from movelist.learn.learner import Learner
from movelist.play.exported import load_exported
from movelist.run import checkpoint
from movelist.run.folder import read_settings
from play.toys import Odd

QUICK = ["--hidden_dim=8", "--eval_games=0", "--no-tensorboard", "--device=cpu", "--update_frequency=4"]


def recordings(folder, *, controller="policy", count=8, game="of an engine"):
    """A folder with episodes of one step."""
    folder.mkdir()
    step = {"player": 0, "state": [0.5, 1.0], "actions": [7, -9, 4], "chosen": 1, "reward": 0.0}
    player = {"controller": controller}
    if controller == "policy":
        step["log_prob"], player["policy_version"] = -1.1, 0
    episode = {"format": "movelist/1", "game": game, "players": [player], "steps": [step]}
    episode |= {"returns": [1.0], "end": "terminated"}
    text = "".join(json.dumps(episode | {"episode": number}) + "\n" for number in range(count))
    (folder / "a.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


def train(capsys, *words):
    """Run a training from the command line: the lines that it printed."""
    code = cli.main(["train", *map(str, words)])
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out.splitlines()


def said(lines, start):
    """The words of the command in the one line that starts so, without the program's name."""
    (line,) = [line for line in lines if line.startswith(start)]
    program, *words = shlex.split(line[line.index(" movelist ") :])
    assert program == "movelist"
    return words


def watching(tmp_path, capsys, *more):
    run = tmp_path / "run"
    flags = ["--data", recordings(tmp_path / "in"), "--watch", "--total_steps=4", "--out", run, *QUICK, *more]
    return run, train(capsys, *flags)


def test_what_a_watching_training_prints(tmp_path, capsys):
    run, lines = watching(tmp_path, capsys)
    steps = checkpoint.load(run)["counters"]["steps"]
    assert cli.main(said(lines, "Next: ")) == 0
    assert checkpoint.load(run)["counters"]["steps"] == 2 * steps


def test_what_self_play_prints(tmp_path, capsys):
    pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
    run = tmp_path / "with space $1"
    lines = train(capsys, "--game", "kuhn_poker", "--total_steps", 20, "--out", run, *QUICK)
    steps = checkpoint.load(run)["counters"]["steps"]
    match = said(lines, "Next: ")
    assert match[0] == "match" and cli.main(match) == 0
    assert f"{run.name} against random: " in capsys.readouterr().out
    assert cli.main(said(lines, "Or train on: ")) == 0
    assert checkpoint.load(run)["counters"]["steps"] >= 2 * steps


def test_what_training_from_a_store_prints(tmp_path, capsys):
    data = recordings(tmp_path / "in")
    assert cli.main(["convert", data, "--out", str(tmp_path / "a store")]) == 0
    capsys.readouterr()
    lines = train(capsys, "--data", tmp_path / "a store", "--out", tmp_path / "run", *QUICK)
    assert cli.main(said(lines, "Next: ")) == 0
    assert checkpoint.load(tmp_path / "run")["counters"]["episodes"] == 16


@pytest.mark.parametrize("kind", ["self-play", "recordings", "store", "watch"])
def test_what_is_printed_after_ctrl_c_goes_on(tmp_path, capsys, monkeypatch, kind):
    """Pressed in the second update of several."""
    flags = []
    if kind == "self-play":
        pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
        flags = ["--game", "kuhn_poker", "--total_steps", 200]
    else:
        data = recordings(tmp_path / "in", count=24)
        if kind == "store":
            assert cli.main(["convert", data, "--out", str(tmp_path / "store")]) == 0
            capsys.readouterr()
            data = str(tmp_path / "store")
        flags = ["--data", data] + (["--watch", "--total_steps", 16] if kind == "watch" else [])
    real, run = Learner.update, tmp_path / "my run"

    def update(learner, prepared, **options):
        if learner.num_updates == 1:
            signal.raise_signal(signal.SIGINT)
        return real(learner, prepared, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", update)
        assert cli.main(["train", *map(str, flags), "--out", str(run), *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert checkpoint.load(run)["learner"]["num_updates"] == 2
    assert cli.main(said(lines, "Stopped before the end. Go on: ")) == 0
    assert checkpoint.load(run)["learner"]["num_updates"] > 3


def test_a_watching_trainings_settings_are_a_preset(tmp_path, capsys):
    run, _ = watching(tmp_path, capsys)
    words = ["--preset", run / "settings.json", "--out", tmp_path / "other", *QUICK]
    train(capsys, *words)
    assert read_settings(tmp_path / "other")["watch"] is True


def test_what_a_training_on_used_up_recordings_prints_trains_on(tmp_path, capsys):
    """7 episodes, 4 an update: what is left over is no update."""
    for count in (7, 8):
        folder = tmp_path / str(count)
        folder.mkdir()
        data = recordings(folder / "in", count=count)
        lines = train(capsys, "--data", data, "--out", folder / "run", *QUICK)
        before = checkpoint.load(folder / "run")["counters"]["episodes"]
        assert cli.main(said(lines, "Next: ")) == 0
        capsys.readouterr()
        assert checkpoint.load(folder / "run")["counters"]["episodes"] > before


def test_imitation_points_to_ppo(tmp_path, capsys):
    data = recordings(tmp_path / "in", controller="human")
    lines = train(capsys, "--data", data, "--imitate", "--out", tmp_path / "run", *QUICK)
    (line,) = [line for line in lines if line.startswith("Or improve it by PPO: ")]
    assert f"--init_from {tmp_path / 'run'}" in line
    played = recordings(tmp_path / "played")
    train(capsys, "--data", played, "--init_from", tmp_path / "run", "--out", tmp_path / "next", *QUICK)


def test_a_training_without_a_goal_shows_no_percentage(tmp_path, capsys):
    from movelist.run.log import _share

    assert _share(0.0) == ""
    assert _share(0.07) == "  7%  "


def test_a_watching_training_names_its_layout_in_what_it_publishes(tmp_path, capsys):
    run, _ = watching(tmp_path, capsys, "--state_layout", "hand-2")
    latest = json.loads((run / "policies" / "latest.json").read_text(encoding="utf-8"))
    assert load_exported(run / "policies" / latest["weights"], state_layout="hand-2").info.state_layout == "hand-2"
    movelist.export(run, tmp_path / "a.safetensors", "weights")
    assert load_exported(tmp_path / "a.safetensors").info.state_layout == "hand-2"
    movelist.export(run, tmp_path / "b.safetensors", "weights", state_layout="hand-3")
    assert load_exported(tmp_path / "b.safetensors").info.state_layout == "hand-3"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("movelist ")


def test_random_against_random(capsys):
    pytest.importorskip("pyspiel", reason="plays an OpenSpiel game")
    assert cli.main(["match", "random", "--game", "tic_tac_toe", "--num_games", "20"]) == 0
    assert capsys.readouterr().out.startswith("random against random: ")
    assert cli.main(["match", "random"]) != 0


class Size(enum.IntEnum):
    """A number with a name."""

    SMALL = 8


class Named(Odd):
    """Its texts are numpy's."""

    name = np.str_("named")
    action_encoder = np.str_("bits")


def test_settings_that_are_numbers_and_texts_by_inheritance_are_saved_as_plain_ones(tmp_path):
    flat = {
        "lr": np.float64(1e-3),
        "hidden_dim": Size.SMALL,
        "device": np.str_("cpu"),
        "lr_schedule": np.str_("linear"),
    }
    options = {"total_steps": 1, "eval_games": 0, "tensorboard": False, "update_frequency": 4}
    movelist.train(game=Named(), out=tmp_path / "run", **flat, **options)
    settings = checkpoint.load(tmp_path / "run")["settings"]
    assert (settings["lr"], settings["hidden_dim"], settings["device"]) == (1e-3, 8, "cpu")
    assert {type(settings[name]) for name in flat} == {int, float, str}
    assert type(settings["game"]) is str
