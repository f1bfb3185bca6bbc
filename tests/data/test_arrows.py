"""`.arrows` with damage in its framing, and read on from a place in the middle."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from movelist.data import arrow_writer, recordings
from movelist.data.arrow_frames import frames
from movelist.data.record_rules import Position, columns_of, join
from recorded import assert_equal, play, read_all

PLAYED = columns_of(play(60), "leduc_poker")
NUMBERED = np.hstack([PLAYED.raw.episode_N[:, None].astype(np.float32), PLAYED.raw.state_NS[:, 1:]])
GAMES = replace(PLAYED, raw=replace(PLAYED.raw, state_NS=NUMBERED))  # a state's first number tells its game


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Two streams, of 40 and of 20 games, in batches of about 40 rows."""
    monkeypatch.setattr(arrow_writer, "BATCH_ROWS", 40)
    for part in (np.arange(40), np.arange(40, 60)):
        write(tmp_path / "a.arrows", GAMES.take(part))
    return tmp_path / "a.arrows"


def write(path, columns):
    writer = recordings.writer(path)
    writer.write(columns)
    writer.close()


def frames_of(path):
    with path.open("rb") as file:
        return list(frames(file, 0, path.stat().st_size))


def change(path, place, content):
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + content + whole[place + len(content) :])


def flip(path, place, bit):
    change(path, place, bytes([path.read_bytes()[place] ^ (1 << bit)]))


def played(path, **arguments):
    """Which of GAMES came back, each as it was, and the problems."""
    parts, problems = read_all(path, **arguments)
    return [number for part in parts for number in numbers(part)], problems


def numbers(columns):
    """Which of GAMES these are."""
    found = columns.raw.state_NS[columns.raw.episode_offsets[:-1], 0].astype(int).tolist()
    expected = GAMES.take(np.array(found)).raw
    for name in ("state_NS", "action_id_A", "chosen_N", "reward_N", "return_EP"):
        np.testing.assert_array_equal(getattr(columns.raw, name), getattr(expected, name))
    return found


def without_crc(path):
    """The same file as another writer writes it."""
    whole, tables = path.read_bytes(), []
    edges = [frame.start for frame in frames_of(path) if frame.kind == "schema"]
    for start, stop in zip(edges, [*edges[1:], len(whole)], strict=True):
        tables.append(pa.ipc.open_stream(whole[start:stop]).read_all().drop_columns("crc32"))
    with path.open("wb") as file:
        for table in tables:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)


def test_a_file_is_frames_from_end_to_end(path):
    found = frames_of(path)
    kinds = "".join(frame.kind[0] for frame in found)
    assert kinds.startswith("sbb") and kinds.count("s") == kinds.count("e") == 2 and kinds.endswith("be")
    edges = [0, *(frame.end for frame in found)]
    assert [frame.start for frame in found] == edges[:-1] and edges[-1] == path.stat().st_size


def lengths(frame, whole):
    """Where a batch's mark, its metadata's length, and its body's length stand."""
    metadata = int.from_bytes(whole[frame.start + 4 : frame.start + 8], "little")
    body = frame.end - frame.start - 8 - metadata
    return frame.start, frame.start + 4, whole.index(body.to_bytes(8, "little"), frame.start + 8)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("byte", [0, 1, 2, 3])
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_in_a_length_costs_its_batch_only(path, which, byte, bit):
    in_batch = set(numbers(read_all(path)[0][1]))
    damaged = [frame for frame in frames_of(path) if frame.kind == "batch"][1]
    flip(path, lengths(damaged, path.read_bytes())[which] + byte, bit)
    back, problems = played(path)
    assert back == sorted(set(back)) and set(range(60)) - set(back) <= in_batch
    assert problems and all(problem.kind == "damaged" and not problem.harmless for problem in problems)
    assert f"{path}, byte {damaged.start}" in str(problems[0]) or f"byte {damaged.end}" in str(problems[0])


