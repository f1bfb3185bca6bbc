"""Matches: how strong is a policy against another, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.patience import say_on_standard_error
from movelist.core.settings import PlaySettings
from movelist.games.bot import Bot
from movelist.games.game import Game, game_name
from movelist.play.policy import Policy, derive_seeds
from movelist.play.selfplay import play_games
from movelist.play.workers import Workers

Array = NDArray[Any]
MANY_TRUNCATED = 0.01  # the share of cut-off games from which on figures of strength need a warning
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
        truncated: Games that were cut off at max_turns; they count with the returns that stood then.
        truncated_share: Truncated over the games.
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
    truncated: int = 0
    truncated_share: float = 0.0


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
        text = (
            f"win rate {self.win_rate:.3f} ({low:.3f} to {high:.3f}), draws {self.draw_rate:.1%}, "
            f"mean return {self.mean_return:+.2f}, {self.num_games} games"
        )
        if self.truncated:
            text += f", {self.truncated} of them ({self.truncated_share:.1%}) cut off at max_turns"
        return text


def match(
    policy: Policy | Bot,
    opponent: Policy | Bot,
    game: Game,
    *,
    num_games: int = 1_000,
    seed: int = 0,
    play: PlaySettings | None = None,
    workers: Workers | None = None,
    say: Callable[[str], None] = say_on_standard_error,
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
        say: Told which game does not answer, in this process; workers have their own.

    Returns:
        The score of `policy`.

    Raises:
        MovelistError: The game breaks a promise, as with a return that is no finite number.
    """
    seat_G = np.arange(-(-num_games // game.num_players) * game.num_players) % game.num_players
    seats_GP = np.where(np.arange(game.num_players) == seat_G[:, None], 0, 1)
    seed_G = derive_seeds(seed, MATCHES, 0, len(seat_G))
    episodes = play_games(game, [policy, opponent], seats_GP, seed_G, play or PlaySettings(), workers, say)
    episodes.check(game_name(game))
    of_each_G = np.arange(len(seat_G)), seat_G
    columns = (episodes.return_EP[of_each_G], outcomes(episodes.return_EP)[of_each_G], episodes.truncated_E)
    seats = [score(*(column_G[seat_G == seat] for column_G in columns)) for seat in range(game.num_players)]
    return MatchResult(**vars(score(*columns)), seats=seats)


def outcomes(return_EP: Array) -> Array:
    """1, 0 or -1 for a win, a draw, a loss of each seat [E, P]: its return is above, at or below the others' mean.

    A rounding error is no victory, in whatever units: what is equal to 12 digits of the game's largest return, or is 14
    digits below the largest of all these games, as what is left of sums that cancel, is a draw.
    """
    others = max(1, return_EP.shape[1] - 1)
    mean_other_EP = (return_EP.sum(axis=1, keepdims=True) - return_EP) / others
    size_EP = np.abs(return_EP)
    rounding_E1 = np.maximum(1e-12 * size_EP.max(axis=1, keepdims=True), 1e-14 * size_EP.max(initial=0.0))
    ahead_EP = return_EP - mean_other_EP
    outcome_EP: Array = np.where(np.abs(ahead_EP) <= rounding_E1, 0.0, np.sign(ahead_EP))
    return outcome_EP


def score(own_G: Array, outcome_G: Array, truncated_G: Array) -> Score:
    """Sum up games, given the own return and outcome (1, 0, -1) of each, and whether it was cut off."""
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
        truncated=int(truncated_G.sum()),
        truncated_share=float(truncated_G.mean()),
    )


def wilson_interval(rate: float, num_games: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a rate; with draws as halves a little wider than need be, never too narrow.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    spread = z * (rate * (1 - rate) / num_games + z**2 / (4 * num_games**2)) ** 0.5
    centre, scale = rate + z**2 / (2 * num_games), 1 + z**2 / num_games
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
