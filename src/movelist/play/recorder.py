"""From the turns of many games, asked for in rounds, to the columns of whole games."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.data.episode import OTHER, POLICY, Episodes, credit, offsets_of
from movelist.play.policy import Turns
from movelist.play.running import Finished

Array = NDArray[Any]


class Recorder:
    """Gathers the columns of the turns, one network call after another, and sorts them by game in the end."""

    def __init__(self, state_size: int) -> None:
        self.state_size = state_size
        self.rounds: list[tuple[Array, Turns, Array, Array, Array, Array]] = []

    def add(
        self, number_B: Array, turns: Turns, player_B: Array, score_B: Array, index_B: Array, log_prob_B: Array
    ) -> None:
        """Keep one round of turns."""
        self.rounds.append((number_B, turns, player_B, score_B, index_B, log_prob_B))

    def episodes(self, finished: Sequence[Finished], seats_GP: Array) -> Episodes:
        """All turns kept, by game and in the order of play."""
        columns = [np.concatenate(column) for column in zip(*((r[0], *r[2:]) for r in self.rounds), strict=True)]
        number_N, player_N, score_N, chosen_N, log_prob_N = columns if columns else [np.zeros(0, np.int64)] * 5
        # Rounds are in the order of play, so a stable sort by game keeps it within each game.
        order = np.argsort(number_N, kind="stable")
        state_NS, count_N, action_id_A = self._flat(order)
        episode_offsets = offsets_of(np.bincount(number_N, minlength=len(finished)))
        return_EP = np.array([game.returns for game in finished], np.float64).reshape(seats_GP.shape)
        truncated_E = np.array([game.final_states is not None for game in finished], bool)
        return Episodes(
            state_NS=state_NS,
            player_N=player_N[order],
            action_offsets=offsets_of(count_N),
            action_id_A=action_id_A,
            chosen_N=chosen_N[order],
            log_prob_N=log_prob_N[order].astype(np.float32),
            reward_N=credit(score_N[order].astype(np.float64), player_N[order], episode_offsets, return_EP),
            episode_offsets=episode_offsets,
            return_EP=return_EP,
            truncated_E=truncated_E,
            final_state_EPS=self._final_states(finished, seats_GP.shape[1]) if truncated_E.any() else None,
            controller_EP=np.where(seats_GP == 0, POLICY, OTHER).astype(np.int8),
            num_turns=sum(game.turns for game in finished),
        )

    def _flat(self, order: Array) -> tuple[Array, Array, Array]:
        """States, list lengths and ids in the given order of turns."""
        if not self.rounds:
            return np.zeros((0, self.state_size), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)
        turns = [turn for _, turn, *_ in self.rounds]
        state_NS = np.concatenate([turn.state_BS for turn in turns])[order]
        count = np.concatenate([turn.count_B for turn in turns])
        action_id = np.concatenate([turn.action_id_A for turn in turns])
        start_N, count_N = (np.cumsum(count) - count)[order], count[order]
        offsets = offsets_of(count_N)
        source_A = np.arange(offsets[-1]) + np.repeat(start_N - offsets[:-1], count_N)
        return state_NS, count_N, action_id[source_A]

    def _final_states(self, finished: Sequence[Finished], num_players: int) -> Array:
        final_EPS = np.zeros((len(finished), num_players, self.state_size), np.float32)
        for row, game in zip(final_EPS, finished, strict=True):
            if game.final_states is not None:
                row[:] = game.final_states
        return final_EPS
