"""What the findings of a profile mean: what bounds the training, what deserves a warning, which goals are met.

Numbers in, names and numbers out; the sentences for the names are in texts_en.py and texts_zh.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from movelist.measure.findings import Profile

# Loading is waste: the thread that reads ahead should hide all of it. A quarter of the time is then the first thing to
# mend, however long the update takes. Playing is work, so it has to be half of the time to be called the limit.
LOADING_LIMIT, PLAYING_LIMIT, LOGGING_LIMIT = 0.25, 0.5, 0.2
GPU_BUSY = 0.5  # below it the GPU has nothing to do for most of the time, whatever its use is said to be
GPU_USED = 0.75  # NVML counts any kernel: from here on it looks busy
# Shares of the matrix product rate, below which most of the time is not spent on products. A CPU does the rest of an
# update's operations at nearly that rate, a GPU at the far lower rate of its memory.
CPU_EFFICIENT, GPU_EFFICIENT = 0.3, 0.1
CPU_AMP_WIDTH = 256  # narrower layers lose more by conversions than their products gain (docs/LOG.md)
FEW_EPISODES, FEW_MINIBATCHES = 32, 4  # as the start of a training warns
MANY_GRAPHS = 5  # sizes of 1 and sums above 4,096 terms have graphs of their own; more means a graph for each size
TIGHT = 0.9  # of the card's memory, or the machine's
FRAGMENTED = 0.3  # of the memory kept, in no use even at the peak
LARGE_SHARE = 0.5  # of the card: below it nobody needs what lies unused
LOOKING = 1.25  # times the plain look: above it a look changed what it saw
TIMED_LOOKS = ("spans",)  # their seconds are shown; with a GPU the trace's, too. The look at waits counts, no more
UNEVEN = 0.25  # standard deviation of an update's seconds over their mean

Outcome = Literal["met", "missed", "absent"]


@dataclass(frozen=True)
class Finding:
    """Something worth a sentence: its name, and the numbers that the sentence quotes."""

    kind: str
    numbers: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Criterion:
    """One row of the table of goals. `absent`: it cannot be judged here."""

    kind: str
    value: float | None
    goal: float
    outcome: Outcome


def has_gpu(profile: Profile) -> bool:
    """Whether it was measured on one."""
    return profile.machine.device_memory is not None


def share(profile: Profile, *names: str) -> float:
    """Of all host time, in these spans together."""
    return sum(span.share for span in profile.spans if span.name in names)


def rollout_share(profile: Profile) -> float:
    """Of the time, spent on collecting episodes."""
    return profile.timing.rollout_seconds / profile.timing.seconds


def extra_waits(profile: Profile) -> float:
    """Waits in an update, beyond those that it needs."""
    return sum(place.count for place in profile.waits.places if not place.known)


def steps_per_update(profile: Profile) -> float:
    """Steps trained on in an update."""
    return profile.timing.steps / profile.timing.updates


def episodes_per_update(profile: Profile) -> float:
    """Episodes of an update."""
    return profile.timing.episodes / profile.timing.updates


def minibatches(profile: Profile) -> int:
    """Optimiser steps in an epoch."""
    size = profile.settings["batch_size"] * profile.settings.get("gradient_accumulation_steps", 1)
    return int(-(-steps_per_update(profile) // size))


def gpu_is_idle(profile: Profile) -> bool:
    """A GPU that has nothing to do for most of the time; not if nobody measured it."""
    busy = profile.hardware.gpu_busy
    return has_gpu(profile) and busy is not None and busy < GPU_BUSY


def fragmentation(profile: Profile) -> float:
    """Share of the memory that the allocator keeps and that was in no use even at the peak."""
    reserved, peak = profile.memory.reserved, profile.memory.peak_allocated
    return 1 - peak / reserved if reserved and peak is not None else 0.0


def limit(profile: Profile) -> Finding:
    """What bounds this training: the sentence that comes first.

    Loading and playing come before anything said about the update: a faster update makes nobody wait less for episodes.
    """
    loading, rollout = share(profile, "load"), rollout_share(profile)
    numbers: dict[str, float | str] = {
        "steps": profile.timing.steps / profile.timing.seconds,
        "efficiency": profile.compute.efficiency,
    }
    if loading >= LOADING_LIMIT:
        return Finding("loading", {**numbers, "share": loading})
    if rollout - loading >= PLAYING_LIMIT:
        return Finding("playing", {**numbers, "share": rollout - loading})
    if (logging := share(profile, "logging")) >= LOGGING_LIMIT:
        return Finding("logging", {**numbers, "share": logging})
    if gpu_is_idle(profile):
        numbers["share"] = 1 - (profile.hardware.gpu_busy or 0.0)
        waits = extra_waits(profile)
        return Finding("waiting", {**numbers, "waits": waits}) if waits else Finding("feeding", numbers)
    if profile.copies and profile.copies.share > GOALS["copies"]:
        return Finding("copying", {**numbers, "share": profile.copies.share})
    is_small = profile.compute.efficiency < (GPU_EFFICIENT if has_gpu(profile) else CPU_EFFICIENT)
    return Finding("small" if is_small else "computing", {**numbers, "share": 1 - rollout})


def amp_pays(profile: Profile) -> bool:
    """Whether mixed precision does something on this device and gains more than its conversions cost."""
    wide = has_gpu(profile) or profile.settings["hidden_dim"] >= CPU_AMP_WIDTH
    return profile.machine.amp is not None and wide


def warnings(profile: Profile) -> list[Finding]:
    """What is wrong, or misleads, the gravest first."""
    return [*_device_warnings(profile), *_setting_warnings(profile), *_measuring_warnings(profile)]


def _device_warnings(profile: Profile) -> Iterator[Finding]:
    use, busy = profile.hardware.gpu_use, profile.hardware.gpu_busy
    if gpu_is_idle(profile) and use is not None and busy is not None and use >= GPU_USED:
        yield Finding("idle_though_used", {"use": use, "busy": busy})
    places = [place for place in profile.waits.places if not place.known]
    if places:
        worst = max(places, key=lambda place: place.count)
        where = f"{worst.file}:{worst.line}"
        yield Finding("waits", {"count": extra_waits(profile), "places": len(places), "where": where})
    if profile.copies and profile.copies.share > GOALS["copies"]:
        yield Finding("copies", {"share": profile.copies.share})
    if profile.copies and profile.copies.pageable:
        yield Finding("pageable", {"count": profile.copies.pageable})
    if profile.memory.retries:
        yield Finding("retries", {"count": profile.memory.retries})
    if _used_memory(profile) > TIGHT:
        yield Finding("tight", {"share": _used_memory(profile)})


def _used_memory(profile: Profile) -> float:
    """Share of the card, or without one of the machine."""
    memory = profile.memory
    if has_gpu(profile):
        return memory.reserved / memory.device_total if memory.reserved and memory.device_total else 0.0
    return memory.process_peak / profile.machine.memory


def is_fragmented(profile: Profile) -> bool:
    """Whether giving cached memory back would free something that is needed."""
    return has_gpu(profile) and fragmentation(profile) > FRAGMENTED and _used_memory(profile) > LARGE_SHARE


def _setting_warnings(profile: Profile) -> Iterator[Finding]:
    if (episodes := episodes_per_update(profile)) < FEW_EPISODES:
        yield Finding("few_episodes", {"episodes": episodes})
    if (count := minibatches(profile)) < FEW_MINIBATCHES:
        yield Finding("few_minibatches", {"count": count})
    if profile.settings.get("use_amp") and profile.machine.amp is None:
        yield Finding("amp_without_effect")
    elif profile.settings.get("use_amp") and not amp_pays(profile):
        yield Finding("amp_is_slower", {"hidden": profile.settings["hidden_dim"], "width": CPU_AMP_WIDTH})
    if (profile.shapes.recompiles or 0) > MANY_GRAPHS:
        yield Finding("recompiles", {"count": profile.shapes.recompiles or 0})


def _measuring_warnings(profile: Profile) -> Iterator[Finding]:
    timed = (*TIMED_LOOKS, "trace") if has_gpu(profile) else TIMED_LOOKS
    for look in profile.looks:
        if look.name in timed and look.ratio > LOOKING:
            yield Finding("look", {"look": look.name, "ratio": look.ratio})
    seconds = profile.timing.seconds_of_update
    if len(seconds) > 1 and (spread := statistics.stdev(seconds) / statistics.fmean(seconds)) > UNEVEN:
        yield Finding("uneven", {"spread": spread})


# Goals of the success table; a value meets its goal above it, "copies" below it.
GOALS = {"gpu_use": 0.75, "memory": 0.70, "copies": 0.15, "compute": 0.60, "speed_up": 2.0}


def criteria(profile: Profile) -> list[Criterion]:
    """The table of goals. GPU use is judged by the time that the device was busy where that is known."""
    memory, hardware, per_sample = profile.memory, profile.hardware, profile.per_sample
    peak_share = memory.peak_allocated / memory.reserved if memory.peak_allocated and memory.reserved else None
    values = {
        "gpu_use": hardware.gpu_busy if hardware.gpu_busy is not None else hardware.gpu_use,
        "memory": peak_share,
        "copies": profile.copies.share if profile.copies else None,
        "compute": profile.compute.share,
        "speed_up": per_sample.ours / per_sample.steps_per_second if per_sample else None,
    }
    return [Criterion(kind, value, GOALS[kind], _outcome(kind, value)) for kind, value in values.items()]


def _outcome(kind: str, value: float | None) -> Outcome:
    if value is None:
        return "absent"
    good = value < GOALS[kind] if kind == "copies" else value > GOALS[kind]
    return "met" if good else "missed"
