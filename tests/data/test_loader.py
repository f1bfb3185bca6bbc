"""Rollouts from a store, from recordings and from a watched folder: each episode once, in a seeded order, resumable."""

import json
import os
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from movelist.core.errors import DataError
from movelist.data import recordings
from movelist.data.episode import HUMAN, OTHER, POLICY
from movelist.data.loader import RecordedSource, RecordingStream, StoreStream
from movelist.data.record_rules import columns_of
from movelist.data.store import Store, StoreWriter
from movelist.data.watch import FINGERPRINT_BYTES, WatchStream
from recorded import play, read_all, record, write_lines

EVERYBODY = frozenset({POLICY, HUMAN, OTHER})


def numbered(path, first, count):
    """Episodes whose returns tell their number."""
    return write_lines(path, *(record(returns=[first + n, -first - n]) for n in range(count)))


def files_of(tmp_path, count=3, each=70):
    return [numbered(tmp_path / f"{n}.jsonl", n * each, each) for n in range(count)]


def recording_source(files, **arguments):
    stream = RecordingStream(files, **{"passes": 1, "seed": 3, "keep_forced": False} | arguments)
    return RecordedSource(stream, learn_from=EVERYBODY)


def store_source(tmp_path, files, **arguments):
    if not (tmp_path / "store").exists():
        writer = StoreWriter(tmp_path / "store")
        for file in files:
            for columns in recordings.read(file):
                writer.add(columns)
                writer._flush()
        writer.commit()
    return RecordedSource(StoreStream(Store(tmp_path / "store"), **{"passes": 1, "seed": 3} | arguments), EVERYBODY)


def numbers(episodes):
    return episodes.return_EP[:, 0].astype(int).tolist()


def drain(source, size=32):
    rollouts = []
    while len(episodes := source.collect(None, size)):
        rollouts.append(numbers(episodes.check()))
    source.close()
    return rollouts


@pytest.mark.parametrize("kind", ["recordings", "store"])
@pytest.mark.parametrize("passes", [1, 2])
def test_each_episode_is_used_once_a_pass_in_a_seeded_order(tmp_path, kind, passes):
    files = files_of(tmp_path)

    def source(**arguments):
        return (
            recording_source(files, **arguments) if kind == "recordings" else store_source(tmp_path, files, **arguments)
        )

    first = drain(source(passes=passes))
    flat = [n for rollout in first for n in rollout]
    assert sorted(flat) == sorted(list(range(210)) * passes) and flat[:210] != sorted(flat[:210])
    assert all(24 <= len(rollout) <= 32 for rollout in first)  # a remainder is spread, not left alone
    assert drain(source(passes=passes)) == first
    assert drain(source(passes=passes, seed=4)) != first


@pytest.mark.parametrize("kind", ["recordings", "store"])
@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_source_goes_on_where_it_was(tmp_path, kind, after):
    files = files_of(tmp_path)
    make = (lambda: recording_source(files)) if kind == "recordings" else (lambda: store_source(tmp_path, files))
    whole = drain(make())
    source = make()
    for rollout in whole[:after]:
        assert numbers(source.collect(None, 32)) == rollout
    state = json.loads(json.dumps(source.state_dict()))
    source.close()
    resumed = make()
    resumed.load_state_dict(state)
    assert drain(resumed) == whole[after:]


