"""Exported files as players: the file computes the scores, the choice is made as by any other policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core import ragged
from movelist.core.action_ids import to_text
from movelist.core.errors import CheckpointError, DataError
from movelist.core.ragged import Segments
from movelist.play.policy import Turns, gumbel, refuse_non_finite
from movelist.play.profiles import scorer_of
from movelist.play.scorers import Scorer

Array = NDArray[Any]


class ExportedPolicy:
    """A Policy whose scores come from an exported file.

    Args:
        scorer: The file.
        greedy: Always the likeliest action instead of drawing by probability.
    """

    def __init__(self, scorer: Scorer, *, greedy: bool = True) -> None:
        self.scorer, self.greedy, self.info = scorer, greedy, scorer.info

    def choose(self, turns: Turns) -> tuple[Array, Array]:
        """See `Policy`.

        Raises:
            DataError: An id has no row in the table.
            NonFiniteError: The file gives NaN or infinity for a chosen action.
        """
        segments, log_prob_A = self._log_probs(turns)
        noisy_A = log_prob_A if self.greedy else log_prob_A + torch.from_numpy(gumbel(turns))
        index_B = ragged.argmax(noisy_A, segments)
        log_prob_B = log_prob_A[segments.offsets[:-1] + index_B].numpy()
        refuse_non_finite(log_prob_B, turns)
        return index_B.numpy(), log_prob_B

    def log_probs(self, turns: Turns) -> Array:
        """Log-probabilities of all legal actions, float32 [A]."""
        return self._log_probs(turns)[1].numpy()

    def _log_probs(self, turns: Turns) -> tuple[Segments, torch.Tensor]:
        segments = Segments.from_counts(turns.count_B)
        if self.info.action_encoder == "table":
            _check_rows(self.info.num_actions, turns)
        found = self.scorer.score(turns.state_BS, turns.action_id_A, segments)
        return segments, torch.from_numpy(found["log_prob"])


def _check_rows(num_actions: int, turns: Turns) -> None:
    """Refuse ids that the table has no row for; a negative one would count from its end.

    Raises:
        DataError: Names the first such id, its game and its turn.
    """
    outside = np.flatnonzero((turns.action_id_A < 0) | (turns.action_id_A >= num_actions))
    if outside.size:
        first = turns.action_id_A[outside[0]]
        raise DataError(
            "an action id has no row in the table",
            got=f"{first} ({to_text(first)})",
            expected=f"0 to {num_actions - 1}",
            where=turns.place_of_action(int(outside[0])),
            do="The policy was trained with other ids: give those of its game.",
        )


def load_exported(path: Path, *, greedy: bool = True, **expected: object) -> ExportedPolicy:
    """The player in an exported file.

    Args:
        path: The file.
        greedy: Always the likeliest action instead of drawing by probability.
        **expected: Fields of PolicyInfo that have to agree, as in `state_layout="float32[97]"`.

    Raises:
        CheckpointError: There is no such file, it is damaged, was not written by movelist, or is for something else.
        MissingExtraError: It is ONNX and onnxruntime is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError("a policy file cannot be read", got=error.strerror, where=str(path)) from None
    scorer = scorer_of(content, str(path))
    scorer.info.check(str(path), **expected)
    return ExportedPolicy(scorer, greedy=greedy)
