"""`movelist profile --tune`: other settings, tried in turns with the ones given; what is faster becomes a preset.

    1. candidates     chosen by what the profile found
    2. singles        each alone, round by round with the settings as they were; the clearly slower ones drop out
    3. together       the best first, then whatever helps on top of it, also what did not help alone
    4. proof          all that was kept against the settings as they were

A figure is steps a second of whole updates, playing, learning, logging and saving. How well a setting learns is another
question: fewer, larger batches of more games learn more calmly, and from each game once more or once less.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from movelist.core.errors import DeviceMemoryError
from movelist.core.settings import TrainSettings
from movelist.games.game import Game
from movelist.learn.device import amp_dtype
from movelist.measure.advice import advise
from movelist.measure.clock import wait
from movelist.measure.findings import Profile, Trial
from movelist.measure.sentences import ratio_text, words
from movelist.run.presets import flag_words
from movelist.run.profile import Loop, Say, open_measurable, threads_as_before

FEWEST_PAIRS, MOST_PAIRS = 3, 8
SLICE_SECONDS = 0.5  # of a way in one round, and one update at least
COMPILING_SECONDS = 30.0  # until torch.compile has made its graphs
COMPILE_FROM = 240.0  # --tune_seconds from which that can be afforded without advice to do so
CLEARLY_SLOWER = 0.8
# Student's t for a 95 % interval of the mean of n pairs; for more of them the last.
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
GAMES, STEPS = 256, 1024  # what "many" means below
Changes = dict[str, Any]


class Way(Protocol):
    """Settings that can be run for a while."""

    def steps_per_second(self, seconds: float) -> float:
        """Run about that long, one update at least."""


# Settings with these changes, warmed up; closed when the block ends.
Open = Callable[[Changes], Any]


@dataclass(frozen=True)
class Tuned:
    """What came of it.

    Attributes:
        trials: All of them, the proof last if anything was kept.
        changes: What to change; None if nothing helped.
    """

    trials: list[Trial]
    changes: dict[str, Any] | None


# --- The arithmetic.


def trial(changes: Changes, pairs: Sequence[tuple[float, float]], against: Changes | None = None) -> Trial:
    """What pairs of (before, with the changes) in steps a second say.

    Ratios are averaged by their logarithms, so that twice as fast and half as fast cancel out; the interval is
    Student's over the pairs.

    Example: three times twice as fast is 2.0, for sure:
        >>> made = trial({"batch_size": 64}, [(10.0, 20.0), (11.0, 22.0), (9.0, 18.0)])
        >>> round(made.ratio, 6), round(made.ratio_low, 6), made.steps_per_second
        (2.0, 2.0, 20.0)
    """
    logs = [math.log(after / before) for before, after in pairs]
    mean = statistics.fmean(logs)
    t = T_95[min(len(logs), max(T_95))] if len(logs) > 1 else math.inf
    margin = t * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return Trial(
        changes=dict(changes),
        steps_per_second=statistics.median(after for _, after in pairs),
        ratio=math.exp(mean),
        ratio_low=math.exp(mean - margin),
        ratio_high=math.exp(min(mean + margin, 700.0)),
        runs=len(pairs),
        against=dict(against or {}),
    )


def compare(
    ways: Sequence[Changes],
    open_way: Open,
    *,
    against: Changes,
    seconds: float,
    timer: Callable[[], float] = time.perf_counter,
    drop: bool = True,
) -> list[Trial]:
    """Run ways round by round, each round with `against` first; so all see the same moods of the machine.

    Three rounds at least, then more while the seconds last.

    Args:
        ways: What to change.
        open_way: See `Open`.
        against: What the ways are held against; each way has it as well.
        seconds: About how long.
        timer: Seconds that have passed, since whenever.
        drop: Let go of a way that was clearly slower in two rounds.
    """
    started = timer()
    with ExitStack() as stack:
        base: Way = stack.enter_context(open_way(against))
        opened: list[tuple[Changes, Way, list[tuple[float, float]]]] = []
        for changes in ways:
            try:
                opened.append((changes, stack.enter_context(open_way({**against, **changes})), []))
            except DeviceMemoryError:
                continue  # larger than this device: no candidate
        for number in range(MOST_PAIRS):
            if number >= FEWEST_PAIRS and (timer() - started) * (number + 1) / number > seconds:
                break
            before = base.steps_per_second(SLICE_SECONDS)
            for one in list(opened):
                _, way, pairs = one
                if drop and _slower(pairs):
                    continue
                try:
                    pairs.append((before, way.steps_per_second(SLICE_SECONDS)))
                except DeviceMemoryError:
                    opened.remove(one)
        return [trial(changes, pairs, against) for changes, _, pairs in opened if pairs]


def _slower(pairs: Sequence[tuple[float, float]]) -> bool:
    return len(pairs) >= 2 and all(after < CLEARLY_SLOWER * before for before, after in pairs)


def tune(
    candidates: Sequence[Changes],
    open_way: Open,
    *,
    seconds: float,
    say: Say = lambda text: None,
    lang: str = "en",
    timer: Callable[[], float] = time.perf_counter,
) -> Tuned:
    """Find what is faster, and prove it.

    Args:
        candidates: Changes to try.
        open_way: See `Open`.
        seconds: About how long: half for the singles, an eighth for each change on top, a quarter for the proof.
        say: Told of each trial.
        lang: In which language.
        timer: Seconds that have passed, since whenever.
    """
    trials = compare(candidates, open_way, against={}, seconds=seconds / 2, timer=timer)
    for one in trials:
        say(trial_line(one, lang))
    kept: dict[str, Any] = {}
    latest = trials
    while best := max((one for one in latest if one.helped), key=lambda one: one.ratio, default=None):
        kept |= best.changes
        # What was not slower for sure may help on top of it: batches of 1,024 steps need games to fill them.
        further = [one.changes for one in latest if one.ratio_high > 1 and not _within(one.changes, kept)]
        latest = compare(further, open_way, against=kept, seconds=seconds / 8, timer=timer) if further else []
        for one in latest:
            say(trial_line(one, lang))
        trials = [*trials, *latest]
    if not kept:
        return Tuned(trials, None)
    for proof in compare([kept], open_way, against={}, seconds=seconds / 4, timer=timer):
        trials = [*trials, proof]
        say(words(lang).PROGRESS["together"].format(trial=trial_line(proof, lang)))
        if proof.helped:
            return Tuned(trials, kept)
    return Tuned(trials, None)


def _within(changes: Changes, others: Changes) -> bool:
    """Whether all of these changes are among the others."""
    return changes.items() <= others.items()


def trial_line(one: Trial, lang: str = "en") -> str:
    """A trial in one line."""
    texts, others = words(lang).PROGRESS, " ".join(flag_words(one.against))
    return str(
        texts["trial"].format(
            changes=" ".join(flag_words(one.changes)),
            on_top=texts["on_top"].format(others=others) if others else "",
            steps=one.steps_per_second,
            ratio=one.ratio,
            low=ratio_text(one.ratio_low),
            high=ratio_text(one.ratio_high),
            pairs=one.runs,
        )
    )


# --- What to try.


def candidates(profile: Profile, settings: TrainSettings, device: torch.device, seconds: float) -> list[dict[str, Any]]:
    """Changes that the profile gives a reason for, most promising first; then what else its advice names.

    Args:
        profile: What was found with the settings.
        settings: The settings.
        device: Where it computes.
        seconds: --tune_seconds.
    """
    rules = (_play, _learn, _log, _compute, _threads)
    found = [change for rule in rules for change in rule(profile, settings, device, seconds)]
    advised = [advice.changes for advice in advise(profile) if advice.flag != "data"]
    return [*found, *(change for change in advised if not any(_within(change, other) for other in found))]


def _play(profile: Profile, settings: TrainSettings, device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Network calls that answer few turns cost as much as those that answer many."""
    play, update, timing = settings.play, settings.update, profile.timing
    # Small batches of many games would make a single update as long as all of the tuning: then both at once.
    learning = timing.update_seconds / timing.updates * GAMES / update.update_frequency
    batch = {"batch_size": STEPS} if update.batch_size < STEPS and learning > seconds / 15 else {}
    if settings.recorded.data:
        if update.update_frequency < GAMES:
            yield {"update_frequency": GAMES, **batch}
        return
    if profile.shapes.states_in_call < GAMES / 2:
        if play.num_games < GAMES and update.update_frequency < GAMES:
            yield {"num_games": GAMES, "update_frequency": GAMES, **batch}
        elif play.num_games < GAMES:
            yield {"num_games": GAMES}
        elif update.update_frequency < GAMES:
            yield {"update_frequency": GAMES, **batch}
    if update.update_frequency >= GAMES:
        many = 2 * update.update_frequency
        yield {"num_games": many, "update_frequency": many}


