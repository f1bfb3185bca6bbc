"""Tiny games in plain Python, and players for them, so that few tests need OpenSpiel."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a worker process that plays these games needs no torch
    from movelist.play.policy import Turns


class Odd:
    """Take odd ids: each is a point from every other seat, an even one gives each of them a point.

    Lists of 1 to 5 ids, 1 to 7 turns a seat, a start seat by lot: all from the seed. Alone, the bank pays.

    Args:
        num_players: Seats.
        most_turns: The longest game's turns for each seat.
    """

    name = "odd"

    def __init__(self, num_players: int = 2, most_turns: int = 7) -> None:
        self.num_players, self.most_turns = num_players, most_turns
        self.seeds: list[int] = []  # of all states made

    def new_state(self, seed: int) -> OddState:
        self.seeds.append(seed)
        return OddState(self, seed)


class OddState:
    def __init__(self, game: Odd, seed: int) -> None:
        self.game = game
        self.chance = random.Random(seed)
        self.turn = self.chance.randrange(game.num_players)
        self.last = self.turn + game.num_players * self.chance.randint(1, game.most_turns)
        self.scores = [0.0] * game.num_players
        self._deal()

    def _deal(self) -> None:
        low = self.chance.choice([-(2**63), -3, 0, 2**53, 2**63 - 20])
        self.hand = self.chance.sample(range(low, low + 20), self.chance.choice([1, 2, 2, 3, 5]))

    def current_player(self) -> int | None:
        return self.turn % self.game.num_players if self.turn < self.last else None

    def legal_actions(self) -> Sequence[int]:
        return self.hand

    def observe(self, player: int) -> Sequence[float]:
        return [player, self.turn, self.last - self.turn, self.scores[player]]

    def apply(self, index: int) -> None:
        gain = 1.0 if self.hand[index] % 2 else -1.0
        mover = self.turn % self.game.num_players
        for seat in range(self.game.num_players):
            self.scores[seat] += gain * max(1, self.game.num_players - 1) if seat == mover else -gain
        self.turn += 1
        self._deal()

    def returns(self) -> Sequence[float]:
        return list(self.scores)


class Scripted:
    """Every game is the same script of turns, whatever the seed.

    Args:
        num_players: Seats.
        script: For each turn the seat to move, its list of ids, and what each seat gains by the move.
    """

    name = "scripted"

    def __init__(self, num_players: int, script: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> None:
        self.num_players, self.script = num_players, script

    def new_state(self, seed: int) -> ScriptedState:
        return ScriptedState(self)


class ScriptedState:
    def __init__(self, game: Scripted) -> None:
        self.script = game.script
        self.turn = 0
        self.scores = [0.0] * game.num_players

    def current_player(self) -> int | None:
        return self.script[self.turn][0] if self.turn < len(self.script) else None

    def legal_actions(self) -> Sequence[int]:
        return self.script[self.turn][1]

    def observe(self, player: int) -> Sequence[float]:
        return [player, self.turn]

    def apply(self, index: int) -> None:
        gains = self.script[self.turn][2]
        self.scores = [score + gain for score, gain in zip(self.scores, gains, strict=True)]
        self.turn += 1

    def returns(self) -> Sequence[float]:
        return self.scores


class Picker:
    """Chooses by the ids alone: the first id that pleases, else the first; remembers whom it was asked for.

    Args:
        parity: 1 to take odd ids, 0 to take even ones.
    """

    def __init__(self, parity: int) -> None:
        self.parity = parity
        self.asked: list[Turns] = []

    def choose(self, turns: Turns) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append(turns)
        lists = np.split(turns.action_id_A, np.cumsum(turns.count_B)[:-1])
        index = [int(np.argmax(ids % 2 == self.parity)) for ids in lists]
        return np.array(index), np.zeros(len(index), np.float32)
