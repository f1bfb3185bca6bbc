"""One training in progress: its parts, and the verbs that the story in train.py is told with."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from movelist.core.errors import GameError, NonFiniteError, SaveError
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.data.episode import Episodes, Source, concatenate
from movelist.games.catalog import is_known
from movelist.games.columns import game_columns
from movelist.games.game import Game, game_name
from movelist.games.openspiel import OpenSpielGame
from movelist.learn.critic import take_over
from movelist.learn.device import choose_device, explain_too_wide, set_up
from movelist.learn.learner import Learner, Prepared
from movelist.learn.loss import imitation_loss, ppo_loss, recorded_ppo_loss
from movelist.learn.make_net import make_net, try_out
from movelist.learn.model import Network
from movelist.learn.parallel import World
from movelist.measure.live import Live
from movelist.play import arena
from movelist.play.export import publish
from movelist.play.policy import NetPolicy, Policy, RandomPolicy
from movelist.run import best, checkpoint
from movelist.run.bad_minibatch import keep_bad_minibatch
from movelist.run.carry_over import Layout, layout_of
from movelist.run.exactness import circumstances, restore_generators, what_differs
from movelist.run.folder import RunFolder, number_of, numbered
from movelist.run.ladder import BEATEN, RANDOM, Ladder, Rung, rated
from movelist.run.parts import NOTHING, Parts
from movelist.run.recorded import OpenData, Recorded
from movelist.run.signals import break_off_on_signals
from movelist.run.start import Counters, Saved, Update, check_start, make_critic, model_shape, shape_of
from movelist.run.supply import SelfPlaySupply, Supply
from movelist.run.totals import Totals
from movelist.run.watched import Watched

MATCH_SEED = 0  # the same games for every match of a training
QUICK_MATCH_GAMES = 200  # for the win rate shown during training
SHARE_OF_SAVING = 0.01  # of the time, unless --save_every says otherwise
UPDATES_IN_TIME = 2  # so many at least are to fit into max_seconds
LEARN_TO_COLLECT = 1.0  # seconds of learning for each second of playing, before the first update has shown it


def first_net(settings: TrainSettings, game: Game, world: World, parts: Parts, data: OpenData | None = None) -> Network:
    """Make the device and the random numbers ready, and with these the network.

    Raises:
        SettingsError: A part of one's own cannot be made, or does not fit.
    """
    set_up(world.device, settings.run.num_threads)
    torch.manual_seed(settings.run.seed)
    with explain_too_wide(settings.model.hidden_dim):
        net = make_net(model_shape(settings, game), state_encoder=parts.state_encoder, network=parts.net)
        net = net.to(world.device)
    if settings.model.network is not None:
        told = {column: column.width or 0 for column in game_columns(game)} if data is None else data.widths.further
        try_out(net, told)
    return net


class Training:
    """One training: its parts and the five verbs of the story.

    Args:
        settings: All of them.
        game: What is played.
        folder: Of the run.
        world: The processes that train together; None trains alone.
        data: Recorded episodes in place of self-play.
        parts: What takes the place of that which the settings describe.
        net: From `first_net`; None makes it.
    """

    _said_truncated = False  # whether it was warned of games that are cut off
    _said_smaller = False  # and of updates that max_seconds makes smaller

    def __init__(
        self,
        settings: TrainSettings,
        game: Game,
        folder: RunFolder,
        world: World | None = None,
        *,
        data: OpenData | None = None,
        parts: Parts = NOTHING,
        net: Network | None = None,
    ) -> None:
        self.settings, self.game, self.folder = settings, game, folder
        self.parts = parts
        self.game_name = game_name(game)
        self.world = world or World(choose_device(settings.run.device))
        self.net = first_net(settings, game, self.world, self.parts, data) if net is None else net
        self.shape = shape_of(self.net, settings)
        recorded_loss = imitation_loss if settings.recorded.imitate else recorded_ppo_loss
        loss = self.parts.loss or (recorded_loss if settings.recorded.data else ppo_loss)
        make_learner = self.parts.learner or Learner
        recorded = data.widths.critic_size if data else None
        critic = make_critic(settings, game, self.net, self.world.device, recorded)
        further = {} if critic is None else {"critic": critic}  # learners of one's own may know of none
        self.learner = make_learner(self.net, settings.update, self.world, seed=settings.run.seed, loss=loss, **further)
        self.layout = layout_of(game, self.shape)
        self.notes: list[str] = []  # to be said in the greeting
        if (start := check_start(settings, game, self.shape)) is not None:
            self.notes += start["carried"]
            checkpoint.load_weights(self.net, start)
            take_over(critic, start["learner"].get("critic"))
            vars(self.learner.returns).update(start["learner"]["returns"])
            self.learner.num_updates = start["learner"]["num_updates"]  # numbers of policies are not given twice
        self.counters = Counters(processes=self.world.size)
        self.totals: Totals  # of the episodes of the present update, over all processes
        self.saved = Saved(self.learner.num_updates, None, time.monotonic())
        self.save_fails = False
        self.stop: list[int] = []  # signals that came to this process
        self.interrupted = False  # whether one came to any
        self.live: Live | None = None
        self.say: Callable[[str], None] = print if self.world.rank == 0 else lambda text: None
        self.supply = self._supply(data)
        self.ladder = Ladder(folder.path)

    def _supply(self, data: OpenData | None) -> Supply:
        """Where the episodes come from: what was handed in, recordings, or self-play."""
        if self.parts.source is not None:
            return Supply(self.parts.source, (f"{type(self.parts.source).__name__} supplies the episodes.",))

        def say(text: str) -> None:
            self.say(text)  # which is another one once the display is there

        def version() -> int:
            return self.learner.num_updates

        if data is None:
            return SelfPlaySupply(
                self.game, self.settings, share=self.world.share, opponents=self.parts.opponents, say=say
            )
        make: Callable[..., Recorded] = Recorded
        if data.watched is not None:
            make = partial(Watched, asked_to_stop=self.asked_to_stop, publish=self.publish)
        num_actions = self.shape.num_actions
        return make(data, self.settings, say=say, version=version, world=self.world, num_actions=num_actions)

    @property
    def source(self) -> Source:
        """Where the episodes come from."""
        return self.supply.source

    def write_settings(self) -> None:
        """Write the resolved settings, once nothing refused them."""
        resolved = self.settings.to_flat()
        resolved |= {"out": str(self.folder.path), "resume": None}
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
    def is_named(self) -> bool:
        """Whether the game can be played here by its name in the settings, as commands do."""
        return isinstance(self.game, OpenSpielGame) or is_known(str(self.settings.game))

    @property
    def progress(self) -> float:
        """Share of the way to the nearer of total_steps and max_seconds; 0 if there is neither."""
        goals = (
            (self.counters.steps, self.settings.run.step_goal),
            (self.counters.seconds, self.settings.run.max_seconds),
            (self.supply.done, 1.0),
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
        policy = self._policy()
        episodes = self._collect_in_time(policy)
        self.totals = Totals.of(episodes, self.world)
        self.supply.look_at(episodes, policy)
        if self.totals.episodes and not self.totals.steps:
            raise GameError(
                "there is nothing to decide",
                got=f"{self.totals.episodes} episodes in which every turn has one legal action",
                where=self.game_name,
                do="Such a game needs no training; if only some episodes are so, raise --update_frequency.",
            )
        self._warn_of_truncated(self.totals.truncated, self.totals.episodes)
        return episodes

    def _policy(self) -> Policy:
        """Who plays the learner's seats until the next update."""
        if self.parts.policy:
            return self.parts.policy(self.net)
        return NetPolicy(self.net, use_amp=self.settings.update.use_amp)

    def _collect_in_time(self, policy: Policy) -> Episodes:
        """The episodes of an update; in self-play by the clock, as many as let several updates fit into max_seconds.

        How long games take is known once some were played: the first update plays one for each process, then each time
        twice as many as so far, until the next ones would take too long. What was started is always played to its end.
        """
        wanted, limit = self.settings.update.update_frequency, self.settings.run.max_seconds
        if limit is None or not self.supply.plays:
            return self.supply.collect(policy, wanted)
        most_seconds = limit / UPDATES_IN_TIME
        if self.counters.episodes:
            each = max(self.counters.seconds, 1e-9) / self.counters.episodes
            size = min(wanted, max(self.world.size, int(most_seconds / each)))
            self._say_if_smaller(size, each)
            return self.supply.collect(policy, size)
        parts: list[Episodes] = []
        played, size, began = 0, min(self.world.size, wanted), time.monotonic()
        while True:
            started = time.monotonic()
            parts.append(self.supply.collect(policy, size))
            now = time.monotonic()
            total, each = self.world.gather([now - began, (now - started) / size]).mean(axis=0).tolist()
            played, total, each = played + size, *(seconds * (1 + LEARN_TO_COLLECT) for seconds in (total, each))
            size = min(played, wanted - played)
            decided = Totals.of(parts[-1], self.world).steps > 0
            late = decided and len(parts) > 1 and total + each * size > most_seconds  # the first one starts much else
            if not size or late:
                break
        self._say_if_smaller(played, each)
        return concatenate(parts)

    def _say_if_smaller(self, played: int, each: float) -> None:
        """Say once that updates are smaller than asked for, where a game takes so many seconds."""
        run, wanted = self.settings.run, self.settings.update.update_frequency
        seconds = each * wanted
        if played < wanted and seconds > (run.max_seconds or math.inf) / UPDATES_IN_TIME and not self._said_smaller:
            self._said_smaller = True
            self.say(
                f"Warning: an update of {wanted:,} games would take about {seconds:,.0f} s, and --max_seconds is "
                f"{run.max_seconds:,g}: updates are of fewer games, for now of {played:,}. Give it more time, "
                "and they are whole."
            )

    def _warn_of_truncated(self, truncated: int, episodes: int) -> None:
        """Say once that games are cut off, and so what wins and returns are worth."""
        if self._said_truncated or not truncated or truncated < arena.MANY_TRUNCATED * episodes:
            return
        self._said_truncated = True
        by, do = f" at --max_turns {self.settings.play.max_turns:,}", "Raise --max_turns until games come to their end."
        if self.supply.from_recordings:
            by, do = "", "Let the recorded games be played to their end where you can."
        self.say(
            f"Warning: {truncated:,} of {episodes:,} games ({truncated / episodes:.1%}) were cut off{by}. Learning "
            f"takes their end for what it is, but win rates and returns count them as they stood. {do}"
        )

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
        is_best, counters = self._is_best(), self.counters
        if is_best:
            now = counters.last_figures
            reached = best.highest(now, self._best_figures())
            rate = counters.last_match.get("arena/win_rate", counters.best_win_rate)
            counters = replace(counters, best_figures=reached, best_win_rate=rate)
        path = self.world.first(lambda: self._write(counters, is_best))
        if isinstance(path, SaveError):
            raise SaveError(path.what, got=path.got, where=path.where, do=self._last_good())
        self.counters = counters
        self.saved = Saved(self.learner.num_updates, path, time.monotonic(), time.monotonic() - started)
        return path

    def _write(self, counters: Counters, is_best: bool) -> Path | SaveError:
        """The file; or why there is none, for all processes to hear."""
        keep = self.settings.run.keep_checkpoints
        shown = {name.partition("/")[2]: value for name, value in counters.last_match.items()}
        try:
            path = self.folder.save(
                self.learner.num_updates, self._state(counters), keep=keep, best=shown if is_best else None
            )
            self.supply.saved()
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
        return self.supply.each_update_counts or self._is_best() or bool(self.world.gather([late])[0, 0])

    def _is_best(self) -> bool:
        """Whether the present weights did no worse in their quick match than the best before."""
        counters = self.counters
        now = counters.matched_update == self.learner.num_updates and bool(counters.last_figures)
        return now and best.at_least_as_good(counters.last_figures, self._best_figures())

    def _best_figures(self) -> best.Figures:
        """What a new best is held against; nothing before the first."""
        counters = self.counters
        if counters.best_figures or counters.best_win_rate < 0:
            return counters.best_figures
        return best.known_win_rate(counters.best_win_rate, QUICK_MATCH_GAMES)  # of a run of an older version

    def _last_good(self) -> str:
        if self.saved.file is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is {quoted(self.saved.file)}."

    def _state(self, counters: Counters) -> dict[str, Any]:
        named = {"layout": asdict(self.layout)} if self.layout != Layout() else {}
        return {"num_players": self.game.num_players, "game_name": self.game_name, **named} | checkpoint.pack(
            settings=self.settings.to_flat(),
            shape=self.shape,
            learner=self.learner.state_dict(),
            source=self.source.state_dict(),
            recorded=self.supply.state_dict(),
            counters=asdict(counters),
            handed_in=self.parts.names(),
            device=self.learner.world.device,
        )

    def publish(self, used_files: list[str] | None) -> None:
        """Hand the present policy to the engine that is waiting for it, and tell it which of its files can go."""
        if used_files is not None:
            self.folder.write_json("used_files.json", used_files)
        publish(
            self.net,
            checkpoint.policy_info(self._state(self.counters)),
            self.folder.path / "policies",
            profile=self.settings.recorded.publish,
            keep=self.settings.run.keep_checkpoints,
        )

    def resume(self) -> None:
        """Go on from the folder's newest checkpoint that can be read; start anew if the run never got to one."""
        if not numbered(self.folder.checkpoints):
            self.notes.append("The run was broken off before its first checkpoint: it starts anew.")
            self.world.first(lambda: self.folder.cut_metrics(0))
            self.world.first(lambda: self.ladder.forget_after(-1))
            return
        file, state = checkpoint.load_newest(self.folder.path, say=self.notes.append)
        sizes = asdict(self.shape) | {"num_players": self.game.num_players}
        checkpoint.check_fits(state, self.folder.path, game=self.game_name, **sizes)
        self.notes += self.parts.check_resumed(state.get("handed_in", {}), str(self.folder.path))
        self.world.first(lambda: self.folder.set_aside(after=file))
        self.world.first(lambda: self.ladder.forget_after(number_of(file)))
        self.learner.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        if state.get("recorded"):  # a checkpoint of an older version has none
            self.supply.load_state_dict(state["recorded"])
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

    def _match(self, num_games: int, opponent: Policy | None = None) -> arena.MatchResult:
        """Greedy play against random players, or another policy."""
        policy, workers = NetPolicy(self.net, greedy=True), self.supply.workers
        # No processes are started for a match alone, as openings would: it is short.
        play = replace(self.settings.play, rollout_workers=0)
        result = arena.match(
            policy, opponent or RandomPolicy(), self.game, num_games=num_games, seed=MATCH_SEED, play=play,
            workers=workers, say=self.say,
        )  # fmt: skip
        self._warn_of_truncated(result.truncated, result.num_games)
        return result

    def final_match(self) -> arena.MatchResult | None:
        """The match at the end of the training; None if a signal breaks it off, and in all processes but the first.

        These leave at once: no process waits longer than half an hour for another, and a match may take longer.
        """
        if self.world.rank:
            return None
        try:
            with break_off_on_signals():
                result = self._match(self.settings.run.eval_games)
        except KeyboardInterrupt:
            return None
        finally:
            self.source.close()  # the workers started once more
        self._keep_final_match(result)
        return result

    def _keep_final_match(self, result: arena.MatchResult) -> None:
        """Write final_match.json; that it does not fit on the disk costs no training."""
        played = {
            "opponent": "random",
            "checkpoint": self.saved.file.name if self.saved.file else None,
            "steps": self.counters.steps,
            "seed": MATCH_SEED,
            "greedy": True,
            "max_turns": self.settings.play.max_turns,
        }
        try:
            self.folder.write_json("final_match.json", played | result.to_json())
        except SaveError as error:
            self.say(f"Warning: {error}")

    def quick_match(self) -> dict[str, float]:
        """A first impression of the strength, every few updates, for the display and to find the best checkpoint."""
        run, counters, update = self.settings.run, self.counters, self.learner.num_updates
        if not run.eval_games or update % run.eval_every:
            return {}
        measured, figures, rung = self.world.first(lambda: self._measured(min(QUICK_MATCH_GAMES, run.eval_games)))
        counters.beats_random |= measured.get("arena/win_rate", 0.0) >= BEATEN
        rungs = self.world.first(lambda: self._with_rung(rung))
        counters.rungs = [list(astuple(known)) for known in rungs]
        counters.last_match, counters.last_figures, counters.matched_update = measured, figures, update
        return counters.last_match

    def _measured(self, num_games: int) -> tuple[dict[str, float], dict[str, Any], Rung]:
        """The tags of a quick match, what decides of it, and the rating: against random players, or the ladder."""
        rungs = [Rung(*known) for known in self.counters.rungs]
        others = self.ladder.opponents(rungs) if self.counters.beats_random and self.game.num_players > 1 else []
        if others:
            results = [self._match(num_games // len(others), self._of_rung(rung)) for rung in others]
        else:
            results = [self._match(num_games)]
        pairs = zip(others or [RANDOM], results, strict=True)
        rung = rated(self.learner.num_updates, [(other, result.win_rate, result.worth) for other, result in pairs])
        figures = {} if others else best.figures(results[0], self.game.num_players)
        measured = {"arena/truncated_share": sum(r.truncated for r in results) / sum(r.num_games for r in results)}
        if not others:
            measured |= {"arena/win_rate": results[0].win_rate, "arena/mean_return": results[0].mean_return}
        if self.game.num_players > 1:
            figures |= best.rating_figure(rung.rating, rung.error)
            names = ("eval/rating", "eval/rating_low", "eval/rating_high")
            measured |= dict(zip(names, figures["rating"], strict=True))
        return measured, figures, rung

    def _of_rung(self, rung: Rung) -> NetPolicy:
        """The policy of an earlier checkpoint."""
        net = copy.deepcopy(self.net)
        checkpoint.load_weights(net, checkpoint.load(self.ladder.file(rung.update)))
        return NetPolicy(net, greedy=True)

    def _with_rung(self, rung: Rung) -> list[Rung]:
        """The rungs that are kept, the present policy among them; a full disk costs no training."""
        try:
            self.ladder.add(rung.update, self._state(self.counters))
        except SaveError as error:
            self.say(f"Warning: {error}")
        return self.ladder.kept([*(Rung(*known) for known in self.counters.rungs), rung])

    def tell(self, update: Update) -> None:
        """Call what is to hear of each update; what it raises ends the training, once it is saved."""
        if self.parts.after_update is None or self.world.rank:
            return
        try:
            self.parts.after_update(update)
        except Exception:
            self.save_alone()
            raise

    def pace(self, totals: Totals, *, collect_seconds: float, learn_seconds: float) -> dict[str, float]:
        """Speed, returns and list lengths of one update, by their tags."""
        seconds = collect_seconds + learn_seconds
        metrics = {
            "charts/updates": float(self.learner.num_updates),
            "charts/SPS": totals.steps / seconds,
            "charts/episodes": float(self.counters.episodes),
            "charts/episodic_length": totals.turns / totals.episodes,
            "charts/truncated_share": totals.truncated / totals.episodes,
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
        metrics |= self.supply.metrics()
        if self.progress > 0:
            metrics["charts/seconds_left"] = self.counters.seconds * (1.0 / self.progress - 1.0)
        return metrics
