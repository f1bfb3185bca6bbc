"""Where the host waits for the device: each place with its line, counted while a program runs.

    with count_waits() as waits:
        learner.update(prepared)
    print(waits)

A wait is a question that only the device can answer: the value of a tensor (`item`, `tolist`, `bool(tensor)`, `print`),
the size of a result (`nonzero`, `unique`, a boolean index), a copy that blocks, an explicit synchronise.

Without a GPU this is a rehearsal: all tensors lie on the CPU, and nothing waits, so the sides are told apart by how a
program is written. A tensor is the host's if it came from numpy or was made without a device inside the block, was
brought back (`cpu()`, `to("cpu")`), or was computed from such alone. Every other is the device's: what was there before
the block, what was made with `device=` or came by `to(device)`. There "cpu" written as text means the host, and a
`torch.device` the device that the program chose.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from movelist.measure.wait_kinds import (
    ASKS,
    BOOLEAN,
    FROM_HOST,
    READS,
    SYNCHRONISE,
    index_parts,
    is_host,
    non_blocking,
    target_of,
    tensors_in,
)

_TORCH, _OWN = str(Path(torch.__file__).parent), (__file__,)

LIMITS = (
    "not seen: waits inside C++ extensions, compiled graphs, CUDA libraries and the memory allocator",
    "not seen: a synchronise that was imported by name before (from torch.cuda import synchronize)",
)


@dataclass(frozen=True, order=True)
class Wait:
    """One place where the host waits.

    Attributes:
        file: The innermost file outside torch.
        line: The line in it that was running.
        kind: What it did, as in READS and ASKS.
        count: How many times.
    """

    file: str
    line: int
    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}, {self.count}x"


class Waits:
    """What was found; complete when the block has ended."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, int, str]] = Counter()
        self.num_threads = 0
        self.rehearsal = not torch.accelerator.is_available()

    @property
    def found(self) -> list[Wait]:
        """Every place, by file and line."""
        return sorted(Wait(*place, count) for place, count in self._count.items())

    @property
    def total(self) -> int:
        """All waits together."""
        return self._count.total()

    @property
    def unseen(self) -> list[str]:
        """What these numbers cannot tell, one sentence each."""
        threads = f"not seen: {self.num_threads} other threads ran or were started inside the block"
        rehearsal = "no GPU here: counted is what would wait on one, judged by how the program is written"
        return [*([threads] if self.num_threads else []), *([rehearsal] if self.rehearsal else []), *LIMITS]

    def __str__(self) -> str:
        return "\n".join([f"{self.total} waits", *map(str, self.found), *self.unseen])

    def note(self, kind: str) -> None:
        """Count one wait at the line that is running."""
        self._count[(*_place(), kind)] += 1


@contextmanager
def count_waits(*, refuse_others: bool = False) -> Iterator[Waits]:
    """Count the waits of the block, in this thread. May be nested; leaves the process as it was, also after an error.

    Args:
        refuse_others: On an NVIDIA GPU, let CUDA raise at a wait that is not counted here
            (`torch.cuda.set_sync_debug_mode("error")`, which is set for the whole process): so the counting is known to
            be complete but for explicit synchronisation and copies from pageable memory, which CUDA does not report.
            Without such a GPU nothing happens.

    Yields:
        The waits; read them when the block has ended.

    Raises:
        RuntimeError: With `refuse_others`, CUDA waited at a place that nothing here knows.
    """
    waits = Waits()
    waits.num_threads = threading.active_count() - 1
    with ExitStack() as stack:
        allow = stack.enter_context(_cuda_refuses()) if refuse_others else nullcontext
        for owner, name, kind in SYNCHRONISE:
            stack.enter_context(_replaced(owner, name, partial(waits.note, kind)))
        stack.enter_context(_replaced(threading.Thread, "start", lambda: _more_threads(waits)))
        stack.callback(register_optimizer_step_pre_hook(lambda optimizer, *_: _unfused(waits, optimizer)).remove)
        state = _State(waits, allow)
        functions = stack.enter_context(_Functions(state))
        # torch puts the mode aside while it runs a function; Python code inside backward needs it back.
        if hasattr(torch.autograd, "_engine_run_backward"):
            stack.enter_context(_replaced(torch.autograd, "_engine_run_backward", lambda: functions))
        stack.enter_context(_Operators(state))
        yield waits


def _more_threads(waits: Waits) -> None:
    waits.num_threads += 1


def _unfused(waits: Waits, optimizer: Any) -> None:
    if isinstance(optimizer, torch.optim.Adam) and not optimizer.defaults.get("fused"):
        waits.note("Adam without fused=True: it cannot skip a step without asking the device")


