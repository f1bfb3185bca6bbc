"""From the name of a game to the game."""

from __future__ import annotations

from dataclasses import dataclass

from movelist.games import openspiel
from movelist.games.game import Game


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
        return openspiel.OpenSpielGame(self.name)


def make_game(game: str | GameSpec | Game) -> Game:
    """The game of a name or a description; a game is handed back as it is.

    Args:
        game: A name such as "dou_dizhu" or "leduc_poker(players=3)", a GameSpec, or any Game.

    Raises:
        GameError: There is no such game, or it cannot be played here.
        MissingExtraError: The game comes from a package that is not installed.
    """
    if isinstance(game, str):
        game = GameSpec(game)
    return game.make() if isinstance(game, GameSpec) else game


def names() -> list[str]:
    """The games that need no parameters, in alphabetical order.

    Raises:
        MissingExtraError: OpenSpiel is not installed.
    """
    return sorted(openspiel.game_names())
