"""Checkpoints appear whole or not at all, the newest one loads, and a damaged one is refused in one line."""

import errno
import json
import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from movelist.core.errors import DeviceError, SaveError
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.data.whole_file import write_whole
from movelist.learn.model import ModelShape
from movelist.run import checkpoint
from movelist.run import folder as folder_module
from movelist.run.checkpoint import check_fits, load
from movelist.run.folder import RunFolder, read_settings
from run_folders import COUNTERS, SHAPE, names, refusal, run_with_one_checkpoint, some_state, weights


@pytest.fixture
def run(tmp_path):
    return run_with_one_checkpoint(tmp_path)


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
    assert set(state["circumstances"]) == {"movelist", "torch", "numpy", "python", "device", "threads"}
    assert set(state["generators"]) == {"python", "numpy", "torch", "cuda"}
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
        (OSError(errno.ENOSPC, "No space left on device"), SaveError),
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
    delete = folder_module._delete
    monkeypatch.setattr(folder_module, "_delete", lambda path: (order.append(f"delete {path.name}"), delete(path)))
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
        (lambda data: data[:-1], "its checksum is missing"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "its checksum is wrong"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its checksum is wrong"),
        (lambda data: b"hello\nworld\n", "File is not a zip file"),
        (lambda data: pickle.dumps({"format": "movelist-checkpoint/1"}), "File is not a zip file"),
    ],
    ids=["empty", "half", "one byte short", "header", "seal", "text", "pickle"],
)
def test_a_file_that_is_no_whole_checkpoint(run, capsys, change, got):
    """Asked for itself it is refused; in a folder the one before is taken, and a line says so."""
    file = damaged(run, change)
    first = run.checkpoints / "update-000001.pt"
    assert refusal(load, file) == (
        f"a checkpoint cannot be read: got {got} ({file}, {file.stat().st_size} bytes). "
        f"Perhaps another one can be: {quoted(first)}"
    )
    assert capsys.readouterr().err == ""
    for folder in (run.path, run.checkpoints):
        assert weights(load(folder)) == weights(some_state())
        assert capsys.readouterr().err == (
            f"movelist: Warning: update-000002.pt is damaged ({got}). Taking the checkpoint before it, "
            "update-000001.pt.\n"
        )


def test_several_damaged_ones_are_named_together(run):
    for number in (2, 3):
        run.save(number, some_state(), keep=9).write_bytes(b"")
    said = []
    file, state = checkpoint.load_newest(run.path, say=said.append)
    assert (file.name, weights(state)) == ("update-000001.pt", weights(some_state()))
    (line,) = said
    assert "update-000003.pt is damaged (File is not a zip file), update-000002.pt is damaged (" in line


def test_the_only_file_is_damaged(run):
    file = run.checkpoints / "update-000001.pt"
    file.write_bytes(b"")
    assert refusal(load, run.path) == (
        f"a checkpoint cannot be read: got File is not a zip file ({file}, 0 bytes). There is no other one beside it."
    )


def test_all_files_are_damaged(run):
    run.save(2, some_state(), keep=3)
    for number in (1, 2):
        (run.checkpoints / f"update-00000{number}.pt").write_bytes(b"")
    assert refusal(load, run.path).startswith("a checkpoint cannot be read: got File is not a zip file (")


def test_a_file_that_cannot_be_opened_is_not_taken_for_damaged(run, monkeypatch):
    """Another program may hold it for a moment: an older one must not be taken for that."""
    file = run.save(2, some_state(2), keep=3)
    original = Path.read_bytes

    def held(path):
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", held)
    assert refusal(load, run.path) == f"a checkpoint cannot be opened: got Permission denied ({file})"


def test_one_flipped_bit_anywhere_is_seen(run):
    """In weights, headers, padding, the zip's directory or the checksum: torch.load alone takes most of them."""
    file = run.checkpoints / "update-000001.pt"
    whole = file.read_bytes()
    choose = random.Random(0)
    edges = [
        *range(0, 60, 3),
        *range(len(whole) - 700, len(whole), 4),
    ]  # the first header; directory, its end, the seal
    for place in [*edges, *choose.sample(range(len(whole)), 200)]:
        data = bytearray(whole)
        data[place] ^= 1 << choose.randrange(8)
        file.write_bytes(data)
        assert str(file) in refusal(load, file), place
    file.write_bytes(whole)
    assert weights(load(file)) == weights(some_state())


def test_a_checkpoint_of_an_older_version_loads_and_is_checked_as_far_as_it_can_be(run):
    """Without a seal, and without the state of the generators."""
    file = run.checkpoints / "update-000002.pt"
    older = {name: part for name, part in some_state(2).items() if name not in ("generators", "circumstances")}
    torch.save(older, file)
    assert weights(load(run.path)) == weights(some_state(2))
    whole = file.read_bytes()
    place = whole.index(some_state(2)["learner"]["net"]["pair_weight"].numpy().tobytes())
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert "a wrong check sum of update-000002/data/" in refusal(load, file)


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
        f"The run was broken off before its first one: movelist train --resume {quoted(run.path)}"
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
