"""A new column, told by a game's states and read by a network: here a hint, which is worth following."""

import random

from torch import nn

import movelist


class Guess:
    name, num_players, columns = "guess", 1, (movelist.Column("hint", per="step", width=4),)

    def new_state(self, seed):
        return GuessState(random.Random(seed).randrange(4))


class GuessState:
    def __init__(self, secret):
        self.secret, self.gain = secret, None

    def current_player(self):
        return 0 if self.gain is None else None

    def legal_actions(self):
        return range(1, 5)

    def observe(self, player):
        return [1.0, float(self.gain is None)]

    def columns(self):
        return {"hint": [float(self.secret == number) for number in range(4)]}

    def apply(self, index):
        self.gain = float(index == self.secret)

    def returns(self):
        return [self.gain or 0.0]


class Hinted(movelist.Network):
    column_names = ("hint",)

    def __init__(self, shape):
        super().__init__(shape)
        self.hint, self.action = nn.Linear(4, shape.hidden_dim), nn.Linear(64, shape.hidden_dim)
        self.critic = nn.Linear(shape.state_size, 1)

    def values(self, state_BS):
        return self.critic(state_BS).squeeze(-1)

    def forward(self, state_BS, encoded_U, step_A, unique_A, order=None, *, hint):
        return (self.hint(hint)[step_A] * self.action(encoded_U)[unique_A]).sum(1), self.values(state_BS)


if __name__ == "__main__":
    movelist.train(Guess(), net=Hinted, total_steps=3_000, eval_games=200, hidden_dim=16, lr=0.01, batch_size=64)
