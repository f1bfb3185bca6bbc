"""Numbers gone bad in an update: noticed on the device without a wait, named on the host afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.action_ids import to_text
from movelist.core.errors import DataError, NonFiniteError
from movelist.data.episode import LARGEST, Episodes
from movelist.learn.batch import Batch, Rollout
from movelist.learn.device import LossScale
from movelist.learn.loss import LARGEST_LOG_RATIO

Array = NDArray[Any]
CALMER = "The weights were not changed by it; try a lower --lr or --max_grad_norm from the last checkpoint."
BAD_LOG_PROB = (
    "The old log-prob is far below the present policy's: write the natural logarithm of the probability that the "
    "choice was drawn with, or leave log_prob out."
)
MOST_KEPT = 1024  # steps
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
) -> Iterator[tuple[str, int, float, str]]:
    """What is not finite in a batch's outputs, at which step of the rollout, the number, and what to do about it."""
    step_B = batch.step_B.cpu().numpy()
    score, value = score_A.float().cpu().numpy(), value_B.float().cpu().numpy()
    for a in np.flatnonzero(~np.isfinite(score)):
        action_id = rollout.unique_id_R[int(batch.row_U[batch.unique_A[a]])]
        yield f"the logit of action {to_text(action_id)}", int(step_B[int(batch.segments.step_A[a])]), score[a], CALMER
    for b in np.flatnonzero(~np.isfinite(value)):
        yield "the value", int(step_B[b]), value[b], CALMER
    log_prob_A = ragged.log_softmax(score_A, batch.segments)
    log_prob = log_prob_A.index_select(0, batch.chosen_B).float().cpu().numpy()
    with np.errstate(over="ignore"):
        ratio = np.exp(log_prob - old_log_prob_N[step_B])
    for b in np.flatnonzero(~np.isfinite(ratio)):
        yield "the ratio of the new to the recorded probability", int(step_B[b]), ratio[b], BAD_LOG_PROB


class FarLogProbs:
    """Finds recorded log-probs that no draw of a policy near the present one can have had, and says so once."""

    def __init__(self) -> None:
        self._notices: list[str] = []
        self._told = False

    def wanted(self, episodes: Episodes) -> bool:
        """Whether the present policy's log-probs are needed: some are missing, or so small that they may be far off."""
        return bool((np.isnan(episodes.log_prob_N) | (episodes.log_prob_N < -LARGEST_LOG_RATIO)).any())

    def find(self, episodes: Episodes, log_prob_N: Array, *, imitated: bool) -> NDArray[np.bool_]:
        """bool [N]: the recorded log-prob is more than LARGEST_LOG_RATIO below `log_prob_N`, the present policy's.

        None of them matters where games are `imitated`: nothing is divided by their probabilities.
        """
        far_N: NDArray[np.bool_] = log_prob_N - episodes.log_prob_N > LARGEST_LOG_RATIO
        if imitated:
            return np.zeros_like(far_N)
        if far_N.any() and not self._told:
            self._told = True
            first = int(np.flatnonzero(far_N)[0])
            self._notices.append(
                f"Warning: {int(far_N.sum()):,} recorded log-probs of {len(far_N):,} are far below the present "
                f"policy's, so these steps do not train the policy: got {episodes.log_prob_N[first]:g}, the present "
                f"policy gives {log_prob_N[first]:.3g} (this rollout's {episodes.place(first)}). Write the natural "
                "logarithm of the probability that the choice was drawn with, or leave log_prob out; further ones are "
                "counted in data/far_log_probs."
            )
        return far_N

    def take_notices(self) -> list[str]:
        """What people should be told since the last call."""
        notices, self._notices = self._notices, []
        return notices


def columns_of(rollout: Rollout, step_M: Array, targets: Mapping[str, Array]) -> dict[str, Array]:
    """Some steps of a rollout as named arrays that can be written to a file.

    Args:
        rollout: Where the steps are.
        step_M: int64 [M], their numbers, in the order that they were computed in.
        targets: Columns of the rollout's steps, [N], that belong to them.

    Returns:
        `state` [M, S], `action_offsets` [M+1] and `action_id` [A], the lists; `chosen` [M], places in the lists;
        `player`, `episode` and `step` [M], the step's number in its episode; and `targets` of these steps.
    """
    episodes, count_M = rollout.episodes, rollout.count_N[step_M]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_M)])
    source_A = np.arange(offsets[-1]) + np.repeat(episodes.action_offsets[step_M] - offsets[:-1], count_M)
    episode_M = np.searchsorted(episodes.episode_offsets, step_M, side="right") - 1
    return {
        "state": episodes.state_NS[step_M],
        "action_offsets": offsets,
        "action_id": episodes.action_id_A[source_A],
        "chosen": episodes.chosen_N[step_M],
        "player": episodes.player_N[step_M],
        "episode": episode_M,
        "step": step_M - episodes.episode_offsets[episode_M],
        **{name: column[step_M] for name, column in targets.items()},
    }


def refuse_non_finite(
    when: str, rollout: Rollout, value_N: Array, log_prob_N: Array, final_value_EP: Array | None
) -> None:
    """Refuse what the network says of a rollout if it is no number.

    Raises:
        NonFiniteError: Names episode and step; its minibatch are the steps with such a number, or the first of them.
    """
    episodes = rollout.episodes
    for name, number_N in (("value", value_N), ("log-prob of the chosen action", log_prob_N)):
        bad = np.flatnonzero(~np.isfinite(number_N))
        if bad.size:
            error = NonFiniteError(
                f"the {name} is not a finite number",
                got=number_N[bad[0]],
                where=f"{when}, {episodes.place(int(bad[0]))}",
                do="The weights were not changed; try a lower --lr from the last checkpoint.",
            )
            error.minibatch = columns_of(rollout, bad[:MOST_KEPT], {})
            raise error
    if final_value_EP is not None and not np.isfinite(final_value_EP).all():
        episode, player = np.argwhere(~np.isfinite(final_value_EP))[0]
        raise NonFiniteError(
            "the value of a final state is not a finite number",
            got=final_value_EP[episode, player],
            where=f"{when}, episode {episode}, player {player}{episodes.recorded(int(episode))}",
        )


def refuse_beyond_reason(when: str, episodes: Episodes, return_N: Array, scale: float) -> None:
    """Refuse returns that no float32 could be trained towards, as a game's fault leaves them.

    `Episodes.check` bounds each number as it is paid; here it is their sum, in the unit of nearly all other returns.

    Args:
        when: Said before the place.
        episodes: Whose steps they are of, the rollout's.
        return_N: float64 [N], in the game's own units.
        scale: By which they will be divided.

    Raises:
        DataError: Names the first step with such a return.
    """
    limit = LARGEST * scale
    good_N = np.abs(return_N) <= limit
    if not good_N.all():
        step = int(np.argmin(good_N))
        raise DataError(
            "a return is beyond reason",
            got=f"{return_N[step]:g}",
            expected=f"{-limit:.2g} to {limit:.2g}",
            where=f"{when}, the rollout's {episodes.place(step)}",
            do="Correct what this game pays, or let it pay in other units; nothing was learnt from this rollout.",
        )
