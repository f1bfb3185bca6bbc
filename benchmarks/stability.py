"""Are small, frequent updates unstable? The same seconds with 5 episodes an update and with the defaults, side by side.

    python benchmarks/stability.py                                          # 20 s, one seed: a first look
    python benchmarks/stability.py --seconds 120 --seeds 0 1 2 --points 12 --num_games 2000 --chart stability.svg

Trains dou dizhu with each setting of SETTINGS and each seed, stopping at equal times to play against random players.
The pauses for matches do not count. A markdown table says how strong each setting got, and how far its updates moved
the policy (approximate KL, every single update): the middle one, the one that 5 % exceed, and the worst. The chart
draws both over time, thin lines for seeds and thick ones for their medians.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

import movelist
from movelist.core.settings import TrainSettings
from movelist.run.train import train

SETTINGS: dict[str, dict[str, Any]] = {
    "--batch_size 128 --update_frequency 5": {"batch_size": 128, "update_frequency": 5},
    "defaults": {},
}
COLOURS = ("#c2410c", "#1f5fa8")
LEFT, TOP, WIDTH, HEIGHT, GAP, BOTTOM = 60, 84, 420, 260, 90, 60


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train with each setting and seed for the same seconds, and draw strength and KL over time."""

    game: str = "dou_dizhu"
    """An OpenSpiel game."""

    seconds: float = 20.0
    """Of training, for each setting and seed."""

    seeds: tuple[int, ...] = (0,)
    """One training each."""

    points: int = 4
    """Times to play against random players, spread evenly over the seconds."""

    num_games: int = 400
    """Games of each match."""

    hidden_dim: int = 512
    """Width of the network."""

    num_threads: int | None = None
    """CPU threads."""

    chart: Path | None = None
    """Draw the result there, as an SVG picture."""

    json: bool = False
    """All numbers as one JSON object in place of the table."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        setting: Its name in SETTINGS.
        seed: Its seed.
        steps: Steps trained on.
        episodes: Games played.
        win_rates: Seconds of training and win rate against random players, at each point.
        kls: Seconds of training and approximate KL, of each update.
    """

    setting: str
    seed: int
    steps: int
    episodes: int
    win_rates: list[tuple[float, float]]
    kls: list[tuple[float, float]]


def measure(options: Options, setting: str, seed: int, folder: Path) -> Run:
    """Train to each point in turn, resuming from the one before, and play a match there."""
    flat = {
        **SETTINGS[setting],
        "game": options.game,
        "seed": seed,
        "hidden_dim": options.hidden_dim,
        "num_threads": options.num_threads,
        "total_steps": None,
        "eval_games": 0,
        "save_every": 1_000_000,  # the last update is saved in any case
        "tensorboard": False,
    }
    win_rates, steps = [], 0
    for point in range(1, options.points + 1):
        goal = {"max_seconds": options.seconds * point / options.points}
        place = {"out": str(folder)} if point == 1 else {"resume": str(folder)}
        result = train(TrainSettings.from_flat({**flat, **goal, **place}), console=Console(quiet=True))
        match = movelist.match(result.policy, "random", game=options.game, num_games=options.num_games, seed=point)
        win_rates.append((result.seconds, match.win_rate))
        steps = result.steps
    kls, episodes = read_metrics(folder / "metrics.jsonl")
    return Run(setting, seed, steps, episodes, win_rates, kls)


def read_metrics(path: Path) -> tuple[list[tuple[float, float]], int]:
    """Seconds and KL of each update, and the games played. Seconds are added up from each update's steps and speed."""
    kls, seconds, step, episodes = [], 0.0, 0, 0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        seconds += (row["step"] - step) / row["charts/SPS"]
        step, episodes = row["step"], int(row["charts/episodes"])
        kls.append((seconds, row["losses/approx_kl"]))
    return kls, episodes


