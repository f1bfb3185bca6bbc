"""A whole training, small: what it leaves behind, when it stops, and that stopping and going on changes nothing."""

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import movelist
from movelist.core.errors import (
    CheckpointError,
    DataError,
    GameError,
    MovelistError,
    SettingsError,
    WorkerError,
)
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.games.catalog import make_game
from movelist.play.deals import MATCHES
from movelist.play.policy import NetPolicy, RandomPolicy, derive_seeds
from movelist.play.selfplay import GAMES, SelfPlay
from movelist.run import checkpoint
from movelist.run.folder import read_settings
from movelist.run.log import Log
from movelist.run.train import train
from movelist.run.training import Training
from play.toys import Odd, Picker, Scripted
from play.worker_games import Timed
from recorded import record as episode_record
from recorded import write_lines

SMALL = {
    "game": "odd",
    "hidden_dim": 16,
    "batch_size": 16,
    "update_frequency": 8,
    "epochs_per_update": 2,
    "total_steps": 100,
    "eval_games": 0,
    "tensorboard": False,
    "device": "cpu",
}
CLOCK = {
    "time",
    "charts/SPS",
    "charts/seconds_left",
    "legal/actions_per_second",
    "perf/rollout_share",
    "perf/update_share",
    "perf/wait_share",
    "perf/cpu_use",
    "perf/process_memory",
}


def run(out, played=None, **flat):
    """Train a little; the result and what was said."""
    text = io.StringIO()
    settings = TrainSettings.from_flat({**SMALL, **({} if out is None else {"out": str(out)}), **flat})
    result = train(settings, played or Odd(), console=Console(file=text, width=200))
    return result, text.getvalue()


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_clock(folder):
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows(folder)]


def flatten(value):
    """All that a checkpoint's part holds, as bytes, numbers and text in order."""
    if isinstance(value, torch.Tensor):
        return [value.numpy().tobytes()]
    if isinstance(value, dict):
        return [part for key in value for part in (key, *flatten(value[key]))]
    if isinstance(value, list | tuple):
        return [part for one in value for part in flatten(one)]
    return [value]


def learnt(folder):
    """Weights, optimiser, scale and the number of games started: all that decides how a training goes on."""
    state = checkpoint.load(folder)
    return flatten([state["learner"], state["source"], state["counters"]["steps"], state["counters"]["episodes"]])


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


# --- What a training leaves behind, and games played by workers


def test_workers_train_as_far_as_one_process_and_are_gone_afterwards(tmp_path):
    alone, _ = run(tmp_path / "alone")
    result, text = run(tmp_path / "run", rollout_workers=2)
    assert (result.steps, result.updates) == (alone.steps, alone.updates)
    assert "rollout_workers=2" in text
    assert multiprocessing.active_children() == []
    one, other = (checkpoint.load(folder)["learner"]["net"] for folder in (alone.folder, result.folder))
    for name in one:  # float32 sums in another order while acting, so another first ratio: units of 1e-7 through Adam
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-4)


def test_matches_are_played_by_the_workers_too(tmp_path):
    game, matches = Odd(), {"eval_games": 20, "eval_every": 1, "total_steps": 50}
    alone, _ = run(tmp_path / "alone", game, **matches)
    seeds = set(derive_seeds(0, MATCHES, 0, 10).tolist())  # of 10 deals, two games each
    assert seeds <= set(game.seeds)
    game = Odd()
    result, _ = run(tmp_path / "run", game, rollout_workers=2, **matches)
    assert not seeds & set(game.seeds)
    assert multiprocessing.active_children() == []
    assert result.match.num_games == alone.match.num_games == 20
    assert all("arena/win_rate" in row for row in rows(result.folder))


def test_a_game_that_fails_in_a_worker_ends_the_run_with_what_was_learnt(tmp_path):
    seed = derive_seeds(0, GAMES, 20, 1)[0]  # of a game of the third update
    with pytest.raises(WorkerError) as caught:
        run(tmp_path / "run", Timed(fault="exit", seed=seed), game="timed", rollout_workers=2)
    assert one_line(caught).startswith(
        "worker 0 failed twice on the same games: ended with exit code 3 (game with seed"
    )
    assert multiprocessing.active_children() == []
    assert checkpoint.load(tmp_path / "run")["counters"]["episodes"] == 16
    assert checkpoint.load(tmp_path / "run")["source"] == {"num_started": 16}
    result, _ = run(None, Timed(), game="timed", resume=str(tmp_path / "run"))  # another number of workers
    assert result.steps >= 100


