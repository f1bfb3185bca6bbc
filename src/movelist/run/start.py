"""What a training starts from and counts: the network's sizes, another run's weights, how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from movelist.core.errors import SettingsError
from movelist.core.settings import TrainSettings
from movelist.data.episode import Episodes
from movelist.games.columns import CRITIC, FEATURES, game_columns, width_of
from movelist.games.game import Game, action_encoder, game_name, state_size
from movelist.learn.critic import Critic
from movelist.learn.model import ModelShape, Network
from movelist.run import checkpoint
from movelist.run.carry_over import carry_over, layout_of
from movelist.run.folder import numbered


@dataclass
class Counters:
    """How far a run has come; saved with it.

    Attributes:
        steps: Trained on.
        episodes: Trained on.
        seconds: Of training.
        best_win_rate: Of the checkpoint that best.json names; below 0 if there is none.
        best_figures: What a new best is held against; see best.py.
        last_match: The last quick match, by its tags.
        matched_update: After which update that was.
        last_figures: What decides of that match; see best.py.
        rungs: Update, rating and its error of the checkpoints of the ladder, the oldest first; see ladder.py.
        beats_random: Whether random players were beaten so often that they are no measure any more.
    """

    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    best_win_rate: float = -1.0
    best_figures: dict[str, Any] = field(default_factory=dict)
    last_match: dict[str, float] = field(default_factory=dict)
    matched_update: int = -1
    last_figures: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    rungs: list[list[Any]] = field(default_factory=list)
    beats_random: bool = False


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


@dataclass(frozen=True)
class Update:
    """One update, for whoever measures or logs.

    Attributes:
        number: Updates made so far, this one too.
        steps: Steps trained on so far, in all processes.
        episodes: This process's episodes of this update.
        metrics: By their TensorBoard tags, see docs/metrics.md.
        collect_seconds: Seconds for getting the episodes.
        learn_seconds: Seconds for learning from them.
    """

    number: int
    steps: int
    episodes: Episodes
    metrics: dict[str, float]
    collect_seconds: float
    learn_seconds: float


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
    shape = ModelShape(
        state_size=getattr(game, "state_size", None) or state_size(game),
        hidden_dim=settings.model.hidden_dim,
        action_hidden_dim=settings.model.action_hidden_dim or 0,
        action_encoder=encoder,
        num_actions=num_actions,
        state_encoder=settings.model.state_encoder or "",
        network=settings.model.network or "",
        feature_size=feature_size(settings, game),
    )
    layout_of(game, shape)  # names that fit no column are refused before any file is made
    return shape


def feature_size(settings: TrainSettings, game: Game) -> int:
    """How many numbers the standard network looks at of each legal action beside its id; one's own names columns."""
    if settings.model.action_features == "ignore" or settings.model.network:
        return 0
    told: int | None = getattr(game, "feature_size", None)  # a game that is known from recordings
    return width_of(game_columns(game), FEATURES) if told is None else told


def make_critic(
    settings: TrainSettings, game: Game, net: Network, device: torch.device, recorded: int | None = None
) -> Critic | None:
    """The critic that knows more than the state, if there is to be one; made after the network, which stays the same.

    Args:
        settings: Say whether there is to be one.
        game: What it is to know of, if that is not recorded.
        net: Beside which it stands; it is as wide.
        device: Where it is.
        recorded: Width of the recordings' critic states; None plays the game.

    Raises:
        GameError: The game does not tell what it is to know.
    """
    if settings.play.critic_sees == "state":
        return None
    size = width_of(game_columns(game, critic=True), CRITIC) if recorded is None else recorded
    return Critic(net.shape.state_size, size, net.shape.hidden_dim).to(device)


def shape_of(net: Network, settings: TrainSettings) -> ModelShape:
    """A network's sizes, with the names that the settings have for its parts."""
    model = settings.model
    return replace(net.shape, state_encoder=model.state_encoder or "", network=model.network or "")


def check_start(settings: TrainSettings, game: Game, shape: ModelShape) -> dict[str, Any] | None:
    """The checkpoint of --init_from, if a new run is to start from one, its weights for the game as it is now.

    What is to be said of the weights stands in it as `carried`.

    Raises:
        CheckpointError: It cannot be read, is of another game, or differs in more than a patch may change.
    """
    path = settings.recorded.init_from
    if path is None or (settings.run.resume and numbered(settings.run.resume / "checkpoints")):
        return None
    state, carried = carry_over(checkpoint.load(path), path, game_name(game), shape, layout_of(game, shape))
    return state | {"carried": carried}
