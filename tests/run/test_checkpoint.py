"""Checkpoints appear whole or not at all, the newest one loads, and a damaged one is refused in one line."""

import errno
import json
import os
import pickle
import random
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from movelist.core.errors import CheckpointError, DeviceError
from movelist.core.settings import TrainSettings
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.run import checkpoint
from movelist.run.checkpoint import RunFolder, check_fits, load, new_run_folder, quoted, read_settings, write_whole

SHAPE = ModelShape(state_size=4, hidden_dim=16)
COUNTERS = {"steps": 10, "episodes": 2, "seconds": 0.5}


def some_state(seed=0):
    torch.manual_seed(seed)
    settings = TrainSettings.from_flat({"game": "odd", "hidden_dim": 16})
    learner = Learner(PolicyValueNet(SHAPE), settings.update, World(torch.device("cpu")))
    return checkpoint.pack(
        settings=settings.to_flat(),
        shape=SHAPE,
        learner=learner.state_dict(),
        source={"num_started": 7},
        counters=COUNTERS,
    )


def weights(state):
    return {name: tensor.numpy().tobytes() for name, tensor in state["learner"]["net"].items()}


def refusal(call, *arguments, **options):
    """The message of the CheckpointError that a call ends with; it is one line."""
    with pytest.raises(CheckpointError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def run(tmp_path):
    """A run folder with one checkpoint, number 1."""
    folder = RunFolder(tmp_path / "run")
    folder.write_json("settings.json", {"game": "odd", "hidden_dim": 16})
    folder.save(1, some_state(), keep=3)
    return folder


# --- Saving and loading


def test_what_is_saved_is_loaded(run):
    state, expected = load(run.path), some_state()
    assert weights(state) == weights(expected)
    assert state["settings"] == expected["settings"]
    assert ModelShape(**state["shape"]) == SHAPE
    assert (state["source"], state["counters"], state["format"]) == (
        {"num_started": 7},
        COUNTERS,
        "movelist-checkpoint/1",
    )
    assert set(state["versions"]) == {"torch", "numpy", "python"}
    assert TrainSettings.from_flat(state["settings"]).model.hidden_dim == 16
    assert names(run.checkpoints) == ["latest.json", "update-000001.pt"]


def test_a_file_a_folder_and_a_run_all_lead_to_the_newest(run):
    run.save(2, some_state(1), keep=3)
    newest = weights(some_state(1))
    for path in (run.path, str(run.path), run.checkpoints, run.checkpoints / "update-000002.pt"):
        assert weights(load(path)) == newest
    assert weights(load(run.checkpoints / "update-000001.pt")) == weights(some_state(0))
    assert json.loads((run.checkpoints / "latest.json").read_text(encoding="utf-8")) == {"file": "update-000002.pt"}


def test_only_the_newest_are_kept(run):
    for number in (2, 3, 10, 11):
        saved = run.save(number, some_state(number), keep=2)
        assert saved.is_file()
    assert names(run.checkpoints) == ["latest.json", "update-000010.pt", "update-000011.pt"]
    run.save(12, some_state(), keep=1)
    assert names(run.checkpoints) == ["latest.json", "update-000012.pt"]


def test_more_than_999999_updates(run):
    """Small updates get there in days; as text, update-1000000 comes before update-999999."""
    for number in (999_998, 999_999, 1_000_000, 1_000_001):
        assert run.save(number, some_state(number % 7), keep=2).is_file()
    assert names(run.checkpoints) == ["latest.json", "update-1000000.pt", "update-1000001.pt"]
    assert weights(load(run.path)) == weights(some_state(1_000_001 % 7))


def test_copies_that_people_make_are_neither_loaded_nor_deleted(run):
    for name in ("update-000001 - Copy.pt", "update-best.pt", "update-.pt"):
        (run.checkpoints / name).write_bytes(b"mine")
    run.save(2, some_state(2), keep=1)
    assert len(names(run.checkpoints)) == 5
    assert weights(load(run.path)) == weights(some_state(2))


def test_a_checkpoint_that_cannot_be_deleted_yet_is_deleted_later(run, monkeypatch):
    def held_open(path, missing_ok=False):
        raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: missing_ok or held_open(self))
        run.save(2, some_state(), keep=1)
    assert len(names(run.checkpoints)) == 3
    run.save(3, some_state(), keep=1)
    assert names(run.checkpoints) == ["latest.json", "update-000003.pt"]


def test_a_policy_is_loaded_greedy_or_not(run):
    policy = checkpoint.load_policy(run.path)
    assert policy.greedy
    assert not checkpoint.load_policy(run.path, greedy=False).greedy
    index, log_prob = policy.act([0.0, 1.0, 2.0, 3.0], [5, 2**63, 9])
    assert index in (0, 1, 2)
    assert log_prob < 0.0
    net = checkpoint.load_net(some_state(), torch.device("cpu"))
    assert {name: t.numpy().tobytes() for name, t in net.state_dict().items()} == weights(some_state())


def test_a_device_that_is_not_there(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"^--device cuda cannot be used\. "):
        checkpoint.load_policy(run.path, device="cuda")