def shown_texts(folder):
    """The tags of TensorBoard's page of texts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return sorted(events.PluginTagToContent("text"))


def test_a_training_from_start_to_end(tmp_path):
    result, text = run(tmp_path / "run", eval_games=20, tensorboard=True, save_every=1, keep_checkpoints=2)
    folder = tmp_path / "run"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "final_match.json",
        "metrics.jsonl",
        "settings.json",
        "tensorboard",
    ]
    assert next((folder / "tensorboard").iterdir()).name.startswith("events.out.tfevents")
    assert shown_texts(folder) == ["final_match", "settings"]
    saved = [f"update-{number:06d}.pt" for number in (result.updates - 1, result.updates)]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["latest.json", *saved]
    assert result.folder == folder
    assert result.checkpoint == folder / "checkpoints" / saved[-1]
    assert result.steps >= 100
    assert not result.interrupted
    assert result.match.num_games == 20
    assert isinstance(result.policy, NetPolicy)
    assert result.policy.greedy

    settings = read_settings(folder)
    assert settings["out"] == str(folder)
    expected = TrainSettings.from_flat({**SMALL, "eval_games": 20, "tensorboard": True, "save_every": 1,
                                        "keep_checkpoints": 2, "out": str(folder)})  # fmt: skip
    assert TrainSettings.from_flat(settings) == expected

    lines = text.splitlines()
    assert f"Trained {result.steps} steps in {result.updates} updates and " in text
    assert f"Against random players: {result.match}." in lines
    assert lines[-3].startswith(f"Files: {quoted(folder)} (settings, metrics.jsonl, ")
    assert f"the last is {saved[-1]}" in lines[-3]


def test_the_metrics_are_there_with_their_tags(tmp_path):
    result, _ = run(tmp_path, eval_every=2, eval_games=4)
    written = rows(tmp_path)
    assert [row["charts/updates"] for row in written] == list(range(1, result.updates + 1))
    assert written[-1]["step"] == result.steps
    assert written[-1]["charts/episodes"] == 8 * result.updates
    for row in written:
        assert {
            "charts/SPS",
            "charts/episodic_return_seat_0",
            "charts/episodic_return_seat_1",
            "charts/episodic_length",
            "charts/learning_rate",
            "losses/policy_loss",
            "losses/value_loss",
            "losses/entropy",
            "losses/approx_kl",
            "losses/clip_fraction",
            "losses/explained_variance",
            "losses/grad_norm",
            "legal/actions_per_step",
            "legal/decision_share",
            "perf/rollout_share",
        } <= set(row)
        assert row["charts/episodic_return_seat_0"] == -row["charts/episodic_return_seat_1"]
        assert ("arena/win_rate" in row) == (row["charts/updates"] % 2 == 0)


def test_live_numbers_are_there_unless_they_are_switched_off(tmp_path):
    run(tmp_path / "on")
    assert all(0 <= row["perf/wait_share"] <= 1 for row in rows(tmp_path / "on"))
    run(tmp_path / "off", live=False)
    assert not any("perf/wait_share" in row for row in rows(tmp_path / "off"))
    assert learnt(tmp_path / "on") == learnt(tmp_path / "off"), "looking changes nothing"


def test_nothing_is_played_at_the_end_without_eval_games(tmp_path):
    result, text = run(tmp_path)
    assert result.match is None
    assert "random players" not in text
    assert not any("arena/win_rate" in row for row in rows(tmp_path))


def test_without_a_folder_it_makes_one_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result, _ = run(None, total_steps=1)
    assert result.folder.parent == Path("runs")
    assert result.folder.name.startswith("odd-2")
    assert read_settings(result.folder)["out"] == str(result.folder)


def test_it_learns(tmp_path):
    """Odd ids win: a bit of the id that the network has to find."""
    flat = {"update_frequency": 64, "batch_size": 128, "epochs_per_update": 4, "lr": 3e-3, "hidden_dim": 32}
    result, _ = run(tmp_path, **flat, total_steps=8_000, eval_games=200)
    assert result.match.win_rate_interval[0] > 0.7  # random against random: 0.5; perfect play loses to forced turns


# --- When it stops


def test_total_steps_stops_at_the_end_of_an_update(tmp_path):
    result, _ = run(tmp_path, total_steps=100)
    steps = [row["step"] for row in rows(tmp_path)]
    assert steps[-2] < 100 <= steps[-1] == result.steps


class Clock:
    """Each look at it is a second later."""

    seconds = 0.0

    def perf_counter(self):
        self.seconds += 1.0
        return self.seconds


def test_max_seconds_stops_at_the_end_of_an_update(tmp_path, monkeypatch):
    """An update looks at the clock at its start, after the games and at its end, so it takes 2 s here."""
    monkeypatch.setattr("movelist.run.train.time", Clock())
    result, _ = run(tmp_path, total_steps=None, max_seconds=5.0)
    assert (result.updates, result.seconds) == (3, 6.0)
    assert [row.get("charts/seconds_left") for row in rows(tmp_path)] == pytest.approx([3.0, 1.0, 0.0])
    assert [row["perf/rollout_share"] for row in rows(tmp_path)] == [0.5] * 3


def test_the_learning_rate_falls_to_the_end(tmp_path):
    run(tmp_path, lr=0.01, lr_schedule="linear", total_steps=150)
    written = rows(tmp_path)
    rates = [row["charts/learning_rate"] for row in written]
    trained = [0, *[row["step"] for row in written[:-1]]]
    assert len(rates) > 2
    assert rates == pytest.approx([0.01 * (1 - steps / 150) for steps in trained])
    run(tmp_path / "constant", lr=0.01)
    assert {row["charts/learning_rate"] for row in rows(tmp_path / "constant")} == {0.01}


def test_an_exhausted_source_ends_the_training_with_everything_saved(tmp_path, monkeypatch):
    """Recordings run out; what was learnt since the last save must not be lost."""
    original = SelfPlay.collect
    monkeypatch.setattr(
        SelfPlay,
        "collect",
        lambda self, policy, num: original(self, policy, num if self.num_started < 24 else 0),
    )
    result, text = run(tmp_path, total_steps=10**6, save_every=2)
    assert result.updates == 3
    assert result.checkpoint.name == "update-000003.pt"
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == 3
    assert "Trained" in text


# --- Same seed, same bytes


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in [("a", 3), ("b", 3), ("c", 4)]:
        run(tmp_path / name, seed=seed, eval_games=4, save_every=2)
    assert learnt(tmp_path / "a") == learnt(tmp_path / "b") != learnt(tmp_path / "c")
    assert without_clock(tmp_path / "a") == without_clock(tmp_path / "b")


def test_games_at_once_and_saving_change_nothing_that_is_played(tmp_path):
    run(tmp_path / "a", num_games=512, save_every=1)
    run(tmp_path / "b", num_games=3, save_every=10, tensorboard=True)
    first, second = rows(tmp_path / "a")[0], rows(tmp_path / "b")[0]
    for name in ("step", "charts/episodic_return_seat_0", "legal/actions_per_step"):
        assert first[name] == second[name]


# --- Stopped and resumed


def four_updates(folder, **flat):
    """An unbroken run of at least four updates; the steps after each."""
    run(folder, **flat, total_steps=180)
    steps = [row["step"] for row in rows(folder)]
    assert len(steps) >= 4
    return steps


@pytest.mark.parametrize("flat", [{}, {"gae_lambda": 0.9, "target_kl": 0.01, "scale_returns": False}])
def test_four_updates_equal_two_and_two_more(tmp_path, flat):
    steps = four_updates(tmp_path / "whole", **flat)
    run(tmp_path / "parts", **flat, total_steps=steps[1])
    assert checkpoint.load(tmp_path / "parts")["learner"]["num_updates"] == 2
    assert learnt(tmp_path / "parts") != learnt(tmp_path / "whole")
    torch.manual_seed(99)  # whatever else the process did meanwhile
    result, text = run(None, **flat, resume=str(tmp_path / "parts"), total_steps=180)
    assert f"Going on after update 2, {steps[1]} steps." in text
    assert result.folder == tmp_path / "parts"
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")
    assert without_clock(tmp_path / "parts") == without_clock(tmp_path / "whole")


def test_stopping_after_every_update_changes_nothing(tmp_path):
    steps = four_updates(tmp_path / "whole")
    run(tmp_path / "parts", total_steps=1)
    for _ in steps[1:]:
        done = checkpoint.load(tmp_path / "parts")["counters"]["steps"]
        run(None, resume=str(tmp_path / "parts"), total_steps=done + 1)
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint_and_counts_each_step_once(tmp_path, monkeypatch):
    """Killed in update 4, saved after update 2: update 3 is done again, and stands once in the metrics."""
    steps = four_updates(tmp_path / "whole", save_every=2)
    original = Training.collect

    def killed(self):
        if self.learner.num_updates == 3:
            raise ZeroDivisionError("the power fails")
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "collect", killed)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "parts", save_every=2, total_steps=180, tensorboard=True)
    assert [row["step"] for row in rows(tmp_path / "parts")] == steps[:3]
    run(None, resume=str(tmp_path / "parts"), save_every=2, total_steps=180, tensorboard=True)
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")
    assert [row["step"] for row in rows(tmp_path / "parts")] == steps
    assert tensorboard_steps(tmp_path / "parts") == steps


def tensorboard_steps(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars("losses/policy_loss")]


def test_a_finished_run_says_so_and_stays_as_it_is(tmp_path):
    result, _ = run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pt")}
    again, text = run(None, resume=str(tmp_path))
    assert (again.steps, again.updates) == (result.steps, result.updates)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pt")} == before
    assert [line for line in text.splitlines() if "already" in line and "--total_steps" in line]


def test_a_resumed_run_that_does_not_fit_is_refused_and_stays_as_it_is(tmp_path):
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as caught:
        run(None, resume=str(tmp_path), hidden_dim=32)
    assert one_line(caught) == f"the checkpoint is of another hidden_dim: got 16, expected 32 ({tmp_path})"
    other = Odd()
    other.name = "even"
    with pytest.raises(CheckpointError) as caught:
        run(None, other, resume=str(tmp_path), game="even")
    assert one_line(caught) == f"the checkpoint is of another game: got odd, expected even ({tmp_path})"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    run(None, resume=str(tmp_path), total_steps=150)


def test_the_same_command_again_goes_on(tmp_path):
    """Once with another goal, and once more when all is done."""
    steps = four_updates(tmp_path / "whole")
    run(tmp_path / "parts", total_steps=steps[1])
    result, text = run(tmp_path / "parts", total_steps=180)
    assert f"Going on after update 2, {steps[1]} steps." in text
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")
    again, text = run(tmp_path / "parts", total_steps=180)
    assert "It has already come that far" in text
    assert again.updates == result.updates
    assert read_settings(tmp_path / "parts") == read_settings(tmp_path / "whole") | {"out": str(tmp_path / "parts")}


def test_another_run_into_the_same_folder_is_refused(tmp_path):
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path / "run", lr=0.25, total_steps=9)
    assert one_line(caught).startswith("the folder already holds another run: got --lr 0.25 instead of 0.0005 (")
    assert f"movelist train --resume {quoted(tmp_path / 'run')}; or choose another" in one_line(caught)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("flat", [{"total_steps": 100}, {"total_steps": 10**6, "max_seconds": 0.05}])
def test_the_hint_for_training_on_does_train_on(tmp_path, flat):
    """What is said to type is typed, with the run's own settings for all the rest."""
    pytest.importorskip("pyspiel", reason="the command line knows OpenSpiel's games")
    kuhn = make_game("kuhn_poker")
    result, text = run(tmp_path / "run", kuhn, game="kuhn_poker", **flat)
    (hint,) = [line for line in text.splitlines() if line.startswith("Or train on: ")]
    words = hint.split()
    flags = {words[at].removeprefix("--"): words[at + 1] for at in range(5, len(words), 2)}
    own = read_settings(tmp_path / "run")
    given = {name: value if name == "resume" else json.loads(value) for name, value in flags.items()}
    assert given["resume"] == quoted(tmp_path / "run")
    settings = TrainSettings.from_flat({**own, **given, "resume": str(tmp_path / "run")})
    again = train(settings, kuhn, console=Console(file=io.StringIO()))
    assert again.updates > result.updates


