"""`movelist check`, `record` and `convert`: their flags, and what they do. Bodies import what they need."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from movelist.core.command import Command
from movelist.core.errors import DataError, SettingsError
from movelist.core.settings import PlaySettings, RecordSettings, Repeated
from movelist.core.shell import quoted

if TYPE_CHECKING:
    from movelist.data.record_format import Widths
    from movelist.data.record_rules import Columns, Problem
    from movelist.data.repeated import Merging
    from movelist.data.store import StoreWriter


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check recordings: what is in them, and what is wrong. Exit code 1 if anything is."""

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Recordings (.jsonl, .jsonl.gz, .arrows), folders of them, or stores."""

    json: bool = False
    """One JSON object on standard output, talk on standard error."""

    strict: bool = False
    """Stop at the first bad record."""

    repeated_actions: Repeated = "refuse"
    """A list that names an action twice: "refuse" it, or "merge" the copies into one entry, and count them."""


@dataclass(frozen=True, kw_only=True)
class Record(RecordSettings):
    """Record self-play as an engine would."""


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Turn recordings into a store of ready tensors, or recordings and stores into a recording of the other format."""

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Recordings, folders of them, or stores."""

    out: Path
    """A store to make or to add to; or a new recording, if the name ends in .jsonl, .jsonl.gz or .arrows."""

    keep_forced: bool = False
    """Keep turns with a single legal action in the store."""

    strict: bool = False
    """Stop at the first bad record."""

    repeated_actions: Repeated = "refuse"
    """A list that names an action twice: "refuse" it, or "merge" the copies into one entry."""


def _needs_paths(command: Check | Convert) -> None:
    if not command.paths:
        raise SettingsError("no recording is named", expected="files, folders of them, or stores")


def _check(command: Check, words: Sequence[str]) -> int:
    _needs_paths(command)
    from movelist.data import recordings
    from movelist.data.record_rules import Problem
    from movelist.data.store import Store, is_store
    from movelist.play.survey import Survey

    survey = Survey(merging=_merging(command))
    stores = [path for path in command.paths if is_store(path)]
    sound: dict[str, dict[str, int]] = {}
    for path in stores:
        store = Store(path)
        for number in range(len(store.shards)):
            store.shard(number).episodes.check(str(path / store.shards[number].file))
        sound[str(path)] = {"episodes": len(store), "steps": store.num_steps}
        _say(f"{path}: a store of {len(store):,} episodes and {store.num_steps:,} steps; every checksum is right.")
    files = (
        recordings.find([path for path in command.paths if path not in stores], _say)
        if _others(command, stores)
        else []
    )
    for file in files:
        survey.files += 1
        try:
            known: dict[str, Any] = {
                "report": survey.problem,
                "strict": command.strict,
                "num_actions": _table_size(file, command),
                "merging": survey.merging,
            }
            for columns in recordings.read(file, **known):
                survey.add(columns)
        except DataError as error:
            if command.strict:
                raise
            survey.problem(
                Problem(
                    kind="unreadable", file=str(file), place="all of it", what=error.what, got=error.got, do=error.do
                )
            )
    if command.json:
        print(json.dumps(survey.to_json() | {"stores": sound}, allow_nan=False))
    elif files:
        print("\n".join(survey.lines()))
    if files and not survey.episodes:
        raise DataError("nothing in the recordings can be used", where=", ".join(map(str, command.paths)),
                        do="docs/episode_format.md says what a recording looks like.")  # fmt: skip
    return 1 if survey.num_problems else 0


def _merging(command: Check | Convert) -> Merging | None:
    """How recordings are read: None refuses lists that name an action twice."""
    from movelist.data.repeated import Merging

    return Merging() if command.repeated_actions == "merge" else None


def _table_size(file: Path, command: Check) -> int:
    """Rows of the table of actions that a training from this recording has; 0 if it has none."""
    from movelist.data.loader import first_widths
    from movelist.games.game import action_encoder
    from movelist.run.recorded import game_of

    try:
        game, _ = game_of(first_widths([file], _merging(command)))
    except DataError:  # what is wrong with it is said when it is read
        return 0
    return int(getattr(game, "num_actions", 0)) if action_encoder(game) == "table" else 0


def _others(command: Check, stores: Sequence[Path]) -> bool:
    return len(stores) < len(command.paths)


def _record(command: Record, words: Sequence[str]) -> int:
    import numpy as np

    from movelist.data import recordings
    from movelist.data.episode import OTHER, POLICY
    from movelist.data.record_rules import columns_of
    from movelist.games.bot import Bot
    from movelist.games.catalog import make_game
    from movelist.games.game import game_name
    from movelist.play.policy import Policy, derive_seeds
    from movelist.play.selfplay import RECORDINGS, play_games
    from movelist.run.players import find_player

    game = make_game(command.game, command.repeated_actions)
    if command.out.exists():
        raise DataError("the recording is there already", got=str(command.out), do="Choose another with --out.")
    players: list[Policy | Bot] = []
    versions = []
    for name in (command.policy, command.against or command.policy):
        loaded, version = find_player(name, game, greedy=False)
        players.append(loaded)
        versions.append(version)
    writer = recordings.writer(command.out)
    play, recorded = PlaySettings(keep_forced=True, critic_sees=command.critic_sees), 0
    try:
        for first in range(0, command.episodes, play.num_games):
            number_E = np.arange(first, min(first + play.num_games, command.episodes))
            seats_EP = np.zeros((len(number_E), game.num_players), np.int64)
            if command.against:  # the policy takes each seat equally often
                seats_EP = np.where(np.arange(game.num_players) == (number_E % game.num_players)[:, None], 0, 1)
            seed_E = derive_seeds(command.seed, RECORDINGS, first, len(number_E))
            episodes = play_games(game, players, seats_EP, seed_E, play).check(game_name(game))
            version_EP = np.array(versions)[seats_EP]
            episodes.controller_EP[:] = np.where(version_EP >= 0, POLICY, OTHER)
            writer.write(columns_of(episodes, game_name(game), version_EP, first=first))
            recorded += len(number_E)
    finally:
        writer.close()
        if not recorded:  # what was recorded before a failure stays, and is whole
            command.out.unlink()
    _say(f"Recorded {command.episodes:,} episodes of {game_name(game)} in {command.out}.")
    _say(f"Next: movelist check {quoted(command.out)}")
    return 0


def _convert(command: Convert, words: Sequence[str]) -> int:
    _needs_paths(command)
    from movelist.data import recordings
    from movelist.data.store import StoreWriter, is_store

    to_file = recordings.is_recording(command.out)
    if to_file and command.out.exists():
        raise DataError("the recording is there already", got=str(command.out), do="Choose another with --out.")
    stores = [path for path in command.paths if is_store(path)]
    if stores and not to_file:
        raise SettingsError("a store becomes a recording, not a store", got=str(command.out), where=str(stores[0]),
                            do="Give --out a name that ends in .jsonl, .jsonl.gz or .arrows.")  # fmt: skip
    others = [path for path in command.paths if path not in stores]
    files = recordings.find(others, _say) if others else []
    store = None if to_file else StoreWriter(command.out, keep_forced=command.keep_forced)
    writer = recordings.writer(command.out) if to_file else None
    problems: list[Problem] = []
    count = 0
    try:
        for columns in _all_columns(command, stores, files, store, problems):
            count += len(columns)
            if store:
                store.add(columns)
            elif writer:
                writer.write(columns)
        lost = [problem for problem in problems if not problem.harmless]
        for problem in lost[:3]:
            _say(f"left out: {problem}")
        if not count:
            raise DataError("nothing in the recordings can be used", where=", ".join(map(str, command.paths)),
                            do=f"movelist check {quoted(command.paths[0])} says why.")  # fmt: skip
        if writer:
            writer.close()
        total = store.commit() if store else count
    except BaseException:  # half a recording looks like a whole one, and half a new store like something else
        if store:
            store.discard()
        if writer:
            with contextlib.suppress(OSError):  # where the disk is full, the rest cannot be written either
                writer.close()
            command.out.unlink()
        raise
    _say(f"{count:,} episodes converted, {len(lost):,} bad records left out; {command.out} holds {total:,} episodes.")
    if store:
        _say(f"Next: movelist train --data {quoted(command.out)}")
    return 0


def _all_columns(
    command: Convert, stores: Sequence[Path], files: Sequence[Path], store: StoreWriter | None, problems: list[Problem]
) -> Iterator[Columns]:
    """Everything that is to be converted, all of one width; files are noted in the store as their turn comes."""
    from movelist.data import recordings
    from movelist.data.store import Store

    widths: Widths | None = store.widths if store else None
    for path in stores:
        opened = Store(path)
        if widths is not None and (difference := widths.difference(opened.widths)):
            field, expected, got = difference
            raise DataError("the stores differ", got=f"{field} {got}", expected=expected, where=str(path))
        widths = opened.widths
        yield from opened.recorded()
        opened.close()
    known: dict[str, Any] = {"report": problems.append, "strict": command.strict, "merging": _merging(command)}
    for file in files:
        if store:
            store.begin(file)
        for columns in recordings.read(file, expected=widths, **known):
            widths = columns.widths
            yield columns


def _say(text: str) -> None:
    print(text, file=sys.stderr)


COMMANDS = (Command("check", Check, _check), Command("record", Record, _record), Command("convert", Convert, _convert))
