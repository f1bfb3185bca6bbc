"""What does a critic that sees all hands change? Explained variance and strength after equal seconds, by turns.

    python benchmarks/critic.py [--game dou_dizhu] [--seconds 60] [--seeds 0 1 2]

Seconds are those of one processor core, so that what else runs on the machine changes little. For each seed a training
with --critic_sees state and one with all. Explained variance is the mean of the last ten updates, of the values behind
the advantages; that of the value of the state alone stands beside. Strength is the win rate against random players, and
of the two policies against each other, all greedy.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from budget import train_for

import movelist
from movelist.play.policy import NetPolicy

LAST = 10  # updates


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train in both ways with each seed, by turns."""

    game: str = "dou_dizhu"
    """What is played."""

    seconds: float = 60.0
    """Of each training."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One training of each way."""

    hidden_dim: int = 128
    """Width of the network and of the critic."""

    num_games: int = 1_500
    """Games of each match."""


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    policy: NetPolicy
    explained: float
    state_explained: float


def main() -> None:
    """Train, play, print."""
    options = tyro.cli(Options)
    print(
        f"{options.game}, {options.seconds:g} s each, hidden_dim {options.hidden_dim}, explained variance", flush=True
    )
    gains, rates = [], []
    for seed in options.seeds:
        plain, seeing = (trained(options, seed, sees) for sees in ("state", "all"))
        between = movelist.match(seeing.policy, plain.policy, game=options.game, num_games=options.num_games)
        gains.append(seeing.explained - plain.explained)
        rates.append(between.win_rate)
        print(f"seed {seed}: seeing all against the state alone: {between}", flush=True)
    print(f"explained variance higher by {', '.join(f'{gain:+.3f}' for gain in gains)}", flush=True)
    print(f"median win rate of seeing all against the other: {statistics.median(rates):.3f}", flush=True)


def trained(options: Options, seed: int, sees: str) -> Trained:
    """One training; what it logged at its end, and its policy."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"game": options.game, "seed": seed, "critic_sees": sees, "hidden_dim": options.hidden_dim}
        result = train_for(options.seconds, given | {"out": folder})
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    numbers = [entry for entry in map(json.loads, lines) if "losses/explained_variance" in entry][-LAST:]
    explained = statistics.mean(entry["losses/explained_variance"] for entry in numbers)
    of_state = [entry.get("losses/state_explained_variance", entry["losses/explained_variance"]) for entry in numbers]
    match = movelist.match(result.policy, "random", game=options.game, num_games=options.num_games)
    made = Trained(result.policy, explained, statistics.mean(of_state))
    print(
        f"seed {seed}, {sees}: behind the advantages {made.explained:.3f}, of the state alone "
        f"{made.state_explained:.3f}; against random {match}; {result.steps:,} steps",
        flush=True,
    )
    return made


if __name__ == "__main__":
    main()
