"""Tables for trainers that know one agent only, and whose reward is whose.

sb3-contrib's MaskablePPO and OpenSpiel's PPO are made for one agent: whatever reward comes after a step is that
step's. In self-play at a table the next step is another seat's, so an environment that shows the
mover's view and pays the mover would pay the wrong one: the winner's card ends the game, and the losers' steps before
it are bootstrapped from the value of the winner's state. Here the lanes of the vector environment are tables, every
turn of every seat is a step of the one shared policy, and before a library computes advantages `own_streams` puts the
rollout's steps in another order: each seat's steps of each game one after another, with the reward that came to that
seat until its own next step. Advantages, losses and optimiser steps are then the library's own code.
Where a rollout ends in the middle of a game, a seat's last step is not trained on: it is the state whose value its
previous step is bootstrapped from, as it would be in the library for the state after the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Tables:
    """Games side by side, each seen by whoever is to move; when a game is over, the next begins at its table.

    Args:
        game: What to play.
        number_of_id: Each action id's number, 0 to num_actions - 1.
        num_tables: N, games at once.
        seed: Of the games.
    """

    def __init__(self, game: Any, number_of_id: dict[int, int], num_tables: int, seed: int) -> None:
        self.game, self.number_of_id, self.num_tables = game, number_of_id, num_tables
        self.num_started = self.num_finished = self.num_turns = 0
        self.squares = 0.0  # of all final returns
        self._seeds = np.random.default_rng(seed)
        self._states = [self._new_state() for _ in range(num_tables)]
        self._log: list[tuple[Array, Array, Array]] = []

    @property
    def over_N(self) -> Array:
        """Whether the latest turn ended its game, bool [N]."""
        return self._log[-1][2]

    @property
    def num_games(self) -> float:
        """Games played; one that is under way counts as half."""
        return self.num_finished + self.num_tables / 2

    def observe(self) -> Array:
        """What each mover sees, float32 [N, S]."""
        return np.stack([state.observe(state.current_player()) for state in self._states]).astype(np.float32)

    def legal_numbers(self) -> list[list[int]]:
        """Numbers of each mover's legal actions."""
        return [[self.number_of_id[action] for action in state.legal_actions()] for state in self._states]

    def masks(self) -> Array:
        """The same as bool [N, num_actions]."""
        mask_NA = np.zeros((self.num_tables, len(self.number_of_id)), bool)
        for row, numbers in zip(mask_NA, self.legal_numbers(), strict=True):
            row[numbers] = True
        return mask_NA

    def play(self, number_N: Sequence[int] | Array) -> None:
        """Play one turn at every table, and note who moved, what each seat earned by it, and whether it was the end."""
        seat_N = np.array([state.current_player() for state in self._states])
        reward_NP = np.zeros((self.num_tables, self.game.num_players))
        over_N = np.zeros(self.num_tables, bool)
        for table, (numbers, number) in enumerate(zip(self.legal_numbers(), number_N, strict=True)):
            state = self._states[table]
            before = np.array(state.returns(), float)
            state.apply(numbers.index(int(number)))
            after = np.array(state.returns(), float)
            reward_NP[table] = after - before
            if state.current_player() is None:
                over_N[table] = True
                self.num_finished += 1
                self.squares += float(after @ after)
                self._states[table] = self._new_state()
        self.num_turns += self.num_tables
        self._log.append((seat_N, reward_NP, over_N))

    def take_log(self) -> tuple[Array, Array, Array]:
        """Movers [T, N], rewards [T, N, P] in units of the returns' root mean square, and ends [T, N] since last time.

        Before the first game is over nothing was paid, as far as OpenSpiel's card games go.
        """
        seat_TN, reward_TNP, over_TN = (np.stack(column) for column in zip(*self._log, strict=True))
        self._log.clear()
        scale = (self.squares / max(1, self.num_finished * self.game.num_players)) ** 0.5
        return seat_TN, reward_TNP / (scale or 1.0), over_TN

    def _new_state(self) -> Any:
        self.num_started += 1
        return self.game.new_state(int(self._seeds.integers(2**62)))


@dataclass
class Streams:
    """R steps in a new order: the steps of one seat in one game follow each other.

    Attributes:
        place_R: Each step's place in the rollout, t * N + table.
        reward_R: What came to its own seat until that seat's next step.
        over_R: The next step in this order belongs to something else: no value of it may flow back.
    """

    place_R: list[int] = field(default_factory=list)
    reward_R: list[float] = field(default_factory=list)
    over_R: list[bool] = field(default_factory=list)


def own_streams(seat_TN: Array, reward_TNP: Array, over_TN: Array, value_TN: Array, gamma: float) -> Streams:
    """Credit a rollout's rewards to the seats they belong to.

    Args:
        seat_TN: Who moved, 0 to P - 1.
        reward_TNP: What each seat earned by each turn.
        over_TN: The turn ended its game.
        value_TN: The mover's value before its move.
        gamma: Discount of the value that a cut stream is bootstrapped from.

    Returns:
        All steps but the last ones of seats whose game is not over.

    Example:
        One table, seats 0, 1, 0, and seat 0 wins 1 from seat 1: the steps 0, 2 and 1 with rewards 0, 1 and -1.
    """
    streams = Streams()
    num_tables, num_seats = reward_TNP.shape[1:]
    for table, seat in product(range(num_tables), range(num_seats)):
        own = np.flatnonzero(seat_TN[:, table] == seat)
        steps = _stream(own, reward_TNP[:, table, seat], over_TN[:, table], value_TN[:, table], gamma)
        for turn, reward, over in steps:
            streams.place_R.append(int(turn) * num_tables + table)
            streams.reward_R.append(float(reward))
            streams.over_R.append(bool(over))
    return streams


def _stream(own: Array, reward_T: Array, over_T: Array, value_T: Array, gamma: float) -> list[tuple[int, float, bool]]:
    """(turn, reward, over) of one seat's steps at one table; arguments as in `own_streams`."""
    earned = np.concatenate([[0.0], np.cumsum(reward_T)])  # before each turn
    game_T = np.cumsum(over_T) - over_T  # how many games ended before each turn
    ends = np.flatnonzero(over_T)
    steps: list[tuple[int, float, bool]] = []
    for turn, following in zip_longest(own, own[1:]):
        if following is not None and game_T[following] == game_T[turn]:
            steps.append((turn, earned[following] - earned[turn], False))
        elif game_T[turn] < len(ends):
            steps.append((turn, earned[ends[game_T[turn]] + 1] - earned[turn], True))
        elif steps and not steps[-1][2]:  # the rollout ends first: this state only serves the step before
            before, reward, _ = steps[-1]
            steps[-1] = (before, reward + gamma * value_T[turn], True)
    return steps
