"""Matches: how strong is a policy against another, on equal deals, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.patience import say_on_standard_error
from movelist.core.settings import PlaySettings
from movelist.games.bot import Bot
from movelist.games.game import Game
from movelist.games.openings import Openings, opening_length
from movelist.play.deals import Alone, Deals, Pairing, games_worth, play_deals, seatings, wilson_interval
from movelist.play.policy import Policy
from movelist.play.workers import Workers

Array = NDArray[Any]
MANY_TRUNCATED = 0.01  # the share of cut-off games from which on figures of strength need a warning


@dataclass(frozen=True, kw_only=True)
class Score:
    """The outcome of some games for one policy.

    Attributes:
        num_games: Games counted.
        wins: Games in which its return was above the mean of its opponents'; where the opponent had a seat alone,
            games that that one did not win; in a game alone, deals in which it got more than the other player.
        draws: Games in which it was equal.
        losses: The others, and games that it forfeited.
        win_rate: Wins plus half the draws, over the games.
        win_rate_interval: 95 %, by Wilson's formula, of as many games as the deals' means are worth.
        equal_rate: What an equal player gets in such games.
        draw_rate: Draws over the games.
        draw_rate_interval: 95 %, likewise.
        mean_return: In the game's own units, of the games in which it had a seat, or a team, alone.
        mean_return_interval: 95 %, by the normal approximation over the deals' means.
        truncated: Games that were cut off at max_turns; they count with the returns that stood then.
        truncated_share: Truncated over the games.
    """

    num_games: int
    wins: int
    draws: int
    losses: int
    win_rate: float
    win_rate_interval: tuple[float, float]
    equal_rate: float = 0.5
    draw_rate: float
    draw_rate_interval: tuple[float, float]
    mean_return: float
    mean_return_interval: tuple[float, float]
    truncated: int = 0
    truncated_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MatchResult(Score):
    """A match: the score of all games, and of each seat.

    Attributes:
        seats: The policy alone on each seat, or as each fixed team.
        alone: The policy alone against all others, on all seats; None in games for one or two, or for two teams.
        roles: The policy alone in each role, as "landlord", where the game tells roles.
        deals: What the intervals count: deals whose games went differently.
        worth: How many games by themselves, won or lost, would tell as much.
        repeated: Deals left out because their games went as in one before.
        openings: Decisions by lot at the start of each deal.
        forfeits: Games that the policy lost because it failed.
        forfeits_against: Games that its opponent lost so.
        teams: Whether `seats` are fixed teams.
    """

    seats: list[Score]
    alone: Score | None = None
    roles: dict[str, Score] = field(default_factory=dict)
    deals: int = 0
    worth: float = 0.0
    repeated: int = 0
    openings: int = 0
    forfeits: int = 0
    forfeits_against: int = 0
    teams: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain types; None stands for an infinite bound, as after a single game: JSON has no infinity."""
        plain = asdict(self)
        for part in (plain, *plain["seats"], *plain["roles"].values(), *filter(None, [plain["alone"]])):
            bounds = part["mean_return_interval"]
            part["mean_return_interval"] = tuple(bound if np.isfinite(bound) else None for bound in bounds)
        return plain

    def __str__(self) -> str:
        low, high = self.win_rate_interval
        text = (
            f"win rate {self.win_rate:.3f} ({low:.3f} to {high:.3f}), draws {self.draw_rate:.1%}, "
            f"mean return {self.mean_return:+.2f}, {self.num_games} games of {self.deals} deals"
        )
        if self.openings:
            text += f" behind {self.openings} decisions by lot"
        if self.repeated:
            text += f", {self.repeated} more deals went as one of these"
        if self.truncated:
            text += f", {self.truncated} games ({self.truncated_share:.1%}) cut off at max_turns"
        for number, who in ((self.forfeits, "it"), (self.forfeits_against, "the opponent")):
            text += f", {number} forfeited by {who}" if number else ""
        return text

    def lines(self) -> list[str]:
        """The parts of the score, for people."""
        parts = {"alone against the others": self.alone} if self.alone else {}
        parts |= {f"as {name}": score for name, score in self.roles.items()}
        kind = "team" if self.teams else "seat"
        parts |= {f"{kind} {number}": score for number, score in enumerate(self.seats)}
        return [f"{name}: {_part(score)}" for name, score in parts.items()]


