"""The commands that train a policy and see how good it is: train, match, arena."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

import tyro

from movelist.core.command import Command, is_first_process
from movelist.core.errors import SettingsError
from movelist.core.settings import MatchSettings, TrainSettings


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
    """The game, named as in train; None takes the one that the policy was trained on. Another game is refused."""

    exploitability: bool = False
    """In place of games: what a best response of each seat gains on the policy, which draws by its probabilities.
    Exact, for OpenSpiel games of up to 5 million nodes; 0 in sum is a Nash equilibrium."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


@dataclass(frozen=True, kw_only=True)
class Arena(MatchSettings):
    """Everyone against everyone: a cross table, and a rating with an interval for each player.

    Results are kept as they come: the same command goes on where it was broken off, and with one player more plays only
    what is missing.
    """

    command: ClassVar[str] = "arena"
    """The command that has these flags."""

    players: tyro.conf.Positional[tuple[str, ...]]
    """Written as in match; RUN@all is each checkpoint that a run keeps."""

    against: str | None = None
    """Another player, whom all of them meet; then they do not meet each other."""

    num_games: int = 400
    """Games of each pairing; rounded up to whole deals, in which every seating is played on the same cards."""

    game: str | None = None
    """The game, named as in train; None takes the one that the first trained policy was trained on."""

    out: Path | None = None
    """The folder for results.jsonl and arena.html; None is arenas/GAME."""

    lang: Literal["en", "zh"] = "en"
    """The language of the page and the sentences below the table."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""


def _train(settings: TrainSettings, words: Sequence[str]) -> int:
    from movelist.run.train import train

    if settings.run.preset and is_first_process():
        from movelist.run.presets import describe

        print(describe(settings.run.preset, settings))
    train(settings)
    return 0


def _match(command: Match, words: Sequence[str]) -> int:
    if command.exploitability:
        return _exploitability(command)
    from movelist.run.api import match

    settings = {setting.name: getattr(command, setting.name) for setting in fields(MatchSettings)}
    result = match(command.policy, command.against, game=command.game, **settings)
    if command.json:
        print(json.dumps(result.to_json(), allow_nan=False))
        return 0
    print(f"{command.policy} against {command.against}: {result}")
    print("\n".join(f"  {line}" for line in result.lines()))
    return 0


def _exploitability(command: Match) -> int:
    from movelist.run.api import exploitability

    if command.against != "random":
        raise SettingsError(
            "--exploitability is against best responses, and plays no other opponent",
            got=f"--against {command.against}",
        )
    result = exploitability(command.policy, command.game)
    print(json.dumps(result.to_json(), allow_nan=False) if command.json else f"{command.policy}: {result}")
    return 0


def _arena(command: Arena, words: Sequence[str]) -> int:
    from movelist.measure.arena_page import notes, write_page
    from movelist.run.api import arena, arena_folder

    if not command.players:
        raise SettingsError("no player is named", expected="runs, checkpoints, exported files, bots or random")
    settings = {setting.name: getattr(command, setting.name) for setting in fields(MatchSettings)}
    out = command.out or arena_folder([*command.players, *([command.against] if command.against else [])], command.game)
    result = arena(command.players, against=command.against, game=command.game, out=out, say=_say, **settings)
    write_page(result, out / "arena.html", lang=command.lang)
    if command.json:
        print(json.dumps(result.to_json(), allow_nan=False))
        return 0
    print(result)
    print("\n".join(notes(result, command.lang)))
    _say(f"The page: {out / 'arena.html'}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


COMMANDS = (
    Command("train", TrainSettings, _train, default=lambda training: training),
    Command("match", Match, _match),
    Command("arena", Arena, _arena),
)
