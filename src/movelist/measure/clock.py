"""Seconds of a piece of work, and of a matrix product to hold them against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Timer = Callable[[], float]  # seconds that have passed, since whenever
MATMUL_ROWS = 2_048
REPETITION_SECONDS = 0.1


def scaled(timings: list[tuple[int, float]], num_steps: int) -> float:
    """Seconds for `num_steps` from (steps, seconds) of smaller minibatches.

    One timing is scaled in proportion. Two are the ends of a line, drawn on: what does not grow with the steps is
    counted once.

    Example: 0.3 s for 10 steps and 0.5 s for 20 are 0.1 s and 0.02 s a step, so 100 steps take 2.1 s:
        >>> round(scaled([(10, 0.3), (20, 0.5)], 100), 6), scaled([(10, 0.5)], 100)
        (2.1, 5.0)
    """
    size, seconds = timings[-1]
    if len(timings) == 1:
        return seconds * num_steps / size
    smaller, fewer_seconds = timings[0]
    each = max(0.0, seconds - fewer_seconds) / (size - smaller)
    return seconds + each * (num_steps - size)


def clock(work: Callable[[], object], device: torch.device, timer: Timer = time.perf_counter) -> float:
    """Seconds of `work`, to the end of what it started on the device."""
    wait(device)
    started = timer()
    work()
    wait(device)
    return timer() - started


def typical_seconds(work: Callable[[], object], device: torch.device, timer: Timer = time.perf_counter) -> float:
    """The median of a tenth of a second's runs, at least one: a few milliseconds alone would measure chance."""
    seconds = [clock(work, device, timer)]
    while sum(seconds) < REPETITION_SECONDS:
        seconds.append(clock(work, device, timer))
    # A coarse clock (Windows counts the processor's time in 1/64 s) says 0 of most short runs: then the mean is right.
    return statistics.median(seconds) or statistics.fmean(seconds)


def matmul_rate(
    hidden_dim: int, device: torch.device, timer: Timer = time.perf_counter, *, rows: int = MATMUL_ROWS
) -> float:
    """Operations a second of a matrix product as the towers have it, best of three: the most this device gave."""
    left = torch.randn(rows, hidden_dim, device=device)
    right, out = torch.randn(hidden_dim, hidden_dim, device=device), torch.empty_like(left)

    def multiply() -> None:
        for _ in range(10):
            torch.mm(left, right, out=out)

    best = min(clock(multiply, device, timer) for _ in range(3)) or typical_seconds(multiply, device, timer)
    return 10 * 2 * rows * hidden_dim**2 / best


def wait(device: torch.device) -> None:
    """Let the host wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
