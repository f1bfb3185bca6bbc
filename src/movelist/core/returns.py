"""Advantages and returns for players who take turns, as array operations over a whole rollout.

Each player's steps in an episode form one trajectory; a step's next value is that player's own next step, however many
turns of others, of chance, or forced ones lie between. numpy in, numpy out; computed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from movelist.core.errors import DataError

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

OUTLIER = 100.0  # so many times as far from the median as 95 % of the returns: no part of what is usual
ROUNDING = 1e-12  # of a number: what lies within is the rounding of float64 sums


def gae(
    reward_T: ArrayLike,
    value_T: ArrayLike,
    player_T: ArrayLike,
    *,
    gamma: float,
    gae_lambda: float,
    final_value: Mapping[int, float] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Generalised advantage estimation for one episode of interleaved players.

    `delta_t = r_t + gamma * V_next - V_t` and `A_t = delta_t + gamma * lambda * A_next`, where "next" is the next step
    of the same player; after the last one, V_next is 0, or that player's `final_value`, and A_next is 0.

    Args:
        reward_T: [T], all that the mover of step t receives from t to their own next step or the end.
        value_T: [T], the mover's own expected return at step t.
        player_T: int [T], the mover.
        gamma: Discount for each own decision, 0 to 1.
        gae_lambda: Trade of variance (1) against bias (0).
        final_value: For a truncated episode, each player's value of the final state. None: the episode ended.

    Returns:
        advantage_T, return_T: float64 [T] each; `return_T = advantage_T + value_T`.

    Raises:
        DataError: Lengths disagree, or a player of a truncated episode has no final value.

    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.

    Example: A, B, A move; A wins 1, B loses 1:
        >>> gae([0, -1, 1], [.2, -.1, .3], [0, 1, 0], gamma=1.0, gae_lambda=1.0)[0].round(6).tolist()
        [0.8, -0.9, 0.7]
    """
    reward, value, player = np.asarray(reward_T, np.float64), np.asarray(value_T, np.float64), np.asarray(player_T)
    player = player.astype(np.int64) if not player.size else player  # an empty list has no dtype of its own
    offsets = np.array([0, reward.size])
    bootstrap = None
    if final_value is not None:
        missing = sorted(set(player.tolist()) - set(final_value))
        if missing:
            raise DataError("a truncated episode lacks a final value", where=f"player {missing[0]}")
        bootstrap = np.zeros((1, int(player.max(initial=-1)) + 1))
        for seat in set(player.tolist()):
            bootstrap[0, seat] = final_value[seat]
    return rollout_gae(reward, value, player, offsets, gamma=gamma, gae_lambda=gae_lambda, final_value_EP=bootstrap)


