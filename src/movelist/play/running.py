"""Games in progress, up to each one's next decision. Free of torch, for the processes that only play games."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import parse_list
from movelist.core.errors import DataError, GameError
from movelist.core.settings import PlaySettings
from movelist.games.game import Game, State

Array = NDArray[Any]


@dataclass(slots=True)
class Running:
    """One game in progress, at a turn where there is something to decide."""

    number: int
    seed: int
    state: State
    num_players: int
    turn: int = 0
    player: int = 0
    actions: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """What is left of a game that is over.

    Attributes:
        returns: Final scores [P].
        turns: Turns played, forced ones too.
        final_states: Each seat's view [P, S] where the game was cut off; None if it came to its end.
    """

    returns: list[float]
    turns: int
    final_states: Array | None = None


def begin(game: Game, number: int, seed: int) -> Running:
    """A game at its start."""
    return Running(number, seed, game.new_state(seed), game.num_players)


def apply(slot: Running, index: int) -> None:
    """Play the action at this place of the list."""
    slot.state.apply(index)
    slot.turn += 1


def advance(slot: Running, settings: PlaySettings, finished: dict[int, Finished]) -> bool:
    """Go on to the next decision, playing forced turns; False if there is none because the game is over.

    Raises:
        GameError: The mover is no seat of the game, or there is not one return for each seat.
    """
    state = slot.state
    while (player := state.current_player()) is not None:
        if not 0 <= player < slot.num_players:
            raise GameError(
                "there is no such player",
                got=player,
                expected=f"0 to {slot.num_players - 1}, or None",
                where=_where(slot),
            )
        if slot.turn >= settings.max_turns:
            views = [np.asarray(state.observe(seat), np.float32) for seat in range(slot.num_players)]
            finished[slot.number] = Finished(_returns(slot), slot.turn, np.stack(views))
            return False
        actions = state.legal_actions()
        if len(actions) != 1 or settings.keep_forced:
            slot.player, slot.actions = player, actions
            return True
        state.apply(0)
        slot.turn += 1
    finished[slot.number] = Finished(_returns(slot), slot.turn)
    return False


def _returns(slot: Running) -> list[float]:
    returns = [float(value) for value in slot.state.returns()]
    if len(returns) != slot.num_players:
        raise GameError(
            "there is not one return for each seat", got=len(returns), expected=slot.num_players, where=_where(slot)
        )
    return returns


def _where(slot: Running) -> str:
    return f"game with seed {slot.seed}, turn {slot.turn}"


def look(slots: Iterable[Running], state_BS: Array) -> tuple[Array, Array, Array, Array]:
    """See what each game's mover sees.

    Args:
        slots: B games.
        state_BS: float32 [B, S], filled here.

    Returns:
        count_B: int64 [B], lengths of the legal lists; action_id_A: int64 [A], the lists one after another; player_B:
        int64 [B], the movers; score_B: float64 [B], what they have earned so far.

    Raises:
        GameError: A list is empty, or a state has another width.
        DataError: An id is no 64-bit integer.
    """
    seen: list[Running] = []
    counts: list[int] = []
    flat: list[int] = []
    players: list[int] = []
    scores: list[float] = []
    for row, slot in zip(state_BS, slots, strict=True):
        if not len(slot.actions):  # a list or an array
            raise GameError("a turn offers no legal action", where=_where(slot))
        view = np.asarray(slot.state.observe(slot.player))
        if view.shape != row.shape:  # a single number would fill the row
            raise GameError(
                "observe changes its width",
                got=list(view.shape),
                expected=f"{list(row.shape)} as in a fresh state",
                where=_where(slot),
            )
        row[:] = view
        seen.append(slot)
        flat.extend(slot.actions)
        counts.append(len(slot.actions))
        players.append(slot.player)
        scores.append(slot.state.returns()[slot.player])
    player_B, score_B = np.array(players, np.int64), np.array(scores, np.float64)
    try:
        action_id_A = parse_list(flat)
    except DataError:
        _name_bad_list(seen)
        raise
    return np.array(counts, np.int64), action_id_A, player_B, score_B


def _name_bad_list(slots: Iterable[Running]) -> None:
    """Raise the error of the first list with an id that is none, with its game and turn."""
    for slot in slots:
        try:
            parse_list(slot.actions)
        except DataError as error:
            raise DataError(
                error.what, got=error.got, expected=error.expected, where=_where(slot), do=error.do
            ) from None
