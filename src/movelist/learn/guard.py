"""Numbers gone bad in an update: noticed on the device without a wait, named on the host afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.action_ids import to_text
from movelist.learn.batch import Batch, Rollout
from movelist.learn.device import LossScale

Array = NDArray[Any]
SMALLEST_SCALE = 2.0**-10  # gradients that overflow float16 even at this scale are no matter of scale


class Guard:
    """Remembers on the device which minibatch first had a loss or gradient that is not finite, and stops all later
    steps."""

    def __init__(self, device: torch.device) -> None:
        self.first_bad = torch.full((), -1.0, device=device)
        self.number = 0

    def add(self, loss: torch.Tensor, norm: torch.Tensor, loss_scale: LossScale) -> torch.Tensor:
        """1.0 if the optimiser must skip this step, else 0.0.

        An overflow of float16 gradients skips this step alone and says nothing of the weights, as long as a smaller
        scale may mend it.
        """
        overflow = ~norm.isfinite() & loss.isfinite() & loss_scale.enabled & (loss_scale.scale > SMALLEST_SCALE)
        bad = ~(loss.isfinite() & norm.isfinite()) & ~overflow
        self.first_bad = torch.where(bad & (self.first_bad < 0), float(self.number), self.first_bad)
        self.number += 1
        loss_scale.update(overflow.float())
        return ((self.first_bad >= 0) | overflow).float()


def non_finite_places(
    rollout: Rollout, batch: Batch, score_A: torch.Tensor, value_B: torch.Tensor, old_log_prob_N: Array
) -> Iterator[tuple[str, int, float]]:
    """What is not finite in a batch's outputs, at which step of the rollout, and the number."""
    step_B = batch.step_B.cpu().numpy()
    score, value = score_A.float().cpu().numpy(), value_B.float().cpu().numpy()
    for a in np.flatnonzero(~np.isfinite(score)):
        action_id = rollout.unique_id_R[int(batch.row_U[batch.unique_A[a]])]
        yield f"the logit of action {to_text(action_id)}", int(step_B[int(batch.segments.step_A[a])]), score[a]
    for b in np.flatnonzero(~np.isfinite(value)):
        yield "the value", int(step_B[b]), value[b]
    log_prob_A = ragged.log_softmax(score_A, batch.segments)
    log_prob = log_prob_A.index_select(0, batch.chosen_B).float().cpu().numpy()
    with np.errstate(over="ignore"):
        ratio = np.exp(log_prob - old_log_prob_N[step_B])
    for b in np.flatnonzero(~np.isfinite(ratio)):
        yield "the ratio of the new to the recorded probability", int(step_B[b]), ratio[b]
