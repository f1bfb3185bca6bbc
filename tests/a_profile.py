"""A made-up profile for the tests, with numbers that are easy to reckon with."""

from movelist.core.settings import TrainSettings
from movelist.measure.findings import (
    SPANS,
    Compute,
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


def profile() -> Profile:
    """10 s on two cores without a GPU: five updates of 256 episodes, 10,000 steps and 80,000 legal actions."""
    return Profile(
        created="2030-01-02T03:04:05+0000",
        machine=Machine(
            cpu="Abacus", cores=2, threads=2, memory=8_000_000_000, device="cpu", device_memory=None,
            platform="Linux", python="3.99", torch="9.9", movelist="0.1.0",
        ),
        command="movelist profile",
        settings=TrainSettings().to_flat(),
        source="dou_dizhu",
        timing=Timing(
            seconds=10.0, rollout_seconds=4.0, update_seconds=6.0, episodes=1280, steps=50_000, legal_actions=400_000,
            updates=5, seconds_of_update=[2.0] * 5,
        ),
        spans=[Span(name=name, host_seconds=1.0, share=0.1, device_seconds=None) for name in SPANS],
        looks=[Look(name="plain", seconds=10.0, updates=5, ratio=1.0)],
        copies=None,
        compute=Compute(share=None, flops=6e9, rate=5e9, matmul_rate=1e10),
        waits=WaitFindings(
            places=[WaitPlace(file="a.py", line=3, source="x.item()", kind=".item()", count=1.0, known=False)],
            per_update=1.0,
            rehearsal=True,
            unseen=["not seen: threads"],
        ),
        memory=Memory(process_peak=500_000_000),
        hardware=Hardware(gpu_use=None, gpu_busy=None, cpu_use=0.5, samples=50),
        shapes=Shapes(
            histogram=[(1, 1, 0), (2, 2, 10)], mean=8.0, longest=50, unique_share=0.1, padding=4.0,
            steps_in_batch=1000.0, states_in_call=200.0,
        ),
        per_sample=PerSample(steps_per_second=100.0, ours=33_000.0),
        advice=[],
        trials=[],
    )  # fmt: skip
