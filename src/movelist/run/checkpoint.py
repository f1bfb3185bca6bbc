"""What a checkpoint holds, and how it is read: a damaged one is named, and the one before is taken."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from movelist.core.errors import CheckpointError
from movelist.core.returns import RunningScale
from movelist.core.shell import quoted
from movelist.learn.device import choose_device
from movelist.learn.make_net import make_net
from movelist.learn.model import ModelShape, Network
from movelist.play.policy import NetPolicy
from movelist.play.policy_info import PolicyInfo, describe, settings_hash
from movelist.play.profiles import is_exported
from movelist.run.exactness import circumstances, generators_state, movelist_version
from movelist.run.folder import checkpoint_files, numbered
from movelist.run.seal import read_sealed

FORMAT = "movelist-checkpoint/1"


def pack(
    *,
    settings: dict[str, Any],
    shape: ModelShape,
    learner: dict[str, Any],
    source: dict[str, Any],
    recorded: dict[str, Any] | None,
    counters: dict[str, Any],
    handed_in: dict[str, str],
    device: torch.device,
) -> dict[str, Any]:
    """All that a checkpoint holds, of types that load without running code."""
    return {
        "format": FORMAT,
        "settings": settings,
        "shape": asdict(shape),
        "learner": learner,
        "source": source,
        "recorded": recorded,
        "counters": counters,
        "handed_in": handed_in,
        "generators": generators_state(),
        "circumstances": circumstances(device),
    }


def load(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint; its tensors are on the CPU.

    Args:
        path: A run folder (its newest checkpoint), a checkpoint file, or a run's checkpoints/best.json. If the newest
            one of a folder is damaged, the one before is taken, and standard error says so.

    Raises:
        CheckpointError: There is none, or it is damaged or no checkpoint of movelist; names the file.
    """
    return load_newest(Path(path), say=warn)[1]


def warn(text: str) -> None:
    """Tell of a damaged checkpoint where no training speaks."""
    print(f"movelist: {text}", file=sys.stderr)


def load_newest(path: Path, *, say: Callable[[str], None]) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint that can be read, and its file; as `load`, but `say` is told of damaged ones."""
    if is_exported(path):
        raise not_trainable(str(path))
    files = checkpoint_files(path)
    damaged: list[_Damaged] = []
    for file in files:
        try:
            state = _read(file)
        except _Damaged as error:
            damaged.append(error)
            continue
        if damaged:
            bad = ", ".join(
                f"{other.name} is damaged ({error.got})" for other, error in zip(files, damaged, strict=False)
            )
            say(f"Warning: {bad}. Taking the checkpoint before it, {file.name}.")
        return file, state
    raise damaged[0]


def not_trainable(what: str) -> CheckpointError:
    """The error where a run is needed and an exported policy was given."""
    return CheckpointError(
        "an exported policy is no checkpoint: it plays, and cannot be loaded as a network or exported again",
        got=what,
        do="Give the run that it came from, or play it with movelist match or movelist play.",
    )


class _Damaged(CheckpointError):
    """A file that is no whole checkpoint."""


def _read(file: Path) -> dict[str, Any]:
    try:
        state = read_sealed(file)
    except OSError as error:  # held by another program, or not ours to read: no reason to take an older one
        raise CheckpointError("a checkpoint cannot be opened", got=error.strerror, where=str(file)) from None
    except Exception as error:
        # zipfile, pickle and torch raise a dozen types for damaged files, some with an empty message.
        reason = str(error).split("\n")[0] or type(error).__name__
        raise _Damaged(
            "a checkpoint cannot be read",
            # torch's own message proposes to load such a file nevertheless.
            got="objects other than tensors and numbers" if isinstance(error, pickle.UnpicklingError) else reason,
            where=f"{file}, {file.stat().st_size} bytes",
            do=_other_files(file),
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format", "no format") if isinstance(state, dict) else type(state).__name__
        raise _Damaged("this is no checkpoint of movelist", got=found, expected=FORMAT, where=str(file))
    return state


def load_net(
    state: dict[str, Any],
    device: torch.device,
    *,
    state_encoder: nn.Module | None = None,
    network: Network | None = None,
) -> Network:
    """The network of a checkpoint's state; parts that the checkpoint names are imported, others have to be given.

    Raises:
        SettingsError: A part cannot be made here; says which.
        CheckpointError: The weights do not fit the parts.
    """
    net = make_net(ModelShape(**state["shape"]), state_encoder=state_encoder, network=network).to(device)
    load_weights(net, state)
    return net


def load_weights(net: Network, state: dict[str, Any]) -> None:
    """Give a network the weights of a checkpoint's state.

    Raises:
        CheckpointError: They are of another network.
    """
    try:
        net.load_state_dict(state["learner"]["net"])
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
        raise CheckpointError(
            "the checkpoint's weights are of another network",
            got=first,
            where=state["shape"].get("network") or state["shape"].get("state_encoder") or type(net).__name__,
            do="Its class changed since, or another one was given: use the one that it was trained with.",
        ) from None


def policy_info(state: dict[str, Any], state_layout: str | None = None) -> PolicyInfo:
    """What an export of this checkpoint's state says about itself."""
    scale, settings = RunningScale(), state["settings"]
    vars(scale).update(state["learner"]["returns"])
    return describe(
        ModelShape(**state["shape"]),
        version=movelist_version(),
        game=state.get("game_name", settings["game"]),
        layout=state_layout or settings.get("state_layout"),
        policy_version=state["learner"]["num_updates"],
        settings_hash=settings_hash(settings),
        return_scale=scale.scale if settings.get("scale_returns", True) else 1.0,
    )


def load_policy(
    path: Path | str,
    *,
    device: str = "cpu",
    greedy: bool = True,
    state_encoder: nn.Module | None = None,
    net: Network | None = None,
) -> NetPolicy:
    """The policy of a run or checkpoint, ready to play.

    Args:
        path: A run folder or a checkpoint file.
        device: "cpu", "cuda" or "auto".
        greedy: Always the likeliest action; otherwise draw by probability.
        state_encoder: The run's state encoder, where the run was handed one that has no name.
        net: The run's network, likewise.

    Raises:
        CheckpointError: As `load`.
        SettingsError: The run has a part of its own that cannot be made here.

    Example:
        policy = movelist.load("runs/mine")
        index, log_prob = policy.act(state, legal_actions)
    """
    chosen = choose_device(device)
    return NetPolicy(load_net(load(path), chosen, state_encoder=state_encoder, network=net), greedy=greedy)


def check_fits(state: dict[str, Any], where: Path | str, *, game: str, **sizes: object) -> None:
    """Refuse a checkpoint of another game or of other sizes.

    Args:
        state: From `load`.
        where: The file, for the message.
        game: The game to be played.
        **sizes: Fields of ModelShape that have to agree, or num_players, which version 0.1 did not save.

    Raises:
        CheckpointError: Names what differs.
    """
    # A checkpoint of an older version lacks what every network then had.
    held = {"game": state.get("game_name", state["settings"]["game"]), **asdict(ModelShape(**state["shape"]))}
    if "num_players" in sizes:
        held["num_players"] = state.get("num_players", sizes["num_players"])
    for name, expected in {"game": game, **sizes}.items():
        if held.get(name) != expected:
            raise CheckpointError(
                f"the checkpoint is of another {name}", got=held.get(name), expected=expected, where=str(where)
            )


def _other_files(file: Path) -> str:
    others = [other for other in numbered(file.parent) if other != file]
    return f"Perhaps another one can be: {quoted(others[-1])}" if others else "There is no other one beside it."
