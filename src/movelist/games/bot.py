"""Players that see the game itself: a scripted player reads the State, where a policy is given rows of numbers.

Free of torch: bots move where their games are played, which may be a worker process.
"""

from __future__ import annotations

import inspect
import operator
import pickle
import traceback
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from movelist.core.by_name import find, name_of
from movelist.core.errors import MovelistError, PlayerError, SettingsError, nearest
from movelist.games.game import State

if TYPE_CHECKING:
    from typing_extensions import TypeIs

NO_CHOICE = -1  # in place of an index


class Bot(Protocol):
    """A player that looks at the State. It is asked for many games by turns, so it keeps nothing of a single game.

    It may have an attribute `greedy`: False says that it draws lots. A bot that is to play in worker processes is
    pickled, or made there again where it was found by its name.

    Example:
        >>> class Lowest:
        ...     def choose(self, state, seat):
        ...         ids = state.legal_actions()
        ...         return ids.index(min(ids))
        >>> is_bot(Lowest())
        True
    """

    def choose(self, state: State, seat: int) -> int:
        """The index of the choice in `state.legal_actions()`; `seat` is the one to move. The state is to be left as
        it is."""


def is_bot(player: Any) -> TypeIs[Bot]:
    """Whether a player is a bot, choose(state, seat), and not a policy, choose(turns).

    Raises:
        SettingsError: It is neither.
    """
    # Once for each class, for it is asked at each turn; an object may have a choose of its own.
    own = "choose" in getattr(player, "__dict__", ())
    needed = None if own else _NEEDED.get(type(player))
    if needed is None:
        needed = _parameters_of(player)
        if not own:
            _NEEDED[type(player)] = needed
    if isinstance(player, type) or needed not in (1, 2):
        raise SettingsError(
            "this is no player",
            got=f"the class {player.__name__}" if isinstance(player, type) else type(player).__name__,
            expected="a bot with choose(state, seat) or a policy with choose(turns)",
            do="Give an instance: write () behind the class." if isinstance(player, type) else None,
        )
    return needed == 2


_NEEDED: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


def _parameters_of(player: Any) -> int:
    """How many arguments a player's choose has to be given; 0 if it has no such method."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(player.choose).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return 0
    return sum(word.kind in kinds and word.default is word.empty for word in parameters)


class NamedPlayer:
    """A bot of one's own by its name, made again by it in a worker process.

    Args:
        name: As `core.by_name.find` reads it.

    Raises:
        SettingsError: There is no such code, it fails, or what it makes is no bot.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.player: Bot = made_by_name(name)
        self.greedy = getattr(self.player, "greedy", True)

    def __reduce__(self) -> tuple[type[NamedPlayer], tuple[str]]:
        return NamedPlayer, (self.name,)

    def choose(self, state: State, seat: int) -> int:
        """See `Bot`."""
        return self.player.choose(state, seat)


def made_by_name(name: str) -> Any:
    """What a name makes when it is called without arguments.

    Raises:
        SettingsError: There is no such code, or it fails.
    """
    try:
        return find(name)()
    except MovelistError:
        raise
    except Exception as error:  # whatever somebody's code raises
        raise SettingsError(
            "this player cannot be made", got=described(error), where=name, do="It is called without arguments."
        ) from error


def described(error: Exception) -> str:
    """An exception and where it was raised, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return " ".join(f"{type(error).__name__}: {error} at {last.filename}, line {last.lineno}".split())


def refuse_unknown(what: str, prefix: str, name: str, known: Collection[str]) -> None:
    """Refuse a library's bot that there is not.

    Args:
        what: That there is none, as the error begins.
        prefix: Of the library's bots, "openspiel:".
        name: What was asked for.
        known: Those that there are.

    Raises:
        SettingsError: `name` is not among `known`.
    """
    if name not in known:
        close = nearest(name, known)
        raise SettingsError(
            what,
            got=repr(name),
            expected=", ".join(known) or "none: it has none for this game",
            do=f"Did you mean {prefix}{close}?" if close else None,
        )


def player_name(player: Any) -> str:
    """What to call a player in a message."""
    return str(getattr(player, "name", None) or name_of(type(player)) or type(player).__name__)


def player_failed(player: object, fault: str, seed: int, turn: int, seat: int | None = None) -> PlayerError:
    """The error of a player that gave no choice."""
    where = f"game with seed {seed}, turn {turn}" + ("" if seat is None else f", seat {seat}")
    return PlayerError(f"the player {player_name(player)} made no choice", got=fault, where=where)


def bot_choice(bot: Bot, state: State, seat: int, num_actions: int) -> tuple[int, str]:
    """A bot's choice and ""; or NO_CHOICE and what is wrong with it."""
    try:
        answer = bot.choose(state, seat)
    except Exception as error:  # whatever somebody's code raises
        return NO_CHOICE, described(error)
    try:
        index = operator.index(answer)
    except TypeError:
        return NO_CHOICE, f"{answer!r}, where an index from 0 to {num_actions - 1} is expected"
    if not 0 <= index < num_actions:
        return NO_CHOICE, f"index {index}, where one from 0 to {num_actions - 1} is expected"
    return index, ""


def packed(bots: dict[int, Bot]) -> bytes:
    """Bots for another process.

    Raises:
        SettingsError: One cannot be pickled.
    """
    try:
        return pickle.dumps(bots)
    except Exception as error:  # whatever a bot's own pickling raises
        raise SettingsError(
            "a bot cannot be sent to a worker process",
            got=f"{type(error).__name__}: {error}",
            where=", ".join(map(player_name, bots.values())),
            do="Define its class at the top of a module; or --rollout_workers 0.",
        ) from None
