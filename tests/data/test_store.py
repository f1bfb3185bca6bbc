"""The store: equal to its recordings, whole or as before, and damage named."""

import json
import zlib

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from movelist.core.errors import DataError
from movelist.data import store as store_module
from movelist.data.loader import StoreStream
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, NO_REWARD, columns_of, join
from movelist.data.store import Store, StoreWriter
from recorded import assert_equal, play, read_all, record, with_all_fields, with_step, write_lines


def make(path, *seeds, keep_forced=False):
    for seed in seeds:
        writer = StoreWriter(path, keep_forced=keep_forced)
        writer.add(columns_of(play(20, seed=seed), "leduc_poker"))
        writer.commit()
    return Store(path)


def store_of(path, *parts, keep_forced):
    writer = StoreWriter(path, keep_forced=keep_forced)
    for columns in parts:
        writer.add(columns)
    writer.commit()
    return Store(path)


@pytest.mark.parametrize("form", [LOOKING_BACK, LOOKING_ON, NO_REWARD])
def test_a_store_with_forced_turns_gives_back_every_field(tmp_path, form):
    columns = with_all_fields(form)
    half = [columns.take(np.arange(20)), columns.take(np.arange(20, 40))]
    made = store_of(tmp_path / "store", *half, keep_forced=True)
    assert_equal(columns, join(list(made.recorded())))


def test_returns_that_nobody_recorded_stay_so(tmp_path):
    lists = record()
    del lists["returns"]
    for step, reward in zip(lists["steps"], [[0, 0], [2, 0], [-1, -1]], strict=True):
        step["reward"] = reward
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", lists, record()))
    (back,) = store_of(tmp_path / "store", *parts, keep_forced=True).recorded()
    assert_equal(join(parts), back)
    assert np.isnan(back.raw.return_EP).tolist() == [[True, True], [False, False]]


def test_a_store_of_decisions_gives_back_each_decision_with_the_same_credit(tmp_path):
    columns = with_all_fields(LOOKING_ON)
    (back,) = store_of(tmp_path / "store", columns, keep_forced=False).recorded()
    decided = columns.episodes()
    some_E = np.flatnonzero(np.diff(decided.episode_offsets) > 0)  # some games here are forced turns only
    again = back.episodes(keep_forced=True)
    np.testing.assert_allclose(again.reward_N, decided.take(some_E).reward_N, atol=1e-12)  # sums in another order
    np.testing.assert_array_equal(again.action_id_A, decided.take(some_E).action_id_A)
    keep_N = np.diff(columns.raw.action_offsets) > 1
    np.testing.assert_array_equal(back.raw.critic_state_NC, columns.raw.critic_state_NC[keep_N])
    keep_A = np.repeat(keep_N, np.diff(columns.raw.action_offsets))
    np.testing.assert_array_equal(back.raw.feature_AF, columns.raw.feature_AF[keep_A])


def test_a_store_of_the_first_version_is_read_and_added_to(tmp_path):
    path = tmp_path / "store"
    old = make(path, 1).take(np.arange(20))
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    tensors = load_file(path / "shard-000000.safetensors")
    save_file({n: t for n, t in tensors.items() if n != "has_final_E"}, path / "shard-000000.safetensors")
    content = (path / "shard-000000.safetensors").read_bytes()
    manifest["shards"][0] |= {"num_bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    manifest["format"] = "movelist-store/1"
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert_equal(Store(path).take(np.arange(20)).episodes, old.episodes)
    both = make(path, 2)
    assert json.loads((path / "manifest.json").read_text(encoding="utf-8"))["format"] == "movelist-store/2"
    assert sum(map(len, both.recorded())) == sum(len(columns) for columns in make(tmp_path / "new", 1, 2).recorded())


@pytest.mark.parametrize("keep_forced", [True, False])
def test_a_store_gives_back_what_was_recorded(tmp_path, keep_forced):
    made = make(tmp_path / "store", 1, 2, keep_forced=keep_forced)
    assert len(made) == 40 and len(made.shards) == 2
    back = made.take(np.arange(20, 40))
    expected = columns_of(play(20, seed=2), "leduc_poker").episodes(keep_forced=keep_forced)
    assert back.episodes.state_NS.dtype == np.uint8  # the same numbers in a quarter of the bytes
    np.testing.assert_array_equal(back.episodes.state_NS, expected.state_NS)
    for name in ("player_N", "action_id_A", "action_offsets", "chosen_N", "log_prob_N", "reward_N", "return_EP"):
        np.testing.assert_array_equal(getattr(back.episodes, name), getattr(expected, name))
    assert back.episodes.num_turns == expected.num_turns


def test_states_that_are_no_bytes_keep_their_dtype_and_mix_with_those_that_are(tmp_path):
    whole = record()
    for step in whole["steps"]:
        step["state"] = [3, 4]
    writer = StoreWriter(tmp_path / "store", keep_forced=True)
    for number, made in enumerate((record(), whole)):
        (columns,), _ = read_all(write_lines(tmp_path / f"{number}.jsonl", made))
        writer.add(columns)
        writer._flush()
    writer.commit()
    back = Store(tmp_path / "store").take(np.array([0, 1])).episodes
    assert back.state_NS.dtype == np.float32
    assert back.state_NS.tolist() == [[0.5, 0], [1, 0.25], [2, 0], [3, 4], [3, 4], [3, 4]]


def test_a_kill_before_the_manifest_leaves_the_old_store(tmp_path, monkeypatch):
    make(tmp_path / "store", 1)
    real, written = store_module.write_whole, []

    def killed(path, write):
        if path.name == store_module.MANIFEST:
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, write)

    monkeypatch.setattr(store_module, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "store", 2)
    assert written == ["shard-000001.safetensors"] and len(Store(tmp_path / "store")) == 20
    monkeypatch.setattr(store_module, "write_whole", real)
    assert len(make(tmp_path / "store", 3)) == 40


