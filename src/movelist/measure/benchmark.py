"""`movelist benchmark`: the ladder on this machine, as tables, as JSON and as a chart."""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from movelist.core.benchmark_settings import BenchmarkSettings
from movelist.core.errors import DataError, GameError, MissingExtraError, SettingsError
from movelist.core.settings import PlaySettings
from movelist.data import recordings
from movelist.data.episode import Episodes, concatenate
from movelist.games.catalog import make_game, make_known
from movelist.games.game import Game, action_encoder, game_name
from movelist.learn.device import choose_device, set_up
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.measure.chart import Panel, svg
from movelist.measure.ladder import CHECKED_STEPS, TOLERANCE, Result, Row, climb
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay

BEST = "movelist's update"
# A fresh network's scores are nearly equal; as large as this they are after training, and a wrong sum shows.
SCORE_GAIN = 30.0


@dataclass(frozen=True)
class Report:
    """A measurement and what it was made on."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    result: Result

    @property
    def good(self) -> bool:
        """Whether all rungs say the same."""
        return all(row.good for row in self.result.rows)

    @property
    def sizes(self) -> list[int]:
        """The batch sizes measured."""
        return sorted({row.num_steps for row in self.result.rows})

    def ratios(self, num_steps: int) -> dict[str, float]:
        """How many times faster than each other rung movelist's update is, on mixed lists; and what mixing costs."""
        best = self.result.row(BEST, num_steps)
        chunked = self.result.row("flat + unique + chunked pair", num_steps)
        equal = self.result.row(BEST, num_steps, "equal")
        if best is None or chunked is None or equal is None:
            return {}
        ratios = {}
        for row in self.result.rows:
            if row.num_steps == num_steps and row.lengths == "mixed" and row not in (best, chunked):
                ratios[f"update against {row.name}"] = best.steps_per_second("update") / row.steps_per_second("update")
                speed = chunked.steps_per_second("evaluate") / row.steps_per_second("evaluate")
                ratios[f"evaluation against {row.name}"] = speed
        ratios["cost of mixed lengths"] = equal.steps_per_second("update") / best.steps_per_second("update")
        ratios["share of the matrix product rate"] = best.matmul_share("update", self.result.matmul_rate)
        seconds = num_steps / best.steps_per_second("update")
        ratios["share of planning on the host"] = self.result.plan_seconds[num_steps] / seconds
        return ratios

    def to_json(self) -> dict[str, Any]:
        """Everything, of types that JSON knows."""
        rate = self.result.matmul_rate
        return {
            "machine": self.machine,
            "settings": self.settings,
            "matmul_gflops": rate / 1e9,
            "matmul_gflops_range": [min(self.result.matmul_rates) / 1e9, max(self.result.matmul_rates) / 1e9],
            "rows": [_row_json(row, rate) for row in self.result.rows],
            "ratios": {str(size): self.ratios(size) for size in self.sizes},
            "plan_seconds": {str(size): value for size, value in self.result.plan_seconds.items()},
            "gather_seconds": {str(size): value for size, value in self.result.gather_seconds.items()},
            "transfer_seconds": self.result.transfer,
            "good": self.good,
        }


def _row_json(row: Row, rate: float) -> dict[str, Any]:
    derived: dict[str, Any] = {"good": row.good}
    for what in ("update", "evaluate"):
        derived[f"{what}_steps_per_second"] = row.steps_per_second(what)
        derived[f"{what}_spread"] = row.spread(what)
        derived[f"{what}_matmul_share"] = row.matmul_share(what, rate)
    return {**asdict(row), **derived}


