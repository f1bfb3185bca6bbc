"""`.arrows` with damage in its framing, and read on from a place in the middle."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from movelist.data import arrow_frames, arrow_writer, arrows, recordings
from movelist.data.arrow_frames import frames
from movelist.data.record_rules import Position, columns_of, join
from recorded import assert_equal, play, read_all, record, with_all_fields, write_lines

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


@pytest.mark.parametrize("left", range(1, 8))
@pytest.mark.parametrize("kind", ["batch", "end"])
def test_an_engine_that_died_within_a_message_s_first_bytes_loses_nothing_of_what_follows(path, left, kind):
    last = [frame for frame in frames_of(path) if frame.kind == kind][-1]
    path.write_bytes(path.read_bytes()[: last.start + left])
    first, _ = played(path)
    # Numbers as rewards in the first streams and lists here: nothing can be read with the schema of another stream.
    lists = replace(GAMES, reward_NP=np.zeros((GAMES.raw.num_steps, 2)), reward_form_E=np.full(60, 2, np.int8))
    write(path, replace(lists, raw=replace(GAMES.raw, return_EP=np.zeros((60, 2)))))
    parts, problems = read_all(path)
    assert sum(map(len, parts)) == len(first) + 60
    assert [problem.place for problem in problems] == [f"byte {last.start}"]


def test_a_message_behind_lost_bytes_that_end_like_its_mark_is_found(path):
    batches = [frame for frame in frames_of(path) if frame.kind == "batch"]
    change(path, batches[1].start, bytes(4))
    whole = path.read_bytes()
    path.write_bytes(whole[: batches[1].end] + b"\xff" * 8 + whole[batches[1].end :])
    found = frames_of(path)
    lost = next(frame for frame in found if frame.kind == "lost")
    assert (lost.start, lost.end) == (batches[1].start, batches[1].end + 8)
    assert sum(frame.kind == "batch" for frame in found) == len(batches) - 1


@pytest.mark.parametrize("limit", [1, 3000, 20_000])
def test_batches_stay_below_the_size_that_a_reader_takes(tmp_path, monkeypatch, limit):
    columns = with_all_fields(1)
    monkeypatch.setattr(arrow_writer, "BATCH_BYTES", limit)
    monkeypatch.setattr(arrow_frames, "MAX_MESSAGE_BYTES", max(8192, 2 * limit))
    write(tmp_path / "a.arrows", columns)
    assert sum(frame.kind == "batch" for frame in frames_of(tmp_path / "a.arrows")) > 1
    parts, problems = read_all(tmp_path / "a.arrows")
    assert not problems
    assert_equal(columns, join(parts))


def test_numbers_and_lists_as_rewards_in_one_piece_keep_their_checksums(tmp_path):
    lists = record()
    for step, reward in zip(lists["steps"], [[0, 0], [2, 0], [-1, -1]], strict=True):
        step["reward"] = reward
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", record(), lists, record()))
    write(tmp_path / "a.arrows", parts[0])
    back, problems = read_all(tmp_path / "a.arrows")
    assert not problems
    assert_equal(parts[0], join(back))


SEAT = pa.struct([("controller", pa.utf8()), ("policy_version", pa.int64())])
HUMANS = [{"controller": "human"}] * 2


def seats(*others):
    return pa.struct([("controller", pa.utf8()), *others])


@pytest.mark.parametrize(
    ("name", "kind", "last", "what", "kept"),
    [
        ("final_states", pa.list_(pa.list_(pa.uint8(), 4)), [[1] * 4] * 2, "final states are no states", None),
        ("final_states", pa.list_(pa.list_(pa.float32(), 2)), [[1.5, 2]] * 2, "final states are no states", None),
        ("final_states", pa.list_(pa.list_(pa.uint8(), 2)), [[1, 2], None], "a value is missing", 0),
        ("final_states", pa.list_(pa.list_(pa.uint8(), 2)), [[1, 2], [None, 3]], "a value is missing", 0),
        ("action_features", pa.list_(pa.list_(pa.utf8(), 1)), [["a"]], "another type", None),
        ("players", pa.list_(SEAT), [None, {"controller": "human"}], "no such controller", 0),
        ("players", pa.list_(seats(("policy_version", pa.utf8()))), HUMANS, "another type", None),
        ("players", pa.list_(seats(("policy_version", pa.uint64()))), HUMANS, "another type", None),
        ("players", pa.list_(pa.struct([("controller", pa.int64())])), [{"controller": 1}] * 2, "another type", None),
    ],
)
def test_a_column_or_value_of_another_kind_is_named(tmp_path, name, kind, last, what, kept):
    header = b'{"format":"movelist/1","state_shape":[2],"state_dtype":"uint8"}'
    whole = record()
    for step in whole["steps"]:
        step["state"] = [1, 2]
    cut = whole | {"end": "truncated", "final_states": [[1, 2], [3, 4]]}
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", header, whole, cut))
    write(tmp_path / "a.arrows", parts[0])
    with pa.ipc.open_stream((tmp_path / "a.arrows").read_bytes()) as stream:
        table = stream.read_all().drop_columns("crc32")
    first = None if name != "players" else HUMANS if kept == 0 else last
    values = pa.array([None, None, first, None, None, last], kind)
    if name in table.column_names:
        table = table.set_column(table.column_names.index(name), name, values)
    else:
        table = table.append_column(name, values)
    with pa.ipc.new_stream(str(tmp_path / "a.arrows"), table.schema) as writer:
        writer.write_table(table)
    back, (problem,) = read_all(tmp_path / "a.arrows")
    assert what in str(problem) and problem.field == name
    assert [part.ordinal_E.tolist() for part in back] == ([] if kept is None else [[kept]])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies_are_read(path, codec):
    whole, again = path.read_bytes(), path.with_name("b.arrows")
    with pa.ipc.open_stream(whole) as stream:
        table = stream.read_all()
    with pa.ipc.new_stream(str(again), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    assert played(again) == (list(range(40)), [])


@pytest.mark.parametrize(
    ("name", "values", "kept"),
    [
        ("players", [None] * 6, []),
        ("players", [None, None, [], None, None, HUMANS], [1]),
        ("episode", [None, None, None, 1, 1, 1], [3]),  # no number, so each row is one
    ],
)
def test_every_episode_that_is_left_out_is_named(tmp_path, name, values, kept):
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", record(), record()))
    write(tmp_path / "a.arrows", parts[0])
    with pa.ipc.open_stream((tmp_path / "a.arrows").read_bytes()) as stream:
        table = stream.read_all().drop_columns("crc32")
    place = table.column_names.index(name)
    table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    with pa.ipc.new_stream(str(tmp_path / "a.arrows"), table.schema) as writer:
        writer.write_table(table)
    back, problems = read_all(tmp_path / "a.arrows")
    assert [n for part in back for n in part.ordinal_E.tolist()] == kept
    expected = range(4) if name == "episode" else range(2)
    assert sorted([*kept, *(problem.ordinal for problem in problems)]) == list(expected)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_episodes_that_lack_their_ends_are_named_one_by_one_and_not_kept(path, monkeypatch, rows):
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        table = stream.read_all()
    ends = [value if number >= len(table) - 1 else None for number, value in enumerate(table["end"].to_pylist())]
    table = table.set_column(table.column_names.index("end"), "end", pa.array(ends, pa.utf8()))
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    kept = []
    real = arrows._Reader._batch

    def watched(self, batch, frame):
        yield from real(self, batch, frame)
        kept.append(sum(map(len, self.pending)))

    monkeypatch.setattr(arrows._Reader, "_batch", watched)
    back, problems = played(path)
    assert back == [39] and [problem.ordinal for problem in problems] == list(range(39))
    assert {problem.kind for problem in problems} == {"no end"} and max(kept) <= rows + 10  # a game has 8 rows at most


def test_arrows_other_file_format_is_named(tmp_path):
    table = pa.table({"a": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "a.arrows"), table.schema) as writer:
        writer.write_table(table)
    parts, (problem,) = read_all(tmp_path / "a.arrows")
    assert not parts and "this is Arrow's file format" in str(problem) and "no footer" in str(problem)
