"""What the terminal shows of a profile, and of two side by side, in English or Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator

from movelist.measure import sentences as say
from movelist.measure import verdict
from movelist.measure.advice import flag_texts
from movelist.measure.compare import Comparison
from movelist.measure.findings import Profile
from movelist.measure.sentences import amount, words

BAR = 24  # letters of a bar at 100 %
# A console in gbk counts letters such as the Chinese ones as two wide.
WIDE = re.compile(r"[\u2e80-\uffef]")


def lines(profile: Profile, lang: str) -> list[str]:
    """Everything that a profile found, from what matters most on. First the block that profile_performance.py is known
    for: seconds and episodes/s, GPU memory, warnings, suggestions."""
    return [
        *_opening(profile, lang),
        say.verdict_text(profile, lang),
        "",
        *_speed(profile, lang),
        *_spans(profile, lang),
        *say.device_texts(profile, lang),
        *say.memory_texts(profile, lang),
        *_waits(profile, lang),
        *_shapes(profile, lang),
        *_goals(profile, lang),
        *_trials(profile, lang),
        *([say.looks_text(profile, lang)] if profile.looks else []),
        say.machine_text(profile, lang),
    ]


def _opening(profile: Profile, lang: str) -> Iterator[str]:
    texts, timing = words(lang).LINES, profile.timing
    yield texts["total"].format(seconds=amount(timing.seconds), episodes=amount(timing.episodes / timing.seconds))
    yield say.memory_opening(profile, lang)
    warned = say.warning_texts(profile, lang)
    yield texts["warnings"] if warned else texts["no_warnings"]
    yield from (f"  ! {text}" for text in warned)
    yield texts["suggestions"] if profile.advice else texts["no_suggestions"]
    for number, advice in enumerate(profile.advice, 1):
        said = {"flag": " ".join(say.advice_flags(advice, profile, lang)), "why": say.advice_reason(advice, lang)}
        yield f"  {number}. " + texts["suggestion"].format(**said, tried=say.advice_tried(advice, lang))
    if profile.tuned:
        flags, ratio = " ".join(flag_texts(profile.tuned)), say.tuned_ratio(profile, lang)
        yield "  " + texts["tuned"].format(flags=flags, ratio=ratio)
    yield ""


def _speed(profile: Profile, lang: str) -> Iterator[str]:
    texts, timing = words(lang).LINES, profile.timing
    yield say.source_text(profile, lang)
    yield texts["speed"].format(
        steps=amount(timing.steps / timing.seconds), actions=amount(timing.legal_actions / timing.seconds)
    )
    yield say.halves_text(profile, lang)


def _spans(profile: Profile, lang: str) -> Iterator[str]:
    texts, names = words(lang).LINES, words(lang).SPANS
    on_device = any(span.device_seconds is not None for span in profile.spans)
    yield texts["spans"].format(device=texts["spans_device"] if on_device else "")
    width, unit = max(map(_width, names.values())), texts["unit"]
    for span in profile.spans:
        device = "" if span.device_seconds is None else f" {amount(span.device_seconds):>8} {unit}"
        bar = "#" * round(BAR * span.share)
        name = names[span.name] + " " * (width - _width(names[span.name]))
        yield f"  {name} {span.share:6.1%} {amount(span.host_seconds):>8} {unit}{device}  {bar}".rstrip()


def _width(text: str) -> int:
    """Columns in a terminal."""
    return len(text) + len(WIDE.findall(text))


def _waits(profile: Profile, lang: str) -> Iterator[str]:
    yield say.waits_text(profile, lang)
    for place in profile.waits.places:
        kind, needed = say.detector_text(place.kind, lang), say.place_needed(place, lang)
        yield f"  {place.file}:{place.line}  {kind}  {amount(place.count)}  {needed}  | {place.source.strip()}"
    if rollout := say.rollout_waits_text(profile, lang):
        yield rollout
        yield from (f"  {place.file}:{place.line}  {amount(place.count)}" for place in profile.waits.rollout)
    if unseen := say.unseen_texts(profile, lang):
        yield words(lang).LINES["unseen"]
        yield from (f"  {text}" for text in unseen)


def _shapes(profile: Profile, lang: str) -> Iterator[str]:
    yield from say.shape_texts(profile, lang)
    histogram = profile.shapes.histogram
    if total := sum(steps for _, _, steps in histogram):
        yield words(lang).LINES["histogram"]
        for shortest, longest, steps in histogram:
            bar = "#" * round(BAR * steps / total)
            yield f"  {say.class_text(shortest, longest):>13} {steps / total:6.1%} {steps:>10,}  {bar}".rstrip()


def _goals(profile: Profile, lang: str) -> Iterator[str]:
    texts = words(lang)
    yield texts.LINES["goals"]
    for row in verdict.criteria(profile):
        outcome = texts.OUTCOMES[row.outcome]
        if row.outcome == "absent":
            outcome = texts.LINES["absent"].format(outcome=outcome, reason=texts.ABSENT[row.kind])
        value = say.criterion_value(row.kind, row.value, lang)
        said = {"name": texts.CRITERIA[row.kind], "value": value, "goal": texts.GOALS[row.kind]}
        yield "  " + texts.LINES["goal"].format(**said, outcome=outcome)
    if profile.per_sample:
        yield "  " + say.per_sample_text(profile, lang)


def _trials(profile: Profile, lang: str) -> Iterator[str]:
    texts = words(lang).LINES
    if profile.trials:
        yield texts["trials"]
    for trial in profile.trials:
        yield "  " + texts["trial"].format(
            changes=say.trial_changes(trial, lang),
            ratio=trial.ratio,
            low=say.ratio_text(trial.ratio_low),
            high=say.ratio_text(trial.ratio_high),
            steps=amount(trial.steps_per_second),
            outcome=say.trial_outcome(trial, lang),
        )


def comparison_lines(comparison: Comparison, lang: str) -> list[str]:
    """Both profiles side by side, for the terminal."""
    texts = words(lang)
    said = [say.comparison_verdict(comparison, lang)]
    said += [f"  ! {text}" for text in say.comparison_warnings(comparison, lang)]
    for row in comparison.rows:
        old, new = say.figure(row.name, row.old), say.figure(row.name, row.new)
        line = "  " + texts.COMPARE["row"].format(name=texts.FIGURES[row.name], old=old, new=new)
        ratio = "" if row.ratio is None else "  " + texts.LINES["times"].format(ratio=f"{row.ratio:.2f}")
        said.append(f"{line}{ratio}  {say.row_beyond(row, lang)}".rstrip())
    if comparison.noise is not None:
        said.append(texts.COMPARE["rule"].format(noise=comparison.noise))
    return said
