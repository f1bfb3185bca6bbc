"""Games in progress, up to each one's next decision. Free of torch, for the processes that only play games."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import parse_list
from movelist.core.errors import DataError, GameError, MovelistError
from movelist.core.settings import PlaySettings
from movelist.data.column import Column
from movelist.games.bot import NO_CHOICE, Bot, bot_choice, player_failed
from movelist.games.columns import CRITIC, read_columns
from movelist.games.game import (
    FLOAT32_INTEGERS,
    Game,
    State,
    code_failed,
    copy_actions,
    read_observation,
    read_player,
    read_returns,
    read_sides,
    seat_of,
    start_game,
)

Array = NDArray[Any]


@dataclass(slots=True)
class Running:
    """One game in progress, at a turn where there is something to decide."""

    number: int
    seed: int
    state: State
    num_players: int
    columns: tuple[Column, ...] = ()  # what the game's states tell beside what they show
    turn: int = 0
    player: int = 0
    actions: Sequence[int] = ()

    def __str__(self) -> str:
        return f"game with seed {self.seed}, turn {self.turn}"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is left of a game that is over.

    Attributes:
        returns: Final scores [P].
        turns: Turns played, forced ones too.
        final_states: Each seat's view [P, S] where the game was cut off; None if it came to its end.
        columns: Its columns per episode [width] and per seat [P, width].
        final_critic: What a critic may know [C] where the game was cut off, if it tells that.
        sides: The side of each seat [P]; None where the game does not tell it.
    """

    returns: list[float]
    turns: int
    final_states: Array | None = None
    final_critic: Array | None = None
    columns: Mapping[Column, Array] = field(default_factory=dict)
    sides: list[int] | None = None


class Seen(NamedTuple):
    """What the movers of B games see.

    Attributes:
        count_B: int64 [B], lengths of the legal lists.
        action_id_A: int64 [A], the lists one after another.
        player_B: int64 [B], the movers.
        score_B: float64 [B], what they have earned so far.
        columns: What the states tell beside, per step [B, width] and per action [A, width].
    """

    count_B: Array
    action_id_A: Array
    player_B: Array
    score_B: Array
    columns: Mapping[Column, Array]


def start(game: Game, number: int, seed: int, num_players: int, columns: tuple[Column, ...]) -> Running:
    """Start a game whose states tell these columns; GameError if it cannot."""
    return Running(number, seed, start_game(game, seed, num_players), num_players, columns)


def play(slots: Iterable[Running], indices: Iterable[int]) -> None:
    """Play a chosen action in each game; GameError if one fails."""
    for slot, index in zip(slots, indices, strict=True):
        try:
            slot.state.apply(index)
        except MovelistError:
            raise
        except Exception as error:
            raise code_failed(error, str(slot)) from error
        slot.turn += 1


def choose(bot: Bot, slot: Running) -> int:
    """A bot's choice.

    Raises:
        PlayerError: It gave none.
    """
    index, fault = bot_choice(bot, slot.state, slot.player, len(slot.actions))
    if index == NO_CHOICE:
        raise player_failed(bot, fault, slot.seed, slot.turn, slot.player)
    return index


def advance(slot: Running, settings: PlaySettings, finished: dict[int, Finished]) -> bool:
    """Go on to the next decision, playing forced turns; False if there is none because the game is over.

    Raises:
        GameError: The mover is no seat of the game, there is not one return for each seat, or the game's own code
            fails.
    """
    state, num_players = slot.state, slot.num_players
    try:
        while (player := state.current_player()) is not None:
            if type(player) is not int or not 0 <= player < num_players:  # asked first, for it is quick
                player = seat_of(player, num_players, slot)
            if slot.turn >= settings.max_turns:
                # A copy for each seat: a state may fill one array for all of them.
                views = np.stack([read_observation(state, seat, slot) for seat in range(num_players)])
                finished[slot.number] = _finished(slot, views)
                return False
            actions = state.legal_actions()
            if len(actions) != 1 or settings.keep_forced:
                slot.player = player
                slot.actions = actions.copy() if type(actions) is list else copy_actions(actions, slot)
                return True
            state.apply(0)
            slot.turn += 1
        finished[slot.number] = _finished(slot)
    except MovelistError:
        raise
    except Exception as error:
        raise _explained(slot, error) from error
    return False


