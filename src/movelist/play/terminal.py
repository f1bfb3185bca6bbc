"""A person against the bot, in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from movelist.core.action_ids import parse_list, to_text
from movelist.data.column import Column
from movelist.games.columns import game_columns, read_columns
from movelist.games.game import Game, State
from movelist.play.deals import outcomes
from movelist.play.policy import Policy, Turns

LINE_WIDTH = 100
HELP = "a number or a name plays; p shows the bot's probabilities; q gives up"


class Bot(Policy, Protocol):
    """A policy that can say what it thinks."""

    def log_probs(self, turns: Turns) -> NDArray[np.float32]:
        """Log-probabilities of all legal actions, float32 [A]."""


class GaveUpError(Exception):
    """The person left."""


def play_game(
    bot: Bot, game: Game, *, seat: int, seed: int, ask: Callable[[str], str], say: Callable[[str], None]
) -> Sequence[float] | None:
    """Play one game; the person has one seat, the bot all others.

    Args:
        bot: Who plays against the person.
        game: What is played.
        seat: The person's.
        seed: Of the game's chance and of the bot's draws.
        ask: Shows a prompt and returns the line typed; EOFError gives up.
        say: Shows a line.

    Returns:
        What each seat earned, or None if the person gave up.
    """
    state, turn, columns = game.new_state(seed), 0, [column for column in game_columns(game) if column.by_turn]
    say(f"You are player {seat} of 0 to {game.num_players - 1}. Type {HELP}.")
    try:
        while (player := state.current_player()) is not None:
            names = action_names(state)
            turns = _turns(state, player, columns, seed, turn)
            if player == seat:
                index = _persons_choice(state, player, names, lambda: bot.log_probs(turns), ask, say)  # noqa: B023
            else:
                index = 0 if len(names) == 1 else int(bot.choose(turns)[0][0])
                say(f"Player {player} plays {names[index]}")
            state.apply(index)
            turn += 1
    except (EOFError, GaveUpError):
        say("You gave up.")
        return None
    returns = [float(value) for value in state.returns()]
    say("The game is over: " + ", ".join(f"player {number} {value:+g}" for number, value in enumerate(returns)))
    outcome = outcomes(np.array([returns]))[0, seat]
    say("You won." if outcome > 0 else "A draw." if outcome == 0 else "The bot won.")
    return returns


def action_names(state: State) -> list[str]:
    """The legal actions as people read them: the game's names, or the ids in hexadecimal."""
    actions = state.legal_actions()
    name = getattr(state, "action_name", None)
    return [str(name(index)) if name else to_text(action) for index, action in enumerate(actions)]


def _turns(state: State, player: int, columns: Sequence[Column], seed: int, turn: int) -> Turns:
    ids = parse_list(state.legal_actions())
    row = np.asarray(state.observe(player), np.float32).reshape(1, -1)
    read = read_columns(state, columns, {"action": len(ids)}, f"turn {turn}") if columns else {}
    told = {column: array[None] if column.per == "step" else array for column, array in read.items()}
    return Turns(row, np.array([len(ids)]), ids, np.array([seed]), np.array([turn]), told)


def _persons_choice(
    state: State,
    player: int,
    names: list[str],
    log_probs: Callable[[], NDArray[np.float32]],
    ask: Callable[[str], str],
    say: Callable[[str], None],
) -> int:
    describe = getattr(state, "describe", None)
    if describe and (text := str(describe(player)).strip()):
        say(f"\n{text}")
    if len(names) == 1:
        say(f"You can only play {names[0]}")
        return 0
    for line in in_columns([f"{number:>3} {name}" for number, name in enumerate(names)]):
        say(line)
    while True:
        answer = ask("Your move: ").strip()
        if answer == "q" and answer not in names:
            raise GaveUpError
        if answer == "p" and answer not in names:
            for line in _thoughts(names, log_probs()):
                say(line)
        elif (index := chosen_index(answer, names)) is not None:
            say(f"You play {names[index]}")
            return index
        else:
            say(f"There is no such action: {answer!r}. Type {HELP}.")


def chosen_index(answer: str, names: Sequence[str]) -> int | None:
    """The index that a typed line means: a number of the list, a name, or the beginning of a single name.

    Numbers come first, for a name may be one as well (a single 3 in dou dizhu is "3"). None if it means nothing.
    """
    if answer.isascii() and answer.isdigit() and len(answer) < 20 and int(answer) < len(names):
        return int(answer)
    if answer in names:
        return list(names).index(answer)
    begins = [n for n, name in enumerate(names) if answer and name.lower().startswith(answer.lower())]
    return begins[0] if len(begins) == 1 else None


def _thoughts(names: Sequence[str], log_prob_A: NDArray[np.float32]) -> list[str]:
    """The bot's probabilities, the likeliest first."""
    order = np.argsort(-log_prob_A, kind="stable")
    return in_columns([f"{np.exp(log_prob_A[n]):6.1%} {names[n]}" for n in order])


def in_columns(entries: Sequence[str], width: int = LINE_WIDTH) -> list[str]:
    """Lines of entries side by side, read from left to right; one a line if there are few."""
    cell = max(map(len, entries)) + 3
    per_line = max(1, width // cell) if len(entries) > 10 else 1
    return [
        "".join(entry.ljust(cell) for entry in entries[start : start + per_line]).rstrip()
        for start in range(0, len(entries), per_line)
    ]
