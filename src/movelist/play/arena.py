"""Matches: how strong is a policy against another, with intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.returns import ROUNDING
from movelist.core.settings import PlaySettings
from movelist.games.game import Game, game_name
from movelist.play.policy import Policy, derive_seeds
from movelist.play.selfplay import play_games
from movelist.play.workers import Workers

Array = NDArray[Any]
MATCHES = 2  # the purpose of the seed stream that match games come from: never a game that was trained on


@dataclass(frozen=True, kw_only=True)
class Score:
    """The outcome of some games for one policy.

    Attributes:
        num_games: Games counted.
        wins: Games in which its return was above the mean of the other seats' (in a game alone: above 0).
        draws: Games in which it was equal.
        losses: The others.
        win_rate: Wins plus half the draws, over the games.
        win_rate_interval: 95 %, by Wilson's formula.
        draw_rate: Draws over the games.
        draw_rate_interval: 95 %, by Wilson's formula.
        mean_return: In the game's own units.
        mean_return_interval: 95 %, by the normal approximation.
    """

    num_games: int
    wins: int
    draws: int
    losses: int
    win_rate: float
    win_rate_interval: tuple[float, float]
    draw_rate: float
    draw_rate_interval: tuple[float, float]
    mean_return: float
    mean_return_interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class MatchResult(Score):
    """A match: the score of all games, and of each seat."""

    seats: list[Score]

    def to_json(self) -> dict[str, Any]:
        """As plain types; None stands for an infinite bound, as after a single game: JSON has no infinity."""
        plain = asdict(self)
        for part in (plain, *plain["seats"]):
            bounds = part["mean_return_interval"]
            part["mean_return_interval"] = tuple(bound if np.isfinite(bound) else None for bound in bounds)
        return plain

    def __str__(self) -> str:
        low, high = self.win_rate_interval
        return (
            f"win rate {self.win_rate:.3f} ({low:.3f} to {high:.3f}), draws {self.draw_rate:.1%}, "
            f"mean return {self.mean_return:+.2f}, {self.num_games} games"
        )


def match(
    policy: Policy,
    opponent: Policy,
    game: Game,
    *,
    num_games: int = 1_000,
    seed: int = 0,
    play: PlaySettings | None = None,
    workers: Workers | None = None,
) -> MatchResult:
    """Play a policy against another that moves all the other seats.

    The policy sits on every seat equally often, and every game has its own cards and dice.

    Args:
        policy: Whose strength is asked for.
        opponent: Who moves the other seats.
        game: What to play.
        num_games: Rounded up to a multiple of the seats.
        seed: Of the games' chance and of the policies' draws.
        play: num_games (at once) and max_turns are read.
        workers: Who play the games, with settings of their own; None plays them in this process.

    Returns:
        The score of `policy`.

    Raises:
        MovelistError: The game breaks a promise, as with a return that is no finite number.
    """
    seat_G = np.arange(-(-num_games // game.num_players) * game.num_players) % game.num_players
    seats_GP = np.where(np.arange(game.num_players) == seat_G[:, None], 0, 1)
    seed_G = derive_seeds(seed, MATCHES, 0, len(seat_G))
    episodes = play_games(game, [policy, opponent], seats_GP, seed_G, play or PlaySettings(), workers)
    episodes.check(game_name(game))
    of_each_G = np.arange(len(seat_G)), seat_G
    own_G, outcome_G = episodes.return_EP[of_each_G], outcomes(episodes.return_EP)[of_each_G]
    total = score(own_G, outcome_G)
    seats = [score(own_G[seat_G == seat], outcome_G[seat_G == seat]) for seat in range(game.num_players)]
    return MatchResult(**vars(total), seats=seats)


def outcomes(return_EP: Array) -> Array:
    """1, 0 or -1 for a win, a draw, a loss of each seat [E, P]: its return is above, at or below the others' mean.

    At it is what differs by rounding, seen from the game's largest return, so that games may pay in any unit.
    """
    others = max(1, return_EP.shape[1] - 1)
    mean_other_EP = (return_EP.sum(axis=1, keepdims=True) - return_EP) / others
    gain_EP = return_EP - mean_other_EP
    rounding_E1 = ROUNDING * np.abs(return_EP).max(axis=1, keepdims=True)
    return np.where(np.abs(gain_EP) > rounding_E1, np.sign(gain_EP), 0.0)


def score(own_G: Array, outcome_G: Array) -> Score:
    """Sum up games, given the own return and outcome (1, 0, -1) of each."""
    num_games = len(own_G)
    wins, draws = int((outcome_G > 0).sum()), int((outcome_G == 0).sum())
    win_rate, draw_rate, mean = (wins + draws / 2) / num_games, draws / num_games, float(own_G.mean())
    error = 1.96 * float(own_G.std(ddof=1)) / num_games**0.5 if num_games > 1 else float("inf")
    return Score(
        num_games=num_games,
        wins=wins,
        draws=draws,
        losses=num_games - wins - draws,
        win_rate=win_rate,
        win_rate_interval=wilson_interval(win_rate, num_games),
        draw_rate=draw_rate,
        draw_rate_interval=wilson_interval(draw_rate, num_games),
        mean_return=mean,
        mean_return_interval=(mean - error, mean + error),
    )


def wilson_interval(rate: float, num_games: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a rate; with draws as halves a little wider than need be, never too narrow.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    spread = z * (rate * (1 - rate) / num_games + z**2 / (4 * num_games**2)) ** 0.5
    centre, scale = rate + z**2 / (2 * num_games), 1 + z**2 / num_games
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
