"""Minibatches to measure on: real steps with lists of mixed length, and the same work with lists of one length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.data.episode import POLICY, Episodes, offsets_of

Array = NDArray[Any]
SWAPS = 20_000


def mixed_lists(episodes: Episodes, batch_size: int, rng: np.random.Generator) -> Episodes:
    """Steps drawn at random, with A a multiple of B, so that `equal_lists` can be made of them.

    Steps are swapped for others until A is the nearest multiple: no list is touched.

    Raises:
        DataError: There are too few steps, or none to swap for.
    """
    count_N = np.diff(episodes.action_offsets)
    choices = rng.permutation(np.flatnonzero(count_N > 1))
    if len(choices) < batch_size:
        raise DataError(
            "too few steps with a choice to measure on",
            got=len(choices),
            expected=f"at least {batch_size}, the batch size",
            do="Raise --num_episodes or lower --batch_sizes.",
        )
    step_B, others = choices[:batch_size], choices[batch_size:]
    excess = int(count_N[step_B].sum() - batch_size * round(count_N[step_B].mean()))
    for _ in range(SWAPS if len(others) else 0):
        if excess == 0:
            break
        place, other = rng.integers(batch_size), rng.integers(len(others))
        gain = int(count_N[step_B[place]] - count_N[others[other]])
        if abs(excess - gain) < abs(excess):
            step_B[place], others[other] = others[other], step_B[place]
            excess -= gain
    if excess:
        raise DataError(
            "no steps to swap for, to make the legal actions a multiple of the steps",
            got=f"{excess:+} legal actions over it after {SWAPS:,} tries",
            do="Raise --num_episodes.",
        )
    return pick_steps(episodes, step_B)


def pick_steps(episodes: Episodes, step_B: Array) -> Episodes:
    """These steps, in this order, as one episode of a game for one: what is measured needs no more of them."""
    count_B = np.diff(episodes.action_offsets)[step_B]
    offsets = offsets_of(count_B)
    source_A = np.arange(offsets[-1]) + np.repeat(episodes.action_offsets[step_B] - offsets[:-1], count_B)
    return Episodes(
        state_NS=episodes.state_NS[step_B],
        player_N=np.zeros(len(step_B), np.int64),
        action_offsets=offsets,
        action_id_A=episodes.action_id_A[source_A],
        chosen_N=episodes.chosen_N[step_B],
        log_prob_N=np.full(len(step_B), np.nan, np.float32),
        reward_N=np.zeros(len(step_B)),
        episode_offsets=np.array([0, len(step_B)]),
        return_EP=np.zeros((1, 1)),
        truncated_E=np.zeros(1, bool),
        controller_EP=np.full((1, 1), POLICY, np.int8),
        num_turns=len(step_B),
    )


def equal_lists(episodes: Episodes, rng: np.random.Generator) -> Episodes:
    """The same steps with the same legal actions, each as often as before, dealt out anew in lists of one length.

    So B, A, U and how often each id stands there are as they were; only the lengths differ.

    Raises:
        DataError: A is no multiple of B; `mixed_lists` makes it one.
    """
    length, rest = divmod(episodes.num_actions, episodes.num_steps)
    if rest:
        raise DataError(
            "lists of one length need as many legal actions as a multiple of the steps",
            got=f"{episodes.num_actions} legal actions of {episodes.num_steps} steps",
        )
    # Dealt like cards, sorted: an id stands at most once in each of B lists, so B in a row go to B different lists.
    dealt = np.sort(episodes.action_id_A).reshape(length, episodes.num_steps).T
    shuffled = rng.permuted(dealt, axis=1)[rng.permutation(episodes.num_steps)]
    return replace(
        episodes,
        action_id_A=shuffled.reshape(-1),
        action_offsets=np.arange(episodes.num_steps + 1) * length,
        chosen_N=rng.integers(0, length, episodes.num_steps),
    )


def all_actions(episodes: Episodes, num_actions: int | None, *, table: bool, rng: np.random.Generator) -> Array:
    """Every action of the game, int64 [K], sorted, for the rungs that mask.

    Ids that the episodes do not show are stand-ins: what they are makes no difference to a masked logit.

    Args:
        episodes: Their ids are among the result.
        num_actions: K; None takes the ids that the episodes show.
        table: Ids are rows of a table, 0 to K - 1.
        rng: Of the stand-ins.
    """
    seen = np.unique(episodes.action_id_A)
    if num_actions is None or num_actions <= len(seen):
        return seen
    if table:
        return np.arange(num_actions)
    while len(seen) < num_actions:
        more = rng.integers(-(2**63), 2**63, num_actions - len(seen), dtype=np.int64)
        seen = np.union1d(seen, more)
    return seen
