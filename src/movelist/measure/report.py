"""A profile as one HTML page: nothing is loaded from anywhere, and no script runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from movelist.data.whole_file import write_whole
from movelist.measure import sentences as say
from movelist.measure import verdict
from movelist.measure.advice import flag_texts
from movelist.measure.compare import Comparison, Row, compare
from movelist.measure.findings import SPANS, Profile
from movelist.measure.sentences import amount, words

TEMPLATES = Path(__file__).parent / "templates"
FARTHEST = 100.0  # times: an interval of two pairs may have no end at all
WIDE = 1000.0  # the inner width of pictures; the page stretches them
# A higher figure is good news for these, bad news for times, waits and memory.
HIGHER_IS_BETTER = ("steps_per_second", "episodes_per_second", "actions_per_second")


def write_report(profile: Profile, path: Path, *, lang: str = "en", before: Profile | None = None) -> None:
    """Write the page as a whole.

    Args:
        profile: What was found.
        path: The file.
        lang: "en" or "zh".
        before: An older profile, to put beside it.

    Raises:
        SettingsError: There are no texts in this language.
    """
    page = report(profile, lang=lang, before=before).encode("utf-8", "backslashreplace")
    write_whole(path, lambda file: file.write(page))


def report(profile: Profile, *, lang: str = "en", before: Profile | None = None) -> str:
    """The page as text."""
    texts = words(lang)
    comparison = _comparison(compare(before, profile), lang) if before else None
    return page_of("report.html.j2").render(
        profile=profile,
        texts=texts,
        page=texts.PAGE,
        spans=SPANS,
        amount=amount,
        comparison=comparison,
        **_numbers(profile),
        **_sentences(profile, lang),
        **_tables(profile, lang),
        **_pictures(profile, lang),
    )


def page_of(template: str) -> jinja2.Template:
    """A page that is to be filled in."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,  # paths, commands and source lines are anybody's
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template)


# --- Numbers that carry their exact value


def derived_numbers(profile: Profile) -> dict[str, float]:
    """Numbers of the page that profile.json holds as two others."""
    timing = profile.timing
    goals = {f"goal.{row.kind}": row.value for row in verdict.criteria(profile) if row.value is not None}
    return goals | {
        "episodes_per_second": timing.episodes / timing.seconds,
        "steps_per_second": timing.steps / timing.seconds,
        "actions_per_second": timing.legal_actions / timing.seconds,
    }


def _numbers(profile: Profile) -> dict[str, Any]:
    plain, derived = msgspec.to_builtins(profile), derived_numbers(profile)

    def num(key: str, text: str) -> Markup:
        value = plain
        for part in key.split("."):
            value = value[int(part)] if isinstance(value, list | tuple) else value[part]
        return Markup('<data data-key="{}" value="{}">{}</data>').format(key, value, text)

    def by_name(name: str, text: str) -> Markup:
        return Markup('<data data-derived="{}" value="{}">{}</data>').format(name, derived[name], text)

    return {"num": num, "derived": by_name, "rates": {name: amount(value) for name, value in derived.items()}}


# --- Words


def _sentences(profile: Profile, lang: str) -> dict[str, Any]:
    return {
        "verdict": say.verdict_text(profile, lang),
        "memory": say.memory_opening(profile, lang),
        "warnings": say.warning_texts(profile, lang),
        "per_sample": say.per_sample_text(profile, lang),
        "source": say.source_text(profile, lang),
        "halves": say.halves_text(profile, lang),
        "waits": say.waits_text(profile, lang),
        "rollout": say.rollout_waits_text(profile, lang),
        "unseen": say.unseen_texts(profile, lang),
        "shapes": list(say.shape_texts(profile, lang)),
        "device": [*say.device_texts(profile, lang), *say.memory_texts(profile, lang), say.looks_text(profile, lang)],
        "machine": say.machine_text(profile, lang),
        "tuned": flag_texts(profile.tuned or {}),
        "tuned_ratio": say.tuned_ratio(profile, lang),
    }


def _tables(profile: Profile, lang: str) -> dict[str, Any]:
    return {
        "advice": [
            {
                "flags": say.advice_flags(advice, profile, lang),
                "why": say.advice_reason(advice, lang),
                "tried": say.advice_tried(advice, lang),
                "ratio": advice.ratio,
            }
            for advice in profile.advice
        ],
        "criteria": [_criterion(row, lang) for row in verdict.criteria(profile)],
        "places": [
            {
                "where": f"{place.file}:{place.line}",
                "source": place.source.strip(),
                "kind": say.detector_text(place.kind, lang),
                "count": place.count,
                "known": place.known,
                "needed": say.place_needed(place, lang),
            }
            for place in profile.waits.places
        ],
    }