@pytest.mark.parametrize("bit", [20, 24])
def test_a_length_beyond_the_end_is_damage_where_messages_follow_and_unfinished_where_none_does(path, bit):
    batches = [frame for frame in frames_of(path) if frame.kind == "batch"]
    place = lengths(batches[0], path.read_bytes())[2]
    flip(path, place + bit // 8, bit % 8)
    back, (problem, *_) = played(path)
    assert problem.kind == "damaged" and len(back) > 40 and f"byte {batches[0].start}" in str(problem)
    flip(path, place + bit // 8, bit % 8)
    last = lengths(batches[-1], path.read_bytes())[2]
    flip(path, last + bit // 8, bit % 8)
    _, (closed,) = played(path)
    assert closed.kind == "damaged"  # the end of the stream stands at the end, so nobody is going to write the rest
    path.write_bytes(path.read_bytes()[: batches[-1].end])
    _, (open_,) = played(path)
    assert open_.kind == "unfinished" and open_.harmless


@pytest.mark.parametrize("cut", [1, 7, 9, 100, 1000])
def test_an_unfinished_batch_is_read_once_it_is_whole(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    first, problems = read_all(path)
    assert all(problem.kind == "unfinished" and problem.harmless for problem in problems)
    assert problems
    path.write_bytes(whole)
    start = first[-1].position(len(first[-1]) - 1)
    rest, problems = read_all(path, start=start)
    assert not problems
    assert_equal(GAMES, join([*first, *rest]))


def test_reading_goes_on_after_any_episode_without_looking_at_what_came_before(path):
    parts, _ = read_all(path)
    whole = path.read_bytes()
    schemas = {frame.start: frame.end for frame in frames_of(path) if frame.kind == "schema"}
    for part in parts:
        for e in range(len(part)):
            start = part.position(e)
            spoilt = bytearray(b"\x55" * start.offset) + whole[start.offset :]
            spoilt[start.stream : schemas[start.stream]] = whole[start.stream : schemas[start.stream]]
            path.write_bytes(spoilt)
            again, problems = read_all(path, start=start)
            assert not problems and [n for piece in again for n in numbers(piece)] == list(range(start.ordinal, 60))
            assert [n for piece in again for n in piece.ordinal_E.tolist()] == list(range(start.ordinal, 60))
            rows = [n for piece in again for n in piece.line_E.tolist()]
            assert rows == GAMES.raw.episode_offsets[start.ordinal : -1].tolist()


def test_positions_of_before_that_only_count_episodes_are_taken(path):
    back, problems = played(path, start=Position(offset=0, ordinal=45, line=46))
    assert not problems and back == list(range(45, 60))


def test_a_damaged_schema_costs_its_stream(path):
    second = [frame for frame in frames_of(path) if frame.kind == "schema"][1]
    change(path, second.start + 8, bytes(16))
    back, problems = played(path)
    # The batches are read with the schema before, which is the same one; their checksums say that this is right.
    assert back == list(range(60)) and problems[0].kind == "damaged" and f"byte {second.start}" in str(problems[0])
    first = frames_of(path)[0]
    change(path, first.start + 8, bytes(16))
    back, problems = played(path)
    assert back == [] and {problem.kind for problem in problems} == {"damaged"}


def test_without_checksums_an_episode_whose_beginning_may_be_lost_is_left_out(path):
    without_crc(path)
    assert played(path) == (list(range(60)), [])
    batches = [frame for frame in frames_of(path) if frame.kind == "batch"]
    change(path, batches[1].start, bytes(4))
    back, problems = played(path)
    gap, left_out = problems
    assert gap.kind == "damaged" and f"byte {batches[1].start}" in str(gap)
    assert left_out.field == "episode" and "beginning of an episode may be lost" in str(left_out)
    assert back == sorted(set(back)) and 59 in back


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("checksums", [True, False])
def test_an_engine_that_died_within_a_batch_and_writes_on_costs_that_batch(path, share, checksums):
    if not checksums:
        without_crc(path)
    batches = [frame for frame in frames_of(path) if frame.kind == "batch"]
    cut = batches[1].start + int(share * (batches[1].end - batches[1].start))
    path.write_bytes(path.read_bytes()[:cut])
    first, _ = played(path)
    write(path, GAMES)
    back, (problem,) = played(path)  # each as it was: the batch's missing end is not taken from what follows
    assert back == [*first, *range(60)]
    assert problem.kind == "damaged" and f"byte {batches[1].start}" in str(problem)


def test_a_stream_with_a_wrong_schema_costs_no_other_stream(path):
    with pa.OSFile(str(path), "ab") as file, pa.ipc.new_stream(file, pa.schema({"state": pa.int8()})) as writer:
        writer.write_batch(pa.record_batch({"state": pa.array([1], pa.int8())}))
    write(path, GAMES)
    back, (problem,) = played(path)
    assert back == [*range(60), *range(60)] and problem.kind == "header" and "lack a key" in str(problem)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies_are_read(path, codec):
    whole, again = path.read_bytes(), path.with_name("b.arrows")
    with pa.ipc.open_stream(whole) as stream:
        table = stream.read_all()
    with pa.ipc.new_stream(str(again), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    assert played(again) == (list(range(40)), [])


def test_arrows_other_file_format_is_named(tmp_path):
    table = pa.table({"a": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "a.arrows"), table.schema) as writer:
        writer.write_table(table)
    parts, (problem,) = read_all(tmp_path / "a.arrows")
    assert not parts and "this is Arrow's file format" in str(problem) and "no footer" in str(problem)