# --- Ctrl-C


class Bell(Odd):
    """Rings a signal at its n-th new game."""

    def __init__(self, at, number=signal.SIGINT):
        super().__init__()
        self.at, self.number = at, number

    def new_state(self, seed):
        if len(self.seeds) == self.at:
            signal.raise_signal(self.number)
        return super().new_state(seed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_saves_and_says_how_to_go_on(tmp_path, number):
    steps = four_updates(tmp_path / "whole")
    before = signal.getsignal(number)
    result, text = run(tmp_path / "parts", Bell(13, number), total_steps=180, eval_games=50)
    assert signal.getsignal(number) is before
    assert result.interrupted
    assert (result.updates, result.steps) == (2, steps[1])
    assert result.match is None  # whoever stops does not want to wait for a match
    assert result.checkpoint.name == "update-000002.pt"
    lines = text.splitlines()
    assert "Stopping after this update. Once more to leave at once." in lines
    assert lines[-1].startswith("Stopped before the end. Go on: movelist")
    assert str(tmp_path / "parts") in lines[-1]
    run(None, resume=str(tmp_path / "parts"), total_steps=180)
    assert learnt(tmp_path / "parts") == learnt(tmp_path / "whole")


def test_the_hint_after_a_stop_is_a_command(tmp_path, monkeypatch):
    pytest.importorskip("pyspiel", reason="the command line knows OpenSpiel's games")
    original = Log.update
    monkeypatch.setattr(
        Log, "update", lambda *words, **options: (original(*words, **options), signal.raise_signal(signal.SIGINT))
    )
    _, text = run(tmp_path / "训练 一", make_game("kuhn_poker"), game="kuhn_poker", total_steps=10**6)
    assert text.splitlines()[-1] == (f'Stopped before the end. Go on: movelist train --resume "{tmp_path / "训练 一"}"')


def test_a_signal_while_the_metrics_are_written_loses_nothing(tmp_path, monkeypatch):
    """Between the decision to save and the end of the update."""
    original = Log.update

    def update(self, step, metrics, **options):
        original(self, step, metrics, **options)
        if metrics["charts/updates"] == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Log, "update", update)
    result, text = run(tmp_path, total_steps=10**6, save_every=2)
    assert result.interrupted
    assert result.updates == 3
    assert result.checkpoint.name == "update-000003.pt"
    assert "the last is update-000003.pt" in text
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == 3


