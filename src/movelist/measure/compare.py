"""Two profiles side by side: each figure's ratio, and whether it is more than the noise.

The noise is that of whole updates, whose seconds each profile keeps one by one. Of each profile the standard error of
the median of their logarithms is taken, 1.25 s / sqrt(n) with s the standard deviation; the two errors add as squares,
and twice the sum is the noise: about 95 of 100 comparisons of equal programs stay within it. With medians one slow
update moves the figure little; with s it widens the noise, so that an uneven run claims less, not more.

A rate exceeds the noise if its ratio is above exp(noise) or below exp(-noise). A part of an update, a span for example,
exceeds it if its time for a thousand steps moved by more than the noise of all that they take: nobody measured how much
a part varies by itself, and it cannot be told better than the whole. Under three updates nothing can be said about
noise, and other figures (memory, bytes, counts, rates that were measured apart) have none that is known here.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from movelist.measure.findings import Profile
from movelist.measure.verdict import extra_waits

MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, for normal numbers
MIN_UPDATES = 3
Noise = Literal["rate", "part"] | None
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
        noise: What the noise of the updates means for it: of a "rate", a "part" of an update, or None.
        beyond: Whether it moved by more than the noise; None where nobody can tell.
    """

    name: str
    old: float | None
    new: float | None
    noise: Noise
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
    longest = max(_for_steps(profile, profile.timing.seconds) for profile in (old, new))
    rows = []
    for name, (value, kind) in figures_old.items():
        after = figures_new[name][0] if name in figures_new else None
        if value is not None or after is not None:
            rows.append(Row(name, value, after, kind, _beyond(kind, value, after, noise, longest)))
    return Comparison(
        rows=rows,
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


def _for_steps(profile: Profile, seconds: float) -> float:
    """Milliseconds for a thousand steps: updates of different sizes can be compared."""
    return 1e6 * seconds / profile.timing.steps


def _beyond(kind: Noise, old: float | None, new: float | None, noise: float | None, whole: float) -> bool | None:
    """Whether a figure moved by more than the noise; see the top of this module."""
    if kind is None or noise is None or old is None or new is None:
        return None
    if kind == "part":
        return abs(new - old) > (noise - 1) * whole
    return not 1 / noise <= new / old <= noise


def _figures(profile: Profile) -> dict[str, tuple[float | None, Noise]]:
    """Each figure, and what the noise means for it; in the order that they are shown."""
    timing, memory, copies = profile.timing, profile.memory, profile.copies
    per_sample = profile.per_sample
    return {
        "steps_per_second": (_median_speed(profile), "rate"),
        "episodes_per_second": (timing.episodes / timing.seconds, "rate"),
        "actions_per_second": (timing.legal_actions / timing.seconds, "rate"),
        "rollout": (_for_steps(profile, timing.rollout_seconds), "part"),
        "update": (_for_steps(profile, timing.update_seconds), "part"),
        **{f"span_{span.name}": (_for_steps(profile, span.share * timing.seconds), "part") for span in profile.spans},
        "efficiency": (profile.compute.efficiency, None),
        "compute_share": (profile.compute.share, None),
        "copies_share": (copies.share if copies else None, None),
        "copied_bytes": (float(copies.to_device_bytes + copies.to_host_bytes) if copies else None, None),
        "waits": (profile.waits.per_update, None),
        "extra_waits": (extra_waits(profile), None),
        "gpu_use": (profile.hardware.gpu_use, None),
        "gpu_busy": (profile.hardware.gpu_busy, None),
        "process_peak": (float(memory.process_peak), None),
        "peak_allocated": (_number(memory.peak_allocated), None),
        "reserved": (_number(memory.reserved), None),
        "steps_per_update": (timing.steps / timing.updates, None),
        "speed_up": (per_sample.ours / per_sample.steps_per_second if per_sample else None, None),
    }


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _differences(
    old: dict[str, Any], new: dict[str, Any], leave_out: tuple[str, ...] = ()
) -> dict[str, tuple[Any, Any]]:
    names = [name for name in {**old, **new} if name not in leave_out]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
