"""The story of a training: collect episodes, prepare them, update the network, save, report.

for each update:
    1. collect   play games with the present network         (play/selfplay.py)
    2. prepare   values, missing log-probs, advantages       (learn/learner.py)
    3. update    some epochs of PPO over the episodes        (learn/learner.py)
    4. save      every few updates, and at the end           (run/checkpoint.py)
    5. report    one line, metrics.jsonl, TensorBoard        (run/log.py)
at the end: a match against random players
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from movelist.core.settings import TrainSettings
from movelist.games.catalog import make_game
from movelist.games.game import Game, game_name
from movelist.learn.device import choose_device
from movelist.play.arena import MatchResult
from movelist.play.policy import NetPolicy
from movelist.run.checkpoint import RunFolder, new_run_folder, quoted
from movelist.run.log import Log
from movelist.run.training import Training, describe_update, greeting, stop_on_signals


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
    game = game or make_game(settings.game)
    choose_device(settings.run.device)  # an impossible device is refused before any file is made
    folder = _folder(settings, game_name(game))
    log = Log(folder.path, tensorboard=settings.run.tensorboard, console=console)
    with log, stop_on_signals(log.say) as stop:
        training = Training(settings, game, folder)
        if settings.run.resume:
            training.resume()
        log.say_all(greeting(training))
        saved = _loop(training, log, stop)
        return _finish(training, log, saved or training.save(), interrupted=bool(stop))


def _loop(training: Training, log: Log, stop: list[int]) -> Path | None:
    """The story; returns the last checkpoint, None if there was no update."""
    saved = None
    while training.progress < 1.0 and not stop:
        started = time.perf_counter()
        episodes = training.collect()
        if not len(episodes):  # the source is exhausted
            break
        collected = time.perf_counter()
        prepared = training.prepare(episodes)
        metrics = training.update(prepared)
        ended = time.perf_counter()
        training.count(episodes, seconds=ended - started)

        if training.counters.episodes == len(episodes):
            log.say_all(describe_update(training.settings.update, episodes))
        due = training.learner.num_updates % training.settings.run.save_every == 0
        last = training.progress >= 1.0 or bool(stop)
        if due or last:
            saved = training.save()
        if due and training.settings.run.eval_games:
            metrics |= training.quick_match()
        metrics |= training.pace(episodes, collect_seconds=collected - started, learn_seconds=ended - collected)
        log.update(training.counters.steps, metrics, progress=training.progress, last=last)
    return saved


def _finish(training: Training, log: Log, saved: Path, *, interrupted: bool) -> TrainResult:
    """Say how strong it got, where the files are, and what to type next."""
    log.stop_display()
    counters, path = training.counters, quoted(training.folder.path)
    log.say(
        f"Trained {counters.steps:,} steps in {training.learner.num_updates:,} updates and {counters.seconds:,.0f} s."
    )
    result = None
    if training.settings.run.eval_games and not interrupted:
        result = training.match(training.settings.run.eval_games)
        log.say(f"Against random players: {result}.")
    log.say(f"Files: {path} (settings, metrics.jsonl, tensorboard, checkpoints; the last is {saved.name}).")
    if interrupted:
        log.say(f"Stopped before the end. Go on: movelist train --resume {path}")
    else:
        log.say(f"Next: movelist match {path} --against random --num_games 10000")
        log.say(f"Or train on: movelist train --resume {path} --total_steps {2 * counters.steps}")
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


def _folder(settings: TrainSettings, game: str) -> RunFolder:
    """The run's folder, with the resolved settings in it."""
    resumed = settings.run.resume
    folder = RunFolder(resumed) if resumed else new_run_folder(settings.run.out, game)
    folder.write_json("settings.json", settings.to_flat() | {"game": game, "out": str(folder.path), "resume": None})
    return folder
