"""Games and players for tests of equal deals, free of torch for the workers that play them."""

import random

import numpy as np


class Bidding:
    """One seat by lot against the two others: it wins more often with every odd id that it takes, they with theirs.

    Who is alone gets twice what each of the others loses, as the landlord in dou dizhu.
    """

    name = "bidding"
    num_players = 3
    side_names = ("landlord", "peasants")

    def new_state(self, seed):
        return BiddingState(seed)


class BiddingState:
    def __init__(self, seed):
        chance = random.Random(seed)
        self.landlord, self.luck, self.turn, self.odd = chance.randrange(3), chance.gauss(-1.0, 1.0), 0, [0, 0, 0]

    def current_player(self):
        return self.turn if self.turn < 3 else None

    def legal_actions(self):
        return [10, 11, 12]

    def observe(self, player):
        return [player, self.landlord]

    def apply(self, index):
        self.odd[self.turn] = self.legal_actions()[index] % 2
        self.turn += 1

    def returns(self):
        if self.turn < 3:
            return [0.0] * 3
        theirs = sum(self.odd) - self.odd[self.landlord]
        won = 1.0 if self.luck + 2 * self.odd[self.landlord] > theirs else -1.0
        return [2 * won if seat == self.landlord else -won for seat in range(3)]

    def sides(self):
        if self.luck > 0.8:  # as where nobody bids
            return None
        return None if self.turn < 3 else [int(seat != self.landlord) for seat in range(3)]


class Partners:
    """Two fixed teams: each odd id is a point for the mover's team, whoever of it takes it."""

    name = "partners"
    num_players = 4
    teams = ((0, 2), (1, 3))

    def new_state(self, seed):
        return PartnersState(seed)


class PartnersState:
    def __init__(self, seed):
        self.luck, self.turn, self.points = random.Random(seed).gauss(0.0, 1.0), 0, [0.0, 0.0]

    def current_player(self):
        return self.turn if self.turn < 4 else None

    def legal_actions(self):
        return [10, 11]

    def observe(self, player):
        return [player, self.turn]

    def apply(self, index):
        self.points[self.turn % 2] += index
        self.turn += 1

    def returns(self):
        ahead = self.luck + self.points[0] - self.points[1]
        return [ahead, -ahead, ahead, -ahead]


class Count:
    """Nim without chance: take one or two of a heap, whoever takes the last one wins."""

    name = "count"
    num_players = 2

    def __init__(self, heap=20):
        self.heap = heap

    def new_state(self, seed):
        return CountState(self.heap)


class CountState:
    def __init__(self, heap):
        self.heap, self.turn = heap, 0

    def current_player(self):
        return self.turn % 2 if self.heap else None

    def legal_actions(self):
        return [1, 2][: self.heap]

    def observe(self, player):
        return [player, self.heap]

    def apply(self, index):
        self.heap -= index + 1
        self.turn += 1

    def returns(self):
        return [0.0, 0.0] if self.heap else [(-1.0) ** self.turn * -1, (-1.0) ** self.turn]


class Perfect:
    """Leaves a multiple of three."""

    def choose(self, state, seat):
        return max(0, min(len(state.legal_actions()) - 1, state.heap % 3 - 1))


class Takes:
    """Always as many as it may."""

    def choose(self, state, seat):
        return len(state.legal_actions()) - 1


class Fails(Takes):
    """Raises at every third heap, answers nonsense at others."""

    def choose(self, state, seat):
        if state.heap % 3 == 0:
            raise ZeroDivisionError("no plan")
        return 7 if state.heap % 5 == 0 else 0


class FailsInBatch:
    """A policy that cannot play some states."""

    def choose(self, turns):
        if (turns.state_BS[:, 1] % 3 == 0).any():
            raise ZeroDivisionError("no plan")
        return np.zeros(len(turns.count_B), np.int64), np.zeros(len(turns.count_B), np.float32)
