"""Many games at once: every network call serves one turn of each running game.

Exactly the games asked for are started and all of them are finished, so short games are not favoured. Forced turns are
played without asking anyone. The columns come out in the order of the games' numbers, however many ran side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import parse_list
from movelist.core.errors import GameError
from movelist.core.metrics import span
from movelist.core.settings import PlaySettings
from movelist.data.episode import OTHER, POLICY, Episodes, credit, offsets_of
from movelist.games.game import Game, State, game_name, state_size
from movelist.play.policy import Policy, Turns, derive_seeds

Array = NDArray[Any]
GAMES = 1  # the purpose of the seed stream that training games come from
RECORDINGS = 3  # and that of games which are only recorded


@dataclass(slots=True)
class _Running:
    """One game in progress, at a turn where there is something to decide."""

    number: int
    seed: int
    state: State
    turn: int = 0
    player: int = 0
    actions: Sequence[int] = ()


@dataclass(slots=True)
class _Finished:
    returns: Sequence[float]
    turns: int
    final_states: list[Any] | None = None  # each seat's view, if the game was cut off


class SelfPlay:
    """A Source: the policy plays every seat of a game.

    Args:
        game: What to play.
        settings: Of self-play.
        seed: Of the games; game number n of a run is the same whatever was played before it.
    """

    def __init__(self, game: Game, settings: PlaySettings, *, seed: int = 0) -> None:
        self.game, self.settings, self.seed = game, settings, seed
        self.num_started = 0

    def collect(self, policy: Policy, num_episodes: int) -> Episodes:
        """Play `num_episodes` games. See `data.episode.Source`."""
        seeds = derive_seeds(self.seed, GAMES, self.num_started, num_episodes)
        seats = np.zeros((num_episodes, self.game.num_players), np.int64)
        episodes = play_games(self.game, [policy], seats, seeds, self.settings)
        self.num_started += num_episodes
        with span("game"):
            return episodes.check(game_name(self.game))

    def state_dict(self) -> dict[str, Any]:
        """The number of games started."""
        return {"num_started": self.num_started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after that many games."""
        self.num_started = int(state["num_started"])

    def close(self) -> None:
        """Nothing to give back."""


def play_games(
    game: Game, policies: Sequence[Policy], seats_GP: Array, seed_G: Array, settings: PlaySettings
) -> Episodes:
    """Play one game for each seed, at most `settings.num_games` at once.

    Args:
        game: What to play.
        policies: Who plays; seats that share a policy are asked together.
        seats_GP: int64 [G, P], which policy moves each seat of each game.
        seed_G: int64 [G], each game's seed.
        settings: num_games, keep_forced and max_turns are read.

    Returns:
        G episodes in the order of the seeds, unchecked; `controller_EP` is 0 for the seats of the first policy.

    Raises:
        GameError: The game offers an empty list.
    """
    recorder = _Recorder(state_size(game))
    finished: dict[int, _Finished] = {}
    running: list[_Running] = []
    num_started = 0
    while num_started < len(seed_G) or running:
        with span("game"):
            while len(running) < settings.num_games and num_started < len(seed_G):
                seed = int(seed_G[num_started])
                slot = _Running(num_started, seed, game.new_state(seed))
                num_started += 1
                if _advance(slot, settings, finished):
                    running.append(slot)
        for policy_number, policy in enumerate(policies):
            mine = [slot for slot in running if seats_GP[slot.number, slot.player] == policy_number]
            if mine:
                _play_turn(mine, policy, recorder)
        with span("game"):
            running = [slot for slot in running if _advance(slot, settings, finished)]
    with span("game"):
        return recorder.episodes([finished[number] for number in range(len(seed_G))], seats_GP)


def _advance(slot: _Running, settings: PlaySettings, finished: dict[int, _Finished]) -> bool:
    """Go on to the next decision, playing forced turns; False if there is none because the game is over."""
    state = slot.state
    while (player := state.current_player()) is not None:
        if slot.turn >= settings.max_turns:
            num_players = len(state.returns())
            views = [np.asarray(state.observe(seat)) for seat in range(num_players)]
            finished[slot.number] = _Finished(state.returns(), slot.turn, views)
            return False
        actions = state.legal_actions()
        if len(actions) != 1 or settings.keep_forced:
            slot.player, slot.actions = player, actions
            return True
        state.apply(0)
        slot.turn += 1
    finished[slot.number] = _Finished(state.returns(), slot.turn)
    return False


def _play_turn(slots: list[_Running], policy: Policy, recorder: _Recorder) -> None:
    """One decision of each game: ask the policy once, play, record."""
    with span("game"):
        turns, player_B, score_B = recorder.gather(slots)
    index_B, log_prob_B = policy.choose(turns)
    with span("game"):
        for slot, index in zip(slots, index_B.tolist(), strict=True):
            slot.state.apply(index)
            slot.turn += 1
        recorder.add(np.array([slot.number for slot in slots]), turns, player_B, score_B, index_B, log_prob_B)


class _Recorder:
    """Gathers the columns of the turns, one network call after another, and sorts them by game in the end."""

    def __init__(self, state_size: int) -> None:
        self.state_size = state_size
        self.rounds: list[tuple[Array, Turns, Array, Array, Array, Array]] = []

    def gather(self, slots: list[_Running]) -> tuple[Turns, Array, Array]:
        """The turns of these games as columns, with each mover and the mover's score so far."""
        state_BS = np.empty((len(slots), self.state_size), np.float32)
        flat: list[int] = []
        for row, slot in zip(state_BS, slots, strict=True):
            if not len(slot.actions):  # a list or an array
                raise GameError("a turn offers no legal action", where=f"game with seed {slot.seed}, turn {slot.turn}")
            row[:] = slot.state.observe(slot.player)
            flat.extend(slot.actions)
        turns = Turns(
            state_BS,
            np.array([len(slot.actions) for slot in slots]),
            parse_list(flat),
            np.array([slot.seed for slot in slots]),
            np.array([slot.turn for slot in slots]),
        )
        score_B = np.array([slot.state.returns()[slot.player] for slot in slots], np.float64)
        return turns, np.array([slot.player for slot in slots]), score_B

    def add(
        self, number_B: Array, turns: Turns, player_B: Array, score_B: Array, index_B: Array, log_prob_B: Array
    ) -> None:
        """Keep one round of turns."""
        self.rounds.append((number_B, turns, player_B, score_B, index_B, log_prob_B))

    def episodes(self, finished: list[_Finished], seats_GP: Array) -> Episodes:
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

    def _final_states(self, finished: list[_Finished], num_players: int) -> Array:
        final_EPS = np.zeros((len(finished), num_players, self.state_size), np.float32)
        for row, game in zip(final_EPS, finished, strict=True):
            if game.final_states is not None:
                row[:] = game.final_states
        return final_EPS
