"""Several processes that train together do what one would do; one alone is a world of its own, not a special case."""

import dataclasses
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch

import ranks
import small_updates
from movelist.core.errors import DataError, DeviceError, ProcessError, SettingsError
from movelist.core.returns import Moments
from movelist.learn import parallel
from movelist.learn.parallel import World, join

CPU = torch.device("cpu")
COUNTS = np.random.default_rng(5).integers(2, 12, 65)
PARTS = {"unequal": [slice(0, 40), slice(40, 65)], "few": [slice(0, 62), slice(62, 65)], "none": [slice(0), slice(65)]}
# One optimiser step on everything, or as many as 8 steps of each process at a time take.
SETTINGS = {"whole": {"batch_size": 100}, "micro": {"batch_size": 4, "gradient_accumulation_steps": 25}}
SMALL = {"batch_size": 8, "epochs_per_update": 2}


def test_one_process_is_a_world_of_its_own():
    world = World(CPU)
    assert (world.rank, world.size, world.device.type, world.place) == (0, 1, "cpu", "")
    assert world.share(7) == slice(0, 7)
    assert world.gather([1, 2.5]).tolist() == [[1, 2.5]]
    assert world.gather_objects("a") == ["a"]
    assert world.first(lambda: 3) == world.deal([3]) == 3


def test_the_sum_over_one_process_is_what_it_has():
    tensor = torch.tensor([1.0, 2.0])
    assert World(CPU).all_reduce(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]


def test_a_world_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        World(CPU).rank = 1


