"""The processes that train together, as torchrun starts them. One alone is a world of size 1, not a special case.

    torchrun --nproc-per-node 2 -m movelist train ...

Sums of gradients and weights go from device to device: gloo on CPUs, nccl on GPUs (rank n of a machine computes on
cuda:n). Numbers and words of the host go through gloo. Whoever leaves with an error says so in the launcher's store
first and hangs up, so that nobody waits for it: all end with the reason of the first.
"""

from __future__ import annotations

import atexit
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from movelist.core.errors import DeviceError, MovelistError, ProcessError, SettingsError
from movelist.core.returns import Moments
from movelist.learn.device import choose_device

T = TypeVar("T")
# For a process that neither answers nor hangs up. The others wait while rank 0 plays a match, so this is generous.
PATIENCE = timedelta(minutes=30)
FAREWELL_SECONDS = 10.0  # in which the others fetch the reason, and rank 0 says it
NOBODY = -1  # in place of the rank that failed, where one ended without a word
INTERRUPTED = 130  # the exit code of Ctrl-C
GLOO_SIGNS = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
)
LAUNCHED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """This process among those that train together. All of them make the same calls in the same order.

    Attributes:
        device: Where this process computes.
        rank: 0 to size - 1; rank 0 logs and saves.
        size: Number of processes.
    """

    device: torch.device
    rank: int = 0
    size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of `tensor` over all processes, in place: nothing to add in a world of one."""
        if self.size > 1:
            with _heard():
                dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, net: torch.nn.Module, *others: torch.Tensor) -> None:
        """Replace each gradient, and each of `others`, by the sum over all processes, in one message.

        A process without steps adds zeros.
        """
        if self.size == 1:
            return
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        tensors = [*(parameter.grad for parameter in parameters if parameter.grad is not None), *others]
        # Copying into one buffer and back takes 0.3 ms for 5 MB; gradients that live in it cost as much, in a world of
        # one too, since they must be zeroed and added to.
        total = self.all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        parts = total.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])

    def copy_weights(self, net: torch.nn.Module) -> None:
        """Give all processes the weights of rank 0."""
        if self.size > 1:
            with _heard(), torch.no_grad():
                for tensor in net.state_dict().values():
                    dist.broadcast(tensor, src=0)

    def gather(self, numbers: Sequence[float]) -> NDArray[np.float64]:
        """The numbers of all processes, float64 [size, len(numbers)], in the order of ranks."""
        own = torch.tensor(numbers, dtype=torch.float64)
        if self.size == 1:
            return own[None].numpy()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        with _heard():
            dist.all_gather(parts, own)
        return torch.stack(parts).numpy()

    def moments(self, *columns: NDArray[Any]) -> list[Moments]:
        """Count, mean and squares of each column, over what all processes have of it."""
        own = [number for column in columns for number in astuple(Moments.of(column))]
        rows = self.gather(own).reshape(self.size, len(columns), 3).tolist()
        return [reduce(Moments.merged, (Moments(*row[place]) for row in rows)) for place in range(len(columns))]

    def gather_objects(self, own: T) -> list[T]:
        """An object of each process that can be pickled, in the order of ranks."""
        objects: list[Any] = [own] * self.size
        if self.size > 1:
            with _heard():
                dist.all_gather_object(objects, own)
        return objects

    def first(self, make: Callable[[], T]) -> T:
        """Let rank 0 do something while the others wait; its result, or its error, for all of them."""
        result, error, reason = None, None, None
        if self.rank == 0:
            try:
                result = make()
            except BaseException as caught:
                error, reason = caught, (_words(caught), _exit_code(caught))
        result, reason = self.gather_objects((result, reason))[0]
        if reason:
            raise error or _from_afar(*reason)
        return result  # type: ignore[return-value]

    def deal(self, parts: Sequence[T]) -> T:
        """What rank 0 has for this process; the `parts` of the others are not looked at."""
        own: list[Any] = [parts[0] if self.size == 1 else None]
        if self.size > 1:
            with _heard():
                dist.scatter_object_list(own, list(parts) if self.rank == 0 else None, src=0)
        return own[0]  # type: ignore[no-any-return]

    def shares(self, count: int) -> list[slice]:
        """`count` things in a part for each process, one after another."""
        return [slice(count * rank // self.size, count * (rank + 1) // self.size) for rank in range(self.size)]

    def share(self, count: int) -> slice:
        """This process's part of `count` things."""
        return self.shares(count)[self.rank]

    @property
    def place(self) -> str:
        """Which process, as the end of a place in a message; nothing in a world of one."""
        return f", rank {self.rank}" if self.size > 1 else ""


