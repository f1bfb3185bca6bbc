"""The run folder and its checkpoints: whole files only, so the latest always loads.

    RUN/settings.json               the resolved settings
    RUN/metrics.jsonl               one line an update
    RUN/tensorboard/                the same numbers
    RUN/checkpoints/update-000120.pt
    RUN/checkpoints/latest.json     {"file": "update-000120.pt"}

A checkpoint is written beside its place, flushed, and renamed; numbered files are never overwritten, since on Windows
another program may hold them open. `latest.json` changes last.
"""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import platform
import time
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from movelist.core.errors import CheckpointError
from movelist.core.returns import RunningScale
from movelist.data.whole_file import write_whole
from movelist.games.game import Game, game_name, state_size
from movelist.learn.device import choose_device
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.policy import NetPolicy
from movelist.play.policy_info import PolicyInfo, describe, settings_hash

FORMAT = "movelist-checkpoint/1"


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
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.path / name, lambda file: file.write(text.encode("utf-8")))

    def cut_metrics(self, step: int) -> None:
        """Forget the metrics of updates after `step`, and a last line half written: a resumed run makes them anew."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step]
        write_whole(path, lambda file: file.writelines(kept))

    def save(self, number: int, state: dict[str, Any], *, keep: int) -> Path:
        """Save checkpoint `number`, point latest.json at it, and delete all but the newest `keep`."""
        path = self.checkpoints / f"update-{number:06d}.pt"
        write_whole(path, lambda file: torch.save(state, file))
        self.write_json("checkpoints/latest.json", {"file": path.name})
        for old in _numbered(self.checkpoints)[:-keep]:
            _delete(old)
        return path


def new_run_folder(out: Path | None, game: str) -> RunFolder:
    """The folder for a new run: `out`, or one made for the game and the time.

    Raises:
        CheckpointError: It already holds a run, or cannot be written.
    """
    if out is None:
        plain = "".join(letter if letter.isalnum() else "-" for letter in game).strip("-")
        return RunFolder(_claim(f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"))
    if (out / "settings.json").exists() or _numbered(out / "checkpoints"):
        raise CheckpointError(
            "the folder already holds a run",
            got=f"a run of {read_settings(out).get('game')}",
            where=str(out),
            do=f"Go on with it: movelist train --resume {quoted(out)}; or choose another with --out.",
        )
    return RunFolder(out)


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
        return settings
    except (OSError, ValueError) as error:
        raise CheckpointError("the settings of a run cannot be read", got=error, where=str(path)) from None


def pack(
    *,
    settings: dict[str, Any],
    shape: ModelShape,
    learner: dict[str, Any],
    source: dict[str, Any],
    counters: dict[str, Any],
) -> dict[str, Any]:
    """All that a checkpoint holds, of types that load without running code."""
    versions = {"torch": str(torch.__version__), "numpy": np.__version__, "python": platform.python_version()}
    return {
        "format": FORMAT,
        "settings": settings,
        "shape": asdict(shape),
        "learner": learner,
        "source": source,
        "counters": counters,
        "versions": versions,
    }


def load(path: Path | str, *, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: A run folder (its latest checkpoint), or a checkpoint file.
        device: Where its tensors go.

    Raises:
        CheckpointError: There is none, or it is damaged or no checkpoint of movelist; names the file.
    """
    file = checkpoint_file(Path(path))
    try:
        _check_sums(file)
        state = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:
        # zipfile and torch raise a dozen types for damaged files, some with an empty message.
        reason = str(error).split("\n")[0] or type(error).__name__
        raise CheckpointError(
            "a checkpoint cannot be read",
            # torch's own message proposes to load such a file nevertheless.
            got="objects other than tensors and numbers" if isinstance(error, pickle.UnpicklingError) else reason,
            where=f"{file}, {file.stat().st_size} bytes",
            do=_other_files(file),
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format", "no format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError("this is no checkpoint of movelist", got=found, expected=FORMAT, where=str(file))
    return state


def load_net(state: dict[str, Any], device: torch.device) -> PolicyValueNet:
    """The network of a checkpoint's state."""
    net = PolicyValueNet(ModelShape(**state["shape"])).to(device)
    net.load_state_dict(state["learner"]["net"])
    return net


def policy_info(state: dict[str, Any], state_layout: str | None = None) -> PolicyInfo:
    """What an export of this checkpoint's state says about itself."""
    scale, settings = RunningScale(), state["settings"]
    vars(scale).update(state["learner"]["returns"])
    return describe(
        ModelShape(**state["shape"]),
        version=movelist_version(),
        game=settings["game"],
        layout=state_layout,
        policy_version=state["learner"]["num_updates"],
        settings_hash=settings_hash(settings),
        return_scale=scale.scale if settings.get("scale_returns", True) else 1.0,
    )


def movelist_version() -> str:
    """Of the package that is installed."""
    return importlib.metadata.version("movelist")


def load_policy(path: Path | str, *, device: str = "cpu", greedy: bool = True) -> NetPolicy:
    """The policy of a run or checkpoint, ready to play.

    Args:
        path: A run folder or a checkpoint file.
        device: "cpu", "cuda" or "auto".
        greedy: Always the likeliest action; otherwise draw by probability.

    Raises:
        CheckpointError: As `load`.

    Example:
        policy = movelist.load("runs/mine")
        index, log_prob = policy.act(state, legal_actions)
    """
    chosen = choose_device(device)
    return NetPolicy(load_net(load(path, device=chosen), chosen), greedy=greedy)


def load_versioned(path: Path, game: Game) -> tuple[NetPolicy, int]:
    """A checkpoint's policy, drawing by probability, and its version; refused if it does not play `game`."""
    device = choose_device("cpu")
    state = load(path, device=device)
    check_fits(state, path, game=game_name(game), state_size=state_size(game))
    return NetPolicy(load_net(state, device)), int(state["learner"]["num_updates"])


def check_fits(state: dict[str, Any], where: Path | str, *, game: str, **sizes: object) -> None:
    """Refuse a checkpoint of another game or of other sizes.

    Args:
        state: From `load`.
        where: The file, for the message.
        game: The game to be played.
        **sizes: Fields of ModelShape that have to agree.

    Raises:
        CheckpointError: Names what differs.
    """
    held = {"game": state["settings"]["game"], **state["shape"]}
    for name, expected in {"game": game, **sizes}.items():
        if held.get(name) != expected:
            raise CheckpointError(
                f"the checkpoint is of another {name}", got=held.get(name), expected=expected, where=str(where)
            )


def quoted(path: Path) -> str:
    """The path as it is typed in a shell."""
    return f'"{path}"' if any(letter in str(path) for letter in " ()&'") else str(path)


def _check_sums(file: Path) -> None:
    """Hold the check sums of the zip file that torch.save writes; torch.load does not look at them."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged:
        raise zipfile.BadZipFile(f"a wrong check sum of {damaged}")


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


def _numbered(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first. By number: as text, update-1000000 comes before update-999999."""
    files = [file for file in folder.glob("update-*.pt") if file.stem.removeprefix("update-").isdecimal()]
    return sorted(files, key=lambda file: int(file.stem.removeprefix("update-")))


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


def checkpoint_file(path: Path) -> Path:
    """The checkpoint that a run folder, a folder of checkpoints, or a file stands for: the newest.

    Raises:
        CheckpointError: There is none.
    """
    if path.is_file():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    files = _numbered(folder)
    if not files:
        what = "holds no checkpoint yet" if path.is_dir() else "does not exist"
        again = "A run that was broken off before its first checkpoint has to start anew: delete the folder."
        raise CheckpointError(
            f"{path} {what}",
            expected="a run folder or a checkpoint file",
            do=again if (path / "settings.json").exists() else None,
        )
    return files[-1]


def _other_files(file: Path) -> str:
    others = [other for other in _numbered(file.parent) if other != file]
    if not others:
        return "There is no other one beside it."
    return f"Use {quoted(others[-1])}; once the damaged file is deleted, the run goes on from there."
