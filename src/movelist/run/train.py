"""The story of a training: collect episodes, prepare them, update the network, save, report.

for each update:
    1. collect   play games with the present network         (play/selfplay.py), or take recorded ones (data/loader.py)
    2. prepare   values, missing log-probs, advantages       (learn/learner.py)
    3. update    some epochs of PPO over the episodes        (learn/learner.py)
    4. save      every few updates, and at the end           (run/checkpoint.py)
    5. report    one line, metrics.jsonl, TensorBoard        (run/log.py)
at the end: a match against random players
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from movelist.core.metrics import span
from movelist.core.settings import TrainSettings
from movelist.games.game import Game, game_name
from movelist.learn.device import choose_device
from movelist.play.arena import MatchResult
from movelist.play.policy import NetPolicy
from movelist.run.checkpoint import RunFolder, new_run_folder, quoted, read_settings
from movelist.run.log import Log
from movelist.run.recorded import open_data
from movelist.run.training import Training, Update, check_start, describe_update, greeting, model_shape, stop_on_signals


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
        match: Against random players at the end; None if there was none.
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


def train(settings: TrainSettings, game: Game | None = None, *, console: Console | None = None) -> TrainResult:
    """Train by self-play until total_steps, max_seconds, or Ctrl-C.

    Args:
        settings: All of them.
        game: A game of one's own, in place of `settings.game`.
        console: Where to say how it goes; None says it on standard output.

    Returns:
        Where the files are, how far it came, and how strong it got.

    Raises:
        MovelistError: Settings, game, device or folder cannot be used; or a number went bad in training.
    """
    console = console or Console()
    settings, game, data = open_data(settings, game)
    choose_device(settings.run.device)  # an impossible device is refused before any file is made
    check_start(settings, game, model_shape(settings, game))  # and so is an impossible network
    training = Training(settings, game, _folder(settings, game_name(game)))
    if data:
        training.train_from(data)
    if settings.run.resume:
        training.resume()
    training.write_settings()
    after = training.counters.steps if settings.run.resume else None
    log = Log(training.folder.path, tensorboard=settings.run.tensorboard, console=console, after=after)
    with log:
        with stop_on_signals(log.say) as stop:
            training.say, training.stop = log.say, stop
            log.say_all(greeting(training))
            with closing(training.source), training.watched():
                _loop(training, log, stop)
            training.save()
        return _finish(training, log, interrupted=bool(stop))


def _loop(training: Training, log: Log, stop: list[int]) -> None:
    """All updates."""
    if training.watching:
        training.publish()  # the first policy, so that the engine need not make up one of its own
    while training.progress < 1.0 and not stop and one_update(training, log, stop):
        pass


def one_update(training: Training, log: Log, stop: Sequence[int] = ()) -> Update | None:
    """The story; None once the source is exhausted."""
    started = time.perf_counter()
    episodes = training.collect()
    if not len(episodes):
        return None
    collected = time.perf_counter()
    prepared = training.prepare(episodes)
    metrics = training.update(prepared)
    ended = time.perf_counter()
    training.count(episodes, seconds=ended - started)

    with span("logging"):
        metrics |= training.pace(episodes, collect_seconds=collected - started, learn_seconds=ended - collected)
        log.say_all(training.learner.take_notices())
        if training.counters.episodes == len(episodes):
            log.say_all(describe_update(training.settings.update, episodes))
        due = training.learner.num_updates % training.settings.run.save_every == 0
        last = training.progress >= 1.0 or bool(stop)
        if due or training.watching:  # an engine that is watched plays with the newest policy
            training.save()
        if due and training.settings.run.eval_games:
            metrics |= training.quick_match()
        log.update(training.counters.steps, metrics, progress=training.progress, last=last)
    return Update(episodes, metrics, collected - started, ended - collected)


def _finish(training: Training, log: Log, *, interrupted: bool) -> TrainResult:
    """Say how strong it got, where the files are, and what to type next."""
    log.stop_display()
    counters, saved = training.counters, training.save()
    log.say(
        f"Trained {counters.steps:,} steps in {training.learner.num_updates:,} updates and {counters.seconds:,.0f} s."
    )
    result = None
    if training.settings.run.eval_games and not interrupted:
        try:
            result = training.match(training.settings.run.eval_games)
            log.say(f"Against random players: {result}.")
        except KeyboardInterrupt:
            log.say("The match against random players was broken off.")
    log.say(
        f"Files: {quoted(training.folder.path)} (settings, metrics.jsonl, tensorboard, checkpoints; "
        f"the last is {saved.name})."
    )
    log.say_all(_next_steps(training, interrupted))
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


def _next_steps(training: Training, interrupted: bool) -> list[str]:
    """What to type next; in Python where the command line does not know the game."""
    run, folder, path = training.settings.run, training.folder.path, quoted(training.folder.path)
    further = {}
    if run.total_steps and training.counters.steps >= run.total_steps:
        further["total_steps"] = 2 * training.counters.steps
    if run.max_seconds and training.counters.seconds >= run.max_seconds:
        further["max_seconds"] = 2 * math.ceil(training.counters.seconds)
    if training.recorded and training.progress >= 1.0:
        further["data_passes"] = 2 * training.settings.recorded.data_passes
    if training.is_openspiel or training.recorded:
        train_on = " ".join(["movelist train --resume", path, *(f"--{name} {goal}" for name, goal in further.items())])
        match = f"movelist match {path} --against random --num_games 10000"
    else:
        goals = "".join(f", {name}={goal}" for name, goal in further.items())
        train_on = f"movelist.train(game=..., resume={str(folder)!r}{goals}) in Python"
        match = f"movelist.match({str(folder)!r}, game=..., num_games=10000) in Python"
    if interrupted:
        return [f"Stopped before the end. Go on: {train_on}"]
    if training.recorded and not training.is_openspiel:  # nobody can play it here
        return [f"Next: {train_on}"]
    return [f"Next: {match}", f"Or train on: {train_on}"]


def _folder(settings: TrainSettings, game: str) -> RunFolder:
    """The run's folder."""
    if settings.run.resume is None:
        return new_run_folder(settings.run.out, game)
    read_settings(settings.run.resume)  # a folder that is no run is refused before anything is made in it
    return RunFolder(settings.run.resume)
