"""The accelerator: which one, its settings, and copies to it that do not wait."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.errors import DeviceError, DeviceMemoryError
from movelist.core.metrics import span

INSTALL_PAGE = "https://pytorch.org/get-started/locally/"


def choose_device(name: str) -> torch.device:
    """The device for "auto", "cpu" or "cuda".

    Raises:
        DeviceError: "cuda" was asked for and cannot be used; the message says why and what to do.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(
            "--device cuda cannot be used", do=missing_cuda_advice() or "This machine shows no NVIDIA GPU."
        )
    return torch.device("cuda", torch.cuda.current_device())


def missing_cuda_advice() -> str | None:
    """What to say where an NVIDIA card lies idle because torch cannot use it; None where there is nothing to say."""
    card = None if torch.cuda.is_available() else nvidia_card()
    if card is None:
        return None
    if torch.version.cuda is None:
        return (
            f"This machine has an {card}, but torch {torch.__version__} is built for the CPU only. Install the CUDA "
            f"build into this environment: {INSTALL_PAGE}"
        )
    return f"This machine has an {card}, but torch {torch.__version__} cannot use it: check the driver with nvidia-smi."


def nvidia_card() -> str | None:
    """The name of the first NVIDIA card that the driver reports, or None."""
    try:
        import pynvml  # a second of start-up on some machines, so only where the question arises

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, no card, or a driver too old to say: each means that there is no card to speak of
        return None


