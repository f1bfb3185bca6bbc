"""Sentences about a profile and about two of them, in English or Chinese. All of them can be written in gbk."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from types import ModuleType
from typing import Literal

from movelist.core.errors import SettingsError
from movelist.core.shell import quoted
from movelist.measure import texts_en, texts_zh, verdict
from movelist.measure.advice import flag_texts
from movelist.measure.compare import Comparison, Row
from movelist.measure.findings import Advice, Profile, Trial, WaitPlace

Language = Literal["en", "zh"]
WORDS: dict[str, ModuleType] = {"en": texts_en, "zh": texts_zh}
SHARES = ("efficiency", "compute_share", "copies_share", "gpu_use", "gpu_busy")
MEMORY = ("process_peak", "peak_allocated", "reserved")
REHEARSAL = "no GPU here: "  # how the detector begins to say so; it is said already


def words(lang: str) -> ModuleType:
    """The texts of a language.

    Raises:
        SettingsError: There are none in it.
    """
    if lang not in WORDS:
        raise SettingsError("--lang cannot be used", got=lang, expected="en or zh")
    return WORDS[lang]


# --- Numbers


def amount(number: float) -> str:
    """Three digits that count, and no fraction from 100 on."""
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}" if abs(number) >= 0.1 else f"{number:.3g}"


def ratio_text(ratio: float) -> str:
    """An end of an interval; two pairs that differ much leave it open."""
    return f"{ratio:.2f}" if ratio < 1000 else "..."


def gigabytes(num_bytes: float) -> str:
    """In units of 2^30 bytes, without the unit."""
    return f"{num_bytes / (1 << 30):,.2f}"


def megabytes(num_bytes: float) -> str:
    """In units of 2^20 bytes, without the unit."""
    return amount(num_bytes / (1 << 20))


def figure(name: str, number: float | None) -> str:
    """One figure of a comparison as text: shares as per cent, memory in GB, copies in MB, all else as it is."""
    if number is None:
        return "-"
    if name in SHARES:
        return f"{number:.1%}"
    if name in MEMORY:
        return gigabytes(number)
    return megabytes(number) if name == "copied_bytes" else amount(number)


# --- Sentences


def verdict_text(profile: Profile, lang: str) -> str:
    """What bounds the training, in one sentence."""
    found = verdict.limit(profile)
    return str(words(lang).VERDICTS[found.kind].format(**found.numbers))


def warning_texts(profile: Profile, lang: str) -> list[str]:
    """Each warning as a sentence."""
    texts = words(lang)
    said = []
    for found in verdict.warnings(profile):
        numbers = dict(found.numbers)
        if found.kind == "look":
            numbers["look"] = texts.LOOKS.get(numbers["look"], numbers["look"])
        said.append(texts.WARNINGS[found.kind].format(**numbers))
    return said


def tuned_ratio(profile: Profile, lang: str) -> str:
    """What the settings of --tune did together, if that was their last trial; begins with a space."""
    trial = profile.trials[-1] if profile.trials else None
    if trial is None or trial.changes != profile.tuned:
        return ""
    text = words(lang).LINES["tuned_ratio"]
    return str(text.format(ratio=trial.ratio, low=ratio_text(trial.ratio_low), high=ratio_text(trial.ratio_high)))


def advice_flags(advice: Advice, profile: Profile, lang: str) -> list[str]:
    """What to type for a piece of advice: flags, or the command that makes a store."""
    if advice.kind != "loading":
        return flag_texts(advice.changes)
    data = " ".join(map(quoted, profile.settings["data"]))
    return [str(words(lang).LINES["convert"].format(data=data))]


def advice_reason(advice: Advice, lang: str) -> str:
    """Why."""
    return str(words(lang).ADVICE[advice.kind].format(**advice.numbers))


def advice_tried(advice: Advice, lang: str) -> str:
    """What it did when it was tried, or that it was not."""
    texts = words(lang).LINES
    if advice.ratio is None:  # what --tune cannot try is said without it
        if "together" in advice.numbers:
            numbers = advice.numbers
            return str(texts["tried_together"].format(ratio=numbers["together"], others=numbers["others"]))
        return str(texts["to_be_done" if advice.kind == "loading" else "not_tried"])
    if on_top := advice.numbers.get("on_top"):
        return str(texts["tried_on_top"].format(ratio=advice.ratio, others=on_top))
    return str(texts["tried"].format(ratio=advice.ratio))


def detector_text(text: str, lang: str) -> str:
    """What the wait detector says, in this language where it is known."""
    for pattern, translated in words(lang).DETECTOR.items():
        if re.fullmatch(pattern, text):
            return re.sub(pattern, translated, text)
    return text.removeprefix("not seen: ")


def unseen_texts(profile: Profile, lang: str) -> list[str]:
    """What the wait detector cannot see; that there is no GPU is said elsewhere."""
    return [detector_text(text, lang) for text in profile.waits.unseen if not text.startswith(REHEARSAL)]


def criterion_value(kind: str, value: float | None, lang: str) -> str:
    """A measured value of the table of goals."""
    if value is None:
        return str(words(lang).LINES["unknown"])
    return str(words(lang).LINES["times"].format(ratio=amount(value))) if kind == "speed_up" else f"{value:.1%}"


def trial_changes(trial: Trial, lang: str) -> str:
    """What was changed, and what both sides had already."""
    changes, on_top = " ".join(flag_texts(trial.changes)), " ".join(flag_texts(trial.against))
    return str(words(lang).LINES["on_top"].format(changes=changes, others=on_top)) if on_top else changes


def trial_outcome(trial: Trial, lang: str) -> str:
    """Whether it helped."""
    kind = "helped" if trial.helped else "hurt" if trial.ratio_high < 1.0 else "within"
    return str(words(lang).LINES[kind])


def source_text(profile: Profile, lang: str) -> str:
    """What was trained on, and how large an update is."""
    texts, timing = words(lang).LINES, profile.timing
    seconds = timing.seconds_of_update
    text = texts["source"].format(
        source=profile.source,
        updates=timing.updates,
        episodes=amount(timing.episodes / timing.updates),
        steps=amount(timing.steps / timing.updates),
        seconds=amount(timing.seconds / timing.updates),
        spread=statistics.stdev(seconds) / statistics.fmean(seconds) if len(seconds) > 1 else 0.0,
    )
    return str(text)


def halves_text(profile: Profile, lang: str) -> str:
    """Collecting and updating apart."""
    texts, timing = words(lang).LINES, profile.timing
    text = texts["halves"].format(
        rollout=timing.rollout_seconds / timing.seconds,
        rollout_seconds=amount(timing.rollout_seconds),
        update=timing.update_seconds / timing.seconds,
        update_seconds=amount(timing.update_seconds),
    )
    return str(text)


def memory_opening(profile: Profile, lang: str) -> str:
    """The GPU's memory, or that there is no GPU: the one place that says so."""
    texts, memory = words(lang).LINES, profile.memory
    if not verdict.has_gpu(profile):
        return str(texts["no_gpu"].format(peak=gigabytes(memory.process_peak)))
    total = memory.device_total or profile.machine.device_memory
    if memory.allocated is None or not total:
        return str(texts["gpu_memory_unknown"])
    used, share = gigabytes(memory.allocated), memory.allocated / total
    return str(texts["gpu_memory"].format(used=used, all=gigabytes(total), share=share))


