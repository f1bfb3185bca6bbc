"""What a training shows and writes: JSON that every reader takes, TensorBoard events, and lines for any console."""

import errno
import io
import json
import math
import time
from pathlib import Path

import pytest
from rich.console import Console

from movelist.run import growing_file
from movelist.run.log import Log, progress_text

METRICS = {
    "charts/updates": 3.0,
    "charts/SPS": 1234.5,
    "charts/episodic_return_seat_0": -0.25,
    "charts/seconds_left": 125.9,
    "legal/actions_per_second": 65432.1,
    "losses/policy_loss": -0.01,
    "losses/value_loss": 0.5,
    "losses/entropy": 1.25,
    "losses/approx_kl": 0.0123,
}


def terminal(**options):
    """A console that claims to be a terminal, and what it writes."""
    text = io.StringIO()
    return Console(file=text, force_terminal=True, width=100, **options), text


def plain():
    """A console that is a pipe or a file."""
    text = io.StringIO()
    return Console(file=text), text


def rows(folder):
    """metrics.jsonl as a strict reader of JSON sees it."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_without_a_folder_it_keeps_silent_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console, text = terminal()
    with Log(None, tensorboard=True, console=console) as log:
        log.say("a word")
        log.update(100, METRICS, progress=0.1, last=True)
    assert text.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_json_with_null_for_what_is_no_number(tmp_path):
    before = time.time()
    console, _ = plain()
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.update(100, METRICS, progress=0.1)
        log.update(200, {**METRICS, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0}, progress=0.2)
        # Whoever looks while the training goes on sees whole lines.
        assert [row["step"] for row in rows(tmp_path)] == [100, 200]
    first, second = rows(tmp_path)
    assert {name: first[name] for name in METRICS} == METRICS
    assert before - 1 < first["time"] < time.time() + 1
    assert (second["a"], second["b"], second["c"], second["d"]) == (None, None, None, 0.0)


def test_a_second_log_goes_on_in_the_same_file(tmp_path):
    for step in (100, 200):
        with Log(tmp_path, tensorboard=False, console=plain()[0]) as log:
            log.update(step, METRICS, progress=0.1)
    assert [row["step"] for row in rows(tmp_path)] == [100, 200]


def test_tensorboard_has_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Log(tmp_path, tensorboard=True, console=plain()[0]) as log:
        log.update(100, METRICS, progress=0.1)
        log.update(250, {**METRICS, "losses/policy_loss": math.nan, "charts/SPS": 99.0}, progress=0.2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(METRICS)
    speed = [(event.step, event.value) for event in events.Scalars("charts/SPS")]
    assert speed == [(100, 1234.5), (250, 99.0)]
    loss = events.Scalars("losses/policy_loss")
    assert loss[0].value == pytest.approx(-0.01, rel=1e-6)  # float32
    assert math.isnan(loss[1].value)


def test_tensorboard_shows_names_and_values_as_a_text(tmp_path):
    with Log(tmp_path, tensorboard=True, console=plain()[0]) as log:
        log.table(7, "settings", {"lr": 0.001, "game": "斗地主"})
    events = events_of(tmp_path)
    (event,) = events.Tensors("settings")
    assert event.step == 7
    (text,) = event.tensor_proto.string_val
    assert text.decode("utf-8") == "| name | value |\n|---|---|\n| lr | 0.001 |\n| game | 斗地主 |"
    assert events.SummaryMetadata("settings").plugin_data.plugin_name == "text"
    with Log(tmp_path / "none", tensorboard=False, console=plain()[0]) as log:
        log.table(7, "settings", {"lr": 0.001})  # nobody reads it there


def test_no_tensorboard_on_demand(tmp_path):
    with Log(tmp_path, tensorboard=False, console=plain()[0]) as log:
        log.update(100, METRICS, progress=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


# --- The display


def test_one_line_of_progress():
    assert progress_text(12345, METRICS) == (
        "update 3  2:05 left  12,345 steps  1,234 steps/s  65,432 actions/s  return -0.25  entropy 1.25  KL 0.0123"
    )
    without_goal = {name: value for name, value in METRICS.items() if name != "charts/seconds_left"}
    assert progress_text(12345, {**without_goal, "arena/win_rate": 0.876}) == (
        "update 3  beats random 88%  12,345 steps  1,234 steps/s  65,432 actions/s  return -0.25  entropy 1.25"
        "  KL 0.0123"
    )
    assert progress_text(0, {**METRICS, "charts/seconds_left": 7265.0}).startswith("update 3  2:01:05 left")
    assert progress_text(0, {**METRICS, "charts/seconds_left": 3599.0}).startswith("update 3  59:59 left")
    assert progress_text(0, {**METRICS, "charts/seconds_left": 3600.0}).startswith("update 3  1:00:00 left")


def test_progress_of_recorded_policies_is_shown_by_version_and_opponent():
    recorded = {
        "data/policy_version": 12.0,
        "data/win_rate_against_itself": 0.5,
        "data/win_rate_against_human": 0.55,
        "data/win_rate_against_other": 0.7,
        "data/previous_policy_version": 11.0,
        "data/previous_win_rate_against_human": 0.0,
    }
    text = progress_text(1, {**METRICS, **recorded})
    assert "  recorded policy 12 beats human 55% (before 0%)  recorded policy 12 beats other 70%  1 steps" in text
    assert "itself" not in text
    assert "  recorded beats other 70%  " in progress_text(1, {**METRICS, "data/win_rate_against_other": 0.7})


def test_a_narrow_terminal_shows_what_matters_most(tmp_path):
    console, text = terminal(no_color=True)
    console.width = 80
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.update(123_456, {**METRICS, "arena/win_rate": 0.876}, progress=0.25)
    assert " 25% 0:00:00 update 3  2:05 left  beats random 88%  123,456 steps" in text.getvalue()


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console, text = plain()
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.say("hello [bold]x[/bold]")  # no markup: this may be a path
        for seconds, last in [(0, False), (4, False), (1.5, False), (0.1, False), (0.1, True)]:
            now[0] += seconds
            log.update(int(now[0]), METRICS, progress=now[0] / 2000, last=last)
        log.say_all(["one", "two"])
    lines = text.getvalue().splitlines()
    assert lines[0] == "hello [bold]x[/bold]"
    assert [line.split("  ")[1] for line in lines[1:4]] == ["update 3"] * 3
    # The first at once, then at most one in 5 s, and the last one always.
    assert [line.split("  ")[3] for line in lines[1:4]] == ["1,000 steps", "1,005 steps", "1,005 steps"]
    assert lines[1].startswith(" 50%  update 3  ")
    assert lines[4:] == ["one", "two"]
    assert "\x1b" not in text.getvalue()


def test_long_lines_are_not_broken(tmp_path):
    console, text = plain()
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.say("word " * 100)
    assert text.getvalue().count("\n") == 1


@pytest.mark.parametrize("no_color", [False, True])
def test_a_progress_bar_on_a_terminal(tmp_path, no_color):
    console, text = terminal(no_color=no_color)
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.say("before")
        log.update(100, METRICS, progress=0.25)
        log.update(200, {**METRICS, "charts/seconds_left": 0.0}, progress=1.0, last=True)
        log.stop_display()
        log.say("after")
    assert "before" in text.getvalue()
    assert "100%" in text.getvalue()
    assert "update 3  0:00 left" in text.getvalue()
    assert text.getvalue().endswith("after\n")
    assert "\x1b[?25h" in text.getvalue()  # the cursor is back
    colours = [part for part in text.getvalue().split("\x1b[")[1:] if part[:3] in ("31m", "32m", "33m", "36m", "38;")]
    assert not (no_color and colours)


@pytest.mark.parametrize("width", [40, 80, 130, 300])
@pytest.mark.parametrize("encoding", ["ascii", "gbk", "cp437", "utf-8"])
def test_a_progress_bar_on_a_terminal_that_knows_few_letters(tmp_path, encoding, width):
    """A character that the console cannot write would end the training."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)  # strict: it raises
    with Log(tmp_path, tensorboard=False, console=Console(file=file, force_terminal=True, width=width)) as log:
        log.update(100, METRICS, progress=0.25)
        log.say("plain")
        log.update(200, METRICS, progress=0.5)
    assert b"50" in raw.getvalue()
    assert width < 80 or b"update 3  2:05 left" in raw.getvalue()
    assert b"plain" in raw.getvalue()