def rollout_gae(
    reward_N: Floats,
    value_N: Floats,
    player_N: Ints,
    episode_offsets: Ints,
    *,
    gamma: float,
    gae_lambda: float,
    final_value_EP: Floats | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`gae` for all episodes of a rollout at once.

    Args:
        reward_N: [N], N steps of E episodes one after another.
        value_N: [N].
        player_N: int [N].
        episode_offsets: int [E+1], starts at 0 and ends at N.
        gamma: As in `gae`.
        gae_lambda: As in `gae`.
        final_value_EP: [E, P], 0 where the episode ended; None where all did.

    Returns:
        advantage_N, return_N: float64 [N] each.

    Raises:
        DataError: Lengths disagree.
    """
    _check(reward_N, value_N, player_N, episode_offsets)
    episode_N = np.repeat(np.arange(len(episode_offsets) - 1), np.diff(episode_offsets))
    # Sorted stably by episode and player, each trajectory lies in one piece and in the order of play.
    order = np.lexsort((player_N, episode_N))
    episode, player = episode_N[order], player_N[order]
    continues = np.zeros(len(order), bool)
    continues[:-1] = (episode[1:] == episode[:-1]) & (player[1:] == player[:-1])

    value = np.asarray(value_N, np.float64)[order]
    value_next = np.zeros_like(value)
    value_next[:-1] = np.where(continues[:-1], value[1:], 0.0)
    if final_value_EP is not None:
        last = ~continues
        value_next[last] = final_value_EP[episode[last], player[last]]

    delta = np.asarray(reward_N, np.float64)[order] + gamma * value_next - value
    advantage_N = np.empty_like(value)
    advantage_N[order] = _reverse_scan(delta, gamma * gae_lambda * continues)
    return advantage_N, advantage_N + value_N


def _reverse_scan(term: NDArray[np.float64], decay: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve `x[t] = term[t] + decay[t] * x[t + 1]` for all t in log2(T) array operations.

    After k rounds x[t] holds its first 2^k terms, and decay[t] the product of its first 2^k factors; a decay of 0 at a
    trajectory's end keeps its neighbour out. Source: Hillis and Steele 1986, "Data Parallel Algorithms".
    """
    x, factor, reach = term.copy(), decay.copy(), 1
    while reach < len(x) and factor.any():
        x[:-reach] += factor[:-reach] * x[reach:]
        factor[:-reach] *= factor[reach:]
        factor[-reach:] = 0.0
        reach *= 2
    return x


def _check(reward_N: Floats, value_N: Floats, player_N: Ints, episode_offsets: Ints) -> None:
    sizes = {"rewards": len(reward_N), "values": len(value_N), "players": len(player_N)}
    if len(set(sizes.values())) > 1:
        raise DataError("the columns of an episode differ in length", got=sizes)
    if len(episode_offsets) == 0 or episode_offsets[0] != 0 or episode_offsets[-1] != len(reward_N):
        raise DataError("episode offsets do not cover the steps", expected=f"from 0 to {len(reward_N)}")


@dataclass(frozen=True)
class Moments:
    """How many numbers, their mean, and the sum of their squared distances from it; those of parts can be merged.

    Example:
        >>> Moments.of(np.array([1.0, 3.0])).merged(Moments.of(np.array([5.0])))
        Moments(count=3.0, mean=3.0, squares=8.0)
    """

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, value_N: Floats) -> Moments:
        """Those of some numbers."""
        if not len(value_N):
            return cls()
        mean = float(np.mean(value_N))
        return cls(float(len(value_N)), mean, float(np.square(value_N - mean).sum()))

    def merged(self, other: Moments) -> Moments:
        """Those of both together.

        Source: Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
        """
        total = self.count + other.count
        if not other.count:
            return self
        shift = other.mean - self.mean
        squares = self.squares + (other.squares + shift * shift * self.count * other.count / total)
        return Moments(total, self.mean + shift * other.count / total, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 of no numbers."""
        return float((self.squares / self.count) ** 0.5) if self.count else 0.0


class RunningScale:
    """The standard deviation of all returns so far, by which returns are divided; in the game's own units.

    Attributes:
        count, mean, squares: As in `Moments`.
        centre: A large offset of the returns that the critic's bias holds; 0 where there is none.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares, self.centre = 0.0, 0.0, 0.0, 0.0

    def after(self, returns: Moments) -> RunningScale:
        """The scale with more returns taken in; this one stays as it is."""
        later = RunningScale()
        vars(later).update(vars(self._moments.merged(returns)), centre=self.centre)
        return later

    @property
    def _moments(self) -> Moments:
        return Moments(self.count, self.mean, self.squares)

    @property
    def scale(self) -> float:
        """The deviation; 1 while there is none but rounding, so that constant returns stay as they are."""
        deviation = self._moments.deviation
        return deviation if deviation > ROUNDING * abs(self.mean) else 1.0


def without_outliers(return_N: Floats) -> Floats:
    """The returns with those pulled in that lie absurdly far out, so that a few cannot own a statistic for good.

    The limit is relative: OUTLIER times the distance from the median within which 95 % of those lie that are not at the
    median itself. Where more than one in twenty are far out, that is how the game pays, and they stay.

    Args:
        return_N: [N], any number of them.

    Returns:
        [N]; `return_N` itself where nothing lies beyond the limit.

    Source: winsorising, with a limit that no return of the games measured comes near.

    Example: most games pay 1 or -1, one pays a million; the median is 0.5, and 95 % lie within 1.5 of it:
        >>> float(without_outliers(np.array([-1.0, 1.0] * 19 + [0.0, 1e6])).max())
        150.5
    """
    if not len(return_N):
        return return_N
    middle = float(np.median(return_N))
    distance_N = np.abs(return_N - middle)
    # Where nearly all games are drawn, what counts are the others; sums that differ by rounding are draws, too.
    off_N = distance_N[distance_N > ROUNDING * np.quantile(distance_N, 0.99)]
    limit = OUTLIER * float(np.quantile(off_N, 0.95)) if len(off_N) else np.inf
    if distance_N.max() <= limit:
        return return_N
    return np.clip(return_N, middle - limit, middle + limit)


def normalized(advantage_N: Floats, whole: Moments) -> Floats:
    """Mean 0 and deviation 1 over the whole rollout; all zeros where all are equal.

    Args:
        advantage_N: [N], the rollout's, or this process's part of them.
        whole: Of all of the rollout's.
    """
    centred: Floats = advantage_N - whole.mean
    if whole.deviation <= ROUNDING * abs(whole.mean):  # nothing but the rounding of the mean
        return np.zeros_like(centred)
    centred /= whole.deviation + 1e-8
    return centred


def explained_variance(error: Moments, target: Moments) -> float:
    """`1 - Var(return - value) / Var(return)`: 1 predicts all, 0 nothing; 0 by definition where returns do not vary.

    Args:
        error: Of the returns less the values.
        target: Of the returns.
    """
    variance = target.deviation**2
    return 1.0 - error.deviation**2 / variance if variance > 1e-12 else 0.0
