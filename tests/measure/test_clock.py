"""Seconds: scaling and repeating."""

import pytest
import torch

from movelist.measure import clock as module
from movelist.measure.clock import clock, matmul_rate, scaled, typical_seconds

CPU = torch.device("cpu")


def test_one_size_is_scaled_in_proportion() -> None:
    assert scaled([(10, 0.5)], 10) == 0.5
    assert scaled([(10, 0.5)], 100) == 5.0


def test_two_sizes_count_the_fixed_part_once() -> None:
    # 0.1 s, and 0.02 s a step.
    assert scaled([(10, 0.3), (20, 0.5)], 100) == pytest.approx(0.1 + 100 * 0.02)
    assert scaled([(10, 0.5), (20, 0.4)], 100) == 0.4, "chance made the larger one faster: nothing is drawn on"


def test_short_work_is_repeated_and_its_median_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.09, 0.005, 0.01, 1.0])
    monkeypatch.setattr(module, "clock", lambda work, device, timer: next(seconds))
    assert typical_seconds(lambda: None, CPU) == 0.01
    assert next(seconds) == 1.0, "it stopped once a tenth of a second was full"


def test_clock_runs_the_work_once() -> None:
    calls: list[int] = []
    assert clock(lambda: calls.append(1), CPU) >= 0
    assert calls == [1]
    ticks = iter([3.0, 5.5])
    assert clock(lambda: None, CPU, lambda: next(ticks)) == 2.5


def test_matmul_rate_counts_two_operations_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "clock", lambda work, device, timer: 2.0)
    assert matmul_rate(4, CPU) == 10 * 2 * module.MATMUL_ROWS * 4 * 4 / 2.0
    assert matmul_rate(4, CPU, rows=3) == 10 * 2 * 3 * 4 * 4 / 2.0


def test_a_coarse_clock_does_not_say_zero() -> None:
    # Windows counts the processor's time in steps of 1/64 s; each look at this one is 1 ms on.
    looks = iter(range(10**6))

    def coarse() -> float:
        return (next(looks) // 15) / 64  # odd: even would never end inside a run

    assert typical_seconds(lambda: None, CPU, coarse) == pytest.approx(1 / 64 / 15, rel=1.0)
    assert matmul_rate(4, CPU, coarse) > 0
