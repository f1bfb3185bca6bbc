"""Made-up steps for the tests of the benchmark: lists of 2 to 9 actions of a game with 40, or one with 64-bit ids."""

import numpy as np
import torch

from movelist.data.episode import Episodes
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.measure.minibatches import pick_steps

STATE_SIZE, NUM_ACTIONS = 5, 40


def steps(num_steps: int, *, encoder: str, seed: int = 0) -> Episodes:
    """Random steps as one episode."""
    rng = np.random.default_rng(seed)
    ids = np.arange(NUM_ACTIONS)
    if encoder == "bits":
        ids = np.unique(np.r_[rng.integers(-(2**63), 2**63, NUM_ACTIONS - 4), -(2**63), -1, 0, 2**63 - 1])
    count_N = rng.integers(2, 10, num_steps)
    lists = [rng.choice(ids, count, replace=False) for count in count_N]
    offsets = np.r_[0, np.cumsum(count_N)]
    whole = Episodes(
        state_NS=rng.normal(size=(num_steps, STATE_SIZE)).astype(np.float32),
        player_N=np.zeros(num_steps, np.int64),
        action_offsets=offsets,
        action_id_A=np.concatenate(lists).astype(np.int64),
        chosen_N=rng.integers(0, count_N),
        log_prob_N=np.full(num_steps, np.nan, np.float32),
        reward_N=np.zeros(num_steps),
        episode_offsets=np.array([0, num_steps]),
        return_EP=np.zeros((1, 1)),
        truncated_E=np.zeros(1, bool),
        controller_EP=np.zeros((1, 1), np.int8),
        num_turns=num_steps,
    )
    return pick_steps(whole.check(), np.arange(num_steps))


def network(*, encoder: str) -> PolicyValueNet:
    """A small network whose scores differ from each other as those of a trained one do."""
    torch.manual_seed(0)
    shape = ModelShape(
        state_size=STATE_SIZE,
        hidden_dim=8,
        action_encoder=encoder,
        num_actions=NUM_ACTIONS if encoder == "table" else 0,
    )
    net = PolicyValueNet(shape)
    with torch.no_grad():
        net.pair_weight.mul_(30)
    return net
