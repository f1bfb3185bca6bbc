"""Do action features help where ids mean nothing? A made game, equal seconds, win rates against random players.

    python benchmarks/features.py [--seconds 15] [--seeds 0 1 2]

Two players buy ten times each from 2 to 12 offers, whose ids are drawn anew each turn. An offer has three features: its
price, its worth, and whether it doubles in the second half of the game. Who gained more wins. By turns, for each seed:
without features, with them beside the ids, and with them alone. Seconds are those of one processor core.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import tyro
from budget import train_for

import movelist

TURNS = 20
WAYS = {
    "ids alone": {"action_features": "ignore"},
    "ids and features": {},
    "features alone": {"action_encoder": "features"},
}


class Offers:
    """The game."""

    name = "offers"
    num_players = 2

    def new_state(self, seed: int) -> OffersState:
        """Start a game."""
        return OffersState(seed)


class OffersState:
    """One game in progress."""

    def __init__(self, seed: int) -> None:
        self.random, self.turn, self.scores = random.Random(seed), 0, [0.0, 0.0]
        self.ids: list[int] = []
        self.offers: list[list[float]] = []
        self._draw()

    def _draw(self) -> None:
        size = self.random.randint(2, 12)
        self.ids = self.random.sample(range(2**62), size)
        self.offers = [
            [self.random.random(), self.random.random(), float(self.random.random() < 0.3)] for _ in self.ids
        ]

    def current_player(self) -> int | None:
        """The seat to move."""
        return self.turn % 2 if self.turn < TURNS else None

    def legal_actions(self) -> Sequence[int]:
        """Ids that mean nothing."""
        return self.ids

    def action_features(self) -> Sequence[Sequence[float]]:
        """Price, worth, and whether the worth doubles later."""
        return self.offers

    def observe(self, player: int) -> Sequence[float]:
        """The turn and the scores."""
        return [self.turn / TURNS, float(self.turn >= TURNS // 2), self.scores[player], self.scores[1 - player]]

    def apply(self, index: int) -> None:
        """Buy an offer."""
        price, worth, doubles = self.offers[index]
        late = self.turn >= TURNS // 2
        self.scores[self.turn % 2] += worth * (2.0 if doubles and late else 1.0) - price
        self.turn += 1
        self._draw()

    def returns(self) -> Sequence[float]:
        """1 for who gained more, once it is over."""
        if self.turn < TURNS:
            return [0.0, 0.0]
        ahead = 1.0 if self.scores[0] > self.scores[1] else -1.0
        return [ahead, -ahead]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train in each way with each seed, by turns."""

    seconds: float = 15.0
    """Of each training."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One training of each way."""

    hidden_dim: int = 128
    """Width of the network."""

    num_games: int = 2_000
    """Games of each match."""


def main() -> None:
    """Train, play, print."""
    options = tyro.cli(Options)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in options.seeds:
        for way, changes in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                given = {"seed": seed, "hidden_dim": options.hidden_dim, "out": folder}
                result = train_for(options.seconds, given | changes, Offers())
                match = movelist.match(result.policy, "random", game=Offers(), num_games=options.num_games)
            rates[way].append(match.win_rate)
            print(f"seed {seed}, {way}: {match}; {result.steps:,} steps", flush=True)
    for way, each in rates.items():
        print(f"{way}: {', '.join(f'{rate:.3f}' for rate in each)}, median {statistics.median(each):.3f}", flush=True)


if __name__ == "__main__":
    main()
