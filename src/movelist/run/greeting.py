"""What a training says about itself: before the first update, once the first episodes are there, and at the end."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch

from movelist.core.settings import ModelSettings, PlaySettings, TrainSettings, UpdateSettings
from movelist.core.shell import quoted, typed
from movelist.data.episode import Episodes
from movelist.learn.batch import rollout_bytes
from movelist.learn.device import amp_dtype, missing_cuda_advice, triton_missing
from movelist.run.supply import SelfPlaySupply
from movelist.run.totals import Totals
from movelist.run.training import Training

CPU_AMP_WIDTH = 256  # narrower networks lose more by conversions than their products gain; docs/LOG.md


def greeting(training: Training) -> list[str]:
    """What is said before the first update."""
    settings, device = training.settings, training.learner.world.device
    lines = [advice] if (advice := missing_cuda_advice()) else []
    lines += training.supply.lines()
    goals = []
    if settings.run.step_goal:
        goals.append(f"{settings.run.step_goal:,} steps (--total_steps)")
    if settings.recorded.data and not settings.recorded.watch:
        goals.append(f"{settings.recorded.data_passes} passes over the data (--data_passes)")
    if settings.run.max_seconds:
        goals.append(f"{settings.run.max_seconds:,g} s (--max_seconds)")
    where = (
        f"{device}, {torch.get_num_threads()} threads".replace(" 1 threads", " 1 thread")
        if device.type == "cpu"
        else torch.cuda.get_device_name(device)
    )
    lines.append(f"On {where}, torch {torch.__version__}. Stops after {' or '.join(goals) or 'Ctrl-C only'}.")
    if training.world.size > 1:
        lines.append(f"{training.world.size} processes train together, each on its own share of the games or data.")
    lines += training.notes
    if training.counters.steps:
        lines.append(f"Going on after update {training.learner.num_updates:,}, {training.counters.steps:,} steps.")
    if training.progress >= 1.0:
        lines.append("It has already come that far: raise --total_steps or --max_seconds to train on.")
    lines += without_effect(settings, device, plays=isinstance(training.supply, SelfPlaySupply))
    usual = TrainSettings().to_flat()
    shown = [f"{name}={value}" for name, value in settings.to_flat().items() if value != usual[name]]
    return [*lines, f"Settings: {', '.join(shown) or 'the defaults'} (all of them: settings.json)"]


def without_effect(settings: TrainSettings, device: torch.device, *, plays: bool = True) -> list[str]:
    """A line for each setting that does nothing here; `plays` says whether this training plays games itself."""
    lines = []
    if settings.update.use_amp and amp_dtype(device) is None:
        needs = (
            "a GPU with tensor cores" if device.type == "cuda" else "a processor with bfloat16 instructions, or a GPU"
        )
        lines.append(f"--use_amp does nothing on this {device.type}: mixed precision needs {needs}.")
    elif settings.update.use_amp and device.type == "cpu" and settings.model.hidden_dim < CPU_AMP_WIDTH:
        lines.append(
            f"--use_amp makes a network of --hidden_dim {settings.model.hidden_dim} slower on a CPU; it helps from "
            f"{CPU_AMP_WIDTH} on."
        )
    if settings.update.kernels == "triton" and (reason := triton_missing(device)):
        lines.append(f"--kernels triton counts as torch: {reason}.")
    is_default = settings.play.num_games == PlaySettings().num_games
    if settings.play.num_games > settings.update.update_frequency and not is_default:
        lines.append(
            f"--num_games {settings.play.num_games} counts as {settings.update.update_frequency}: no more games than "
            "--update_frequency are played for an update."
        )
    at_once = min(settings.play.num_games, settings.update.update_frequency)
    if settings.play.rollout_workers and not plays:
        elsewhere = "with --data" if settings.recorded.data else "beside a source of one's own"
        lines.append(
            f"--rollout_workers {settings.play.rollout_workers} does nothing {elsewhere}: no games are played."
        )
    elif settings.play.rollout_workers > at_once:
        lines.append(
            f"--rollout_workers {settings.play.rollout_workers} counts as {at_once}: each needs a game of its own."
        )
    if settings.run.resume and settings.run.out not in (None, settings.run.resume):
        lines.append(f"--out {settings.run.out} does nothing: a resumed run goes on in its own folder.")
    return lines


def describe_update(
    settings: UpdateSettings, episodes: Episodes, totals: Totals, *, encoder: str = "bits"
) -> list[str]:
    """What the settings mean for this game, once the first episodes are there, and what looks too small."""
    minibatch = settings.batch_size * settings.gradient_accumulation_steps * totals.processes
    num_minibatches = -(-totals.steps // minibatch)
    lines = [
        f"An update: {totals.episodes:,} episodes = about {totals.steps:,} steps with {totals.actions:,} "
        f"legal actions = {num_minibatches:,} minibatches of up to {minibatch:,} steps x "
        f"{settings.epochs_per_update} epochs. It keeps about "
        f"{max(1, rollout_bytes(episodes, settings.epochs_per_update, encoder=encoder) >> 20):,} MB on the device."
    ]
    raise_it = totals.episodes >= settings.update_frequency  # else it is time or data that bound them
    if totals.episodes < 32 and raise_it:
        lines.append(
            f"Warning: {totals.episodes} episodes for an update make a noisy gradient and small network calls. "
            "Raise --update_frequency to 32 or more."
        )
    if num_minibatches < 4:
        lines.append(
            f"Warning: {num_minibatches} minibatches an epoch are few steps of learning for the games played. "
            f"{'Raise --update_frequency or lower' if raise_it else 'Lower'} --batch_size."
        )
    return lines


def next_steps(training: Training, *, interrupted: bool) -> list[str]:
    """What to type next, so that it can be typed here; in Python where the command line does not know the game."""
    return [typed(line, ("train", "match")) for line in _next_steps(training, interrupted=interrupted)]


def _next_steps(training: Training, *, interrupted: bool) -> list[str]:
    run, folder, path = training.settings.run, training.folder.path, quoted(training.folder.path)
    further = {}
    if run.step_goal and training.counters.steps >= run.step_goal:
        further["total_steps"] = 2 * training.counters.steps
    if run.max_seconds and training.counters.seconds >= run.max_seconds:
        further["max_seconds"] = 2 * math.ceil(training.counters.seconds)
    is_used_up = training.progress >= 1.0 or not (interrupted or further)  # the last update may lack episodes
    if training.supply.from_recordings and not training.settings.recorded.watch and is_used_up:
        further["data_passes"] = 2 * training.settings.recorded.data_passes
    if training.is_named or training.supply.from_recordings:
        train_on = " ".join(["movelist train --resume", path, *(f"--{name} {goal}" for name, goal in further.items())])
        match = f"movelist match {path} --against random --num_games 10000"
    else:
        goals = "".join(f", {name}={goal}" for name, goal in further.items())
        train_on = f"movelist.train(game=..., resume={str(folder)!r}{goals}) in Python"
        match = f"movelist.match({str(folder)!r}, game=..., num_games=10000) in Python"
    if interrupted:
        return [f"Stopped before the end. Go on: {train_on}"]
    then = _after_imitation(training) if training.settings.recorded.imitate else []
    if training.supply.from_recordings and not training.is_named:  # nobody can play it here
        return [f"Next: {train_on}", *then]
    return [f"Next: {match}", f"Or train on: {train_on}", *then]


def _after_imitation(training: Training) -> list[str]:
    """How PPO starts from a network that imitates."""
    if not training.is_named:
        return [f"Or improve it by PPO: --init_from {quoted(training.folder.path)} with recordings that it played."]
    usual, words = ModelSettings(), ["movelist train --game", quoted(str(training.settings.game))]
    for name, value in asdict(training.settings.model).items():
        if value != getattr(usual, name):
            words.append(f"--{name} {value}")
    return [f"Or improve it by PPO: {' '.join([*words, '--init_from', quoted(training.folder.path)])}"]
