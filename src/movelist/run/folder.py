"""The run folder: whole files only, so the latest checkpoint always loads.

    RUN/settings.json               the resolved settings
    RUN/metrics.jsonl               one line an update
    RUN/tensorboard/                the same numbers
    RUN/final_match.json            the match at the end: opponent, checkpoint, score of all games and of each seat
    RUN/in_use.lock                 while a training runs
    RUN/bad-minibatch-000121.safetensors    if a number went bad in update 121
    RUN/checkpoints/update-000120.pt
    RUN/checkpoints/latest.json     {"file": "update-000120.pt"}
    RUN/checkpoints/best.json       {"file": "update-000080.pt", "win_rate": 0.93, "mean_return": 1.7, "rating": 410.0}
    RUN/ladder/update-000040.pt     weights alone, a few of them from the whole run; see ladder.py

A checkpoint is written beside its place, flushed, and renamed; numbered files are never overwritten, since on Windows
another program may hold them open. `latest.json` changes last.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from movelist.core.errors import CheckpointError
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.data.whole_file import delete_unfinished, json_bytes, write_whole
from movelist.run.seal import write_sealed

GOALS = ("total_steps", "max_seconds", "data_passes")  # how far to train: a run stays the same run with another goal
# What runs of versions without a setting did, where its default is another; they go on so.
OLDER = {"action_features": "ignore"}


class RunFolder:
    """A folder that one training writes to.

    Args:
        path: Made if it is not there.

    Raises:
        CheckpointError: The folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise CheckpointError(
                "the run folder cannot be written", got=error.strerror, where=str(path), do="Choose another with --out."
            ) from None

    def write_json(self, name: str, content: object) -> None:
        """Write a small file as a whole."""
        write_whole(self.path / name, lambda file: file.write(json_bytes(content, indent=2)))

    def cut_metrics(self, step: int) -> None:
        """Forget the metrics of updates after `step`, and a last line half written: a resumed run makes them anew."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step]
        write_whole(path, lambda file: file.write(b"".join(kept)))

    def clean(self) -> None:
        """Delete what a killed training left half written; this one holds the folder's lock."""
        for folder in (self.path, self.checkpoints, self.path / "policies"):
            delete_unfinished(folder)

    def save(self, number: int, state: dict[str, Any], *, keep: int, best: Mapping[str, float] | None = None) -> Path:
        """Save checkpoint `number`, point latest.json at it, and delete older ones but the newest `keep` and the best.

        Args:
            number: Of the update.
            state: From `checkpoint.pack`.
            keep: How many to keep, this one among them.
            best: Of its match, if it is the best one so far: best.json names it, and it is kept until another one is.

        Raises:
            SaveError: The disk is full. The checkpoint before is whole.
        """
        path = self.checkpoints / f"update-{number:06d}.pt"
        write_whole(path, lambda file: write_sealed(state, file))
        self.write_json("checkpoints/latest.json", {"file": path.name})
        if best is not None:
            self.write_json("checkpoints/best.json", {"file": path.name, **best})
        kept = named_file(self.checkpoints / "best.json")
        older = [old for old in numbered(self.checkpoints) if number_of(old) <= number]
        for old in older[:-keep]:
            if old != kept:
                _delete(old)
        return path

    def set_aside(self, after: Path) -> None:
        """Rename the checkpoints after this one, which cannot be read: they must not count as the newest."""
        for file in numbered(self.checkpoints):
            if number_of(file) > number_of(after):
                with contextlib.suppress(OSError):
                    file.replace(file.with_name(file.name + ".damaged"))