def _finished(slot: Running, final_states: Array | None = None) -> Finished:
    """What is left of a game that is over, or cut off."""
    columns = [column for column in slot.columns if not column.by_turn]
    told = read_columns(slot.state, columns, {"seat": slot.num_players}, slot) if columns else {}
    critic = [column for column in slot.columns if column.name == CRITIC and final_states is not None]
    final_critic = next(iter(read_columns(slot.state, critic, {}, slot).values())) if critic else None
    returns = read_returns(slot.state, slot.num_players, slot)
    sides = read_sides(slot.state, slot.num_players, slot)
    return Finished(returns, slot.turn, final_states, final_critic, told, sides)


def _explained(slot: Running, error: Exception) -> GameError:
    """What a game did wrong: one of the rules that it broke, or else an exception in its own code."""
    try:
        player = read_player(slot.state, slot.num_players, slot)
        read_returns(slot.state, slot.num_players, slot)
        if player is not None:
            copy_actions(slot.state.legal_actions(), slot)
            read_observation(slot.state, player, slot)
    except GameError as broken:
        return broken
    except Exception:  # it is the first one that counts
        pass
    return code_failed(error, str(slot))


def look(slots: Iterable[Running], state_BS: Array) -> Seen:
    """See what each game's mover sees.

    Args:
        slots: B games.
        state_BS: float32 [B, S], filled here.

    Raises:
        GameError: A list is empty, a state has another width or shows numbers that cannot be learnt from, or the
            game's own code fails.
        DataError: An id is no 64-bit integer.
    """
    seen: list[Running] = []
    counts: list[int] = []
    flat: list[int] = []
    players: list[int] = []
    scores: list[float] = []
    told: list[dict[Column, Array]] = []
    for row, slot in zip(state_BS, slots, strict=True):
        if not slot.actions:
            raise GameError("a turn offers no legal action", where=str(slot))
        try:
            view = np.asarray(slot.state.observe(slot.player))
            if view.shape != row.shape:  # a single number would fill the row
                raise GameError(
                    "observe changes its width",
                    got=list(view.shape),
                    expected=f"{list(row.shape)} as in a fresh state",
                    where=str(slot),
                )
            row[:] = view
            scores.append(float(slot.state.returns()[slot.player]))
            if slot.columns:
                told.append(_told_now(slot))
        except MovelistError:
            raise
        except Exception as error:
            raise _explained(slot, error) from error
        seen.append(slot)
        flat.extend(slot.actions)
        counts.append(len(slot.actions))
        players.append(slot.player)
    _check_states(seen, state_BS)
    player_B, score_B = np.array(players, np.int64), np.array(scores, np.float64)
    try:
        action_id_A = parse_list(flat)
    except DataError:
        _name_bad_list(seen)
        raise
    return Seen(np.array(counts, np.int64), action_id_A, player_B, score_B, _together(told))


def _told_now(slot: Running) -> dict[Column, Array]:
    columns = [column for column in slot.columns if column.by_turn]
    return read_columns(slot.state, columns, {"action": len(slot.actions)}, slot) if columns else {}


def _together(told: Sequence[Mapping[Column, Array]]) -> dict[Column, Array]:
    """What several states tell of columns per step and per action, one after another."""
    return {
        column: np.stack(arrays) if column.per == "step" else np.concatenate(arrays)
        for column in (told[0] if told else ())
        if (arrays := [each[column] for each in told])
    }


def _check_states(slots: Sequence[Running], state_BS: Array) -> None:
    """Refuse numbers that cannot be learnt from; only large ones, which are rare, are looked at one by one."""
    if not state_BS.size or (state_BS.max() < FLOAT32_INTEGERS and state_BS.min() > -FLOAT32_INTEGERS):
        return
    for row, slot in zip(state_BS, slots, strict=True):
        if not (np.abs(row) < FLOAT32_INTEGERS).all():  # NaN is not below anything
            read_observation(slot.state, slot.player, slot)


def _name_bad_list(slots: Iterable[Running]) -> None:
    """Raise the error of the first list with an id that is none, with its game and turn."""
    for slot in slots:
        try:
            parse_list(slot.actions)
        except DataError as error:
            raise DataError(error.what, got=error.got, expected=error.expected, where=str(slot), do=error.do) from None
