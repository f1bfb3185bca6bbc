"""The Triton kernels against the formula written out, and the order of their sums.

The kernels run in Triton's interpreter on a CPU, and where there is an NVIDIA GPU on it as well. Triton decides on
import whether kernels are interpreted, so they run in another process, one for each; each test then looks at a part of
what it brought back. They are also translated for graphics cards, which needs none.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from movelist.core.settings import TrainSettings
from movelist.learn.batch import Rollout, plan_batches
from movelist.learn.device import triton_missing
from movelist.run.greeting import without_effect
from small_updates import learner, random_episodes, update

CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed; 'pip install triton' (Linux, 1 GB) runs these"
)

KERNELS = """
import json, os, numpy as np, torch
from movelist.learn import pair_triton
from movelist.learn.batch import PairOrder

HERE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"

def case(counts, num_unique, width, dtype, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    unique = rng.integers(0, num_unique, offsets[-1]) ** 2 // num_unique  # some ids often, some once, some never
    order = np.argsort(unique, kind="stable")
    unique_offsets = np.concatenate([[0], np.cumsum(np.bincount(unique, minlength=num_unique))])
    number = lambda *shape: torch.from_numpy(rng.normal(size=shape)).to(HERE, dtype)
    whole = lambda array: torch.from_numpy(np.asarray(array, np.int64)).to(HERE)
    rows = [number(len(counts), width), number(num_unique, width), number(width)]
    places = [whole(np.repeat(np.arange(len(counts)), counts)), whole(unique)]
    return rows, places, PairOrder(whole(offsets), whole(order), whole(unique_offsets)), number(offsets[-1])

def kernel(rows, places, order):
    return pair_triton.ordered_pair_score(*rows, *places, order)

def written_out(rows, places, order):
    state, action, weight = rows
    return torch.relu(state[places[0]] + action[places[1]]) @ weight

def results(score, rows, places, order, grad, dtype):
    rows = [row.detach().to(dtype).requires_grad_() for row in rows]
    score_A = score(rows, places, order)
    return [score_A.detach(), *torch.autograd.grad(score_A, rows, grad.to(score_A.dtype))]
"""

RUN = """
CASES = {
    "one pair": ([1], 1, 5), "one step": ([7], 9, 16), "lists up to 400": ([400, 1, 3, 65], 150, 48),
    "one id for all": ([1] * 70, 1, 33), "often and once": ([3] * 90, 3, 40), "wider than a block": ([5, 2], 4, 300),
    "one column": ([4, 2], 3, 1), "nothing": ([], 2, 8),
}
found = {}
for name, (counts, num_unique, width) in CASES.items():
    for dtype in (torch.float64, torch.float32):
        rows, places, order, grad = case(counts, num_unique, width, dtype)
        got = results(kernel, rows, places, order, grad, dtype)
        again = results(kernel, rows, places, order, grad, dtype)
        want = results(written_out, rows, places, order, grad, torch.float64)
        errors = [
            float((g - w).abs().max() / w.abs().max().clamp_min(1e-12)) if w.numel() else 0.0
            for g, w in zip(got, want)
        ]
        found[f"{name}, {str(dtype).removeprefix('torch.')}"] = {
            "errors": errors, "same": all(torch.equal(g, a) for g, a in zip(got, again)),
        }
rows, places, order, grad = case([3, 4], 5, 8, torch.float32)
rows[0][0, 3] = torch.nan
score = kernel(rows, places, order)
found["nan"] = [int(score[:3].isnan().sum()), int(score[3:].isnan().sum())]
# Rounding once costs half of the last bit, the 11th or the 8th (a whole one of bfloat16 in the interpreter, which cuts
# it off); sums in such a type would be off by some thousandths or hundredths of the largest entry.
for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 7 if HERE == "cpu" else 8)):
    rows, places, order, grad = case([3, 4, 40], 20, 24, dtype)
    got = results(kernel, rows, places, order, grad, dtype)
    want = results(written_out, rows, places, order, grad, torch.float64)
    found[str(dtype)] = [
        bool(torch.allclose(g.double(), w, rtol=2.0**-bits, atol=1e-6 * float(w.abs().max())))
        for g, w in zip(got, want)
    ] + [str(g.dtype) for g in got]