def device_texts(profile: Profile, lang: str) -> Iterator[str]:
    """Use, copies and computing, each in a line."""
    texts, hardware, compute, copies = words(lang).LINES, profile.hardware, profile.compute, profile.copies
    if verdict.has_gpu(profile):
        yield from _gpu_use(profile, lang)
    yield texts["cpu_use"].format(cpu=hardware.cpu_use)
    if copies:
        yield texts["copies"].format(
            to_device=megabytes(copies.to_device_bytes),
            to_host=megabytes(copies.to_host_bytes),
            count=copies.count,
            pageable=copies.pageable,
            share=copies.share,
        )
    if compute.share is not None:
        yield texts["compute_share"].format(share=compute.share)
    flops, rate, matmul = (amount(number / 1e9) for number in (compute.flops, compute.rate, compute.matmul_rate))
    yield texts["efficiency"].format(flops=flops, rate=rate, matmul=matmul, efficiency=compute.efficiency)


def _gpu_use(profile: Profile, lang: str) -> Iterator[str]:
    texts, hardware = words(lang).LINES, profile.hardware
    if hardware.gpu_use is not None and hardware.gpu_busy is not None:
        yield texts["use"].format(use=hardware.gpu_use, busy=hardware.gpu_busy, samples=hardware.samples)
    elif hardware.gpu_use is not None:
        yield texts["use_by_driver"].format(use=hardware.gpu_use, samples=hardware.samples)
    elif hardware.gpu_busy is not None:
        yield texts["use_by_events"].format(busy=hardware.gpu_busy)


