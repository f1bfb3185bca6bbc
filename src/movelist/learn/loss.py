"""The PPO loss on flat scores: policy, value and entropy, as sums over the steps of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from movelist.core import ragged
from movelist.core.ragged import Segments
from movelist.core.settings import UpdateSettings


@dataclass(frozen=True)
class Targets:
    """What a batch is trained towards, each [B].

    Attributes:
        old_log_prob_B: Log-probability of the chosen action when it was chosen.
        advantage_B: How much better it did than expected, normalised.
        return_B: The return to predict, in scaled units.
        old_value_B: The value before the update, in scaled units.
    """

    old_log_prob_B: torch.Tensor
    advantage_B: torch.Tensor
    return_B: torch.Tensor
    old_value_B: torch.Tensor


LOSS_NAMES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


Loss = Callable[[torch.Tensor, torch.Tensor, Segments, torch.Tensor, Targets, UpdateSettings], dict[str, torch.Tensor]]


def ppo_loss(
    score_A: torch.Tensor,
    value_B: torch.Tensor,
    segments: Segments,
    chosen_B: torch.Tensor,
    targets: Targets,
    settings: UpdateSettings,
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

    Returns:
        0-d tensors by the names of LOSS_NAMES; "loss" carries the gradient. approx_kl is `ratio - 1 - log ratio`.

    Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7 and 9; approx_kl: http://joschu.net/blog/kl-approx.html.
    """
    log_prob_A = ragged.log_softmax(score_A, segments)
    log_ratio_B = log_prob_A.index_select(0, chosen_B) - targets.old_log_prob_B
    ratio_B = log_ratio_B.exp()
    clipped_B = ratio_B.clamp(1 - settings.clip_range, 1 + settings.clip_range)
    policy = -torch.minimum(ratio_B * targets.advantage_B, clipped_B * targets.advantage_B).sum()
    value = _value_loss(value_B, targets, settings.clip_range_vf)
    entropy = ragged.entropy(log_prob_A, segments).sum()
    with torch.no_grad():
        approx_kl = (ratio_B - 1 - log_ratio_B).sum()
        clip_fraction = ((ratio_B - 1).abs() > settings.clip_range).float().sum()
    loss = policy + settings.vf_coef * value - settings.ent_coef * entropy
    return dict(zip(LOSS_NAMES, (loss, policy, value, entropy, approx_kl, clip_fraction), strict=True))


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
    value = _value_loss(value_B, targets, settings.clip_range_vf)
    with torch.no_grad():
        entropy = ragged.entropy(log_prob_A, segments).sum()
        log_ratio_B = log_prob_B - targets.old_log_prob_B
        approx_kl = (log_ratio_B.exp() - 1 - log_ratio_B).sum()
    loss = policy + settings.vf_coef * value
    return dict(zip(LOSS_NAMES, (loss, policy, value, entropy, approx_kl, torch.zeros_like(entropy)), strict=True))


def _value_loss(value_B: torch.Tensor, targets: Targets, clip_range: float | None) -> torch.Tensor:
    error_B = (value_B - targets.return_B).square()
    if clip_range is not None:
        # The worse of the free and the clipped prediction, so that clipping never makes a step look better.
        moved_B = targets.old_value_B + (value_B - targets.old_value_B).clamp(-clip_range, clip_range)
        error_B = torch.maximum(error_B, (moved_B - targets.return_B).square())
    return 0.5 * error_B.sum()
