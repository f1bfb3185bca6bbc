"""Games whose lists name an action twice: the copies become one entry, for all who play the game.

Real engines list some plays twice, once for each way to find them. A game of one's own may say that such copies mean
the same action, by its attribute `repeated_actions = "merge"`; a training says it with --repeated_actions merge.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from movelist.core.action_ids import to_text
from movelist.core.errors import GameError
from movelist.games.columns import FEATURES
from movelist.games.game import Game, State, copy_actions, game_name

KINDS = ("refuse", "merge")
_PATTERN = 2**64 - 1  # -1 and 2^64 - 1 are the same id


def merging(game: Game, repeated_actions: str = "refuse") -> Game:
    """The game with each action once in its lists, if the game or `repeated_actions` says "merge"; else as it is.

    Raises:
        GameError: The game says neither "refuse" nor "merge".
    """
    said = getattr(game, "repeated_actions", "refuse")
    if said not in KINDS:
        raise GameError("repeated_actions is none of the two", got=repr(said), expected="'refuse' or 'merge'",
                        where=game_name(game))  # fmt: skip
    if isinstance(game, MergedGame | type) or "merge" not in (said, repeated_actions):
        return game
    return MergedGame(game)


class MergedGame:
    """A game in whose lists each action stands once, where it stood first.

    Args:
        game: The game; whatever else it has is had here, too.
    """

    num_players: int  # as the game has them now

    def __init__(self, game: Game) -> None:
        self.game = game
        self.name = game_name(game)

    def new_state(self, seed: int) -> State:
        """See `Game`."""
        state = self.game.new_state(seed)
        declared = getattr(self.game, "columns", ())  # which are held to their form where they are read
        return _MergedState(state, [one.name for one in declared if getattr(one, "per", None) == "action"])

    def __getattr__(self, name: str) -> Any:
        if name == "game" or name.startswith("__"):  # asked before there is a game, as an object is unpickled
            raise AttributeError(name)
        return getattr(self.game, name)


class _MergedState:
    """A State whose list names each action once.

    Args:
        state: The game's own.
        by_action: Names of its columns with a row for each legal action.
    """

    def __init__(self, state: State, by_action: Sequence[str]) -> None:
        self._state, self._by_action = state, by_action
        self._first: list[int] | None = None  # where each action of the list stands first in the game's own

    def current_player(self) -> int | None:
        """See `State`."""
        return self._state.current_player()

    def legal_actions(self) -> Sequence[int]:
        """See `State`."""
        actions = self._state.legal_actions()
        ids = actions if type(actions) is list else copy_actions(actions, "legal_actions")
        self._first = first_places(ids)
        return ids if len(self._first) == len(ids) else [ids[place] for place in self._first]

    def observe(self, player: int) -> ArrayLike:
        """See `State`."""
        return self._state.observe(player)

    def apply(self, index: int) -> None:
        """See `State`: the first of the copies is played."""
        place, self._first = self._place(index), None
        self._state.apply(place)

    def returns(self) -> Sequence[float]:
        """See `State`."""
        return self._state.returns()

    def _place(self, index: int) -> int:
        """Where an action of the list stands in the game's own."""
        if self._first is None:
            self.legal_actions()
        assert self._first is not None
        return self._first[index]

    def _columns(self) -> dict[str, Any]:
        """What the state tells beside, with a row for each action that is left."""
        told: dict[str, Any] = dict(self._state.columns())  # type: ignore[attr-defined]  # the game declares columns
        for name in filter(told.__contains__, self._by_action):
            told[name] = self._merged(name, told[name])
        return told

    def _merged(self, name: str, told: ArrayLike) -> Any:
        """What is told with a row for each entry of the game's own list, for those that are left.

        Raises:
            GameError: Copies of an action have different rows.
        """
        if self._state.current_player() is None:
            return told
        ids = copy_actions(self._state.legal_actions(), "legal_actions")
        places = first_places(ids)
        if len(places) == len(ids):
            return told
        row = {operator.index(ids[place]) & _PATTERN: place for place in places}
        first = [row[operator.index(action) & _PATTERN] for action in ids]
        values = np.asarray(told)
        if len(values) != len(ids):
            raise GameError("a column has another form", got=f"{len(values)} rows", where=name,
                            expected=f"{len(ids)}, one for each entry of the list")  # fmt: skip
        differs = (values != values[first]).reshape(len(ids), -1).any(axis=1)
        if differs.any():
            place = int(np.flatnonzero(differs)[0])
            raise GameError("copies of an action have different features", where=name,
                            got=f"{to_text(ids[place])} at places {first[place]} and {place}",
                            do="They are two actions: give them two ids.")  # fmt: skip
        return values[places]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        own = getattr(self._state, name)
        if name == "columns":
            return self._columns
        if name == FEATURES:
            return lambda: self._merged(FEATURES, own())
        return (lambda index: own(self._place(index))) if name == "action_name" else own


def first_places(ids: Sequence[Any]) -> list[int]:
    """Where each different id of a list stands first; all places of a list with something in it that is no id.

    Example:
        >>> first_places([7, 5, 7, -1, 2**64 - 1])
        [0, 1, 3]
    """
    try:
        if len({operator.index(action) & _PATTERN for action in ids}) == len(ids):
            return list(range(len(ids)))
        found: dict[int, int] = {}
        for place, action in enumerate(ids):
            found.setdefault(operator.index(action) & _PATTERN, place)
        return list(found.values())
    except TypeError:  # said where lists are read
        return list(range(len(ids)))
