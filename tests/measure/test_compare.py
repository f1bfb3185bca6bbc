"""Before and after: ratios by hand, the noise by hand, and how often equal programs are called different."""

import math
from dataclasses import replace

import numpy as np
import pytest

from movelist.measure.compare import compare
from profiles import cpu_profile, gpu_profile


def timed(seconds, **timing):
    """Updates of 100 steps."""
    timing = {"steps": 100 * len(seconds), "updates": len(seconds), "seconds": sum(seconds)} | timing
    return cpu_profile(timing={"seconds_of_update": list(seconds), **timing})


def test_ratio_and_noise_by_hand():
    # Logarithms of the old seconds: -0.1, 0, 0.1, so s = 0.1, and the median's error sqrt(pi / 2) * 0.1 / sqrt(3); the
    # new ones do not vary. Twice that is 0.1447.
    comparison = compare(timed([math.exp(-0.1), 1.0, math.exp(0.1)]), timed([0.5, 0.5, 0.5]))
    assert comparison.speed == pytest.approx(2.0)
    assert math.log(comparison.noise) == pytest.approx(0.14472, abs=1e-5)
    assert comparison.verdict == "faster"


def test_errors_of_both_add_as_squares():
    seconds = [math.exp(-0.1), 1.0, math.exp(0.1)]
    assert math.log(compare(timed(seconds), timed(seconds)).noise) == pytest.approx(0.14472 * 2**0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("new", "verdict"), [([1.0] * 3, "same"), ([1.1] * 3, "same"), ([1.2] * 3, "slower"), ([0.8] * 3, "faster")]
)
def test_verdicts(new, verdict):
    # The noise is exp(0.1447) = 1.156.
    assert compare(timed([math.exp(-0.1), 1.0, math.exp(0.1)]), timed(new)).verdict == verdict


def test_too_few_updates_say_nothing():
    comparison = compare(timed([1.0, 1.0]), timed([0.1, 0.1, 0.1]))
    assert (comparison.verdict, comparison.noise) == ("unknown", None)
    assert {row.beyond for row in comparison.rows} == {None}
    assert comparison.speed == pytest.approx(10.0)


def test_one_slow_update_does_not_make_a_difference():
    # The mean of the new ones is twice the old, their median is not.
    comparison = compare(timed([1.0] * 5), timed([1.0, 1.0, 1.0, 1.0, 6.0]))
    assert (comparison.speed, comparison.verdict) == (1.0, "same")


@pytest.mark.parametrize("num_updates", [3, 5, 20])
def test_equal_programs_are_seldom_called_different(num_updates):
    """About 5 in 100 by the docstring; with 3 updates a standard deviation is a rough guess, so up to 12 are let pass.

    400 comparisons: the share varies by about 1.1 points.
    """
    rng = np.random.default_rng(0)
    seconds = np.exp(0.2 * rng.standard_normal((800, num_updates)))
    verdicts = [compare(timed(old), timed(new)).verdict for old, new in zip(seconds[::2], seconds[1::2], strict=True)]
    assert verdicts.count("same") >= 400 * (0.88 if num_updates == 3 else 0.91)


def rows(old, new):
    return {row.name: row for row in compare(old, new).rows}


def test_each_figure_side_by_side():
    old = cpu_profile()
    new = cpu_profile(
        timing={"seconds": 5.0, "rollout_seconds": 1.5, "update_seconds": 3.5, "seconds_of_update": [0.5] * 10},
        memory={"process_peak": 2 << 30},
    )
    found = rows(old, new)
    assert (found["steps_per_second"].old, found["steps_per_second"].new) == (8192.0, 16384.0)
    assert found["steps_per_second"].ratio == 2.0
    assert (found["episodes_per_second"].old, found["episodes_per_second"].new) == (256.0, 512.0)
    # 1.5 s of 81,920 steps.
    assert found["rollout"].old == found["rollout"].new == pytest.approx(1500 / 81.92)
    assert (found["rollout"].beyond, found["update"].beyond) == (False, True)
    # A tenth of the time, before and after.
    assert (found["span_game"].old, found["span_game"].new) == pytest.approx((1000 / 81.92, 500 / 81.92))
    assert (found["process_peak"].ratio, found["process_peak"].beyond) == (2.0, None)
    assert "gpu_use" not in found  # nobody measured it


def test_a_part_is_not_told_better_than_the_whole():
    """The noise is 15.6 % of 1 s here; loading that went from 0.02 s to 0.1 s cannot be told from it."""
    seconds = [math.exp(-0.1), 1.0, math.exp(0.1)]
    old, new = timed(seconds), timed([1.0] * 3)
    old = replace(old, spans=cpu_profile(shares={"load": 0.02}).spans)
    assert not rows(old, replace(new, spans=cpu_profile(shares={"load": 0.1}).spans))["span_load"].beyond
    assert rows(old, replace(new, spans=cpu_profile(shares={"load": 0.2}).spans))["span_load"].beyond


def test_updates_of_other_sizes_are_compared_by_their_steps():
    # Twice the steps in twice the seconds is the same speed.
    found = rows(timed([1.0] * 3), timed([2.0] * 3, steps=600))
    assert found["steps_per_second"].ratio == 1.0
    assert found["update"].beyond is not None
    assert found["steps_per_update"].ratio == 2.0


def test_what_differs_is_said():
    comparison = compare(cpu_profile(), gpu_profile(settings={"batch_size": 2048}, source="games/"))
    assert comparison.machine == {"device": ("cpu", "Some GPU")}
    assert comparison.settings == {"batch_size": (1024, 2048), "use_amp": (False, True)}
    assert comparison.sources == ("dou_dizhu", "games/")
    same = compare(cpu_profile(settings={"out": "a"}), cpu_profile(settings={"out": "b"}))
    assert (same.machine, same.settings, same.sources) == ({}, {}, None)


def test_a_figure_that_only_one_of_them_has():
    row = rows(cpu_profile(), gpu_profile())["gpu_busy"]
    assert (row.old, row.new, row.ratio, row.beyond) == (None, 0.9, None, None)