def test_a_signal_before_the_first_update_does_one_update(tmp_path, monkeypatch):
    original = Log.say_all

    def say_all(self, lines):
        original(self, lines)
        if not signal_sent:
            signal_sent.append(True)
            signal.raise_signal(signal.SIGINT)

    signal_sent = []
    monkeypatch.setattr(Log, "say_all", say_all)
    result, text = run(tmp_path, total_steps=10**6)
    assert result.interrupted
    assert result.updates in (0, 1)
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == result.updates
    assert text.splitlines()[-1].startswith("Stopped before the end. Go on: ")


def test_a_signal_during_a_quick_match_ends_that_update_and_saves(tmp_path, monkeypatch):
    original = Training._match

    def match(self, num_games):
        signal.raise_signal(signal.SIGTERM)
        return original(self, num_games)

    monkeypatch.setattr(Training, "_match", match)
    result, _ = run(tmp_path, total_steps=10**6, eval_games=10, eval_every=2)
    assert result.interrupted
    assert (result.updates, result.checkpoint.name) == (2, "update-000002.pt")
    assert [("arena/win_rate" in row) for row in rows(tmp_path)] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_match_ends_only_the_match(tmp_path, monkeypatch, number):
    """All is trained and saved; nobody has to wait for thousands of games, or to lose the last lines."""
    original = Training._match

    def match(self, num_games):
        signal.raise_signal(number)
        return original(self, num_games)

    monkeypatch.setattr(Training, "_match", match)
    result, text = run(tmp_path, eval_games=10)
    assert result.match is None
    assert "Stopping after this update" not in text
    assert f"Files: {quoted(tmp_path)} " in text
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == result.updates


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
from movelist import cli
from movelist.run import recorded
from play.toys import Odd