def new_run_folder(out: Path | None, game: str) -> RunFolder:
    """The folder for a new run: `out`, or one made for the game and the time.

    Raises:
        CheckpointError: It cannot be written.
    """
    if out is None:
        plain = "".join(letter if letter.isalnum() else "-" for letter in game).strip("-")
        return RunFolder(_claim(f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"))
    return RunFolder(out)


def run_folder(settings: TrainSettings, game: str) -> RunFolder:
    """The folder of the run to resume, or of a new one.

    Raises:
        CheckpointError: The one to resume holds no run, or the new one cannot be written.
    """
    if settings.run.resume is None:
        return new_run_folder(settings.run.out, game)
    read_settings(settings.run.resume)  # a folder that is no run is refused before anything is made in it
    return RunFolder(settings.run.resume)


def going_on(settings: TrainSettings) -> TrainSettings:
    """The same command again goes on: settings that resume the run in `out`, if it holds the run that they describe.

    Args:
        settings: Resolved.

    Raises:
        CheckpointError: The folder holds another run; names what differs.
    """
    out = settings.run.out
    if settings.run.resume or out is None or not ((out / "settings.json").exists() or numbered(out / "checkpoints")):
        return settings
    before = TrainSettings.from_flat(read_settings(out)).to_flat()
    usual, now = TrainSettings().to_flat(), settings.to_flat()
    now |= {name: value for name, value in OLDER.items() if before[name] == value and now[name] == usual[name]}
    other = [
        f"--{name} {value} instead of {before[name]}"
        for name, value in now.items()
        if value != before[name] and name not in (*GOALS, "out", "resume")
    ]
    if other:
        raise CheckpointError(
            "the folder already holds another run",
            got=", ".join(other),
            where=str(out),
            do=f"Go on with that one: movelist train --resume {quoted(out)}; or choose another folder with --out.",
        )
    return TrainSettings.from_flat({**now, "resume": out})


def read_settings(run: Path) -> dict[str, Any]:
    """The settings that a run folder was made with.

    Raises:
        CheckpointError: The folder is no run, or its settings cannot be read.
    """
    path = run / "settings.json"
    if not path.is_file():
        raise CheckpointError("this is no run folder", got=str(run), expected="a folder with settings.json")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError(f"{type(settings).__name__} instead of an object")
        return OLDER | settings
    except (OSError, ValueError) as error:
        raise CheckpointError("the settings of a run cannot be read", got=error, where=str(path)) from None


def checkpoint_files(path: Path) -> list[Path]:
    """The checkpoints that a path stands for, the newest first: of a run folder or a folder of checkpoints all, of a
    file that one, of latest.json and best.json the one that they name.

    Raises:
        CheckpointError: There is none.
    """
    if path.is_file():
        return [named_file(path) or path]
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    files = numbered(folder)
    if not files:
        what = "holds no checkpoint yet" if path.is_dir() else "does not exist"
        started = f"The run was broken off before its first one: movelist train --resume {quoted(path)}"
        raise CheckpointError(
            f"{path} {what}",
            expected="a run folder or a checkpoint file",
            do=started if (path / "settings.json").exists() else None,
        )
    return files[::-1]


def numbered(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first. By number: as text, update-1000000 comes before update-999999."""
    files = [file for file in folder.glob("update-*.pt") if file.stem.removeprefix("update-").isdecimal()]
    return sorted(files, key=number_of)


def named_file(path: Path) -> Path | None:
    """The checkpoint that latest.json or best.json names, if this is such a file."""
    try:
        return path.with_name(json.loads(path.read_text(encoding="utf-8"))["file"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _claim(name: str, number: int = 1) -> Path:
    """A new folder in runs/; who makes it has it, for two trainings may start within the same second."""
    path = Path("runs") / (name if number == 1 else f"{name}-{number}")
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return _claim(name, number + 1)
    except OSError:  # RunFolder will say why
        return path
    return path


def number_of(file: Path) -> int:
    """The update of a checkpoint, by its name."""
    return int(file.stem.removeprefix("update-"))


def _step_of(line: bytes) -> float:
    """The step of a line of metrics.jsonl; infinite where it cannot be read."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")


def _delete(path: Path) -> None:
    try:
        path.unlink()
    except OSError:  # held open by a reader on Windows: it is deleted after a later save
        return
