"""Softmax, entropy, KL, sampling and argmax over lists of different lengths that lie flat, one after another.

A batch of B lists with A entries in all is a flat tensor `[A]` and its `Segments`. Every function treats each list by
itself: it subtracts that list's own maximum, and no sum is a difference of running sums, so one list's numbers never
touch another's. None of them makes the host wait for the device.

Log-probabilities are float32 under autocast; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Segments:
    """Where each list begins and ends in a flat tensor.

    Attributes:
        offsets: int64 [B+1], starts at 0; list b is `value_A[offsets[b]:offsets[b + 1]]`.
        step_A: int64 [A], the list that each entry belongs to.
        num_steps: B.
        num_actions: A.

    Example: lists of 2 and 3 entries: `offsets` [0, 2, 5], `step_A` [0, 0, 1, 1, 1].
    """

    offsets: torch.Tensor
    step_A: torch.Tensor
    num_steps: int
    num_actions: int

    @classmethod
    def from_counts(cls, counts: Sequence[int] | NDArray[np.integer] | torch.Tensor) -> Segments:
        """Build from the lists' lengths, on the host.

        Args:
            counts: [B] integers, each at least 1; a list, numpy array, or tensor on the CPU.

        Raises:
            DataError: A length is below 1, named with its place; or `counts` is not a row of integers.
        """
        count_B = np.asarray(counts)
        if count_B.ndim != 1 or (count_B.size and count_B.dtype.kind not in "iu"):
            raise DataError("list lengths are not a row of integers", got=f"{count_B.dtype} {list(count_B.shape)}")
        count_B = count_B.astype(np.int64, copy=False)
        empty = np.flatnonzero(count_B < 1)
        if empty.size:
            raise DataError(
                "a list of legal actions is empty",
                got=f"length {count_B[empty[0]]}",
                expected="at least 1",
                where=f"step {empty[0]} of {count_B.size}",
                do="A turn without a legal action is no step: leave it out.",
            )
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_B)])
        step_A = np.repeat(np.arange(count_B.size), count_B)
        return cls(torch.from_numpy(offsets), torch.from_numpy(step_A), count_B.size, int(offsets[-1]))

    def to(self, device: torch.device | str) -> Segments:
        """The same lists on another device."""
        return Segments(self.offsets.to(device), self.step_A.to(device), self.num_steps, self.num_actions)


def _check(segments: Segments, *flat: torch.Tensor) -> None:
    for value_A in flat:
        if value_A.shape != (segments.num_actions,):
            raise DataError(
                "list lengths disagree with the flat tensor",
                got=f"{list(value_A.shape)} values",
                expected=f"[{segments.num_actions}], the sum of {segments.num_steps} list lengths",
            )


def _sum(value_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    return value_A.new_zeros(segments.num_steps).index_add(0, segments.step_A, value_A)


def _max(value_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    return value_A.new_full((segments.num_steps,), -torch.inf).scatter_reduce(0, segments.step_A, value_A, "amax")


def log_softmax(value_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Log of the softmax of each list.

    Args:
        value_A: [A] logits; -inf marks an entry that cannot be chosen. A list of nothing but -inf gives NaN.
        segments: The lists.

    Returns:
        [A] log-probabilities, float32 (float64 for float64). -inf entries stay -inf and pass no gradient.

    Raises:
        DataError: The list lengths do not add up to A.
    """
    _check(segments, value_A)
    value_A = value_A if value_A.dtype == torch.float64 else value_A.float()
    # The maximum cancels out of the result, so it carries no gradient.
    shifted_A = value_A - _max(value_A.detach(), segments).index_select(0, segments.step_A)
    return shifted_A - _sum(shifted_A.exp(), segments).log().index_select(0, segments.step_A)


def entropy(log_prob_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Entropy of each list's distribution in nats, `-sum p log p`, where an entry of probability 0 counts 0.

    Args:
        log_prob_A: [A] log-probabilities.
        segments: The lists.

    Returns:
        [B], between 0 and log(list length).
    """
    _check(segments, log_prob_A)
    # 0 * -inf is NaN, and so is its gradient: the factor is replaced before it meets the probability.
    finite_A = log_prob_A.masked_fill(log_prob_A == -torch.inf, 0.0)
    return -_sum(log_prob_A.exp() * finite_A, segments)


def kl_divergence(log_prob_A: torch.Tensor, other_log_prob_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Kullback-Leibler divergence of each list, `sum p (log p - log q)`, in nats.

    Args:
        log_prob_A: [A] log p.
        other_log_prob_A: [A] log q.
        segments: The lists.

    Returns:
        [B], at least 0; infinite where q rules out what p allows.
    """
    _check(segments, log_prob_A, other_log_prob_A)
    impossible_A = log_prob_A == -torch.inf
    difference_A = (log_prob_A - other_log_prob_A).masked_fill(impossible_A, 0.0)
    return _sum(log_prob_A.exp() * difference_A, segments)


def sample(log_prob_A: torch.Tensor, segments: Segments, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw one entry from each list by the Gumbel-max trick.

    Args:
        log_prob_A: [A] log-probabilities, or any logits.
        segments: The lists.
        generator: Source of the noise, on the device of `log_prob_A`.

    Returns:
        int64 [B], the chosen index within each list. An entry of -inf is never drawn.

    Source: Maddison et al. 2014, "A* Sampling", section 2.
    """
    _check(segments, log_prob_A)
    # The smallest positive normal number, not 0, so that no noise is infinite.
    uniform_A = torch.rand(log_prob_A.shape, generator=generator, device=log_prob_A.device, dtype=log_prob_A.dtype)
    uniform_A = uniform_A.clamp_min(torch.finfo(log_prob_A.dtype).tiny)
    return argmax(log_prob_A - torch.log(-torch.log(uniform_A)), segments)


def argmax(value_A: torch.Tensor, segments: Segments) -> torch.Tensor:
    """The index within each list of its largest entry; the first of equals, and NaN counts as largest.

    Args:
        value_A: [A].
        segments: The lists.

    Returns:
        int64 [B], each 0 to list length - 1.
    """
    _check(segments, value_A)
    is_max_A = (value_A == _max(value_A, segments).index_select(0, segments.step_A)) | value_A.isnan()
    place_A = torch.arange(segments.num_actions, device=value_A.device)
    place_A = torch.where(is_max_A, place_A, segments.num_actions)
    first_B = segments.offsets.new_full((segments.num_steps,), segments.num_actions)
    return first_B.scatter_reduce(0, segments.step_A, place_A, "amin") - segments.offsets[:-1]
