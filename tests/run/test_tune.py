"""Tuning on made-up machines: what is tried, what is kept, and what the numbers say."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from movelist.core.errors import DeviceMemoryError
from movelist.core.settings import TrainSettings
from movelist.measure.findings import Shapes, Span, Trial
from movelist.run import tune as module
from movelist.run.tune import candidates, changed, compare, trial, trial_line, tune
from profiles import cpu_profile

CPU = torch.device("cpu")


class Machine:
    """A machine that is as fast as `speed` says of some changes, and counts seconds by what it was asked to run."""

    def __init__(self, speed: Any, update_seconds: float = 0.0) -> None:
        self.speed, self.update_seconds = speed, update_seconds
        self.now = 0.0
        self.log: list[str] = []
        self.open_ways = 0

    def timer(self) -> float:
        return self.now

    @contextmanager
    def open(self, changes: Mapping[str, Any]) -> Iterator[Any]:
        if changes.get("batch_size") == 4096:
            raise DeviceMemoryError("out of memory")
        self.open_ways += 1
        yield Way(self, changes)
        self.open_ways -= 1


class Way:
    def __init__(self, machine: Machine, changes: Mapping[str, Any]) -> None:
        self.machine, self.changes = machine, changes

    def steps_per_second(self, seconds: float) -> float:
        machine = self.machine
        machine.now += max(seconds, machine.update_seconds)
        machine.log.append(" ".join(f"{name}={value}" for name, value in self.changes.items()) or "before")
        # 1 % of noise, other in each round
        return float(machine.speed(self.changes)) * (1 + 0.01 * math.sin(len(machine.log)))


def test_a_trial_by_hand() -> None:
    """Ratios 1, 2 and 4: their logarithms are 0, log 2 and 2 log 2, so the mean is 2 and the deviation log 2."""
    got = trial({"a": 1}, [(10.0, 10.0), (10.0, 20.0), (10.0, 40.0)])
    margin = 4.30 * math.log(2) / math.sqrt(3)
    assert (got.ratio, got.steps_per_second, got.runs) == (pytest.approx(2.0), 20.0, 3)
    assert (got.ratio_low, got.ratio_high) == (
        pytest.approx(2 * math.exp(-margin)),
        pytest.approx(2 * math.exp(margin)),
    )
    assert not got.helped


def test_a_single_pair_proves_nothing() -> None:
    got = trial({}, [(1.0, 100.0)])
    assert (got.ratio, got.ratio_low, got.helped) == (pytest.approx(100.0), 0.0, False)
    assert math.isfinite(got.ratio_high)


def test_ways_run_by_turns_and_at_least_three_times() -> None:
    machine = Machine(lambda changes: 1, update_seconds=1000)
    trials = compare([{"a": 1}, {"b": 2}], machine.open, against={}, seconds=1.0, timer=machine.timer)
    assert machine.log == ["before", "a=1", "b=2"] * 3
    assert [one.runs for one in trials] == [3, 3]
    assert machine.open_ways == 0


def test_more_rounds_while_the_seconds_last() -> None:
    """A round is half a second for each of two ways; six rounds fit into six seconds, eight are the most."""
    for seconds, rounds in ((6.0, 6), (60.0, 8), (0.0, 3)):
        machine = Machine(lambda changes: 1)
        (one,) = compare([{"a": 1}], machine.open, against={}, seconds=seconds, timer=machine.timer)
        assert one.runs == rounds


def test_what_is_clearly_slower_drops_out_after_two_rounds() -> None:
    def speed(changes: Mapping[str, Any]) -> float:
        return 1 if "slow" in changes else 10

    machine = Machine(speed)
    compare([{"slow": 1}, {"b": 2}], machine.open, against={}, seconds=0, timer=machine.timer)
    assert machine.log == ["before", "slow=1", "b=2"] * 2 + ["before", "b=2"]
    machine = Machine(speed)
    (one,) = compare([{"slow": 1}], machine.open, against={}, seconds=0, timer=machine.timer, drop=False)
    assert one.runs == 3


def test_what_does_not_fit_into_memory_is_no_candidate() -> None:
    machine = Machine(lambda changes: 1)
    trials = compare([{"batch_size": 4096}, {"a": 1}], machine.open, against={}, seconds=0, timer=machine.timer)
    assert [one.changes for one in trials] == [{"a": 1}]


def test_nor_what_runs_out_of_memory_later() -> None:
    def speed(changes: Mapping[str, Any]) -> float:
        if "a" in changes and len(machine.log) > 4:
            raise DeviceMemoryError("out of memory")
        return 1

    machine = Machine(speed)
    trials = compare([{"a": 1}, {"b": 1}], machine.open, against={}, seconds=0, timer=machine.timer)
    assert [(one.changes, one.runs) for one in trials] == [({"b": 1}, 3)]


def speed(changes: Mapping[str, Any]) -> float:
    """Games make it 3 times as fast; batches do nothing alone and 2 times on top of games; threads halve it."""
    many, large = "num_games" in changes, "batch_size" in changes
    return 100 * (3 if many else 1) * (2 if many and large else 1) * (0.5 if "num_threads" in changes else 1)


def test_what_helps_is_kept_and_proven_together() -> None:
    said: list[str] = []
    machine = Machine(speed)
    tried = [{"batch_size": 1024}, {"num_games": 256}, {"num_threads": 2}]
    tuned = tune(tried, machine.open, seconds=60, say=said.append, timer=machine.timer)
    assert tuned.changes == {"num_games": 256, "batch_size": 1024}
    ratios = [(one.changes, one.against, round(one.ratio, 1)) for one in tuned.trials]
    assert ratios == [
        ({"batch_size": 1024}, {}, 1.0),
        ({"num_games": 256}, {}, 3.0),
        ({"num_threads": 2}, {}, 0.5),
        ({"batch_size": 1024}, {"num_games": 256}, 2.0),
        ({"num_games": 256, "batch_size": 1024}, {}, 6.0),
    ]
    assert tuned.trials[-1].helped
    assert said[-1].startswith("All together: --num_games 256 --batch_size 1024: ")
    # The proof is measured by turns with the settings as they were, like all else.
    assert machine.log[-2:] == ["before", "num_games=256 batch_size=1024"]


def test_where_nothing_helps_nothing_is_advised() -> None:
    machine = Machine(lambda changes: 100)
    tuned = tune([{"a": 1}], machine.open, seconds=10, timer=machine.timer)
    assert tuned.changes is None
    assert [one.helped for one in tuned.trials] == [False]
    assert tune([], machine.open, seconds=10, timer=machine.timer) == module.Tuned([], None)


def test_what_cannot_be_proven_is_not_advised() -> None:
    """Fast in the first five rounds of two ways, and no more so when it is measured again."""
    machine = Machine(lambda changes: 200 if "a" in changes and len(machine.log) <= 10 else 100)
    tuned = tune([{"a": 1}], machine.open, seconds=10, timer=machine.timer)
    assert tuned.trials[0].helped
    assert tuned.changes is None


def test_trials_in_words() -> None:
    one = Trial(
        changes={"batch_size": 64, "use_amp": True},
        steps_per_second=1234.4,
        ratio=2.0,
        ratio_low=1.5,
        ratio_high=2.666,
        runs=3,
        against={"num_games": 8},
    )
    assert trial_line(one) == (
        "--batch_size 64 --use_amp, on top of --num_games 8: 1,234 steps/s, 2.00 times (1.50 to 2.67, 3 pairs)"
    )
    assert trial_line(replace(one, ratio_high=1e9, against={})).endswith("2.00 times (1.50 to ..., 3 pairs)")


def shapes(**changes: Any) -> Shapes:
    return replace(cpu_profile().shapes, **changes)


def tried(flat: dict[str, Any], device: torch.device = CPU, seconds: float = 60, **changes: Any) -> list[Any]:
    return candidates(replace(cpu_profile(), **changes), TrainSettings.from_flat(flat), device, seconds)


def test_one_game_at_a_time_and_small_batches() -> None:
    slow = {"num_games": 1, "update_frequency": 1, "batch_size": 16}
    quick = replace(cpu_profile().timing, update_seconds=0.1)  # of 10 updates: with 256 games 2.56 s each
    got = tried(slow, shapes=shapes(states_in_call=1.0), timing=quick)
    assert got[:2] == [{"num_games": 256, "update_frequency": 256}, {"batch_size": 1024}]
    # An update of 256 games in batches of 16 would take 256 times as long as the 0.85 s that one game takes.
    assert tried(slow, shapes=shapes(states_in_call=1.0))[0] == {
        "num_games": 256,
        "update_frequency": 256,
        "batch_size": 1024,
    }
    assert tried(slow | {"update_frequency": 256}, shapes=shapes(states_in_call=1.0))[0] == {"num_games": 256}
    assert tried(slow | {"num_games": 256}, shapes=shapes(states_in_call=1.0), timing=quick)[0] == {
        "update_frequency": 256
    }


def test_recorded_games_are_not_played() -> None:
    got = tried({"data": ["x"], "update_frequency": 8, "batch_size": 1024}, shapes=shapes(states_in_call=0.0))
    assert got[0] == {"update_frequency": 256}
    assert not any("num_games" in one for one in got)


def test_checkpoints_that_cost_time() -> None:
    spans = [Span(name="logging", host_seconds=1, share=0.3, device_seconds=None)]
    assert {"save_every": 10} in tried({"save_every": 1}, spans=spans)
    assert {"save_every": 10} not in tried({"save_every": 10}, spans=spans)
    assert {"save_every": 10} not in tried({"save_every": 1}, spans=[replace(spans[0], share=0.01)])


def test_threads_other_than_those_in_use() -> None:
    machine = replace(cpu_profile().machine, cores=8, threads=8)
    assert [one for one in tried({}, machine=machine) if "num_threads" in one] == [
        {"num_threads": 1},
        {"num_threads": 4},
    ]


def test_graphs_where_their_start_can_be_afforded_and_mixed_precision_where_it_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"compile": "on"} in tried({}, seconds=240)
    assert not any("compile" in one or "use_amp" in one for one in tried({}, seconds=239))
    monkeypatch.setattr(module, "amp_dtype", lambda device: torch.bfloat16)
    assert {"use_amp": True} in tried({})
    assert {"use_amp": True} not in tried({"use_amp": True})


def test_lists_so_long_that_batches_are_cut() -> None:
    assert {"max_actions_per_minibatch": 524_288} in tried({}, shapes=shapes(mean=200.0))
    assert not any("max_actions_per_minibatch" in one for one in tried({}, shapes=shapes(mean=8.0)))


def test_every_candidate_makes_settings() -> None:
    for flat in ({}, {"num_games": 1, "update_frequency": 1, "batch_size": 16}):
        for one in tried(flat, seconds=1000, shapes=shapes(mean=200.0, states_in_call=1.0)):
            settings = TrainSettings.from_flat(flat)
            assert changed(settings, one) != settings


def test_what_the_advice_names_is_tried_too() -> None:
    """Narrow layers on one thread: graphs are advised, whatever the seconds."""
    machine = replace(cpu_profile().machine, threads=1, cores=1)
    compute = replace(cpu_profile().compute, rate=1e9)
    settings = TrainSettings.from_flat({"hidden_dim": 32}).to_flat()
    got = tried({"hidden_dim": 32}, settings=settings, machine=machine, compute=compute)
    assert got.count({"compile": "on"}) == 1
    assert not any("compile" in one for one in tried({"hidden_dim": 512}, machine=machine, compute=compute))


def test_what_is_kept_already_is_not_tried_on_top() -> None:
    machine = Machine(speed)
    both, games = {"num_games": 256, "batch_size": 1024}, {"num_games": 256}
    tuned = tune([both, games], machine.open, seconds=60, timer=machine.timer)
    assert tuned.changes == both
    assert [(one.changes, one.against) for one in tuned.trials] == [(both, {}), (games, {}), (both, {})]
