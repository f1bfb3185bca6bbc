"""A command of one's own beside movelist's: `python own_command.py updates RUN`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from movelist import cli
from movelist.core.command import Command


@dataclass(frozen=True, kw_only=True)
class Updates:
    """How many updates a run has made."""

    run: tyro.conf.Positional[Path]
    """Its folder."""


def count(settings: Updates, words: Sequence[str]) -> int:
    print(len((settings.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    return 0


if __name__ == "__main__":
    cli.COMMANDS.append(Command("updates", Updates, count))
    sys.exit(cli.main())
