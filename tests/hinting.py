"""A game whose states tell further columns, in a module that a worker process can import without torch."""

from __future__ import annotations

from movelist.data.column import Column

HINT = Column("hint", per="step", width=3)
WORTH = Column("worth", per="action", dtype="int64", width=2)
WEIGHT = Column("weight", per="episode", dtype="float64", width=1)
RANK = Column("rank", per="seat", dtype="int8", width=2)
RARE = Column("rare", per="step", dtype="int8", optional=True, fill=-1, stored=False)
CRITIC = Column("critic_state", per="step", width=2)
FEATURES = Column("action_features", per="action", width=1)
ALL = (HINT, WORTH, WEIGHT, RANK, RARE, CRITIC, FEATURES)


class Hinting:
    """Two players take four turns in turn, with lists of 1, 2, 3 and 4 ids; the last choice is what player 0 wins."""

    name = "hinting"
    num_players = 2

    def __init__(self, columns=ALL, **told) -> None:
        self.columns, self.told = columns, told

    def new_state(self, seed: int) -> HintingState:
        return HintingState(self, seed)


class HintingState:
    def __init__(self, game: Hinting, seed: int) -> None:
        self.game, self.card, self.turn, self.score = game, seed % 7, 0, 0

    def current_player(self):
        return self.turn % 2 if self.turn < 4 else None

    def legal_actions(self):
        return [100 * self.card + 10 * self.turn + place for place in range(self.turn + 1)]

    def observe(self, player):
        return [player, self.turn, self.card]

    def apply(self, index):
        self.score, self.turn = index, self.turn + 1

    def returns(self):
        return [self.score, -self.score] if self.turn == 4 else [0, 0]

    def columns(self):
        told = {
            "hint": [self.turn, self.card, 0.5],
            "worth": [[action_id, action_id * 2] for action_id in self.legal_actions()],
            "weight": [self.card + 0.25],
            "rank": [[0, self.card], [1, self.card]],
            "critic_state": [self.card, self.turn],
            "action_features": [[action_id / 2] for action_id in self.legal_actions()],
        }
        told |= {"rare": [self.turn]} if self.turn % 2 else {}
        return {name: value for name, value in (told | self.game.told).items() if value is not None}