def benchmark(settings: BenchmarkSettings, episodes: Episodes | None = None) -> Report:
    """Measure.

    Args:
        settings: All of them.
        episodes: Steps of `settings.game` to measure on; None reads `settings.data`, or plays.

    Raises:
        MovelistError: The game, the recordings, the device or the steps cannot be used.
    """
    if settings.chart:
        _make_folder(settings.chart)
    device = choose_device(settings.device)
    threads_before = torch.get_num_threads()
    set_up(device, settings.num_threads)
    try:
        if episodes is None:
            steps = recorded_steps(settings) if settings.data else played_steps(settings)
        else:
            steps = steps_of(episodes, settings.game)
        torch.manual_seed(settings.seed)
        shape = ModelShape(
            state_size=steps.episodes.state_NS.shape[1],
            hidden_dim=settings.hidden_dim,
            action_encoder=steps.action_encoder,
            num_actions=int(steps.num_actions or 0) if steps.action_encoder == "table" else 0,
        )
        net = PolicyValueNet(shape).to(device)
        with torch.no_grad():
            net.pair_weight.mul_(SCORE_GAIN)
        result = climb(
            net,
            steps.episodes,
            batch_sizes=settings.batch_sizes,
            repetitions=settings.repetitions,
            num_actions=steps.num_actions,
            seed=settings.seed,
            compile=settings.compile,
            timer=time.process_time if settings.cpu_time else time.perf_counter,
            say=_say,
        )
        report = Report(_plain(settings) | {"game": steps.game}, machine(device), result)
    finally:
        torch.set_num_threads(threads_before)
    if settings.chart:
        settings.chart.write_text(chart(report), encoding="utf-8")
    return report


def _make_folder(chart: Path) -> None:
    """Before anything is measured: a place that cannot be written to must not cost the minutes."""
    try:
        chart.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError("no chart can be drawn there", got=error.strerror, where=str(chart)) from None
    if chart.is_dir():
        raise SettingsError("no chart can be drawn there", got="a folder", expected="a file", where=str(chart))


@dataclass(frozen=True)
class Steps:
    """What is measured on.

    Attributes:
        episodes: With enough steps.
        game: Its name.
        num_actions: Of the whole game; None where only the episodes are known.
        action_encoder: "bits" or "table".
    """

    episodes: Episodes
    game: str
    num_actions: int | None
    action_encoder: str


def played_steps(settings: BenchmarkSettings) -> Steps:
    """Games of random players."""
    game = make_game(settings.game)
    source = SelfPlay(game, PlaySettings(), seed=settings.seed)
    return steps_of(source.collect(RandomPolicy(), settings.num_episodes), game)


def recorded_steps(settings: BenchmarkSettings) -> Steps:
    """The first episodes of the recordings.

    Raises:
        DataError: There are no recordings, or none can be used.
    """
    parts: list[Episodes] = []
    game = ""
    for file in recordings.find(settings.data):
        for columns in recordings.read(file):
            game = columns.widths.game
            parts.append(columns.episodes())
            if sum(map(len, parts)) >= settings.num_episodes:
                return steps_of(concatenate(parts), game)
    if not parts:
        raise DataError("nothing in the recordings can be used", where=", ".join(map(str, settings.data)))
    return steps_of(concatenate(parts), game)


def steps_of(episodes: Episodes, game: str | Game) -> Steps:
    """Episodes of a game, which need not be installed: without it, its ids are taken as bits."""
    try:
        made = make_known(game) if isinstance(game, str) else game
    except (GameError, MissingExtraError):
        return Steps(episodes, str(game), None, "bits")
    return Steps(episodes, game_name(made), getattr(made, "num_actions", None), action_encoder(made))


def _say(text: str) -> None:
    print(f"Measuring {text} ...", file=sys.stderr, flush=True)


def _plain(settings: BenchmarkSettings) -> dict[str, Any]:
    names = BenchmarkSettings.__dataclass_fields__
    values = {name: getattr(settings, name) for name in names}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return plain | {"data": [str(path) for path in settings.data]}


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=True),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")  # elsewhere platform knows; on Linux it does not
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def described(facts: dict[str, Any]) -> str:
    """A machine in one line."""
    where = f"{facts['gpu']}, " if facts["gpu"] else ""
    cores = f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads"
    return f"{where}{cores}, torch {facts['torch']}, Python {facts['python']}, {facts['system']}"


# --- What people read.


