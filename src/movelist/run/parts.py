"""The parts of a training that can be handed in ready made, in place of those that its settings describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from movelist.core.by_name import HANDED_IN, name_of
from movelist.core.errors import CheckpointError, SettingsError
from movelist.core.settings import TrainSettings
from movelist.data.episode import Source
from movelist.games.bot import Bot
from movelist.learn.learner import Learner
from movelist.learn.loss import Loss
from movelist.learn.model import EncoderMaker, Network, NetworkMaker
from movelist.play.policy import Policy
from movelist.play.selfplay import Opponents
from movelist.run.start import Update


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a program hands in; None is built from the settings.

    Attributes:
        net: The network.
        state_encoder: What reads the states, in the standard network.
        loss: What is minimised; see `movelist.learn.loss`.
        source: Where the episodes come from.
        opponents: Who else plays in self-play.
        policy: Makes, of the network, who plays the learner's seats; called before each update.
        learner: Makes what turns episodes into better weights; called as `movelist.learn.learner.Learner` is.
        after_update: Called after each update, in the first process.
    """

    net: Network | None = None
    state_encoder: nn.Module | None = None
    loss: Loss | None = None
    source: Source | None = None
    opponents: Opponents | None = None
    policy: Callable[[Network], Policy] | None = None
    learner: Callable[..., Learner] | None = None
    after_update: Callable[[Update], None] | None = None

    def names(self) -> dict[str, str]:
        """What is handed in, by name; a checkpoint tells it, so that nobody goes on with other parts unawares."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _called(part) for name, part in given.items() if part is not None and name != "after_update"}

    def check_resumed(self, before: dict[str, str], where: str) -> list[str]:
        """Hold the parts against those that a checkpoint was trained with; what should be said of the others.

        Raises:
            CheckpointError: One is missing.
        """
        now = self.names()
        missing = {name: called for name, called in before.items() if name not in now}
        if missing:
            words = ", ".join(f"{name}=..." for name in missing)
            raise CheckpointError(
                "this run was trained with parts of its own, which have to be given again",
                got="nothing in their place",
                expected=", ".join(f"{name} {called}" for name, called in missing.items()),
                where=where,
                do=f"In Python: movelist.train(game, resume={where!r}, {words}).",
            )
        other = [f"{name} {called} in place of {before[name]}" if name in before else f"{name} {called}"
                 for name, called in now.items() if before.get(name) != called]  # fmt: skip
        return [f"From here on with {', '.join(other)}."] if other else []


NOTHING = Parts()


def handed_in(
    settings: TrainSettings,
    *,
    net: Network | NetworkMaker | str | None = None,
    state_encoder: nn.Module | EncoderMaker | str | None = None,
    opponents: Opponents | Sequence[Policy] | None = None,
    **others: Any,
) -> tuple[TrainSettings, Parts]:
    """Settings that name what can be named, and parts that hold what cannot.

    A class or function at the top of a module becomes a name, which checkpoints carry, so that every command finds it.

    Raises:
        SettingsError: A part is not of the kind that is needed.
    """
    model, own_net, own_encoder = settings.model, None, None
    if net is not None and state_encoder is not None:
        raise SettingsError("a network of one's own has its state encoder inside", do="Give net or state_encoder.")
    if net is not None:
        own_net, name = _named(net, Network, "net")
        model = replace(model, network=name)
    if state_encoder is not None:
        own_encoder, name = _named(state_encoder, nn.Module, "state_encoder")
        model = replace(model, state_encoder=name)
    if opponents is not None and not isinstance(opponents, Opponents):
        opponents = Opponents(opponents)
    for part, method in ((others.get("source"), "collect"), *((one, "choose") for one in _all(opponents))):
        if part is not None and not callable(getattr(part, method, None)):
            kind = "a movelist.Source" if method == "collect" else "a policy"
            raise SettingsError(f"this is not {kind}", got=_called(part), expected=f"an object with {method}()")
    own_source = others.get("source") is not None
    elsewhere = "recordings" if settings.recorded.data else "a source of one's own" if own_source else None
    if opponents is not None and elsewhere is not None:
        raise SettingsError(
            "opponents play in self-play only",
            got=f"opponents {_called(opponents)}, and episodes from {elsewhere}",
            do="Leave out the opponents, or let the training play its own games.",
        )
    if own_source and settings.recorded.data:
        raise SettingsError("episodes can come from one place only", got="source and data", do="Give one of them.")
    for name in ("loss", "policy", "learner", "after_update"):
        if others.get(name) is not None and not callable(others[name]):
            raise SettingsError(f"{name} has to be callable", got=_called(others[name]))
    return replace(settings, model=model), Parts(net=own_net, state_encoder=own_encoder, opponents=opponents, **others)


def _all(opponents: Opponents | None) -> Sequence[Policy | Bot]:
    return opponents.policies if opponents else ()


def _named(part: Any, kind: type, keyword: str) -> tuple[Any, str]:
    """(the part itself or None, its name): a class or function that can be found again goes by its name."""
    if isinstance(part, str):
        return None, part
    if isinstance(part, kind):
        return part, HANDED_IN + _called(part)
    name = name_of(part) if callable(part) else None
    if name is None:
        raise SettingsError(
            f"this {keyword} cannot be found again by name",
            got=_called(part),
            expected=f'a {kind.__name__}, a class or function at the top of a module, or its name: "module:Class"',
        )
    return None, name


def _called(part: Any) -> str:
    """A part as people know it."""
    if isinstance(part, Opponents):
        return f"{', '.join(map(_called, part.policies))} in {part.share:.0%} of the games"
    name = name_of(part) or name_of(type(part)) or type(part).__name__
    return name.removeprefix("builtins:")