def _criterion(row: verdict.Criterion, lang: str) -> dict[str, Any]:
    texts = words(lang)
    to_do = {"met": "", "missed": texts.TO_DO[row.kind], "absent": texts.ABSENT[row.kind]}[row.outcome]
    return {
        "kind": row.kind,
        "value": row.value,
        "name": texts.CRITERIA[row.kind],
        "text": say.criterion_value(row.kind, row.value, lang),
        "goal": texts.GOALS[row.kind],
        "outcome": row.outcome,
        "outcome_text": texts.OUTCOMES[row.outcome],
        "to_do": to_do,
    }


def _comparison(comparison: Comparison, lang: str) -> dict[str, Any]:
    texts = words(lang)
    rule = texts.COMPARE["rule"].format(noise=comparison.noise) if comparison.noise is not None else ""
    return {
        "verdict": say.comparison_verdict(comparison, lang),
        "warnings": say.comparison_warnings(comparison, lang),
        "rule": rule,
        "rows": [_comparison_row(row, lang) for row in comparison.rows],
    }


def _comparison_row(row: Row, lang: str) -> dict[str, str]:
    colour = ""
    if row.beyond and row.old is not None and row.new is not None:
        colour = "good" if (row.new > row.old) == (row.name in HIGHER_IS_BETTER) else "bad"
    return {
        "name": words(lang).FIGURES[row.name],
        "old": say.figure(row.name, row.old),
        "new": say.figure(row.name, row.new),
        "ratio": "" if row.ratio is None else f"{row.ratio:.2f}",
        "beyond": say.row_beyond(row, lang),
        "colour": colour,
    }


# --- Pictures: places and widths of lines and bars


def _pictures(profile: Profile, lang: str) -> dict[str, Any]:
    return {
        "bars": _bars(profile, lang),
        "on_device": _on_device(profile),
        "spark": _spark(profile.timing.seconds_of_update),
        "histogram": _histogram(profile),
        "trials": _trials(profile, lang),
    }


def _on_device(profile: Profile) -> bool:
    return any(span.device_seconds is not None for span in profile.spans)


def _bars(profile: Profile, lang: str) -> list[dict[str, Any]]:
    """One bar of the host's time, and one of the device's if it was seen."""
    page = words(lang).PAGE
    bars = [_bar(page["host"], [(span.name, span.share) for span in profile.spans], lang)]
    total = sum(span.device_seconds or 0.0 for span in profile.spans)
    if total:
        shares = [(span.name, (span.device_seconds or 0.0) / total) for span in profile.spans]
        bars.append(_bar(page["device"], shares, lang))
    return bars


def _bar(name: str, shares: Sequence[tuple[str, float]], lang: str) -> dict[str, Any]:
    names = words(lang).SPANS
    parts, x = [], 0.0
    for span, share in shares:
        title = f"{names[span]} {share:.1%}"
        parts.append({"name": span, "x": f"{x:.2f}", "width": f"{WIDE * share:.2f}", "title": title})
        x += WIDE * share
    return {"name": name, "parts": parts, "label": ", ".join(part["title"] for part in parts)}


def _spark(seconds: Sequence[float]) -> dict[str, str] | None:
    """The updates' seconds as a line from 0 to a tenth above the longest, and their median."""
    if len(seconds) < 2:
        return None
    top = 1.1 * max(seconds)

    def y(value: float) -> str:
        return f"{100 * (1 - value / top):.2f}"

    places = [f"{WIDE * number / (len(seconds) - 1):.1f} {y(value)}" for number, value in enumerate(seconds)]
    return {"path": "M" + " L".join(places), "median": y(statistics.median(seconds))}


def _histogram(profile: Profile) -> list[dict[str, Any]]:
    histogram = profile.shapes.histogram
    total, most = sum(row[2] for row in histogram), max((row[2] for row in histogram), default=0)
    return [
        {
            "name": say.class_text(shortest, longest),
            "steps": steps,
            "share": f"{steps / total:.1%}",
            "width": f"{100 * steps / most:.2f}",
        }
        for shortest, longest, steps in histogram
        if total
    ]


def _trials(profile: Profile, lang: str) -> list[dict[str, Any]]:
    """Each trial with its interval on one logarithmic axis, on which twice and half as fast are equally far from 1."""
    ends = [1.0, *(end for trial in profile.trials for end in (trial.ratio_low, trial.ratio_high))]
    low, high = max(min(ends), 1 / FARTHEST) / 1.05, min(max(ends), FARTHEST) * 1.05

    def x(ratio: float) -> str:
        return f"{WIDE * math.log(min(max(ratio, low), high) / low) / math.log(high / low):.1f}"

    return [
        {
            "changes": flag_texts(trial.changes),
            "on_top": flag_texts(trial.against),
            "ratio": f"{trial.ratio:.2f}",
            "spread": " - ".join(map(say.ratio_text, (trial.ratio_low, trial.ratio_high))),
            "steps": amount(trial.steps_per_second),
            "one": x(1.0),
            "low": x(trial.ratio_low),
            "middle": x(trial.ratio),
            "high": x(trial.ratio_high),
            "outcome": say.trial_outcome(trial, lang),
            "colour": "good" if trial.helped else "bad" if trial.ratio_high < 1.0 else "",
        }
        for trial in profile.trials
    ]
