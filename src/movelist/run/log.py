"""What a training shows and writes: a progress display, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from movelist.run.events import Events
from movelist.run.growing_file import GrowingFile

PLAIN_LINE_SECONDS = 5.0  # between progress lines where there is no terminal to draw on


class Log:
    """Everything that a training says, in one place.

    Args:
        folder: The run folder; None keeps silent and writes nothing, as all processes but the first do.
        tensorboard: Write events there too.
        console: Where people read; plain lines if it is no terminal.
        after: The step that a resumed run goes on from: TensorBoard forgets what came later.
        last_match: Of the run so far, by its tags.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        tensorboard: bool,
        console: Console,
        after: int | None = None,
        last_match: Mapping[str, float] | None = None,
    ) -> None:
        self.console = console if folder else Console(quiet=True)
        self._file = GrowingFile(folder / "metrics.jsonl" if folder else Path(os.devnull))
        self._events = Events(folder / "tensorboard", after) if folder and tensorboard else None
        self._failed = False
        self._progress = _progress(console) if folder and console.is_terminal else None
        self._task = self._progress.add_task("training", total=1.0, text="", share="") if self._progress else None
        self._last_line = -math.inf
        self._last_match = dict(last_match or {})  # shown until there is a newer one

    def __enter__(self) -> Log:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_display()
        for file, name in ((self._file, "metrics.jsonl"), (self._events, "TensorBoard's file")):
            if file:
                self._write(file.finish, name)

    def say(self, text: str) -> None:
        """One line for people. One that cannot be written, since it goes to a file on a full disk, is lost."""
        with contextlib.suppress(OSError):
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def say_all(self, lines: Iterable[str]) -> None:
        """Some lines for people."""
        for line in lines:
            self.say(line)

    def stop_display(self) -> None:
        """Leave the progress bar as it is; lines follow below it."""
        if self._progress:
            self._progress.stop()

    def update(self, step: int, metrics: Mapping[str, float], *, progress: float, last: bool = False) -> None:
        """Write one update's metrics and move the display.

        Args:
            step: Steps trained on so far, the x axis.
            metrics: Numbers by their TensorBoard tags.
            progress: Share of the training that is done, 0 to 1.
            last: Always print a line.
        """
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        text = json.dumps({"step": step, "time": round(time.time(), 3), **row}, allow_nan=False) + "\n"
        self._write(lambda: self._file.add(text.encode("utf-8")), "metrics.jsonl")
        if self._events:
            events = self._events
            self._write(lambda: events.add(step, metrics), "TensorBoard's file")
        self._last_match.update(
            {name: value for name, value in metrics.items() if name.startswith(("arena/", "eval/"))}
        )
        self._show(progress_text(step, {**self._last_match, **metrics}), progress, last)

    def table(self, step: int, tag: str, rows: Mapping[str, object]) -> None:
        """Names and values for TensorBoard's page of texts."""
        if self._events:
            events = self._events
            lines = [f"| {name} | {value} |".replace("\n", " ") for name, value in rows.items()]
            text = "\n".join(["| name | value |", "|---|---|", *lines])
            self._write(lambda: events.add_text(step, tag, text), "TensorBoard's file")

    def _write(self, write: Callable[[], None], name: str) -> None:
        """Write to a file; a full disk is no reason to stop a training, and is told once."""
        try:
            write()
        except OSError as error:
            if not self._failed:
                self.say(
                    f"Warning: {name} cannot be written: {error.strerror}. The training goes on; what is missing is "
                    "written once there is space."
                )
            self._failed = True

    def _show(self, text: str, progress: float, last: bool) -> None:
        if self._progress is not None and self._task is not None:
            with contextlib.suppress(OSError):
                # Without a goal there is no share of the way: the bar only moves.
                goal = 1.0 if progress else None
                self._progress.update(
                    self._task, completed=progress, total=goal, text=text, share=_share(progress).rstrip()
                )
        elif last or time.monotonic() - self._last_line >= PLAIN_LINE_SECONDS:
            self._last_line = time.monotonic()
            self.say(_share(progress) + text)


def _share(progress: float) -> str:
    """The percentage before a line; none where a training has no goal, and so stays at 0."""
    return f"{progress:4.0%}  " if progress else ""


def progress_text(step: int, metrics: Mapping[str, float]) -> str:
    """One line of progress; what matters most comes first, for a narrow terminal cuts off the end."""
    parts = [f"update {metrics['charts/updates']:.0f}"]
    left = metrics.get("charts/seconds_left")
    if left is not None:
        minutes, seconds = divmod(int(left), 60)
        clock = f"{minutes // 60}:{minutes % 60:02d}" if minutes >= 60 else f"{minutes}"
        parts.append(f"{clock}:{seconds:02d} left")
    parts += _recorded_parts(metrics)
    if "arena/win_rate" in metrics:
        parts.append(f"beats random {metrics['arena/win_rate']:.0%}")
    if "eval/rating" in metrics:
        parts.append(f"rating {metrics['eval/rating']:+.0f}")
    parts += [
        f"{step:,} steps",
        f"{metrics['charts/SPS']:,.0f} steps/s",
        f"{metrics['legal/actions_per_second']:,.0f} actions/s",
        f"return {metrics['charts/episodic_return_seat_0']:+.2f}",
        f"entropy {metrics['losses/entropy']:.2f}",
        f"KL {metrics['losses/approx_kl']:.4f}",
    ]
    return "  ".join([*parts, *_live_parts(metrics)])


def _live_parts(metrics: Mapping[str, float]) -> list[str]:
    """Shares of the update's time, and the machine; nothing without --live."""
    if "perf/wait_share" not in metrics:
        return []
    shares = {name: metrics[f"perf/{name}_share"] for name in ("rollout", "update", "wait")}
    parts = [f"rollout {shares['rollout']:.0%}, update {shares['update']:.0%}, of it waiting {shares['wait']:.0%}"]
    for name, use, memory in (
        ("GPU", "perf/gpu_use", "perf/gpu_memory"),
        ("CPU", "perf/cpu_use", "perf/process_memory"),
    ):
        if use in metrics and memory in metrics:
            parts.append(f"{name} {metrics[use]:.0%}, {metrics[memory] / 1e9:.1f} GB")
    return parts


def _recorded_parts(metrics: Mapping[str, float]) -> list[str]:
    """How the newest recorded policy does, by opponent, and in brackets how the one before it did."""
    parts = []
    for name, value in metrics.items():
        opponent = name.removeprefix("data/win_rate_against_")
        if opponent in (name, "itself"):  # against itself, a policy wins what its seats are worth
            continue
        before = metrics.get(f"data/previous_win_rate_against_{opponent}")
        version = f" policy {metrics['data/policy_version']:.0f}" if "data/policy_version" in metrics else ""
        parts.append(
            f"recorded{version} beats {opponent} {value:.0%}" + ("" if before is None else f" (before {before:.0%})")
        )
    return parts


def _progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn("line"),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
        # As wide as there is room, then cropped: the usual ellipsis is a letter that some consoles cannot write.
        TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True, overflow="crop")),
    )
    return Progress(*columns, console=console, transient=False, expand=True)