def table(runs: Sequence[Run]) -> list[str]:
    """One row for each setting."""
    lines = [
        "| setting | win rate at the end, each seed | games | steps | updates | KL: middle | 95 % below | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting in dict.fromkeys(run.setting for run in runs):
        mine = [run for run in runs if run.setting == setting]
        kls = sorted(kl for run in mine for _, kl in run.kls)
        rates = ", ".join(f"{run.win_rates[-1][1]:.3f}" for run in mine)
        counts = (sum(run.episodes for run in mine), sum(run.steps for run in mine), len(kls))
        spread = (statistics.median(kls), kls[min(len(kls) - 1, int(0.95 * len(kls)))], kls[-1])
        numbers = [*(f"{count:,}" for count in counts), *(f"{kl:.2g}" for kl in spread)]
        lines.append(f"| {setting} | {rates} | {' | '.join(numbers)} |")
    return lines


# --- The chart


def svg(title: str, runs: Sequence[Run]) -> str:
    """Win rate and KL over seconds, one beside the other."""
    width, height = LEFT + 2 * WIDTH + GAP + 30, TOP + HEIGHT + BOTTOM
    settings = list(dict.fromkeys(run.setting for run in runs))
    rates = {name: [run.win_rates for run in runs if run.setting == name] for name in settings}
    kls = {name: [slices(run) for run in runs if run.setting == name] for name in settings}
    legend = []
    for number, name in enumerate(settings):
        x = LEFT + 330 * number
        legend.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{COLOURS[number]}"/>')
        legend.append(text(x + 18, 51, name))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222222">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            text(LEFT, 26, title, size=16),
            *legend,
            *panel("win rate against random players", LEFT, rates, low=0.0, high=1.0),
            *panel("KL of an update, mean of each stretch", LEFT + WIDTH + GAP, kls, low=0.0, high=highest(kls)),
            "</svg>",
            "",
        ]
    )


def slices(run: Run) -> list[tuple[float, float]]:
    """The mean KL between a point and the one before, at that point."""
    means, start = [], 0.0
    for end, _ in run.win_rates:
        between = [kl for seconds, kl in run.kls if start < seconds <= end + 1e-6]
        if between:
            means.append((end, statistics.fmean(between)))
        start = end + 1e-6
    return means


def highest(lines: dict[str, list[list[tuple[float, float]]]]) -> float:
    """The largest value of all lines, or 1e-6 where all are 0."""
    return max([value for each in lines.values() for line in each for _, value in line] + [1e-6])


def panel(
    title: str, left: float, lines: dict[str, list[list[tuple[float, float]]]], *, low: float, high: float
) -> list[str]:
    """One chart: thin lines, and their median where all have a value."""
    end = max(seconds for each in lines.values() for line in each for seconds, _ in line)

    def place(seconds: float, value: float) -> str:
        return f"{left + WIDTH * seconds / end:.1f},{TOP + HEIGHT * (1 - (value - low) / (high - low)):.1f}"

    parts = [text(left, TOP - 10, title, weight="bold")]
    for number in range(5):
        value = low + (high - low) * number / 4
        y = TOP + HEIGHT * (1 - number / 4)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + WIDTH}" y2="{y}" stroke="#dddddd"/>')
        parts.append(text(left - 8, y + 4, f"{value:.3g}", anchor="end"))
        parts.append(text(left + WIDTH * number / 4, TOP + HEIGHT + 18, f"{end * number / 4:.3g} s", anchor="middle"))
    for colour, each in zip(COLOURS, lines.values(), strict=False):
        shortest = min(map(len, each))
        columns = [[line[number] for line in each] for number in range(shortest)]
        middle = [
            (statistics.fmean(s for s, _ in column), statistics.median(v for _, v in column)) for column in columns
        ]
        for line, thickness, opacity in [*((line, 1, 0.45) for line in each), (middle, 3, 1.0)]:
            points = " ".join(place(seconds, value) for seconds, value in line)
            look = f'stroke="{colour}" stroke-width="{thickness}" opacity="{opacity}"'
            parts.append(f'<polyline points="{points}" fill="none" {look}/>')
    return parts


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    """A line of text."""
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>'


def main() -> None:
    """Train, play, print, draw."""
    options = tyro.cli(Options)
    runs = []
    for seed in options.seeds:  # settings in turns, so that a machine that slows down slows both
        for setting in SETTINGS:
            with tempfile.TemporaryDirectory() as folder:
                run = measure(options, setting, seed, Path(folder) / "run")
            runs.append(run)
            if not options.json:
                rates = ", ".join(f"{seconds:.3g} s {rate:.3f}" for seconds, rate in run.win_rates)
                print(f"{setting}, seed {seed}: {rates}", flush=True)
    title = f"{options.game}, {options.seconds:g} s of training each, movelist {movelist.__version__}"
    if options.chart:
        options.chart.write_text(svg(title, runs), encoding="utf-8")
    if options.json:
        print(json.dumps({"options": title, "runs": [asdict(run) for run in runs]}, allow_nan=False))
    else:
        print("\n".join(["", title, "", *table(runs)]))


if __name__ == "__main__":
    main()