def print_tables(report: Report, console: Console | None = None) -> None:
    """One table for each batch size, and what it says in words."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=150)
    result = report.result
    low, high = min(result.matmul_rates) / 1e9, max(result.matmul_rates) / 1e9

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(described(report.machine))
    if report.settings.get("cpu_time"):
        say("Seconds of the processor, not of the clock (--cpu_time).")
    rate = result.matmul_rate / 1e9
    say(f"Matrix product, measured between the rungs: {rate:,.1f} Gflop/s ({low:,.1f} to {high:,.1f}).")
    for num_steps in report.sizes:
        console.print(_table(report, num_steps))
        for line in _words(report, num_steps):
            say(line)
    for name, seconds in result.transfer.items():
        say(f"Copying {report.sizes[-1]:,} steps to the GPU from {name} memory: {seconds * 1e3:,.2f} ms.")
    for row in result.rows:
        if not row.good:
            fault = f"log-probs differ by {row.difference:.1e}, more than {TOLERANCE:.0e}"
            say(f"WRONG: {row.name}, {row.num_steps:,} steps, {row.lengths} lists: {fault}.")


def _table(report: Report, num_steps: int) -> Table:
    rows = [row for row in report.result.rows if row.num_steps == num_steps and row.lengths == "mixed"]
    first = rows[0]
    table = Table(
        title=f"{num_steps:,} steps, {first.num_actions:,} legal actions, {first.num_unique:,} unique, hidden "
        f"{report.settings['hidden_dim']}: steps per second, median of {len(first.update_seconds)}",
        title_justify="left",
    )
    table.add_column("way")
    heads = ("update, mixed", "equal", "evaluation, mixed", "equal", "update x first", "of matmul rate", "Δ log p")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        equal = report.result.row(row.name, num_steps, "equal") or row
        star = " *" if row.timed_steps < num_steps else ""
        faster = row.steps_per_second("update") / first.steps_per_second("update")
        table.add_row(
            row.name + star,
            *(_speed(r, what) for what in ("update", "evaluate") for r in (row, equal)),
            f"{faster:,.1f}",
            f"{row.matmul_share('update', report.result.matmul_rate):.1%}",
            f"{row.difference:.0e}",
        )
    slow = sorted({f"{row.timed_steps}" for row in rows if row.timed_steps < num_steps}, key=int)
    if slow:
        table.caption = f"* timed on {', '.join(slow)} of the steps, padded as the whole, and scaled."
        table.caption_justify = "left"
    return table


def _speed(row: Row, what: str) -> str:
    return f"{row.steps_per_second(what):,.0f} ±{row.spread(what) / 2:.0%}"


def _words(report: Report, num_steps: int) -> list[str]:
    ratios = report.ratios(num_steps)
    plan, gather = report.result.plan_seconds[num_steps], report.result.gather_seconds[num_steps]
    return [
        f"Mixed lengths cost {ratios['cost of mixed lengths']:.2f} times equal ones. The update reaches "
        f"{ratios['share of the matrix product rate']:.0%} of the matrix product rate.",
        f"The host plans a minibatch in {plan * 1e3:.2f} ms, {ratios['share of planning on the host']:.1%} of its "
        f"update; gathering it takes {gather * 1e3:.2f} ms.",
        "Of matmul rate: what movelist's formulas need, in a way's own time, as a share of the product above, which is "
        "of float32 (TF32 on NVIDIA cards). Mixed precision multiplies shorter numbers and can pass it.",
        f"Log-probs were compared over {CHECKED_STEPS} steps, with the first way; a linear layer with itself.",
    ]


def chart(report: Report) -> str:
    """The largest minibatch as SVG."""
    num_steps = report.sizes[-1]
    mixed = [row for row in report.result.rows if row.num_steps == num_steps and row.lengths == "mixed"]
    pairs = [(row, report.result.row(row.name, num_steps, "equal")) for row in mixed]
    panels = [
        Panel(title, [[row.steps_per_second(what) if row else None for row in pair] for pair in pairs])
        for title, what in (
            ("update, steps per second", "update"),
            ("evaluation without gradient, steps per second", "evaluate"),
        )
    ]
    first = mixed[0]
    title = (
        f"{report.settings['game']}: {num_steps:,} steps, {first.num_actions:,} legal actions, "
        f"hidden {report.settings['hidden_dim']}"
    )
    series = ("lists of mixed length", "lists of one length")
    return svg(title, described(report.machine), [row.name for row in mixed], series, panels)
