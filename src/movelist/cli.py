"""The command line: `movelist train`, `match`, `check` and so on. Bodies import what they need: --help is quick."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import itertools
import operator
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from movelist import data_commands, measure_commands, policy_commands, train_commands
from movelist.core.command import Command, is_first_process
from movelist.core.errors import MovelistError, SettingsError, nearest
from movelist.core.settings import TrainSettings
from movelist.core.shell import typed

COMMANDS: list[Command] = [
    *train_commands.COMMANDS,
    *data_commands.COMMANDS,
    *measure_commands.COMMANDS,
    *policy_commands.COMMANDS,
]


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


def _run(settings: Any, arguments: list[str]) -> int:
    command = next(command for command in COMMANDS if type(settings) is command.settings)
    return command.run(settings, arguments)


def _say(words: object) -> None:
    """One line on standard error, of the first process only where torchrun started several."""
    if is_first_process():
        line = typed(str(words), (command.name for command in COMMANDS))
        print(f"movelist: {line}", file=sys.stderr)


def _parse(arguments: list[str]) -> Any:
    """Read the command line; tyro's own errors become one line.

    Raises:
        SettingsError: The words are off.
        SystemExit: --help was answered.
    """
    talk = io.StringIO()
    commands = functools.reduce(operator.or_, (_subcommand(command, arguments) for command in COMMANDS))
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    try:
        with contextlib.redirect_stderr(talk):
            return tyro.cli(commands, prog="movelist", description=_description(), args=arguments, config=markers)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SettingsError(_one_line(talk.getvalue()).rstrip("."), do=_help_hint(arguments)) from None


def _subcommand(command: Command, arguments: list[str]) -> Any:
    """The command as tyro takes it."""
    if command.default is None:
        return Annotated[command.settings, tyro.conf.subcommand(command.name)]
    # Only those of the command that is asked for: a training may hold settings that a profile refuses, as --watch.
    training = _defaults(arguments) if arguments[:1] == [command.name] else TrainSettings()
    return Annotated[command.settings, tyro.conf.subcommand(command.name, default=command.default(training))]


def _description() -> str:
    return f"{_version()}: PPO for games whose legal actions change every turn."


def _version() -> str:
    try:
        return f"movelist {importlib.metadata.version('movelist')}"
    except importlib.metadata.PackageNotFoundError:  # run from a clone that was not installed
        return "movelist from a clone"


def _defaults(arguments: list[str]) -> TrainSettings:
    """The defaults of a training: those of the run to resume, under those of a preset, if there are any."""
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
    names = [command.name for command in COMMANDS]
    if first in names:
        return f"See movelist {first} --help"
    close = nearest(first, names)
    return f"Did you mean movelist {close}?" if close else "See movelist --help"