def test_an_error_gives_the_cursor_back(tmp_path):
    console, text = terminal()
    log = Log(tmp_path, tensorboard=False, console=console)
    with pytest.raises(ZeroDivisionError), log:
        log.update(100, METRICS, progress=0.25)
        raise ZeroDivisionError
    assert "\x1b[?25h" in text.getvalue()
    assert len(rows(tmp_path)) == 1


# --- A full disk


def full_disk(monkeypatch, *, after):
    """Appending to a file fails once `after` bytes are written, in the middle of a piece; returns a switch."""
    original, left = Path.open, [after]

    class Full(io.BufferedWriter):
        def write(self, content):
            part = content[: left[0]]
            left[0] -= len(part)
            super().write(part)
            self.flush()
            if len(part) < len(content):
                raise OSError(errno.ENOSPC, "No space left on device")
            return len(part)

    def open_(path, mode="r", *words, **options):
        return Full(io.FileIO(path, mode)) if mode == "ab" else original(path, mode, *words, **options)

    monkeypatch.setattr(Path, "open", open_)
    return left


def test_a_full_disk_stops_no_training_and_nothing_is_lost_or_written_twice(tmp_path, monkeypatch):
    left = full_disk(monkeypatch, after=10**6)
    console, text = plain()
    with Log(tmp_path, tensorboard=True, console=console) as log:
        log.update(100, METRICS, progress=0.1)
        left[0] = 50
        for step in (200, 300, 400):
            log.update(step, METRICS, progress=0.2)
        assert [row["step"] for row in rows_so_far(tmp_path)] == [100]
        left[0] = 10**6
        log.update(500, METRICS, progress=0.3)
    assert [row["step"] for row in rows(tmp_path)] == [100, 200, 300, 400, 500]
    assert [event.step for event in events_of(tmp_path).Scalars("charts/SPS")] == [100, 200, 300, 400, 500]
    warnings = [line for line in text.getvalue().splitlines() if line.startswith("Warning: ")]
    assert warnings == [
        "Warning: metrics.jsonl cannot be written: No space left on device. The training goes on; what is missing is "
        "written once there is space."
    ]