def _part(score: Score) -> str:
    low, high = score.win_rate_interval
    equal = f", an equal player gets {score.equal_rate:.3f}" if score.num_games else ""
    return f"win rate {score.win_rate:.3f} ({low:.3f} to {high:.3f}){equal}, mean return {score.mean_return:+.2f}"


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
    openings: int | None = None,
    forfeit: bool = False,
) -> MatchResult:
    """Play a policy against another on equal deals; see play/deals.py.

    Args:
        policy: Whose strength is asked for.
        opponent: Against whom.
        game: What to play.
        num_games: Rounded up to whole deals.
        seed: Of the games' chance and of the policies' draws.
        play: num_games (at once), max_turns and, without `workers`, rollout_workers are read.
        workers: Who play the games, with settings of their own; None plays them in this process.
        say: Told which game does not answer, in this process, and who forfeited; workers have their own.
        openings: Decisions by lot at the start of each deal. None takes a few where neither player draws lots and the
            game has no chance, so that games differ.
        forfeit: A player that fails loses that game; else it is an error.

    Returns:
        The score of `policy`.

    Raises:
        MovelistError: The game breaks a promise, as with a return that is no finite number, or a player fails.
    """
    settings = replace(play or PlaySettings(), critic_sees="state")  # nobody learns from these games
    plan = seatings(game)
    fixed = not any(map(draws_lots, (policy, opponent)))
    by_itself = opening_length(game) if fixed else 0  # above 0 for a game without chance
    openings = by_itself if openings is None else openings
    opened: Game = Openings(game, openings) if openings else game
    own = None
    if settings.rollout_workers and (workers is None or openings):  # such as are there play without openings
        workers = own = Workers(opened, settings, say=say)
    num_deals = -(-num_games // (plan.num_games if len(plan.units) > 1 else 1))
    try:
        (deals,) = play_deals(
            [policy, opponent], [Pairing(0, 1, 0, num_deals)], opened, seed=seed, play=settings,
            workers=None if openings and own is None else workers, say=say, forfeit=forfeit, digest=by_itself > 0,
        )  # fmt: skip
    finally:
        if own:
            own.close()
    return result_of(deals, openings=openings, side_names=getattr(game, "side_names", ()), teams=plan.units)


def draws_lots(player: Policy | Bot) -> bool:
    """Whether a player may choose differently in the same place: one that has an attribute `greedy`, and not True."""
    return not getattr(player, "greedy", True)


def result_of(
    all_deals: Deals, *, openings: int = 0, side_names: Sequence[str] = (), teams: Sequence[Sequence[int]] = ()
) -> MatchResult:
    """Sum up deals as the score of X."""
    deals = all_deals.different()
    x, y = deals.x, deals.y
    everything = np.ones(x.outcome_DU.shape, bool)
    several = x.outcome_DU.shape[1] > 2
    roles = sorted({*x.role_DU.ravel().tolist(), *y.role_DU.ravel().tolist()} - {-1}) if x.role_DU.max() > 0 else []
    total = _total(deals) if several else _score(x, y, everything)
    return MatchResult(
        **vars(total) | {"equal_rate": 0.5},
        seats=[_score(x, y, np.arange(x.outcome_DU.shape[1]) == unit) for unit in range(x.outcome_DU.shape[1])],
        alone=_score(x, y, everything) if several else None,
        roles={
            side_names[role] if role < len(side_names) else f"side {role}": _score(x, y, role)
            for role in roles
            if (x.role_DU == role).any()
        },
        deals=len(x.outcome_DU),
        worth=games_worth(deals.score_D),
        repeated=len(all_deals.x.outcome_DU) - len(x.outcome_DU),
        openings=openings,
        forfeits=int(deals.forfeits_D2[:, 0].sum()),
        forfeits_against=int(deals.forfeits_D2[:, 1].sum()),
        teams=any(len(team) > 1 for team in teams),
    )


def _score(x: Alone, y: Alone, where: Array | int) -> Score:
    """The score of X in its games alone on some units, a mask [U] or [D, U], or in one role; an equal player's is the
    mean of X's and Y's there."""
    if isinstance(where, int):
        mask_DU, other_DU = x.role_DU == where, y.role_DU == where
    else:
        mask_DU = other_DU = np.broadcast_to(where, x.outcome_DU.shape)
    rate_y = y.win_DU[other_DU].mean() if other_DU.any() else 1 - x.win_DU[mask_DU].mean()
    return _summed(
        x.outcome_DU, mask_DU, x.return_DU, mask_DU, x.truncated_DU, float(x.win_DU[mask_DU].mean() + rate_y) / 2
    )


def _total(deals: Deals) -> Score:
    """The score of X in all games where there are more than two seats: what Y wins alone, X loses."""
    x, y = deals.x, deals.y
    outcome_DK = np.concatenate([x.outcome_DU, -y.outcome_DU], axis=1)
    return_DK = np.concatenate([x.return_DU, y.return_DU], axis=1)
    truncated_DK = np.concatenate([x.truncated_DU, y.truncated_DU], axis=1)
    every_DK = np.ones(outcome_DK.shape, bool)
    own_DK = every_DK & (np.arange(outcome_DK.shape[1]) < x.outcome_DU.shape[1])
    return _summed(outcome_DK, every_DK, return_DK, own_DK, truncated_DK, 0.5)


def _summed(
    outcome_DK: Array, mask_DK: Array, return_DK: Array, own_DK: Array, truncated_DK: Array, equal: float
) -> Score:
    outcomes, num_games = outcome_DK[mask_DK], int(mask_DK.sum())
    wins, draws = int((outcomes > 0).sum()), int((outcomes == 0).sum())
    win_rate, draw_rate = (wins + draws / 2) / num_games, draws / num_games
    worth = [games_worth(_means(value_DK, mask_DK)) for value_DK in ((outcome_DK + 1) / 2, outcome_DK == 0)]
    mean_D = _means(return_DK, own_DK)
    mean = float(return_DK[own_DK].mean())
    error = 1.96 * float(mean_D.std(ddof=1)) / len(mean_D) ** 0.5 if len(mean_D) > 1 else float("inf")
    return Score(
        num_games=num_games,
        wins=wins,
        draws=draws,
        losses=num_games - wins - draws,
        win_rate=win_rate,
        win_rate_interval=wilson_interval(win_rate, worth[0]),
        equal_rate=equal,
        draw_rate=draw_rate,
        draw_rate_interval=wilson_interval(draw_rate, worth[1]),
        mean_return=mean,
        mean_return_interval=(mean - error, mean + error),
        truncated=int(truncated_DK[mask_DK].sum()),
        truncated_share=float(truncated_DK[mask_DK].mean()),
    )


def _means(value_DK: Array, mask_DK: Array) -> Array:
    """The mean of each deal's games that count, for deals that have some."""
    count_D = mask_DK.sum(1)
    sum_D = (value_DK * mask_DK).sum(1)
    mean_D: Array = sum_D[count_D > 0] / count_D[count_D > 0]
    return mean_D
