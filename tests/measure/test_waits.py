"""The wait detector on programs with a known number of waits: counts, kinds and lines, and that it leaves no trace."""

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import optimizer

from movelist.measure import waits as module
from movelist.measure.waits import count_waits

# The program's device: on this side of a comparison all tests run on a CPU, where a torch.device counts as the device.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a rehearsal is for machines without a GPU")


def line() -> int:
    """The line this is called from."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def kinds(program: Callable[[], Any]) -> dict[str, int]:
    """Kind and count of all waits of a program."""
    with count_waits() as waits:
        program()
    count: dict[str, int] = {}
    for wait in waits.found:
        assert wait.file == __file__
        count[wait.kind] = count.get(wait.kind, 0) + wait.count
    return count


class Double(torch.autograd.Function):
    """Waits twice in forward and three times in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.sum().item()
        x.tolist()
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        grads[0].cpu()
        grads[0].tolist()
        bool(grads[0].sum() > 0)
        return grads[0] * 2


X = torch.arange(6.0, device=DEVICE)  # before any block: the device's
COUNTS = torch.tensor([1, 2, 3], device=DEVICE)
UNFUSED = "Adam without fused=True: it cannot skip a step without asking the device"
WEIGHT = torch.ones(6, device=DEVICE, requires_grad=True)

PROGRAMS: list[tuple[str, Callable[[], Any], dict[str, int]]] = [
    ("item", lambda: X.sum().item(), {".item()": 1}),
    ("tolist", lambda: X.tolist(), {".tolist()": 1}),
    ("bool", lambda: bool((X > 2).any()), {"bool(tensor)": 1}),
    ("if", lambda: 1 if X[0] > 2 else 2, {"bool(tensor)": 1}),
    ("int and float", lambda: (int(X[0]), float(X[1])), {"int(tensor)": 1, "float(tensor)": 1}),
    ("index", lambda: "abc"[COUNTS[0]], {"a tensor as an index": 1}),
    ("range", lambda: list(range(COUNTS[2])), {"a tensor as an index": 1}),
    ("slice", lambda: X[: COUNTS[2]], {"a value inside another function": 1}),
    ("cpu", lambda: X.cpu(), {".cpu()": 1}),
    ("to cpu", lambda: X.to("cpu"), {'.to("cpu")': 1}),
    ("cpu, then free", lambda: (X.cpu().tolist(), X.cpu().numpy()), {".cpu()": 2}),
    ("repr", lambda: repr(X), {"print of a tensor": 1}),
    ("format", lambda: f"{X.sum():.1f}", {"print of a tensor": 1}),
    ("in", lambda: 3.0 in X, {"x in tensor": 1}),
    ("equal", lambda: torch.equal(X, X), {"equal": 1}),
    ("iteration", lambda: [float(x) for x in X], {"float(tensor)": 6}),
    ("nonzero", lambda: (X > 2).nonzero(), {"nonzero": 1}),
    ("argwhere", lambda: torch.argwhere(X > 2), {"nonzero": 1}),
    ("where", lambda: torch.where(X > 2), {"nonzero": 1}),
    ("boolean index", lambda: X[X > 2], {"a boolean index": 1}),
    ("boolean fill with a tensor", lambda: X.clone().__setitem__(X > 2, X[:3]), {"a boolean index": 1}),
    ("boolean fill with a number", lambda: X.clone().__setitem__(X > 2, 0.0), {}),
    ("masked_select", lambda: X.masked_select(X > 2), {"masked_select": 1}),
    ("unique", lambda: torch.unique(X, return_inverse=True), {"unique": 1}),
    ("repeat_interleave", lambda: COUNTS.repeat_interleave(COUNTS), {"repeat_interleave without output_size": 1}),
    ("repeat_interleave, sized", lambda: torch.repeat_interleave(COUNTS, COUNTS, output_size=6), {}),
    (
        "segment_reduce",
        lambda: torch.segment_reduce(X, "sum", lengths=COUNTS),
        {"segment_reduce without unsafe=True": 1},
    ),
    ("segment_reduce, unsafe", lambda: torch.segment_reduce(X, "sum", lengths=COUNTS, unsafe=True), {}),
    ("multinomial", lambda: torch.multinomial(X, 2), {"multinomial": 1}),
    (
        "Categorical",
        lambda: torch.distributions.Categorical(logits=X, validate_args=True).sample(),
        {"bool(tensor)": 1, "multinomial": 1},
    ),
    ("bincount", lambda: torch.bincount(COUNTS), {"bincount": 1}),
    ("index by a list", lambda: X[[0, 1]], {"an index that the host holds": 1}),
    ("index by numpy", lambda: X[np.array([0, 1])], {"an index that the host holds": 1}),
    ("a number goes over", lambda: torch.tensor([1.0], device=DEVICE), {"a blocking copy to the device": 1}),
    ("numpy goes over", lambda: torch.from_numpy(np.ones(2)).to(DEVICE), {"a blocking copy to the device": 1}),
    ("copy_ to the device", lambda: X.clone().copy_(torch.ones(6)), {"a blocking copy to the device": 1}),
    ("copy_ to the host", lambda: torch.ones(6).copy_(X), {"a blocking copy to the host": 1}),
    ("own Function", lambda: Double.apply(WEIGHT).sum().backward(), {
        ".item()": 1, ".tolist()": 2, ".cpu()": 1, "bool(tensor)": 1,
    }),
    # Nothing of this asks the device.
    ("arithmetic", lambda: (X @ X.outer(X)).softmax(0).clamp(0, 1).index_select(0, COUNTS), {}),
    ("shapes", lambda: (len(X), X.shape[0], X.numel(), X.dtype, X.is_contiguous(), X.split([2, 4])), {}),
    ("slices of numbers", lambda: (X[1:3], X[None], X[..., 0], X[COUNTS]), {}),
    ("made there", lambda: torch.zeros(3, device=DEVICE) + X.new_zeros(3) + torch.full((), 2.0, device=DEVICE), {}),
    ("host only", lambda: (torch.ones(3).sum().item(), torch.tensor([1, 2]).tolist(), torch.rand(2)[0] > 2), {}),
    ("host from numpy", lambda: bool((torch.from_numpy(np.arange(3)) > 5).any()), {}),
    ("fused Adam", lambda: _adam(fused=True), {}),
    ("Adam", lambda: _adam(fused=False), {UNFUSED: 1}),
]  # fmt: skip