def test_what_waited_is_tried_once_more_at_the_end(tmp_path, monkeypatch):
    left = full_disk(monkeypatch, after=60)
    with Log(tmp_path, tensorboard=True, console=plain()[0]) as log:
        log.update(100, METRICS, progress=0.1)
        left[0] = 10**6
    assert [row["step"] for row in rows(tmp_path)] == [100]
    assert [event.step for event in events_of(tmp_path).Scalars("charts/SPS")] == [100]


def rows_so_far(folder):
    """The whole lines; the last one may be written in part."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_real_full_disk(tmp_path):
    """/dev/full takes nothing, at the flush."""
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    console, text = plain()
    with Log(tmp_path, tensorboard=False, console=console) as log:
        log.update(100, METRICS, progress=0.1)
    assert "Warning: metrics.jsonl cannot be written: " in text.getvalue()


def test_standard_output_on_a_full_disk(tmp_path):
    """`movelist train > log.txt` on the disk that is full."""

    def failing(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    stream = io.StringIO()
    stream.write = failing
    with Log(tmp_path, tensorboard=False, console=Console(file=stream)) as log:
        log.update(100, METRICS, progress=0.1)
        log.say("Nobody reads this.")
    assert [row["step"] for row in rows(tmp_path)] == [100]


def test_what_waits_for_space_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(growing_file, "MOST_KEPT", 25)
    file = growing_file.GrowingFile(tmp_path / "log")
    left = full_disk(monkeypatch, after=0)
    for piece in (b"first 10.\n", b"second 10\n", b"no place for this\n"):
        with pytest.raises(OSError, match="No space left"):
            file.add(piece)
    left[0] = 10**6
    file.add(b"end.\n")
    assert (tmp_path / "log").read_bytes() == b"first 10.\nsecond 10\nend.\n"


def test_every_update_is_in_tensorboards_file_at_once(tmp_path):
    """A run that is killed must not lack what its checkpoint says is done."""
    with Log(tmp_path, tensorboard=True, console=plain()[0]) as log:
        log.update(100, METRICS, progress=0.1)
        assert [event.step for event in events_of(tmp_path).Scalars("charts/SPS")] == [100]


def test_a_resumed_run_makes_tensorboard_forget_what_came_later(tmp_path):
    for after, steps in [(None, (100, 200, 300)), (100, (210, 310))]:
        with Log(tmp_path, tensorboard=True, console=plain()[0], after=after) as log:
            for step in steps:
                log.update(step, METRICS, progress=0.1)
    assert [event.step for event in events_of(tmp_path).Scalars("charts/SPS")] == [100, 210, 310]


def events_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_a_resumed_run_shows_the_last_match(tmp_path):
    console, text = plain()
    with Log(tmp_path, tensorboard=False, console=console, last_match={"arena/win_rate": 0.75}) as log:
        log.update(100, METRICS, progress=0.1)
    assert "beats random 75%" in text.getvalue()


def test_the_line_says_where_the_time_goes():
    live = {"perf/rollout_share": 0.3, "perf/update_share": 0.7, "perf/wait_share": 0.02}
    machine = {"perf/cpu_use": 0.95, "perf/process_memory": 5.4e8, "perf/gpu_use": 0.5, "perf/gpu_memory": 3e9}
    usual = progress_text(100, METRICS)
    assert progress_text(100, METRICS | live) == f"{usual}  rollout 30%, update 70%, of it waiting 2%"
    assert progress_text(100, METRICS | live | machine) == (
        f"{usual}  rollout 30%, update 70%, of it waiting 2%  GPU 50%, 3.0 GB  CPU 95%, 0.5 GB"
    )