rows, places, order, grad = case([3, 4, 1], 5, 8, torch.float32)
transposed = [rows[0].t().contiguous().t(), rows[1].t().contiguous().t(), rows[2]]
found["layout"] = bool(torch.equal(kernel(rows, places, order), kernel(transposed, places, order)))
orders = (order.offsets, order.order_A, order.unique_offsets)
leaves = [row.clone().requires_grad_() for row in rows]
tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
of_gradients = torch.library.opcheck(pair_triton._gradients, (grad, *rows, *places, *orders), test_utils=tests)
found["opcheck"] = {
    **torch.library.opcheck(pair_triton._score, (*leaves, *places, *orders)),
    **{f"gradients {check}": result for check, result in of_gradients.items()},
}
print(json.dumps(found))
"""

TRANSLATE = """
import json, re, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from movelist.learn import pair_triton

WHOLE = {"step", "unique", "offsets", "order", "other_row"}

def kind(name, constants, pointer):
    if name in constants:
        return "constexpr"
    if name in ("num_pairs", "width"):
        return "i32"
    return "*i64" if name in WHOLE else "*fp32" if name == "partial" else pointer

def translate(kernel, constants, pointer, generation):
    names = kernel.arg_names
    signature = {name: kind(name, constants, pointer) for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, constexprs=places), target=GPUTarget("cuda", generation, 32)).asm

found = {}
for generation in (75, 80, 90):
    for pointer in ("*fp32", "*bf16"):
        blocks = {"BLOCK_A": 16, "BLOCK_H": 128, "SUM": tl.float32}
        for name, kernel, more in (
            ("score", pair_triton._score_kernel, {}),
            ("states", pair_triton._row_gradient_kernel, {"LISTED": False, "WITH_WEIGHT": True}),
            ("actions", pair_triton._row_gradient_kernel, {"LISTED": True, "WITH_WEIGHT": False}),
        ):
            code = translate(kernel, {**blocks, **more}, pointer, generation)
            found[f"{name} {pointer} sm_{generation}"] = [
                len(code["cubin"]), bool(re.search(r"(?<![.\\w])(atom|red)[.]", code["ptx"]))
            ]
print(json.dumps(found))
"""


def run_python(source, **environment):
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=on_gpu)])
def computed(request):
    return run_python(KERNELS + RUN, TRITON_INTERPRET="1" if request.param == "interpreter" else "0")


@needs_triton
@pytest.mark.parametrize(
    "name",
    [
        *("one pair", "one step", "lists up to 400", "one id for all", "often and once", "wider than a block"),
        *("one column", "nothing"),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_scores_and_gradients_are_those_of_the_formula(computed, name, dtype, tolerance):
    # Of score, state, action and weight gradient, relative to the largest entry; the formula is in float64.
    errors = computed[f"{name}, {dtype}"]["errors"]
    assert len(errors) == 4 and max(errors) < tolerance, errors


@needs_triton
def test_the_same_numbers_give_the_same_bytes(computed):
    cases = [found["same"] for found in computed.values() if isinstance(found, dict) and "same" in found]
    assert len(cases) == 16 and all(cases)


@needs_triton
def test_nan_is_passed_on_to_the_scores_of_its_step_alone(computed):
    assert computed["nan"] == [3, 0]


@needs_triton
@pytest.mark.parametrize("dtype", ["torch.float16", "torch.bfloat16"])
def test_half_precision_is_summed_in_float32_and_rounded_once(computed, dtype):
    # Scores leave the kernel as float32, since the loss computes in it; gradients have their row's type.
    assert computed[dtype] == [True] * 4 + ["torch.float32"] + [dtype] * 3


@needs_triton
def test_rows_may_lie_in_any_layout(computed):
    assert computed["layout"] is True


@needs_triton
def test_torch_accepts_the_operators(computed):
    checks = computed["opcheck"]
    assert len(checks) == 7 and set(checks.values()) == {"SUCCESS"}, checks


@needs_triton
def test_the_kernels_translate_for_cards_without_atomics():
    found = run_python(TRANSLATE, TRITON_INTERPRET="0")
    assert len(found) == 18
    assert all(size > 0 and not has_atomics for size, has_atomics in found.values()), found


TRAIN = """
import json, sys, numpy as np, torch
from small_updates import learner, random_episodes, update
counts = np.random.default_rng(6).integers(1, 30, 60)
metrics = {}
for kernels, compile in (("torch", "off"), ("triton", "off"), ("triton", "on")):
    traced = torch._dynamo.lookup_backend("aot_eager") if compile == "on" else None
    made = learner(compile=compile, backend=traced, kernels=kernels, hidden_dim=8, batch_size=32)
    metrics[f"{kernels} {compile}"] = update(made, counts)
    metrics[f"{kernels} {compile}"]["largest"] = max(float(p.detach().abs().max()) for p in made.net.parameters())
