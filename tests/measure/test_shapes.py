"""Facts of lists, counted by hand."""

import numpy as np
import pytest
import torch

from movelist.core.settings import UpdateSettings
from movelist.measure.minibatches import pick_steps
from movelist.measure.shapes import PER_SAMPLE_STEPS, histogram, per_sample_steps_per_second, shapes
from small_updates import learner, random_episodes


def test_histogram_by_hand() -> None:
    assert histogram(np.array([1, 2, 3, 4, 4, 9])) == [(1, 1, 1), (2, 2, 1), (3, 4, 3), (5, 8, 0), (9, 16, 1)]
    assert histogram(np.array([2])) == [(1, 1, 0), (2, 2, 1)]


def test_shapes_of_a_batch_by_hand() -> None:
    """Lists [7, 8], [7, 8], [7, 8, 9, 5]: 8 actions, 4 different ones, a table of 3 x 4."""
    episodes = pick_steps(random_episodes([2, 2, 4]), np.arange(3))
    episodes.action_id_A[:] = [7, 8, 7, 8, 7, 8, 9, 5]
    got = shapes(episodes, UpdateSettings(batch_size=3), np.random.default_rng(0), states_in_call=5.0, recompiles=1)
    assert got.histogram == [(1, 1, 0), (2, 2, 2), (3, 4, 1)]
    assert (got.mean, got.longest, got.unique_share, got.padding) == (pytest.approx(8 / 3), 4, 0.5, 1.5)
    assert (got.steps_in_batch, got.states_in_call, got.recompiles) == (3.0, 5.0, 1)


def test_each_micro_batch_is_padded_to_its_own_longest() -> None:
    """Of one step each: nothing is padded, and within a list all ids differ."""
    episodes = random_episodes([2, 3, 7, 1])
    got = shapes(episodes, UpdateSettings(batch_size=1), np.random.default_rng(0), states_in_call=0.0)
    assert (got.padding, got.unique_share, got.steps_in_batch, got.recompiles) == (1.0, 1.0, 1.0, None)
    cut = UpdateSettings(batch_size=4, max_actions_per_minibatch=8)
    halves = shapes(episodes, cut, np.random.default_rng(0), states_in_call=0.0)
    assert halves.steps_in_batch < 4, "cut by its legal actions"


@pytest.mark.parametrize("num_steps", [5, 100])
def test_the_usual_trainer_is_timed_on_a_copy(num_steps: int) -> None:
    """The clock shows a second more at each look: one update of at most 64 steps takes a second."""
    made = learner(compile="off", hidden_dim=8)
    before = {name: value.clone() for name, value in made.net.state_dict().items()}
    prepared = made.prepare(random_episodes([3] * num_steps))
    ticks = iter(range(100))
    speed = per_sample_steps_per_second(made.net, prepared, made.settings, timer=lambda: float(next(ticks)))
    assert speed == min(num_steps, PER_SAMPLE_STEPS)
    assert all(torch.equal(value, before[name]) for name, value in made.net.state_dict().items())
