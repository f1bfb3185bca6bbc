"""What makes a resumed run go on bit for bit: the state of all random generators, and the same circumstances."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import random
from typing import Any

import numpy as np
import torch


@functools.cache
def movelist_version() -> str:
    """Of the package that is installed; "unknown" in a clone that is not."""
    try:
        return importlib.metadata.version("movelist")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def generators_state() -> dict[str, Any]:
    """The process-wide generators of Python, numpy and torch, of types that a checkpoint holds.

    movelist itself draws everything from (seed, counter), so it needs none of them; a game or a network of one's own
    may.
    """
    numpy_state: Any = np.random.get_state(legacy=False)
    key = {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": key},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore_generators(state: dict[str, Any]) -> None:
    """Put the generators where `generators_state` found them; those of GPUs only onto as many GPUs."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    key = {**state["numpy"]["state"], "key": np.array(state["numpy"]["state"]["key"], np.uint32)}
    np.random.set_state({**state["numpy"], "state": key})
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def circumstances(device: torch.device) -> dict[str, str]:
    """Versions, device and threads: with others, sums come out a little different."""
    is_cpu = device.type == "cpu"
    return {
        "movelist": movelist_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": (platform.machine() or "cpu") if is_cpu else torch.cuda.get_device_name(device),
        "threads": str(torch.get_num_threads()) if is_cpu else "any",
    }


def what_differs(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """One line that names what is not as it was, or none."""
    other = [f"{name} {now[name]} instead of {was}" for name, was in before.items() if now.get(name, was) != was]
    return [f"Not bit for bit the run it would have been: {', '.join(other)}."] if other else []
