"""The accelerator's set-up as far as a machine without one can show it, and the copies for any machine."""

import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from movelist.core.errors import DeviceError, DeviceMemoryError
from movelist.learn import device as device_module
from movelist.learn.device import (
    INSTALL_PAGE,
    LossScale,
    amp_dtype,
    autocast,
    choose_device,
    exact_products,
    explain_out_of_memory,
    explain_too_wide,
    missing_cuda_advice,
    nvidia_card,
    release_cached_memory,
    set_up,
    to_device,
)

CPU = torch.device("cpu")


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device_module, "nvidia_card", lambda: None)
    return monkeypatch


# --- Which device


def test_auto_and_cpu_take_the_cpu_where_there_is_no_cuda(no_cuda):
    assert choose_device("auto") == choose_device("cpu") == CPU


def test_auto_and_cuda_take_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cpu") == CPU
    assert missing_cuda_advice() is None


def test_cuda_without_a_card_is_refused(no_cuda):
    with pytest.raises(DeviceError) as caught:
        choose_device("cuda")
    assert str(caught.value) == "--device cuda cannot be used. This machine shows no NVIDIA GPU."


@pytest.mark.parametrize(
    ("built_for", "advice"),
    [
        (
            None,
            "This machine has an RTX 4090, but torch 9.9 is built for the CPU only. "
            f"Install the CUDA build into this environment: {INSTALL_PAGE}",
        ),
        ("13.0", "This machine has an RTX 4090, but torch 9.9 cannot use it: check the driver with nvidia-smi."),
    ],
)
def test_cuda_with_an_idle_card_says_what_to_do(no_cuda, built_for, advice):
    no_cuda.setattr(device_module, "nvidia_card", lambda: "RTX 4090")
    no_cuda.setattr(torch.version, "cuda", built_for)
    no_cuda.setattr(torch, "__version__", "9.9")
    assert missing_cuda_advice() == advice
    with pytest.raises(DeviceError) as caught:
        choose_device("cuda")
    assert str(caught.value) == f"--device cuda cannot be used. {advice}"


def fake_driver(monkeypatch, **functions):
    module = types.ModuleType("pynvml")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_the_card_is_what_the_driver_says_and_the_driver_is_closed(monkeypatch):
    calls = []
    fake_driver(
        monkeypatch,
        nvmlInit=lambda: calls.append("init"),
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: f"card {handle}",
    )
    assert nvidia_card() == "card 0"
    assert calls == ["init", "shutdown"]


def test_no_driver_is_no_card(monkeypatch):
    def fail():
        raise OSError("no driver")

    fake_driver(monkeypatch, nvmlInit=fail)
    assert nvidia_card() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert nvidia_card() is None


def test_an_error_of_the_driver_after_its_start_still_closes_it(monkeypatch):
    calls = []

    def fail(index):
        raise RuntimeError("no device")

    fake_driver(
        monkeypatch,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetHandleByIndex=fail,
    )
    assert nvidia_card() is None
    assert calls == ["shutdown"]


def test_set_up_sets_threads_and_leaves_the_rest_of_a_cpu_alone():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        set_up(CPU, num_threads=2)
        assert torch.get_num_threads() == 2
        set_up(CPU)
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_num_threads(threads)


def test_set_up_of_a_gpu_allows_fast_products():
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        set_up(torch.device("cuda", 0))
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.benchmark is True
        assert torch.backends.cudnn.allow_tf32 is True
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = benchmark


def test_exact_products_puts_the_precision_back():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ZeroDivisionError), exact_products():
            assert torch.get_float32_matmul_precision() == "highest"
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


# --- Mixed precision


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(6, None), (7, torch.float16), (8, torch.bfloat16), (9, torch.bfloat16), (10, torch.bfloat16)],
)
def test_mixed_precision_is_what_the_card_is_fast_at(monkeypatch, generation, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 5))
    assert amp_dtype(torch.device("cuda", 0)) is expected
    assert amp_dtype(CPU) is None


@pytest.mark.parametrize(("avx512", "amx"), [(False, False), (True, False), (False, True)])
def test_mixed_precision_on_a_processor_is_for_those_that_multiply_bfloat16(monkeypatch, avx512, amx):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert amp_dtype(CPU) is (torch.bfloat16 if avx512 or amx else None)