def _adam(*, fused: bool) -> None:
    WEIGHT.grad = torch.ones_like(WEIGHT)
    with torch.no_grad():
        before = WEIGHT.clone()
    torch.optim.Adam([WEIGHT], fused=fused).step()
    with torch.no_grad():
        WEIGHT.copy_(before)


@pytest.mark.parametrize(("program", "expected"), [row[1:] for row in PROGRAMS], ids=[row[0] for row in PROGRAMS])
def test_a_program_with_known_waits(program: Callable[[], Any], expected: dict[str, int]) -> None:
    assert kinds(program) == expected


def test_lines_and_counts() -> None:
    with count_waits() as waits:
        start = line()
        X.sum().item()
        for _ in range(3):
            bool(X[0] > 1)
        (X > 2).nonzero()
        X.softmax(0)
        torch.distributions.Categorical(logits=X, validate_args=False).sample()
    assert [(wait.line - start, wait.kind, wait.count) for wait in waits.found] == [
        (1, ".item()", 1),
        (3, "bool(tensor)", 3),
        (4, "nonzero", 1),
        (6, "multinomial", 1),
    ]
    assert waits.total == 6
    assert {wait.file for wait in waits.found} == {__file__}
    assert f"{__file__}:{start + 3}: bool(tensor), 3x" in str(waits)


PLANTED: list[tuple[str, Callable[[], Any]]] = [
    (".item()", lambda: X.sum().item()),
    (".tolist()", lambda: X.tolist()),
    ("bool(tensor)", lambda: bool(X[0] > 1)),
    ("int(tensor)", lambda: int(X[0])),
    (".cpu()", lambda: X.cpu()),
    ("print of a tensor", lambda: repr(X)),
    ("nonzero", lambda: (X > 2).nonzero()),
    ("a boolean index", lambda: X[X > 2]),
    ("unique", lambda: torch.unique(X)),
    ("repeat_interleave without output_size", lambda: COUNTS.repeat_interleave(COUNTS)),
    ("multinomial", lambda: torch.multinomial(X, 2)),
    ("a blocking copy to the device", lambda: torch.tensor([1.0], device=DEVICE)),
    ("synchronise", lambda: torch.cpu.synchronize()),
]


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize(("kind", "program"), PLANTED, ids=[kind for kind, _ in PLANTED])
def test_planted_waits_are_counted_exactly_and_by_their_line(kind: str, program: Callable[[], Any], count: int) -> None:
    with count_waits() as waits:
        X.softmax(0)
        for _ in range(count):
            program()
            X + 1
    expected = [(__file__, program.__code__.co_firstlineno, kind, count)] if count else []
    assert [(wait.file, wait.line, wait.kind, wait.count) for wait in waits.found] == expected


