"""`movelist profile`: a short training with the user's own settings, looked at from several sides.

    1. warm up            nothing counts: memory, graphs and optimiser states are made
    2. plain and spans    by turns, update for update: the clock alone, then the clock behind the spans
    3. trace              one update under torch.profiler
    4. waits              one update under measure/waits.py
    5. beside it          matrix products, the usual trainer on the same steps

Everything is written to a temporary folder, so no run is left behind.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from rich.console import Console

from movelist.core.errors import DataError, MissingExtraError
from movelist.core.metrics import span_hook
from movelist.core.profile_settings import ProfileSettings
from movelist.core.settings import TrainSettings
from movelist.games.game import Game
from movelist.learn.device import choose_device
from movelist.learn.model import PolicyValueNet
from movelist.measure.clock import matmul_rate
from movelist.measure.clock import wait as wait_for_device
from movelist.measure.device_trace import DeviceWork, trace
from movelist.measure.findings import Compute, Hardware, Look, Memory, PerSample, Profile, Timing, WaitFindings
from movelist.measure.hardware import Sample, Sampler, prober
from movelist.measure.profiler import SpanClock, describe_machine, wait_findings
from movelist.measure.sentences import words
from movelist.measure.shapes import per_sample_steps_per_second, shapes
from movelist.measure.waits import count_waits
from movelist.run.folder import RunFolder
from movelist.run.log import Log
from movelist.run.recorded import OpenData, open_data
from movelist.run.start import Update, check_start, model_shape
from movelist.run.train import one_update
from movelist.run.training import Training

WARM_UP_UPDATES = 2
SECONDS_BETWEEN_LOOKS = 0.2
ENOUGH_PASSES = 1 << 30  # recordings are read again and again, as long as the measuring goes on
REPOSITORY = Path(__file__).resolve().parents[3]
SHIPPED = Path("examples", "recordings", "dou_dizhu.jsonl.gz")
Say = Callable[[str], None]


class Loop:
    """A training that is there to be measured: whole updates with log and checkpoints, in a folder that will be gone.

    Args:
        settings: From `measurable`.
        game: Their game.
        data: Their data.
    """

    def __init__(self, settings: TrainSettings, game: Game, data: OpenData | None) -> None:
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="movelist-", ignore_cleanup_errors=True))
            )
            self.training = Training(settings, game, RunFolder(folder), data=data)
            self.training.say = lambda text: None
            stack.callback(self.training.source.close)
            self.log = stack.enter_context(Log(folder, tensorboard=False, console=Console(file=io.StringIO())))
            self._open = stack.pop_all()

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.training.learner.world.device

    def update(self) -> Update:
        """One update, as a training makes it.

        Raises:
            DataError: The data hold no step to train on.
        """
        done = one_update(self.training, self.log)
        if done is None:
            raise DataError("the data hold no episode to train on", do="See movelist check.")
        return done


@dataclass
class Timed:
    """The updates of one look."""

    seconds: list[float] = field(default_factory=list)
    steps: int = 0

    @property
    def step_seconds(self) -> float:
        """Seconds for a step."""
        return sum(self.seconds) / self.steps


@dataclass
class Looks:
    """What the looks found, before it becomes findings."""

    timed: dict[str, Timed] = field(default_factory=dict)
    plain: list[Update] = field(default_factory=list)
    device_work: DeviceWork = field(default_factory=DeviceWork)
    calls: int = 0
    samples: int = 0
    matmul_rate: float = 0.0


def profile(settings: ProfileSettings, folder: Path, *, command: str, say: Say, game: Game | None = None) -> Profile:
    """Measure a training; advice and trials are still empty.

    Args:
        settings: All of them.
        folder: Where the trace goes; made.
        command: What was typed, to be kept with the numbers.
        say: Told what a person should know while it goes on.
        game: A game of one's own.

    Raises:
        MovelistError: As `run.train.train`.
    """
    with threads_as_before():
        train, game, data = open_measurable(settings.train, game, say)
        with Loop(train, game, data) as loop, _made(folder):
            return _Profiler(loop, settings, folder, say).profile(command, _source(train, data))


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make the folder; after an error an empty one is taken away again."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            "the folder cannot be made", got=error.strerror, where=str(folder), do="Choose another with --out."
        ) from None
    try:
        yield
    except BaseException:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise


def open_measurable(
    settings: TrainSettings, game: Game | None, say: Say
) -> tuple[TrainSettings, Game, OpenData | None]:
    """Settings as a measured training takes them, the game and the data.

    Without data, game and OpenSpiel: the recording that ships with the repository.

    Raises:
        MissingExtraError: That is not there either.
        MovelistError: As `open_data`.
    """
    try:
        settings, game, data = open_data(measurable(settings), game)
    except MissingExtraError as error:
        if settings.recorded.data or settings.game is not None:
            raise
        recording = REPOSITORY / SHIPPED
        if not recording.is_file():
            raise MissingExtraError(
                "there is nothing to train on: OpenSpiel is not installed, and the recording that ships with the "
                "repository is not here",
                do=f"{error.do} Or name recordings: --data FOLDER.",
            ) from None
        say(f"OpenSpiel is not installed: the recorded games of {recording} take its place.")
        everyone = settings.recorded.learn_from or "all"  # random players made it, and only the time counts here
        recorded = replace(settings.recorded, data=(recording,), learn_from=everyone)
        settings, game, data = open_data(measurable(replace(settings, recorded=recorded)), game)
    choose_device(settings.run.device)
    check_start(settings, game, model_shape(settings, game))
    return settings, game, data


def measurable(settings: TrainSettings) -> TrainSettings:
    """The same training without an end, and without what is no part of it: matches, TensorBoard, the live numbers.

    A run to resume gives its network, and is left as it is.
    """
    run = replace(
        settings.run, out=None, resume=None, total_steps=None, max_seconds=None, eval_games=0, tensorboard=False,
        live=False,
    )  # fmt: skip
    start = settings.run.resume or settings.recorded.init_from
    return replace(settings, run=run, recorded=replace(settings.recorded, data_passes=ENOUGH_PASSES, init_from=start))


@contextmanager
def threads_as_before() -> Iterator[None]:
    """Give torch back its number of threads."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _source(settings: TrainSettings, data: OpenData | None) -> str:
    return f"{settings.game} from {', '.join(map(str, settings.recorded.data))}" if data else str(settings.game)


