"""A patch is no new beginning: another run's weights for a game that has changed since.

Where a game names the columns of its states (`state_names`) and of its action features (`feature_names`), `--init_from`
takes weights by these names: new columns start at zero, so that the policy is the same function where they are 0, and
removed ones are dropped. Rows of a table of actions go by their ids. What has no names has to be as wide as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from movelist.core.errors import CheckpointError, GameError
from movelist.games.game import Game, game_name
from movelist.learn.model import ModelShape
from movelist.run import checkpoint

_CHANGES = ("state_size", "num_actions", "feature_size")  # sizes that a patch may change
_STATE, _FEATURES, _TABLE = "state_encoder.layers.0.weight", "feature_to_pair.weight", "action_encoder.first.weight"
_CRITIC = "encoder.layers.0.weight"
SAID_NAMES = 5


@dataclass(frozen=True)
class Layout:
    """What a game's columns are called; empty where it gives no names.

    Attributes:
        state: Of a state, [S].
        features: Of a legal action's features, [F].
    """

    state: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def layout_of(game: Game, shape: ModelShape) -> Layout:
    """The names of a game's columns.

    Raises:
        GameError: There is not one name for each column, or one stands twice.
    """
    named = {}
    for field, attribute, size in (("state", "state_names", shape.state_size),
                                   ("features", "feature_names", shape.feature_size)):  # fmt: skip
        names = tuple(map(str, getattr(game, attribute, ()))) if size else ()
        if names and (len(names) != size or len(set(names)) < len(names)):
            got = f"{len(names)}, {len(set(names))} of them different"
            raise GameError(f"{attribute} does not name each column once", got=got, expected=f"{size} different names",
                            where=game_name(game))  # fmt: skip
        named[field] = names
    return Layout(**named)


def carry_over(
    state: dict[str, Any], where: Path | str, game: str, shape: ModelShape, layout: Layout
) -> tuple[dict[str, Any], list[str]]:
    """A checkpoint's state with the weights of a network of another shape, and what is to be said of it.

    Args:
        state: From `checkpoint.load`.
        where: Its file, for messages.
        game: The game's name.
        shape: Of the network that is to begin with them.
        layout: Of the game as it is now.

    Raises:
        CheckpointError: It is of another game, or differs in what has no names.
    """
    held = ModelShape(**state["shape"])
    sizes = {name: size for name, size in asdict(shape).items() if name not in _CHANGES}
    checkpoint.check_fits(state, where, game=game, **sizes)
    saved = state.get("layout", {})
    before = Layout(tuple(saved.get("state", ())), tuple(saved.get("features", ())))
    net, learner, said = dict(state["learner"]["net"]), dict(state["learner"]), []
    if held.network or held.state_encoder:  # its first layer is its own
        checkpoint.check_fits(state, where, game=game, **{name: getattr(shape, name) for name in _CHANGES})
    else:
        columns = _Columns(before.state, layout.state, held.state_size, shape.state_size, "state_size", where)
        net[_STATE] = columns.mapped(net[_STATE])
        said += columns.words("columns of the state")
        if (critic := learner.get("critic")) is not None:
            state_HS, critic_HC = critic[_CRITIC].split(
                [held.state_size, critic[_CRITIC].shape[1] - held.state_size], 1
            )
            learner["critic"] = {**critic, _CRITIC: torch.cat([columns.mapped(state_HS), critic_HC], 1)}
    if held.feature_size or shape.feature_size:
        columns = _Columns(
            before.features, layout.features, held.feature_size, shape.feature_size, "feature_size", where
        )
        net[_FEATURES] = columns.mapped(net.get(_FEATURES, torch.zeros(shape.hidden_dim, 0)))
        if not shape.feature_size:
            del net[_FEATURES]
        said += columns.words("action features")
    if shape.num_actions != held.num_actions:
        kept = min(shape.num_actions, held.num_actions)
        table = net[_TABLE].new_zeros(shape.num_actions, net[_TABLE].shape[1])
        table[:kept] = net[_TABLE][:kept]
        net[_TABLE] = table
        said.append(f"{kept:,} rows of the table of actions, which had {held.num_actions:,} and has {len(table):,}")
    told = [f"Carried over from {where}: {'; '.join(said)}; the rest as it was."] if said else []
    return state | {"learner": learner | {"net": net}}, told


@dataclass(frozen=True)
class _Columns:
    """Which column of before is which now."""

    before: tuple[str, ...]
    now: tuple[str, ...]
    size_before: int
    size_now: int
    what: str
    where: Path | str

    def __post_init__(self) -> None:
        named = bool(self.before and self.now)
        if not named and self.size_before != self.size_now and (self.size_before and self.size_now):
            raise CheckpointError(
                f"the checkpoint is of another {self.what}",
                got=self.size_before,
                expected=self.size_now,
                where=str(self.where),
                do="Weights are carried over where the game names its columns, before and now: docs/extending.md.",
            )

    def mapped(self, weight_HS: torch.Tensor) -> torch.Tensor:
        """A first layer's weights for the columns of now."""
        if not (self.before and self.now):
            # As many as before, or none before or now.
            return (
                weight_HS if self.size_before == self.size_now else weight_HS.new_zeros(len(weight_HS), self.size_now)
            )
        weight = weight_HS.new_zeros(len(weight_HS), self.size_now)
        place = {name: number for number, name in enumerate(self.before)}
        for number, name in enumerate(self.now):
            if name in place:
                weight[:, number] = weight_HS[:, place[name]]
        return weight

    def words(self, what: str) -> list[str]:
        """What was carried over, if not all is as it was."""
        if not (self.before and self.now):
            count = self.size_now or self.size_before
            same = self.size_before == self.size_now
            return [] if same else [f"all {count:,} {what} are {'new' if self.size_now else 'dropped'}"]
        if self.before == self.now:
            return []
        new = [name for name in self.now if name not in self.before]
        gone = [name for name in self.before if name not in self.now]
        text = f"{len(self.now) - len(new):,} {what} by name"
        return [text + _listed(", new", new) + _listed(", dropped", gone)]


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SAID_NAMES:,} more" if len(names) > SAID_NAMES else ""
    return f"{what}: {', '.join(names[:SAID_NAMES])}{more}"