def test_print_of_a_tensor_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    with count_waits() as waits:
        print(X, X.sum())
    assert [(wait.kind, wait.count) for wait in waits.found] == [("print of a tensor", 2)]
    assert "tensor(15." in capsys.readouterr().out


def test_explicit_synchronise_counts_at_its_line() -> None:
    with count_waits() as waits:
        start = line()
        torch.cpu.synchronize()
        with contextlib.suppress(RuntimeError):  # without a GPU it cannot; it was asked for all the same
            torch.accelerator.synchronize()
    assert [(wait.line - start, wait.kind) for wait in waits.found] == [(1, "synchronise"), (3, "synchronise")]


def test_an_event_and_a_stream_count() -> None:
    with count_waits() as waits:
        for waiter in (torch.cuda.Stream, torch.cuda.Event):
            try:
                waiter().synchronize()
            except (RuntimeError, AssertionError, TypeError):  # a build without CUDA makes neither
                waits.note("could not be made here")
    found = {wait.kind for wait in waits.found}
    assert found <= {"synchronise a stream", "synchronise an event", "could not be made here"} and found


def test_a_wait_in_a_thread_is_not_seen_and_that_is_said() -> None:
    with count_waits() as waits:
        thread = threading.Thread(target=X.tolist)
        thread.start()
        thread.join()
    assert waits.total == 0
    assert waits.unseen[0] == f"not seen: {threading.active_count()} other threads ran or were started inside the block"


@on_cpu
def test_what_is_not_seen_is_said() -> None:
    with count_waits() as waits:
        pass
    said = "\n".join(waits.unseen)
    assert "no GPU here: counted is what would wait on one" in said
    assert "C++ extensions" in said and "imported by name" in said
    assert str(waits).startswith("0 waits\n")


def test_the_process_is_as_before_also_after_an_error() -> None:
    def look() -> tuple[Any, ...]:
        patched = [vars(owner).get(name) for owner, name, _ in module.SYNCHRONISE]
        stacks = (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
        hooks = copy.copy(optimizer._global_optimizer_pre_hooks)
        return (*patched, torch.autograd._engine_run_backward, threading.Thread.start, *stacks, hooks)

    before = look()
    with count_waits():
        assert look() != before
    assert look() == before
    with pytest.raises(ZeroDivisionError), count_waits(refuse_others=True) as waits:
        X.tolist()
        raise ZeroDivisionError
    assert look() == before
    assert waits.total == 1
    X.tolist()
    assert waits.total == 1, "it went on counting"


def test_an_error_inside_torch_leaves_it_counting() -> None:
    with count_waits() as waits:
        with pytest.raises(RuntimeError):
            X.item()  # six values are no number
        with pytest.raises(RuntimeError):
            X @ X[:2]
        X.tolist()
    assert [wait.kind for wait in waits.found] == [".item()", ".tolist()"]


def test_nested_blocks_each_count() -> None:
    with count_waits() as outer:
        X.tolist()
        with count_waits() as inner:
            X.cpu().tolist()
            (X > 2).nonzero()
        X.tolist()
    assert sorted(wait.kind for wait in inner.found) == [".cpu()", "nonzero"]
    assert outer.total == 4


@on_cpu
def test_refusing_others_without_a_gpu_changes_nothing() -> None:
    with count_waits(refuse_others=True) as waits:
        X.tolist()
    assert waits.total == 1


@on_cpu
def test_results_are_those_without_it() -> None:
    with count_waits():
        there = torch.from_numpy(np.arange(3.0)).to(DEVICE)
        back = there.cpu()
        there += 1
        parts = torch.max(there.reshape(1, 3), 1)
        WEIGHT.grad = None
        total = Double.apply(WEIGHT)
        total.sum().backward()
    # On a CPU both sides are the same memory, as without the detector.
    assert back.tolist() == there.tolist() == [1.0, 2.0, 3.0]
    assert parts.values.tolist() == [3.0] and parts.indices.tolist() == [2]
    assert total.tolist() == [2.0] * 6
    assert WEIGHT.grad is not None and WEIGHT.grad.tolist() == [2.0] * 6
    WEIGHT.grad = None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_raises_at_a_wait_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(module.ASKS, "aten::nonzero")
    before = torch.cuda.get_sync_debug_mode()
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"), count_waits(refuse_others=True):
        (X > 2).nonzero()
    assert torch.cuda.get_sync_debug_mode() == before
