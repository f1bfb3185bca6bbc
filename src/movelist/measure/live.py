"""What a training watches of itself while it runs: how long it waits, and how busy the machine is.

Two spans are timed, "load" and "read"; all others cost a look-up. The machine is looked at once a second by a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

import torch

from movelist.core.metrics import span_hook
from movelist.measure.hardware import Probe, Sampler, prober

WAITS = ("load", "read")  # spans in which the host does nothing but wait: for episodes, for the device
SECONDS_BETWEEN_LOOKS = 1.0


class Live:
    """Counts while its block runs.

    Args:
        device: Where the training computes.
        timer: Seconds that have passed, since whenever.
        probe: What looks at the machine; None takes the real one.
    """

    def __init__(
        self, device: torch.device, *, timer: Callable[[], float] = time.perf_counter, probe: Probe | None = None
    ) -> None:
        self.device, self.timer = device, timer
        self.waited = 0.0
        self._sampler = Sampler(probe or prober(device), SECONDS_BETWEEN_LOOKS)
        self._spans = span_hook(self._span)
        self._nothing = nullcontext()
        self._thread = threading.get_ident()

    def __enter__(self) -> Live:
        self._sampler.__enter__()
        self._spans.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spans.__exit__(None, None, None)
        self._sampler.__exit__(kind, error, trace)

    def begin(self) -> None:
        """An update begins: count from here."""
        self.waited = 0.0

    def metrics(self, seconds: float) -> dict[str, float]:
        """Numbers of the update that took these seconds, by their tags."""
        metrics = {"perf/wait_share": self.waited / seconds}
        sample, _ = self._sampler.take()
        if sample:
            found = {
                "perf/cpu_use": sample.cpu_use,
                "perf/process_memory": sample.process_memory,
                "perf/gpu_use": sample.gpu_use,
                "perf/gpu_memory": sample.gpu_memory,
            }
            metrics |= {name: float(value) for name, value in found.items() if value is not None}
        if self.device.type == "cuda":
            metrics["perf/gpu_allocated"] = float(torch.cuda.memory_allocated(self.device))
            metrics["perf/gpu_reserved"] = float(torch.cuda.memory_reserved(self.device))
        return metrics

    def _span(self, name: str) -> AbstractContextManager[None]:
        if name not in WAITS or threading.get_ident() != self._thread:
            return self._nothing
        return self._timed()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = self.timer()
        try:
            yield
        finally:
            self.waited += self.timer() - started
