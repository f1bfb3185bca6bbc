"""Games without chance start alike each time: openings by lot make different games of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from movelist.games.game import Game, State, game_name

MOST_DECISIONS = 4  # by lot at the start: connect four has 2,401 such openings, chess about 200,000
SHARE_OF_A_GAME = 3  # short games begin after a third of their decisions at most: 2 in tic_tac_toe
TRIES = 16  # of openings that do not end the game
LINES, SEEDS = 3, 4  # looked at to tell whether there is chance: random lines, and seeds for each
LONGEST = 200  # turns of such a line, and of an opening with its forced turns


class Openings:
    """A game that starts after a few decisions by lot, which follow from the seed: the same seed, the same opening.

    Args:
        game: What is played.
        num_decisions: By lot, all players' together; forced turns are not counted.
    """

    num_players: int  # as all that is not here, the game's own

    def __init__(self, game: Game, num_decisions: int) -> None:
        self.game, self.num_decisions, self.name = game, num_decisions, game_name(game)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.game, name)

    def __reduce__(self) -> tuple[type[Openings], tuple[Game, int]]:
        return Openings, (self.game, self.num_decisions)

    def new_state(self, seed: int) -> State:
        """A game of this seed behind its opening; from its start if openings end it again and again."""
        for number in range(TRIES):
            state = self.game.new_state(seed)
            if self._opened(state, random.Random(f"{seed} {number}")):
                return state
        return self.game.new_state(seed)

    def _opened(self, state: State, lot: random.Random) -> bool:
        """Play the opening; False if the game is over behind it."""
        decisions = 0
        for _ in range(LONGEST):
            if state.current_player() is None:
                return False
            count = len(state.legal_actions())
            if count > 1:
                if decisions == self.num_decisions:
                    return True
                decisions += 1
            state.apply(int(lot.random() * count))
        return True  # its turns are forced for long: whoever plays it goes on with them


def opening_length(game: Game) -> int:
    """How many decisions by lot tell the games of a game without chance apart; 0 for a game with chance.

    A game is taken for one without chance if the same choices lead through the same turns, whatever the seed; one whose
    code fails is not, and whoever plays it says why.
    """
    lengths = []
    try:
        for line in range(LINES):
            first, decisions = _turns(game, 0, line)
            if any(_turns(game, seed, line)[0] != first for seed in range(1, SEEDS)):
                return 0
            lengths.append(decisions)
    except Exception:  # whatever a game's own code raises
        return 0
    return max(1, min(MOST_DECISIONS, sum(lengths) // len(lengths) // SHARE_OF_A_GAME))


def _turns(game: Game, seed: int, line: int) -> tuple[list[object], int]:
    """What a line of random choices shows, and how many decisions it has."""
    lot, state, decisions = random.Random(line), game.new_state(seed), 0
    seen: list[object] = []
    while (player := state.current_player()) is not None and len(seen) < LONGEST:
        actions = state.legal_actions()
        seen.append((player, list(actions), np.asarray(state.observe(player)).tobytes()))
        decisions += len(actions) > 1
        state.apply(int(lot.random() * len(actions)))
    return [*seen, list(state.returns())], decisions