@pytest.mark.parametrize("kind", ["recordings", "store"])
@pytest.mark.parametrize("size", [2, 3, 40])  # with more processes than episodes in a rollout some get none of it
def test_several_processes_read_everything_once(tmp_path, kind, size):
    files = files_of(tmp_path, each=15)

    def read(rank):
        def share(count):
            return slice(count * rank // size, count * (rank + 1) // size)

        source = (
            recording_source(files, share=share) if kind == "recordings" else store_source(tmp_path, files, share=share)
        )
        rollouts = drain(source, size=16)
        return [number for rollout in rollouts for number in rollout], source.state_dict()

    parts, states = zip(*(read(rank) for rank in range(size)), strict=True)
    assert sorted(number for part in parts for number in part) == list(range(45))  # the union is all, and nothing twice
    assert max(map(len, parts)) - min(map(len, parts)) <= 3  # one for each of the rollouts
    assert all(state == states[0] for state in states)  # so the checkpoint of one serves all


def test_controllers_and_old_policies_decide_what_is_trained_on(tmp_path):
    (tmp_path / "a.jsonl").touch()
    file = write_lines(tmp_path / "a.jsonl", *[record()] * 8)
    said = []
    stream = RecordingStream([file], passes=1, seed=0, keep_forced=True)
    source = RecordedSource(stream, version=lambda: 10, say=said.append)
    episodes = source.collect(None, 8)
    assert set(episodes.player_N.tolist()) == {0} and source.metrics["data/policy_lag"] == 6
    # Of the policy's two steps, one lacks its log-prob.
    assert source.metrics["data/missing_log_prob_share"] == 0.5
    source.close()
    human = RecordedSource(stream, learn_from=frozenset({HUMAN}))
    assert set(human.collect(None, 8).player_N.tolist()) == {1}
    human.close()
    old = RecordedSource(stream, version=lambda: 10, max_lag=5, say=said.append)
    assert not len(old.collect(None, 8)) and "more than 5 updates old" in said[0]
    nobody = RecordedSource(stream, learn_from=frozenset({OTHER}))
    with pytest.raises(DataError, match="got seats moved by policy and human, expected some moved by other"):
        nobody.collect(None, 8)
    nobody.close()


def test_an_error_of_the_reading_thread_reaches_the_caller(tmp_path):
    source = store_source(tmp_path, files_of(tmp_path))
    shard = tmp_path / "store" / "shard-000001.safetensors"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataError, match="shard-000001"):
        drain(source)


def test_nothing_usable_is_an_error_with_the_first_problem(tmp_path):
    bad = write_lines(tmp_path / "a.jsonl", record(end="over"))
    with pytest.raises(DataError, match=r"nothing in the recordings can be used, the first problem: .*line 1"):
        recording_source([bad])


def test_files_that_came_or_went_between_two_parts_of_a_run(tmp_path):
    files = files_of(tmp_path, count=4, each=40)
    source = recording_source(files)
    seen = [n for _ in range(3) for n in numbers(source.collect(None, 10))]
    while source.state_dict()["file"] < 1:
        seen += numbers(source.collect(None, 10))
    state = json.loads(json.dumps(source.state_dict()))
    source.close()
    new = numbered(tmp_path / "00.jsonl", 160, 8)  # before all others by name
    resumed = recording_source([new, *files[1:]])
    resumed.load_state_dict(state)
    seen += [n for rollout in drain(resumed, 10) for n in rollout]
    assert sorted(seen) == list(range(168))
    gone = recording_source([new, *files[:3]])
    gone.load_state_dict(state)
    with pytest.raises(DataError, match=r"that this training still needs is gone: got .*3\.jsonl"):
        drain(gone, 10)


@pytest.mark.parametrize("kind", ["recordings", "store"])
@pytest.mark.parametrize("after", range(1, 9))
def test_what_came_within_a_block_or_a_pass_moves_no_episode_of_it(tmp_path, kind, after):
    files = files_of(tmp_path, count=1, each=45)  # a block of 40, and one of 5 that grows
    whole = list(range(68))
    seen, state = [], {}

    def make():
        return recording_source(files, passes=2) if kind == "recordings" else store_source(tmp_path, files, passes=2)

    for _ in range(after):
        source = make()
        source.load_state_dict(state)
        seen += numbers(source.collect(None, 10))
        state = json.loads(json.dumps(source.state_dict()))
        source.close()
    new = numbered(tmp_path / "x.jsonl", 45, 23)
    if kind == "store":
        writer = StoreWriter(tmp_path / "store")
        for columns in recordings.read(new):
            writer.add(columns)
        writer.commit()
    files.append(new)
    resumed = make()
    resumed.load_state_dict(state)
    seen += [n for rollout in drain(resumed, 10) for n in rollout]
    first_pass = seen[: len(seen) - 68]
    assert sorted(seen[-68:]) == whole and sorted(first_pass) in (whole, whole[:45])
    assert after > 5 or sorted(first_pass) == whole


