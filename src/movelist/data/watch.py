"""A folder that an engine writes to: new and growing files are picked up, each episode once, across restarts too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from movelist.core.errors import DataError
from movelist.data import recordings
from movelist.data.loader import State
from movelist.data.record_format import Widths
from movelist.data.record_lines import is_packed
from movelist.data.record_rules import Columns, Position, Problem
from movelist.data.same_file import FINGERPRINT_BYTES, digest, fingerprint, tail
from movelist.data.store import Stored, join_stored, stored

Stamp = tuple[int, int]  # size and time of the last change; either tells that a file was written to


class WatchStream:
    """The episodes of a folder as they come, oldest file first; waits when there are not enough.

    A file is known by its name and its first bytes: one that was deleted and written anew is read anew, one that became
    shorter is not. One that cannot be opened, because its writer holds it, is tried again at the next look.

    Args:
        folder: Watched, with the folders in it.
        keep_forced: Keep turns with one legal action.
        widths: Of the run.
        report: Told of each problem once.
        num_actions: Rows of the network's table of actions, without which an episode is left out; 0 for no table.
        say: Told once what is left out: leftovers of tools, and files with the same bytes as one that was read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_forced: bool,
        widths: Widths,
        report: Callable[[Problem], None] | None = None,
        say: Callable[[str], None] = lambda text: None,
        num_actions: int = 0,
    ) -> None:
        self.num_actions = num_actions
        self.folder, self.keep_forced, self.widths = folder, keep_forced, widths
        self._report, self._told = report, set[tuple[str, str, str]]()
        self._say, self._said = say, set[str]()
        self._copies: set[tuple[str, Stamp]] = set()  # of files that hold the same bytes as another
        self._used: set[tuple[str, Stamp]] = set()  # name and stamp of files that were found used up

    def rollouts(self, state: State, num_episodes: int) -> Iterator[tuple[Stored | None, State]]:
        """See `loader.Stream`."""
        files: dict[str, dict[str, Any]] = {name: dict(entry) for name, entry in state.get("files", {}).items()}
        parts: list[Stored] = []
        count = 0
        while True:
            found = False
            for path, columns in self._new(files):
                found, taken = True, 0
                ready = stored(columns, keep_forced=self.keep_forced)
                while taken < len(ready):
                    part = ready.take(np.arange(taken, min(len(ready), taken + num_episodes - count)))
                    parts.append(part)
                    taken, count = taken + len(part), count + len(part)
                    files[self._name(path)]["position"] = asdict(columns.position(taken - 1))
                    if count == num_episodes:
                        yield join_stored(parts), {"files": {name: dict(entry) for name, entry in files.items()}}
                        parts, count = [], 0
            if not found:
                yield None, {}

    def done(self, state: State) -> float:
        """See `loader.Stream`: there is no end."""
        return 0.0

    def used_up(self, state: State) -> list[str]:
        """The files of which everything is used, and which have not grown since; not those that gave no episode."""
        names = []
        for name, entry in state.get("files", {}).items():
            path = self.folder / name
            stamp = _stamp(path)
            if not entry["position"]["ordinal"] or not stamp:
                continue
            if (name, stamp) not in self._used and not _has_more(path, entry, self.widths):
                self._used.add((name, stamp))
            if (name, stamp) in self._used:
                names.append(str(path))
        return sorted(names)

    def _new(self, files: dict[str, dict[str, Any]]) -> Iterator[tuple[Path, Columns]]:
        """What has come since the last look; `files` learns each file's size and fingerprint."""
        for path in sorted(self._present(), key=lambda path: (_time(path), path.name)):
            stamp, entry = _stamp(path), files.get(self._name(path))
            if not stamp or (entry and (entry["size"], entry.get("time")) == stamp):
                continue
            size = stamp[0]
            try:
                if entry is None and self._is_copy(path, stamp, files):
                    continue
                entry = files.get(self._name(path))
                if (
                    entry is None
                    or size < entry["head"][0]
                    or fingerprint(path, entry["head"][0]) != list(entry["head"])
                ):
                    entry = files[self._name(path)] = {"position": asdict(Position()), "head": [0, 0], "size": 0}
                if entry["head"][0] < FINGERPRINT_BYTES:  # the longer, the surer
                    entry["head"] = fingerprint(path, min(size, FINGERPRINT_BYTES))
                entry["seen"] = [size, *tail(path, size)]
                start = Position(**entry["position"])
                if start.offset > size and not is_packed(path):
                    self._tell(Problem(kind="shorter", file=str(path), place=f"byte {size}", got=f"{size} bytes",
                                       what="a file became shorter than what was read of it",
                                       do="Write new episodes into a new file."))  # fmt: skip
                known: dict[str, Any] = {"expected": self.widths, "num_actions": self.num_actions}
                for columns in recordings.read(path, start=start, report=self._tell, **known):
                    yield path, columns
                entry["size"], entry["time"] = stamp
            except (DataError, OSError):  # held by its writer: at the next look, from where it was left
                continue

    def _present(self) -> list[Path]:
        try:
            files, leftovers = recordings.in_folder(self.folder)
        except OSError:  # a folder was deleted while it was listed: at the next look
            return []
        if leftovers:
            self._once("leftovers", recordings.left_out(sorted(leftovers)))
        return files

    def _is_copy(self, path: Path, stamp: Stamp, files: dict[str, dict[str, Any]]) -> bool:
        """Whether a new file holds the same bytes as one that was read; one that was renamed goes on where it was."""
        name, size = self._name(path), stamp[0]
        if (name, stamp) in self._copies:
            return True
        for known, entry in list(files.items()):
            if not entry["position"]["ordinal"] or not _read_before(path, size, entry):
                continue
            other = self.folder / known
            if not other.exists():
                files[name] = files.pop(known)
                return False
            if entry["seen"][0] == size and digest(path, size) == digest(other, size):
                self._copies.add((name, stamp))
                self._once("copy", f"Left out: {path} holds the same bytes as {other}; further such files are, too.")
                return True
        return False

    def _once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _tell(self, problem: Problem) -> None:
        place = (problem.file, problem.place, problem.kind)
        if self._report is not None and not problem.harmless and place not in self._told:
            self._told.add(place)
            self._report(problem)


def _stamp(path: Path) -> Stamp | None:
    """None for a file that is empty or gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_before(path: Path, size: int, entry: dict[str, Any]) -> bool:
    """Whether a file begins with what was read of another, by the fingerprints of its first and last bytes."""
    return (
        "seen" in entry  # not in a checkpoint of version 0.1
        and entry["seen"][0] <= size
        and fingerprint(path, entry["head"][0]) == list(entry["head"])
        and [entry["seen"][0], *tail(path, entry["seen"][0])] == list(entry["seen"])
    )


def _has_more(path: Path, entry: dict[str, Any], widths: Widths) -> bool:
    """Whether an episode, or the beginning of one, lies behind the position: it may be read ahead and not used yet.

    All of a file that was written anew does.
    """
    found: list[Problem] = []
    try:
        if fingerprint(path, entry["head"][0]) != list(entry["head"]):
            return True
        start = Position(**entry["position"])
        if any(True for _ in recordings.read(path, start=start, expected=widths, report=found.append)):
            return True
    except (DataError, OSError):
        return True
    return any(problem.kind == "unfinished" for problem in found)
