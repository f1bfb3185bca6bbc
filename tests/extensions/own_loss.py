"""A loss with a new term and a new target: scores are kept small, the more so the later in the game."""

import numpy as np

import movelist
from movelist.learn.loss import LOSS_NAMES, ppo_loss


def calm_at_the_end(score_A, value_B, segments, chosen_B, targets, settings):
    terms = ppo_loss(score_A, value_B, segments, chosen_B, targets, settings)
    late_A = targets.more["share_of_game"][segments.step_A]
    calm = (late_A * score_A.square()).sum()
    return {**terms, "loss": terms["loss"] + 1e-3 * calm, "calm": calm}


def share_of_game(episodes):
    length_N = np.diff(episodes.episode_offsets)[episodes.episode_N]
    first_N = episodes.episode_offsets[episodes.episode_N]
    return {"share_of_game": (np.arange(episodes.num_steps) - first_N + 1) / length_N}


calm_at_the_end.names, calm_at_the_end.targets = (*LOSS_NAMES, "calm"), share_of_game

if __name__ == "__main__":
    movelist.train("kuhn_poker", loss=calm_at_the_end, total_steps=3_000, eval_games=200, hidden_dim=64)