def test_damage_is_named_and_refused(tmp_path):
    made = make(tmp_path / "store", 1)
    shard = tmp_path / "store" / "shard-000000.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"damaged: got checksum .*shard-000000"):
        Store(made.path).take(np.array([0]))
    shard.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"damaged: got \d+ bytes, expected \d+ bytes .*shard-000000"):
        Store(made.path)
    shard.unlink()
    with pytest.raises(DataError, match="no such file"):
        Store(made.path)


def test_what_does_not_belong_into_a_store_is_refused(tmp_path):
    path = tmp_path / "store"
    make(path, 1)
    with pytest.raises(DataError, match="another setting: got keep_forced True, expected False"):
        StoreWriter(path, keep_forced=True)
    source = write_lines(tmp_path / "a.jsonl", record())
    writer = StoreWriter(path)
    writer.begin(source)
    writer.add(read_all(source)[0][0])
    with pytest.raises(DataError, match="in the store already"):
        writer.begin(source)
    with pytest.raises(DataError, match="not empty"):
        StoreWriter(tmp_path)
    with pytest.raises(DataError, match="no episode can be used"):
        StoreWriter(tmp_path / "new").commit()
    with pytest.raises(DataError, match="this is no store"):
        Store(tmp_path)
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps({"format": "movelist-store/9"}), encoding="utf-8")
    with pytest.raises(DataError, match="another format: got movelist-store/9"):
        Store(path)
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="manifest of a store cannot be read"):
        Store(path)


def test_a_recording_that_grew_is_not_taken_twice(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", *[record()] * 2)

    def begin(file):
        writer = StoreWriter(tmp_path / "store")
        writer.begin(file)
        for columns in read_all(file)[0]:
            writer.add(columns)
        return writer.commit()

    assert begin(source) == 2
    write_lines(source, *[record()] * 3)
    with pytest.raises(DataError, match="in the store already, and has grown since"):
        begin(source)
    other = tmp_path / "other"  # of the same name and longer, and another one
    other.mkdir()
    assert begin(write_lines(other / "a.jsonl", *[record(returns=[0, 0])] * 5)) == 7


def test_a_recording_that_gave_no_episode_may_come_again(tmp_path):
    writer, source = StoreWriter(tmp_path / "store"), tmp_path / "a.jsonl"
    source.touch()
    writer.begin(source)
    writer.begin(source)
    writer.begin(write_lines(source, record()))
    writer.add(read_all(source)[0][0])
    assert writer.commit() == 1
    with pytest.raises(DataError, match="in the store already"):
        StoreWriter(tmp_path / "store").begin(source)


def test_two_stores_of_the_same_recordings_are_equal(tmp_path):
    one, other = (make(tmp_path / name, 1) for name in "ab")
    assert_equal(one.take(np.arange(20)).episodes, other.take(np.arange(20)).episodes)


def test_two_recordings_of_one_name_and_size_are_both_taken(tmp_path):
    def convert(file):
        writer = StoreWriter(tmp_path / "store")
        writer.begin(file)
        for columns in read_all(file)[0]:
            writer.add(columns)
        return writer.commit()

    for folder in ("monday", "tuesday", "wednesday"):
        (tmp_path / folder).mkdir()
    many = [record(episode=100 + number) for number in range(40)]
    assert convert(write_lines(tmp_path / "monday" / "games.jsonl", *many)) == 40
    many[20] = record(episode=999)  # in the middle: the beginnings and the ends are equal
    assert convert(write_lines(tmp_path / "tuesday" / "games.jsonl", *many)) == 80
    copy = write_lines(tmp_path / "wednesday" / "renamed.jsonl", *many)
    with pytest.raises(DataError, match=r"is in the store already as games\.jsonl: got .*renamed"):
        convert(copy)
    with pytest.raises(DataError, match=r"already as games\.jsonl, and has grown since"):
        convert(write_lines(copy, *many, record()))


def test_a_store_of_version_0_1_knows_its_recordings_by_name_size_and_beginning(tmp_path):
    path, source = tmp_path / "store", write_lines(tmp_path / "a.jsonl", record())
    writer = StoreWriter(path)
    writer.begin(source)
    writer.add(read_all(source)[0][0])
    del writer.sources[0]["digest"]
    writer.commit()
    with pytest.raises(DataError, match="in the store already"):
        StoreWriter(path).begin(source)
    StoreWriter(path).begin(write_lines(source, record(returns=[2, -2])))


def test_an_id_without_a_row_costs_its_episode_of_a_store(tmp_path):
    made = [record(), with_step(1, actions=[5, -6, 80]), record(returns=[7, -7])]
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", *made))
    store, said = store_of(tmp_path / "store", *parts, keep_forced=False), []
    stream = StoreStream(store, passes=2, seed=0, num_actions=10, report=said.append)
    taken = [sorted(part.episodes.return_EP[:, 0].tolist()) for part, _ in stream.rollouts({}, 3)]
    assert taken == [[1, 7], [1, 7]]
    (problem,) = said
    assert "no row in the table" in str(problem) and f"{store.path}, episode 1" in str(problem)


def test_all_processes_read_as_much_of_a_store_that_grows(tmp_path):
    store = make(tmp_path / "store", 1, 2)
    stream = StoreStream(store, passes=1, seed=0, num_episodes=20)
    assert sum(len(part) for part, _ in stream.rollouts({}, 64)) == 20
