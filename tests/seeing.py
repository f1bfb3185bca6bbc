"""A game whose states tell what each action is worth and what a critic may know, in a module without torch."""

from __future__ import annotations

import random


class Market:
    """Two players buy in turn, three times each, from 1 to 5 offers; ids are drawn anew each turn and mean nothing.

    An offer's features are its price and its worth; worth less price is what the buyer wins and the other loses. The
    secret, which nobody sees and a critic may know, is paid to player 0 at the end.
    """

    name = "market"
    num_players = 2
    turns = 6

    def __init__(self, **told) -> None:
        self.told = told

    def new_state(self, seed: int) -> MarketState:
        return MarketState(self, seed)


class MarketState:
    def __init__(self, market: Market, seed: int) -> None:
        self.market, self.random, self.turn, self.score = market, random.Random(seed), 0, 0.0
        self.secret = self.random.choice([-3.0, 3.0])
        self._offer()

    def _offer(self) -> None:
        size = 1 + self.random.randrange(5)
        self.ids = self.random.sample(range(2**40), size)
        self.offers = [[self.random.randrange(4) / 2, self.random.randrange(4) / 2] for _ in range(size)]

    def current_player(self):
        return self.turn % 2 if self.turn < self.market.turns else None

    def legal_actions(self):
        return self.ids

    def observe(self, player):
        return [player, self.turn / 6, self.score if player == 0 else -self.score]

    def apply(self, index):
        price, worth = self.offers[index]
        self.score += (worth - price) * (1 if self.turn % 2 == 0 else -1)
        self.turn += 1
        self._offer()

    def returns(self):
        total = self.score + (self.secret if self.turn == self.market.turns else 0.0)
        return [total, -total]

    def action_features(self):
        return self.market.told.get("features", self.offers)

    def observe_all(self):
        return self.market.told.get("all", [self.secret, self.turn / 6])
