"""From the turns of many games, asked for in rounds, to the columns of whole games."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from movelist.data.column import Column
from movelist.data.episode import FURTHER, OTHER, POLICY, Episodes, arguments, credit, offsets_of
from movelist.play.policy import Turns, join_turns
from movelist.play.running import Finished

Array = NDArray[Any]
_OWN = {column.label: column for column in FURTHER}  # columns of a game that Episodes has fields for


class Round(NamedTuple):
    """One turn of each of B games, and what was chosen.

    Attributes:
        number_B: int64 [B], the games' numbers.
        turns: What the movers saw.
        player_B: int64 [B], the movers.
        score_B: float64 [B], what they had earned so far.
        index_B: int64 [B], the choices.
        log_prob_B: float32 [B], their log-probabilities.
    """

    number_B: Array
    turns: Turns
    player_B: Array
    score_B: Array
    index_B: Array
    log_prob_B: Array


class Recorder:
    """Gathers the columns of the turns, one network call after another, and sorts them by game in the end."""

    def __init__(self, state_size: int, columns: Sequence[Column] = ()) -> None:
        self.state_size, self.columns = state_size, columns
        self.rounds: list[Round] = []

    def add(self, round_: Round) -> None:
        """Keep one round of turns."""
        self.rounds.append(round_)

    def episodes(self, finished: Sequence[Finished], seats_GP: Array) -> Episodes:
        """All turns kept, by game and in the order of play."""
        number_N = self._joined("number_B")
        # Rounds are in the order of play, so a stable sort by game keeps it within each game.
        order_N = np.argsort(number_N, kind="stable")
        turns = self._turns(order_N)
        columns = {**turns.columns, **self._columns_of_ends(finished, seats_GP.shape[1])}
        player_N, score_N = self._joined("player_B")[order_N], self._joined("score_B")[order_N].astype(np.float64)
        episode_offsets = offsets_of(np.bincount(number_N, minlength=len(finished)))
        return_EP = np.array([game.returns for game in finished], np.float64).reshape(seats_GP.shape)
        truncated_E = np.array([game.final_states is not None for game in finished], bool)
        return Episodes(
            **arguments({_OWN.get(column.name, column): array for column, array in columns.items()}),
            state_NS=turns.state_BS,
            player_N=player_N,
            action_offsets=offsets_of(turns.count_B),
            action_id_A=turns.action_id_A,
            chosen_N=self._joined("index_B")[order_N],
            log_prob_N=self._joined("log_prob_B")[order_N].astype(np.float32),
            reward_N=credit(score_N, player_N, episode_offsets, return_EP),
            episode_offsets=episode_offsets,
            return_EP=return_EP,
            truncated_E=truncated_E,
            final_state_EPS=self._final_states(finished, seats_GP.shape[1]) if truncated_E.any() else None,
            final_critic_EC=self._final_critic(finished),
            controller_EP=np.where(seats_GP == 0, POLICY, OTHER).astype(np.int8),
            side_EP=_sides(finished, seats_GP.shape[1]),
            num_turns=sum(game.turns for game in finished),
        )

    def _joined(self, name: str) -> Array:
        """One field of all rounds."""
        return np.concatenate([getattr(each, name) for each in self.rounds]) if self.rounds else np.zeros(0, np.int64)

    def _turns(self, order_N: Array) -> Turns:
        """What the movers saw, in the given order of turns."""
        if not self.rounds:
            none = np.zeros(0, np.int64)
            told = {column: np.zeros((0, column.width or 0), column.dtype) for column in self.columns if column.by_turn}
            return Turns(np.zeros((0, self.state_size), np.float32), none, none, none, none, told)
        return join_turns([each.turns for each in self.rounds]).take(order_N)

    def _final_states(self, finished: Sequence[Finished], num_players: int) -> Array:
        final_EPS = np.zeros((len(finished), num_players, self.state_size), np.float32)
        for row, game in zip(final_EPS, finished, strict=True):
            if game.final_states is not None:
                row[:] = game.final_states
        return final_EPS

    def _final_critic(self, finished: Sequence[Finished]) -> Array | None:
        """What a critic may know of where games were cut off, NaN elsewhere; None if no game told it."""
        told = {number: game.final_critic for number, game in enumerate(finished) if game.final_critic is not None}
        if not told:
            return None
        final_EC = np.full((len(finished), len(next(iter(told.values())))), np.nan, np.float32)
        for number, row in told.items():
            final_EC[number] = row
        return final_EC

    def _columns_of_ends(self, finished: Sequence[Finished], num_players: int) -> dict[Column, Array]:
        """What the games told once they were over: columns per episode and per seat."""
        return {
            column: np.array([game.columns[column] for game in finished], column.dtype).reshape(
                len(finished), *([num_players] if column.per == "seat" else []), column.width or 0
            )
            for column in self.columns
            if not column.by_turn
        }


def _sides(finished: Sequence[Finished], num_players: int) -> Array | None:
    """int8 [E, P], each seat on its own side, below 0, where a game did not tell; None if none did."""
    if all(game.sides is None for game in finished):
        return None
    alone = [-1 - seat for seat in range(num_players)]
    return np.array([alone if game.sides is None else game.sides for game in finished], np.int8)
