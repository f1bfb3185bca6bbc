"""Small updates on made-up episodes, to hold two ways of computing the same against each other."""

import numpy as np
import torch

from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.learner import Learner
from movelist.learn.loss import ppo_loss
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World

STATE_SIZE = 6


def random_episodes(counts, seed=0, num_ids=None, state_dtype=np.float32):
    """One-step episodes with lists of these lengths; ids below `num_ids`."""
    rng = np.random.default_rng(seed)
    counts = np.asarray(counts)
    num_steps = len(counts)
    num_ids = num_ids or max(2 * int(counts.max()), 40)
    return Episodes(
        state_NS=rng.integers(0, 3, (num_steps, STATE_SIZE)).astype(state_dtype),
        player_N=np.zeros(num_steps, np.int64),
        action_offsets=np.concatenate([[0], np.cumsum(counts)]),
        action_id_A=np.concatenate([rng.choice(num_ids, count, replace=False) for count in counts]),
        chosen_N=rng.integers(0, counts),
        log_prob_N=np.full(num_steps, np.nan, np.float32),
        reward_N=rng.normal(size=num_steps),
        episode_offsets=np.arange(num_steps + 1),
        return_EP=rng.normal(size=(num_steps, 1)),
        truncated_E=np.zeros(num_steps, bool),
        controller_EP=np.zeros((num_steps, 1), np.int8),
    )


def learner(*, compile="on", backend=None, hidden_dim=32, loss=ppo_loss, world=None, seed=0, **settings):
    torch.manual_seed(seed)
    net = PolicyValueNet(ModelShape(state_size=STATE_SIZE, hidden_dim=hidden_dim))
    chosen = UpdateSettings(compile=compile, **{"epochs_per_update": 1, **settings})
    made = Learner(net, chosen, world or World(torch.device("cpu")), loss=loss)
    if made.compiled is not None:
        made.compiled.backend = backend
    return made


def update(made, counts, seed=0, **options):
    return made.update(made.prepare(random_episodes(counts, seed, **options)))
