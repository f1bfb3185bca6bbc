"""One training in progress: its parts, and the verbs that the story in train.py is told with."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from movelist.core.errors import GameError, SettingsError
from movelist.core.settings import PlaySettings, TrainSettings, UpdateSettings
from movelist.data.episode import Episodes, Source
from movelist.games.game import Game, action_encoder, game_name, state_size
from movelist.games.openspiel import OpenSpielGame
from movelist.learn.batch import rollout_bytes
from movelist.learn.device import amp_dtype, choose_device, missing_cuda_advice, set_up, triton_missing
from movelist.learn.learner import Learner, Prepared
from movelist.learn.loss import imitation_loss, ppo_loss
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World
from movelist.measure.live import Live
from movelist.play import arena
from movelist.play.export import publish
from movelist.play.policy import NetPolicy, RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from movelist.run.recorded import OpenData, Recorded

QUICK_MATCH_GAMES = 200  # for the win rate shown during training


@dataclass
class Counters:
    """How far a run has come; saved with it."""

    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Update:
    """One update, for whoever measures."""

    episodes: Episodes
    metrics: dict[str, float]
    collect_seconds: float
    learn_seconds: float


class Training:
    """One training: its parts and the five verbs of the story."""

    def __init__(self, settings: TrainSettings, game: Game, folder: checkpoint.RunFolder) -> None:
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
        self.source: Source = SelfPlay(game, settings.play, seed=settings.run.seed)
        self.counters = Counters()
        self.saved: tuple[int, Path] | None = None  # the update and the file of the last checkpoint
        self.recorded: Recorded | None = None
        self.stop: list[int] = []
        self.live: Live | None = None
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
            (self.counters.steps, self.settings.run.total_steps),
            (self.counters.seconds, self.settings.run.max_seconds),
            (self.recorded.source.done if self.recorded else 0.0, 1.0),
        )
        return min(1.0, max((done / goal for done, goal in goals if goal), default=0.0))

    def collect(self) -> Episodes:
        """Play the update's games with the present weights; none once the source is exhausted.

        Raises:
            GameError: No turn of them has two legal actions.
        """
        if self.live:
            self.live.begin()
        policy = NetPolicy(self.net, use_amp=self.settings.update.use_amp)
        episodes = self.source.collect(policy, self.settings.update.update_frequency)
        if self.recorded:
            self.recorded.look_at(episodes, policy)
        if len(episodes) and not episodes.num_steps:
            raise GameError(
                "there is nothing to decide",
                got=f"{len(episodes)} episodes in which every turn has one legal action",
                where=self.game_name,
                do="Such a game needs no training; if only some episodes are so, raise --update_frequency.",
            )
        return episodes

    def prepare(self, episodes: Episodes) -> Prepared:
        """Values, missing log-probs, advantages."""
        return self.learner.prepare(episodes)

    def update(self, prepared: Prepared) -> dict[str, float]:
        """Some epochs of PPO; metrics by their tags."""
        lr = self.settings.update.lr
        if self.settings.update.lr_schedule == "linear":
            lr *= 1.0 - self.progress
        return self.learner.update(prepared, lr=lr)

    def count(self, episodes: Episodes, *, seconds: float) -> None:
        """Note that an update on these episodes is done."""
        self.counters.steps += episodes.num_steps
        self.counters.episodes += len(episodes)
        self.counters.seconds += seconds

    def save(self) -> Path:
        """Write a checkpoint, and publish it where an engine waits for it, unless there is one of this very update."""
        if self.saved and self.saved[0] == self.learner.num_updates:
            return self.saved[1]
        path = self.folder.save(self.learner.num_updates, self._state(), keep=self.settings.run.keep_checkpoints)
        self.saved = (self.learner.num_updates, path)
        if self.recorded and self.watching:
            self.folder.write_json("used_files.json", self.recorded.used_up())
            self.publish()
        return path

    def _state(self) -> dict[str, Any]:
        return checkpoint.pack(
            settings=self.settings.to_flat() | {"game": self.game_name},
            shape=self.shape,
            learner=self.learner.state_dict(),
            source=self.source.state_dict(),
            counters=asdict(self.counters),
        )

    def publish(self) -> None:
        """Hand the present policy to the engine that is waiting for it."""
        wanted = self.settings.recorded.publish
        publish(
            self.net,
            checkpoint.policy_info(self._state()),
            self.folder.path / "policies",
            onnx=None if wanted == "weights" else wanted,
            keep=self.settings.run.keep_checkpoints,
        )

    def resume(self) -> None:
        """Go on from the folder's latest checkpoint."""
        file = checkpoint.checkpoint_file(self.folder.path)
        state = checkpoint.load(file, device=self.learner.world.device)
        checkpoint.check_fits(state, self.folder.path, game=self.game_name, **asdict(self.shape))
        self.learner.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        self.counters = Counters(**state["counters"])
        self.saved = (self.learner.num_updates, file)
        self.folder.cut_metrics(self.counters.steps)

    def match(self, num_games: int) -> arena.MatchResult:
        """Greedy play against random players."""
        policy = NetPolicy(self.net, greedy=True)
        return arena.match(policy, RandomPolicy(), self.game, num_games=num_games, play=self.settings.play)

    def quick_match(self) -> dict[str, float]:
        """A first impression of the strength, for the display."""
        result = self.match(min(QUICK_MATCH_GAMES, self.settings.run.eval_games))
        return {"arena/win_rate": result.win_rate, "arena/mean_return": result.mean_return}

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
        if self.live:
            metrics |= self.live.metrics(seconds)
        if self.recorded:
            metrics |= self.recorded.metrics()
        if self.progress > 0:
            metrics["charts/seconds_left"] = self.counters.seconds * (1.0 / self.progress - 1.0)
        return metrics