def _place() -> tuple[str, int]:
    """File and line of the innermost frame outside torch and this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if file not in _OWN and not file.startswith((_TORCH, "<frozen")):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@contextmanager
def _replaced(owner: Any, name: str, before: Callable[[], AbstractContextManager[Any] | None]) -> Iterator[None]:
    """Call `before` before each call of `owner.name`, and hold what it returns meanwhile."""
    original = getattr(owner, name)
    own = name in vars(owner)

    def noted(*args: Any, **kwargs: Any) -> Any:
        with before() or nullcontext():
            return original(*args, **kwargs)

    setattr(owner, name, noted)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:  # inherited
            delattr(owner, name)


@contextmanager
def _cuda_refuses() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Let CUDA raise at each wait, but for those inside the yielded context."""
    try:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
    except (AssertionError, RuntimeError):  # a build without CUDA, or no driver
        yield nullcontext
        return

    @contextmanager
    def allowed() -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("default")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("error")

    try:
        yield allowed
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _State:
    """What both modes share: which tensors are the host's, and whether a wait is being counted already."""

    def __init__(self, waits: Waits, allow: Callable[[], AbstractContextManager[None]]) -> None:
        self.waits, self.allow = waits, allow
        self.quiet = False  # inside a function that was counted, or that has nothing to do with the device
        self.fills = False  # inside `x[...] = number`
        self._host = WeakTensorKeyDictionary()

    def on_device(self, tensor: torch.Tensor) -> bool:
        return tensor not in self._host if self.waits.rehearsal else tensor.device.type != "cpu"

    def mark(self, result: Any, *, host: bool, given: Sequence[torch.Tensor] = ()) -> Any:
        """Note the side of a result. A result that is an argument itself becomes a view: it has two sides."""
        if isinstance(result, tuple | list):
            items = [self.mark(item, host=host, given=given) for item in result]
            same = all(new is old for new, old in zip(items, result, strict=True))
            return result if same else type(result)(items)
        if not isinstance(result, torch.Tensor) or self.on_device(result) != host:
            return result
        if any(result is tensor for tensor in given):
            result = result.view_as(result)
        if host:
            self._host[result] = True
        else:
            self._host.pop(result, None)
        return result


class _Functions(TorchFunctionMode):
    """Sees what a program calls: the methods of tensors and the functions of torch."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        state, kwargs = self.state, kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        on_device = any(state.on_device(tensor) for tensor in tensors)
        kind = self._kind(func, args, kwargs, on_device)
        if kind:
            state.waits.note(kind)
        before = state.quiet, state.fills
        state.quiet = state.quiet or bool(kind) or (bool(tensors) and not on_device)
        state.fills = func is torch.Tensor.__setitem__ and isinstance(args[2], int | float)
        try:
            with state.allow() if kind else nullcontext():
                result = func(*args, **kwargs)
        finally:
            state.quiet, state.fills = before
        return self._marked(func, args, kwargs, tensors, on_device, result) if state.waits.rehearsal else result

    def _kind(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], on_device: bool) -> str | None:
        """What kind of wait this call is, seen from outside; None if it is none."""
        state = self.state
        if state.quiet:
            return None
        if func in READS:
            return READS[func] if on_device else None
        if func is torch.Tensor.to:
            target = target_of(args[1:], kwargs)
            if target is None or non_blocking(args, kwargs):
                return None
            if state.on_device(args[0]):
                return '.to("cpu")' if is_host(target, state.waits.rehearsal) else None
            return None if is_host(target, state.waits.rehearsal) else "a blocking copy to the device"
        if func is torch.Tensor.copy_ and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
            there, source = state.on_device(args[0]), state.on_device(args[1])
            return None if there == source else "a blocking copy " + ("to the device" if there else "to the host")
        if func in FROM_HOST:
            target = kwargs.get("device", args[0].device if func is torch.Tensor.new_tensor and on_device else None)
            on_host = target is None or is_host(target, state.waits.rehearsal)
            is_data = not any(state.on_device(tensor) for tensor in tensors_in(args[:1]))
            return "a blocking copy to the device" if is_data and not on_host else None
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and on_device:
            return "an index that the host holds" if any(map(self._held_by_host, index_parts(args[1]))) else None
        return None

    def _held_by_host(self, part: Any) -> bool:
        if isinstance(part, torch.Tensor):
            return part.ndim > 0 and not self.state.on_device(part)
        return isinstance(part, list | np.ndarray | range)

    def _marked(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: list[torch.Tensor],
        on_device: bool,
        result: Any,
    ) -> Any:
        """The result with its side: that of its target, else of its arguments."""
        target = target_of(args[1:] if func is torch.Tensor.to else (), kwargs)
        host = not on_device
        if func is torch.Tensor.cpu:
            host = True
        elif target is not None:
            host = is_host(target, rehearsal=True)
        return self.state.mark(result, host=host, given=tensors)


class _Operators(TorchDispatchMode):
    """Sees what torch does inside its functions, and in backward."""

    def __init__(self, state: _State) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state = state

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        state, kwargs = self.state, kwargs or {}
        kind = None
        if not state.quiet and any(state.on_device(tensor) for tensor in tensors_in((args, kwargs))):
            kind = self._kind(func, args, kwargs)
        if kind:
            state.waits.note(kind)
        with state.allow() if kind else nullcontext():
            result = func(*args, **kwargs)
        if state.waits.rehearsal and func is torch.ops.aten.lift_fresh.default:  # what torch.from_numpy ends with
            state.mark(result, host=True)
        return result

    def _kind(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        name = func._schema.name
        if name in ASKS:
            return ASKS[name]
        if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
            return "repeat_interleave without output_size"
        if name == "aten::segment_reduce" and not kwargs.get("unsafe"):
            return "segment_reduce without unsafe=True"
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            # A boolean index is counted first; only a fill with one number becomes a masked_fill instead.
            boolean = any(part is not None and part.dtype in BOOLEAN for part in args[1])
            return "a boolean index" if boolean and not self.state.fills else None
        if name in ("aten::_to_copy", "aten::copy_") and not self.state.waits.rehearsal:
            return self._copy(name, args, kwargs)
        return None

    def _copy(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """A copy between host and device inside another function."""
        source = args[1] if name == "aten::copy_" else args[0]
        target = args[0].device if name == "aten::copy_" else torch.device(kwargs.get("device") or source.device)
        blocks = not (kwargs.get("non_blocking") or args[2:3] == (True,))
        return "a blocking copy inside another function" if blocks and source.device.type != target.type else None
