"""The command line: `movelist train`, `match`, `check` and so on. Bodies import what they need: --help is quick."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from movelist import data_commands, measure_commands, policy_commands
from movelist.core.errors import MovelistError, SettingsError, nearest
from movelist.core.settings import MatchSettings, TrainSettings

COMMANDS = ("train", "match", "check", "record", "convert", "benchmark", "profile", "export", "play")


@dataclass(frozen=True, kw_only=True)
class Match(MatchSettings):
    """Play a trained policy against random players or against another policy."""

    policy: tyro.conf.Positional[str]
    """A run folder, a checkpoint, or an exported file (.onnx, .safetensors). Of a run the newest checkpoint plays, as
    RUN@best its best one. Or, with --game, "random", a bot of your own as file.py:Bot or module:Bot, or
    openspiel:NAME."""

    against: str = "random"
    """Another player, written in the same way, of the same game."""

    game: str | None = None
    """The game; None takes the one that the policy was trained on. Another game is refused."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


Command = (
    TrainSettings | Match | data_commands.DataCommand | measure_commands.MeasureCommand | policy_commands.PolicyCommand
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 good, 1 failed, 2 used wrongly."""
    for stream in (sys.stdout, sys.stderr):
        # A console in gbk cannot print every letter; a question mark is better than a traceback. One in UTF-8 lacks
        # only the bytes of names that are none, and shows their numbers.
        if isinstance(stream, io.TextIOWrapper):
            is_utf_8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="backslashreplace" if is_utf_8 else "replace")
    # Read by OpenMP when torch is loaded. Threads that spin while they wait for each other make a product take a
    # scheduler's slice instead of 5 ms as soon as anything else wants their core; see docs/LOG.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's tracer would write lines of its own to standard error
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(_version())
        return 0
    try:
        code = _run(_parse(arguments), arguments)
        if sys.stdout:  # pythonw on Windows has none
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read it has enough, as `head` does
        with contextlib.suppress(OSError):  # else Python complains as it writes out the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MovelistError as error:
        _say(error)
        return error.exit_code
    except OSError as error:  # the disk is full, a network drive is gone
        _say(error)
        return 1
    except KeyboardInterrupt:
        _say("stopped.")
        return 130


def _run(command: Command, arguments: list[str]) -> int:
    if isinstance(command, data_commands.DataCommand):
        return data_commands.run(command)
    if isinstance(command, measure_commands.MeasureCommand):
        return measure_commands.run(command, arguments)
    if isinstance(command, policy_commands.PolicyCommand):
        return policy_commands.run(command)
    return _match(command) if isinstance(command, Match) else _train(command)


def _say(words: object) -> None:
    """One line on standard error, of the first process only where torchrun started several."""
    if _is_first_process():
        print(f"movelist: {words}", file=sys.stderr)


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _parse(arguments: list[str]) -> Command:
    """Read the command line; tyro's own errors become one line.

    Raises:
        SettingsError: The words are off.
        SystemExit: --help was answered.
    """
    talk = io.StringIO()
    defaults = _defaults(arguments)
    # A training may hold settings that a profile refuses, such as --watch.
    profiled = defaults if arguments[:1] == ["profile"] else TrainSettings()
    commands = (
        Annotated[TrainSettings, tyro.conf.subcommand("train", default=defaults)]
        | Annotated[Match, tyro.conf.subcommand("match")]
        | Annotated[data_commands.Check, tyro.conf.subcommand("check")]
        | Annotated[data_commands.Record, tyro.conf.subcommand("record")]
        | Annotated[data_commands.Convert, tyro.conf.subcommand("convert")]
        | Annotated[measure_commands.Benchmark, tyro.conf.subcommand("benchmark")]
        | Annotated[
            measure_commands.Profile, tyro.conf.subcommand("profile", default=measure_commands.Profile(train=profiled))
        ]
        | Annotated[policy_commands.Export, tyro.conf.subcommand("export")]
        | Annotated[policy_commands.Play, tyro.conf.subcommand("play")]
    )
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    try:
        with contextlib.redirect_stderr(talk):
            return tyro.cli(commands, prog="movelist", description=_description(), args=arguments, config=markers)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SettingsError(_one_line(talk.getvalue()).rstrip("."), do=_help_hint(arguments)) from None


def _description() -> str:
    return f"{_version()}: PPO for games whose legal actions change every turn."


def _version() -> str:
    try:
        return f"movelist {importlib.metadata.version('movelist')}"
    except importlib.metadata.PackageNotFoundError:  # run from a clone that was not installed
        return "movelist from a clone"


def _defaults(arguments: list[str]) -> TrainSettings:
    """The defaults of `train` and `profile`: those of the run to resume, under those of a preset, if there are any."""
    if not arguments or arguments[0] not in ("train", "profile"):
        return TrainSettings()
    flat: dict[str, Any] = {}
    if (run := _value_of("--resume", arguments)) is not None:
        from movelist.run.folder import read_settings

        flat |= read_settings(Path(run)) | {"out": None, "preset": None}
    if (name := _value_of("--preset", arguments)) is not None:
        from movelist.run.presets import preset

        flat |= preset(name, _value_of("--device", arguments) or "auto")
    return TrainSettings.from_flat(flat)


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """What is given after a flag; None if it is not there, or nothing follows: then tyro says what is missing."""
    for place, word in enumerate(arguments, 1):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next(iter(arguments[place : place + 1]), None)
    return None


def _one_line(box: str) -> str:
    """The message in one of tyro's boxes: its lines between the title and the next rule, and the flag it proposes.

    A box is drawn with lines, or with hyphens where the console's encoding has none.
    """
    lines = [stripped for line in box.splitlines()[1:] if (stripped := line.strip(" │|"))]
    parts = [list(group) for is_rule, group in itertools.groupby(lines, _is_rule) if not is_rule]
    message = " ".join(parts[0]) if parts else ""
    proposed = next((line.split()[0] for part in parts[1:] for line in part if line.startswith("--")), None)
    # The same flag again, spelt with hyphens, is one that another command has.
    is_other = proposed is not None and proposed.replace("-", "_") not in re.split("[ ,=]", message.replace("-", "_"))
    return message + (f"; perhaps {proposed}" if is_other and "nrecognized" in message else "")


def _is_rule(line: str) -> bool:
    return set(line) <= set("─-╰╯+ ")


def _help_hint(arguments: list[str]) -> str:
    """What to type next; the nearest command where the first word is none."""
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        return f"See movelist {first} --help"
    close = nearest(first, COMMANDS)
    return f"Did you mean movelist {close}?" if close else "See movelist --help"


def _train(settings: TrainSettings) -> int:
    from movelist.run.train import train

    if settings.run.preset and _is_first_process():
        from movelist.run.presets import describe

        print(describe(settings.run.preset, settings))
    train(settings)
    return 0


def _match(command: Match) -> int:
    from movelist.run.api import match

    result = match(
        command.policy,
        command.against,
        game=command.game,
        num_games=command.num_games,
        seed=command.seed,
        greedy=command.greedy,
    )
    if command.json:
        print(json.dumps(result.to_json(), allow_nan=False))
        return 0
    print(f"{command.policy} against {command.against}: {result}")
    for seat, score in enumerate(result.seats):
        low, high = score.win_rate_interval
        rate = f"win rate {score.win_rate:.3f} ({low:.3f} to {high:.3f})"
        print(f"  seat {seat}: {rate}, mean return {score.mean_return:+.2f}")
    return 0
