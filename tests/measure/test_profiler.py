"""The clock behind the spans, by a clock that is set by hand; waits by their lines; and nothing left behind."""

import inspect
import itertools
import threading
from pathlib import Path

import pytest
import torch

from movelist.core import metrics
from movelist.core.metrics import span
from movelist.measure.findings import SPANS
from movelist.measure.profiler import SpanClock, describe_machine, statement, wait_findings
from movelist.measure.waits import Waits, count_waits

CPU = torch.device("cpu")


class Time:
    """Passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def clock(time: Time) -> SpanClock:
    return SpanClock(CPU, timer=time)


def host(clock: SpanClock) -> dict[str, float]:
    """Spans that took time."""
    return {one.name: one.host_seconds for one in clock.spans() if one.host_seconds}


def test_a_span_inside_another_counts_once(time: Time, clock: SpanClock) -> None:
    with clock.running():
        time.now += 1
        with span("forward"):
            time.now += 2
            with span("copy"):
                time.now += 4
            time.now += 8
            with span("copy"):
                time.now += 16
        time.now += 32
    time.now += 1000
    assert host(clock) == {"idle": 33, "forward": 10, "copy": 20}
    assert clock.total == 63
    assert clock.entered == {"forward": 1, "copy": 2}


def test_shares_sum_to_one_in_the_order_of_the_list(time: Time, clock: SpanClock) -> None:
    with clock.running():
        for seconds, name in enumerate(SPANS[:-1], 1):
            with span(name):
                time.now += seconds / 7
    assert [one.name for one in clock.spans()] == list(SPANS)
    assert sum(one.share for one in clock.spans()) == pytest.approx(1.0, abs=1e-12)
    assert all(one.device_seconds is None for one in clock.spans())


def test_reads_and_names_of_ones_own_are_idle(time: Time, clock: SpanClock) -> None:
    with clock.running(), span("game"):
        with span("read"):
            time.now += 3
        with span("my own"):
            time.now += 4
        time.now += 5
    assert host(clock) == {"idle": 7, "game": 5}


def test_blocks_add_up_without_what_lies_between(time: Time, clock: SpanClock) -> None:
    for seconds in (1, 2):
        with clock.running(), span("plan"):
            time.now += seconds
        time.now += 100
    assert host(clock) == {"plan": 3}


def test_an_error_ends_the_spans_and_takes_the_hook_away(time: Time, clock: SpanClock) -> None:
    with pytest.raises(ZeroDivisionError), clock.running(), span("loss"):
        time.now += 1
        with span("copy"):
            time.now += 2
            raise ZeroDivisionError
    assert metrics._span_hook is None
    assert host(clock) == {"loss": 1, "copy": 2}
    with clock.running():
        time.now += 4
    assert host(clock) == {"loss": 1, "copy": 2, "idle": 4}


def test_spans_of_other_threads_are_theirs(time: Time, clock: SpanClock) -> None:
    def other() -> None:
        with span("load"):
            time.now += 5

    with clock.running(), span("game"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert host(clock) == {"game": 5}


def test_no_look_costs_no_time_at_all(clock: SpanClock) -> None:
    assert clock.total == 0
    assert [one.share for one in clock.spans()] == [0.0] * len(SPANS)


def test_the_device_is_timed_between_events_that_are_read_late(time: Time) -> None:
    class Event:
        """Happens on the device 10 ms after the one before; may be asked once all is done."""

        count = itertools.count()
        done = False

        def record(self) -> None:
            self.milliseconds = 10.0 * next(Event.count)

        def synchronize(self) -> None:
            Event.done = True

        def elapsed_time(self, later: "Event") -> float:
            assert Event.done
            return later.milliseconds - self.milliseconds

    clock = SpanClock(CPU, timer=time, new_event=Event)
    with clock.running(), span("forward"), span("copy"):
        pass
    assert not Event.done
    with clock.running():
        pass
    seconds = {one.name: one.device_seconds for one in clock.spans() if one.device_seconds}
    # Borders: idle | forward | copy | forward | idle, and in the second block idle; nothing between the blocks.
    assert seconds == pytest.approx({"idle": 0.03, "forward": 0.02, "copy": 0.01})


# --- Waits.


def test_a_wait_of_the_users_code_is_shown_with_its_line() -> None:
    x = torch.ones(3)
    with count_waits() as waits:
        first = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        x.sum().item()
        for _ in range(4):
            bool(x[0] > 0)
    found = wait_findings(waits, Waits(), ["a note"])
    assert [(Path(place.file).name, place.line - first, place.source) for place in found.places] == [
        ("test_profiler.py", 0, "x.sum().item()"),
        ("test_profiler.py", 2, "bool(x[0] > 0)"),
    ]
    assert [(place.kind, place.count, place.known) for place in found.places] == [
        (".item()", 1.0, False),
        ("bool(tensor)", 4.0, False),
    ]
    assert (found.per_update, found.rollout) == (5.0, [])
    assert found.unseen[-1] == "a note"


def test_a_comment_alone_makes_no_wait_a_known_one() -> None:
    x = torch.ones(3)
    with count_waits() as waits:
        x.tolist()  # WAIT: values
    (place,) = wait_findings(waits, Waits(), []).places
    assert place.source == "x.tolist()  # WAIT: values"
    assert not place.known


def test_a_statement_of_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = [\n    1,\n    2,\n]  # WAIT: why\ny = 3\n", encoding="utf-8")
    assert statement(str(file), 2) == "x = [\n    1,\n    2,\n]  # WAIT: why"
    assert statement(str(file), 5) == "y = 3"
    broken = tmp_path / "b.py"
    broken.write_text("%magic\nx\n", encoding="utf-8")
    assert statement(str(broken), 1) == "%magic"
    assert statement(str(tmp_path / "nowhere.py"), 1) == ""


def test_the_machine_is_described() -> None:
    machine = describe_machine(CPU)
    assert (machine.device, machine.device_memory) == ("cpu", None)
    assert machine.cores >= 1 and machine.threads >= 1 and machine.memory > 1 << 28
    assert machine.torch == torch.__version__
