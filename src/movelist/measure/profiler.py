"""The looks at a training: a clock behind its spans, its waits by their lines, and the machine that it runs on."""

from __future__ import annotations

import ast
import importlib.metadata
import linecache
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import torch

from movelist.core.metrics import span_hook
from movelist.learn.device import amp_dtype
from movelist.measure import benchmark
from movelist.measure.findings import SPANS, Machine, Span, WaitFindings, WaitPlace
from movelist.measure.waits import Wait, Waits

PACKAGE = Path(__file__).resolve().parents[1]
UNNAMED = "idle"  # time that no span covers, or in which the host only waits
# The two answers that an update needs, and the one that playing needs, as their lines say after "# WAIT: ".
KNOWN_WAITS = ("values", "the one read of an update's metrics", "the games need the choices")
Mark = tuple[str | None, Any]  # the span that ended, and the event at its end


class SpanClock:
    """Adds up the time of each span, without what lies in spans inside it. So all together are all of the time.

    Args:
        device: On a GPU, an event is left on the device at each border of a span; they are read in `spans`, when all is
            done, so nobody waits for them.
        timer: Seconds that have passed, since whenever.
        new_event: What makes an event; None takes CUDA's where the device is a GPU.

    Attributes:
        seconds: Host seconds by the name of the span.
        entered: How often each span began.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        timer: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], Any] | None = None,
    ) -> None:
        self.device, self.timer = device, timer
        self._new_event = new_event or (_cuda_event if device.type == "cuda" else None)
        self.seconds: dict[str, float] = dict.fromkeys(SPANS, 0.0)
        self.entered: Counter[str] = Counter()
        self._inside: list[str] = []
        self._last = 0.0
        self._marks: list[Mark] = []
        self._thread = threading.get_ident()
        self._nothing = nullcontext()

    @property
    def total(self) -> float:
        """Seconds inside `running`."""
        return sum(self.seconds.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the spans of this block. May be entered again and goes on adding."""
        self._inside = [UNNAMED]
        self._mark(None)
        self._last = self.timer()
        with span_hook(self._span):
            try:
                yield
            finally:
                self._border()

    def spans(self) -> list[Span]:
        """What was found. On a GPU this waits for the device, once."""
        on_device = self._device_seconds()
        total = self.total
        return [
            Span(
                name=name,
                host_seconds=self.seconds[name],
                share=self.seconds[name] / total if total else 0.0,
                device_seconds=on_device[name] if on_device is not None else None,
            )
            for name in SPANS
        ]

    def _span(self, name: str) -> AbstractContextManager[None]:
        if threading.get_ident() != self._thread:
            return self._nothing
        self.entered[name] += 1
        return self._timed(name if name in self.seconds else UNNAMED)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._border()
        self._inside.append(name)
        try:
            yield
        finally:
            self._border()
            self._inside.pop()

    def _border(self) -> None:
        """What ran until now belongs to the innermost span."""
        now, name = self.timer(), self._inside[-1]
        self.seconds[name] += now - self._last
        self._last = now
        self._mark(name)

    def _mark(self, ended: str | None) -> None:
        if self._new_event is not None:
            event = self._new_event()
            event.record()
            self._marks.append((ended, event))

    def _device_seconds(self) -> dict[str, float] | None:
        if self._new_event is None:
            return None
        if self._marks:
            self._marks[-1][1].synchronize()
        seconds = dict.fromkeys(SPANS, 0.0)
        for (_, before), (name, event) in zip(self._marks, self._marks[1:], strict=False):
            if name is not None:  # None: another block begins there
                seconds[name] += before.elapsed_time(event) / 1e3
        return seconds


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


# --- Waits.


def wait_findings(update: Waits, rollout: Waits, notes: list[str]) -> WaitFindings:
    """The waits of one update, and beside them the reads while collecting.

    Args:
        update: Counted while preparing and updating.
        rollout: Counted while collecting: a choice has to be read before a game can go on.
        notes: Further sentences on what was not seen.
    """
    return WaitFindings(
        places=[_place(wait) for wait in update.found],
        per_update=float(update.total),
        rollout=[_place(wait) for wait in rollout.found],
        rehearsal=update.rehearsal,
        unseen=[*update.unseen, *notes],
    )


def _place(wait: Wait) -> WaitPlace:
    file = Path(wait.file)
    reason = statement(wait.file, wait.line).partition("# WAIT: ")[2].splitlines()
    known = file.resolve().is_relative_to(PACKAGE) and bool(reason) and reason[0].strip() in KNOWN_WAITS
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return WaitPlace(
        file=str(shown),
        line=wait.line,
        source=linecache.getline(wait.file, wait.line).strip(),
        kind=wait.kind,
        count=float(wait.count),
        known=known,
    )


def statement(file: str, line: int) -> str:
    """The simple statement that a line belongs to, with its comment; the line alone where it cannot be told."""
    lines = [text.rstrip("\n") for text in linecache.getlines(file)]
    borders = [border for border in _statements(file) if border[0] <= line <= border[1]]
    first, last = min(borders, key=lambda border: border[1] - border[0], default=(line, line))
    return "\n".join(lines[first - 1 : last])


@lru_cache(maxsize=64)
def _statements(file: str) -> list[tuple[int, int]]:
    """First and last line of each simple statement."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a template, a notebook's magic: no Python
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    return [(node.lineno, node.end_lineno or node.lineno) for node in nodes]


# --- The machine.


def describe_machine(device: torch.device) -> Machine:
    """What it runs on."""
    facts = benchmark.machine(device)
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    try:
        version = importlib.metadata.version("movelist")
    except importlib.metadata.PackageNotFoundError:
        version = "from a clone"
    amp = amp_dtype(device)
    return Machine(
        cpu=facts["processor"],
        cores=facts["cores"],
        threads=facts["threads"],
        memory=psutil.virtual_memory().total,
        device=facts["gpu"] or "cpu",
        device_memory=gpu.total_memory if gpu else None,
        platform=platform.platform(),
        python=facts["python"],
        torch=facts["torch"],
        movelist=version,
        amp=None if amp is None else str(amp).removeprefix("torch."),
    )
