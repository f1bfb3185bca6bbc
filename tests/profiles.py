"""Profiles made up for tests: one of a CPU, one of a GPU, with nothing wrong; tests change what they are about."""

from dataclasses import replace
from typing import Any

from movelist.core.settings import TrainSettings
from movelist.measure.findings import (
    SPANS,
    Compute,
    Copies,
    Hardware,
    Look,
    Machine,
    Memory,
    PerSample,
    Profile,
    Shapes,
    Span,
    Timing,
    WaitFindings,
    WaitPlace,
)

SHARES = {"game": 0.1, "plan": 0.02, "load": 0.0, "copy": 0.01, "forward": 0.4, "loss": 0.05, "backward": 0.35}
SHARES |= {"optimiser": 0.05, "logging": 0.01, "idle": 0.01}


def cpu_profile(*, settings: dict[str, Any] | None = None, shares: dict[str, float] | None = None, **parts: Any) -> Any:
    """A good profile on a CPU: 10 updates of 1 s, 256 episodes, 8,192 steps and 65,536 legal actions each.

    Args:
        settings: Those that differ from the defaults.
        shares: Of the spans that differ; "forward" takes or gives what is then too much or missing.
        parts: For each of the profile's fields a new value, or a dict of what changes in it.
    """
    profile = Profile(
        created="2026-11-30T12:00:00",
        machine=Machine(
            cpu="Some CPU", cores=8, threads=8, memory=16 << 30, device="cpu", device_memory=None,
            platform="Linux", python="3.11.2", torch="2.13.0", movelist="0.1.0",
        ),
        command="movelist profile",
        settings=TrainSettings.from_flat({"num_games": 256, **(settings or {})}).to_flat(),
        source="dou_dizhu",
        timing=Timing(
            seconds=10.0, rollout_seconds=1.5, update_seconds=8.5, episodes=2560, steps=81_920, legal_actions=655_360,
            updates=10, seconds_of_update=[1.0, 0.98, 1.02, 1.0, 0.99, 1.01, 1.0, 0.97, 1.03, 1.0],
        ),
        spans=spans({**SHARES, **(shares or {})}, device=None),
        looks=[
            Look(name="plain", seconds=10.0, updates=10, ratio=1.0),
            Look(name="trace", seconds=3.1, updates=3, ratio=1.03),
        ],
        copies=None,
        compute=Compute(share=None, flops=6e10, rate=6e10, matmul_rate=1e11),
        waits=WaitFindings(
            places=[wait("src/movelist/learn/learner.py", 120, ".tolist()", known=True)],
            per_update=1.0, rehearsal=True,
            unseen=["no GPU here: counted is what would wait on one, judged by how the program is written"],
        ),
        memory=Memory(process_peak=1 << 30),
        hardware=Hardware(gpu_use=None, gpu_busy=None, cpu_use=0.9, samples=20),
        shapes=Shapes(
            histogram=[(1, 2, 1000), (3, 4, 3000), (5, 8, 2000), (9, 16, 192)], mean=8.0, longest=16, unique_share=0.1,
            padding=7.5, steps_in_batch=1024.0, states_in_call=200.0,
        ),
        per_sample=PerSample(steps_per_second=300.0, ours=9000.0),
        advice=[],
        trials=[],
    )  # fmt: skip
    return changed(profile, **parts)


def gpu_profile(*, settings: dict[str, Any] | None = None, shares: dict[str, float] | None = None, **parts: Any) -> Any:
    """The same on a GPU of 24 GB, which is busy for 90 % of the time."""
    profile = cpu_profile(
        settings={"use_amp": True, **(settings or {})},
        machine={"device": "Some GPU", "device_memory": 24 << 30, "amp": "bfloat16"},
        copies=Copies(share=0.02, to_device_bytes=40_000_000, to_host_bytes=4_000, count=3, pageable=0),
        compute={"share": 0.93, "matmul_rate": 1.2e11},
        memory=Memory(
            process_peak=2 << 30, allocated=6 << 30, peak_allocated=9 << 30, reserved=10 << 30, device_total=24 << 30,
            retries=0,
        ),
        hardware=Hardware(gpu_use=0.97, gpu_busy=0.9, cpu_use=0.2, samples=20),
        waits={"rehearsal": False, "unseen": []},
    )  # fmt: skip
    return changed(replace(profile, spans=spans({**SHARES, **(shares or {})}, device=0.9)), **parts)


def changed(profile: Profile, **parts: Any) -> Profile:
    """The profile with other parts: a dict changes fields of a part, all else replaces it."""
    fresh = {
        name: replace(getattr(profile, name), **value)
        if isinstance(value, dict) and name not in ("settings", "tuned")
        else value
        for name, value in parts.items()
    }
    return replace(profile, **fresh)


def spans(shares: dict[str, float], *, device: float | None) -> list[Span]:
    """Spans of 10 s; "forward" is what is left."""
    shares = {**shares, "forward": 1 - sum(value for name, value in shares.items() if name != "forward")}
    return [
        Span(
            name=name,
            host_seconds=10 * shares[name],
            share=shares[name],
            device_seconds=None if device is None else 10 * device * shares[name],
        )
        for name in SPANS
    ]


def wait(file: str, line: int, kind: str, *, count: float = 1.0, known: bool = False) -> WaitPlace:
    """A place where the host waits."""
    return WaitPlace(file=file, line=line, source="total = loss.tolist()", kind=kind, count=count, known=known)