class _Profiler:
    """Takes the looks, one after another, and makes a Profile of them."""

    def __init__(self, loop: Loop, settings: ProfileSettings, folder: Path, say: Say) -> None:
        self.loop, self.settings, self.folder, self.say = loop, settings, folder, say
        self.training, self.device = loop.training, loop.device
        self.clock = SpanClock(loop.device)
        self.looks = Looks()

    def profile(self, command: str, source: str) -> Profile:
        """All of it."""
        seconds = [self._timed("warm-up") for _ in range(WARM_UP_UPDATES)][-1]
        num_graphs = self._num_graphs()
        about = max(1.0, seconds * (2 * self.settings.updates + 6))
        self.say(words(self.settings.lang).PROGRESS["measuring"].format(seconds=about))
        sampled = self._plain_and_spans()
        memory = self._memory(sampled)
        if self.settings.trace or self.device.type == "cuda":
            self._trace()
        waits = self._waits()
        return Profile(
            created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            machine=describe_machine(self.device),
            command=command,
            settings=self.settings.train.to_flat() | {"game": self.training.game_name},
            source=source,
            timing=self._timing(),
            spans=self.clock.spans(),
            looks=self._looks(),
            copies=self.looks.device_work.copies(),
            compute=self._compute(),
            waits=waits,
            memory=memory,
            hardware=self._hardware(sampled),
            shapes=shapes(
                self.looks.plain[-1].episodes.learnable(),
                self.training.settings.update,
                np.random.default_rng(0),
                states_in_call=self.looks.timed["waits"].steps / self.looks.calls if self.looks.calls else 0.0,
                recompiles=None if num_graphs is None else (self._num_graphs() or 0) - num_graphs,
            ),
            per_sample=self._per_sample(),
            advice=[],
            trials=[],
        )

    # ------------------------------------------------------------------ the looks

    def _timed(self, look: str) -> float:
        """One update that counts for a look; its seconds."""
        wait_for_device(self.device)
        started = time.perf_counter()
        update = self.loop.update()
        wait_for_device(self.device)
        seconds = time.perf_counter() - started
        self._note(look, seconds, update.episodes.num_steps)
        if look == "plain":
            self.looks.plain.append(update)
        return seconds

    def _note(self, look: str, seconds: float, steps: int) -> None:
        timed = self.looks.timed.setdefault(look, Timed())
        timed.seconds.append(seconds)
        timed.steps += steps

    def _plain_and_spans(self) -> Sample:
        """By turns, so that a busy moment of the machine hits both alike."""
        probe = prober(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with Sampler(probe, SECONDS_BETWEEN_LOOKS) as sampler:
            for _ in range(self.settings.updates):
                self._timed("plain")
                with self.clock.running():
                    self._timed("spans")
                rate = matmul_rate(self.training.shape.hidden_dim, self.device)
                self.looks.matmul_rate = max(self.looks.matmul_rate, rate)
        sample, self.looks.samples = sampler.take()
        return sample or probe()  # too short for the thread to have looked

    def _trace(self) -> None:
        """On a GPU also without --trace: copies and kernels are read from it."""
        with nullcontext(str(self.folder)) if self.settings.trace else tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            self.looks.device_work = trace(lambda: self._timed("trace"), self.device, path)

    def _waits(self) -> WaitFindings:
        """Of one update, and apart from it of its collecting."""
        training, calls = self.training, Counter[str]()
        compiled, training.learner.compiled = training.learner.compiled, None
        notes = ["counted without --compile: nobody sees into a compiled graph"] if compiled else []

        def entered(name: str) -> AbstractContextManager[None]:
            calls[name] += 1
            return nullcontext()

        started = time.perf_counter()
        try:
            with span_hook(entered), count_waits() as rollout:
                episodes = training.collect()
            with count_waits() as update:
                training.update(training.prepare(episodes))
        finally:
            training.learner.compiled = compiled
        self._note("waits", time.perf_counter() - started, episodes.num_steps)
        self.looks.calls = 0 if training.supply.from_recordings else calls["forward"]
        return wait_findings(update, rollout, notes)

    def _num_graphs(self) -> int | None:
        compiled = self.training.learner.compiled
        return None if compiled is None else compiled.num_graphs

    # ------------------------------------------------------------------ what they found

    def _timing(self) -> Timing:
        plain, seconds = self.looks.plain, self.looks.timed["plain"].seconds
        return Timing(
            seconds=sum(seconds),
            rollout_seconds=sum(update.collect_seconds for update in plain),
            update_seconds=sum(update.learn_seconds for update in plain),
            episodes=sum(len(update.episodes) for update in plain),
            steps=sum(update.episodes.num_steps for update in plain),
            legal_actions=sum(update.episodes.num_actions for update in plain),
            updates=len(plain),
            seconds_of_update=seconds,
        )

    def _looks(self) -> list[Look]:
        plain = self.looks.timed["plain"].step_seconds
        return [
            Look(name=name, seconds=sum(look.seconds), updates=len(look.seconds), ratio=look.step_seconds / plain)
            for name, look in self.looks.timed.items()
            if name != "warm-up"
        ]

    def _compute(self) -> Compute:
        plain = self.looks.plain
        flops = sum(update.metrics["perf/update_flops"] for update in plain)
        return Compute(
            share=self.looks.device_work.compute_share,
            flops=flops / len(plain),
            rate=flops / sum(update.learn_seconds for update in plain),
            matmul_rate=self.looks.matmul_rate,
        )

    def _memory(self, sampled: Sample) -> Memory:
        if self.device.type != "cuda":
            return Memory(process_peak=sampled.process_memory)
        stats = torch.cuda.memory_stats(self.device)
        return Memory(
            process_peak=sampled.process_memory,
            allocated=stats["allocated_bytes.all.current"],
            peak_allocated=stats["allocated_bytes.all.peak"],
            reserved=stats["reserved_bytes.all.current"],
            device_total=torch.cuda.get_device_properties(self.device).total_memory,
            retries=stats["num_alloc_retries"],
        )

    def _hardware(self, sampled: Sample) -> Hardware:
        traced = self.looks.timed.get("trace")
        on_gpu = traced is not None and self.device.type == "cuda"
        return Hardware(
            gpu_use=sampled.gpu_use,
            gpu_busy=self.looks.device_work.busy_seconds / sum(traced.seconds) if traced and on_gpu else None,
            cpu_use=sampled.cpu_use,
            samples=self.looks.samples,
        )

    def _per_sample(self) -> PerSample | None:
        """Both by the steps of all epochs; None for a network of one's own, which nobody wrote per sample."""
        training, plain = self.training, self.looks.plain
        if not isinstance(training.net, PolicyValueNet):
            return None
        prepared = training.prepare(plain[-1].episodes)
        speed = per_sample_steps_per_second(training.net, prepared, training.settings.update)
        steps = sum(update.episodes.num_steps * update.metrics["perf/epochs"] for update in plain)
        return PerSample(steps_per_second=speed, ours=steps / sum(update.learn_seconds for update in plain))
