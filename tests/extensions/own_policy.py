"""A policy class of one's own: it tries a random action in one turn of twenty, and tells its true log-probs."""

import numpy as np

import movelist
from movelist.play.policy import uniform


class Curious:
    def __init__(self, net, share=0.05):
        self.policy, self.random, self.share = movelist.NetPolicy(net), movelist.RandomPolicy(), share

    def choose(self, turns):
        index_B, _ = self.policy.choose(turns)
        other_B, _ = self.random.choose(turns)
        index_B = np.where(uniform(turns.seed_B + 1, turns.turn_B) < self.share, other_B, index_B)
        chosen_B = np.cumsum(turns.count_B) - turns.count_B + index_B
        probability_B = (1 - self.share) * np.exp(self.policy.log_probs(turns)[chosen_B]) + self.share / turns.count_B
        return index_B, np.log(probability_B).astype(np.float32)


if __name__ == "__main__":
    movelist.train("kuhn_poker", policy=Curious, total_steps=3_000, eval_games=200, hidden_dim=64)