def test_nothing_in_a_checkpoint_needs_code(run):
    with open(run.checkpoints / "update-000001.pt", "rb") as file:
        state = torch.load(file, weights_only=True)
    assert state["learner"]["num_updates"] == 0


# --- Whole files only


def crash_while_writing(monkeypatch, error):
    """torch.save writes a part and breaks off."""

    def broken_save(state, file):
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", broken_save)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError(), ValueError),
        (OSError(errno.ENOSPC, "No space left on device"), CheckpointError),
    ],
)
def test_a_crash_while_saving_leaves_the_old_files(run, monkeypatch, error, seen):
    before = {path.name: path.read_bytes() for path in run.checkpoints.iterdir()}
    crash_while_writing(monkeypatch, error)
    for number in (1, 2):  # the same number again, too
        with pytest.raises(seen):
            run.save(number, some_state(), keep=1)
    assert {path.name: path.read_bytes() for path in run.checkpoints.iterdir()} == before
    assert weights(load(run.path)) == weights(some_state())


def test_no_space_left_at_any_of_the_writes(run, monkeypatch):
    """The first, second, ... operation on a file fails; the newest checkpoint loads all the same."""
    steps = [(Path, "open"), (os, "fsync"), (Path, "replace")]
    for target, name in steps:
        for fails_at in (1, 2):  # the checkpoint's file, then latest.json's
            calls = []
            original = getattr(target, name)

            def failing(*arguments, calls=calls, original=original, fails_at=fails_at, **options):
                calls.append(arguments)
                if len(calls) == fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return original(*arguments, **options)

            with monkeypatch.context() as patch:
                patch.setattr(target, name, failing)
                message = refusal(run.save, 2, some_state(2), keep=1)
            file = run.checkpoints / ("update-000002.pt" if fails_at == 1 else "latest.json")
            assert message == (
                f"a file cannot be written: got No space left on device ({file}). What was there before is whole."
            )
            assert len(calls) == fails_at
            assert weights(load(run.path)) == weights(some_state(2 if fails_at == 2 else 0))
            assert not [name for name in names(run.checkpoints) if "tmp" in name]
            (run.checkpoints / "update-000002.pt").unlink(missing_ok=True)


def test_what_a_killed_process_leaves_is_not_taken_for_a_checkpoint(run):
    (run.checkpoints / "update-000002.pt.4711.tmp").write_bytes(b"half of it")
    assert weights(load(run.path)) == weights(some_state())


def test_latest_changes_last_and_nothing_is_deleted_before(run, monkeypatch):
    order = []
    original = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append(Path(target).name), original(self, target)))
    delete = checkpoint._delete
    monkeypatch.setattr(checkpoint, "_delete", lambda path: (order.append(f"delete {path.name}"), delete(path)))
    run.save(2, some_state(), keep=1)
    assert order == ["update-000002.pt", "latest.json", "delete update-000001.pt"]


def test_a_file_held_open_by_another_program_is_tried_again(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    original, refusals = Path.replace, iter([True] * 3 + [False])

    def replace(self, target):
        if next(refusals):
            raise PermissionError(errno.EACCES, "Access is denied")
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_whole(tmp_path / "file", lambda file: file.write(b"whole"))
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert waits == pytest.approx([0.05, 0.1, 0.15])
    assert names(tmp_path) == ["file"]


def test_a_file_held_open_for_good_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)

    def replace(self, target):
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(Path, "replace", replace)
    assert refusal(write_whole, tmp_path / "file", lambda file: file.write(b"whole")) == (
        f"a file cannot be written: got Access is denied ({tmp_path / 'file'}). What was there before is whole."
    )
    assert names(tmp_path) == []
    assert len(waits) == 9
    assert sum(waits) < 3.0


def test_json_is_utf_8_and_readable(tmp_path):
    folder = RunFolder(tmp_path / "训练 一")
    folder.write_json("settings.json", {"game": "斗地主", "out": None})
    assert (folder.path / "settings.json").read_bytes().decode("utf-8") == (
        '{\n  "game": "斗地主",\n  "out": null\n}\n'
    )
    assert read_settings(folder.path) == {"game": "斗地主", "out": None}
    folder.save(1, some_state(), keep=1)
    assert weights(load(folder.path)) == weights(some_state())


# --- Damaged and foreign files


def damaged(run, change):
    """The run's newest checkpoint, number 2, changed on disk; number 1 is whole."""
    file = run.save(2, some_state(2), keep=3)
    file.write_bytes(change(file.read_bytes()))
    return file


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda data: b"", "File is not a zip file"),
        (lambda data: data[: len(data) // 2], "File is not a zip file"),
        (lambda data: data[:-1], "File is not a zip file"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "a wrong check sum of archive/data.pkl"),
        (lambda data: b"hello\nworld\n", "File is not a zip file"),
        (lambda data: pickle.dumps({"format": "movelist-checkpoint/1"}), "File is not a zip file"),
    ],
    ids=["empty", "half", "one byte short", "header", "text", "pickle"],
)
def test_a_file_that_is_no_whole_checkpoint(run, change, got):
    file = damaged(run, change)
    first = run.checkpoints / "update-000001.pt"
    for path in (run.path, file):
        assert refusal(load, path) == (
            f"a checkpoint cannot be read: got {got} ({file}, {file.stat().st_size} bytes). "
            f"Use {quoted(first)}; once the damaged file is deleted, the run goes on from there."
        )
    file.unlink()
    assert weights(load(run.path)) == weights(some_state())