def test_a_torch_that_cannot_tell_has_no_bfloat16(monkeypatch):
    monkeypatch.undo()
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert amp_dtype(CPU) is None


def test_autocast_is_on_only_where_asked_for_and_useful(monkeypatch):
    with autocast(CPU, True):
        assert not torch.is_autocast_enabled("cpu")
    monkeypatch.setattr(device_module, "amp_dtype", lambda device: torch.bfloat16)
    with autocast(CPU, False):
        assert not torch.is_autocast_enabled("cpu")
    with autocast(CPU, True):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16


def test_the_loss_scale_is_1_and_stays_1_where_it_is_not_needed():
    scale = LossScale(CPU, enabled=False)
    scale.update(torch.tensor(1.0))
    gradient = torch.tensor([3.0])
    scale.unscale([gradient])
    assert gradient.item() == 3.0
    assert scale.state_dict() == {"scale": 1.0, "good_steps": 0.0, "skipped": 0.0}


def test_an_overflow_halves_the_scale_and_is_counted():
    scale = LossScale(CPU, enabled=True)
    for overflow in (0.0, 1.0, 0.0, 1.0, 0.0):
        scale.update(torch.tensor(overflow))
    assert scale.state_dict() == {"scale": 2.0**14, "good_steps": 1.0, "skipped": 2.0}


def test_the_scale_doubles_after_enough_good_steps_in_a_row(monkeypatch):
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 3)
    scale, seen = LossScale(CPU, enabled=True), []
    for overflow in (0, 0, 1, 0, 0, 0, 0, 0, 0, 0):
        scale.update(torch.tensor(float(overflow)))
        seen.append(scale.scale.item() / 2**16)
    assert seen == [1, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2, 2]


def test_unscaling_divides_the_gradients_in_place():
    scale = LossScale(CPU, enabled=True)
    gradients = [torch.tensor([2.0**16, -(2.0**17)]), torch.tensor(2.0**15)]
    scale.unscale(gradients)
    assert gradients[0].tolist() == [1.0, -2.0]
    assert gradients[1].item() == 0.5


def test_the_scale_never_grows_to_infinity(monkeypatch):
    """Infinity would make every later gradient overflow, and halving it changes nothing."""
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 1)
    scale = LossScale(CPU, enabled=True)
    scale.scale.fill_(2.0**127)
    for _ in range(3):
        scale.update(torch.tensor(0.0))
    assert scale.scale.isfinite()


def test_the_loss_scale_goes_on_from_its_state():
    scale, other = LossScale(CPU, enabled=True), LossScale(CPU, enabled=True)
    for overflow in (1.0, 0.0, 0.0):
        scale.update(torch.tensor(overflow))
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == scale.state_dict() == {"scale": 2.0**15, "good_steps": 2.0, "skipped": 1.0}


def test_a_scale_that_came_down_to_1_goes_on_from_there():
    scale, other = LossScale(CPU, enabled=True), LossScale(CPU, enabled=True)
    for _ in range(16):
        scale.update(torch.tensor(1.0))
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == {"scale": 1.0, "good_steps": 0.0, "skipped": 16.0}


def test_a_scale_is_not_taken_over_by_a_machine_that_does_not_unscale():
    """A run of a card that needs the scale goes on where none is needed: scaled gradients would stay scaled."""
    scale = LossScale(CPU, enabled=False)
    scale.load_state_dict(LossScale(CPU, enabled=True).state_dict())
    assert scale.scale.item() == 1.0


def test_a_machine_that_needs_the_scale_does_not_take_over_that_there_was_none():
    scale = LossScale(CPU, enabled=True)
    scale.load_state_dict(LossScale(CPU, enabled=False).state_dict())
    assert scale.scale.item() == 2.0**16


# --- Memory