def _learn(profile: Profile, settings: TrainSettings, *_: Any) -> Iterator[dict[str, Any]]:
    """Small batches leave the device idle; a cut by legal actions makes them smaller still."""
    update, timing = settings.update, profile.timing
    if update.batch_size < STEPS:
        yield {"batch_size": STEPS}
    else:
        yield {"batch_size": update.batch_size // 2}
        if timing.steps / timing.updates >= 2 * update.batch_size:
            yield {"batch_size": 2 * update.batch_size}
    most = update.max_actions_per_minibatch
    if profile.shapes.mean * update.batch_size > 0.9 * most:
        yield {"max_actions_per_minibatch": 4 * most}


def _log(profile: Profile, settings: TrainSettings, *_: Any) -> Iterator[dict[str, Any]]:
    """Checkpoints written more often than anybody needs them."""
    share = next(span.share for span in profile.spans if span.name == "logging")
    if share > 0.02 and (settings.run.save_every or 10) < 10:
        yield {"save_every": 10}


def _compute(
    profile: Profile, settings: TrainSettings, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """Mixed precision where it does anything; graphs where their start can be afforded."""
    if not settings.update.use_amp and amp_dtype(device) is not None:
        yield {"use_amp": True}
    if settings.update.compile == "off" and seconds >= COMPILE_FROM:
        yield {"compile": "on"}


def _threads(
    profile: Profile, settings: TrainSettings, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """More threads do not always compute faster, and two on one core never do."""
    if device.type == "cpu":
        now, cores = profile.machine.threads, profile.machine.cores
        for number in sorted({1, max(1, cores // 2), cores}):
            if number != now:
                yield {"num_threads": number}


# --- The real measuring.


class _Running:
    """A Loop, and its number of threads."""

    def __init__(self, loop: Loop, threads: int) -> None:
        self.loop, self.threads = loop, threads

    def steps_per_second(self, seconds: float) -> float:
        """See `Way`."""
        torch.set_num_threads(self.threads)
        wait(self.loop.device)
        started, steps, passed = time.perf_counter(), 0, 0.0
        while passed < seconds or not steps:
            steps += self.loop.update().episodes.num_steps
            wait(self.loop.device)
            passed = time.perf_counter() - started
        return steps / passed


class Ways:
    """Opens trainings with changed settings.

    Args:
        settings: As they were.
        say: Told what a person should know.
        game: A game of one's own.
    """

    def __init__(self, settings: TrainSettings, say: Say, game: Game | None = None) -> None:
        self.settings, self.game, self.data = open_measurable(settings, game, say)
        self.threads = settings.run.num_threads or torch.get_num_threads()

    @contextmanager
    def open(self, changes: Changes) -> Iterator[Way]:
        """A training with changes, one update old: memory is there, graphs are made."""
        settings = changed(self.settings, changes)
        torch.set_num_threads(int(changes.get("num_threads", self.threads)))
        with Loop(settings, self.game, self.data) as loop:
            loop.update()
            yield _Running(loop, torch.get_num_threads())


def changed(settings: TrainSettings, changes: Changes) -> TrainSettings:
    """Settings with some of them changed, by their plain names."""
    return TrainSettings.from_flat(settings.to_flat() | dict(changes))


def tune_settings(
    profile: Profile, settings: TrainSettings, *, seconds: float, say: Say, lang: str = "en", game: Game | None = None
) -> Profile:
    """The profile with what came of trying other settings.

    Args:
        profile: Of these settings.
        settings: The settings.
        seconds: About how long.
        say: Told what a person should know.
        lang: In which language it is told of the trials.
        game: A game of one's own.
    """
    with threads_as_before():
        ways = Ways(settings, say, game)
        device = torch.device("cuda" if profile.machine.device_memory else "cpu")
        tried = candidates(profile, settings, device, seconds)
        update, asked = statistics.median(profile.timing.seconds_of_update), settings.update.update_frequency
        graphs = COMPILING_SECONDS * sum("compile" in change for change in tried)
        # Larger updates take longer; where they are much larger they make some 30 times as many steps a second.
        growth = max([1.0, *(change.get("update_frequency", 0) / asked / 30 for change in tried)])
        least = update * growth * (FEWEST_PAIRS + 1) * (len(tried) + 3) + graphs
        say(words(lang).PROGRESS["trying"].format(count=len(tried), seconds=max(seconds, least)))
        tuned = tune(tried, ways.open, seconds=seconds, say=say, lang=lang)
    return replace(profile, trials=tuned.trials, tuned=tuned.changes)


def ratio_to_preset(
    settings: TrainSettings, values: Changes, *, seconds: float, say: Say, game: Game | None = None
) -> Trial:
    """How fast settings are against the same with a preset's values: above 1 the settings are faster.

    Args:
        settings: The settings.
        values: Of the preset.
        seconds: About how long.
        say: Told what a person should know.
        game: A game of one's own.
    """
    with threads_as_before():
        ways = Ways(settings, say, game)
        flat = ways.settings.to_flat()
        own = {name: flat[name] for name, value in values.items() if flat[name] != value}
        others = {name: values[name] for name in own}
        (result,) = compare([own], ways.open, against=others, seconds=seconds, drop=False)
    return result