def greeting(training: Training) -> list[str]:
    """What is said before the first update."""
    settings, device = training.settings, training.learner.world.device
    lines = [advice] if (advice := missing_cuda_advice()) else []
    if training.recorded:
        lines += training.recorded.lines()
    elif training.is_openspiel:
        lines.append(
            f"No --data, so self-play on OpenSpiel's {settings.game}. Your own game: --data FOLDER with recordings of "
            "it (docs/episode_format.md), or movelist.train(game=MyGame()) in Python."
        )
    else:
        lines.append(f"Self-play on {training.game_name}.")
    goals = []
    if settings.run.total_steps:
        goals.append(f"{settings.run.total_steps:,} steps (--total_steps)")
    if training.recorded and not settings.recorded.watch:
        goals.append(f"{settings.recorded.data_passes} passes over the data (--data_passes)")
    if settings.run.max_seconds:
        goals.append(f"{settings.run.max_seconds:,g} s (--max_seconds)")
    where = (
        f"{device}, {torch.get_num_threads()} threads".replace(" 1 threads", " 1 thread")
        if device.type == "cpu"
        else torch.cuda.get_device_name(device)
    )
    lines.append(f"On {where}, torch {torch.__version__}. Stops after {' or '.join(goals) or 'Ctrl-C only'}.")
    if training.counters.steps:
        lines.append(f"Going on after update {training.learner.num_updates:,}, {training.counters.steps:,} steps.")
    if training.progress >= 1.0:
        lines.append("It has already come that far: raise --total_steps or --max_seconds to train on.")
    lines += without_effect(settings, device)
    shown = ", ".join(f"{name}={value}" for name, value in settings.to_flat().items() if value is not None)
    return [*lines, f"Settings: {shown}"]


def without_effect(settings: TrainSettings, device: torch.device) -> list[str]:
    """A line for each setting that does nothing here."""
    lines = []
    if settings.update.use_amp and amp_dtype(device) is None:
        lines.append(f"--use_amp does nothing on this {device.type}: mixed precision needs a GPU with tensor cores.")
    if settings.update.kernels == "triton" and (reason := triton_missing(device)):
        lines.append(f"--kernels triton counts as torch: {reason}.")
    is_default = settings.play.num_games == PlaySettings().num_games
    if settings.play.num_games > settings.update.update_frequency and not is_default:
        lines.append(
            f"--num_games {settings.play.num_games} counts as {settings.update.update_frequency}: no more games than "
            "--update_frequency are played for an update."
        )
    if settings.run.resume and settings.run.out not in (None, settings.run.resume):
        lines.append(f"--out {settings.run.out} does nothing: a resumed run goes on in its own folder.")
    return lines


def describe_update(settings: UpdateSettings, episodes: Episodes) -> list[str]:
    """What the settings mean for this game, once the first episodes are there, and what looks too small."""
    minibatch = settings.batch_size * settings.gradient_accumulation_steps
    num_minibatches = -(-episodes.num_steps // minibatch)
    lines = [
        f"An update: {len(episodes):,} episodes = about {episodes.num_steps:,} steps with {episodes.num_actions:,} "
        f"legal actions = {num_minibatches:,} minibatches of up to {minibatch:,} steps x "
        f"{settings.epochs_per_update} epochs. It keeps about "
        f"{max(1, rollout_bytes(episodes, settings.epochs_per_update) >> 20):,} MB on the device."
    ]
    if len(episodes) < 32:
        lines.append(
            f"Warning: {len(episodes)} episodes for an update make a noisy gradient and small network calls. "
            "Raise --update_frequency to 32 or more."
        )
    if num_minibatches < 4:
        lines.append(
            f"Warning: {num_minibatches} minibatches an epoch are few steps of learning for the games played. "
            "Raise --update_frequency or lower --batch_size."
        )
    return lines


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
    if path is None or settings.run.resume:
        return None
    state = checkpoint.load(path, device=choose_device(settings.run.device))
    checkpoint.check_fits(state, path, game=game_name(game), **asdict(shape))
    return state


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Turn Ctrl-C and SIGTERM into a wish to stop; a second one leaves at once.

    Yields:
        The signals that came so far; empty while the training may go on.
    """
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)  # at once: the last checkpoint is whole, whatever is half done now
        came.append(number)
        say("Stopping after this update. Once more to leave at once.")

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, on_signal) for number in numbers}
    except ValueError:  # not in the main thread: whoever started this one handles signals
        before = {}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
