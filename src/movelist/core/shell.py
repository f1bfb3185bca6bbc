"""Words and commands as people can type them where the program was started."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

_PARTS_WORDS = {"posix": set(" ()&';|<>*?~#[]{}"), "nt": set(" ()&'^;,=|<>")}  # or means something else
_SPEAKS_IN_QUOTES = set('"$`!\\')  # in a shell, also between double quotes


def quoted(word: Path | str) -> str:
    """A path, or another word, as it is typed: in double quotes where it needs them, which cmd knows, too."""
    text = str(word)
    if os.name != "nt" and _SPEAKS_IN_QUOTES & set(text):
        return shlex.quote(text)
    return f'"{text}"' if not text or _PARTS_WORDS[os.name] & set(text) else text


def typed(line: str, commands: Iterable[str]) -> str:
    """A line that tells a command as it can be typed here.

    On Windows nobody activates the environment that setup.bat made, so its programs are not on the path.

    Args:
        line: May hold "movelist" and the name of a command behind it.
        commands: Their names.
    """
    if os.name != "nt" or shutil.which("movelist"):
        return line
    program = Path(sys.prefix) / "Scripts" / "movelist.exe"
    with contextlib.suppress(ValueError):  # another drive, or another folder
        program = program.relative_to(Path.cwd())
    there = quoted(program)
    return re.sub(rf"\bmovelist (?=(?:{'|'.join(commands)})\b)", lambda _: f"{there} ", line)