def memory_texts(profile: Profile, lang: str) -> Iterator[str]:
    """A GPU's memory at the peak, and the process's; without a GPU that is said at the top."""
    texts, memory = words(lang).LINES, profile.memory
    if not verdict.has_gpu(profile):
        return
    if memory.peak_allocated is not None and memory.reserved and memory.device_total:
        yield texts["memory"].format(
            peak=gigabytes(memory.peak_allocated),
            reserved=gigabytes(memory.reserved),
            share=memory.peak_allocated / memory.reserved,
            all=gigabytes(memory.device_total),
            card=memory.reserved / memory.device_total,
        )
    yield texts["process"].format(peak=gigabytes(memory.process_peak))


def waits_text(profile: Profile, lang: str) -> str:
    """How many waits there are."""
    waits = profile.waits
    known = sum(place.count for place in waits.places if place.known)
    kind = "waits_rehearsed" if waits.rehearsal else "waits"
    return str(words(lang).LINES[kind].format(count=amount(waits.per_update), known=amount(known)))


def rollout_waits_text(profile: Profile, lang: str) -> str:
    """How often a policy's choice is read while collecting; empty where nothing is."""
    count = sum(place.count for place in profile.waits.rollout)
    return str(words(lang).LINES["waits_rollout"].format(count=amount(count))) if count else ""


def place_needed(place: WaitPlace, lang: str) -> str:
    """Whether an update needs this wait."""
    return str(words(lang).LINES["known" if place.known else "extra"])


def shape_texts(profile: Profile, lang: str) -> Iterator[str]:
    """Lists and batches, each in a line."""
    texts, shapes = words(lang).LINES, profile.shapes
    yield texts["lists"].format(
        mean=amount(shapes.mean),
        longest=f"{shapes.longest:,}",
        unique=shapes.unique_share,
        padding=amount(shapes.padding),
    )
    kind = "batches" if shapes.states_in_call else "batches_loaded"
    yield texts[kind].format(steps=amount(shapes.steps_in_batch), states=amount(shapes.states_in_call))
    if shapes.recompiles is not None:
        yield texts["recompiles"].format(count=shapes.recompiles)


def class_text(shortest: int, longest: int) -> str:
    """A class of list lengths."""
    return f"{shortest:,}" if shortest == longest else f"{shortest:,}-{longest:,}"


def per_sample_text(profile: Profile, lang: str) -> str:
    """The speed-up over one network call a step; empty where it was not measured."""
    per_sample = profile.per_sample
    if per_sample is None:
        return ""
    ours, base = amount(per_sample.ours), amount(per_sample.steps_per_second)
    ratio = amount(per_sample.ours / per_sample.steps_per_second)
    return str(words(lang).LINES["per_sample"].format(ours=ours, base=base, ratio=ratio))


def looks_text(profile: Profile, lang: str) -> str:
    """How much each look slowed the program down."""
    texts = words(lang)
    parts = [f"{texts.LOOKS.get(look.name, look.name)} {look.ratio:.2f}" for look in profile.looks]
    return str(texts.LINES["looks"].format(looks=texts.LINES["comma"].join(parts)))


def machine_text(profile: Profile, lang: str) -> str:
    """What it was measured on."""
    texts, machine = words(lang).LINES, profile.machine
    facts = {name: getattr(machine, name) for name in ("cpu", "cores", "threads", "platform", "python", "torch")}
    text = texts["machine"].format(**facts, memory=gigabytes(machine.memory), movelist=machine.movelist)
    if machine.device_memory is None:
        return str(text)
    device = texts["machine_gpu"].format(device=machine.device, memory=gigabytes(machine.device_memory))
    return f"{text}{texts['semicolon']}{device}"


# --- Before and after


def comparison_verdict(comparison: Comparison, lang: str) -> str:
    """What came of it, in one sentence."""
    text = words(lang).COMPARE[comparison.verdict]
    return str(text.format(speed=comparison.speed, noise=comparison.noise or 1.0))


def comparison_warnings(comparison: Comparison, lang: str) -> list[str]:
    """Where the two are not of the same thing."""
    texts = words(lang).COMPARE
    said = []
    if comparison.sources:
        said.append(texts["source"].format(old=comparison.sources[0], new=comparison.sources[1]))
    for kind, differences in (("machine", comparison.machine), ("setting", comparison.settings)):
        said += [texts[kind].format(name=name, old=old, new=new) for name, (old, new) in differences.items()]
    return said


def row_beyond(row: Row, lang: str) -> str:
    """Whether a figure moved by more than the noise; empty where nobody can tell."""
    return str(words(lang).COMPARE[{True: "beyond", False: "within", None: "unclear"}[row.beyond]])
