"""Training from recorded episodes: what --data opens, and what a person should know about it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from movelist.core.errors import DataError, GameError, MissingExtraError, SettingsError
from movelist.core.patience import Patience
from movelist.core.settings import TrainSettings
from movelist.data import recordings
from movelist.data.episode import HUMAN, OTHER, POLICY, Episodes
from movelist.data.loader import RecordedSource, RecordingStream, StoreStream, Stream, first_widths
from movelist.data.record_format import Widths
from movelist.data.record_rules import Problem
from movelist.data.store import Store, is_store
from movelist.games.catalog import from_anywhere, is_known, is_own, library_of, make_game, make_known
from movelist.games.check import check_game
from movelist.games.game import Game, game_name, state_size
from movelist.games.openspiel import OpenSpielGame
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy, Policy, Turns
from movelist.play.profiles import profile_named
from movelist.play.survey import Incoming
from movelist.run.supply import Supply

LARGEST_ERROR = 1e-3  # of a recorded log-prob of the present policy; float32 on another machine stays below 1e-4
CHECKED_STEPS = 1024
SAID_PROBLEMS = 5


@dataclass
class RecordedGame:
    """A game that is known from its recordings only: it has sizes, and nobody can play it here."""

    name: str
    num_players: int
    state_size: int
    action_encoder: str = "bits"

    def new_state(self, seed: int) -> NoReturn:
        """Refuse.

        Raises:
            GameError: Always.
        """
        raise GameError("this game is known from recordings only", got=self.name, do="Play it in its own engine.")


@dataclass(frozen=True)
class OpenData:
    """What --data named, opened.

    Attributes:
        widths: Of the episodes.
        store: The store, if it is one.
        num_episodes: How many episodes of the store are used.
        files: The recordings, if it is not.
        sizes: How many bytes of each are read.
        watched: The folder to watch, if there is one.
        notes: What is to be said about it.
    """

    widths: Widths
    store: Store | None = None
    num_episodes: int = 0
    files: tuple[Path, ...] = ()
    sizes: tuple[int, ...] = ()
    watched: Path | None = None
    notes: tuple[str, ...] = ()


def open_data(
    settings: TrainSettings, game: Game | None, say: Callable[[str], None] = print, world: World | None = None
) -> tuple[TrainSettings, Game, OpenData | None]:
    """The settings, the game and the data of a training; no data for self-play.

    Args:
        settings: Of the training.
        game: A game of one's own; None takes that of the settings or of the data.
        say: Told what is waited for, and what is left out.
        world: The processes that train together: all of them read what rank 0 finds, though an engine goes on writing.

    Raises:
        DataError: Nothing in the data can be used.
        GameError: The game is unknown.
        SettingsError: The data are of another game, or settings do not go together.
    """
    if not settings.recorded.data:
        run = replace(settings.run, total_steps=settings.run.step_goal)
        if game is None:
            name = "dou_dizhu" if settings.game is None else settings.game
            game, name = _made(name, settings.play.max_turns), from_anywhere(name)
        else:  # the settings may say where its class stands, so that commands find it
            name = settings.game if settings.game and is_own(settings.game) else game_name(game)
        return replace(settings, game=name, run=run), game, None
    profile_named(settings.recorded.publish)
    data = _open(settings, say, world or World(torch.device("cpu")))
    name = data.widths.game if settings.game is None else from_anywhere(settings.game)
    if name != data.widths.game:
        if game is None and is_known(name):
            game = _made(str(settings.game), settings.play.max_turns)
        if game is None or game_name(game) != data.widths.game:
            expected = settings.game if game is None else game_name(game)
            raise SettingsError("the data are of another game", got=data.widths.game, expected=expected,
                                do="Leave out --game, or give its own recordings.")  # fmt: skip
    game, note = game_of(data.widths, game)
    run = settings.run
    if run.total_steps == "auto":
        run = replace(run, total_steps=None)
    if note:
        run = replace(run, eval_games=0)
    return replace(settings, game=name, run=run), game, replace(data, notes=(note,) if note else ())


def _made(name: str, max_turns: int) -> Game:
    """The game of a name; one that comes from outside is seen to keep its promises before it is trained on.

    Raises:
        MovelistError: There is none, or it breaks a promise.
    """
    game = make_game(name)
    if not isinstance(game, OpenSpielGame):
        check_game(game, num_games=1, max_turns=max_turns, cut_off=True)
    return game


def _open(settings: TrainSettings, say: Callable[[str], None], world: World) -> OpenData:
    paths, recorded = settings.recorded.data, settings.recorded
    if recorded.watch:
        if not paths[0].is_dir():
            raise SettingsError("--watch needs a folder", got=str(paths[0]))
        widths = world.first(lambda: _wait_for_widths(paths[0], settings.run.max_seconds, say))
        return OpenData(widths, watched=paths[0])
    stores = [path for path in paths if is_store(path)]
    if stores and len(paths) > 1:
        raise SettingsError("one store, or recordings, not both", got=" ".join(map(str, paths)),
                            do="Add recordings to the store with movelist convert.")  # fmt: skip
    if stores:
        num_episodes = world.first(
            lambda: len(Store(stores[0]))
        )  # what is added while another one opens it is not read
        store = Store(stores[0])
        if store.keep_forced != settings.play.keep_forced:
            raise SettingsError("the store was made with another --keep_forced", got=settings.play.keep_forced,
                                expected=store.keep_forced, where=str(stores[0]))  # fmt: skip
        return OpenData(store.widths, store=store, num_episodes=num_episodes)
    return world.first(lambda: _find(paths, say))


def _find(paths: Sequence[Path], say: Callable[[str], None]) -> OpenData:
    files = tuple(recordings.find(paths, say))
    return OpenData(first_widths(files), files=files, sizes=tuple(file.stat().st_size for file in files))


def _wait_for_widths(folder: Path, max_seconds: float | None, say: Callable[[str], None]) -> Widths:
    """The widths of the first episode that comes; nothing can be built before.

    Raises:
        DataError: None came within `max_seconds`.
    """
    deadline, said, patience = time.monotonic() + (max_seconds or math.inf), "", Patience()
    while True:
        try:
            return first_widths(recordings.find([folder]))
        except DataError as error:
            if time.monotonic() > deadline:
                raise
            if error.what != said:
                said = error.what
                say(f"Waiting for the first episode in {folder}: {error}")
            elif waited := patience.word_is_due():
                say(f"Waiting for {waited} for the first episode in {folder}.")
            time.sleep(0.5)


def game_of(widths: Widths, game: Game | None = None) -> tuple[Game, str]:
    """The game to play matches of, and why there is none."""
    recorded = RecordedGame(widths.game, widths.num_players, widths.state_size)
    try:
        played = game or make_known(widths.game)
    except MissingExtraError:
        return recorded, f"{library_of(widths.game)} is not installed, so there is no match at the end."
    except GameError:
        return recorded, f"{widths.game} cannot be played here, so there is no match at the end."
    if (played.num_players, state_size(played)) != (widths.num_players, widths.state_size):
        return recorded, f"The recorded states are not those of {widths.game} here, so there is no match at the end."
    return played, ""


class Recorded(Supply):
    """The supply of recordings, or of a store.

    Args:
        data: From `open_data`.
        settings: Of the training.
        say: Told what a person should know.
        version: The present policy's number.
        world: The processes that share the data.
        num_actions: Rows of the network's table of actions; 0 for no table.
    """

    source: RecordedSource
    from_recordings = True

    def __init__(
        self,
        data: OpenData,
        settings: TrainSettings,
        *,
        say: Callable[[str], None],
        version: Callable[[], int],
        world: World,
        num_actions: int = 0,
    ) -> None:
        self.num_actions = num_actions
        self.data, self.settings, self.say, self.version, self.world = data, settings, say, version, world
        self.num_problems = 0
        self.incoming = Incoming()
        self._said: set[str] = set()
        recorded = settings.recorded
        self.stream = self._stream()
        super().__init__(
            RecordedSource(
                self.stream,
                learn_from=_controllers(settings),
                max_lag=recorded.max_policy_lag,
                version=version,
                say=say,
                total=lambda *numbers: world.gather(numbers).sum(axis=0).astype(int).tolist(),
            )
        )

    @property
    def done(self) -> float:  # type: ignore[override]
        """Share of the data that is used, 0 to 1."""
        return self.source.done

    def lines(self) -> list[str]:
        """What is said before the first update."""
        data, recorded = self.data, self.settings.recorded
        what = f"{data.widths.game}, {data.widths.num_players} players, state size {data.widths.state_size:,}"
        lines = [f"{'Imitation' if recorded.imitate else 'PPO'} from {', '.join(map(str, recorded.data))}: {what}."]
        if data.store:
            lines.append(f"A store of {len(data.store):,} episodes with {data.store.num_steps:,} steps.")
        elif sum(file.stat().st_size for file in data.files) > 1 << 20:
            lines.append("Read as they are; made into a store first, they load many times faster: movelist convert.")
        further = [column.label for column in data.widths.further]
        lines += [f"{' and '.join(further)} are checked, and read by networks that name them only."] if further else []
        return [*lines, *data.notes]

    def look_at(self, episodes: Episodes, policy: Policy) -> None:
        """Count a rollout's games, and say what is worth knowing of it, each thing once, before it is trained on."""
        rollout = self.source.last
        if rollout is None or not len(episodes):
            return
        self.incoming.add(rollout.episodes, rollout.version_EP)
        if not self.settings.recorded.imitate:
            if self.source.metrics["data/missing_log_prob_share"] > 0:
                self._once(
                    "Log-probs are missing: the present policy computes them, which treats the data as its own games."
                )
            if (rollout.episodes.controller_EP == HUMAN).any():
                self._once("People moved some seats: --imitate learns from their games, then --init_from starts PPO.")
            if isinstance(policy, NetPolicy):
                self._compare(episodes, rollout.version_EP, policy)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last rollout, by their tags."""
        return {**self.source.metrics, **self.incoming.metrics(), "data/bad_records": float(self.num_problems)}

    def state_dict(self) -> dict[str, Any]:
        """The games counted so far."""
        return {"incoming": self.incoming.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.incoming.load_state_dict(state["incoming"])

    def _stream(self) -> Stream:
        data, settings = self.data, self.settings
        passes, seed, keep_forced = settings.recorded.data_passes, settings.run.seed, settings.play.keep_forced
        common: dict[str, Any] = {
            "passes": passes, "seed": seed, "share": self.world.share, "report": self._report,
            "num_actions": self.num_actions,
        }  # fmt: skip
        if data.store:
            return StoreStream(data.store, num_episodes=data.num_episodes, **common)
        return RecordingStream(data.files, sizes=data.sizes, keep_forced=keep_forced, **common)

    def _report(self, problem: Problem) -> None:
        if problem.harmless:
            return
        self.num_problems += 1
        if self.num_problems <= SAID_PROBLEMS:
            self.say(f"Left out: {problem}")
        if self.num_problems == SAID_PROBLEMS:
            self.say("Further ones are counted in data/bad_records; movelist check tells all of them.")

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def _compare(self, episodes: Episodes, version_EP: np.ndarray, policy: NetPolicy) -> None:
        """Hold recorded log-probs of the present policy against its own."""
        seat = (episodes.episode_N, episodes.player_N)
        known_N = (version_EP[seat] == self.version()) & (episodes.controller_EP[seat] == POLICY)
        step_N = np.flatnonzero(known_N & ~np.isnan(episodes.log_prob_N))[:CHECKED_STEPS]
        if not len(step_N) or "compared" in self._said:
            return
        self._said.add("compared")
        part = episodes.select_steps(np.isin(np.arange(episodes.num_steps), step_N))
        nothing = np.zeros(len(step_N), np.int64)
        turns = Turns(part.state_NS, np.diff(part.action_offsets), part.action_id_A, nothing, nothing)
        own_N = policy.log_probs(turns)[part.action_offsets[:-1] + part.chosen_N]
        error = float(np.abs(own_N - part.log_prob_N).max())
        text = f"{len(step_N):,} recorded log-probs of policy {self.version()} differ from the present network's by "
        text += f"up to {error:.1e}"
        if error > LARGEST_ERROR:
            text = f"Warning: {text}, more than rounding does (1e-3): was another network or temperature at play?"
        self.say(text)


def _controllers(settings: TrainSettings) -> frozenset[int]:
    """Whose steps are trained on."""
    names = {"policy": {POLICY}, "human": {HUMAN}, "other": {OTHER}, "all": {POLICY, HUMAN, OTHER}}
    default = "human" if settings.recorded.imitate else "policy"
    return frozenset(names[settings.recorded.learn_from or default])
