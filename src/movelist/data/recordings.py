"""Recordings: episodes in files, `.jsonl`, `.jsonl.gz` or `.arrows`; read, checked and written in constant memory.

    for columns in read(path):          # checked; what is bad is reported and left out
        episodes = columns.episodes()   # rewards credited, forced turns dropped

An episode's identity is its file and its number in it, from 0, bad ones counted too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from movelist.core.errors import DataError
from movelist.data.arrow_writer import ArrowsWriter
from movelist.data.arrows import read_arrows
from movelist.data.jsonl import JsonlWriter, read_jsonl
from movelist.data.record_format import Widths
from movelist.data.record_rules import Columns, Position, Problem, keep_good
from movelist.data.same_file import distinct

Report = Callable[[Problem], None]
# Editors, browsers, rsync and Syncthing put these behind the name, before the ending of one that would be read.
_LEFTOVER = re.compile(
    r"(~|\.(bak|backup|orig|tmp|temp|part|partial|crdownload|download|swp|swo)|~\d{8}-\d{6}|\.sync-conflict-.*)$", re.I
)


class Writer(Protocol):
    """Adds episodes to a file."""

    def write(self, columns: Columns) -> None:
        """Add these episodes."""

    def close(self) -> None:
        """Finish the file."""


@dataclass(frozen=True)
class Kind:
    """A kind of recording; listed in KINDS, every command reads and writes it.

    Args:
        suffixes: Its files' names end in one of them.
        unit: What stands in a file one below the other, as errors name its places.
        read: Yields the episodes behind a position: (path, start, widths, report, end), as `read` is called.
        writer: Adds episodes to a file.
    """

    suffixes: tuple[str, ...]
    unit: str
    read: Callable[[Path, Position, Widths | None, Report, int | None], Iterator[Columns]]
    writer: Callable[[Path], Writer]


KINDS = (
    Kind((".jsonl", ".jsonl.gz"), "line", read_jsonl, JsonlWriter),
    Kind((".arrows",), "row", read_arrows, ArrowsWriter),
)
SUFFIXES = tuple(suffix for kind in KINDS for suffix in kind.suffixes)


def _kind(path: Path) -> Kind:
    """The kind that a file's name says; what is named otherwise is read as lines."""
    return next((kind for kind in KINDS if path.name.lower().endswith(kind.suffixes)), KINDS[0])


def is_recording(path: Path) -> bool:
    """Whether the file's name is one of a recording."""
    return path.name.lower().endswith(SUFFIXES)


def is_leftover(path: Path, folder: Path) -> bool:
    """Whether a file in a folder is hidden, or named as copies and unfinished downloads are."""
    parts = path.relative_to(folder).parts
    if any(part.startswith((".", "~")) for part in parts):
        return True
    name = path.name
    for ending in SUFFIXES:
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return bool(_LEFTOVER.search(name))


def in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """The recordings in a folder and in folders inside, and the files that are left out for their names."""
    found = [file for file in folder.rglob("*") if is_recording(file) and file.is_file()]
    return [f for f in found if not is_leftover(f, folder)], [f for f in found if is_leftover(f, folder)]


def left_out(files: Sequence[Path]) -> str:
    """The sentence about files that are left out for their names."""
    which = f"such as {files[0]}" if len(files) > 1 else str(files[0])
    return (
        f"Left out: {len(files):,} hidden files, or named as copies and unfinished downloads are, {which}. "
        "To use one, name the file itself."
    )


def find(paths: Sequence[Path], say: Callable[[str], None] = lambda text: None) -> list[Path]:
    """The recordings among files and in folders (also in folders inside), sorted by name, each once.

    Args:
        paths: Files, which are taken as they are named, and folders.
        say: Told what is left out: hidden files and leftovers of tools in folders, and files with the same bytes.

    Raises:
        DataError: A path is not there or is no recording, or there is none at all.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside, leftovers = in_folder(path)
            files += sorted(inside)
            if leftovers:
                say(left_out(sorted(leftovers)))
        elif not path.exists():
            raise DataError("there is no such file or folder", got=str(path))
        elif not is_recording(path):
            raise DataError(
                "this is no recording", got=str(path), expected=f"a name that ends in {', '.join(SUFFIXES)}"
            )
        else:
            files.append(path)
    if not files:
        raise DataError(
            "there is no recording", where=", ".join(map(str, paths)), expected=f"files {', '.join(SUFFIXES)}"
        )
    once: dict[Path, Path] = {}
    for file in files:
        once.setdefault(file.resolve(), file)
    return distinct(list(once.values()), say)


def read(
    path: Path,
    *,
    start: Position | None = None,
    expected: Widths | None = None,
    report: Report | None = None,
    strict: bool = False,
    end: int | None = None,
    num_actions: int = 0,
) -> Iterator[Columns]:
    """Read and check a recording, some thousand steps at a time.

    Args:
        path: The file.
        start: Where to begin; None is the beginning.
        expected: Widths of the run; None takes those of the file's first episode.
        report: Told of each problem; None is told nothing.
        strict: Raise at the first problem that is not harmless.
        end: How many bytes of the file are read; None reads all that is there.
        num_actions: Rows of the network's table of actions, without which an episode is left out; 0 for no table.

    Yields:
        The good episodes, as they stand in the file.

    Raises:
        DataError: With `strict`; or the file cannot be read at all.
    """
    found: list[Problem] = []
    kind = _kind(path)
    try:
        for columns in kind.read(path, start or Position(), expected, found.append, end):
            good, problems = keep_good(columns, str(path), kind.unit, num_actions)
            _tell([*found, *problems], report, strict)
            found.clear()
            if len(good):
                yield good.recorded_in(str(path), kind.unit)
    except OSError as error:
        what = "a recording cannot be read"
        raise DataError(what, got=error.strerror or error, where=str(path), do="Is it open elsewhere?") from None
    _tell(found, report, strict)


def _tell(problems: Sequence[Problem], report: Report | None, strict: bool) -> None:
    for problem in problems:
        if strict and not problem.harmless:
            raise problem.error()
        if report is not None:
            report(problem)


def writer(path: Path) -> Writer:
    """A writer for the format that the file's name says; it adds to a file that is there.

    Raises:
        DataError: The name says none.
    """
    if not is_recording(path):
        raise DataError("no format has this name", got=str(path), expected=f"a name that ends in {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return _kind(path).writer(path)
