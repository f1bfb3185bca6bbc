"""Compiled graphs give eager's numbers, few graphs serve many sizes, and a compiler that fails is said once."""

import os
import shutil

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from movelist.learn import compile as compiling
from movelist.learn.loss import imitation_loss, ppo_loss
from small_updates import learner, update

# torch's compiler imports parts of torch that torch itself calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def as_it_is(graph, inputs):
    return make_boxed_func(graph)


# torch's tracing of forward and backward without a compiler behind it: quick, and the same number of graphs up to what
# the compiler itself asks about sizes.
TRACED = aot_autograd(fw_compiler=as_it_is)


def largest_difference(one, other):
    """Over all gradients, relative to each tensor's largest entry."""
    pairs = zip(one.net.parameters(), other.net.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max() / b.grad.abs().max().clamp_min(1e-12)) for a, b in pairs)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Graphs are kept with the code of a function, and their number is limited: each test begins without any."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sizes_of_fifty_minibatches():
    """List lengths of 50 minibatches: a single action, a single step, all forced, one id for all, and 46 of 2 to 700
    steps, whose actions lie below and above 4,096."""
    rng = np.random.default_rng(1)
    special = [[1], [400], [1] * 30, [1, 1]]
    return [*special, *(rng.integers(1, 19, size) for size in rng.integers(2, 701, 46))]


def seen_by(made, minibatches):
    """Losses and gradients of one optimiser step (of learning rate 0) for each minibatch, and what was logged."""
    seen = []
    for seed, counts in enumerate(minibatches):
        # One id in all for the fourth: a unique id alone.
        metrics = update(made, counts, seed, num_ids=1 if list(counts) == [1, 1] else None)
        seen.append((metrics, [parameter.grad.clone() for parameter in made.net.parameters()]))
    return seen


@pytest.fixture(scope="module")
def fifty():
    """The same 50 minibatches with the real compiler and without one. The compiler runs here and nowhere else."""
    if shutil.which(os.environ.get("CXX", "g++")) is None and os.name != "nt":
        pytest.skip("no C++ compiler here (g++), so nothing can be compiled")
    torch._dynamo.reset()
    minibatches = sizes_of_fifty_minibatches()
    # One update is one batch here, so its gradients stay behind to be compared. They are not shortened: max_grad_norm.
    settings = {"lr": 0.0, "batch_size": 1024, "max_grad_norm": 1e9}
    compiled, eager = learner(**settings), learner(compile="off", **settings)
    result = compiled, seen_by(compiled, minibatches), seen_by(eager, minibatches)
    if compiled.compiled.num_graphs == 0 and os.name == "nt":
        pytest.skip(f"no C++ compiler here: {compiled.take_notices()}")
    return result


def test_the_compiler_worked(fifty):
    compiled, _, _ = fifty
    assert compiled.take_notices() == []


def test_fifty_minibatches_make_two_graphs_at_most(fifty):
    compiled, seen, _ = fifty
    # Up to 4,096 legal actions and above: torch sums them in different ways.
    assert 1 <= compiled.compiled.num_graphs <= 2
    # The four with a size of 1 go without a graph, all others through one.
    assert [metrics["perf/compiled"] for metrics, _ in seen] == [0.0] * 2 + [1.0] + [0.0] + [1.0] * 46


def test_compiled_losses_are_those_of_eager(fifty):
    _, seen, expected = fifty
    names = [name for name in expected[0][0] if name.startswith("losses/")]
    got = np.array([[metrics[name] for name in names] for metrics, _ in seen])
    want = np.array([[metrics[name] for name in names] for metrics, _ in expected])
    # float32 sums in another order: a few 1e-7 of terms near 1.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_compiled_gradients_are_those_of_eager(fifty):
    _, seen, expected = fifty
    worst = 0.0
    for (_, got), (_, want) in zip(seen, expected, strict=True):
        for a, b in zip(got, want, strict=True):
            worst = max(worst, float((a - b).abs().max()) / max(float(b.abs().max()), 1e-3))
    assert worst < 1e-5


