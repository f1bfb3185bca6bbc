"""Games of the odd kinds that engines have, in plain Python; each says what its players should have learnt."""

from __future__ import annotations

import random


class Turns:
    """A game by a list of whose turn it is; a turn offers `offered` actions, the first of which is worth the most.

    Args:
        seats: Who moves, turn after turn.
        num_players: Seats.
    """

    name = "turns"
    offered = 3
    action_encoder, num_actions = "table", 3
    paid = 0.0  # what each seat gets at the end besides

    def __init__(self, seats=(0, 1, 0, 1), num_players=2):
        self.seats, self.num_players = seats, num_players

    def new_state(self, seed):
        return TurnsState(self, random.Random(seed))


class TurnsState:
    def __init__(self, game, chance):
        self.game, self.chance = game, chance
        self.seats = self.plan()
        self.turn, self.scores, self.over = 0, [0.0] * game.num_players, False

    def plan(self):
        return list(self.game.seats)

    def current_player(self):
        return None if self.over or self.turn == len(self.seats) else self.seats[self.turn]

    def legal_actions(self):
        return list(range(self.game.offered))

    def observe(self, player):
        return [float(player), float(self.current_player() == player), self.turn / max(1, len(self.seats))]

    def apply(self, index):
        self.pay(self.seats[self.turn], 2 - index)
        self.turn += 1
        if self.current_player() is None:
            self.end()

    def pay(self, player, points):
        """A point given is taken from the next seat, if there is one."""
        self.scores[player] += points
        if self.game.num_players > 1:
            self.scores[(player + 1) % self.game.num_players] -= points

    def end(self):
        self.scores = [score + self.game.paid for score in self.scores]

    def returns(self):
        return list(self.scores)


class Silent(Turns):
    """Seat 2 of three never moves, though it wins and loses."""

    name = "silent"

    def __init__(self):
        super().__init__((0, 1, 0, 1, 0), 3)


class Out(Turns):
    """Three seats in turn; who takes the last action is out for the rest, and pays 5."""

    name = "out"

    def __init__(self):
        super().__init__((0, 1, 2) * 4, 3)

    def new_state(self, seed):
        return OutState(self, random.Random(seed))


class OutState(TurnsState):
    def apply(self, index):
        player = self.seats[self.turn]
        super().apply(index)
        if index == 2:
            self.scores[player] -= 5
            self.seats = self.seats[: self.turn] + [seat for seat in self.seats[self.turn :] if seat != player]


class Long(Turns):
    """3,000 turns, most of them forced: one in a hundred offers a choice."""

    name = "long"

    def __init__(self):
        super().__init__((0, 1) * 1500, 2)

    def new_state(self, seed):
        return LongState(self, random.Random(seed))


class LongState(TurnsState):
    def legal_actions(self):
        return [0, 1, 2] if self.turn % 101 == 0 else [1]

    def apply(self, index):
        super().apply(self.legal_actions()[index])


class Patient(Turns):
    """2,000 turns with a choice at each of them."""

    name = "patient"

    def __init__(self):
        super().__init__((0, 1) * 1000, 2)


class Alone(Turns):
    """One player, paid at every turn."""

    name = "alone"

    def __init__(self):
        super().__init__((0,) * 6, 1)


class Middle(Turns):
    """Three seats in turn; the game ends by lot in the middle of a round, perhaps before a seat has moved at all."""

    name = "middle"

    def __init__(self):
        super().__init__((0, 1, 2) * 3, 3)

    def new_state(self, seed):
        return MiddleState(self, random.Random(seed))


class MiddleState(TurnsState):
    def plan(self):
        return list(self.game.seats)[: self.chance.randint(1, 9)]


class Rich(Turns):
    """Returns beyond float32's whole numbers: all get a billion at the end, and play for the points on top."""

    name = "rich"
    paid = 2.0**30 + 1


class Richer(Rich):
    """As Rich, with what float64 just counts: in float32 the points on top are nothing."""

    name = "richer"
    paid = 2.0**40 + 1


class Never(Turns):
    """Over before anybody moves, for one seed in two."""

    name = "never"

    def new_state(self, seed):
        return NeverState(self, random.Random(seed))


class NeverState(TurnsState):
    def plan(self):
        return list(self.game.seats) if self.chance.random() < 0.5 else []


GAMES = [Silent, Out, Long, Patient, Alone, Middle, Rich, Richer, Never]