@contextmanager
def join(device_name: str) -> Iterator[World]:
    """The world that this process was started into, until the end of the block.

    If the block fails in one process, it fails in all: rank 0 raises the error of the first one, the others leave with
    its exit code and without a word.

    Args:
        device_name: "auto", "cpu" or "cuda".

    Raises:
        DeviceError: The device is not there.
        ProcessError: Another process failed.
        SettingsError: The environment holds a part of what torchrun sets.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(choose_device(device_name))
        return
    if missing := [name for name in LAUNCHED if name not in os.environ]:
        raise SettingsError(
            f"WORLD_SIZE is {size}, and {missing[0]} is not set",
            do="Several processes are started by torchrun --nproc-per-node N -m movelist train ...",
        )
    # torch's optimisers import dynamo. Imported while there is a process group, it keeps the group's threads alive to
    # the very end, where one of them may meet a Python that is gone and abort the process.
    import torch._dynamo  # noqa: F401
    from torch.distributed.rendezvous import rendezvous

    rank = int(os.environ["RANK"])
    device = _own_device(device_name, int(os.environ["LOCAL_RANK"]))
    store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    world = World(device, rank, size)
    try:
        yield world
    except BaseException as error:
        if rank and isinstance(error, Exception) and not isinstance(error, MovelistError | OSError):
            traceback.print_exception(error)  # a mistake of the program is shown where it happened
        raise _farewell(error, _shelf(store), world) from None
    dist.destroy_process_group()


def _own_device(name: str, local_rank: int) -> torch.device:
    """cuda:LOCAL_RANK where there are GPUs."""
    if choose_device(name).type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise DeviceError(
                "there are more processes than GPUs on this machine",
                got=f"process {local_rank + 1}",
                expected=f"at most {torch.cuda.device_count()}",
                do="Lower --nproc-per-node, or say --device cpu.",
            )
        torch.cuda.set_device(local_rank)
    return choose_device(name)


@contextmanager
def _heard() -> Iterator[None]:
    """Turn a line that went dead into the error that says so."""
    try:
        yield
    except RuntimeError as error:
        if not _is_dead_line(error):
            raise
        raise ProcessError(
            "another process of this training ended without a word, or did not answer",
            where=str(error).split("\n")[0][:200],
            do="The system may have killed it for its memory; the launcher says which one. Go on from the last "
            "checkpoint.",
        ) from None


def _is_dead_line(error: RuntimeError) -> bool:
    """Whether this is how gloo, nccl or the launcher's store say that nobody answers.

    nccl and the store have errors of their own; gloo raises a plain RuntimeError that begins with the place in its
    source, or says that its time is up. A group that is gone has been hung up by the one that failed.
    """
    if isinstance(error, torch.distributed.DistError):
        return True
    text = str(error)
    return type(error) is RuntimeError and any(sign in text for sign in GLOO_SIGNS)


def _farewell(error: BaseException, store: Any, world: World) -> BaseException:
    """Agree on why all end, and what this process has to raise."""
    try:
        rank, code, text = _reason(error, store, world)
        if rank != NOBODY:  # else torchrun has seen who died, and will not wait either
            _wait_for_others(store, world)
    except RuntimeError:  # the store went away with its process
        rank, code, text = world.rank, _exit_code(error), _words(error)
    if world.rank:
        return SystemExit(code)
    return error if rank in (0, NOBODY) or text == _words(error) else _from_afar(text, code)


def _reason(error: BaseException, store: Any, world: World) -> tuple[int, int, str]:
    """Rank, exit code and words of the first that failed; hangs up, so that the others notice."""
    own = [world.rank, _exit_code(error), _words(error)]
    if not isinstance(error, ProcessError):
        store.compare_set("reason", "", json.dumps(own))
    if world.device.type == "cpu":  # nccl would wait for its last message; its lines close with the process
        dist.destroy_process_group()
    if isinstance(error, ProcessError):
        _wait_until(lambda: store.check(["reason"]), 1.0)  # whoever failed first may still be about to say why
        own[0] = NOBODY
    rank, code, text = json.loads(store.compare_set("reason", "", json.dumps(own)))
    return rank, code, text


def _wait_for_others(store: Any, world: World) -> None:
    """Rank 0 until all know the reason; the others until rank 0 has said it and ends, since torchrun ends what is left
    as soon as one has ended."""
    if world.rank == 0:
        _wait_until(lambda: store.add("readers", 0) == world.size - 1, FAREWELL_SECONDS)
        atexit.register(_tell, store)
    else:
        store.add("readers", 1)
        _wait_until(lambda: store.check(["said"]), FAREWELL_SECONDS)


def _wait_until(there: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not there() and time.monotonic() < deadline:
        time.sleep(0.05)


def _tell(store: Any) -> None:
    with suppress(RuntimeError):
        store.set("said", "1")


def _shelf(store: Any) -> Any:
    """The launcher's store without its own words."""
    from torch.distributed.distributed_c10d import PrefixStore  # there are builds of torch without: they train alone

    return PrefixStore("movelist", store)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)


def _words(error: BaseException) -> str:
    """What the others are told."""
    if isinstance(error, MovelistError | OSError):
        return str(error)
    return type(error).__name__ + (f": {error}" if str(error) else "")


def _from_afar(text: str, code: int) -> BaseException:
    """The error of another process; Ctrl-C is everybody's."""
    if code == INTERRUPTED:
        return KeyboardInterrupt()
    error = ProcessError(text)
    error.exit_code = code
    return error
