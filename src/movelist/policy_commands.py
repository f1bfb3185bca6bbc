"""`movelist export` and `play`: their flags, and what they do. Bodies import what they need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from movelist.core.command import Command


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained policy as a file that a game engine can run; docs/export.md says how."""

    policy: tyro.conf.Positional[Path]
    """A run folder (its newest checkpoint; its best one is RUN/checkpoints/best.json), or a checkpoint file."""

    out: Path
    """The file: NAME.onnx, or NAME.safetensors for the profile weights."""

    profile: str = "ort"
    """What runs it: "ort" is onnxruntime (C#, C++, Python, Unreal's NNE), "sentis15" is Unity's Inference Engine,
    "weights" are the readers in examples/engines, which need no runtime."""

    value: bool = False
    """Also write the value. Not with weights."""

    state_layout: str | None = None
    """A name for what the numbers of a state mean; readers that expect another one refuse the file. None takes the one
    that the training was given, and if it had none names the width only."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


@dataclass(frozen=True, kw_only=True)
class Play:
    """Play against a trained policy, here in the terminal."""

    policy: tyro.conf.Positional[Path]
    """A run folder, a checkpoint, or an exported file (.onnx, .safetensors)."""

    game: str | None = None
    """The game, named as in train; None takes the one that the policy was trained on. Another game is refused."""

    seat: int = 0
    """Your seat; the bot has all others."""

    seed: int | None = None
    """Of the cards and dice, and of the bot's draws; None takes another one each time."""

    greedy: bool = True
    """The bot always plays its likeliest action; otherwise it draws by probability, and plays weaker."""


def _export(command: Export, words: Sequence[str]) -> int:
    from movelist.run.api import export

    report = export(
        command.policy, command.out, command.profile, value=command.value, state_layout=command.state_layout
    )
    print(json.dumps(report.to_json(), allow_nan=False) if command.json else report)
    return 0


def _play(command: Play, words: Sequence[str]) -> int:
    from movelist.run.api import play_game

    play_game(
        command.policy,
        command.game,
        seat=command.seat,
        seed=command.seed,
        greedy=command.greedy,
        ask=input,
        say=print,
    )
    return 0


COMMANDS = (Command("export", Export, _export), Command("play", Play, _play))
