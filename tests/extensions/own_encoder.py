"""A state encoder of one's own, beside the standard network; see also examples/encoders.py."""

from torch import nn

import movelist


class Deep(nn.Sequential):
    def __init__(self, state_size, hidden_dim, *, layers=3):
        super().__init__(nn.Linear(state_size, hidden_dim))
        for _ in range(layers):
            self.extend([nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.LayerNorm(hidden_dim)])
        self.append(nn.ReLU())


if __name__ == "__main__":
    movelist.train("kuhn_poker", state_encoder=Deep, total_steps=3_000, eval_games=200, hidden_dim=64)
    # or: movelist train --game kuhn_poker --state_encoder "own_encoder.py:Deep(layers=4)"