def test_a_store_that_has_lost_episodes_does_not_go_on(tmp_path):
    source = store_source(tmp_path, files_of(tmp_path, count=2))
    source.collect(None, 32)
    state = source.state_dict() | {"sizes": [141]}
    source.close()
    source = store_source(tmp_path, [])
    source.load_state_dict(state)
    with pytest.raises(DataError, match="fewer episodes than when this training began: got 140, expected 141"):
        source.collect(None, 32)
    source.close()


# ---------------------------------------------------------------------- watching


def test_a_file_written_anew_with_the_same_size_is_read(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    size = numbered(folder / "a.jsonl", 10, 8).stat().st_size
    source = watch_source(folder)
    rollouts = source.stream.rollouts({}, 8)
    first, state = next(rollouts)
    assert next(rollouts) == (None, {}) and source.stream.used_up(state) == [str(folder / "a.jsonl")]
    assert numbered(folder / "a.jsonl", 30, 8).stat().st_size == size
    os.utime(folder / "a.jsonl", (1, 1))
    assert source.stream.used_up(state) == []
    assert numbers(first.episodes) + numbers(next(rollouts)[0].episodes) == [*range(10, 18), *range(30, 38)]


def test_a_file_written_anew_and_not_read_yet_is_not_listed_as_used_up(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    numbered(folder / "a.jsonl", 10, 8)
    source = watch_source(folder)
    source.collect(None, 8)
    source.close()
    numbered(folder / "a.jsonl", 30, 4)  # shorter than what was read of the old one
    assert source.stream.used_up(source.state_dict()) == []


def watch_source(folder, state=None, **named):
    (columns,), _ = read_all(write_lines(folder.parent / "widths.jsonl", record()))
    deadline = time.monotonic() + 2
    stream = WatchStream(folder, keep_forced=False, widths=columns.widths, **named)
    source = RecordedSource(stream, learn_from=EVERYBODY, keep_going=lambda: time.monotonic() < deadline)
    source.load_state_dict(state or {})
    return source


def test_a_watched_folder_uses_each_episode_once_across_restarts(tmp_path):
    folder = tmp_path / "in coming 进"
    folder.mkdir()
    numbered(folder / "a.jsonl", 0, 20)
    source = watch_source(folder)
    seen = numbers(source.collect(None, 8)) + numbers(source.collect(None, 8))
    state = json.loads(json.dumps(source.state_dict()))
    assert source.stream.used_up(state) == []
    source.close()
    # It grows, with half a record at its end, and another one comes, in the other format.
    extra = numbered(tmp_path / "b.jsonl", 20, 4).read_bytes()
    with (folder / "a.jsonl").open("ab") as file:
        file.write(extra[:-50])
    (columns,), _ = read_all(numbered(tmp_path / "c.jsonl", 24, 16))
    writer = recordings.writer(folder / "c.arrows")
    writer.write(columns)
    writer.close()
    source = watch_source(folder, state)
    seen += numbers(source.collect(None, 8)) + numbers(source.collect(None, 8))
    with (folder / "a.jsonl").open("ab") as file:
        file.write(extra[-50:])
    seen += numbers(source.collect(None, 8))
    source.close()
    assert sorted(seen) == list(range(40))
    assert source.stream.used_up(source.state_dict()) == [str(folder / "a.jsonl"), str(folder / "c.arrows")]


def test_a_file_of_another_game_is_not_listed_as_used_up(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", record(game="chess"))
    numbered(folder / "b.jsonl", 0, 8)
    source = watch_source(folder)
    source.collect(None, 8)
    assert not len(source.collect(None, 8))
    source.close()
    assert source.stream.used_up(source.state_dict()) == [str(folder / "b.jsonl")]


def test_a_file_written_anew_under_an_old_name_is_read(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    numbered(folder / "a.jsonl", 0, 8)
    source = watch_source(folder)
    seen = numbers(source.collect(None, 8))
    source.close()
    numbered(folder / "a.jsonl", 30, 8)
    source = watch_source(folder, source.state_dict())
    seen += numbers(source.collect(None, 8))
    source.close()
    assert sorted(seen) == [*range(8), *range(30, 38)]


def test_a_file_that_becomes_shorter_is_not_read_again(tmp_path):
    folder, said = tmp_path / "in", []
    folder.mkdir()
    whole = numbered(folder / "a.jsonl", 0, 32).read_bytes()
    assert len(whole) > 3 * FINGERPRINT_BYTES
    source = watch_source(folder)
    seen = numbers(source.collect(None, 32))
    source.close()
    source = watch_source(folder, source.state_dict(), report=said.append)
    (folder / "a.jsonl").write_bytes(whole[: len(whole) // 2])
    assert not len(source.collect(None, 8)) and sorted(seen) == list(range(32))
    source.close()
    (problem,) = said
    assert "became shorter" in str(problem) and "a.jsonl" in str(problem)


@pytest.mark.parametrize("longer", [0, 8])
def test_a_file_of_which_only_the_header_was_seen_is_known_by_more_later(tmp_path, longer):
    folder = tmp_path / "in"
    folder.mkdir()
    header = b'{"format":"movelist/1","state_shape":[2],"state_dtype":"float32"}\n'
    (folder / "a.jsonl").write_bytes(header)
    source = watch_source(folder)
    assert not len(source.collect(None, 8))
    source.close()
    for first, count in ((0, 8), (20, 8 + longer)):
        lines = numbered(tmp_path / "lines.jsonl", first, count).read_bytes()
        (folder / "a.jsonl").write_bytes(header + lines)
        source = watch_source(folder, source.state_dict())
        assert sorted(numbers(source.collect(None, count))) == list(range(first, first + count))
        source.close()


def test_a_file_or_folder_that_vanishes_is_waited_for(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    numbered(folder / "a.jsonl", 0, 8)
    numbered(folder / "sub" / "b.jsonl", 8, 8)
    real, listed = Path.rglob, []

    def vanishing(self, pattern):
        found = list(real(self, pattern))
        listed.append(self)
        if len(listed) == 1:
            raise FileNotFoundError(2, "a folder was deleted")
        if len(listed) == 2:  # deleted between the look and the reading
            (folder / "a.jsonl").rename(tmp_path / "a.jsonl")
        if len(listed) == 3:
            (tmp_path / "a.jsonl").rename(folder / "a.jsonl")
        return iter(found)

    monkeypatch.setattr(Path, "rglob", vanishing)
    source = watch_source(folder)
    assert sorted(numbers(source.collect(None, 16))) == list(range(16))
    source.close()


def test_two_runs_may_watch_one_folder(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    numbered(folder / "a.jsonl", 0, 16)
    one, other = watch_source(folder), watch_source(folder)
    assert numbers(one.collect(None, 16)) == numbers(other.collect(None, 16)) == list(range(16))
    one.close()
    other.close()


def test_a_locked_file_is_tried_again(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    numbered(folder / "a.jsonl", 0, 8)
    source = watch_source(folder)
    real, tries = Path.open, []

    def locked(self, *arguments, **named):
        if self.name == "a.jsonl" and len(tries) < 2:
            tries.append(self)
            raise PermissionError(13, "used by another process")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", locked)
    assert sorted(numbers(source.collect(None, 8))) == list(range(8)) and len(tries) == 2
    source.close()


def test_waiting_ends_when_nobody_wants_to_wait(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    source = watch_source(folder)
    source.keep_going = lambda: False
    assert not len(source.collect(None, 8))
    source.close()
    shutil.rmtree(folder)


def test_a_store_of_games_serves_what_self_play_would(tmp_path):
    episodes = play(30)
    writer = StoreWriter(tmp_path / "games")
    writer.add(columns_of(replace(episodes), "leduc_poker"))
    writer.commit()
    source = RecordedSource(StoreStream(Store(tmp_path / "games"), passes=1, seed=0))
    collected = source.collect(None, 30).check()
    assert collected.return_EP.sum() == episodes.return_EP.sum() and source.done == 1.0
    source.close()


def test_closing_ends_the_thread(tmp_path):
    import threading

    source = recording_source(files_of(tmp_path))
    source.collect(None, 16)
    assert any(thread.name == "movelist-loader" for thread in threading.enumerate())
    source.close()
    assert not any(thread.name == "movelist-loader" for thread in threading.enumerate())


def test_a_watched_copy_is_left_out_and_a_renamed_file_goes_on(tmp_path):
    folder, said = tmp_path / "in", []
    folder.mkdir()
    numbered(folder / "a.jsonl", 0, 16)
    source = watch_source(folder, say=said.append)
    seen = numbers(source.collect(None, 8))
    seen += numbers(source.collect(None, 8))
    shutil.copy(folder / "a.jsonl", folder / "copy.jsonl")
    numbered(folder / ".hidden.jsonl", 50, 8)
    assert not len(source.collect(None, 8)) and not len(source.collect(None, 8))
    assert (
        len(said) == 2 and "copy.jsonl holds the same bytes as" in " ".join(said) and "1 hidden files" in " ".join(said)
    )
    source.close()
    (folder / "copy.jsonl").unlink()
    (folder / "a.jsonl").rename(folder / "b.jsonl")
    with (folder / "b.jsonl").open("ab") as file:
        file.write(numbered(tmp_path / "more.jsonl", 16, 8).read_bytes())
    source = watch_source(folder, json.loads(json.dumps(source.state_dict())))
    seen += numbers(source.collect(None, 8))
    assert not len(source.collect(None, 8)) and sorted(seen) == list(range(24))
    source.close()


def test_a_run_that_began_with_a_copy_goes_on_with_it(tmp_path):
    files = [numbered(tmp_path / "a.jsonl", 0, 16), numbered(tmp_path / "copy of a.jsonl", 0, 16)]
    source = recording_source(files)  # as version 0.1 took them
    seen = numbers(source.collect(None, 2))
    state = source.state_dict()
    source.close()
    resumed = recording_source(recordings.find(files))
    resumed.load_state_dict(state)
    seen += [number for rollout in drain(resumed, 2) for number in rollout]
    assert sorted(seen) == sorted([*range(16)] * 2)


def test_a_file_is_read_as_far_as_it_went_when_the_training_began(tmp_path):
    file = numbered(tmp_path / "a.jsonl", 0, 16)
    source = recording_source([file], sizes=[file.stat().st_size], passes=2)
    with file.open("ab") as opened:
        opened.write(numbered(tmp_path / "b.jsonl", 16, 8).read_bytes())
    assert sorted(number for rollout in drain(source) for number in rollout) == sorted([*range(16)] * 2)


def origins(episodes):
    """The returns and the place of each episode."""
    return dict(zip(numbers(episodes), episodes.origin_E.tolist(), strict=True))


@pytest.mark.parametrize("ending", ["jsonl", "arrows"])
def test_each_episode_knows_its_file_and_line(tmp_path, ending):
    """Through blocks, shuffling and joining; line 3 of the second file cannot be used."""
    lines = [record(returns=[n, -n]) for n in range(6)]
    first = write_lines(tmp_path / "a.jsonl", *lines[:3])
    second = write_lines(tmp_path / "b.jsonl", *lines[3:5], record(end="over"), lines[5])
    files, unit, places = [first, second], "line", [1, 2, 3, 1, 2, 4]
    if ending == "arrows":
        files, unit, places = [], "row", [0, 3, 6, 0, 3, 6]
        for file in (first, second):
            with closing(recordings.writer(file.with_suffix(".arrows"))) as writer:
                for columns in recordings.read(file):
                    writer.write(columns)
            files.append(file.with_suffix(".arrows"))
    source = recording_source(files)
    found = {number: place for _ in range(2) for number, place in origins(source.collect(None, 3)).items()}
    expected = [f"{file}, {unit} {place}" for file, place in zip([files[0]] * 3 + [files[1]] * 3, places, strict=True)]
    assert found == dict(enumerate(expected))
    episodes = recording_source(files).collect(None, 6)
    assert episodes.place(0).endswith(f", recorded in {expected[numbers(episodes)[0]]}")


def test_each_episode_of_a_store_knows_its_number(tmp_path):
    episodes = store_source(tmp_path, files_of(tmp_path, 3, 4)).collect(None, 12)
    assert origins(episodes) == {number: f"{tmp_path / 'store'}, episode {number}" for number in range(12)}


def test_each_episode_of_a_watched_folder_knows_its_line(tmp_path):
    file = numbered(tmp_path / "a.jsonl", 0, 4)
    stream = WatchStream(tmp_path, keep_forced=False, widths=read_all(file)[0][0].widths)
    episodes = RecordedSource(stream, EVERYBODY).collect(None, 4)
    assert origins(episodes) == {number: f"{file}, line {number + 1}" for number in range(4)}
