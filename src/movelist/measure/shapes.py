"""The lists of legal actions of some steps: how long, how alike, how much a table of them would be padded."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.batch import plan_minibatches
from movelist.learn.learner import Prepared
from movelist.learn.loss import STANDARD_TARGETS, Targets
from movelist.learn.model import PolicyValueNet
from movelist.measure.clock import clock
from movelist.measure.findings import Shapes
from movelist.measure.minibatches import pick_steps
from movelist.measure.rungs import Sample, dense_loss, per_sample, per_sample_bit_loop

PER_SAMPLE_STEPS = 64


def shapes(
    episodes: Episodes,
    settings: UpdateSettings,
    rng: np.random.Generator,
    *,
    states_in_call: float,
    recompiles: int | None = None,
) -> Shapes:
    """What one epoch over the episodes looks like.

    Args:
        episodes: Those that are trained on, with at least one step.
        settings: Of the update: how it cuts them into micro-batches.
        rng: Of the order.
        states_in_call: As in `Shapes`.
        recompiles: As in `Shapes`.
    """
    count_N = np.diff(episodes.action_offsets)
    parts = [
        step_B
        for minibatch in plan_minibatches(
            rng.permutation(len(count_N)),
            count_N,
            batch_size=settings.batch_size,
            accumulation=settings.gradient_accumulation_steps,
            max_actions=settings.max_actions_per_minibatch,
        )
        for step_B in minibatch
    ]
    num_actions = episodes.num_actions
    unique = sum(len(np.unique(pick_steps(episodes, step_B).action_id_A)) for step_B in parts)
    return Shapes(
        histogram=histogram(count_N),
        mean=float(count_N.mean()),
        longest=int(count_N.max()),
        unique_share=unique / num_actions,
        padding=sum(len(step_B) * int(count_N[step_B].max()) for step_B in parts) / num_actions,
        steps_in_batch=len(count_N) / len(parts),
        states_in_call=states_in_call,
        recompiles=recompiles,
    )


def histogram(count_N: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Steps by the length of their list, in classes that double: 1, 2, 3 to 4, 5 to 8, 9 to 16, ...

    Example:
        >>> histogram(np.array([1, 2, 3, 4, 4, 9]))
        [(1, 1, 1), (2, 2, 1), (3, 4, 3), (5, 8, 0), (9, 16, 1)]
    """
    classes = []
    low, high = 1, 1
    while low <= count_N.max():
        classes.append((low, high, int(((count_N >= low) & (count_N <= high)).sum())))
        low, high = high + 1, 2 * high
    return classes


def per_sample_steps_per_second(
    net: PolicyValueNet,
    prepared: Prepared,
    settings: UpdateSettings,
    timer: Callable[[], float] = time.perf_counter,
) -> float:
    """How fast the usual trainer would learn from the same steps: one network call a step, an id's bits one by one.

    A copy of the network makes two optimiser steps on a few of the steps; the second counts.
    """
    episodes = prepared.rollout.episodes
    step_B = np.arange(min(PER_SAMPLE_STEPS, episodes.num_steps))
    targets = Targets(*(torch.from_numpy(prepared.targets[name][step_B]) for name in STANDARD_TARGETS))
    learnt = copy.deepcopy(net)
    sample = Sample.of(pick_steps(episodes, step_B), targets, np.unique(episodes.action_id_A), learnt)
    answer = per_sample_bit_loop if net.shape.action_encoder == "bits" else per_sample
    optimizer = torch.optim.Adam(learnt.parameters(), lr=settings.lr, eps=1e-5, fused=True)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        (dense_loss(answer(learnt, sample), sample.targets, settings) / sample.num_steps).backward()
        torch.nn.utils.clip_grad_norm_(learnt.parameters(), settings.max_grad_norm)
        optimizer.step()

    update()
    return sample.num_steps / clock(update, sample.device, timer)
