"""Recorded lists that name an action twice: merged as a slow and plain program would, or refused."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import movelist
from movelist import cli
from movelist.core.action_ids import first_copies
from movelist.data import recordings
from movelist.data.record_rules import columns_of, join
from movelist.data.repeated import Merging
from movelist.data.store import Store
from movelist.run import checkpoint
from recorded import assert_equal, play, read_all, record, with_all_fields, with_step, write_lines

QUICK = {"hidden_dim": 8, "eval_games": 0, "tensorboard": False, "device": "cpu", "update_frequency": 4, "seed": 1}


def merged(path, *records):
    merging = Merging()
    parts, problems = read_all(write_lines(path, *records), merging=merging)
    return (join(parts) if parts else None), problems, merging


@given(st.lists(st.lists(st.integers(-2, 2), max_size=6), max_size=5))
def test_first_copies_as_a_plain_program_finds_them(lists):
    flat = np.array([value for ids in lists for value in ids], np.int64)
    expected, start = [], 0
    for ids in lists:
        expected += [start + ids.index(value) for value in ids]
        start += len(ids)
    assert first_copies(flat, np.array([len(ids) for ids in lists], np.int64)).tolist() == expected


def test_copies_become_one_entry_and_the_choice_follows(tmp_path):
    made = with_step(0, actions=[9, 7, -1, 7, 2**64 - 1, 7], chosen=3, log_prob=-2.0)
    columns, problems, merging = merged(tmp_path / "a.jsonl", made, record())
    assert not problems
    assert columns.raw.action_id_A.tolist() == [9, 7, -1, 5, 6, 8, 3, 7, 9, 5, 6, 8, 3]
    assert columns.raw.chosen_N.tolist() == [1, 0, 0, 1, 0, 0]
    # The three copies together are three times as likely as the one that was chosen.
    assert columns.raw.log_prob_N[0] == pytest.approx(-2.0 + math.log(3), abs=1e-6)
    assert columns.raw.log_prob_N[3] == np.float32(-0.5)
    assert (merging.lists, merging.entries) == (1, 3)
    columns.episodes().check()


@pytest.mark.parametrize(
    ("player", "chosen", "expected"),
    [
        ({"controller": "policy", "policy_version": 4}, 0, -2.0 + math.log(2)),
        ({"controller": "policy", "policy_version": 4}, 1, -2.0),
        ({"controller": "policy"}, 0, math.nan),  # not movelist's, which has a number
        ({"controller": "other"}, 2, math.nan),
        ({"controller": "other"}, 1, -2.0),  # the choice has no copy, so its log-prob is what it was
    ],
)
def test_log_probs_of_others_than_movelist_count_as_missing(tmp_path, player, chosen, expected):
    made = with_step(0, actions=[7, 9, 7], chosen=chosen, log_prob=-2.0)
    made["players"][0] = player
    columns, problems, _ = merged(tmp_path / "a.jsonl", made)
    assert not problems and columns.raw.chosen_N[0] == chosen % 2
    assert columns.raw.log_prob_N[0] == pytest.approx(expected, abs=1e-6, nan_ok=True)


BAD = [
    (with_step(0, actions=[7, 7], log_prob=-0.1), "log_prob",
     "the copies of an action are together more likely than certain: got -0.1"),
    (with_step(0, actions=[7, 7], chosen=2), "chosen", "the chosen index is outside the list: got 2"),
    (with_step(0, actions=[7, 7], chosen=-9), "chosen", "the chosen index is outside the list: got -9"),
    (with_step(0, actions=[7, 7], player=5), "player", "there is no such player: got 5"),
    (with_step(0, actions=[7, 7], log_prob=0.5), "log_prob", "a log-probability is impossible: got 0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "kind", "text"), BAD)
def test_what_is_wrong_beside_the_copies_is_told(tmp_path, made, kind, text):
    columns, (problem,), _ = merged(tmp_path / "a.jsonl", made, record())
    assert problem.kind == kind and text in str(problem)
    assert len(columns) == 1


def test_the_same_id_with_other_features_costs_its_episode(tmp_path):
    same = record()
    for step in same["steps"]:
        step["action_features"] = [[0.5, 1] for _ in step["actions"]]
    same["steps"][0] |= {"actions": [7, 9, 7], "action_features": [[1, 2], [3, 4], [1, 2]]}
    other = json.loads(json.dumps(same))
    other["steps"][0]["action_features"][2] = [1, 5]
    columns, (problem,), merging = merged(tmp_path / "a.jsonl", same, other)
    assert columns.raw.feature_AF.tolist()[:2] == [[1, 2], [3, 4]]
    assert problem.kind == "different copies"
    assert "copies of an action have different numbers: got 0x0000000000000007" in str(problem)
    assert "episode 1, step 0, field action_features" in str(problem)
    assert str(problem).endswith("They are two actions: write them with two ids.")
    assert merging.lists == 1


def doubled(columns, seed):
    """The same episodes with copies of entries put in at random, and the place that each entry has now."""
    raw, generator = columns.raw, np.random.default_rng(seed)
    lists, places = [], []
    for start, end in zip(raw.action_offsets[:-1], raw.action_offsets[1:], strict=True):
        again = generator.integers(start, end, generator.integers(0, 3))
        lists.append(np.r_[np.arange(start, end), again])  # the first ones stay first
        places.append(len(lists[-1]))
    source = np.concatenate(lists)
    return source, np.r_[0, np.cumsum(places)]


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_merging_undoes_doubling_in_every_column(seed):
    columns = with_all_fields(1, num_games=12)
    raw = columns.raw
    source, offsets = doubled(columns, seed)
    number_N = np.array([
        (source[start:end] == raw.action_offsets[step] + raw.chosen_N[step]).sum()
        for step, (start, end) in enumerate(pairwise(offsets))
    ])  # fmt: skip
    shared = (raw.log_prob_N - np.log(number_N)).astype(np.float32)
    ours = (raw.controller_EP == 0)[raw.episode_N, raw.player_N]
    ours &= (columns.version_EP >= 0)[raw.episode_N, raw.player_N]
    wide = replace(raw, action_id_A=raw.action_id_A[source], feature_AF=raw.feature_AF[source],
                   action_offsets=offsets, log_prob_N=shared)  # fmt: skip
    merging = Merging()
    assert [rule for rule in merging.rules(replace(columns, raw=wide)) if rule[4].any()] == []
    back = merging.merged(replace(columns, raw=wide))
    known = np.where(ours | (number_N == 1), raw.log_prob_N, np.nan)
    np.testing.assert_allclose(back.raw.log_prob_N, known, atol=1e-6)
    assert_equal(replace(raw, log_prob_N=back.raw.log_prob_N), back.raw)
    assert merging.entries == len(source) - raw.num_actions


def engine(path, count=16):
    """Episodes as an engine with a movelist policy writes them, with copies in every list, and the same without."""
    for name, actions, log_prob in (("twice", [7, -9, 7, 4], -1.9), ("once", [7, -9, 4], -1.9 + math.log(2))):
        step = {"player": 0, "state": [0.5, 1.0], "actions": actions, "chosen": 0, "reward": 0.0, "log_prob": log_prob}
        episode = {"format": "movelist/1", "game": "engine", "players": [{"controller": "policy", "policy_version": 0}]}
        episode |= {"steps": [step], "end": "terminated"}
        (path / name).mkdir()
        write_lines(path / name / "a.jsonl", *(episode | {"episode": n, "returns": [n % 3]} for n in range(count)))


def test_check_refuses_or_merges_and_counts(tmp_path, capsys):
    engine(tmp_path)
    file = str(tmp_path / "twice" / "a.jsonl")
    assert cli.main(["check", file]) == 1
    said = capsys.readouterr()
    assert "PROBLEM: duplicate id, 16 times" in said.out and "--repeated_actions merge makes one of them" in said.out
    assert cli.main(["check", file, "--repeated_actions", "merge"]) == 0
    assert "merged                   16   lists, 16 copies of actions" in capsys.readouterr().out
    assert cli.main(["check", file, "--repeated_actions", "merge", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["merged_lists"], found["merged_entries"], found["legal_actions"]) == (16, 16, 48)


def weights(run):
    return {name: tensor.numpy() for name, tensor in checkpoint.load(run)["learner"]["net"].items()}


def test_training_from_them_is_training_from_lists_that_name_each_once(tmp_path, capsys):
    engine(tmp_path)
    with pytest.raises(movelist.MovelistError, match="--repeated_actions merge makes one of them"):
        movelist.train(data=tmp_path / "twice", out=tmp_path / "no", **QUICK)
    words = ["--repeated_actions", "merge"]
    assert cli.main(["convert", str(tmp_path / "twice"), "--out", str(tmp_path / "store"), *words]) == 0
    copy = str(tmp_path / "copy.arrows")
    assert cli.main(["convert", str(tmp_path / "twice"), "--out", copy, *words]) == 0
    assert cli.main(["check", copy]) == 0
    assert Store(tmp_path / "store").take(np.arange(16)).episodes.check().num_actions == 48
    merge = {"repeated_actions": "merge"}
    movelist.train(data=tmp_path / "once", out=tmp_path / "a", **QUICK)
    movelist.train(data=tmp_path / "twice", out=tmp_path / "b", **QUICK, **merge)
    movelist.train(data=tmp_path / "twice", watch=True, total_steps=16, out=tmp_path / "c", **QUICK, **merge)
    movelist.train(data=tmp_path / "once", watch=True, total_steps=16, out=tmp_path / "d", **QUICK)
    for one, other in (("a", "b"), ("c", "d")):
        first, second = weights(tmp_path / one), weights(tmp_path / other)
        for name in first:  # the log-prob of the copies together is rounded once more
            np.testing.assert_allclose(first[name], second[name], atol=1e-5, err_msg=name)


def test_lists_without_copies_are_left_as_they_are(tmp_path):
    path = tmp_path / "a.arrows"
    writer = recordings.writer(path)
    writer.write(columns_of(play(20), "leduc_poker"))
    writer.close()
    merging = Merging()
    parts, _ = read_all(path, merging=merging)
    plain, _ = read_all(path)
    assert_equal(join(parts), join(plain))
    assert (merging.lists, merging.entries) == (0, 0)
