"""Run folders: made, refused, gone on with by the same command, and cleaned."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.run import checkpoint
from movelist.run.checkpoint import load
from movelist.run.folder import going_on, new_run_folder, read_settings
from run_folders import names, refusal, run_with_one_checkpoint, some_state, weights


@pytest.fixture
def run(tmp_path):
    return run_with_one_checkpoint(tmp_path)


def test_a_new_folder_is_named_for_game_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    folder = new_run_folder(None, "leduc_poker(players=3)")
    assert folder.path == Path("runs/leduc-poker-players-3-20260102-030405")
    assert names(folder.path) == ["checkpoints"]
    assert new_run_folder(None, "斗地主").path == Path("runs/斗地主-20260102-030405")


def test_two_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    paths = [new_run_folder(None, "odd").path for _ in range(3)]
    assert [path.name for path in paths] == [
        "odd-20260102-030405",
        "odd-20260102-030405-2",
        "odd-20260102-030405-3",
    ]


def test_an_empty_folder_may_be_used(tmp_path):
    assert new_run_folder(tmp_path, "odd").path == tmp_path
    assert names(tmp_path) == ["checkpoints"]


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_folder_that_cannot_be_written(tmp_path, inside):
    """A file stands where the folder should be; rights would not stop an administrator."""
    (tmp_path / "taken").write_bytes(b"")
    out = tmp_path / "taken" / inside
    message = refusal(new_run_folder, out, "odd")
    assert message.startswith("the run folder cannot be written: got ")
    assert message.endswith(f"({out}). Choose another with --out.")
    assert names(tmp_path) == ["taken"]


def test_runs_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_bytes(b"")
    assert refusal(new_run_folder, None, "odd").startswith("the run folder cannot be written: got ")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"game": "od', "Unterminated string starting at: line 1 column 10 (char 9)"),
        (b"[1]", "list instead of an object"),
        (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_settings_that_cannot_be_read(run, content, got):
    file = run.path / "settings.json"
    file.write_bytes(content)
    assert refusal(read_settings, run.path) == f"the settings of a run cannot be read: got {got} ({file})"


def test_no_run_folder(tmp_path):
    for path in (tmp_path, tmp_path / "no"):
        assert refusal(read_settings, path) == (
            f"this is no run folder: got {path}, expected a folder with settings.json"
        )


# --- The same command again


def test_the_same_settings_go_on_whatever_the_goals_are(run):
    again = TrainSettings.from_flat({"game": "odd", "hidden_dim": 16, "out": str(run.path)})
    assert going_on(again).run.resume == run.path
    further = replace(again, run=replace(again.run, total_steps=7, max_seconds=1.0))
    resumed = going_on(further)
    assert (resumed.run.resume, resumed.run.total_steps, resumed.run.out) == (run.path, 7, run.path)


def test_a_run_of_an_older_version_goes_on_as_it_was(run):
    """It knew no action_features, so it looks at none, unless that is what the command differs in."""
    again = TrainSettings.from_flat({"game": "odd", "hidden_dim": 16, "out": str(run.path)})
    assert going_on(again).model.action_features == "ignore"
    settings = read_settings(run.path) | {"action_features": "use"}
    (run.path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    assert going_on(again).model.action_features == "use"


def test_other_settings_are_refused_and_named(run):
    other = TrainSettings.from_flat({"game": "even", "hidden_dim": 32, "lr": 0.1, "out": str(run.path)})
    assert refusal(going_on, other) == (
        "the folder already holds another run: got --game even instead of odd, --hidden_dim 32 instead of 16, "
        f"--lr 0.1 instead of 0.0005 ({run.path}). Go on with that one: movelist train --resume {quoted(run.path)}; "
        "or choose another folder with --out."
    )


@pytest.mark.parametrize("out", [None, "new"])
def test_a_folder_without_a_run_starts_one(tmp_path, out):
    settings = TrainSettings.from_flat({"game": "odd", "out": out and str(tmp_path / out)})
    assert going_on(settings) is settings


def test_a_folder_with_checkpoints_but_without_settings_is_refused(run):
    (run.path / "settings.json").unlink()
    settings = TrainSettings.from_flat({"game": "odd", "out": str(run.path)})
    assert "expected a folder with settings.json" in refusal(going_on, settings)


# --- The best one


def test_the_best_checkpoint_is_kept_and_can_be_asked_for(run):
    run.save(2, some_state(2), keep=2, best={"win_rate": 0.75})
    for number in (3, 4, 5):
        run.save(number, some_state(number), keep=2)
    assert [name for name in names(run.checkpoints) if name.endswith(".pt")] == [
        "update-000002.pt",
        "update-000004.pt",
        "update-000005.pt",
    ]
    best = run.checkpoints / "best.json"
    assert json.loads(best.read_text(encoding="utf-8")) == {"file": "update-000002.pt", "win_rate": 0.75}
    assert weights(load(best)) == weights(some_state(2))
    assert weights(load(run.checkpoints / "latest.json")) == weights(load(run.path)) == weights(some_state(5))
    run.save(6, some_state(6), keep=1, best={"win_rate": 0.8})
    assert [name for name in names(run.checkpoints) if name.endswith(".pt")] == ["update-000006.pt"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"file": 3}'])
def test_a_broken_best_json_stops_no_save(run, content):
    (run.checkpoints / "best.json").write_bytes(content)
    run.save(2, some_state(2), keep=1)
    assert names(run.checkpoints) == ["best.json", "latest.json", "update-000002.pt"]


# --- Damaged ones, and what a killed process leaves


def test_a_damaged_newer_checkpoint_never_pushes_out_a_good_one(run):
    """After a fall back to update 1, saves come whose numbers are below that of the damaged one."""
    (run.checkpoints / "update-000009.pt").write_bytes(b"damaged")
    run.save(2, some_state(2), keep=1)
    assert names(run.checkpoints) == ["latest.json", "update-000002.pt", "update-000009.pt"]
    run.set_aside(after=run.checkpoints / "update-000002.pt")
    assert names(run.checkpoints) == ["latest.json", "update-000002.pt", "update-000009.pt.damaged"]
    assert weights(load(run.path)) == weights(some_state(2))


def test_what_dead_processes_left_half_written_is_deleted(run):
    """A living process, as `movelist export` into the folder, keeps its file; so do people's own files."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (run.path / "policies").mkdir()
    left = [
        run.path / f"metrics.jsonl.{ended.pid}.tmp",
        run.checkpoints / f"update-000002.pt.{ended.pid}.tmp",
        run.path / "policies" / f"policy-3.onnx.{os.getpid()}.tmp",
    ]
    kept = [run.path / f"mine.onnx.{os.getppid()}.tmp", run.path / "mine.tmp", run.path / "notes.txt"]
    for path in (*left, *kept):
        path.write_bytes(b"half")
    run.clean()
    assert [path.exists() for path in (*left, *kept)] == [False] * 3 + [True] * 3
    assert weights(checkpoint.load(run.path)) == weights(some_state())