def test_too_large_a_batch_is_named_with_the_settings_to_lower():
    with pytest.raises(DeviceMemoryError) as caught, explain_out_of_memory(1024, 131072):
        torch.empty(1 << 60, dtype=torch.uint8)
    message = str(caught.value)
    assert message.startswith("out of memory: got a batch of 1,024 steps with 131,072 legal actions (")
    assert message.endswith(
        ". Lower --max_actions_per_minibatch to 32768, or halve --batch_size and double --gradient_accumulation_steps "
        "(the learning stays the same with either), or lower --hidden_dim."
    )
    assert "\n" not in message


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore text"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        # torch's words for the same on Windows
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    ],
    ids=["cuda", "linux", "windows"],
)
def test_every_allocators_words_are_understood(error):
    found = r"^out of memory: got a batch of 2 steps with 3 legal actions"
    with pytest.raises(DeviceMemoryError, match=found) as caught, explain_out_of_memory(2, 3):
        raise error
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_step_is_not_advised_to_be_cut():
    advice = "of one step cannot be cut: lower --hidden_dim or --action_hidden_dim"
    with pytest.raises(DeviceMemoryError, match=advice), explain_out_of_memory(1, 50_000):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_a_network_that_does_not_fit_is_told_in_one_line():
    line = r"^out of memory: got a network of width 65,536 .* Lower --hidden_dim"
    with pytest.raises(DeviceMemoryError, match=line), explain_too_wide(1 << 16):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_too_wide(2):
        raise RuntimeError("shapes differ")


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_out_of_memory(2, 3):
        raise RuntimeError("shapes differ")
    with pytest.raises(KeyError), explain_out_of_memory(2, 3):
        raise KeyError("x")


def test_cached_memory_is_a_matter_of_gpus(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    release_cached_memory(CPU)
    assert calls == []
    release_cached_memory(torch.device("cuda", 0))
    assert calls == ["empty"]


# --- Copies

KINDS = [np.float16, np.float32, np.float64, np.uint8, np.int8, np.int16, np.int32, np.int64, np.bool_]
SHAPES = [(0,), (1,), (3,), (7,), (0, 4), (2, 3), (3, 1, 5)]


def columns_of_every_kind():
    """Odd sizes of every dtype, so that each view of the buffer starts somewhere else."""
    rng = np.random.default_rng(0)
    kinds = [(kind, shape) for kind in KINDS for shape in SHAPES]
    return {f"{np.dtype(kind)} {shape}": rng.integers(0, 2, shape).astype(kind) for kind, shape in kinds}


@pytest.mark.parametrize("copy", ["straight", "pinned"])
def test_every_column_arrives_as_it_was(copy):
    columns = columns_of_every_kind()
    if copy == "straight":
        there = to_device(columns, CPU)
    else:
        there = device_module._through_pinned_buffer({k: torch.from_numpy(v) for k, v in columns.items()}, CPU)
    assert list(there) == list(columns)
    for name, column in columns.items():
        assert there[name].dtype == torch.from_numpy(column).dtype
        assert there[name].shape == column.shape
        assert np.array_equal(there[name].numpy(), column), name


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40)), max_size=6), st.integers(0, 2**32 - 1))
def test_any_row_of_columns_passes_the_buffer_bit_by_bit(kinds, seed):
    rng = np.random.default_rng(seed)
    tensors = {}
    for number, (kind, size) in enumerate(kinds):
        raw = rng.integers(0, 256, size * np.dtype(kind).itemsize, dtype=np.uint8)
        raw = raw % 2 if kind is np.bool_ else raw
        tensors[str(number)] = torch.from_numpy(raw.view(kind))
    there = device_module._through_pinned_buffer(tensors, CPU)
    for name, tensor in tensors.items():
        assert torch.equal(there[name].view(torch.uint8), tensor.view(torch.uint8))


def test_the_buffer_keeps_hard_ids():
    ids = np.array([0, -1, 2**53 + 1, 2**62 + 3, 2**63 - 1, -(2**63)])
    tensors = {"flag": torch.ones(3, dtype=torch.bool), "id": torch.from_numpy(ids)}
    assert device_module._through_pinned_buffer(tensors, CPU)["id"].tolist() == ids.tolist()


def test_strided_columns_are_copied_and_others_shared_on_a_cpu():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    there = to_device({"column": table[:, 1], "whole": table}, CPU)
    assert there["column"].tolist() == [1, 5, 9]
    assert there["whole"].data_ptr() == table.ctypes.data


def test_read_only_columns_are_fine():
    """As those of a file that is mapped into memory."""
    column = np.arange(3.0)
    column.setflags(write=False)
    assert to_device({"column": column}, CPU)["column"].tolist() == [0, 1, 2]


def test_no_columns_are_no_columns():
    assert to_device({}, CPU) == {}
    assert device_module._through_pinned_buffer({}, CPU) == {}
