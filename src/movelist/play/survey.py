"""What is in recordings: counts, list lengths, who plays how well, and what is wrong. In constant memory."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.returns import Moments
from movelist.data.episode import POLICY, Episodes
from movelist.data.record_format import CONTROLLER_NAMES
from movelist.data.record_rules import NO_VERSION, Columns, Problem
from movelist.data.repeated import Merging
from movelist.play.arena import MANY_TRUNCATED
from movelist.play.deals import outcomes, wilson_interval

Array = NDArray[Any]
PLACES = 3  # named for each kind of problem

_USED_BY = {  # what training does with a further column
    "critic_state": "for training with --critic_sees all, and for networks of one's own that name it.",
    "action_features": "the network looks at them, unless --action_features ignore.",
    "": "for networks of one's own that name it.",
}


@dataclass
class Tally:
    """Sums over the games of one kind of player against one kind of opponent."""

    games: int = 0
    wins: int = 0
    draws: int = 0
    returns: Moments = field(default_factory=Moments)  # of sums of squares, large returns would leave rounding only

    def add(self, own_G: Array, outcome_G: Array) -> None:
        """Add games by own return and outcome (1, 0, -1)."""
        self.games += len(own_G)
        self.wins += int((outcome_G > 0).sum())
        self.draws += int((outcome_G == 0).sum())
        self.returns = self.returns.merged(Moments.of(own_G))

    def summary(self) -> dict[str, Any]:
        """Rates and means with 95 % intervals, as in `arena.Score`."""
        rate, mean = (self.wins + self.draws / 2) / self.games, self.returns.mean
        error = None
        if self.games > 1:
            error = 1.96 * math.sqrt(self.returns.squares / (self.games - 1) / self.games)
        return {
            "games": self.games,
            "win_rate": rate,
            "win_rate_interval": wilson_interval(rate, self.games),
            "draw_rate": self.draws / self.games,
            "mean_return": mean,
            "mean_return_interval": None if error is None else (mean - error, mean + error),
        }


@dataclass
class Survey:
    """Counts of the recordings added so far."""

    files: int = 0
    episodes: int = 0
    steps: int = 0
    truncated: int = 0
    legal_actions: int = 0
    longest_list: int = 0
    lists: Counter[int] = field(default_factory=Counter)  # by the power of two that the length reaches
    forced: int = 0
    with_log_prob: int = 0
    seats: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    scores: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    kinds: Counter[tuple[str, bool]] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    widths: set[str] = field(default_factory=set)
    further: set[str] = field(default_factory=set)  # columns that not all recordings have
    merging: Merging | None = None  # counts what was merged as the recordings were read

    def problem(self, problem: Problem) -> None:
        """Count a problem, and keep the first places of its kind."""
        self.kinds[problem.kind, problem.harmless] += 1
        if len(self.places[problem.kind]) < PLACES:
            self.places[problem.kind].append(str(problem))

    def add(self, columns: Columns) -> None:
        """Count checked episodes."""
        raw, widths = columns.raw, columns.widths
        count_N = np.diff(raw.action_offsets)
        self.episodes += len(columns)
        self.steps += raw.num_steps
        self.truncated += int(raw.truncated_E.sum())
        self.legal_actions += raw.num_actions
        self.longest_list = max(self.longest_list, int(count_N.max(initial=0)))
        for power, number in enumerate(np.bincount(np.ceil(np.log2(count_N)).astype(int)).tolist()):
            self.lists[power] += number
        self.forced += int((count_N == 1).sum())
        self.with_log_prob += int((~np.isnan(raw.log_prob_N)).sum())
        self.widths.add(
            f"{widths.game}, {widths.num_players} players, state {list(widths.state_shape)} {widths.state_dtype}"
        )
        self.further |= {column.label for column in columns.raw.further()}
        self._add_scores(columns)

    def _add_scores(self, columns: Columns) -> None:
        raw = columns.raw
        return_EP = columns.episodes(keep_forced=True).return_EP
        outcome_EP = outcomes(return_EP)
        players_E2P = np.stack([raw.controller_EP.astype(np.int64), columns.version_EP], axis=1)
        seatings, seating_E = np.unique(players_E2P, axis=0, return_inverse=True)
        for number, (controllers, versions) in enumerate(seatings.tolist()):
            mine_E = seating_E.reshape(-1) == number
            names = [_name(*player) for player in zip(controllers, versions, strict=True)]
            for seat, name in enumerate(names):
                self.seats[seat][name] += int(mine_E.sum())
                opponents = " and ".join(sorted({*names[:seat], *names[seat + 1 :]})) or "nobody"
                self.scores[name, opponents].add(return_EP[mine_E, seat], outcome_EP[mine_E, seat])

    @property
    def num_problems(self) -> int:
        """Problems that cost something."""
        return sum(number for (_, harmless), number in self.kinds.items() if not harmless)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain types."""
        return {
            "files": self.files,
            "recorded": sorted(self.widths),
            "episodes": self.episodes,
            "truncated": self.truncated,
            "truncated_share": self.truncated / max(1, self.episodes),
            "steps": self.steps,
            "forced_turns": self.forced,
            "steps_with_log_prob": self.with_log_prob,
            "legal_actions": self.legal_actions,
            "longest_list": self.longest_list,
            "list_lengths": {_range(power): self.lists[power] for power in sorted(self.lists)},
            **({"merged_lists": self.merging.lists, "merged_entries": self.merging.entries} if self.merging else {}),
            "seats": {str(seat): dict(names) for seat, names in sorted(self.seats.items())},
            "scores": [
                {"player": player, "against": against, **tally.summary()}
                for (player, against), tally in sorted(self.scores.items())
            ],
            "columns": sorted(self.further),
            "problems": [
                {"kind": kind, "count": number, "harmless": harmless, "first": self.places[kind]}
                for (kind, harmless), number in self.kinds.most_common()
            ],
        }

    def lines(self) -> list[str]:
        """For people."""
        share = f"{self.forced / max(1, self.steps):.0%}"
        mean = self.legal_actions / max(1, self.steps)
        cut_off = self.truncated / max(1, self.episodes)
        lines = [f"files          {self.files:>12,}   {'; '.join(sorted(self.widths)) or 'nothing usable'}"]
        lines.append(f"episodes       {self.episodes:>12,}   {self.truncated:,} of them truncated ({cut_off:.1%})")
        lines.append(f"steps          {self.steps:>12,}   {self.with_log_prob:,} of them with log_prob")
        lines.append(f"forced turns   {self.forced:>12,}   {share} of the steps")
        lines.append(f"legal actions  {self.legal_actions:>12,}   {mean:.2f} a step, {self.longest_list:,} at most")
        most = max(self.lists.values(), default=1)
        for power in sorted(self.lists):
            bar = "#" * math.ceil(40 * self.lists[power] / most)
            lines.append(f"  list of {_range(power):>11} {self.lists[power]:>12,} {bar}")
        if self.merging:
            lines.append(
                f"merged         {self.merging.lists:>12,}   lists, {self.merging.entries:,} copies of actions"
            )
        for seat, names in sorted(self.seats.items()):
            lines.append(f"seat {seat}: " + ", ".join(f"{name} {number:,}" for name, number in names.most_common()))
        for (player, against), tally in sorted(self.scores.items()):
            lines.append(_score_line(player, against, tally.summary()))
        if cut_off >= MANY_TRUNCATED:
            lines.append(
                f"note: {cut_off:.1%} of the games were cut off: learning takes their end for what it is, but win "
                "rates and returns count them as they stood. Let games be played to their end where you can."
            )
        if len(self.widths) > 1:
            lines.append(f"note: recordings of {len(self.widths)} kinds; training takes those of the first one only.")
        lines += [f"{name}: {_USED_BY.get(name, _USED_BY[''])}" for name in sorted(self.further)]
        for (kind, harmless), number in self.kinds.most_common():
            lines.append(f"{'note' if harmless else 'PROBLEM'}: {kind}, {number:,} times; the first:")
            lines += [f"  {place}" for place in self.places[kind]]
        return [*lines, f"{self.num_problems:,} problems."]


