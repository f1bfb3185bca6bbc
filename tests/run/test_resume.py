"""Six updates in one go equal stop and resume after each, bit for bit on a CPU, whatever the episodes come from.

Compared are the weights and everything else that a checkpoint holds, the metrics, and what each update saw: states,
lists, sampled actions and rewards of its episodes in their order, and the order of the steps in every epoch.
"""

import io
import random
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from movelist.core.errors import CheckpointError
from movelist.core.settings import PlaySettings, TrainSettings
from movelist.data import recordings
from movelist.data.episode import HUMAN, POLICY
from movelist.data.record_rules import columns_of
from movelist.data.store import StoreWriter
from movelist.learn import learner as learner_module
from movelist.play.policy import RandomPolicy, derive_seeds
from movelist.play.selfplay import play_games
from movelist.run import checkpoint, recorded
from movelist.run import training as training_module
from movelist.run.exactness import circumstances
from movelist.run.train import train
from movelist.run.training import Training
from play.toys import Odd
from run.test_train import SMALL, flatten, rows, tensorboard_steps, without_clock

UPDATES = 6
EPISODES = 8  # an update
QUICK = {**SMALL, "save_every": 1, "update_frequency": EPISODES, "total_steps": None}


class Moody(Odd):
    """Shows numbers of Python's, numpy's and torch's own generators, which a game should not and may."""

    def new_state(self, seed):
        state = super().new_state(seed)
        observe = state.observe
        noise = [random.random(), np.random.random(), torch.rand(()).item()]
        state.observe = lambda player: [observe(player)[0] + noise[0], observe(player)[1] + noise[1], noise[2], 1.0]
        return state


def played(controller=POLICY, count=4 * UPDATES * EPISODES):
    """Recorded games of Odd."""
    seeds = derive_seeds(5, 9, 0, count)
    episodes = play_games(
        Odd(), [RandomPolicy()], np.zeros((count, 2), np.int64), seeds, PlaySettings(keep_forced=True)
    ).check()
    episodes.controller_EP[:] = controller
    return columns_of(episodes, "odd", np.full((count, 2), -1), first=0)


def recording(path, **options):
    writer = recordings.writer(path)
    writer.write(played(**options))
    writer.close()
    return path


def store(path):
    writer = StoreWriter(path)
    writer.add(played())
    writer.commit()
    return path


