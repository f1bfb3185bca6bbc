"""One training in progress: its parts, and the verbs that the story in train.py is told with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from movelist.core.errors import GameError, NonFiniteError, SaveError
from movelist.core.settings import TrainSettings
from movelist.data.episode import Episodes, Source
from movelist.games.game import Game, game_name
from movelist.games.openspiel import OpenSpielGame
from movelist.learn.device import choose_device, explain_too_wide, set_up
from movelist.learn.learner import Learner, Prepared
from movelist.learn.loss import imitation_loss, ppo_loss, recorded_ppo_loss
from movelist.learn.model import PolicyValueNet
from movelist.learn.parallel import World
from movelist.measure.live import Live
from movelist.play import arena
from movelist.play.export import publish
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from movelist.run.bad_minibatch import keep_bad_minibatch
from movelist.run.exactness import circumstances, restore_generators, what_differs
from movelist.run.folder import RunFolder, numbered, quoted
from movelist.run.recorded import OpenData, Recorded
from movelist.run.signals import break_off_on_signals
from movelist.run.start import Counters, Saved, check_start, model_shape
from movelist.run.totals import Totals

LOOK_SECONDS = 0.5  # how long to wait for an engine before asking whether anyone wants to stop
QUICK_MATCH_GAMES = 200  # for the win rate shown during training
SHARE_OF_SAVING = 0.01  # of the time, unless --save_every says otherwise


class Training:
    """One training: its parts and the five verbs of the story."""

    def __init__(self, settings: TrainSettings, game: Game, folder: RunFolder, world: World | None = None) -> None:
        self.settings, self.game, self.folder = settings, game, folder
        self.game_name = game_name(game)
        self.world = world or World(choose_device(settings.run.device))
        set_up(self.world.device, settings.run.num_threads)
        torch.manual_seed(settings.run.seed)
        self.shape = model_shape(settings, game)
        with explain_too_wide(self.shape.hidden_dim):
            self.net = PolicyValueNet(self.shape).to(self.world.device)
        recorded_loss = imitation_loss if settings.recorded.imitate else recorded_ppo_loss
        loss = recorded_loss if settings.recorded.data else ppo_loss
        self.learner = Learner(self.net, settings.update, self.world, seed=settings.run.seed, loss=loss)
        if (start := check_start(settings, game, self.shape)) is not None:
            self.net.load_state_dict(start["learner"]["net"])
            vars(self.learner.returns).update(start["learner"]["returns"])
            self.learner.num_updates = start["learner"]["num_updates"]  # numbers of policies are not given twice
        play = replace(settings.play, rollout_workers=0) if settings.recorded.data else settings.play
        self_play = SelfPlay(
            game, play, seed=settings.run.seed, share=self.world.share, say=lambda text: self.say(text)
        )
        self.source: Source = self_play
        self.workers = self_play.workers
        self.counters = Counters(processes=self.world.size)
        self.totals: Totals  # of the episodes of the present update, over all processes
        self.saved = Saved(self.learner.num_updates, None, time.monotonic())
        self.save_fails = False
        self.recorded: Recorded | None = None
        self.stop: list[int] = []  # signals that came to this process
        self.interrupted = False  # whether one came to any
        self.live: Live | None = None
        self._deadline = self._look_until = math.inf
        self.say: Callable[[str], None] = print if self.world.rank == 0 else lambda text: None
        self.notes: list[str] = []  # to be said in the greeting

    def train_from(self, data: OpenData) -> None:
        """Take recorded episodes in place of self-play."""
        # Waiting is no training, so max_seconds bounds it by the clock.
        self._deadline = time.monotonic() + (self.settings.run.max_seconds or math.inf)
        self.recorded = Recorded(
            data,
            self.settings,
            say=lambda text: self.say(text),
            version=lambda: self.learner.num_updates,
            keep_going=lambda: not self.watching or time.monotonic() < self._look_until,
            world=self.world,
        )
        self.source = self.recorded.source

    def write_settings(self) -> None:
        """Write the resolved settings, once nothing refused them."""
        resolved = self.settings.to_flat()
        resolved |= {"game": self.game_name, "out": str(self.folder.path), "resume": None}
        self.folder.write_json("settings.json", resolved)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, look at where the time goes, unless --no-live."""
        if not self.settings.run.live:
            yield
            return
        with Live(self.learner.world.device) as self.live:
            try:
                yield
            finally:
                self.live = None

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

    def asked_to_stop(self) -> bool:
        """Whether a signal came to one of the processes; all agree on it."""
        before, self.interrupted = self.interrupted, bool(self.world.gather([len(self.stop)]).any())
        if self.interrupted and not before and not self.stop:
            self.say("Another process was asked to stop.")
        return self.interrupted

    def collect(self) -> Episodes:
        """Play this process's share of the update's games with the present weights; `totals` says what all have.

        Raises:
            GameError: No turn of them has two legal actions.
        """
        if self.live:
            self.live.begin()
        policy = NetPolicy(self.net, use_amp=self.settings.update.use_amp)
        while True:
            self._look_until = time.monotonic() + LOOK_SECONDS
            episodes = self.source.collect(policy, self.settings.update.update_frequency)
            self.totals = Totals.of(episodes, self.world)
            if self.totals.episodes or not self.watching or self._tired():
                break
        if self.recorded:
            self.recorded.look_at(episodes, policy)
        if self.totals.episodes and not self.totals.steps:
            raise GameError(
                "there is nothing to decide",
                got=f"{self.totals.episodes} episodes in which every turn has one legal action",
                where=self.game_name,
                do="Such a game needs no training; if only some episodes are so, raise --update_frequency.",
            )
        return episodes

    def begin(self) -> None:
        """Before the first update: an engine that waits for policies need not make one up."""
        if self.watching:
            self.world.first(self.publish)

    def _tired(self) -> bool:
        """Whether one of the processes waits no longer for the engine."""
        late_R = self.world.gather([time.monotonic() > self._deadline])
        return self.asked_to_stop() or bool(late_R.any())

    def prepare(self, episodes: Episodes) -> Prepared:
        """Values, missing log-probs, advantages."""
        with self._keeping_bad_steps():
            return self.learner.prepare(episodes)

    def update(self, prepared: Prepared) -> dict[str, float]:
        """Some epochs of PPO; metrics by their tags."""
        lr = self.settings.update.lr
        if self.settings.update.lr_schedule == "linear":
            lr *= 1.0 - self.progress
        with self._keeping_bad_steps():
            return self.learner.update(prepared, lr=lr)

    @contextmanager
    def _keeping_bad_steps(self) -> Iterator[None]:
        """Write the steps in which a number went bad beside the run's files, and name the file in the error."""
        try:
            yield
        except NonFiniteError as error:
            if self.world.rank:
                raise
            path = self.folder.path / f"bad-minibatch-{self.learner.num_updates + 1:06d}.safetensors"
            raise keep_bad_minibatch(error, self.net, path) from None

    def count(self, totals: Totals, *, seconds: float) -> None:
        """Note that an update on these episodes is done; its seconds are the mean of all processes' clocks."""
        self.counters.steps += totals.steps
        self.counters.episodes += totals.episodes
        self.counters.seconds += float(self.world.gather([seconds]).mean())

    def save(self) -> Path:
        """Write a checkpoint, and publish it where an engine waits for it, unless there is one of this very update.

        Raises:
            SaveError: The disk is full; names the last checkpoint that is there.
        """
        if self.saved.file and self.saved.update == self.learner.num_updates:
            return self.saved.file
        started = time.monotonic()
        best = self.counters.last_match["arena/win_rate"] if self._is_best() else None
        counters = self.counters if best is None else replace(self.counters, best_win_rate=best)
        path = self.world.first(lambda: self._write(counters, best))
        if isinstance(path, SaveError):
            raise SaveError(path.what, got=path.got, where=path.where, do=self._last_good())
        self.counters = counters
        self.saved = Saved(self.learner.num_updates, path, time.monotonic(), time.monotonic() - started)
        return path

    def _write(self, counters: Counters, best: float | None) -> Path | SaveError:
        """The file; or why there is none, for all processes to hear."""
        keep = self.settings.run.keep_checkpoints
        try:
            path = self.folder.save(self.learner.num_updates, self._state(counters), keep=keep, best=best)
            if self.watching and self.recorded:
                self.folder.write_json("used_files.json", self.recorded.used_up())
                self.publish()
        except SaveError as error:
            return error
        return path

    def save_alone(self) -> None:
        """Save where no other process is needed for it: they may be busy elsewhere."""
        if self.world.size == 1:
            self.save()

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
        late = due or since >= 60.0 * run.save_minutes
        # By the clock of one process, for all have to do the same.
        return self.watching or self._is_best() or bool(self.world.gather([late])[0, 0])

    def _is_best(self) -> bool:
        """Whether the present weights did better in their quick match than all before."""
        now = self.counters.matched_update == self.learner.num_updates
        return now and self.counters.last_match["arena/win_rate"] > self.counters.best_win_rate

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
            self.world.first(lambda: self.folder.cut_metrics(0))
            return
        file, state = checkpoint.load_newest(self.folder.path, say=self.notes.append)
        checkpoint.check_fits(state, self.folder.path, game=self.game_name, **asdict(self.shape))
        self.world.first(lambda: self.folder.set_aside(after=file))
        self.learner.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        if self.recorded and state.get("recorded"):  # a checkpoint of an older version has none
            self.recorded.load_state_dict(state["recorded"])
        before = Counters(**state["counters"])
        self.counters = replace(before, processes=self.world.size)
        self.saved = Saved(self.learner.num_updates, file, time.monotonic())
        if "generators" in state:  # a checkpoint of an older version has none, and draws nothing from them
            restore_generators(state["generators"])
        self.notes += what_differs(state.get("circumstances", {}), circumstances(self.learner.world.device))
        if before.processes != self.world.size:
            self.notes.append(
                f"Trained in {before.processes} processes so far, now in {self.world.size}: it goes on with the same "
                "games or data, but the steps are grouped otherwise, so not exactly as it would have."
            )
        self.world.first(lambda: self.folder.cut_metrics(self.counters.steps))

    def _match(self, num_games: int) -> arena.MatchResult:
        """Greedy play against random players."""
        policy = NetPolicy(self.net, greedy=True)
        play, workers = self.settings.play, self.workers
        return arena.match(policy, RandomPolicy(), self.game, num_games=num_games, play=play, workers=workers)

    def final_match(self) -> arena.MatchResult | None:
        """The match at the end of the training; None if a signal breaks it off, and in all processes but the first.

        These leave at once: no process waits longer than half an hour for another, and a match may take longer.
        """
        if self.world.rank:
            return None
        try:
            with break_off_on_signals():
                return self._match(self.settings.run.eval_games)
        except KeyboardInterrupt:
            return None
        finally:
            self.source.close()  # the workers started once more

    def quick_match(self) -> dict[str, float]:
        """A first impression of the strength, every few updates, for the display and to find the best checkpoint."""
        run = self.settings.run
        if not run.eval_games or self.learner.num_updates % run.eval_every:
            return {}
        result = self.world.first(lambda: self._match(min(QUICK_MATCH_GAMES, run.eval_games)))
        self.counters.last_match = {"arena/win_rate": result.win_rate, "arena/mean_return": result.mean_return}
        self.counters.matched_update = self.learner.num_updates
        return self.counters.last_match

    def pace(self, totals: Totals, *, collect_seconds: float, learn_seconds: float) -> dict[str, float]:
        """Speed, returns and list lengths of one update, by their tags."""
        seconds = collect_seconds + learn_seconds
        metrics = {
            "charts/updates": float(self.learner.num_updates),
            "charts/SPS": totals.steps / seconds,
            "charts/episodes": float(self.counters.episodes),
            "charts/episodic_length": totals.turns / totals.episodes,
            "legal/actions_per_second": totals.actions / seconds,
            "legal/actions_per_step": totals.actions / max(1, totals.steps),
            "legal/decision_share": totals.steps / max(1, totals.turns),
            "perf/rollout_share": collect_seconds / seconds,
            "perf/update_share": learn_seconds / seconds,
        }
        for seat, mean in enumerate(totals.return_P):
            metrics[f"charts/episodic_return_seat_{seat}"] = float(mean)
        if self.live:
            metrics |= self.live.metrics(seconds)
        if self.recorded:
            metrics |= self.recorded.metrics()
        if self.progress > 0:
            metrics["charts/seconds_left"] = self.counters.seconds * (1.0 / self.progress - 1.0)
        return metrics