class Slow(Odd):
    def new_state(self, seed):
        if len(self.seeds) >= SLOW_AFTER:
            print("sleeping", flush=True)
            time.sleep(100)
        return super().new_state(seed)

def make(name):
    if SLOW_AFTER < 0:
        print("making the game", flush=True)
        time.sleep(100)
    return Slow()

recorded.make_game = make
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send another process a signal")


def start(folder, *, slow_after, **flat):
    """A training in a process of its own, with its standard output."""
    script = SCRIPT.replace("SLOW_AFTER", str(slow_after))
    given = {**SMALL, "out": folder, **flat}
    words = [f"--{name}={value}" for name, value in given.items() if value is not False and value is not None]
    words += [f"--{name}" for name, value in given.items() if value is None]
    tests = str(Path(__file__).resolve().parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", script, tests, *words, "--no-tensorboard"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def read_until(process, word):
    """Read lines of its standard output until one has the word."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"{word!r} never came: {lines} {process.stderr.read()}")


def end_of(process):
    """Wait for the end: exit code and the rest of what it wrote."""
    try:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err
    finally:
        process.kill()


@on_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_signal_ends_with_exit_code_0(tmp_path, number):
    process = start(tmp_path / "run", slow_after=10**9, total_steps=10**9)
    read_until(process, "update ")
    process.send_signal(number)
    code, out, err = end_of(process)
    assert (code, err) == (0, "")
    assert "Stopping after this update." in out
    assert out.splitlines()[-1].startswith("Stopped before the end. Go on: movelist")
    assert checkpoint.load(tmp_path / "run")["counters"]["steps"] == rows(tmp_path / "run")[-1]["step"]


@on_posix
def test_a_second_ctrl_c_leaves_at_once_and_the_last_checkpoint_loads(tmp_path):
    process = start(tmp_path / "run", slow_after=26, total_steps=10**9, save_every=1)
    read_until(process, "sleeping")
    process.send_signal(signal.SIGINT)
    read_until(process, "Stopping after this update.")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, err = end_of(process)
    assert (code, err) == (128 + signal.SIGINT, "")
    assert time.monotonic() - began < 50  # it sleeps for 100
    assert checkpoint.load(tmp_path / "run")["learner"]["num_updates"] == 2


@on_posix
def test_ctrl_c_before_anything_began_leaves_nothing_and_shows_no_traceback(tmp_path):
    process = start(tmp_path / "run", slow_after=-1)
    read_until(process, "making the game")
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (130, "", "movelist: stopped.\n")
    assert list(tmp_path.iterdir()) == []


@on_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_waits_for_an_engine(tmp_path, number):
    """Eight episodes have come and no more do."""
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", *[episode_record(game="odd")] * 8)
    process = start(tmp_path / "run", slow_after=10**9, game=False, data=tmp_path / "in", watch=None, total_steps=10**6)
    read_until(process, "update 1 ")
    process.send_signal(number)
    code, out, err = end_of(process)
    assert (code, err) == (0, "")
    assert "Stopping after this update." in out
    assert out.splitlines()[-1].startswith("Stopped before the end. Go on: movelist train --resume")
    assert checkpoint.load(tmp_path / "run")["learner"]["num_updates"] == 1


@on_posix
def test_two_trainings_cannot_share_a_folder(tmp_path):
    process = start(tmp_path / "run", slow_after=20, total_steps=10**9)
    try:
        read_until(process, "sleeping")
        with pytest.raises(CheckpointError) as caught:
            run(tmp_path / "run", total_steps=10**9)
    finally:
        process.kill()
        end_of(process)
    assert one_line(caught).startswith(f"another process trains in this folder: got process {process.pid} on ")
    run(tmp_path / "run", total_steps=100)  # a killed one blocks nobody


# --- What goes wrong


class Sick(Odd):
    """Shows NaN from its n-th game on."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def new_state(self, seed):
        state = super().new_state(seed)
        if seed and len(self.seeds) > self.after:  # the state of seed 0 is looked at for its width
            state.observe = lambda player: [np.nan] * 4
        return state


def test_nan_in_an_observation_is_one_line_and_the_last_checkpoint_stays(tmp_path):
    with pytest.raises(MovelistError) as caught:
        run(tmp_path, Sick(20), save_every=1, total_steps=10**6)
    assert isinstance(caught.value, GameError)
    assert one_line(caught).startswith("an observation is not finite: got nan at ")
    assert "(game with seed " in one_line(caught)
    assert checkpoint.load(tmp_path)["learner"]["num_updates"] == 2


def test_a_table_for_foreign_ids_is_one_line(tmp_path):
    game = Odd()
    game.num_actions = 5
    with pytest.raises(DataError) as caught:
        run(tmp_path, game, action_encoder="table")
    assert one_line(caught).startswith("an action id has no row in the table: got ")


@pytest.mark.parametrize(
    ("flat", "error"),
    [
        ({"action_encoder": "table"}, "--action_encoder table needs a game that tells its num_actions: got odd."),
        ({"device": "cuda"}, "--device cuda cannot be used. "),
    ],
)
def test_nothing_is_left_of_a_training_that_could_not_start(tmp_path, monkeypatch, flat, error):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MovelistError) as caught:
        run(tmp_path / "run", **flat)
    assert one_line(caught).startswith(error)
    assert not (tmp_path / "run").exists()


