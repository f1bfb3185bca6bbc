"""An opponent in self-play: in half of the games it moves all seats but one."""

import numpy as np

import movelist


class First:
    """Always plays the first action of the list."""

    def choose(self, turns):
        return np.zeros(len(turns.count_B), np.int64), np.zeros(len(turns.count_B), np.float32)


if __name__ == "__main__":
    opponents = movelist.Opponents([First(), movelist.RandomPolicy()], share=0.5)
    movelist.train("kuhn_poker", opponents=opponents, total_steps=3_000, eval_games=200, hidden_dim=64)
