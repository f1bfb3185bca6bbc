"""Two state encoders of one's own, for `movelist train --state_encoder "examples/encoders.py:Entities(features=3)"`.

An encoder is a torch module that is made of (state_size, hidden_dim) and the keywords of its name, and turns states
[B, S] into [B, H]. Exports carry it in ONNX (profiles ort and sentis15).
"""

import torch
from torch import nn


class Entities(nn.Module):
    """A small transformer over a set: units, cards, squares.

    The state's last `count * features` numbers are the set, one row of `features` numbers for each entity; a row of
    zeros stands for none. What comes before is read by a layer of its own.

    Args:
        state_size: S.
        hidden_dim: H.
        features: Numbers of an entity.
        count: Entities at most; 0 means that the whole state is the set.
        by_columns: The set is stored feature by feature, as the planes of a board are.
        heads: Of attention.
    """

    def __init__(self, state_size, hidden_dim, *, features, count=0, by_columns=False, heads=4):
        super().__init__()
        self.features, self.count, self.by_columns = features, count or state_size // features, by_columns
        num_global = state_size - self.count * features
        self.embed = nn.Linear(features, hidden_dim)
        self.place = nn.Parameter(torch.randn(self.count, hidden_dim) * 0.1)  # of use where the order means something
        self.attend = nn.TransformerEncoderLayer(hidden_dim, heads, 2 * hidden_dim, dropout=0.0, batch_first=True)
        self.out = nn.Linear(hidden_dim + num_global, hidden_dim)

    def forward(self, state_BS):
        """[B, S] -> [B, H]."""
        state_BS = state_BS.to(self.out.weight.dtype)
        rest, rows = state_BS.split([state_BS.shape[1] - self.count * self.features, self.count * self.features], 1)
        if self.by_columns:
            row_BEF = rows.unflatten(1, (self.features, self.count)).transpose(1, 2)
        else:
            row_BEF = rows.unflatten(1, (self.count, self.features))
        present_BE = (row_BEF != 0).any(-1)
        present_BE = present_BE | ~present_BE.any(-1, keepdim=True)  # attention over nothing is NaN
        seen_BEH = self.attend(self.embed(row_BEF) + self.place, src_key_padding_mask=~present_BE)
        weight_BE1 = present_BE.unsqueeze(-1).to(seen_BEH.dtype)
        mean_BH = (seen_BEH * weight_BE1).sum(1) / weight_BE1.sum(1)
        return torch.relu(self.out(torch.cat([mean_BH, rest], 1)))


class LastTurns(nn.Module):
    """A recurrent reading of the last turns, which the game keeps inside the state.

    The state's last `turns * width` numbers are the turns, oldest first; what comes before is read beside them. The
    memory lives in the state and not in the network, so a step can be learned from alone, in any order.

    Args:
        state_size: S.
        hidden_dim: H.
        turns: Turns kept.
        width: Numbers of a turn.
    """

    def __init__(self, state_size, hidden_dim, *, turns, width):
        super().__init__()
        self.turns, self.width = turns, width
        self.read = nn.GRU(width, hidden_dim, batch_first=True)
        self.out = nn.Linear(hidden_dim + state_size - turns * width, hidden_dim)

    def forward(self, state_BS):
        """[B, S] -> [B, H]."""
        state_BS = state_BS.to(self.out.weight.dtype)
        rest, history = state_BS.split([state_BS.shape[1] - self.turns * self.width, self.turns * self.width], 1)
        _, last_1BH = self.read(history.unflatten(1, (self.turns, self.width)))
        return torch.relu(self.out(torch.cat([last_1BH[0], rest], 1)))