def test_a_game_without_decisions_is_refused_instead_of_played_for_ever(tmp_path):
    game = Scripted(2, [(0, [4], [1.0, 0.0]), (1, [5], [0.0, 2.0])])
    with pytest.raises(GameError) as caught:
        run(tmp_path, game, game="scripted", max_seconds=0.2)
    assert "scripted" in one_line(caught)


# --- What Python users call

API = {name: value for name, value in SMALL.items() if name != "game"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs of a game of one's own, by movelist.train."""
    folder = tmp_path_factory.mktemp("api")
    return [
        movelist.train(game=Odd(), **API | {"out": folder / f"训练 {seed}", "seed": seed} | extra)
        for seed, extra in [(0, {"eval_games": 10}), (1, {"lr": 0.01})]
    ]


def test_train_with_a_game_of_ones_own(trained, capsys):
    result = trained[0]
    assert result.folder.name == "训练 0"
    assert result.match.num_games == 10
    index, log_prob = result.policy.act([0.0, 1.0, 2.0, 3.0], [2**63, 7])
    assert index in (0, 1)
    assert log_prob <= 0.0


def test_load_and_act(trained):
    policy = movelist.load(trained[0].folder)
    state, ids = [0.0, 1.0, 2.0, 3.0], [-5, 2**64 - 2, 9]
    assert policy.act(state, ids) == trained[0].policy.act(state, ids)
    np.testing.assert_array_equal(policy.probabilities(state, ids), trained[0].policy.probabilities(state, ids))
    same = movelist.load(str(trained[0].checkpoint), greedy=False)
    assert {same.act(state, ids, seed=seed)[0] for seed in range(50)} == {0, 1, 2}


def test_match_takes_policies_folders_and_files(trained):
    game, folder = Odd(), trained[0].folder
    results = [
        movelist.match(policy, game=game, num_games=20)
        for policy in (folder, str(folder), trained[0].checkpoint, movelist.load(folder))
    ]
    assert results[0] == results[1] == results[2] == results[3]
    assert results[0].num_games == 20
    against = movelist.match(folder, trained[1].folder, game=game, num_games=20)
    back = movelist.match(trained[1].folder, folder, game=game, num_games=20)
    assert against.num_games == back.num_games == 20
    assert movelist.match(Picker(parity=1), Picker(parity=0), game=game, num_games=40).win_rate > 0.6
    greedy = movelist.match(folder, game=game, num_games=20, seed=1)
    assert greedy != movelist.match(folder, game=game, num_games=20, seed=1, greedy=False)


def test_match_and_export_of_a_run_whose_newest_checkpoint_is_damaged(tmp_path, capsys):
    run(tmp_path, save_every=1, total_steps=150)
    newest = checkpoint.load_newest(tmp_path, say=print)[0]
    before = movelist.match(newest.with_name("update-000002.pt"), game=Odd(), num_games=20)
    newest.write_bytes(newest.read_bytes()[:-1])
    assert newest.name == "update-000003.pt"
    assert movelist.match(tmp_path, game=Odd(), num_games=20) == before
    warning = (
        "movelist: Warning: update-000003.pt is damaged (its checksum is missing). Taking the checkpoint before it, "
    )
    assert capsys.readouterr().err == f"{warning}update-000002.pt.\n"
    movelist.export(tmp_path, tmp_path / "policy.safetensors", "weights")
    assert capsys.readouterr().err == f"{warning}update-000002.pt.\n"
    assert (tmp_path / "policy.safetensors").exists()


def test_match_needs_a_game_that_fits(trained):
    with pytest.raises(CheckpointError) as caught:
        movelist.match(RandomPolicy(), RandomPolicy())
    assert one_line(caught) == "a match needs to know its game. Give game=... ."
    wide = Odd()
    wide.name = "wide"
    with pytest.raises(CheckpointError) as caught:
        movelist.match(trained[0].folder, game=wide)
    assert one_line(caught) == (f"the checkpoint is of another game: got odd, expected wide ({trained[0].folder})")


def test_match_of_a_policy_for_a_game_that_has_no_name_here(trained):
    """The game of one's own is not in the catalog: say to give it."""
    pytest.importorskip("pyspiel", reason="without OpenSpiel the message is that it is missing")
    with pytest.raises(MovelistError) as caught:
        movelist.match(trained[0].folder)
    assert "'odd'" in one_line(caught)
    assert "game=" in one_line(caught)


def test_the_hints_after_a_game_of_ones_own_are_in_python(tmp_path):
    """The command line does not know such a game: `movelist match` and `movelist train --resume` would be refused."""
    _, text = run(tmp_path)
    assert "movelist match" not in text
    assert "movelist train --resume" not in text


def test_resume_in_python_of_what_is_no_run_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        movelist.train(game=Odd(), resume=tmp_path / "no", total_steps=10)
    assert one_line(caught) == f"this is no run folder: got {tmp_path / 'no'}, expected a folder with settings.json"
    assert list(tmp_path.iterdir()) == []


def test_resume_in_python_takes_the_runs_own_settings(tmp_path):
    first = movelist.train(game=Odd(), **API | {"out": tmp_path})
    again = movelist.train(game=Odd(), resume=tmp_path, total_steps=2 * first.steps)
    assert again.updates > first.updates
    assert read_settings(tmp_path)["batch_size"] == 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lrr": 1e-3}, "unknown setting 'lrr'. Did you mean 'lr'?"),
        ({"lr": -1}, "--lr cannot be used: got -1, expected at least 0."),
        ({"lr": "fast"}, "--lr cannot be used: got fast"),
        ({"hidden_dim": 16.5}, "--hidden_dim cannot be used: got 16.5"),
        ({"device": "tpu"}, "--device cannot be used: got tpu"),
        ({"lr_schedule": "cosine"}, "--lr_schedule cannot be used: got cosine"),
        ({"seed": 2**70}, "--seed cannot be used: got 1180591620717411303424"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, settings, message):
    with pytest.raises(SettingsError) as caught:
        movelist.train(game=Odd(), **{**API, "out": tmp_path / "run", **settings})
    assert one_line(caught).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"num_games": 0}, {"num_games": -4}, {"seed": -1}])