print(json.dumps(metrics))
"""


@needs_triton
def test_an_update_with_the_kernels_is_that_of_torch():
    found = run_python(TRAIN, TRITON_INTERPRET="1")
    want = found["torch off"]
    for name in ("triton off", "triton on"):
        got = {key: found[name][key] for key in want}
        assert got == pytest.approx(want, abs=1e-5, rel=1e-5), name
    assert found["triton on"]["perf/compiled"] == 1.0


# --- Without triton: the order of sums, and what is said where there is no triton.


def test_the_planned_order_lists_each_ids_pairs():
    rollout = Rollout(random_episodes([3, 1, 4, 2], num_ids=6), lambda ids: ids, CPU)
    (batch,), _ = plan_batches(rollout, [np.array([2, 0, 3])], {}, ordered=True)
    assert batch.order.offsets.tolist() == [0, 4, 7, 9]
    assert torch.equal(batch.order.offsets, batch.segments.offsets)
    unique, order, edges = batch.unique_A.tolist(), batch.order.order_A.tolist(), batch.order.unique_offsets.tolist()
    assert edges[0] == 0 and edges[-1] == 9 and len(edges) == batch.num_unique + 1
    for u in range(batch.num_unique):
        assert order[edges[u] : edges[u + 1]] == [a for a in range(9) if unique[a] == u]


def test_many_unique_ids_are_ordered_too():
    # Above 65,536 ids their numbers do not fit into 16 bits.
    rollout = Rollout(random_episodes([70_000, 3], num_ids=70_001), lambda ids: ids, CPU)
    (batch,), _ = plan_batches(rollout, [np.arange(2)], {}, ordered=True)
    assert batch.num_unique >= 70_000
    ordered = batch.unique_A[batch.order.order_A]
    assert bool((ordered[1:] >= ordered[:-1]).all())


def test_several_batches_keep_their_orders_apart():
    rollout = Rollout(random_episodes([3, 1, 4, 2, 5]), lambda ids: ids, CPU)
    parts = [np.array([4, 0]), np.array([1]), np.array([2, 3])]
    together, there = plan_batches(rollout, parts, {"x": np.arange(3.0)}, ordered=True)
    for part, batch in zip(parts, together, strict=True):
        (alone,), _ = plan_batches(rollout, [part], {}, ordered=True)
        assert torch.equal(batch.order.order_A, alone.order.order_A)
        assert torch.equal(batch.order.unique_offsets, alone.order.unique_offsets)
    assert there["x"].tolist() == [0.0, 1.0, 2.0]


def test_no_order_is_planned_unless_asked_for():
    rollout = Rollout(random_episodes([3, 2]), lambda ids: ids, CPU)
    (batch,), _ = plan_batches(rollout, [np.arange(2)], {})
    assert batch.order is None


def test_without_triton_torch_computes_and_it_is_said(monkeypatch):
    monkeypatch.setattr("movelist.learn.device.find_spec", lambda name: None)
    settings = TrainSettings.from_flat({"kernels": "triton"})
    assert without_effect(settings, CPU)[0] == (
        "--kernels triton counts as torch: triton is not installed here; on Linux, CUDA builds of torch bring it along."
    )
    made = learner(compile="off", kernels="triton")
    assert not made.ordered
    assert update(made, [2, 3])["losses/loss"] == update(learner(compile="off"), [2, 3])["losses/loss"]


def test_on_a_cpu_the_kernels_do_not_run(monkeypatch):
    monkeypatch.setattr("movelist.learn.device.find_spec", lambda name: name)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton_missing(CPU) == "Triton kernels do not run on a cpu"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_missing(CPU) is None


@pytest.mark.parametrize(("generation", "reason"), [(6, "Triton needs an NVIDIA card since Volta"), (7, None)])
def test_cards_before_volta_are_too_old(monkeypatch, generation, reason):
    monkeypatch.setattr("movelist.learn.device.find_spec", lambda name: name)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    assert triton_missing(torch.device("cuda")) == reason
