"""Climbing: what is measured, in which order, and that a rung that says something else is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from made_up import NUM_ACTIONS, network, steps
from movelist.measure import ladder as module
from movelist.measure.ladder import Result, Row, climb, transfer

NAMES = [
    "per-sample loop, bit loop per action",
    "per-sample loop, bit loop per list",
    "per-sample loop, vectorised bits",
    "grouped by list length",
    "padded and masked",
    "mask over all actions",
    "mask over all actions, linear layer",
    "flat",
    "flat + unique",
    "flat + unique + chunked pair",
    "movelist's update",
]


def measure(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[Result, list[str], list[str]]:
    """Climb on made-up steps with a clock on which everything takes one second."""
    order: list[str] = []
    said: list[str] = []

    def count(work: Callable[[], object], device: torch.device, timer: Callable[[], float]) -> float:
        work()
        order.append(getattr(work, "func", work).__qualname__.rpartition(".")[2])
        return 1.0

    monkeypatch.setattr(module, "typical_seconds", count)
    monkeypatch.setattr(module, "matmul_rate", lambda hidden_dim, device, timer: order.append("product") or 1e9)
    net = network(encoder="bits")
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    wanted = {"batch_sizes": (4, 80), "repetitions": 2, "num_actions": 200, "say": said.append, **given}
    result = climb(net, steps(120, encoder="bits"), **wanted)
    assert all(torch.equal(before[name], weight) for name, weight in net.state_dict().items()), "weights moved"
    return result, order, said


def test_every_rung_is_measured_on_mixed_and_equal_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _, said = measure(monkeypatch)
    assert [row.name for row in result.rows] == NAMES * 4
    assert [(row.num_steps, row.lengths) for row in result.rows[:: len(NAMES)]] == [
        (4, "mixed"), (4, "equal"), (80, "mixed"), (80, "equal"),
    ]  # fmt: skip
    for mixed, equal in ((0, 11), (22, 33)):
        left, right = result.rows[mixed], result.rows[equal]
        assert (left.num_actions, left.num_unique) == (right.num_actions, right.num_unique)
    assert all(row.good and row.difference < 1e-5 for row in result.rows)
    assert len(said) == 4 and said[0].startswith("4 steps, ") and said[0].endswith("lists of mixed length")
    assert set(result.plan_seconds) == set(result.gather_seconds) == {4, 80}


def test_rungs_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    result, order, _ = measure(monkeypatch, batch_sizes=(4,))
    one_round = ["product", *["update", "evaluate"] * len(NAMES)]
    assert order == one_round * 4, "two repetitions of mixed lists, two of equal ones"
    assert all(len(row.update_seconds) == len(row.evaluate_seconds) == 2 for row in result.rows)


def test_slow_rungs_are_timed_on_a_part_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    result, *_ = measure(monkeypatch, batch_sizes=(80,))
    timed = {row.name: row.timed_steps for row in result.rows}
    assert timed == dict(zip(NAMES, (64, 64, 64, 80, 80, 32, 80, 80, 80, 80, 80), strict=True))
    seconds = {row.name: row.update_seconds for row in result.rows}
    assert seconds[NAMES[0]] == [80 / 64] * 2
    assert seconds[NAMES[5]] == [1.0] * 2, "16 and 32 steps take the same second: none of it grows with the steps"


def test_a_rung_that_says_something_else_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = module.ladder

    def broken(net: Any, head: Any) -> list[Any]:
        rungs = plain(net, head)
        wrong = rungs[3].answer
        rungs[3] = replace(rungs[3], answer=lambda net, sample: (wrong(net, sample)[0] + 2e-4, *wrong(net, sample)[1:]))
        return rungs

    monkeypatch.setattr(module, "ladder", broken)
    result, *_ = measure(monkeypatch, batch_sizes=(4,), repetitions=1)
    assert [row.name for row in result.rows if not row.good] == [NAMES[3]] * 2


def test_a_row_counts() -> None:
    row = Row("x", "mixed", 100, 500, 40, 100, 1e-6, True, 8_000, 2_000, [1.0, 2.0, 4.0], [0.5])
    assert row.steps_per_second("update") == 50.0
    assert row.steps_per_second("evaluate") == 200.0
    assert row.spread("update") == 3.0
    assert row.matmul_share("update", 10_000.0) == 0.4
    assert row.matmul_share("evaluate", 10_000.0) == 0.4
    assert row.good
    assert not replace(row, difference=1.1e-4).good
    assert replace(row, difference=1.1e-4, bounded=False).good


def traced(graph: Any, inputs: Any) -> Any:
    """In place of the compiler, which takes half a minute."""
    return graph


def failing(graph: Any, inputs: Any) -> Any:
    raise OSError("no compiler")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler imports outdated parts of torch
@pytest.mark.parametrize("compiler", [traced, failing])
def test_compile_is_a_rung_only_where_it_works(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: compiler)
    result, _, said = measure(monkeypatch, batch_sizes=(4,), repetitions=1, compile=True)
    works = compiler is traced
    assert [row.name for row in result.rows] == [*NAMES, *["+ compile"] * works] * 2
    assert all(row.good for row in result.rows)
    left_out = [line for line in said if line.startswith("+ compile is left out. --compile does not work here")]
    assert len(left_out) == (0 if works else 2) and all("no compiler" in line for line in left_out)


def test_there_is_nothing_to_transfer_to_on_a_cpu() -> None:
    assert transfer(steps(4, encoder="table"), 4, torch.device("cpu")) == {}


def test_a_table_has_no_loop_over_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "typical_seconds", lambda work, device, timer: 1.0)
    net = network(encoder="table")
    result = climb(net, steps(40, encoder="table"), batch_sizes=(4,), repetitions=1, num_actions=NUM_ACTIONS)
    assert [row.name for row in result.rows] == ["per-sample loop", *NAMES[3:]] * 2
    assert all(row.good for row in result.rows)
