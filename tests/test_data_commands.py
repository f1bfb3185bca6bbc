"""movelist check, record, convert, and train --data, as they are typed."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from movelist.cli import main
from movelist.data import jsonl, store
from movelist.data.record_rules import join
from movelist.data.store import Store
from movelist.run.checkpoint import load
from movelist.run.folder import read_settings
from recorded import EXAMPLE, assert_equal, read_all, record, with_step, write_lines

QUICK = ["--hidden_dim", "8", "--eval_games", "0", "--no-tensorboard", "--device", "cpu"]


def said(capsys):
    out, err = capsys.readouterr()
    return out, " ".join(err.split())


def test_check_counts_and_names(tmp_path, capsys):
    good = write_lines(tmp_path / "a.jsonl", record(), record(returns=[-1, 1]))
    assert main(["check", str(good), "--json"]) == 0
    found = json.loads(said(capsys)[0])
    assert found["episodes"] == 2 and found["steps"] == 6 and found["forced_turns"] == 2
    assert found["list_lengths"] == {"1": 2, "2": 2, "3-4": 2} and found["longest_list"] == 3
    assert found["seats"] == {"0": {"policy 4": 2}, "1": {"human": 2}}
    policy = next(score for score in found["scores"] if score["player"] == "policy 4")
    assert policy["against"] == "human" and policy["win_rate"] == 0.5 and policy["mean_return"] == 0
    low, high = policy["mean_return_interval"]
    assert high == pytest.approx(1.96) and low == -high  # two returns, 1 and -1: deviation sqrt(2), over sqrt(2)
    # Milliseconds since 1970, as some count versions.
    players = [{"controller": "policy", "policy_version": 1_796_083_200_000}, {"controller": "other"}]
    stamped = write_lines(tmp_path / "stamped.jsonl", record(players=players))
    assert main(["check", str(stamped), "--json"]) == 0
    assert json.loads(said(capsys)[0])["seats"] == {"0": {"policy 1796083200000": 1}, "1": {"other": 1}}
    stamped.unlink()
    write_lines(tmp_path / "b.jsonl", record(), *[record(end="over")] * 5)
    assert main(["check", str(tmp_path)]) == 1
    out = said(capsys)[0]
    assert "PROBLEM: field, 5 times" in out and out.count("b.jsonl, line") == 3 and "5 problems" in out


def test_a_file_that_cannot_be_opened_costs_no_other(tmp_path, capsys, monkeypatch):
    for name in "ab":
        write_lines(tmp_path / f"{name}.jsonl", record())
    real = Path.open

    def denied(self, *arguments, **named):
        if self.name == "a.jsonl":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)
    assert main(["check", str(tmp_path)]) == 1
    out = said(capsys)[0]
    assert "PROBLEM: unreadable, 1 times" in out and "a.jsonl, all of it" in out and "Permission denied" in out
    assert "episodes                  1" in out
    assert main(["check", str(tmp_path), "--strict"]) == 1
    assert "Permission denied" in said(capsys)[1]
    assert main(["train", "--data", str(tmp_path), "--out", str(tmp_path / "run"), *QUICK]) == 1
    assert "a.jsonl" in said(capsys)[1] and not (tmp_path / "run").exists()


def test_nothing_usable_fails(tmp_path, capsys):
    bad = write_lines(tmp_path / "a.jsonl", record(end="over"))
    for command in (["check"], ["train", "--out", str(tmp_path / "run"), "--data"]):
        assert main([*command, str(bad)]) == 1
        assert "nothing in the recordings can be used" in said(capsys)[1]
    assert main(["convert", str(bad), "--out", str(tmp_path / "store")]) == 1
    assert not (tmp_path / "run").exists() and not (tmp_path / "store").exists()
    assert main(["convert", str(bad), "--out", str(tmp_path / "again.jsonl")]) == 1
    assert not (tmp_path / "again.jsonl").exists()
    half = write_lines(tmp_path / "half.jsonl", *[record()] * 2000, record(end="over"))
    assert main(["convert", str(half), "--strict", "--out", str(tmp_path / "again.jsonl")]) == 1
    assert "line 2001" in said(capsys)[1] and not (tmp_path / "again.jsonl").exists()
    assert main(["check", str(bad), "--strict"]) == 1
    assert "line 1" in said(capsys)[1]


def test_no_recording_at_all_is_wrong_use(tmp_path, capsys):
    for command in (["check"], ["convert", "--out", str(tmp_path / "store")]):
        assert main(command) == 2
        assert "no recording is named" in said(capsys)[1]


def test_check_says_how_many_games_were_cut_off(tmp_path, capsys):
    """A win rate of games that nobody finished is none; from one in a hundred on it is said."""
    cut = record(end="truncated", final_states=[[1, 2], [3, 4]])
    for number, whole, says in [(1, 99, True), (1, 100, False), (0, 5, False)]:
        file = write_lines(tmp_path / f"{number}-{whole}.jsonl", *[cut] * number, *[record()] * whole)
        assert main(["check", str(file), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["truncated"], told["truncated_share"]) == (number, number / (number + whole))
        assert main(["check", str(file)]) == 0
        out = capsys.readouterr().out
        assert ("note: 1.0% of the games were cut off: " in out) == says
        assert f"{number} of them truncated ({number / (number + whole):.1%})" in out


def test_check_of_a_store_says_json_too(tmp_path, capsys):
    data = write_lines(tmp_path / "a.jsonl", record())
    assert main(["convert", str(data), "--out", str(tmp_path / "store")]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "store"), "--json"]) == 0
    found = json.loads(said(capsys)[0])
    assert found["stores"] == {str(tmp_path / "store"): {"episodes": 1, "steps": 2}} and not found["episodes"]


@pytest.mark.parametrize("ending", [".jsonl", ".arrows"])
def test_a_full_disk_leaves_no_half_recording(tmp_path, capsys, monkeypatch, ending):
    data, out = write_lines(tmp_path / "a.jsonl", *[record()] * 3), tmp_path / f"out{ending}"
    real = Path.open

    class Full(io.FileIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    def opened(self, mode="r", *arguments, **named):
        return io.BufferedWriter(Full(self, "a")) if self == out else real(self, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(jsonl, "open", opened, raising=False)
    assert main(["convert", str(data), "--out", str(out)]) == 1
    assert "No space left on device" in said(capsys)[1] and not out.exists()


def test_a_conversion_that_failed_can_be_begun_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(store, "SHARD_BYTES", 1)
    good, bad = write_lines(tmp_path / "a.jsonl", record()), write_lines(tmp_path / "b.jsonl", record(end="over"))
    out = tmp_path / "store"
    assert main(["convert", str(good), str(bad), "--strict", "--out", str(out)]) == 1 and not out.exists()
    assert main(["convert", str(good), "--out", str(out)]) == 0
    before = sorted(path.name for path in out.iterdir())
    more = write_lines(tmp_path / "c.jsonl", record(returns=[0, 0]))
    assert main(["convert", str(more), str(bad), "--strict", "--out", str(out)]) == 1
    assert sorted(path.name for path in out.iterdir()) == before and len(Store(out)) == 1


def test_record_convert_check_and_train(tmp_path, capsys):
    recording, store, run = (str(tmp_path / name) for name in ("games.arrows", "store", "run"))
    assert main(["record", "--game", "leduc_poker", "--episodes", "60", "--out", recording]) == 0
    assert main(["record", "--game", "leduc_poker", "--episodes", "60", "--out", recording]) == 1
    assert "there already" in said(capsys)[1]
    assert main(["convert", recording, "--out", store]) == 0
    assert len(Store(tmp_path / "store")) == 60
    assert main(["convert", recording, "--out", str(tmp_path / "again.jsonl")]) == 0
    assert main(["check", store, recording, str(tmp_path / "again.jsonl")]) == 0
    whole, back = str(tmp_path / "whole"), tmp_path / "back.arrows"
    assert main(["convert", recording, "--keep_forced", "--out", whole]) == 0
    assert main(["convert", whole, "--out", str(back)]) == 0
    assert_equal(join(read_all(tmp_path / "games.arrows")[0]), join(read_all(back)[0]))
    assert main(["convert", whole, "--out", str(tmp_path / "other")]) == 2
    assert "a store becomes a recording" in said(capsys)[1] and not (tmp_path / "other").exists()
    flags = ["--update_frequency", "32", "--learn_from", "all", *QUICK]
    assert main(["train", "--data", store, "--data_passes", "2", "--out", run, *flags]) == 0
    out = said(capsys)[0]
    assert "PPO from" in out and "Trained" in out and "4 updates" in out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[0]["data/wait_seconds"] >= 0 and rows[-1]["charts/episodes"] == 120
    assert main(["train", "--data", store, "--out", str(tmp_path / "no"), *QUICK, "--keep_forced"]) == 2
    assert "made with another --keep_forced" in said(capsys)[1]


def test_stopped_and_resumed_training_is_the_whole_one(tmp_path):
    flags = ["--data", str(EXAMPLE), "--update_frequency", "32", "--learn_from", "all", "--save_every", "1", *QUICK]
    assert main(["train", *flags, "--out", str(tmp_path / "whole")]) == 0
    assert main(["train", *flags, "--out", str(tmp_path / "parts"), "--total_steps", "3000"]) == 0
    assert load(tmp_path / "parts")["learner"]["num_updates"] < 8
    assert main(["train", "--resume", str(tmp_path / "parts"), "--total_steps", "1000000"]) == 0
    one, other = load(tmp_path / "whole"), load(tmp_path / "parts")
    assert one["learner"]["num_updates"] == other["learner"]["num_updates"] == 8
    for name, weight in one["learner"]["net"].items():
        np.testing.assert_array_equal(weight.numpy(), other["learner"]["net"][name].numpy(), err_msg=name)


def test_a_training_that_goes_on_names_a_file_that_it_needs(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        write_lines(folder / f"{name}.jsonl", *[record(episode=name)] * 64)
    flags = ["--data", str(folder), "--update_frequency", "16", "--total_steps", "80", "--save_every", "1", *QUICK]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0  # of 192, within the second file
    assert load(tmp_path / "run")["source"]["file"] == 0 and load(tmp_path / "run")["counters"]["episodes"] == 80
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (folder / "c.jsonl").rename(tmp_path / "c.jsonl")
    capsys.readouterr()
    resume = ["train", "--total_steps", "None", "--resume"]
    assert main([*resume, str(tmp_path / "other")]) == 1
    assert "a recording that this training still needs is gone: got " in said(capsys)[1]
    (tmp_path / "c.jsonl").rename(folder / "c.jsonl")
    assert main([*resume, str(tmp_path / "run")]) == 0
    assert load(tmp_path / "run")["counters"]["episodes"] == 192


@pytest.mark.parametrize(("given", "goal"), [([], None), (["--total_steps", "500000"], 500_000)])
def test_total_steps_count_with_data_only_where_they_are_given(tmp_path, capsys, given, goal):
    data = write_lines(tmp_path / "a.jsonl", *[record()] * 8)
    assert main(["train", "--data", str(data), "--out", str(tmp_path / "run"), *QUICK, *given]) == 0
    assert ("500,000 steps (--total_steps)" in said(capsys)[0]) == bool(given)
    assert json.loads((tmp_path / "run" / "settings.json").read_text("utf-8"))["total_steps"] == goal


def test_training_from_data_needs_no_openspiel(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    flags = ["--data", str(EXAMPLE), "--update_frequency", "128", "--learn_from", "all", "--hidden_dim", "8"]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    assert "OpenSpiel is not installed, so there is no match at the end." in said(capsys)[0]
    assert load(tmp_path / "run")["shape"]["action_encoder"] == "bits"


def test_imitation_learns_what_people_chose_and_starts_ppo(tmp_path, capsys):
    # People always take the larger id; the policy's seat is not imitated.
    rng = np.random.default_rng(0)
    records = []
    for _ in range(300):
        made = with_step(0, log_prob=None)
        step = made["steps"][1]
        step["actions"] = rng.choice(1000, size=3, replace=False).tolist()
        step["chosen"] = int(np.argmax(step["actions"]))
        records.append(made)
    data = write_lines(tmp_path / "games.jsonl", *records)
    flags = ["--data", str(data), "--update_frequency", "100", *QUICK, "--hidden_dim", "32", "--lr", "0.01"]
    imitated = str(tmp_path / "imitated")
    assert main(["train", *flags, "--imitate", "--data_passes", "10", "--out", imitated]) == 0
    rows = [json.loads(line) for line in (tmp_path / "imitated" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert rows[0]["losses/policy_loss"] > 0.9 and rows[-1]["losses/policy_loss"] < 0.4  # log 3 = 1.1 at first
    capsys.readouterr()
    assert main(["train", *flags, "--init_from", imitated, "--out", str(tmp_path / "ppo")]) == 0
    out = said(capsys)[0]
    assert "--imitate learns from their games" in out
    assert "Log-probs are missing: the present policy computes them" in out
    assert load(tmp_path / "ppo")["learner"]["num_updates"] == load(imitated)["learner"]["num_updates"] + 3


def test_a_log_prob_of_the_present_policy_that_disagrees_is_reported(tmp_path, capsys):
    made = [record(players=[{"controller": "policy", "policy_version": 0}, {"controller": "human"}])] * 40
    data = write_lines(tmp_path / "games.jsonl", *made)
    assert main(["train", "--data", str(data), "--out", str(tmp_path / "run"), *QUICK]) == 0
    out = said(capsys)[0]
    # Recorded is -0.5; the untrained network chooses evenly between two, log 0.5 = -0.69.
    assert "Warning: 40 recorded log-probs of policy 0 differ from the present network's by up to" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--game", "tic_tac_toe"], "the data are of another game: got toy, expected tic_tac_toe"),
        (["--watch"], "--watch needs a folder"),
        (["--data_passes", "0"], "--data_passes cannot be used"),
    ],
)
def test_what_does_not_go_together_is_wrong_use(tmp_path, capsys, flags, message):
    data = write_lines(tmp_path / "a.jsonl", record())
    assert main(["train", "--data", str(data), "--out", str(tmp_path / "run"), *flags]) == 2
    assert message in said(capsys)[1]
    assert main(["train", "--imitate"]) == 2
    assert "together with --data" in said(capsys)[1]


def test_the_engine_gets_each_new_policy_and_a_list_of_used_files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", *[record()] * 64)
    flags = ["--data", str(folder), "--watch", "--update_frequency", "32", "--total_steps", "60"]
    assert main(["train", *flags, *QUICK, "--out", str(tmp_path / "run"), "--max_policy_lag", "9"]) == 0
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["latest.json", "update-000001.pt", "update-000002.pt"]
    used = json.loads((tmp_path / "run" / "used_files.json").read_text(encoding="utf-8"))
    assert used == [str(folder / "a.jsonl")]


def test_watching_says_what_it_waits_for_before_the_first_episode(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    flags = ["--data", str(folder), "--watch", "--max_seconds", "1", *QUICK, "--out", str(tmp_path / "run")]
    assert main(["train", *flags]) == 1
    out, err = said(capsys)
    assert out.count("Waiting for the first episode") == 1 and "there is no recording" in err
    write_lines(folder / "a.jsonl", record(end="over"))
    assert main(["train", *flags]) == 1
    out, err = said(capsys)
    assert "nothing in the recordings can be used, the first problem: a field is wrong" in " ".join(out.split())
    assert not (tmp_path / "run").exists()


def test_a_folder_of_two_games_is_noted(tmp_path, capsys):
    write_lines(tmp_path / "a.jsonl", record())
    write_lines(tmp_path / "b.jsonl", record(game="chess"))
    assert main(["check", str(tmp_path)]) == 0
    assert "recordings of 2 kinds; training takes those of the first one only" in said(capsys)[0]


def test_a_start_that_cannot_be_used_leaves_nothing_behind(tmp_path, capsys):
    data = write_lines(tmp_path / "a.jsonl", *[record()] * 8)
    run = ["train", "--data", str(data), *QUICK, "--out"]
    assert main([*run, str(tmp_path / "one")]) == 0
    assert main([*run, str(tmp_path / "two"), "--init_from", str(tmp_path / "one"), "--hidden_dim", "16"]) == 2
    assert "another hidden_dim" in said(capsys)[1] and not (tmp_path / "two").exists()
    assert main([*run, str(tmp_path / "two"), "--init_from", str(tmp_path / "none")]) == 2
    assert "does not exist" in said(capsys)[1] and not (tmp_path / "two").exists()


def test_a_name_that_is_no_utf_8_is_used_everywhere_and_read_back(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"\xc5\xc6")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this disk takes names in UTF-8 only")
    data = write_lines(folder / os.fsdecode(b"\xd3\xce.jsonl"), *[record()] * 64)
    assert main(["check", str(data)]) == 0
    assert main(["convert", str(data), "--out", str(folder / "store")]) == 0
    (source,) = json.loads((folder / "store" / "manifest.json").read_text(encoding="utf-8"))["sources"]
    assert source["file"] == data.name and len(Store(folder / "store")) == 64
    run = folder / "run"
    flags = ["--update_frequency", "16", "--save_every", "1", *QUICK]
    assert main(["train", "--data", str(folder), "--out", str(run), "--total_steps", "32", *flags]) == 0
    assert main(["train", "--resume", str(run), "--total_steps", "64"]) == 0
    assert read_settings(run)["out"] == str(run) and read_settings(run)["data"] == [str(folder)]
    watch = ["--watch", "--max_seconds", "4", "--total_steps", "64", "--update_frequency", "16", *QUICK]
    watched = folder / "engine"
    watched.mkdir()
    shutil.copy(data, watched)
    assert main(["train", "--data", str(watched), "--out", str(folder / "watching"), *watch]) == 0
    used = json.loads((folder / "watching" / "used_files.json").read_text(encoding="utf-8"))
    assert used == [str(watched / data.name)] and Path(used[0]).is_file()
    assert main(["convert", str(data), str(data), "--out", str(folder / "store")]) == 1
    capsys.readouterr()


def test_one_absurd_recording_costs_itself_in_check_and_training(tmp_path, capsys):
    for number in range(8):
        huge = 1e200 if number == 5 else number
        write_lines(tmp_path / f"{number}.jsonl", *[record(returns=[huge, -huge])] * 8)
    assert main(["check", str(tmp_path)]) == 1
    assert "8 problems" in said(capsys)[0]
    assert main(["train", "--data", str(tmp_path), "--out", str(tmp_path / "run"), *QUICK]) == 0
    out = said(capsys)[0]
    assert "Left out: a return is too large to train with" in out and "5.jsonl, line 1" in out
    assert load(tmp_path / "run")["counters"]["episodes"] == 56


def test_an_id_that_the_game_has_no_row_for_costs_its_episode(tmp_path, capsys):
    pytest.importorskip("pyspiel")
    data = tmp_path / "a.jsonl"
    assert main(["record", "--game", "kuhn_poker", "--episodes", "20", "--out", str(data)]) == 0
    lines = data.read_bytes().splitlines()
    bad = json.loads(lines[7])
    bad["steps"][0]["actions"][1] = 77
    del bad["crc32"]
    write_lines(data, *lines[:7], bad, *lines[8:])
    assert main(["check", str(data)]) == 1
    assert "an action id has no row in the table: got 77" in said(capsys)[0]
    assert main(["train", "--data", str(data), "--learn_from", "all", "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert "a.jsonl, line 8, episode 6, step 0, field actions" in said(capsys)[0]
    assert load(tmp_path / "run")["counters"]["episodes"] == 19
    assert main(["convert", str(data), "--out", str(tmp_path / "store")]) == 0
    flags = ["--learn_from", "all", "--out", str(tmp_path / "other"), *QUICK]
    assert main(["train", "--data", str(tmp_path / "store"), *flags]) == 0
    assert "no row in the table" in said(capsys)[0] and load(tmp_path / "other")["counters"]["episodes"] == 19


def test_a_run_does_not_go_on_with_another_number_of_players(tmp_path, capsys):
    two = write_lines(tmp_path / "a.jsonl", *[record()] * 16)
    run = tmp_path / "run"
    assert (
        main(["train", "--data", str(two), "--out", str(run), "--total_steps", "8", "--update_frequency", "8", *QUICK])
        == 0
    )
    three = record(returns=[1, -1, 0])
    three["players"].append({"controller": "human"})
    write_lines(two, *[three] * 16)
    assert main(["train", "--resume", str(run), "--total_steps", "32"]) == 2
    assert "the checkpoint is of another num_players: got 2, expected 3" in said(capsys)[1]


def test_a_log_prob_that_is_far_off_is_told_with_its_file_and_line(tmp_path, capsys):
    lines = [with_step(0, log_prob=-35.0 if number == 4 else -0.7) for number in range(8)]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    assert main(["train", "--data", str(file), "--out", str(tmp_path / "run"), *QUICK]) == 0
    out, _ = said(capsys)
    assert f"step 0, recorded in {file}, line 5)" in out
    assert main(["convert", str(file), "--out", str(tmp_path / "store")]) == 0
    said(capsys)
    assert main(["train", "--data", str(tmp_path / "store"), "--out", str(tmp_path / "other"), *QUICK]) == 0
    assert f"step 0, recorded in {tmp_path / 'store'}, episode 4)" in said(capsys)[0]