def test_the_only_file_is_damaged(run):
    file = run.checkpoints / "update-000001.pt"
    file.write_bytes(b"")
    assert refusal(load, run.path) == (
        f"a checkpoint cannot be read: got File is not a zip file ({file}, 0 bytes). There is no other one beside it."
    )


def test_one_flipped_bit_anywhere_never_changes_what_is_loaded(run):
    """torch.load alone would take flipped weights without a word."""
    file = run.checkpoints / "update-000001.pt"
    whole, expected = file.read_bytes(), load(file)
    choose = random.Random(0)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        place = choose.randrange(len(data))
        data[place] ^= 1 << choose.randrange(8)
        file.write_bytes(data)
        try:
            state = load(file)
        except CheckpointError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
        else:  # a bit of the padding, or of a date
            assert weights(state) == weights(expected)
            assert state["counters"] == expected["counters"]
    assert refused > 75


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"weights": torch.zeros(2)}, "no format"),
        ([1, 2], "list"),
        (torch.zeros(3), "Tensor"),
        ({"format": "movelist-checkpoint/9"}, "movelist-checkpoint/9"),
    ],
)
def test_a_file_of_torch_that_is_something_else(tmp_path, content, found):
    file = tmp_path / "other.pt"
    torch.save(content, file)
    assert refusal(load, file) == (
        f"this is no checkpoint of movelist: got {found}, expected movelist-checkpoint/1 ({file})"
    )


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_code_in_a_file_is_not_run(tmp_path):
    marker, file = tmp_path / "was run", tmp_path / "evil.pt"
    torch.save({"format": "movelist-checkpoint/1", "x": Evil(marker)}, file)
    assert refusal(load, file) == (
        f"a checkpoint cannot be read: got objects other than tensors and numbers ({file}, {file.stat().st_size} bytes)"
        ". There is no other one beside it."
    )
    assert not marker.exists()


def test_numpy_arrays_in_a_file_are_refused_too(tmp_path):
    file = tmp_path / "arrays.pt"
    torch.save({"format": "movelist-checkpoint/1", "x": np.array([object()])}, file)
    assert "objects other than tensors and numbers" in refusal(load, file)


def test_nothing_there(tmp_path, run):
    assert (
        refusal(load, tmp_path / "no")
        == f"{tmp_path / 'no'} does not exist: expected a run folder or a checkpoint file"
    )
    (tmp_path / "empty").mkdir()
    assert refusal(load, tmp_path / "empty") == (
        f"{tmp_path / 'empty'} holds no checkpoint yet: expected a run folder or a checkpoint file"
    )
    (run.checkpoints / "update-000001.pt").unlink()
    assert refusal(load, run.path) == (
        f"{run.path} holds no checkpoint yet: expected a run folder or a checkpoint file. "
        "A run that was broken off before its first checkpoint has to start anew: delete the folder."
    )


# --- What does not belong together


def test_another_game_or_size_is_named():
    state = some_state()
    check_fits(state, "runs/x", game="odd", state_size=4, hidden_dim=16, action_encoder="bits", num_actions=0)
    for change, shown in [
        ({"game": "chess"}, "game: got odd, expected chess"),
        ({"state_size": 5}, "state_size: got 4, expected 5"),
        ({"hidden_dim": 512}, "hidden_dim: got 16, expected 512"),
        ({"action_encoder": "table"}, "action_encoder: got bits, expected table"),
        ({"num_actions": 9}, "num_actions: got 0, expected 9"),
        ({"a_size_of_later": 3}, "a_size_of_later: expected 3"),
    ]:
        message = refusal(check_fits, state, Path("runs/x"), **{"game": "odd", **change})
        assert message == f"the checkpoint is of another {shown} ({Path('runs/x')})"


# --- Run folders


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


def test_a_folder_that_holds_a_run_is_refused_with_the_way_on(run):
    assert refusal(new_run_folder, run.path, "odd") == (
        f"the folder already holds a run: got a run of odd ({run.path}). "
        f"Go on with it: movelist train --resume {quoted(run.path)}; or choose another with --out."
    )


def test_a_folder_with_checkpoints_but_without_settings_is_not_written_into(run):
    (run.path / "settings.json").unlink()
    assert "expected a folder with settings.json" in refusal(new_run_folder, run.path, "odd")


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


@pytest.mark.parametrize("name", ["plain", "with space", "训练", "训练 一", "a&b", "it's", "(1)"])
def test_a_path_can_be_typed_as_it_is_shown(name):
    """As a POSIX shell reads it; cmd.exe knows double quotes only, and strips them alike."""
    assert shlex.split(quoted(Path(name))) == [name]
    assert quoted(Path("plain")) == "plain"
    assert quoted(Path("with space")) == '"with space"'
