"""One training in progress: its parts, and the verbs that the story in train.py is told with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from movelist.core.errors import NonFiniteError, SaveError, SettingsError
from movelist.core.settings import TrainSettings
from movelist.data.episode import Episodes, Source
from movelist.games.game import Game, action_encoder, game_name, state_size
from movelist.games.openspiel import OpenSpielGame
from movelist.learn.device import choose_device, set_up
from movelist.learn.learner import Learner, Prepared
from movelist.learn.loss import imitation_loss, ppo_loss
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.play import arena
from movelist.play.export import publish
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from movelist.run.bad_minibatch import keep_bad_minibatch
from movelist.run.exactness import circumstances, restore_generators, what_differs
from movelist.run.folder import RunFolder, numbered, quoted
from movelist.run.recorded import OpenData, Recorded

QUICK_MATCH_GAMES = 200  # for the win rate shown during training
SHARE_OF_SAVING = 0.01  # of the time, unless --save_every says otherwise


@dataclass
class Counters:
    """How far a run has come; saved with it.

    Attributes:
        steps: Trained on.
        episodes: Trained on.
        seconds: Of training.
        best_win_rate: Of the checkpoint that best.json names; below 0 if there is none.
        last_match: The last quick match, by its tags.
        matched_update: After which update that was.
    """

    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    best_win_rate: float = -1.0
    last_match: dict[str, float] = field(default_factory=dict)
    matched_update: int = -1


@dataclass(frozen=True)
class Saved:
    """The last save.

    Attributes:
        update: Its number.
        file: The checkpoint; None before the first.
        at: When, on the monotonic clock.
        seconds: What it took; 0 before the first.
    """

    update: int
    file: Path | None
    at: float
    seconds: float = 0.0


class Training:
    """One training: its parts and the five verbs of the story."""

    def __init__(self, settings: TrainSettings, game: Game, folder: RunFolder) -> None:
        self.settings, self.game, self.folder = settings, game, folder
        self.game_name = game_name(game)
        device = choose_device(settings.run.device)
        set_up(device, settings.run.num_threads)
        torch.manual_seed(settings.run.seed)
        self.shape = model_shape(settings, game)
        self.net = PolicyValueNet(self.shape).to(device)
        loss = imitation_loss if settings.recorded.imitate else ppo_loss
        self.learner = Learner(self.net, settings.update, World(device), seed=settings.run.seed, loss=loss)
        if (start := check_start(settings, game, self.shape)) is not None:
            self.net.load_state_dict(start["learner"]["net"])
            vars(self.learner.returns).update(start["learner"]["returns"])
            self.learner.num_updates = start["learner"]["num_updates"]  # numbers of policies are not given twice
        play = replace(settings.play, rollout_workers=0) if settings.recorded.data else settings.play
        self.source: Source = SelfPlay(game, play, seed=settings.run.seed, say=lambda text: self.say(text))
        self.counters = Counters()
        self.saved = Saved(self.learner.num_updates, None, time.monotonic())
        self.save_fails = False
        self.notes: list[str] = []  # to be said in the greeting
        self.recorded: Recorded | None = None
        self.stop: list[int] = []
        self.say: Callable[[str], None] = print

    def train_from(self, data: OpenData) -> None:
        """Take recorded episodes in place of self-play."""
        # Waiting is no training, so max_seconds bounds it by the clock.
        deadline = time.monotonic() + (self.settings.run.max_seconds or math.inf)
        self.recorded = Recorded(
            data,
            self.settings,
            say=lambda text: self.say(text),
            version=lambda: self.learner.num_updates,
            keep_going=lambda: not self.stop and time.monotonic() < deadline,
        )
        self.source = self.recorded.source

    @property
    def watching(self) -> bool:
        """Whether an engine is waiting for each new policy."""
        return self.settings.recorded.watch

    @property
    def is_openspiel(self) -> bool:
        """Whether the game has a name that the command line knows."""
        return isinstance(self.game, OpenSpielGame)

    @property
    def progress(self) -> float:
        """Share of the way to the nearer of total_steps and max_seconds; 0 if there is neither."""
        goals = (
            (self.counters.steps, self.settings.run.step_goal),
            (self.counters.seconds, self.settings.run.max_seconds),
            (self.recorded.source.done if self.recorded else 0.0, 1.0),
        )
        return min(1.0, max((done / goal for done, goal in goals if goal), default=0.0))

    def collect(self) -> Episodes:
        """Play the update's games with the present weights."""
        policy = NetPolicy(self.net, use_amp=self.settings.update.use_amp)
        episodes = self.source.collect(policy, self.settings.update.update_frequency)
        if self.recorded:
            self.recorded.look_at(episodes, policy)
        return episodes

    def begin(self) -> None:
        """Before the first update: an engine that waits for policies need not make one up."""
        if self.watching:
            self.publish()

    def prepare(self, episodes: Episodes) -> Prepared:
        """Values, missing log-probs, advantages."""
        return self.learner.prepare(episodes)

    def update(self, prepared: Prepared) -> dict[str, float]:
        """Some epochs of PPO; metrics by their tags."""
        lr = self.settings.update.lr
        if self.settings.update.lr_schedule == "linear":
            lr *= 1.0 - self.progress
        try:
            return self.learner.update(prepared, lr=lr)
        except NonFiniteError as error:
            path = self.folder.path / f"bad-minibatch-{self.learner.num_updates + 1:06d}.safetensors"
            raise keep_bad_minibatch(error, self.net, path) from None

    def count(self, episodes: Episodes, *, seconds: float) -> None:
        """Note that an update on these episodes is done."""
        self.counters.steps += episodes.num_steps
        self.counters.episodes += len(episodes)
        self.counters.seconds += seconds

    def save(self) -> Path:
        """Write a checkpoint, and publish it where an engine waits for it, unless there is one of this very update.

        Raises:
            SaveError: The disk is full; names the last checkpoint that is there.
        """
        if self.saved.file and self.saved.update == self.learner.num_updates:
            return self.saved.file
        started = time.monotonic()
        try:
            path = self._write_checkpoint()
            if self.watching and self.recorded:
                self.folder.write_json("used_files.json", self.recorded.used_up())
                self.publish()
        except SaveError as error:
            raise SaveError(error.what, got=error.got, where=error.where, do=self._last_good()) from None
        self.saved = Saved(self.learner.num_updates, path, time.monotonic(), time.monotonic() - started)
        return path

    def save_if_due(self) -> None:
        """Save every few updates or minutes. What cannot be saved is tried again after the next update."""
        if not self._save_is_due():
            return
        try:
            path = self.save()
        except SaveError as error:
            if not self.save_fails:
                self.say(f"Warning: {error} The training goes on, and each update tries again to save.")
            self.save_fails = True
            return
        if self.save_fails:
            self.say(f"Saving works again: {path.name}.")
        self.save_fails = False

    def _save_is_due(self) -> bool:
        run, updates = self.settings.run, self.learner.num_updates
        since = time.monotonic() - self.saved.at
        if run.save_every is None:
            due = since >= self.saved.seconds / SHARE_OF_SAVING
        else:
            due = updates // run.save_every > self.saved.update // run.save_every
        return due or self.watching or self._is_best() or since >= 60.0 * run.save_minutes

    def _is_best(self) -> bool:
        """Whether the present weights did better in their quick match than all before."""
        now = self.counters.matched_update == self.learner.num_updates
        return now and self.counters.last_match["arena/win_rate"] > self.counters.best_win_rate

    def _write_checkpoint(self) -> Path:
        best = self.counters.last_match["arena/win_rate"] if self._is_best() else None
        counters = self.counters if best is None else replace(self.counters, best_win_rate=best)
        keep = self.settings.run.keep_checkpoints
        path = self.folder.save(self.learner.num_updates, self._state(counters), keep=keep, best=best)
        self.counters = counters
        return path

    def _last_good(self) -> str:
        if self.saved.file is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is {quoted(self.saved.file)}."

    def _state(self, counters: Counters) -> dict[str, Any]:
        return checkpoint.pack(
            settings=self.settings.to_flat() | {"game": self.game_name},
            shape=self.shape,
            learner=self.learner.state_dict(),
            source=self.source.state_dict(),
            recorded=self.recorded.state_dict() if self.recorded else None,
            counters=asdict(counters),
            device=self.learner.world.device,
        )

    def publish(self) -> None:
        """Hand the present policy to the engine that is waiting for it."""
        wanted = self.settings.recorded.publish
        publish(
            self.net,
            checkpoint.policy_info(self._state(self.counters)),
            self.folder.path / "policies",
            onnx=None if wanted == "weights" else wanted,
            keep=self.settings.run.keep_checkpoints,
        )

    def resume(self) -> None:
        """Go on from the folder's newest checkpoint that can be read; start anew if the run never got to one."""
        if not numbered(self.folder.checkpoints):
            self.notes.append("The run was broken off before its first checkpoint: it starts anew.")
            self.folder.cut_metrics(0)
            return
        file, state = checkpoint.load_newest(self.folder.path, say=self.notes.append)
        checkpoint.check_fits(state, self.folder.path, game=self.game_name, **asdict(self.shape))
        self.folder.set_aside(after=file)
        self.learner.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        if self.recorded and state.get("recorded"):  # a checkpoint of an older version has none
            self.recorded.load_state_dict(state["recorded"])
        self.counters = Counters(**state["counters"])
        self.saved = Saved(self.learner.num_updates, file, time.monotonic())
        if "generators" in state:  # a checkpoint of an older version has none, and draws nothing from them
            restore_generators(state["generators"])
        self.notes += what_differs(state.get("circumstances", {}), circumstances(self.learner.world.device))
        self.folder.cut_metrics(self.counters.steps)

    def match(self, num_games: int) -> arena.MatchResult:
        """Greedy play against random players."""
        policy = NetPolicy(self.net, greedy=True)
        return arena.match(policy, RandomPolicy(), self.game, num_games=num_games, play=self.settings.play)

    def quick_match(self) -> dict[str, float]:
        """A first impression of the strength, every few updates, for the display and to find the best checkpoint."""
        run = self.settings.run
        if not run.eval_games or self.learner.num_updates % run.eval_every:
            return {}
        result = self.match(min(QUICK_MATCH_GAMES, run.eval_games))
        self.counters.last_match = {"arena/win_rate": result.win_rate, "arena/mean_return": result.mean_return}
        self.counters.matched_update = self.learner.num_updates
        return self.counters.last_match

    def pace(self, episodes: Episodes, *, collect_seconds: float, learn_seconds: float) -> dict[str, float]:
        """Speed, returns and list lengths of one update, by their tags."""
        seconds = collect_seconds + learn_seconds
        metrics = {
            "charts/updates": float(self.learner.num_updates),
            "charts/SPS": episodes.num_steps / seconds,
            "charts/episodes": float(self.counters.episodes),
            "charts/episodic_length": episodes.num_turns / len(episodes),
            "legal/actions_per_second": episodes.num_actions / seconds,
            "legal/actions_per_step": episodes.num_actions / max(1, episodes.num_steps),
            "legal/decision_share": episodes.num_steps / max(1, episodes.num_turns),
            "perf/rollout_share": collect_seconds / seconds,
            "perf/update_share": learn_seconds / seconds,
        }
        for seat, mean in enumerate(episodes.return_EP.mean(axis=0)):
            metrics[f"charts/episodic_return_seat_{seat}"] = float(mean)
        if self.recorded:
            metrics |= self.recorded.metrics()
        if self.progress > 0:
            metrics["charts/seconds_left"] = self.counters.seconds * (1.0 / self.progress - 1.0)
        return metrics


def model_shape(settings: TrainSettings, game: Game) -> ModelShape:
    """The sizes of the network for a game."""
    encoder = settings.model.action_encoder
    if encoder == "auto":
        encoder = action_encoder(game)
    num_actions = int(getattr(game, "num_actions", 0)) if encoder == "table" else 0
    if encoder == "table" and num_actions < 1:
        raise SettingsError(
            "--action_encoder table needs a game that tells its num_actions", got=game_name(game), do="Use bits."
        )
    return ModelShape(
        state_size=getattr(game, "state_size", None) or state_size(game),
        hidden_dim=settings.model.hidden_dim,
        action_hidden_dim=settings.model.action_hidden_dim or 0,
        action_encoder=encoder,
        num_actions=num_actions,
    )


def check_start(settings: TrainSettings, game: Game, shape: ModelShape) -> dict[str, Any] | None:
    """The checkpoint of --init_from, if a new run is to start from one.

    Raises:
        CheckpointError: It cannot be read, or is of another game or size.
    """
    path = settings.recorded.init_from
    if path is None or (settings.run.resume and numbered(settings.run.resume / "checkpoints")):
        return None
    state = checkpoint.load(path)
    checkpoint.check_fits(state, path, game=game_name(game), **asdict(shape))
    return state