def set_up(device: torch.device, num_threads: int | None = None) -> None:
    """Set what makes matrix products fast on this device, for the whole process.

    TF32 rounds the factors of float32 products to 10 bits of mantissa on NVIDIA cards since Ampere; PPO's ratios stand
    it. cuDNN may try its algorithms, for state encoders with convolutions.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


@contextmanager
def exact_products() -> Iterator[None]:
    """Matrix products in full float32 inside the block, as a comparison needs them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def amp_dtype(device: torch.device) -> torch.dtype | None:
    """What mixed precision computes in here: bfloat16 on NVIDIA cards since Ampere and on processors that multiply it
    (AVX512-BF16 or AMX, as AMD's have since Zen 4 and Intel's Xeons since 2020 or 2023), float16 on Volta and Turing,
    None where it would not be faster."""
    if device.type == "cpu":
        return torch.bfloat16 if multiplies_bfloat16() else None
    generation = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
    if generation >= 8:
        return torch.bfloat16
    return torch.float16 if generation == 7 else None


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16 products; where torch cannot tell, it counts as without."""
    asks = (getattr(torch.cpu, name, bool) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(ask() for ask in asks)


def autocast(device: torch.device, enabled: bool) -> AbstractContextManager[Any]:
    """Mixed precision where it is asked for and faster, else nothing."""
    dtype = amp_dtype(device) if enabled else None
    return torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext()


class LossScale:
    """Keeps float16 gradients in range: the loss is multiplied by a scale before backward, the gradients divided by it.

    A scale too large makes gradients overflow; that step is skipped and the scale halved. After 2,000 steps without
    an overflow it is doubled. All on the device, without asking it. Other dtypes have float32's range: the scale is 1.

    torch.amp.GradScaler does the same; this one shares its skipping with the guard against bad numbers, so that there
    is one way in which a step is skipped.

    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
    """

    GROWTH_STEPS = 2_000
    LARGEST = 2.0**127  # twice that is infinity in float32, and half of infinity is infinity

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = torch.full((), 2.0**16 if enabled else 1.0, device=device)
        self.good_steps = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide the gradients by the scale, in place."""
        if self.enabled:
            torch._foreach_mul_(gradients, self.scale.reciprocal())

    def update(self, overflow: torch.Tensor) -> None:
        """Move the scale after a step; `overflow` is 1.0 where its gradients were not finite, else 0.0."""
        if not self.enabled:
            return
        self.skipped += overflow
        self.good_steps = (self.good_steps + 1) * (1 - overflow)
        grow = (self.good_steps >= self.GROWTH_STEPS).float()
        self.scale = (self.scale * (1 - overflow / 2) * (1 + grow)).clamp_max(self.LARGEST)
        self.good_steps = self.good_steps * (1 - grow)

    def state_dict(self) -> dict[str, float]:
        """The scale and its counts; reading them waits for the device, so only a save does it."""
        return {name: float(getattr(self, name)) for name in ("scale", "good_steps", "skipped")}  # WAIT: only to save

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from `state_dict`, unless one of the two machines needs no scale."""
        if not self.enabled or (state["scale"] == 1.0 and not state["skipped"]):
            return
        for name, value in state.items():
            getattr(self, name).fill_(value)


def triton_missing(device: torch.device) -> str | None:
    """Why Triton kernels cannot run here, or None if they can."""
    if find_spec("triton") is None:
        return "triton is not installed here; on Linux, CUDA builds of torch bring it along"
    if os.environ.get("TRITON_INTERPRET") == "1":  # Triton's own switch: kernels run on a CPU, to test them
        return None
    if device.type != "cuda":
        return f"Triton kernels do not run on a {device.type}"
    if torch.cuda.get_device_capability(device)[0] < 7:
        return "Triton needs an NVIDIA card since Volta"
    return None


def explain_out_of_memory(num_steps: int, num_actions: int) -> AbstractContextManager[None]:
    """Say in one line which batch did not fit, and which setting to lower.

    Args:
        num_steps: Steps of the largest batch inside the block.
        num_actions: Its legal actions.

    Raises:
        DeviceMemoryError: The device ran out of memory inside the block.
    """
    batch = f"a batch of {num_steps:,} steps with {num_actions:,} legal actions"
    return _explained(batch, _smaller(num_steps, num_actions))


def _smaller(num_steps: int, num_actions: int) -> str:
    """What makes a batch of this size smaller."""
    if num_steps == 1:
        return "A batch of one step cannot be cut: lower --hidden_dim or --action_hidden_dim."
    return (
        f"Lower --max_actions_per_minibatch to {max(1, num_actions // 4)}, or halve --batch_size and double "
        "--gradient_accumulation_steps (the learning stays the same with either), or lower --hidden_dim."
    )


def explain_too_wide(hidden_dim: int) -> AbstractContextManager[None]:
    """Say in one line that the network itself does not fit.

    Raises:
        DeviceMemoryError: The machine or the device ran out of memory inside the block.
    """
    return _explained(f"a network of width {hidden_dim:,}", "Lower --hidden_dim and --action_hidden_dim.")


@contextmanager
def _explained(got: str, do: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        where = str(error).split("\n")[0][:200]
        raise DeviceMemoryError("out of memory", got=got, where=where, do=do) from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that the machine or the device is out of memory."""
    # torch.OutOfMemoryError on a GPU; on a CPU a plain RuntimeError of the allocator, with other words on Windows.
    is_cpu = any(words in str(error) for words in ("can't allocate memory", "not enough memory"))
    return is_cpu or isinstance(error, torch.OutOfMemoryError)


def release_cached_memory(device: torch.device) -> None:
    """Give back what the GPU's allocator keeps for later; this waits for the device. Nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # WAIT: only every --empty_cache_every updates


def to_device(columns: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy arrays to the device without waiting, through one pinned buffer.

    Args:
        columns: Arrays by name, any dtypes and shapes.
        device: Where to.

    Returns:
        Tensors by the same names. On a CPU they share the arrays' memory.
    """
    require = partial(np.require, requirements=["C", "W"])
    with span("copy"):
        tensors = {name: torch.from_numpy(require(column)) for name, column in columns.items()}
        if device.type == "cpu":
            # `to` copies nothing here. It tells measure/waits.py what would be on a GPU.
            return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return _through_pinned_buffer(tensors, device)


def _through_pinned_buffer(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    # 16 bytes apart, so that every view of the buffer is aligned for its dtype.
    starts, total_bytes = {}, 0
    for name, tensor in tensors.items():
        starts[name] = total_bytes
        total_bytes += -(-tensor.nbytes // 16) * 16
    pinned = torch.empty(total_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for name, tensor in tensors.items():
        if tensor.numel():
            pinned[starts[name] : starts[name] + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
    there = pinned.to(device, non_blocking=True)
    return {
        name: there[starts[name] : starts[name] + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for name, tensor in tensors.items()
    }