@pytest.mark.parametrize(("count", "size"), [(0, 3), (2, 3), (7, 3), (256, 4)])
def test_shares_are_everything_once_in_order_and_nearly_equal(count, size):
    things = list(range(count))
    parts = [things[World(CPU, rank, size).share(count)] for rank in range(size)]
    assert [thing for part in parts for thing in part] == things
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_half_an_environment_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SettingsError) as error, join("cpu"):
        pass
    assert str(error.value) == (
        "WORLD_SIZE is 2, and MASTER_ADDR is not set. Several processes are started by torchrun --nproc-per-node N "
        "-m movelist train ..."
    )


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    taken = []
    monkeypatch.setattr(parallel, "choose_device", lambda name: torch.device("cuda", taken[-1] if taken else 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert parallel._own_device("auto", 1) == torch.device("cuda", 1)
    with pytest.raises(DeviceError) as error:
        parallel._own_device("auto", 2)
    assert str(error.value) == (
        "there are more processes than GPUs on this machine: got process 3, expected at most 2. "
        "Lower --nproc-per-node, or say --device cpu."
    )


def test_alone_an_error_passes_as_it_is(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(DataError) as error, join("cpu") as world:
        world.first(lambda: (_ for _ in ()).throw(DataError("nothing")))
    assert str(error.value) == "nothing"


# --- Two processes. One start for all that they do without a fault, since importing torch takes seconds.


def updates(world, name):
    """An update on this process's part with each setting: gradients or weights, and metrics."""
    part = np.arange(len(COUNTS))[PARTS[name][world.rank]] if world.size > 1 else np.arange(len(COUNTS))
    episodes = small_updates.random_episodes(COUNTS).take(part)
    found = {}
    for kind, settings in SETTINGS.items():
        # Its seed is another one in each process: the weights of rank 0 hold.
        made = small_updates.learner(compile="off", world=world, seed=world.rank, max_grad_norm=1e9, **settings)
        metrics = made.update(made.prepare(episodes))
        gradients = {key: value.grad.numpy() for key, value in made.net.named_parameters()}
        del metrics["perf/update_flops"]  # an id that stands in two batches is encoded twice
        found[kind] = gradients, metrics, {key: value.numpy() for key, value in made.net.state_dict().items()}
    return found


def many_steps(world, name):
    """Steps, minibatches and weights of some epochs of small minibatches."""
    episodes = small_updates.random_episodes(COUNTS).take(np.arange(len(COUNTS))[PARTS[name][world.rank]])
    made = small_updates.learner(compile="off", world=world, **SMALL)
    metrics = made.update(made.prepare(episodes))
    return metrics, {key: value.numpy() for key, value in made.net.state_dict().items()}, made.returns.count


def broken_off(world):
    """What Ctrl-C in rank 0's part of the work is for this process."""
    try:
        world.first(lambda: signal.raise_signal(signal.SIGINT))
    except BaseException as error:
        return type(error).__name__


def together(worlds):
    next(worlds)
    with join("cpu") as world:
        return {
            "rank": (world.rank, world.size, world.place),
            "gather": world.gather([world.rank, 0.5]).tolist(),
            "objects": world.gather_objects("ab"[world.rank]),
            "deal": world.deal(["own", "other"] if world.rank == 0 else []),
            "first": world.first(lambda: os.getpid()),
            "pid": os.getpid(),
            "broken off": broken_off(world),
            "moments": world.moments(np.arange(3.0) if world.rank else np.zeros(0), np.array([world.rank])),
            "sum": world.all_reduce(torch.tensor([1.0 + world.rank])).tolist(),
            "updates": {name: updates(world, name) for name in PARTS},
            "many": {name: many_steps(world, name) for name in PARTS},
        }


not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="several processes are not tested on Windows")


@pytest.fixture(scope="module")
def pair():
    return ranks.run(together)


@not_on_windows
def test_two_processes_hear_each_other(pair):
    first, second = pair
    assert (first["rank"], second["rank"]) == ((0, 2, ", rank 0"), (1, 2, ", rank 1"))
    assert first["gather"] == second["gather"] == [[0.0, 0.5], [1.0, 0.5]]
    assert first["objects"] == second["objects"] == ["a", "b"]
    assert first["first"] == second["first"] == first["pid"] != second["pid"]
    assert first["moments"] == second["moments"] == [Moments(3.0, 1.0, 2.0), Moments(2.0, 0.5, 0.5)]
    assert first["sum"] == second["sum"] == [3.0]
    assert (first["deal"], second["deal"]) == ("own", "other")
    assert first["broken off"] == second["broken off"] == "KeyboardInterrupt"


@not_on_windows
@pytest.mark.parametrize("name", PARTS)
def test_one_batch_equals_micro_batches_equals_two_processes(pair, name):
    """To rounding: float32 sums in another order differ by some 1e-7 of the largest term."""
    alone = updates(World(CPU), name)
    gradients, metrics, weights = alone["whole"]
    for found in [alone["micro"], *(one["updates"][name][kind] for one in pair for kind in SETTINGS)]:
        for key, gradient in gradients.items():
            assert np.abs(found[0][key] - gradient).max() <= 1e-6 * np.abs(gradient).max(), key
            assert np.abs(found[2][key] - weights[key]).max() <= 1e-5, key
        assert found[1] == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert found[1]["perf/minibatches"] == 1


@not_on_windows
@pytest.mark.parametrize(("name", "num_minibatches"), [("unequal", 5), ("few", 8), ("none", 9)])
def test_processes_with_few_or_no_steps_take_part_in_every_optimiser_step(pair, name, num_minibatches):
    (metrics, weights, count), (other_metrics, other_weights, _) = (one["many"][name] for one in pair)
    assert metrics == other_metrics
    assert metrics["perf/minibatches"] == 2 * num_minibatches
    assert count == len(COUNTS)  # no step counts twice
    for key, weight in weights.items():
        assert weight.tobytes() == other_weights[key].tobytes(), key


# --- One of two fails


def failing(worlds, seconds):
    """What each process ends with when one of them does something wrong, and after how long."""
    parallel.FAREWELL_SECONDS = seconds
    found = []
    for fail in (refuse, refuse_first, stumble, hang_up, refuse_both):
        rank, started = next(worlds), time.monotonic()
        try:
            with join("cpu") as world:
                fail(world)
                world.gather([1])
            found.append("no error")
        except BaseException as error:
            code = getattr(error, "code", getattr(error, "exit_code", None))
            found.append((type(error).__name__, str(error) if rank == 0 else "", code))
        assert time.monotonic() - started < 30
    return found


def refuse(world):
    if world.rank == 1:
        raise DataError("a bad file", where="x.jsonl")


def refuse_first(world):
    world.first(lambda: (_ for _ in ()).throw(SettingsError("a bad setting")))


def stumble(world):
    if world.rank == 1:
        raise ZeroDivisionError("a mistake")


def hang_up(world):
    if world.rank == 1:
        torch.distributed.destroy_process_group()
        time.sleep(4)  # and says nothing


def refuse_both(world):
    raise SettingsError(f"both see it, as rank {world.rank}")


@not_on_windows
def test_all_end_with_the_reason_of_the_first_that_failed():
    first, second = ranks.run(failing, 1.0, num_worlds=5)
    assert first[0] == ("ProcessError", "a bad file (x.jsonl)", 1)
    assert first[1] == ("SettingsError", "a bad setting", 2)
    assert first[2] == ("ProcessError", "ZeroDivisionError: a mistake", 1)
    name, text, code = first[3]
    assert (name, code) == ("ProcessError", 1)
    assert text.startswith("another process of this training ended without a word")
    assert first[4][0] in ("SettingsError", "ProcessError") and first[4][1].startswith("both see it, as rank ")
    assert [(name, code) for name, _, code in second[:3]] == [("SystemExit", 1), ("SystemExit", 2), ("SystemExit", 1)]
    assert (second[4][0], second[4][2]) == ("SystemExit", first[4][2]) == ("SystemExit", 2)


@pytest.mark.parametrize(
    ("error", "is_dead"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("Timed out waiting 1000ms for recv operation to complete"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted"), True),
        (torch.distributed.DistNetworkError("the store went away"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_only_a_dead_line_counts_as_an_ended_process(error, is_dead):
    with pytest.raises(ProcessError if is_dead else type(error)) as caught, parallel._heard():
        raise error
    assert (caught.value is error) is not is_dead
