"""Equal deals: two players meet on the same cards once for every seating, and what counts is a deal's mean.

A deal of X and Y is played once for each seat of X against Y on all the others, and reversed: 2 P games for P seats. In
a game for two, and between two fixed teams, these are 2 games; alone, each plays the deal once and their returns are
compared. All games of a deal have one seed, so luck that favours a seat favours both players. A deal's score is the
mean of its games, from 0 to 1, and 0.5 on average for equal players, whatever the game.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.patience import say_on_standard_error
from movelist.core.settings import PlaySettings
from movelist.data.episode import Episodes
from movelist.games.bot import Bot
from movelist.games.game import Game, game_name, teams_of
from movelist.play.policy import Forfeits, Policy, derive_seeds
from movelist.play.selfplay import play_games
from movelist.play.workers import Workers

Array = NDArray[Any]
MATCHES = 2  # the purpose of the seed stream that match games come from: never a game that was trained on
NO_ROLE = -1
MOST_FORFEITS_TOLD = 3


@dataclass(frozen=True)
class Seatings:
    """The games of one deal, for X (0) and Y (1).

    Attributes:
        units: Seats that one player takes together: each seat, or each fixed team.
        seats_KP: int64 [K, P], who moves each seat of each game.
        x_game_U: int64 [U], the game in which X has this unit alone.
        y_game_U: int64 [U], the game in which Y has it alone.
    """

    units: tuple[tuple[int, ...], ...]
    seats_KP: Array
    x_game_U: Array
    y_game_U: Array

    @property
    def num_games(self) -> int:
        """K, of a deal."""
        return len(self.seats_KP)


def seatings(game: Game) -> Seatings:
    """How a deal of this game is played.

    Example: three seats give 6 games: X against Y, Y on each seat, and Y against X, X on each.

    Raises:
        GameError: The game's teams do not hold every seat once.
    """
    units, num_players = teams_of(game), game.num_players
    alone_UP = np.array([[seat in unit for seat in range(num_players)] for unit in units])
    number_U = np.arange(len(units))
    x_UP = np.where(alone_UP, 0, 1)
    if len(units) == 2:
        return Seatings(units, x_UP, number_U, number_U[::-1])
    return Seatings(units, np.concatenate([x_UP, 1 - x_UP]), number_U, len(units) + number_U)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One player's games in which it has a unit alone, D deals and U units.

    Attributes:
        outcome_DU: 1, 0 or -1: a win, a draw, a loss.
        return_DU: The unit's mean return, in the game's own units.
        role_DU: The side that the unit was on, where the game tells it; NO_ROLE elsewhere.
        truncated_DU: bool, cut off.
    """

    outcome_DU: Array
    return_DU: Array
    role_DU: Array
    truncated_DU: Array

    @property
    def win_DU(self) -> Array:
        """1 for a win, 0.5 for a draw, 0 for a loss."""
        win_DU: Array = (self.outcome_DU + 1) / 2
        return win_DU

    def take(self, index_D: Array) -> Alone:
        """Some of the deals."""
        return Alone(**{name: array[index_D] for name, array in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Deals:
    """Deals that were played by X and Y.

    Attributes:
        x: X's games alone.
        y: Y's games alone; in a game for two the same games, seen by Y.
        num_games: Played for each deal.
        forfeits_D2: int64 [D, 2], games of each deal that X and Y forfeited.
        digests: One text for each deal, equal where all of its games went the same way; None where nobody looked.
    """

    x: Alone
    y: Alone
    num_games: int
    forfeits_D2: Array
    digests: list[str] | None = None

    @property
    def score_D(self) -> Array:
        """X's score of each deal, 0 to 1; 0.5 on average for equal players."""
        score_D: Array = 0.5 + (self.x.win_DU.mean(1) - self.y.win_DU.mean(1)) / 2
        return score_D

    @property
    def truncated_D(self) -> Array:
        """Games of each deal that were cut off, counting each once."""
        truncated_D: Array = self.x.truncated_DU.sum(1)
        if self.num_games > 2 or self.x.truncated_DU.shape[1] == 1:  # else X's games are all of them
            truncated_D = truncated_D + self.y.truncated_DU.sum(1)
        return truncated_D

    def different(self) -> Deals:
        """Without deals whose games all went as in one before: they say nothing new."""
        if self.digests is None:
            return self
        first_D = first_of_each(self.digests)
        return Deals(
            x=self.x.take(first_D),
            y=self.y.take(first_D),
            num_games=self.num_games,
            forfeits_D2=self.forfeits_D2[first_D],
            digests=[self.digests[number] for number in first_D.tolist()],
        )


def first_of_each(digests: Sequence[str]) -> Array:
    """The places where a text stands for the first time, ascending."""
    return np.sort(np.unique(np.array(digests), return_index=True)[1])


@dataclass(frozen=True)
class Pairing:
    """Deals to be played: X and Y by their numbers among the players, the first deal and how many."""

    x: int
    y: int
    first: int
    num_deals: int


def play_deals(
    players: Sequence[Policy | Bot],
    pairings: Sequence[Pairing],
    game: Game,
    *,
    seed: int = 0,
    play: PlaySettings | None = None,
    workers: Workers | None = None,
    say: Callable[[str], None] = say_on_standard_error,
    forfeit: bool = False,
    digest: bool = False,
) -> list[Deals]:
    """Play some deals of several pairings, all together: who sits in several pairings is asked for all of them at once.

    Args:
        players: Who plays.
        pairings: What to play. Deal number n has the same seed in each.
        game: What is played.
        seed: Of all deals.
        play: num_games (at once) and max_turns are read.
        workers: Who play the games, with settings of their own; None plays them in this process.
        say: Told which game does not answer, and who forfeited.
        forfeit: A player that fails loses its game, and the others go on; else it is an error.
        digest: Note which deals went the same way.

    Returns:
        The deals of each pairing, in its order.

    Raises:
        PlayerError: A player failed, and forfeits are not wanted.
        MovelistError: The game breaks a promise.
    """
    plan = seatings(game)
    who = [np.array([pairing.x, pairing.y])[plan.seats_KP] for pairing in pairings]
    seats_GP = np.concatenate([np.tile(who_KP, (p.num_deals, 1)) for who_KP, p in zip(who, pairings, strict=True)])
    seed_D = np.concatenate([derive_seeds(seed, MATCHES, p.first, p.num_deals) for p in pairings])
    forfeits: Forfeits | None = {} if forfeit else None
    settings = play or PlaySettings()
    seed_G = np.repeat(seed_D, plan.num_games)
    episodes = play_games(game, players, seats_GP, seed_G, settings, workers, say, forfeits=forfeits)
    episodes.check(game_name(game))
    _tell(forfeits or {}, say)
    of_game = {number: player for number, (player, _) in (forfeits or {}).items()}
    forfeit_G = np.array([of_game.get(number, -1) for number in range(len(seats_GP))])
    texts = _digests(episodes) if digest else None
    found, start = [], 0
    for pairing in pairings:
        games = slice(start, start := start + pairing.num_deals * plan.num_games)
        lost_G = np.select([forfeit_G[games] == pairing.x, forfeit_G[games] == pairing.y], [0, 1], -1)
        found.append(_deals(episodes, games, plan, lost_G, None if texts is None else texts[games]))
    return found


def _tell(forfeits: Forfeits, say: Callable[[str], None]) -> None:
    errors = [error for _, error in forfeits.values()]
    for error in errors[:MOST_FORFEITS_TOLD]:
        say(f"Forfeit: {error}")
    if len(errors) > MOST_FORFEITS_TOLD:
        say(f"Forfeit: and {len(errors) - MOST_FORFEITS_TOLD:,} more games.")


def _digests(episodes: Episodes) -> list[str]:
    """What each game was, as a short text: who saw what and chose what, and how it ended."""
    chosen_N = episodes.action_id_A[episodes.action_offsets[:-1] + episodes.chosen_N]
    columns = (episodes.state_NS, episodes.player_N, chosen_N)
    edges, texts = episodes.episode_offsets.tolist(), []
    for start, end, returns in zip(edges[:-1], edges[1:], episodes.return_EP, strict=True):
        parts = [np.ascontiguousarray(column[start:end]).tobytes() for column in columns]
        texts.append(hashlib.blake2b(b"".join([*parts, returns.tobytes()]), digest_size=8).hexdigest())
    return texts


def _deals(episodes: Episodes, games: slice, plan: Seatings, lost_G: Array, digests: Sequence[str] | None) -> Deals:
    """The deals of one pairing, from its games; `lost_G` is 0 or 1 where X or Y forfeited."""
    return_GU = np.stack([episodes.return_EP[games, list(unit)].mean(1) for unit in plan.units], axis=1)
    single = all(len(unit) == 1 for unit in plan.units)
    side_GU = episodes.side_EP[games].astype(np.int64) if episodes.side_EP is not None and single else None
    shape = (-1, plan.num_games, len(plan.units))
    return_DKU = return_GU.reshape(shape)
    if len(plan.units) == 1:  # alone: both players' returns of the same deal are compared, as if they sat together
        pair_D2 = return_DKU[:, :, 0]
        outcome_DKU = outcomes(pair_D2)[:, :, None]
    else:
        outcome_DKU = outcomes(return_GU, side_GU).reshape(shape)
    role_DKU = np.full(return_DKU.shape, NO_ROLE) if side_GU is None else np.maximum(NO_ROLE, side_GU).reshape(shape)
    lost_DK = lost_G.reshape(-1, plan.num_games)
    truncated_DK = episodes.truncated_E[games].reshape(-1, plan.num_games)
    unit_U = np.arange(len(plan.units))

    def alone(game_U: Array, player: int) -> Alone:
        lost_DU = lost_DK[:, game_U]
        if len(plan.units) == 1:  # what the other one forfeits, this one wins
            lost_DU = np.where(lost_DK >= 0, lost_DK, -1).max(1, keepdims=True)
        outcome_DU = outcome_DKU[:, game_U, unit_U]
        outcome_DU = np.where(lost_DU < 0, outcome_DU, np.where(lost_DU == player, -1.0, 1.0))
        return Alone(
            outcome_DU=outcome_DU,
            return_DU=return_DKU[:, game_U, unit_U],
            role_DU=role_DKU[:, game_U, unit_U],
            truncated_DU=truncated_DK[:, game_U],
        )

    texts = None if digests is None else np.array(digests).reshape(-1, plan.num_games).tolist()
    return Deals(
        x=alone(plan.x_game_U, 0),
        y=alone(plan.y_game_U, 1),
        num_games=plan.num_games,
        forfeits_D2=np.stack([(lost_DK == player).sum(1) for player in (0, 1)], axis=1),
        digests=None if texts is None else ["".join(row) for row in texts],
    )


def outcomes(return_EP: Array, side_EP: Array | None = None) -> Array:
    """1, 0 or -1 for a win, a draw, a loss of each seat [E, P]: its return is above, at or below its opponents' mean.

    A rounding error is no victory, in whatever units: what is equal to 12 digits of the game's largest return, or is 14
    digits below the largest of all these games, as what is left of sums that cancel, is a draw.

    Args:
        return_EP: float64 [E, P].
        side_EP: The side of each seat; seats on another side are its opponents. None: every other seat is.
    """
    if side_EP is None:
        others = max(1, return_EP.shape[1] - 1)
        mean_other_EP = (return_EP.sum(axis=1, keepdims=True) - return_EP) / others
    else:
        against_EPP = side_EP[:, :, None] != side_EP[:, None, :]
        mean_other_EP = (against_EPP * return_EP[:, None, :]).sum(2) / np.maximum(1, against_EPP.sum(2))
    size_EP = np.abs(return_EP)
    rounding_E1 = np.maximum(1e-12 * size_EP.max(axis=1, keepdims=True), 1e-14 * size_EP.max(initial=0.0))
    ahead_EP = return_EP - mean_other_EP
    outcome_EP: Array = np.where(np.abs(ahead_EP) <= rounding_E1, 0.0, np.sign(ahead_EP))
    return outcome_EP


# --- Intervals


def wilson_interval(rate: float, num_games: float, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a rate; with draws as halves a little wider than need be, never too narrow.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    spread = z * (rate * (1 - rate) / num_games + z**2 / (4 * num_games**2)) ** 0.5
    centre, scale = rate + z**2 / (2 * num_games), 1 + z**2 / num_games
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def games_worth(value_D: Array) -> float:
    """How many games by themselves, won or lost, would tell as much as these deals' means, each 0 to 1.

    A mean of m has the variance m (1 - m) where each deal is one game, won or lost; means of equal deals scatter less.
    A lost deal and a won one are put to them, so that deals that are all equal do not count for infinitely many games.
    """
    value = np.concatenate([value_D, [0.0, 1.0]])
    rate = value.mean()
    return float(len(value_D) * rate * (1 - rate) / value.var())


def deal_interval(value_D: Array) -> tuple[float, float]:
    """95 % interval of the mean of deals, each 0 to 1: Wilson's, of as many games as they are worth."""
    return wilson_interval(float(value_D.mean()), games_worth(value_D))