def watched(path, number=3):
    for part in range(number):
        # Of different lengths: files with the same bytes are read once.
        recording(path / f"{part}.jsonl", count=2 * EPISODES * UPDATES // number + part)
    return path


SOURCES = {
    "self-play": lambda path: {},
    "self-play of a game that draws from the process's generators": lambda path: {"moody": True},
    "jsonl": lambda path: {"data": (recording(path / "games.jsonl"),), "data_passes": 2},
    "arrows": lambda path: {"data": (recording(path / "games.arrows"),)},
    "store": lambda path: {"data": (store(path / "store"),)},
    "imitation": lambda path: {"data": (recording(path / "people.jsonl", controller=HUMAN),), "imitate": True},
    "watched folder": lambda path: {"data": (watched(path / "in"),), "watch": True},
}


class Seen:
    """What each update was made of."""

    def __init__(self, monkeypatch):
        self.updates = []
        prepare, plan = learner_module.Learner.prepare, learner_module.plan_minibatches

        def prepare_and_note(learner, episodes):
            self.updates.append([array.tobytes() for array in columns(episodes)])
            return prepare(learner, episodes)

        def plan_and_note(order_N, *words, **options):
            self.updates[-1].append(order_N.tobytes())
            return plan(order_N, *words, **options)

        monkeypatch.setattr(learner_module.Learner, "prepare", prepare_and_note)
        monkeypatch.setattr(learner_module, "plan_minibatches", plan_and_note)

    def take(self):
        updates, self.updates = self.updates, []
        return updates


def columns(episodes):
    yield from (episodes.state_NS, episodes.action_id_A, episodes.action_offsets, episodes.chosen_N)
    yield from (episodes.log_prob_N, episodes.reward_N, episodes.episode_offsets, episodes.return_EP)


def go(out, game, **flat):
    """Train; what was said."""
    text = io.StringIO()
    flat = {**QUICK, "out": out and str(out), **flat}
    flat["game"] = None if "data" in flat else "odd"
    train(TrainSettings.from_flat(flat), game, console=Console(file=text, width=200))
    return text.getvalue()


def everything(folder):
    state = checkpoint.load(folder)
    counters = {name: value for name, value in state["counters"].items() if name != "seconds"}
    return flatten([state["learner"], state["source"], state["generators"], counters])


def from_the_start(folder):
    """As `everything`, of runs that began with the process's generators in whatever state they were."""
    state = checkpoint.load(folder)
    return flatten([state["learner"], state["source"], state["counters"]["steps"]])


def stopping_after(patch, updates):
    """Stop a run after its update of this number."""
    original = Training.save_if_due

    def save_and_stop(training):
        original(training)
        if training.learner.num_updates >= updates:
            training.stop.append(0)

    patch.setattr(Training, "save_if_due", save_and_stop)


@pytest.mark.parametrize("kind", SOURCES)
def test_six_updates_in_one_go_are_six_times_one(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(recorded, "make_game", lambda name: Odd())
    flat = SOURCES[kind](tmp_path)
    game = Moody() if flat.pop("moody", False) else None if flat else Odd()
    flat |= {"eval_games": 6, "eval_every": 2} if game else {}
    seen = Seen(monkeypatch)

    seed_generators(1)
    with monkeypatch.context() as patch:
        stopping_after(patch, UPDATES)
        go(tmp_path / "whole", game, **flat)
    whole = seen.take()
    assert len(whole) == UPDATES

    seed_generators(1)
    for number in range(1, UPDATES + 1):
        with monkeypatch.context() as patch:
            stopping_after(patch, number)
            text = go(tmp_path / "parts", game, **flat)
        assert ("Going on after update" in text) == (number > 1)
        assert "Not bit for bit" not in text
        seed_generators(10 + number)  # whatever else the process does meanwhile
        torch.manual_seed(number)
    assert seen.take() == whole
    assert everything(tmp_path / "parts") == everything(tmp_path / "whole")
    one, other = ([{**row, "data/wait_seconds": 0} for row in without_clock(tmp_path / n)] for n in ("parts", "whole"))
    assert len(one) == UPDATES
    assert one == other


def seed_generators(seed):
    random.seed(seed)
    np.random.seed(seed)


# --- What is said


def test_what_cannot_be_exact_is_said_in_one_line(tmp_path, monkeypatch):
    go(tmp_path, Odd(), total_steps=1)
    monkeypatch.setattr(training_module, "circumstances", lambda device: {**circumstances(device), "torch": "9.9"})
    text = go(tmp_path, Odd(), total_steps=2)
    line = f"Not bit for bit the run it would have been: torch 9.9 instead of {torch.__version__}."
    assert line in text.splitlines()


def test_a_run_without_a_checkpoint_starts_anew(tmp_path, monkeypatch):
    """Killed in its first update: neither the same command nor --resume needs the folder to be deleted first."""
    go(tmp_path / "whole", Odd(), total_steps=60, tensorboard=True)
    for name in ("same", "resumed"):
        folder = tmp_path / name
        again = {"out": folder} if name == "same" else {"out": None, "resume": str(folder)}
        with monkeypatch.context() as patch:
            patch.setattr(Training, "save_if_due", lambda training: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                go(folder, Odd(), total_steps=60, tensorboard=True)
        assert len(rows(folder)) == 1
        text = go(again.pop("out"), Odd(), total_steps=60, tensorboard=True, **again)
        assert "The run was broken off before its first checkpoint: it starts anew." in text
        assert from_the_start(folder) == from_the_start(tmp_path / "whole")
        assert without_clock(folder) == without_clock(tmp_path / "whole")
        assert tensorboard_steps(folder) == tensorboard_steps(tmp_path / "whole")


def test_a_run_that_starts_from_another_ones_network_does_so_after_such_a_kill_too(tmp_path, monkeypatch):
    go(tmp_path / "first", Odd(), total_steps=30)
    flat = {"init_from": str(tmp_path / "first"), "total_steps": 60}
    go(tmp_path / "whole", Odd(), **flat)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "save_if_due", lambda training: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            go(tmp_path / "parts", Odd(), **flat)
    go(tmp_path / "parts", Odd(), **flat)
    assert from_the_start(tmp_path / "parts") == from_the_start(tmp_path / "whole")


def test_the_learning_rate_of_the_command_is_the_one_in_force(tmp_path):
    go(tmp_path, Odd(), total_steps=1, lr=0.25)
    go(None, Odd(), total_steps=rows(tmp_path)[0]["step"] + 1, lr=0.125, resume=str(tmp_path))
    assert [row["charts/learning_rate"] for row in rows(tmp_path)] == [0.25, 0.125]
    assert checkpoint.load(tmp_path)["learner"]["optimizer"]["param_groups"][0]["lr"] == 0.125


# --- Damaged checkpoints


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping_after(patch, 4)
        go(tmp_path / "whole", Odd())
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    newest = tmp_path / "parts" / "checkpoints" / "update-000004.pt"
    newest.write_bytes(newest.read_bytes()[:-9])
    with monkeypatch.context() as patch:
        stopping_after(patch, 4)
        text = go(None, Odd(), resume=str(tmp_path / "parts"))
    expected = "Warning: update-000004.pt is damaged (its checksum is missing). Taking the checkpoint before it, "
    assert f"{expected}update-000003.pt." in text.splitlines()
    assert newest.with_name("update-000004.pt.damaged").exists()
    assert everything(tmp_path / "parts") == everything(tmp_path / "whole")
    assert without_clock(tmp_path / "parts") == without_clock(tmp_path / "whole")


def test_nothing_but_damaged_checkpoints_is_a_clear_stop(tmp_path):
    go(tmp_path, Odd(), total_steps=60)
    for file in (tmp_path / "checkpoints").glob("*.pt"):
        file.write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="a checkpoint cannot be read: got File is not a zip file"):
        go(tmp_path, Odd(), total_steps=60)
    assert sorted(tmp_path.rglob("*")) == before