def _score_line(player: str, against: str, score: dict[str, Any]) -> str:
    low, high = score["win_rate_interval"]
    rate = f"win rate {score['win_rate']:.3f} ({low:.3f} to {high:.3f})"
    mean = f"mean return {score['mean_return']:+.2f}"
    if score["mean_return_interval"]:
        mean += " ({:+.2f} to {:+.2f})".format(*score["mean_return_interval"])
    return f"{player} against {against}: {rate}, {mean}, {score['games']:,} games"


def _range(power: int) -> str:
    """The list lengths that power of two stands for: 1, 2, 3-4, 5-8."""
    low, high = (1 << power - 1) + 1 if power else 1, 1 << power
    return str(low) if low == high else f"{low}-{high}"


def _name(controller: int, version: int) -> str:
    """A kind of player: "human", "policy 12"."""
    name = CONTROLLER_NAMES[controller]
    return f"{name} {version}" if controller == POLICY and version != NO_VERSION else name


NEWEST, PREVIOUS = "", "previous_"  # in the tags of the two policies that are followed


@dataclass
class Incoming:
    """How the two newest policies do in all games that came in so far, by opponent; older ones are forgotten.

    Attributes:
        tallies: By policy version, then by the other seats: "itself" (the same version), "policy", "human", "other" or
            "mixed".
    """

    tallies: dict[int, dict[str, Tally]] = field(default_factory=dict)

    def add(self, episodes: Episodes, version_EP: Array) -> None:
        """Count these games.

        Args:
            episodes: As recorded.
            version_EP: int64 [E, P].
        """
        policy_EP = episodes.controller_EP == POLICY
        here = np.unique(version_EP[policy_EP]).tolist()
        newest = sorted({*here, *self.tallies})[-2:]
        self.tallies = {version: self.tallies.get(version, {}) for version in newest}
        outcome_EP = outcomes(episodes.return_EP)
        against = _opponents(np.where(policy_EP, version_EP, NO_VERSION - 1 - episodes.controller_EP.astype(np.int64)))
        for version, tallies in self.tallies.items():
            mine_EP = policy_EP & (version_EP == version)
            for name, against_EP in against.items():
                if (cells_EP := mine_EP & against_EP).any():
                    tallies.setdefault(name, Tally()).add(episodes.return_EP[cells_EP], outcome_EP[cells_EP])

    def state_dict(self) -> list[Any]:
        """The tallies, as [version, opponent, numbers], of types that a checkpoint holds."""
        return [
            [version, name, asdict(tally)]
            for version, tallies in self.tallies.items()
            for name, tally in tallies.items()
        ]

    def load_state_dict(self, state: list[Any]) -> None:
        """Go on from `state_dict`."""
        self.tallies = {}
        for version, name, numbers in state:
            self.tallies.setdefault(version, {})[name] = _tally(numbers)

    def metrics(self) -> dict[str, float]:
        """Version, and games, win rate and mean return by opponent, by their tags, which stay few."""
        metrics = {}
        for prefix, version in zip((NEWEST, PREVIOUS), sorted(self.tallies, reverse=True), strict=False):
            if version != NO_VERSION:
                metrics[f"data/{prefix}policy_version"] = float(version)
            for name, tally in self.tallies[version].items():
                metrics[f"data/{prefix}games_against_{name}"] = float(tally.games)
                metrics[f"data/{prefix}win_rate_against_{name}"] = (tally.wins + tally.draws / 2) / tally.games
                metrics[f"data/{prefix}return_against_{name}"] = tally.returns.mean
        return metrics


