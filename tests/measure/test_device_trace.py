"""A trace's kernels and copies by hand, and a real one of this machine."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from movelist.core import metrics
from movelist.core.metrics import span
from movelist.measure.device_trace import DeviceWork, covered, device_work, read_events, trace


def event(kind: str, name: str, start: float, duration: float, num_bytes: int = 0) -> dict[str, object]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration, "args": {"bytes": num_bytes}}


EVENTS = [
    event("kernel", "gemm", 0, 60_000),
    event("kernel", "add", 50_000, 20_000),  # on another stream, 10 ms of it beside the first
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100_000, 10_000, 1_000),
    event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 110_000, 5_000, 200),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 120_000, 5_000, 30),
    event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 130_000, 8_000, 5_000),
    event("gpu_memset", "Memset (Device)", 140_000, 2_000),
    event("cpu_op", "aten::mm", 0, 900_000),
    {"ph": "i", "cat": "kernel", "name": "a mark", "ts": 0},
]


def test_kernels_and_copies_by_hand() -> None:
    """70 ms of kernels' stretch + 10 + 5 + 5 + 8 + 2 = 100 ms busy; 80 ms in kernels; 20 ms between host and device."""
    work = device_work(EVENTS)
    assert work.busy_seconds == pytest.approx(0.1)
    assert work.kernel_seconds == pytest.approx(0.08)
    assert work.compute_share == pytest.approx(0.8)
    copies = work.copies()
    assert copies is not None
    assert copies.share == pytest.approx(0.2)
    assert (copies.to_device_bytes, copies.to_host_bytes, copies.count, copies.pageable) == (1_200, 30, 3, 2)


def test_without_a_gpu_there_is_nothing_to_say() -> None:
    work = device_work(EVENTS[-2:])
    assert work == DeviceWork()
    assert (work.compute_share, work.copies()) == (None, None)


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [([], 0), ([(0, 1), (1, 2)], 2), ([(0, 10), (2, 3)], 10), ([(5, 6), (0, 1)], 2), ([(0, 2), (1, 3), (2, 4)], 4)],
)
def test_what_overlaps_counts_once(stretches: list[tuple[float, float]], seconds: float) -> None:
    assert covered(stretches) == seconds


@pytest.mark.parametrize("name", ["trace.json", "踪迹.json.gz"])
def test_a_trace_of_this_machine_names_the_spans(tmp_path: Path, name: str) -> None:
    def work() -> None:
        with span("forward"):
            torch.ones(8) @ torch.ones(8)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trace(work, device, tmp_path / name)
    names = {event.get("name") for event in read_events(tmp_path / name)}
    assert {"forward", "aten::dot"} <= names
    content = (tmp_path / name).read_bytes()
    assert "traceEvents" in json.loads(gzip.decompress(content) if name.endswith("gz") else content)
    assert metrics._span_hook is None


def test_an_error_inside_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        trace(lambda: 1 / 0, torch.device("cpu"), tmp_path / "trace.json")
    assert metrics._span_hook is None
    assert list(tmp_path.iterdir()) == []
    trace(lambda: None, torch.device("cpu"), tmp_path / "trace.json")  # and the next one works
