"""A network of one's own: the score of an action sees the mean of its whole list."""

import torch
from torch import nn

import movelist


class WholeList(movelist.Network):
    def __init__(self, shape):
        super().__init__(shape)
        self.state, self.action = nn.Linear(shape.state_size, shape.hidden_dim), nn.Linear(64, shape.hidden_dim)
        self.score, self.critic = nn.Linear(3 * shape.hidden_dim, 1), nn.Linear(shape.hidden_dim, 1)

    def values(self, state_BS):
        return self.critic(self.state(state_BS).relu()).squeeze(-1)

    def forward(self, state_BS, encoded_U, step_A, unique_A, order=None):
        state_AH, action_AH = self.state(state_BS).relu()[step_A], self.action(encoded_U).relu()[unique_A]
        sum_BH = torch.zeros_like(self.state(state_BS)).index_add(0, step_A, action_AH)
        mean_BH = sum_BH / torch.bincount(step_A, minlength=len(state_BS)).unsqueeze(1)
        return self.score(torch.cat([state_AH, action_AH, mean_BH[step_A]], 1)).squeeze(-1), self.values(state_BS)


if __name__ == "__main__":
    movelist.train("kuhn_poker", net=WholeList, action_encoder="bits", total_steps=3_000, eval_games=200, hidden_dim=64)
