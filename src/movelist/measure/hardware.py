"""How busy the machine is, looked at now and then from a thread beside the loop, so that the loop never asks."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil
import torch


@dataclass(frozen=True)
class Sample:
    """One look, or the average of some.

    Attributes:
        cpu_use: This process's share of all cores since the look before, 0 to 1.
        process_memory: Bytes that this process holds; of some looks the most.
        gpu_use: NVML's: the share of the last moments in which a kernel ran, however small; None without it.
        gpu_memory: Bytes that are taken on the GPU, by all processes; of some looks the most; None without NVML.
    """

    cpu_use: float
    process_memory: int
    gpu_use: float | None = None
    gpu_memory: int | None = None


Probe = Callable[[], Sample]


def average(samples: list[Sample]) -> Sample:
    """Uses averaged, memory at its highest.

    Example:
        >>> average([Sample(0.2, 10), Sample(0.4, 30)])
        Sample(cpu_use=0.30000000000000004, process_memory=30, gpu_use=None, gpu_memory=None)
    """
    gpu_use = [sample.gpu_use for sample in samples if sample.gpu_use is not None]
    gpu_memory = [sample.gpu_memory for sample in samples if sample.gpu_memory is not None]
    return Sample(
        statistics.fmean(sample.cpu_use for sample in samples),
        max(sample.process_memory for sample in samples),
        statistics.fmean(gpu_use) if gpu_use else None,
        max(gpu_memory) if gpu_memory else None,
    )


class Sampler:
    """Looks every `seconds` while its block runs.

    Args:
        probe: What looks.
        seconds: Between two looks.
    """

    def __init__(self, probe: Probe, seconds: float) -> None:
        self.probe, self.seconds = probe, seconds
        self._samples: list[Sample] = []
        self._latest: Sample | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="movelist-sampler")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> tuple[Sample | None, int]:
        """The average since the last call, and of how many looks. Without a new look the latest, and None before any
        look."""
        with self._lock:
            samples, self._samples = self._samples, []
            if samples:
                self._latest = average(samples)
            return self._latest, len(samples)

    def _look(self) -> None:
        while not self._stop.wait(self.seconds):
            sample = self.probe()
            with self._lock:
                self._samples.append(sample)


def prober(device: torch.device) -> Probe:
    """What looks at this process, and at its GPU where there is one."""
    process, cores = psutil.Process(), psutil.cpu_count(logical=True) or 1
    process.cpu_percent()  # the first answer is always 0: it has nothing to count from
    ask_gpu = _gpu(device)

    def probe() -> Sample:
        use = process.cpu_percent() / 100 / cores
        return Sample(min(1.0, use), process.memory_info().rss, *ask_gpu())

    return probe


def _gpu(device: torch.device) -> Callable[[], tuple[float | None, int | None]]:
    """What asks the driver for use and memory of a CUDA device; it answers None where that cannot be asked."""

    def nothing() -> tuple[None, None]:
        return None, None

    if device.type != "cuda":
        return nothing
    try:
        import pynvml

        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except Exception:  # no driver library, or one that does not know this card: the other numbers are still there
        return nothing

    def ask() -> tuple[float | None, int | None]:
        try:
            use = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return use, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError:  # some cards tell no use
            return None, None

    return ask
