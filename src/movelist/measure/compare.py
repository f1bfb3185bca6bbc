"""Two profiles side by side: each figure's ratio, and whether it is more than the noise.

The noise is that of whole updates, whose seconds each profile keeps one by one. Of each profile the standard error of
the median of their logarithms is taken, 1.25 s / sqrt(n) with s the standard deviation; the two errors add as squares,
and twice the sum is the noise: about 95 of 100 comparisons of equal programs stay within it. With medians one slow
update moves the figure little; with s it widens the noise, so that an uneven run claims less, not more.

A timed figure exceeds the noise if its ratio is above exp(noise) or below exp(-noise). Under three updates nothing can
be said about noise. Figures that no clock measured (memory, bytes, counts) have no such noise.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from movelist.measure.findings import Profile
from movelist.measure.verdict import extra_waits

MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, for normal numbers
MIN_UPDATES = 3
# Of the machine: what makes figures another's. Versions are said, too: they are often what is compared.
MACHINE = ("cpu", "cores", "threads", "memory", "device", "platform", "python", "torch", "movelist")
NOT_OF_THE_WORK = ("out", "resume")


@dataclass(frozen=True)
class Row:
    """One figure of both.

    Attributes:
        name: As the texts call it.
        old: Before; None where it was not measured.
        new: After.
        timed: Whether the noise of the clock applies.
        beyond: Whether it moved by more than the noise; None where nobody can tell.
    """

    name: str
    old: float | None
    new: float | None
    timed: bool
    beyond: bool | None

    @property
    def ratio(self) -> float | None:
        """New over old."""
        return self.new / self.old if self.old and self.new is not None else None


@dataclass(frozen=True)
class Comparison:
    """Both, side by side.

    Attributes:
        rows: The figures.
        speed: Steps a second, new over old, by the medians of the updates' seconds.
        noise: As a factor at or above 1: ratios from 1 / noise to noise may be chance. None: too few updates.
        machine: What differs between the machines, old and new by name.
        settings: The same of the settings.
        sources: The two sources, if they differ.
    """

    rows: list[Row]
    speed: float
    noise: float | None
    machine: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    sources: tuple[str, str] | None = None

    @property
    def verdict(self) -> str:
        """ "faster", "slower", "same" (within the noise) or "unknown"."""
        if self.noise is None:
            return "unknown"
        if self.speed > self.noise:
            return "faster"
        return "slower" if self.speed < 1 / self.noise else "same"


def compare(old: Profile, new: Profile) -> Comparison:
    """Put two profiles side by side."""
    error_old, error_new = _log_error(old), _log_error(new)
    noise = None if error_old is None or error_new is None else math.exp(2 * math.hypot(error_old, error_new))
    figures_old, figures_new = _figures(old), _figures(new)
    rows = [_row(name, figures_old[name][0], figures_new[name][0], figures_old[name][1], noise) for name in figures_old]
    return Comparison(
        rows=[row for row in rows if row.old is not None or row.new is not None],
        speed=_median_speed(new) / _median_speed(old),
        noise=noise,
        machine=_differences({name: getattr(old.machine, name) for name in MACHINE},
                             {name: getattr(new.machine, name) for name in MACHINE}),
        settings=_differences(old.settings, new.settings, leave_out=NOT_OF_THE_WORK),
        sources=None if old.source == new.source else (old.source, new.source),
    )  # fmt: skip


def _log_error(profile: Profile) -> float | None:
    """Standard error of the median of the logarithms of the updates' seconds."""
    logs = [math.log(seconds) for seconds in profile.timing.seconds_of_update]
    if len(logs) < MIN_UPDATES:
        return None
    return MEDIAN_ERROR * statistics.stdev(logs) / math.sqrt(len(logs))


def _median_speed(profile: Profile) -> float:
    timing = profile.timing
    return timing.steps / timing.updates / statistics.median(timing.seconds_of_update)


def _row(name: str, old: float | None, new: float | None, timed: bool, noise: float | None) -> Row:
    beyond = None
    if timed and noise is not None and old and new:
        beyond = not 1 / noise <= new / old <= noise
    return Row(name, old, new, timed, beyond)


def _figures(profile: Profile) -> dict[str, tuple[float | None, bool]]:
    """Each figure, and whether the clock's noise is in it; in the order that they are shown."""
    timing, memory, copies = profile.timing, profile.memory, profile.copies
    per_sample = profile.per_sample
    return {
        "steps_per_second": (_median_speed(profile), True),
        "episodes_per_second": (timing.episodes / timing.seconds, True),
        "actions_per_second": (timing.legal_actions / timing.seconds, True),
        "rollout_per_update": (timing.rollout_seconds / timing.updates, True),
        "update_per_update": (timing.update_seconds / timing.updates, True),
        **{
            f"span_{span.name}": (span.host_seconds * timing.seconds / total / timing.updates, True)
            for total in [sum(span.host_seconds for span in profile.spans)]
            for span in profile.spans
            if total
        },
        "efficiency": (profile.compute.efficiency, True),
        "compute_share": (profile.compute.share, False),
        "copies_share": (copies.share if copies else None, False),
        "copied_bytes": (float(copies.to_device_bytes + copies.to_host_bytes) if copies else None, False),
        "waits": (profile.waits.per_update, False),
        "extra_waits": (extra_waits(profile), False),
        "gpu_use": (profile.hardware.gpu_use, False),
        "gpu_busy": (profile.hardware.gpu_busy, False),
        "process_peak": (float(memory.process_peak), False),
        "peak_allocated": (_number(memory.peak_allocated), False),
        "reserved": (_number(memory.reserved), False),
        "steps_per_update": (timing.steps / timing.updates, False),
        "speed_up": (per_sample.ours / per_sample.steps_per_second if per_sample else None, True),
    }


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _differences(
    old: dict[str, Any], new: dict[str, Any], leave_out: tuple[str, ...] = ()
) -> dict[str, tuple[Any, Any]]:
    names = [name for name in {**old, **new} if name not in leave_out]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
