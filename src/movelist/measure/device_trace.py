"""What the device did in a trace of torch.profiler: kernels and copies, from the file that Perfetto opens."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from movelist.core.metrics import span_hook
from movelist.measure.findings import Copies

MICRO = 1e-6


@dataclass(frozen=True)
class DeviceWork:
    """The device's side of a trace; all zero where there is no GPU.

    Attributes:
        kernel_seconds: In compute kernels.
        copy_seconds: In copies between host and device.
        busy_seconds: In which anything ran; what runs at the same time counts once.
        to_device_bytes: Copied from the host.
        to_host_bytes: Copied to the host.
        count: Copies between host and device.
        pageable: Those of them from or to memory that is not pinned.
    """

    kernel_seconds: float = 0.0
    copy_seconds: float = 0.0
    busy_seconds: float = 0.0
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    count: int = 0
    pageable: int = 0

    @property
    def compute_share(self) -> float | None:
        """Kernels over all that the device did; None where it did nothing."""
        return min(1.0, self.kernel_seconds / self.busy_seconds) if self.busy_seconds else None

    def copies(self) -> Copies | None:
        """As a finding; None where the device did nothing."""
        if not self.busy_seconds:
            return None
        share = min(1.0, self.copy_seconds / self.busy_seconds)
        return Copies(
            share=share,
            to_device_bytes=self.to_device_bytes,
            to_host_bytes=self.to_host_bytes,
            count=self.count,
            pageable=self.pageable,
        )


def device_work(events: Iterable[Mapping[str, Any]]) -> DeviceWork:
    """Add up the events of a Chrome trace.

    Kineto names the copies "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)" and "Memcpy DtoD ...";
    the last kind does not leave the device and counts as neither copy nor kernel, like filling memory.
    """
    kernels = copies = 0.0
    to_device = to_host = count = pageable = 0
    stretches = []
    for event in events:
        kind, name = event.get("cat"), str(event.get("name", ""))
        if event.get("ph") != "X" or kind not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        start, seconds = float(event["ts"]) * MICRO, float(event["dur"]) * MICRO
        stretches.append((start, start + seconds))
        if kind == "kernel":
            kernels += seconds
        elif "HtoD" in name or "DtoH" in name:
            num_bytes = int(event.get("args", {}).get("bytes", 0))
            copies, count, pageable = copies + seconds, count + 1, pageable + ("Pageable" in name)
            to_device += num_bytes if "HtoD" in name else 0
            to_host += num_bytes if "DtoH" in name else 0
    return DeviceWork(kernels, copies, covered(stretches), to_device, to_host, count, pageable)


def covered(stretches: list[tuple[float, float]]) -> float:
    """How much of a line the stretches cover together.

    Example: 0 to 2 and 1 to 3 cover 3, and 5 to 6 one more:
        >>> covered([(1, 3), (5, 6), (0, 2)])
        4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(stretches):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def trace(work: Callable[[], object], device: torch.device, path: Path) -> DeviceWork:
    """Record a trace of some work, with its spans by their names, and write it for Perfetto or chrome://tracing.

    Args:
        work: What to run.
        device: What it computes on.
        path: The file, NAME.json or NAME.json.gz.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profiler, span_hook(torch.profiler.record_function):
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    profiler.export_chrome_trace(str(path))
    return device_work(read_events(path)) if device.type == "cuda" else DeviceWork()


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = msgspec.json.decode(content)["traceEvents"]
    return events
