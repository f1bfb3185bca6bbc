"""What a training watches of itself: waits by a clock that is set by hand."""

import threading

import pytest
import torch

from movelist.core import metrics
from movelist.core.metrics import span
from movelist.measure.hardware import Sample
from movelist.measure.live import Live

CPU = torch.device("cpu")


class Clock:
    """Shows what it was set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_waits_count_and_only_since_the_update_began() -> None:
    clock = Clock()
    with Live(CPU, timer=clock) as live:
        with span("read"):
            clock.now += 100
        live.begin()
        with span("load"):
            clock.now += 1
        with span("forward"):
            clock.now += 5
            with span("read"):
                clock.now += 2
        assert live.metrics(12.0)["perf/wait_share"] == 0.25  # 1 s and 2 s of 12


def test_a_wait_that_fails_counts_and_the_hook_is_taken_away() -> None:
    clock = Clock()
    with pytest.raises(ZeroDivisionError), Live(CPU, timer=clock) as live:
        with pytest.raises(KeyError), span("read"):
            clock.now += 3
            raise KeyError
        assert live.waited == 3
        raise ZeroDivisionError
    assert metrics._span_hook is None


def test_other_threads_do_not_count() -> None:
    clock = Clock()

    def load() -> None:
        with span("load"):
            clock.now += 9

    with Live(CPU, timer=clock) as live:
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert (clock.now, live.waited) == (9, 0)


def test_the_machine_is_named_where_it_was_looked_at() -> None:
    live = Live(CPU, probe=lambda: Sample(0.5, 2_000, 0.25, 3_000))
    assert set(live.metrics(1.0)) == {"perf/wait_share"}
    live._sampler._samples.append(live._sampler.probe())
    assert live.metrics(1.0) == {
        "perf/wait_share": 0.0,
        "perf/cpu_use": 0.5,
        "perf/process_memory": 2_000.0,
        "perf/gpu_use": 0.25,
        "perf/gpu_memory": 3_000.0,
    }
