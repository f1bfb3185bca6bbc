"""The story of a training: collect episodes, prepare them, update the network, save, report.

for each update:
    1. collect   play games with the present network         (play/selfplay.py), or take recorded ones (data/loader.py)
    2. prepare   values, missing log-probs, advantages       (learn/learner.py)
    3. update    some epochs of PPO over the episodes        (learn/learner.py)
    4. report    one line, metrics.jsonl, TensorBoard        (run/log.py)
    5. save      as often as it is worth it, and at the end  (run/checkpoint.py)
at the end: a match against random players

Reporting comes before saving: a run that is killed in between does that update again, and its line is not missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from movelist.core.errors import WorkerError
from movelist.core.metrics import span
from movelist.core.settings import TrainSettings
from movelist.core.shell import quoted
from movelist.games.game import Game, game_name
from movelist.learn.parallel import World, join
from movelist.play.arena import MatchResult
from movelist.play.policy import NetPolicy
from movelist.play.workers import check_workers
from movelist.run.folder import RunFolder, going_on, run_folder
from movelist.run.greeting import describe_update, greeting, next_steps
from movelist.run.lock import only_training
from movelist.run.log import Log
from movelist.run.parts import NOTHING, Parts
from movelist.run.recorded import open_data
from movelist.run.signals import stop_on_signals
from movelist.run.start import Update, check_start, shape_of
from movelist.run.training import Training, first_net


@dataclass(frozen=True)
class TrainResult:
    """What a training leaves behind.

    Attributes:
        folder: The run folder.
        checkpoint: The last checkpoint.
        steps: Steps trained on, over all parts of the run.
        updates: Updates made.
        seconds: Seconds of training.
        interrupted: Stopped by Ctrl-C or SIGTERM.
        match: Against random players at the end; None if there was none, or another process played it.
        policy: The trained policy, greedy.
    """

    folder: Path
    checkpoint: Path
    steps: int
    updates: int
    seconds: float
    interrupted: bool
    match: MatchResult | None
    policy: NetPolicy


def train(
    settings: TrainSettings, game: Game | None = None, *, parts: Parts = NOTHING, console: Console | None = None
) -> TrainResult:
    """Train by self-play until total_steps, max_seconds, or Ctrl-C.

    Args:
        settings: All of them.
        game: A game of one's own, in place of `settings.game`.
        parts: What takes the place of that which the settings describe.
        console: Where to say how it goes; None says it on standard output.

    Returns:
        Where the files are, how far it came, and how strong it got.

    Raises:
        MovelistError: Settings, game, device or folder cannot be used; or a number went bad in training.
    """
    with join(settings.run.device) as world:  # an impossible device is refused before any file is made
        here = (console or Console()) if world.rank == 0 else Console(quiet=True)
        settings, game, data = open_data(
            settings, game, say=lambda text: here.print(text, markup=False, soft_wrap=True), world=world
        )
        name = game_name(game)
        settings = world.first(lambda: going_on(settings))
        check_workers(game, settings.play.rollout_workers if data is None and parts.source is None else 0)
        net = first_net(settings, game, world, parts, data)  # an impossible network is refused before any file is made
        check_start(settings, game, shape_of(net, settings))
        with _held(world.first(lambda: run_folder(settings, name)), world) as folder:
            training = Training(settings, game, folder, world, data=data, parts=parts, net=net)
            if settings.run.resume:
                training.resume()
            world.first(training.write_settings)
            return _train(training, here)


@contextmanager
def _held(folder: RunFolder, world: World) -> Iterator[RunFolder]:
    """The run's folder, which rank 0 locks for all."""
    if world.rank:
        yield folder
        return
    with only_training(folder.path):
        folder.clean()
        yield folder


def _train(training: Training, console: Console) -> TrainResult:
    run, counters = training.settings.run, training.counters
    log = Log(
        training.folder.path if training.world.rank == 0 else None,
        tensorboard=run.tensorboard,
        console=console,
        after=counters.steps if run.resume else None,
        last_match=counters.last_match,
    )
    with log:
        with stop_on_signals(log.say) as stop:
            training.say, training.stop = log.say, stop
            log.say_all(greeting(training))
            log.table(counters.steps, "settings", training.settings.to_flat())
            with closing(training.source), training.watched():
                try:
                    _loop(training, log)
                except WorkerError:
                    training.save_alone()  # only games failed: what was learnt up to here is whole
                    raise
            training.save()
        return _finish(training, log, interrupted=training.asked_to_stop())


def _loop(training: Training, log: Log) -> None:
    """All updates."""
    training.supply.begin()
    while not training.asked_to_stop() and training.progress < 1.0 and one_update(training, log):
        pass


def one_update(training: Training, log: Log) -> Update | None:
    """The story; None once the source is exhausted."""
    started = time.perf_counter()
    episodes = training.collect()
    totals = training.totals
    if not totals.episodes:
        return None
    collected = time.perf_counter()
    prepared = training.prepare(episodes)
    metrics = training.update(prepared)
    ended = time.perf_counter()
    training.count(totals, seconds=ended - started)

    with span("logging"):
        metrics |= training.pace(totals, collect_seconds=collected - started, learn_seconds=ended - collected)
        log.say_all(training.learner.take_notices())
        if training.counters.episodes == totals.episodes:
            log.say_all(
                describe_update(training.settings.update, episodes, totals, encoder=training.shape.action_encoder)
            )
        metrics |= training.quick_match()
        last = training.progress >= 1.0 or bool(training.stop)
        log.update(training.counters.steps, metrics, progress=training.progress, last=last)
        training.save_if_due()
        number, steps = training.learner.num_updates, training.counters.steps
        update = Update(number, steps, episodes, metrics, collected - started, ended - collected)
        training.tell(update)
    return update


def _finish(training: Training, log: Log, *, interrupted: bool) -> TrainResult:
    """Say how strong it got, where the files are, and what to type next."""
    log.stop_display()
    counters, saved = training.counters, training.save()
    log.say(
        f"Trained {counters.steps:,} steps in {training.learner.num_updates:,} updates and {counters.seconds:,.0f} s."
    )
    result = None
    if training.settings.run.eval_games and not interrupted:
        result = training.final_match()
        how = f"Against random players: {result}." if result else "The match against random players was broken off."
        log.say(how)
        if result:
            log.table(counters.steps, "final_match", {name: result.to_json()[name] for name in vars(result)})
    log.say(
        f"Files: {quoted(training.folder.path)} (settings, metrics.jsonl, tensorboard, checkpoints; "
        f"the last is {saved.name})."
    )
    log.say_all(next_steps(training, interrupted=interrupted))
    return TrainResult(
        folder=training.folder.path,
        checkpoint=saved,
        steps=counters.steps,
        updates=training.learner.num_updates,
        seconds=counters.seconds,
        interrupted=interrupted,
        match=result,
        policy=NetPolicy(training.net, greedy=True),
    )