def test_a_match_that_cannot_be_played(options):
    with pytest.raises(SettingsError) as caught:
        movelist.match(RandomPolicy(), game=Odd(), **options)
    assert one_line(caught).startswith(f"--{next(iter(options))} cannot be used: got ")


def broken(**attributes):
    game = Odd()
    vars(game).update(attributes)
    return game


@pytest.mark.parametrize("game", [broken(num_players=3, new_state=Odd(2).new_state), broken(num_players=0), 3])
def test_a_broken_game_is_refused_before_anything_is_written(tmp_path, game):
    with pytest.raises(GameError) as caught:
        movelist.train(game=game, **API | {"out": tmp_path / "run"})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_two_trainings_in_one_process_do_not_disturb_each_other(tmp_path, trained):
    movelist.train(game=Odd(), **API | {"out": tmp_path / "again"})
    assert learnt(tmp_path / "again") == learnt(trained[0].folder)


def test_training_in_a_thread(tmp_path, trained):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(movelist.train(game=Odd(), **API | {"out": tmp_path / "thread"}))
    )
    thread.start()
    thread.join(timeout=60)
    assert len(results) == 1
    assert learnt(tmp_path / "thread") == learnt(trained[0].folder)
    assert os.listdir(tmp_path) == ["thread"]


def test_the_check_before_training_plays_no_longer_than_training_does(tmp_path):
    """A game that hardly ever ends is cut off there; the check by itself takes it for one that does not end."""
    settings = {**SMALL, "max_turns": 5, "eval_games": 0, "out": tmp_path / "run"}
    del settings["game"]
    assert movelist.train(Odd(most_turns=10**9), **settings).folder == tmp_path / "run"
    with pytest.raises(GameError, match=r"^a game does not end: got 5 turns"):
        movelist.check_game(Odd(most_turns=10**9), max_turns=5)


def test_what_is_no_game_is_refused_before_a_folder_is_written(tmp_path):
    class Narrow(Odd):
        def new_state(self, seed):
            np.random.RandomState(seed)
            return super().new_state(seed)

    settings = {name: value for name, value in SMALL.items() if name != "game"}
    with pytest.raises(GameError, match=r"^the game's own code failed: ValueError"):
        movelist.train(Narrow(), **settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
