"""From the name of a game to the game: the one place that knows how games are named; docs/games.md lists it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from movelist.core import by_name
from movelist.core.errors import GameError, SettingsError, nearest
from movelist.games import openspiel
from movelist.games.game import Game, code_failed
from movelist.games.pettingzoo import PettingZooGame
from movelist.games.rlcard import RLCardGame

LIBRARIES: dict[str, Callable[[str], Game]] = {
    "openspiel": openspiel.OpenSpielGame,
    "pettingzoo": PettingZooGame,
    "rlcard": RLCardGame,
}
EXAMPLES = "tic_tac_toe, openspiel:NAME, pettingzoo:classic/NAME, rlcard:NAME, file.py:Class or module:Class"


@dataclass(frozen=True)
class GameSpec:
    """A game by its name: small, comparable, and picklable, so that it can go to another process or into a checkpoint.

    Args:
        name: As in `make_game`.

    Example:
        >>> GameSpec("tic_tac_toe").make().num_players
        2
    """

    name: str

    def make(self) -> Game:
        """Make the game; see `make_game`."""
        library, name = _split(self.name)
        return LIBRARIES[library](name) if library else _own(name)


def make_game(game: str | GameSpec | Game | Callable[[], Game]) -> Game:
    """The game of a name or a description; a game is handed back as it is.

    Args:
        game: A name, a GameSpec, a class or function that makes a Game, or any Game. A name is "dou_dizhu" or
            "leduc_poker(players=3)" of OpenSpiel's, "pettingzoo:classic/connect_four_v3", "rlcard:doudizhu", or your
            own "file.py:Class" or "module:Class", which is imported.

    Raises:
        GameError: There is no such game, or it cannot be played here.
        SettingsError: One's own cannot be imported.
        MissingExtraError: The game comes from a package that is not installed.
    """
    if isinstance(game, str):
        game = GameSpec(game)
    if isinstance(game, GameSpec):
        return game.make()
    if isinstance(game, type) or inspect.isfunction(game):
        return _called(game, game.__qualname__)
    return cast(Game, game)


def make_known(name: str) -> Game:
    """The game of a name that stood in data or an exported file: one of a library, for such a name runs no code.

    Raises:
        GameError: As `make_game`, and for one's own game.
        MissingExtraError: The game comes from a package that is not installed.
    """
    if is_own(name):
        raise GameError("a file cannot say what is to be imported", got=name, do=f"Name it yourself: --game {name}")
    return make_game(name)


def is_own(name: str) -> bool:
    """Whether a name says which code of one's own is to be imported: a game, or an environment for PettingZoo."""
    try:
        library, rest = _split(name)
    except GameError:
        return False
    return not library or (library == "pettingzoo" and ":" in rest)


def library_of(name: str) -> str:
    """Whose game a name names, as people write it."""
    return {"pettingzoo": "PettingZoo", "rlcard": "RLCard"}.get(name.partition(":")[0], "OpenSpiel")


def is_known(name: str) -> bool:
    """Whether a name is one that every command finds again: one's own, or with a library in front."""
    return is_own(name) or name.partition(":")[0] in LIBRARIES


def from_anywhere(name: str) -> str:
    """A name that is understood from any folder: one's own file gets its whole path."""
    if not is_own(name):
        return name
    library, rest = _split(name)
    return f"{library}:{by_name.with_whole_path(rest)}" if library else by_name.with_whole_path(rest)


def own_name(game: object) -> str | None:
    """The name of a class or function that makes a game, where it can be found again; None for anything else."""
    if not isinstance(game, type) and not inspect.isfunction(game):
        return None
    name = by_name.name_of(game)
    return None if name is None else from_anywhere(name)


def names() -> list[str]:
    """OpenSpiel's games that need no parameters, in alphabetical order.

    Raises:
        MissingExtraError: OpenSpiel is not installed.
    """
    return sorted(openspiel.game_names())


def _split(name: str) -> tuple[str, str]:
    """The library, "" for one's own game, and the name in it; a bare name is OpenSpiel's.

    Raises:
        GameError: What stands before the colon is none of them.
    """
    library, colon, rest = name.partition(":")
    if not colon or (re.match(r"\w+\(", name) and ".py:" not in name):  # OpenSpiel's parameters may hold colons
        return "openspiel", name
    if library in LIBRARIES:
        return library, rest
    try:
        by_name.check_name(name)
    except SettingsError:
        close = nearest(library.lower(), LIBRARIES)
        do = f"Did you mean {close}:{rest}?" if close else None
        raise GameError("this names no game", got=repr(name), expected=f"as in {EXAMPLES}", do=do) from None
    return "", name


def _own(name: str) -> Game:
    """One's own game, by the class or function that makes it."""
    try:
        make = by_name.find(name)
    except SettingsError as error:
        library = name.partition(":")[0]
        close = None if library.endswith(".py") else nearest(library.lower(), LIBRARIES)
        if close is None:
            raise
        do = f"Did you mean {close}:{name.partition(':')[2]}? {error.do or ''}".strip()
        raise SettingsError(error.what, got=error.got, expected=error.expected, where=error.where, do=do) from None
    return _called(make, name)


def _called(make: Callable[..., Any], name: str) -> Game:
    """What a class or function of one's own makes, if it is a game.

    Raises:
        GameError: It raises, or what it makes is none.
    """
    try:
        game = make()
    except Exception as error:  # whatever one's own code raises
        raise code_failed(error, name) from error
    if not callable(getattr(game, "new_state", None)) or not hasattr(game, "num_players"):
        raise GameError(
            "this makes no game",
            got=f"{name}, of type {type(game).__name__}",
            expected="an object with num_players and new_state(seed)",
        )
    return cast(Game, game)