def test_parameters_keep_their_names(fifty):
    compiled, _, _ = fifty
    assert list(compiled.state_dict()["net"]) == list(learner(compile="off").state_dict()["net"])


@pytest.mark.parametrize("loss", [ppo_loss, imitation_loss])
def test_a_whole_training_step_is_that_of_eager(loss):
    got, want = learner(backend=TRACED, loss=loss), learner(compile="off", loss=loss)
    counts = np.random.default_rng(3).integers(1, 30, 200)
    settings_seen = update(got, counts), update(want, counts)
    assert settings_seen[0]["perf/compiled"] == 1.0 and "perf/compiled" not in settings_seen[1]
    assert settings_seen[0]["losses/loss"] == pytest.approx(settings_seen[1]["losses/loss"], abs=1e-6)
    assert largest_difference(got, want) < 1e-5
    weights = zip(got.net.parameters(), want.net.parameters(), strict=True)
    # Adam divides by the gradient's size: where it is near 0 rounding moves a weight by a share of lr = 5e-4.
    assert max(float((a - b).detach().abs().max()) for a, b in weights) < 5e-5


def test_accumulated_batches_are_added_up():
    got = learner(backend=TRACED, batch_size=40,
                  gradient_accumulation_steps=4)  # fmt: skip
    want = learner(compile="off", batch_size=160)
    counts = np.random.default_rng(4).integers(2, 20, 150)
    update(got, counts), update(want, counts)
    assert got.compiled.num_graphs == 1
    assert largest_difference(got, want) < 1e-5


def failing(graph, inputs):
    raise OSError("no such\ncompiler")


def broken_backward(graph, inputs):
    def raises(*values):
        raise RuntimeError("the gradient cannot be had")

    return make_boxed_func(raises)


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (failing, "OSError: no such"),
        (aot_autograd(fw_compiler=as_it_is, bw_compiler=failing), "OSError: no such"),
        (aot_autograd(fw_compiler=as_it_is, bw_compiler=broken_backward), "RuntimeError: the grad"),
    ],
    ids=["forward", "compiling backward", "running backward"],
)
def test_a_compiler_that_fails_is_said_once_and_left(backend, text):
    got, want = learner(backend=backend, batch_size=64), learner(compile="off", batch_size=64)
    counts = np.random.default_rng(5).integers(1, 30, 200)
    metrics = [update(got, counts), update(got, counts)]
    update(want, counts), update(want, counts)
    assert [m["perf/compiled"] for m in metrics] == [0.0, 0.0]
    assert largest_difference(got, want) == 0.0
    (notice,) = got.take_notices()
    assert notice.startswith("--compile does not work here, going on without: ") and "\n" not in notice
    assert text in notice
    assert got.take_notices() == []


def test_the_limit_of_graphs_is_said_once():
    made = learner(backend=lambda graph, inputs: graph)
    with torch._dynamo.config.patch(recompile_limit=1):
        # A state of another type needs another graph.
        shares = [
            update(made, [3, 4, 5], state_dtype=dtype)["perf/compiled"]
            for dtype in (np.float32, np.uint8, np.float16, np.float32)
        ]
    assert shares == [1.0, 0.0, 0.0, 1.0]
    (notice,) = made.take_notices()
    assert notice == (
        "--compile: torch's limit of graphs is reached after 1; batches that fit none of them are computed without."
    )


def test_an_error_of_the_training_itself_is_no_failure_to_compile():
    # Nor in the first batch of an update, before which the counts begin anew.
    made = learner(backend=lambda graph, inputs: graph)
    assert update(made, [3, 4, 5])["perf/compiled"] == 1.0
    made.compiled._run = lambda inputs, scale: {}["missing"]
    with pytest.raises(KeyError):
        update(made, [3, 4])
    assert made.take_notices() == []


def test_five_graphs_are_enough():
    """Steps, actions and unique ids, each up to 4,096 or above: combinations that can be, since A >= B and A >= U."""
    possible = {
        (b > 4096, a > 4096, u > 4096)
        for b in (2, 5000) for a in (2, 5000) for u in (2, 5000) if a >= max(b, u)
    }  # fmt: skip
    assert len(possible) == compiling.MAX_GRAPHS
