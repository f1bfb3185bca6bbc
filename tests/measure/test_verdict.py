"""What findings mean: the limit, the warnings and the goals, each on a profile with exactly that wrong."""

import re
from dataclasses import replace

import pytest

from movelist.measure import sentences, verdict
from movelist.measure.findings import Copies, Look, PerSample
from profiles import cpu_profile, gpu_profile, wait


def test_a_good_profile_is_computing_and_warns_of_nothing():
    for profile in (cpu_profile(), gpu_profile()):
        assert verdict.limit(profile).kind == "computing"
        assert verdict.warnings(profile) == []


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        ("loading", cpu_profile(shares={"load": 0.25})),
        ("playing", cpu_profile(timing={"rollout_seconds": 5.0})),
        ("logging", cpu_profile(shares={"logging": 0.2})),
        ("small", cpu_profile(compute={"rate": 2.9e10})),
        ("small", gpu_profile(compute={"rate": 1.1e10})),
        ("feeding", gpu_profile(hardware={"gpu_busy": 0.49})),
        ("waiting", gpu_profile(hardware={"gpu_busy": 0.49}, waits={"places": [wait("a.py", 1, ".item()")]})),
        ("copying", gpu_profile(copies={"share": 0.16})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_limit(kind, profile):
    assert verdict.limit(profile).kind == kind
    for lang in ("en", "zh"):  # the sentence finds its numbers
        assert re.search(r"\d%", sentences.verdict_text(profile, lang))


def test_loading_and_playing_come_before_whatever_the_update_is_like():
    slow_update = {"compute": {"rate": 1e9}, "hardware": {"gpu_busy": 0.1}}
    assert verdict.limit(gpu_profile(shares={"load": 0.3}, **slow_update)).kind == "loading"
    playing = gpu_profile(timing={"rollout_seconds": 6.0}, **slow_update)
    assert verdict.limit(playing).kind == "playing"
    assert verdict.limit(playing).numbers["share"] == pytest.approx(0.6)


def test_loading_is_not_counted_as_playing():
    profile = cpu_profile(shares={"load": 0.2}, timing={"rollout_seconds": 6.0})
    assert verdict.limit(profile).kind == "computing"  # 0.6 - 0.2 is under a half, and 0.2 under a quarter


def kinds(profile):
    return [found.kind for found in verdict.warnings(profile)]


def test_a_gpu_that_is_used_but_hardly_computes_is_called_idle():
    profile = gpu_profile(hardware={"gpu_use": 1.0, "gpu_busy": 0.1})
    assert kinds(profile) == ["idle_though_used"]
    assert verdict.warnings(profile)[0].numbers == {"use": 1.0, "busy": 0.1}
    assert verdict.gpu_is_idle(profile)
    assert kinds(gpu_profile(hardware={"gpu_use": 0.3, "gpu_busy": 0.1})) == []  # the driver does not say otherwise
    assert not verdict.gpu_is_idle(gpu_profile(hardware={"gpu_busy": None}))


@pytest.mark.parametrize(
    ("kind", "numbers", "profile"),
    [
        ("copies", {"share": 0.2}, gpu_profile(copies={"share": 0.2})),
        ("pageable", {"count": 7}, gpu_profile(copies={"pageable": 7})),
        ("retries", {"count": 2}, gpu_profile(memory={"retries": 2})),
        ("tight", {"share": 23 / 24}, gpu_profile(memory={"reserved": 23 << 30, "peak_allocated": 20 << 30})),
        ("tight", {"share": 15 / 16}, cpu_profile(memory={"process_peak": 15 << 30})),
        ("few_episodes", {"episodes": 31.0}, cpu_profile(timing={"episodes": 310})),
        ("few_minibatches", {"count": 3}, cpu_profile(settings={"batch_size": 4096, "gradient_accumulation_steps": 1},
                                                      timing={"steps": 90_000})),
        ("amp_without_effect", {}, cpu_profile(settings={"use_amp": True})),
        ("amp_is_slower", {"hidden": 128, "width": 256},
         cpu_profile(settings={"use_amp": True, "hidden_dim": 128}, machine={"amp": "bfloat16"})),
        ("recompiles", {"count": 6}, cpu_profile(shapes={"recompiles": 6})),
        ("look", {"look": "spans", "ratio": 1.3}, cpu_profile(looks=[Look(name="spans", seconds=1.3, updates=1,
                                                                         ratio=1.3)])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_warning_alone(kind, numbers, profile):
    (found,) = verdict.warnings(profile)
    assert (found.kind, found.numbers) == (kind, pytest.approx(numbers) if kind != "look" else numbers)
    for lang in ("en", "zh"):
        (said,) = sentences.warning_texts(profile, lang)
        assert len(re.findall(r"\d", said)) >= len(numbers) - (kind == "look")


def test_waits_beyond_the_needed_ones_are_counted_and_the_worst_is_named():
    places = [
        wait("ours.py", 3, ".tolist()", count=2.0, known=True),
        wait("mine.py", 7, ".item()", count=60.0),
        wait("mine.py", 9, "nonzero", count=4.0),
    ]
    (found,) = verdict.warnings(cpu_profile(waits={"places": places}))
    assert (found.kind, found.numbers) == ("waits", {"count": 64.0, "places": 2, "where": "mine.py:7"})


def test_uneven_updates():
    # Mean 2, deviation sqrt(2) = 1.41: 71 %.
    (found,) = verdict.warnings(cpu_profile(timing={"seconds_of_update": [1.0, 3.0]}))
    assert found.kind == "uneven"
    assert found.numbers["spread"] == pytest.approx(2**0.5 / 2)
    assert kinds(cpu_profile(timing={"seconds_of_update": [1.0]})) == []


def test_goals_on_a_gpu():
    rows = {row.kind: row for row in verdict.criteria(gpu_profile())}
    assert list(rows) == ["gpu_use", "memory", "copies", "compute", "speed_up"]
    assert [row.value for row in rows.values()] == pytest.approx([0.9, 0.9, 0.02, 0.93, 30.0])
    assert {row.outcome for row in rows.values()} == {"met"}


def test_goals_that_are_missed():
    profile = gpu_profile(
        hardware={"gpu_use": 1.0, "gpu_busy": 0.75},
        memory={"peak_allocated": 7 << 30},
        copies={"share": 0.15},
        compute={"share": 0.6},
        per_sample=PerSample(steps_per_second=100.0, ours=200.0),
    )
    # Exactly at a goal is not beyond it; and busy counts, not what the driver calls use.
    assert {row.outcome for row in verdict.criteria(profile)} == {"missed"}


def test_goals_without_a_gpu():
    outcomes = {row.kind: row.outcome for row in verdict.criteria(cpu_profile())}
    assert outcomes == {
        "gpu_use": "absent", "memory": "absent", "copies": "absent", "compute": "absent", "speed_up": "met",
    }  # fmt: skip
    assert verdict.criteria(replace(cpu_profile(), per_sample=None))[-1].outcome == "absent"


def test_use_by_the_driver_counts_where_nothing_better_is_known():
    assert verdict.criteria(gpu_profile(hardware={"gpu_use": 0.8, "gpu_busy": None}))[0].value == 0.8


def test_fragmentation_counts_only_where_memory_is_scarce():
    scarce = {"reserved": 20 << 30, "peak_allocated": 12 << 30}
    assert verdict.fragmentation(gpu_profile(memory=scarce)) == pytest.approx(0.4)
    assert verdict.is_fragmented(gpu_profile(memory=scarce))
    assert not verdict.is_fragmented(gpu_profile(memory={"reserved": 10 << 30, "peak_allocated": 6 << 30}))
    assert not verdict.is_fragmented(cpu_profile())


def test_copies_are_judged_only_where_there_are_any():
    assert gpu_profile(copies=None).copies is None
    assert isinstance(gpu_profile().copies, Copies)
    assert verdict.criteria(gpu_profile(copies=None))[2].outcome == "absent"


def test_only_looks_whose_seconds_are_shown_are_warned_of():
    looks = [Look(name=name, seconds=9.0, updates=1, ratio=9.0) for name in ("trace", "waits")]
    assert kinds(cpu_profile(looks=looks)) == []
    assert kinds(gpu_profile(looks=looks)) == ["look"]  # the copies come from the trace there