def _tally(numbers: dict[str, Any]) -> Tally:
    """A tally as a checkpoint holds it; one of version 0.1 holds the sums of returns and of their squares."""
    counts = {name: numbers[name] for name in ("games", "wins", "draws")}
    if "returns" in numbers:
        return Tally(**counts, returns=Moments(**numbers["returns"]))
    mean = numbers["total"] / numbers["games"]
    squares = max(0.0, numbers["squares"] - numbers["total"] * mean)
    return Tally(**counts, returns=Moments(float(numbers["games"]), mean, squares))


def _opponents(code_EP: Array) -> dict[str, Array]:
    """For each kind of opponent, at which seats [E, P] all other seats are of that kind.

    Args:
        code_EP: A policy's version, or a number below NO_VERSION for each other kind of player.
    """
    num_others = code_EP.shape[1] - 1

    def all_others(there_EP: Array) -> Array:
        return np.asarray(there_EP.sum(axis=1, keepdims=True) - there_EP == num_others)

    same_EP = (code_EP[:, :, None] == code_EP[:, None, :]).sum(axis=2) - 1 == num_others
    found = {"itself": same_EP & (code_EP >= NO_VERSION)}
    found["policy"] = all_others(code_EP >= NO_VERSION) & ~same_EP
    for number, name in CONTROLLER_NAMES.items():
        if number != POLICY:
            found[name] = all_others(code_EP == NO_VERSION - 1 - number)
    found["mixed"] = ~np.logical_or.reduce(list(found.values()))
    return found
