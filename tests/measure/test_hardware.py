"""Looks at the machine from a thread: averages by hand, what `take` gives, and that nothing goes on afterwards."""

import threading

import pytest
import torch

from movelist.measure.hardware import Sample, Sampler, average, prober


def test_uses_are_averaged_and_memory_is_the_highest() -> None:
    got = average([Sample(0.2, 10, 0.5, 7), Sample(0.4, 30, None, 9), Sample(0.6, 20, 1.0, None)])
    assert (got.cpu_use, got.process_memory, got.gpu_use, got.gpu_memory) == (pytest.approx(0.4), 30, 0.75, 9)
    assert average([Sample(1.0, 1)]) == Sample(1.0, 1, None, None)


def test_take_gives_what_came_since_the_last_time() -> None:
    looked = threading.Semaphore(0)
    allowed = threading.Semaphore(0)
    numbers = iter(range(1, 100))

    def probe() -> Sample:
        looked.release()
        allowed.acquire()
        return Sample(0.5, next(numbers))

    sampler = Sampler(probe, 0.0)
    assert sampler.take() == (None, 0)
    with sampler:
        for _ in range(2):  # once the third look begins, two are kept
            looked.acquire()
            allowed.release()
        looked.acquire()
        assert sampler.take() == (Sample(0.5, 2), 2)
        assert sampler.take() == (Sample(0.5, 2), 0), "the latest, and that it is no new one"
        for _ in range(1000):
            allowed.release()
    assert "movelist-sampler" not in {thread.name for thread in threading.enumerate()}


def test_the_thread_ends_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), Sampler(lambda: Sample(0.0, 0), 60.0):
        raise ZeroDivisionError
    assert "movelist-sampler" not in {thread.name for thread in threading.enumerate()}


def test_this_process_can_be_looked_at() -> None:
    sample = prober(torch.device("cpu"))()
    assert 0.0 <= sample.cpu_use <= 1.0
    assert 1 << 20 < sample.process_memory < 1 << 40
    assert (sample.gpu_use, sample.gpu_memory) == (None, None)
