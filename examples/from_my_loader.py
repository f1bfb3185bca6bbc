"""Train from a loader that you have already: it yields (state, valid action ids, action index, reward) for each turn.

The loader here makes up a game of one player: of a few numbers, choose the largest. Yours takes its place; what makes
it a Source is the class below. Run it: python examples/from_my_loader.py
"""

import numpy as np
import torch

from movelist.core.settings import UpdateSettings
from movelist.data.episode import POLICY, Episodes, offsets_of
from movelist.learn.learner import Learner
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.learn.parallel import World


def my_loader(num_games, rng):
    """Yield games, each a list of (state, valid action ids, action index, reward)."""
    for _ in range(num_games):
        actions = rng.choice(64, size=int(rng.integers(2, 6)), replace=False) + 1
        index = int(rng.integers(len(actions)))
        yield [(np.ones(1), actions, index, float(actions[index] == actions.max()))]


class MySource:
    """A Source: all that training asks for."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def collect(self, policy, num_episodes):
        games = list(my_loader(num_episodes, self.rng))
        turns = [turn for game in games for turn in game]
        return Episodes(
            state_NS=np.array([state for state, *_ in turns], np.float32),
            player_N=np.zeros(len(turns), np.int64),
            action_offsets=offsets_of(np.array([len(actions) for _, actions, *_ in turns])),
            action_id_A=np.concatenate([np.asarray(actions, np.int64) for _, actions, *_ in turns]),
            chosen_N=np.array([index for *_, index, _ in turns]),
            log_prob_N=np.full(len(turns), np.nan, np.float32),  # not recorded: the policy computes them
            reward_N=np.array([reward for *_, reward in turns], np.float64),
            episode_offsets=offsets_of(np.array([len(game) for game in games])),
            return_EP=np.array([[sum(reward for *_, reward in game)] for game in games], np.float64),
            truncated_E=np.zeros(len(games), bool),
            controller_EP=np.full((len(games), 1), POLICY, np.int8),
            num_turns=len(turns),
        ).check("my loader")

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]

    def close(self):
        pass


def main():
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=1, hidden_dim=32))
    learner = Learner(net, UpdateSettings(lr=3e-3, batch_size=256), World(torch.device("cpu")))
    source = MySource(seed=0)
    for _ in range(10):
        metrics = learner.update(learner.prepare(source.collect(None, 1024)))
    print(f"entropy {metrics['losses/entropy']:.2f}, explained variance {metrics['losses/explained_variance']:.2f}")
    return learner


if __name__ == "__main__":
    main()
