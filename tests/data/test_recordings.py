"""Reading, checking and writing recordings: every rule, each with its place in the message."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from movelist.core.errors import DataError
from movelist.data import jsonl, recordings
from movelist.data.record_rules import LOOKING_BACK, LOOKING_ON, columns_of, join
from recorded import EXAMPLE, assert_equal, play, read_all, record, with_all_fields, with_step, write_lines

FORMATS = [".jsonl", ".jsonl.gz", ".arrows"]
IDS = [0, 1, -1, 2**53 + 1, 2**62 + 3, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**63 + 1025]


def signed(value):
    return value - 2**64 if value >= 2**63 else value


def write(path, columns):
    writer = recordings.writer(path)
    writer.write(columns)
    writer.close()
    return path


def test_a_record_is_read_as_it_stands_and_credited(tmp_path):
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", record()))
    assert not problems
    assert columns.raw.action_id_A.tolist() == [7, 9, 5, 6, 8, 3]
    assert columns.version_EP.tolist() == [[4, -1]] and columns.raw.controller_EP.tolist() == [[0, 1]]
    # A received 2 between their steps, and 1 in all, so the last step is credited with -1; B's one step with -1.
    assert columns.episodes(keep_forced=True).reward_N.tolist() == [2, -1, -1]
    # The forced last turn goes; what it earned belongs to A's step before it.
    decided = columns.episodes()
    assert decided.reward_N.tolist() == [1, -1] and decided.num_turns == 3
    assert decided.return_EP.tolist() == [[1, -1]]


def test_lists_of_rewards_look_on_and_need_no_returns(tmp_path):
    lists = record(returns=None)
    del lists["returns"]
    for step, reward in zip(lists["steps"], [[0, 0], [2, 0], [-1, -1]], strict=True):
        step["reward"] = reward
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", lists))
    assert not problems
    assert columns.episodes(keep_forced=True).reward_N.tolist() == [2, -1, -1]
    assert columns.episodes().return_EP.tolist() == [[1, -1]]
    _, (problem,) = read_all(write_lines(tmp_path / "b.jsonl", lists | {"returns": [5, -1]}))
    assert problem.kind == "returns disagree" and "[5.0, -1.0] and a sum of [1.0, -1.0]" in str(problem)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("form", [LOOKING_BACK, LOOKING_ON, 0])
def test_both_formats_give_back_every_field(tmp_path, ending, form):
    columns = with_all_fields(form)
    parts, problems = read_all(write(tmp_path / f"a{ending}", columns))
    assert not problems
    assert_equal(columns, join(parts))


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_narrow_states_come_back(tmp_path, ending, dtype):
    header = json.dumps({"format": "movelist/1", "state_shape": [1, 2], "state_dtype": dtype}).encode()
    made = record(end="truncated", final_states=[[1, 2], [3, 4]])
    for step in made["steps"]:
        step["state"] = [65_000 if dtype == "float16" else 200, 0.1 if dtype == "float16" else 7]
    (columns,), _ = read_all(write_lines(tmp_path / "made.jsonl", header, made))
    parts, problems = read_all(write(tmp_path / f"a{ending}", columns))
    assert not problems and columns.raw.state_NS.dtype == dtype
    assert_equal(columns, join(parts))


@pytest.mark.parametrize("ending", FORMATS)
def test_played_episodes_come_back_with_the_same_credit(tmp_path, ending):
    episodes = play(50)
    parts, _ = read_all(write(tmp_path / f"a{ending}", columns_of(episodes, "leduc_poker")))
    back = join(parts).episodes(keep_forced=True).check()
    np.testing.assert_array_equal(back.reward_N, episodes.reward_N)
    assert_equal(episodes, back)


def test_the_example_reads_without_a_problem():
    parts, problems = read_all(EXAMPLE)
    assert not problems and sum(map(len, parts)) == 250
    assert join(parts).episodes().check().num_players == 3


@pytest.mark.parametrize("ids", [*([value] for value in IDS), [*IDS[:7], IDS[9]], [7, 2**63 + 1025]])
@pytest.mark.parametrize("text", [str, hex, lambda value: value])
def test_ids_keep_all_their_bits(tmp_path, ids, text):
    ids = list({signed(value): value for value in ids}.values())
    if text is hex and min(ids) < 0:
        text = str
    made = with_step(0, actions=[text(value) for value in ids], chosen=len(ids) - 1)
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", made))
    assert not problems
    assert columns.raw.action_id_A[: len(ids)].tolist() == [signed(value) for value in ids]
    (again,), _ = read_all(write(tmp_path / "b.arrows", columns))
    assert again.raw.action_id_A[: len(ids)].tolist() == [signed(value) for value in ids]


BAD = [
    (with_step(1, reward="1"), "step 1", "field reward", "got str"),
    (with_step(1, reward=float("nan")), "step 1", "field reward", "NaN and infinity are no numbers of JSON"),
    (json.dumps(record()).replace('"reward": 0', '"reward": null', 1).encode(), "step 0", "field reward", "got null"),
    (with_step(0, actions=7), "step 0", "field actions", "got int"),
    (with_step(0, actions=[7, 7]), "step 0", "field actions", "stands twice in one list: got 0x0000000000000007"),
    (with_step(0, actions=[7, 7]), "step 0", "field actions", "--repeated_actions merge makes one of them"),
    (with_step(0, actions=[1.0, 2]), "step 0", "field actions", "got float"),
    (with_step(0, actions=["seven", 2]), "step 0", "field actions", "got 'seven'"),
    (with_step(0, actions=[2**64, 2]), "step 0", "field actions", "does not fit 64 bits"),
    (with_step(0, chosen=2), "step 0", "field chosen", "outside the list: got 2"),
    (with_step(0, chosen=-1), "step 0", "field chosen", "got -1"),
    (with_step(0, state=[[0.5, 0]]), "step 0", "field state", "got array"),
    (with_step(1, colour=3), "step 1", "field colour", "unknown field"),
    (with_step(1, chosen=None), "step 1", "field chosen", "missing required field"),
    (with_step(2, state=[2]), "step 2", "field state", "another width: got 1, expected 2"),
    (with_step(2, state=[1e39, 1]), "step 2", "field state", "NaN or infinity"),
    (with_step(0, actions=[], chosen=0), "step 0", "field actions", "a list of legal actions is empty"),
    (with_step(0, player=2), "step 0", "field player", "no such player: got 2, expected 0 to 1"),
    (with_step(0, log_prob=0.5), "step 0", "field log_prob", "impossible"),
    (with_step(1, reward=[0, 0]), "step 1", "field reward", "differ in kind"),
    (with_step(1, reward=-1e200), "step 1", "field reward", "a reward is too large to train with: got 1e+200"),
    (with_step(1, log_prob=-300), "step 1", "field log_prob", "got -300.0, expected at least -40"),
    (with_step(1, state=[0, 1e20]), "step 1", "field state", "a number too large to train with"),
    (record(returns=[1e200, -1e200]), "line 2", "field returns", "too large to train with: got [1e+200, -1e"),
    (record(end="truncated", final_states=[[0, 0], [0, -1e20]]), "line 2", "field final_states", "a number too large"),
    (record(returns=[1]), "line 2", "field returns", "another width: got 1, expected 2"),
    (record(format="movelist/2"), "line 2", "field format", "expected movelist/1"),
    (record(game="chess"), "line 2", "field game", "got chess, expected toy"),
    (record(end="truncated"), "line 2", "field final_states", "Write `final_states`"),
    (record(end="over"), "line 2", "field end", "'over'"),
    (record(players=[{"controller": "robot"}] * 2), "line 2", "field players", "'robot'"),
    ({k: v for k, v in record().items() if k != "returns"}, "line 2", "field returns", "looks back"),
    (b'{"format": "movelist/1", "game": "toy", "pla\0yers": []}', "line 2", "field game", "NUL"),
    (b"not json", "line 2", "field the record", "no JSON"),
    (b"[" * 100_000, "line 2", "field", "movelist"[:0]),
    (b"\xff\xfe{}", "line 2", "field", "no JSON"),
    (b"x" * 10_000_000, "line 2", "field the record", "no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "place", "field", "what"), BAD, ids=range(len(BAD)))
def test_a_bad_record_costs_its_episode_and_no_other(tmp_path, bad, place, field, what):
    path = write_lines(tmp_path / "a.jsonl", record(), bad, record(returns=[3, -3]))
    parts, (problem,) = read_all(path)
    assert [part.raw.return_EP.tolist() for part in parts] == [[[1, -1], [3, -3]]]
    assert parts[0].ordinal_E.tolist() == [0, 2]
    text = str(problem)
    assert f"{path}, line 2" in text and place in text and field in text and what in text
    assert "\n" not in text and not problem.harmless
    with pytest.raises(DataError, match="line 2"):
        list(recordings.read(path, strict=True))


def test_what_windows_adds_does_no_harm_and_a_long_episode_is_read(tmp_path):
    path = tmp_path / "空 文件.jsonl"
    long = record(steps=record()["steps"] * 70_000)
    for step in long["steps"]:
        step["reward"] = 0
    lines = [json.dumps(one).encode() for one in (record(), long)]
    assert len(lines[1]) > 10_000_000
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([*lines, b"", b""]))
    parts, problems = read_all(path)
    assert not problems and join(parts).raw.num_steps == 3 + 210_000


def test_four_episodes_finished_cut_off_without_a_step_and_of_one_step(tmp_path):
    cut = record(end="truncated", final_states=[[1, 2], [3, 4]])
    one = record(steps=record()["steps"][:1], returns=[4, 0])
    path = write_lines(tmp_path / "a.jsonl", record(), cut, record(steps=[]), one)
    (columns,), (problem,) = read_all(path)
    assert problem.kind == "no step" and problem.harmless and "line 3" in str(problem)
    episodes = columns.episodes(keep_forced=True).check()
    assert episodes.truncated_E.tolist() == [False, True, False]
    assert episodes.final_state_EPS[1].tolist() == [[1, 2], [3, 4]]
    assert episodes.reward_N[-1] == 4  # so its advantage is 4 - V


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_an_unfinished_end_is_read_once_it_is_whole(tmp_path, cut):
    path = write_lines(tmp_path / "a.jsonl", record(), record(returns=[5, -5]))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    (first,), problems = read_all(path)
    path.write_bytes(whole)
    rest, later = read_all(path, start=first.position(len(first) - 1))
    returns = np.concatenate([part.raw.return_EP for part in (first, *rest)]).tolist()
    assert returns == [[1, -1], [5, -5]]
    assert all(problem.harmless for problem in problems) and not later
    if cut > 1:  # without its newline only, the last record is whole
        assert problems[0].kind == "unfinished" and rest[0].ordinal_E.tolist() == [1]


def test_a_line_that_gets_its_newline_later_is_counted_once(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", record(), record())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    parts, _ = read_all(path)
    start = parts[-1].position(1)
    path.write_bytes(whole + b"not json\n")
    _, (problem,) = read_all(path, start=start)
    assert problem.place == "line 3" and problem.ordinal == 2


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_that_grows_anyhow_gives_each_episode_once(tmp_path, ending):
    columns, path, rng = columns_of(play(30), "leduc_poker"), tmp_path / f"a{ending}", np.random.default_rng(0)
    for part in (np.arange(20), np.arange(20, 30)):
        write(path, columns.take(part))
    whole = path.read_bytes()
    for _ in range(10):
        start, back = None, []
        for size in [*sorted(rng.integers(1, len(whole), 4).tolist()), len(whole)]:
            path.write_bytes(whole[:size])
            parts, problems = read_all(path, start=start)
            assert all(problem.harmless for problem in problems)
            back += parts
            start = parts[-1].position(len(parts[-1]) - 1) if parts else start
        assert_equal(columns, join(back))


def test_a_first_record_that_is_bad_in_itself_costs_no_other(tmp_path):
    bad = with_step(0, state=[1, 2, 3])
    (columns,), (problem,) = read_all(write_lines(tmp_path / "a.jsonl", bad, record(), record()))
    assert columns.ordinal_E.tolist() == [1, 2]
    assert "step 1" in str(problem) and "another width: got 2, expected 3" in str(problem)


def test_large_rewards_of_one_episode_touch_no_other(tmp_path):
    lists, large = record(), record()
    for made, rewards in ((lists, [[0, 0], [2, 0], [-1, -1]]), (large, [[0, 0], [1e15, 0], [0, 0]])):
        del made["returns"]
        for step, reward in zip(made["steps"], rewards, strict=True):
            step["reward"] = reward
    (columns,), _ = read_all(write_lines(tmp_path / "a.jsonl", large, lists, record(), large))
    assert columns.episodes(keep_forced=True).reward_N.tolist() == [1e15, 0, 0, *[2, -1, -1] * 2, 1e15, 0, 0]


def test_wide_states_are_read_in_smaller_pieces(tmp_path, monkeypatch):
    line = len(json.dumps(record()))
    monkeypatch.setattr(jsonl, "_PIECE_BYTES", 2 * line)
    parts, problems = read_all(write_lines(tmp_path / "a.jsonl", *[record()] * 5))
    assert not problems and [len(part) for part in parts] == [2, 2, 1]
    assert join(parts).ordinal_E.tolist() == list(range(5))


def test_a_file_that_is_named_twice_is_found_once(tmp_path):
    for name in "ab":
        write_lines(tmp_path / f"{name}.jsonl", record(episode=name))
    found = recordings.find([tmp_path / "b.jsonl", tmp_path, tmp_path / ".." / tmp_path.name / "a.jsonl"])
    assert found == [tmp_path / "b.jsonl", tmp_path / "a.jsonl"]


LEFTOVERS = [
    *(".a.jsonl", "~$a.jsonl", "a~.jsonl", "a.bak.jsonl", "a.tmp.jsonl", "a.part.jsonl.gz", "a.orig.arrows"),
    *(".ipynb_checkpoints/a-checkpoint.jsonl", ".stversions/a~20240131-120000.jsonl", "a~20240131-120000.jsonl"),
    "sub/.cache/a.jsonl",
]


def test_what_tools_leave_behind_in_a_folder_is_left_out_and_said_once(tmp_path):
    good = [tmp_path / "a.jsonl", tmp_path / "sub" / "part-1.jsonl", tmp_path / "sub" / "v1.2.tmpx.jsonl"]
    for number, name in enumerate([*good, *LEFTOVERS]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_lines(tmp_path / name, record(episode=number))
    said = []
    assert recordings.find([tmp_path], said.append) == good
    assert len(said) == 1 and said[0].startswith(f"Left out: {len(LEFTOVERS)} hidden files")
    named = tmp_path / ".stversions" / "a~20240131-120000.jsonl"
    assert recordings.find([named], said.append) == [named] and len(said) == 1  # a file that is named is taken


def test_the_same_bytes_under_another_name_are_taken_once(tmp_path):
    long = [record(episode=number) for number in range(40)]
    for name, records in (("a", long), ("a (1)", long), ("b", [*long[:20], record(episode=77), *long[21:]])):
        write_lines(tmp_path / f"{name}.jsonl", *records)  # b differs in its middle only
    said = []
    found = recordings.find([tmp_path], said.append)
    assert [file.name for file in found] == ["a (1).jsonl", "b.jsonl"]
    assert said == [f"Left out: {tmp_path / 'a.jsonl'} holds the same bytes as {tmp_path / 'a (1).jsonl'}."]


@pytest.mark.parametrize("ending", FORMATS)
def test_no_more_of_a_file_is_read_than_is_asked_for(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", columns_of(play(8), "leduc_poker"))
    size = path.stat().st_size
    write(path, columns_of(play(8, seed=1), "leduc_poker"))
    parts, problems = read_all(path, end=size)
    assert sum(map(len, parts)) == 8 and not problems
    assert sum(map(len, read_all(path)[0])) == 16
    cut, problems = read_all(path, end=size + 60)  # within the next line or batch
    assert sum(map(len, cut)) == 8 and all(problem.harmless for problem in problems)


@pytest.mark.parametrize("ending", FORMATS)
def test_an_id_without_a_row_costs_its_episode(tmp_path, ending):
    (columns,), _ = read_all(
        write_lines(tmp_path / "made.jsonl", record(), with_step(1, actions=[5, -6, 80]), record())
    )
    path = write(tmp_path / f"a{ending}", columns)
    parts, (problem,) = read_all(path, num_actions=10)
    assert join(parts).ordinal_E.tolist() == [0, 2]
    text = "an action id has no row in the table: got -6, expected 0 to 9"
    assert text in str(problem) and "episode 1, step 1, field actions" in str(problem) and str(path) in str(problem)


def test_what_follows_another_header_is_left_out_as_it_is_said(tmp_path):
    one, other = (
        json.dumps({"format": "movelist/1", "state_shape": shape, "state_dtype": dtype}).encode()
        for shape, dtype in (([1, 2], "float32"), ([2], "float16"))
    )
    path = write_lines(tmp_path / "a.jsonl", one, record(), other, record(), one, record())
    parts, (problem,) = read_all(path)
    assert join(parts).ordinal_E.tolist() == [0, 2] and "a header differs, and what follows it is left out" in str(
        problem
    )
    again, problems = read_all(write_lines(tmp_path / "b.jsonl", one, record()), expected=parts[0].widths)
    assert len(again[0]) == 1 and not problems


def test_two_writers_in_one_file_cost_the_broken_lines(tmp_path):
    line = json.dumps(record()).encode()
    path = write_lines(tmp_path / "a.jsonl", line, line[:80] + line, line[80:], line)
    (columns,), problems = read_all(path)
    assert columns.ordinal_E.tolist() == [0, 3]
    assert [problem.place for problem in problems] == ["line 2", "line 3"]


def test_a_header_says_shape_and_dtype(tmp_path):
    header = b'{"format":"movelist/1","state_shape":[1,2],"state_dtype":"uint8"}'
    good = with_step(0, state=[255, 0])
    for step in good["steps"][1:]:
        step["state"] = [1, 2]
    bad = json.loads(json.dumps(good))
    bad["steps"][1]["state"] = [1, 256]
    (columns,), (problem,) = read_all(write_lines(tmp_path / "a.jsonl", header, good, bad))
    assert columns.raw.state_NS.dtype == np.uint8 and columns.widths.state_shape == (1, 2)
    assert "a uint8 state holds another number: got 256.0" in str(problem) and "line 3" in str(problem)
    other = header.replace(b"uint8", b"float16")
    _, problems = read_all(write_lines(tmp_path / "b.jsonl", header, good, other))
    assert problems[0].kind == "header" and "float16" in str(problems[0])


@pytest.mark.parametrize("cut", [1, 40, 2000])
def test_a_writer_that_goes_on_after_a_crash_costs_what_was_half_written(tmp_path, cut):
    path = write(tmp_path / "a.jsonl", columns_of(play(8), "leduc_poker"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    before = sum(map(len, read_all(path)[0]))
    write(path, columns_of(play(8, seed=1), "leduc_poker"))
    parts, problems = read_all(path)
    assert sum(map(len, parts)) == before + 8 and len(problems) == (cut > 1)


def test_a_damaged_header_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", columns_of(play(3), "leduc_poker"))
    path.write_bytes(path.read_bytes().replace(b'"state_dtype":"float32"', b'"state_dtype":"float16"', 1))
    (columns,), (problem,) = read_all(path)
    assert problem.kind == "checksum" and f"{path}, line 1" in str(problem) and not problem.harmless
    assert len(columns) == 3 and columns.raw.state_NS.dtype == np.float32


def test_two_games_without_an_end_between_them_are_no_long_game(tmp_path):
    parts, _ = read_all(write_lines(tmp_path / "a.jsonl", record(), record(returns=[5, -5])))
    path = write(tmp_path / "a.arrows", parts[0])
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    ends = table.column("end").to_pylist()
    first = ends.index("terminated")
    table = table.set_column(table.schema.get_field_index("end"), "end", [[*ends[:first], None, *ends[first + 1 :]]])
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    (columns,), (problem,) = read_all(path)
    assert columns.raw.return_EP.tolist() == [[5, -5]] and columns.ordinal_E.tolist() == [1]
    assert "an episode has no end, and another one follows" in str(problem) and "row 0" in str(problem)


def test_all_streams_of_a_file_are_read_and_numbered_on(tmp_path):
    path = tmp_path / "a.arrows"
    for seed in (1, 2, 3):
        write(path, columns_of(play(5, seed=seed), "leduc_poker"))
    parts, problems = read_all(path)
    assert not problems and np.concatenate([part.ordinal_E for part in parts]).tolist() == list(range(15))
    rest, _ = read_all(path, start=parts[0].position(4))
    assert np.concatenate([part.ordinal_E for part in rest]).tolist() == list(range(5, 15))


@pytest.mark.parametrize("column", ["actions", "player", "end"])
def test_columns_that_the_format_does_not_have_are_named(tmp_path, column):
    path = write(tmp_path / "a.arrows", columns_of(play(3), "leduc_poker"))
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    names = [f"{name}s" if name == column else name for name in table.column_names]
    metadata = table.schema.metadata
    table = table.rename_columns(names).replace_schema_metadata(metadata)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    parts, (problem,) = read_all(path)
    assert not parts and problem.kind == "header" and column in str(problem)


def damaged(content, kind, place, other, bit):
    """Bytes cut, flipped, doubled or swapped."""
    place, other = sorted((place % len(content), other % len(content)))
    if kind == "cut":
        return content[:place] + content[other:]
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
    if kind == "double":
        return content[:other] + content[place:]
    middle = (place + other) // 2
    return content[:place] + content[middle:other] + content[place:middle] + content[other:]


REAL = columns_of(play(12), "leduc_poker")
KNOWN = {bytes(REAL.take(np.array([e])).raw.action_id_A) for e in range(12)}


@pytest.mark.parametrize("ending", FORMATS)
@settings(max_examples=120)
@given(
    kind=st.sampled_from(["cut", "flip", "double", "swap"]),
    place=st.integers(0, 2**31),
    other=st.integers(0, 2**31),
    bit=st.integers(0, 7),
)
@example(kind="flip", place=3, other=3, bit=2)  # a flag of gzip that makes it wait for more
def test_damage_never_changes_an_id_and_never_ends_in_an_unnamed_error(
    tmp_path_factory, ending, kind, place, other, bit
):
    path = tmp_path_factory.mktemp("damage") / f"a{ending}"
    write(path, REAL)
    path.write_bytes(damaged(path.read_bytes(), kind, place, other, bit))
    parts, problems = read_all(path)
    for part in parts:
        part.episodes(keep_forced=True).check()
        for e in range(len(part)):
            assert bytes(part.take(np.array([e])).raw.action_id_A) in KNOWN
    assert parts or problems or not path.stat().st_size


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    field=st.sampled_from(
        ["player", "state", "actions", "chosen", "reward", "log_prob", "critic_state", "action_features"]
    ),
    value=json_values,
)
@example(field="log_prob", value=3.4028235677973366e38)  # finite, and too large for float32
def test_any_value_in_any_field_is_read_or_named(tmp_path_factory, field, value):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    made = record()
    made["steps"][1][field] = value
    parts, problems = read_all(write_lines(path, record(), made))
    assert sum(map(len, parts)) + len(problems) == 2 and parts[0].ordinal_E[0] == 0
    for part in parts:
        part.episodes().check()


def test_a_damaged_archive_gives_its_beginning(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record()).encode() + b"\n") + b"\x00" * 50)
    (columns,), (problem,) = read_all(path)
    assert len(columns) == 1 and problem.kind == "damaged" and not problem.harmless


def test_a_file_under_the_wrong_name_or_in_the_wrong_encoding_is_told_how_to_be(tmp_path):
    line = json.dumps(record()).encode() + b"\n"
    for name, content, cure in (
        ("a.jsonl", gzip.compress(line), "A compressed file's name ends in .jsonl.gz"),
        ("a.jsonl", line.decode().encode("utf-16"), "Write UTF-8, not UTF-16"),
        ("a.arrows", line, "Give it a name that ends in .jsonl"),
        ("a.arrows", b"\xef\xbb\xbf" + line, "this is JSON"),
    ):
        (tmp_path / name).write_bytes(content)
        parts, problems = read_all(tmp_path / name)
        assert not parts and cure in str(problems[0])


def test_rewards_that_add_up_beyond_reason_cost_their_episode(tmp_path):
    lists = record()
    del lists["returns"]
    for step in lists["steps"]:
        step["reward"] = [5e14, 0]
    (columns,), (problem,) = read_all(write_lines(tmp_path / "a.jsonl", record(), lists))
    assert len(columns) == 1 and "the rewards of an episode are too large to train with: got 1500000000000000.0" in str(
        problem
    )


@pytest.mark.parametrize(
    ("spoilt", "cure"),
    [
        (lambda line: bytes(np.random.default_rng(0).integers(0, 256, 400, np.uint8)).replace(b"\n", b""), "no text"),
        (lambda line: line.replace(b"toy", b"to\xc5"), "Write text as UTF-8"),
        (lambda line: line.replace(b"toy", "\ud800".encode("utf-8", "surrogatepass")), "half of a surrogate pair"),
        (lambda line: line.replace(b"toy", b"\\ud800"), "Write both halves of a surrogate pair"),
        (lambda line: line[:90] + bytes(30) + line[120:], "The system stopped before the bytes were on the disk"),
        (lambda line: line[:90] + line, "One writer at a time"),
        (lambda line: line.decode().encode("utf-16-be"), "not UTF-16"),
    ],
)
def test_each_kind_of_broken_line_has_a_cure_of_its_own(tmp_path, spoilt, cure):
    line = spoilt(json.dumps(record()).encode())
    (columns,), problems = read_all(write_lines(tmp_path / "a.jsonl", record(), line))
    assert len(columns) == 1 and [cure in str(problem) for problem in problems] == [True], problems


@pytest.mark.parametrize("name", ["A.JSONL", "A.JSONL.GZ", "A.ARROWS"])
def test_names_in_capitals_are_read_and_written(tmp_path, name):
    write(tmp_path / name, columns_of(play(3), "leduc_poker"))
    assert recordings.find([tmp_path]) == [tmp_path / name]
    (columns,), problems = read_all(tmp_path / name)
    assert not problems and len(columns) == 3
    assert (gzip.decompress if name.endswith("GZ") else bytes)((tmp_path / name).read_bytes())


def test_paths_that_are_no_recordings_are_named(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        recordings.find([tmp_path / "none"])
    with pytest.raises(DataError, match="there is no recording"):
        recordings.find([tmp_path])
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(DataError, match="this is no recording"):
        recordings.find([tmp_path / "a.txt"])
    with pytest.raises(DataError, match="no format has this name"):
        recordings.writer(tmp_path / "a.txt")
