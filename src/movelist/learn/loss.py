"""The PPO loss on flat scores: policy, value and entropy, as sums over the steps of a batch.

A loss is a function of the form `Loss`, made of the small ones below. One with further numbers to log names all that it
returns in an attribute:

    def my_loss(score_A, value_B, segments, chosen_B, targets, settings):
        terms = ppo_loss(score_A, value_B, segments, chosen_B, targets, settings)
        penalty = score_A.square().sum()
        return {**terms, "loss": terms["loss"] + 1e-4 * penalty, "penalty": penalty}

    my_loss.names = (*LOSS_NAMES, "penalty")

One that trains towards something else, too, has a function of the rollout's episodes as its attribute `targets`:

    my_loss.targets = lambda episodes: {"length": np.diff(episodes.episode_offsets)[episodes.episode_N]}

and finds the numbers of a batch's steps as `targets.more["length"]`, float32 [B].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.errors import SettingsError
from movelist.core.ragged import Segments
from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes


@dataclass(frozen=True)
class Targets:
    """What a batch is trained towards, each [B].

    Attributes:
        old_log_prob_B: Log-probability of the chosen action when it was chosen.
        advantage_B: How much better it did than expected, normalised.
        return_B: The return to predict, in scaled units.
        old_value_B: The value before the update, in scaled units.
        more: By name, what the loss asked for besides.
    """

    old_log_prob_B: torch.Tensor
    advantage_B: torch.Tensor
    return_B: torch.Tensor
    old_value_B: torch.Tensor
    more: Mapping[str, torch.Tensor] = field(default_factory=dict, kw_only=True)

    @property
    def standard(self) -> tuple[torch.Tensor, ...]:
        """Those that every batch has, in the order above."""
        return self.old_log_prob_B, self.advantage_B, self.return_B, self.old_value_B


STANDARD_TARGETS = ("old_log_prob", "advantage", "return", "old_value")  # in the order of Targets
LOSS_NAMES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
TAKEN_NAMES = frozenset({"steps", "minibatches", "grad_norm", "first_bad", "skipped"})  # summed beside a loss's own
# Probabilities e^20 = 5e8 times apart are no step of learning; e^89 would be infinite in float32.
LARGEST_LOG_RATIO = 20.0
DUAL_CLIP = 3.0  # c of Ye et al.


Loss = Callable[[torch.Tensor, torch.Tensor, Segments, torch.Tensor, Targets, UpdateSettings], dict[str, torch.Tensor]]


def ppo_loss(
    score_A: torch.Tensor,
    value_B: torch.Tensor,
    segments: Segments,
    chosen_B: torch.Tensor,
    targets: Targets,
    settings: UpdateSettings,
    dual_clip: float | None = None,
) -> dict[str, torch.Tensor]:
    """The loss of a batch, and what to log of it, summed over its steps.

    `policy = -min(ratio * adv, clip(ratio, 1 - c, 1 + c) * adv)`, `value = (V - return)^2 / 2`,
    `loss = policy + vf_coef * value - ent_coef * entropy`.

    Sums, not means: the caller divides by the steps of the whole minibatch, so that one batch equals many small ones.

    Args:
        score_A: [A] logits.
        value_B: [B].
        segments: The lists.
        chosen_B: int64 [B], the chosen action's place in the flat list.
        targets: What to train towards.
        settings: clip_range, clip_range_vf, ent_coef and vf_coef are read.
        dual_clip: As in `policy_loss`.

    Returns:
        0-d tensors by the names of LOSS_NAMES; "loss" carries the gradient. approx_kl is `ratio - 1 - log ratio`.

    Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7 and 9; approx_kl: http://joschu.net/blog/kl-approx.html.
    """
    log_prob_A = ragged.log_softmax(score_A, segments)
    log_ratio_B = log_ratio(log_prob_A.index_select(0, chosen_B), targets.old_log_prob_B)
    ratio_B = log_ratio_B.exp()
    policy = policy_loss(ratio_B, targets.advantage_B, settings.clip_range, dual_clip)
    value = value_loss(value_B, targets, settings.clip_range_vf)
    entropy = ragged.entropy(log_prob_A, segments).sum()
    with torch.no_grad():
        kl = approx_kl(log_ratio_B)
        clipped = clip_fraction(ratio_B, settings.clip_range)
    loss = policy + settings.vf_coef * value - settings.ent_coef * entropy
    return named_terms(loss, policy, value, entropy, kl, clipped)


# For recorded games, whose policy may be far from the present one; the same numbers where no ratio is above DUAL_CLIP.
recorded_ppo_loss: Loss = functools.partial(ppo_loss, dual_clip=DUAL_CLIP)


def imitation_loss(
    score_A: torch.Tensor,
    value_B: torch.Tensor,
    segments: Segments,
    chosen_B: torch.Tensor,
    targets: Targets,
    settings: UpdateSettings,
) -> dict[str, torch.Tensor]:
    """`ppo_loss` for learning to choose as the recorded players did: `policy = -log p(chosen)`, no entropy bonus.

    Arguments and results as in `ppo_loss`; values are learned too, so that PPO can go on from here. clip_fraction is 0.
    """
    log_prob_A = ragged.log_softmax(score_A, segments)
    log_prob_B = log_prob_A.index_select(0, chosen_B)
    policy = -log_prob_B.sum()
    value = value_loss(value_B, targets, settings.clip_range_vf)
    with torch.no_grad():
        entropy = ragged.entropy(log_prob_A, segments).sum()
        kl = approx_kl(log_ratio(log_prob_B, targets.old_log_prob_B))
    loss = policy + settings.vf_coef * value
    return named_terms(loss, policy, value, entropy, kl, torch.zeros_like(entropy))


# ---------------------------------------------------------------------- what losses are made of


def log_ratio(log_prob_B: torch.Tensor, old_log_prob_B: torch.Tensor) -> torch.Tensor:
    """Logarithm of how much likelier the chosen actions became, [B], at most LARGEST_LOG_RATIO.

    Above that there is no gradient: one absurd `old_log_prob_B` must not own, or make infinite, that of a minibatch.
    """
    return (log_prob_B - old_log_prob_B).clamp(max=LARGEST_LOG_RATIO)


def policy_loss(
    ratio_B: torch.Tensor, advantage_B: torch.Tensor, clip_range: float, dual_clip: float | None = None
) -> torch.Tensor:
    """PPO's clipped policy loss, summed over the steps.

    Args:
        ratio_B: [B], the chosen actions' present probabilities divided by the old ones.
        advantage_B: [B].
        clip_range: A ratio further than this from 1 gains nothing more.
        dual_clip: A step with a negative advantage loses at most this many times it; None knows no limit.

    Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv 1912.09729, eq. 5.
    """
    clipped_B = ratio_B.clamp(1 - clip_range, 1 + clip_range)
    gain_B = torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B)
    if dual_clip is not None:
        # Not maximum(), which shares the gradient out where both are equal.
        gain_B = torch.where((advantage_B < 0) & (ratio_B > dual_clip), dual_clip * advantage_B, gain_B)
    return -gain_B.sum()


def value_loss(value_B: torch.Tensor, targets: Targets, clip_range: float | None) -> torch.Tensor:
    """Half the squared error of the values, summed over the steps; `clip_range` holds them near the old ones.

    Source: clipping as in OpenAI's baselines, ppo2.
    """
    error_B = (value_B - targets.return_B).square()
    if clip_range is not None:
        # The worse of the free and the clipped prediction, so that clipping never makes a step look better.
        moved_B = targets.old_value_B + (value_B - targets.old_value_B).clamp(-clip_range, clip_range)
        error_B = torch.maximum(error_B, (moved_B - targets.return_B).square())
    return 0.5 * error_B.sum()


def approx_kl(log_ratio_B: torch.Tensor) -> torch.Tensor:
    """An estimate of the KL divergence of the old policy from the present one, `ratio - 1 - log ratio`, summed.

    Source: http://joschu.net/blog/kl-approx.html.
    """
    return (log_ratio_B.exp() - 1 - log_ratio_B).sum()


def clip_fraction(ratio_B: torch.Tensor, clip_range: float) -> torch.Tensor:
    """How many ratios are further than `clip_range` from 1."""
    return ((ratio_B - 1).abs() > clip_range).float().sum()


def named_terms(
    loss: torch.Tensor,
    policy: torch.Tensor,
    value: torch.Tensor,
    entropy: torch.Tensor,
    kl: torch.Tensor,
    clipped: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """What a loss returns: its terms by LOSS_NAMES, all sums over the steps of the batch."""
    return dict(zip(LOSS_NAMES, (loss, policy, value, entropy, kl, clipped), strict=True))


def own_targets(loss: Loss, episodes: Episodes) -> dict[str, NDArray[Any]]:
    """What a loss's attribute `targets` makes of a rollout's episodes: by name a finite number for each step, [N].

    Raises:
        SettingsError: A name is a standard target's, or there is not one finite number for each step.
    """
    make = getattr(loss, "targets", None)
    made = {} if make is None else {name: np.asarray(column) for name, column in make(episodes).items()}
    for name, column in made.items():
        if name in STANDARD_TARGETS:
            raise SettingsError("a loss's own target needs a name of its own", got=name)
        if column.shape != (episodes.num_steps,) or not np.isfinite(column).all():
            raise SettingsError(
                f"the loss's target {name} is not a finite number for each step",
                got=f"shape {list(column.shape)}",
                expected=[episodes.num_steps],
            )
    return made


def loss_names(loss: Loss) -> tuple[str, ...]:
    """What a loss returns: its attribute `names`, or LOSS_NAMES if it has none.

    Raises:
        SettingsError: One of LOSS_NAMES is missing, a name stands twice, or the trainer has a number of that name.
    """
    names: tuple[str, ...] = tuple(getattr(loss, "names", LOSS_NAMES))
    if not set(LOSS_NAMES) <= set(names) or len(set(names)) < len(names) or TAKEN_NAMES & set(names):
        raise SettingsError(
            "the loss's `names` cannot be logged",
            got=", ".join(names),
            expected=f"{', '.join(LOSS_NAMES)} and other names, none twice, none of {', '.join(sorted(TAKEN_NAMES))}",
        )
    # "loss" first: the compiled graph's first output is what the gradient is taken of.
    return (*LOSS_NAMES, *(name for name in names if name not in LOSS_NAMES))


def check_terms(terms: Mapping[str, torch.Tensor], names: tuple[str, ...]) -> None:
    """Hold what a loss returned against what it said it would.

    Raises:
        SettingsError: The names differ.
    """
    if set(terms) != set(names):
        raise SettingsError(
            "the loss returned other terms than it names",
            got=", ".join(terms),
            expected=", ".join(names),
            do="List all that it returns in its attribute `names`.",
        )
