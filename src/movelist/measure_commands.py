"""`movelist benchmark` and `profile`: their flags, and what they do. Bodies import what they need."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from movelist.core.benchmark_settings import BenchmarkSettings
from movelist.core.command import Command
from movelist.core.errors import DataError
from movelist.core.profile_settings import ProfileSettings
from movelist.core.shell import quoted


@dataclass(frozen=True, kw_only=True)
class Benchmark(BenchmarkSettings):
    """Measure how fast this machine scores lists of legal actions, and how much faster than the usual ways."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


@dataclass(frozen=True, kw_only=True)
class Profile(ProfileSettings):
    """Where the time of a training goes: a short training with the same flags, looked at from several sides.

    Writes profile.json, report.html and a trace to --out, or to a new folder profiles/GAME-DATE-TIME. It leaves no run
    behind.
    """

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


def _benchmark(command: Benchmark, words: Sequence[str]) -> int:
    from movelist.measure.benchmark import benchmark, print_tables

    with contextlib.redirect_stdout(sys.stderr) if command.json else contextlib.nullcontext():
        report = benchmark(command)
        print_tables(report)
    if command.json:
        print(json.dumps(report.to_json(), allow_nan=False))
    return 0 if report.good else 1


def _measure(command: Profile, words: Sequence[str]) -> int:
    if len(command.compare) == 2:
        return _compare(command)
    from movelist.run.signals import break_off_on_signals

    with break_off_on_signals():  # else SIGTERM would leave the temporary folders of what is measured
        return _ratio(command) if command.ratio else _profile(command, words)


def _profile(command: Profile, words: Sequence[str]) -> int:
    import msgspec

    from movelist.measure.advice import advise
    from movelist.measure.compare import compare
    from movelist.measure.findings import read_profile, write_profile
    from movelist.measure.report import write_report
    from movelist.measure.sentences import words as texts_of
    from movelist.measure.texts import comparison_lines, lines
    from movelist.run.presets import command_line, write_preset
    from movelist.run.profile import profile
    from movelist.run.tune import changed, tune_settings

    settings, lang = command.train, command.lang
    texts = texts_of(lang).PROGRESS
    before = read_profile(command.compare[0]) if command.compare else None
    with contextlib.redirect_stdout(sys.stderr) if command.json else contextlib.nullcontext():
        folder = _new_folder(command)
        found = profile(command, folder, command=f"movelist {' '.join(map(quoted, words))}", say=_say)
        if command.tune:
            found = tune_settings(found, settings, seconds=command.tune_seconds, say=_say, lang=lang)
        found = replace(found, advice=advise(found))
        write_profile(found, folder / "profile.json")
        if command.report:
            write_report(found, folder / "report.html", lang=lang, before=before)
        _say("\n".join(["", *lines(found, lang), ""]))
        if before:
            _say("\n".join([*comparison_lines(compare(before, found), lang), ""]))
        if found.tuned:
            write_preset(changed(settings, found.tuned), folder / "preset.json")
            _say(texts["preset"].format(file=quoted(folder / "preset.json")))
            _say(texts["flags"].format(command=command_line(settings.to_flat(), found.tuned)))
            if {"batch_size", "update_frequency"} & set(found.tuned):
                _say(texts["learning"])
        elif command.tune:
            _say(texts["nothing"])
        names = ", ".join(sorted(file.name for file in folder.iterdir()))
        _say(texts["files"].format(folder=quoted(folder), names=names))
    if command.json:
        print(json.dumps(msgspec.to_builtins(found), allow_nan=False))
    return 0


def _compare(command: Profile) -> int:
    from movelist.measure.compare import compare
    from movelist.measure.findings import read_profile
    from movelist.measure.texts import comparison_lines

    old, new = map(read_profile, command.compare)
    comparison = compare(old, new)
    if command.json:
        figures = [{**asdict(row), "ratio": row.ratio} for row in comparison.rows]
        print(json.dumps({**asdict(comparison), "rows": figures, "verdict": comparison.verdict}, allow_nan=False))
    else:
        print("\n".join(comparison_lines(comparison, command.lang)))
    return 0


def _ratio(command: Profile) -> int:
    from movelist.measure.sentences import words
    from movelist.run.presets import OF_A_RUN, preset
    from movelist.run.tune import ratio_to_preset

    name = command.ratio or ""
    settings = command.train
    values = {key: value for key, value in preset(name, settings.run.device).items() if key not in OF_A_RUN}
    with contextlib.redirect_stdout(sys.stderr) if command.json else contextlib.nullcontext():
        texts = words(command.lang).PROGRESS
        _say(texts["ratio"].format(preset=name, seconds=command.tune_seconds / 4))
        result = ratio_to_preset(settings, values, seconds=command.tune_seconds / 4, say=_say)
        found = {"low": result.ratio_low, "high": result.ratio_high, "pairs": result.runs}
        _say(texts["ratio_found"].format(preset=name, ratio=result.ratio, **found))
    if command.json:
        print(json.dumps(asdict(result), allow_nan=False))
    return 0


def _new_folder(command: Profile) -> Path:
    """Where the files go; it is made once nothing refused the settings.

    Raises:
        DataError: It holds a profile already.
    """
    given = command.train.run.out
    game = "".join(letter if letter.isalnum() else "-" for letter in command.train.game or "profile").strip("-")
    folder = given or Path("profiles", f"{game}-{time.strftime('%Y%m%d-%H%M%S')}")
    if (folder / "profile.json").exists():
        raise DataError("the folder already holds a profile", got=str(folder), do="Choose another with --out.")
    return folder


def _say(text: str) -> None:
    print(text, flush=True)


COMMANDS = (
    Command("benchmark", Benchmark, _benchmark),
    Command("profile", Profile, _measure, default=lambda training: Profile(train=training)),
)
