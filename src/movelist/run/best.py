"""Which checkpoint counts as the best: the newest that did not play worse in its quick match than the best one did.

A match of 200 games against random players soon shows nothing but wins, or nothing but draws where nobody competes, and
the first checkpoint that got there is not the strongest. So the win rate decides only where the difference is more than
luck; then the mean return does, likewise; and what is equal goes to the newer one, which has learnt for longer. Where
random players are beaten, and the run's own earlier checkpoints take their place, the rating decides (ladder.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from movelist.play.arena import MatchResult
from movelist.play.deals import wilson_interval

Figure = tuple[float, float, float]  # a value and its 95 % interval
Figures = Mapping[str, Figure]  # by name, in the order in which they decide


def figures(result: MatchResult, num_players: int) -> dict[str, Figure]:
    """What decides: win rate and mean return; in a game alone, which nobody wins, the mean return only."""
    mean = {"mean_return": (result.mean_return, *result.mean_return_interval)}
    return ({"win_rate": (result.win_rate, *result.win_rate_interval)} if num_players > 1 else {}) | mean


def rating_figure(rating: float, error: float) -> dict[str, Figure]:
    """What decides once random players are no measure any more."""
    return {"rating": (rating, rating - 1.96 * error, rating + 1.96 * error)}


def known_win_rate(rate: float, num_games: int) -> dict[str, Figure]:
    """The figures of a run that kept the best win rate only."""
    return {"win_rate": (rate, *wilson_interval(rate, num_games))}


def at_least_as_good(now: Figures, best: Figures) -> bool:
    """Whether the first figure that differs by more than luck is higher now, or none does."""
    for name in (name for name in now if name in best):
        if surpasses(now[name], best[name]):
            return True
        if surpasses(best[name], now[name]):
            return False
    return True


def highest(now: Figures, best: Figures) -> dict[str, Figure]:
    """What the next ones are held against once `now` is the best.

    The highest figures reached, unless an earlier one rose: else a row of small losses, each of them luck by itself,
    would lead down step by step.
    """
    reached = dict(now)
    for name in (name for name in now if name in best):
        if surpasses(now[name], best[name]):
            break
        reached[name] = max(now[name], best[name], key=lambda figure: figure[0])
    return reached


def surpasses(one: Figure, other: Figure) -> bool:
    """Whether one value is above another one by more than luck.

    The difference's lower bound is that of Newcombe's hybrid score interval: from the distances to the lower bound of
    the one and the upper bound of the other.

    Source: Newcombe 1998, "Interval estimation for the difference between independent proportions".
    """
    (value, low, _), (other_value, _, other_high) = one, other
    return bool(value - other_value > ((value - low) ** 2 + (other_high - other_value) ** 2) ** 0.5)
