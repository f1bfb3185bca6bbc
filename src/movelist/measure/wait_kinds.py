"""Which calls and operators of torch make the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Functions that bring a value to the host.
READS: dict[Any, str] = {
    getattr(torch.Tensor, name): kind
    for name, kind in {
        "item": ".item()",
        "tolist": ".tolist()",
        "cpu": ".cpu()",
        "numpy": ".numpy()",
        "__array__": "numpy.asarray(tensor)",
        "__bool__": "bool(tensor)",
        "__int__": "int(tensor)",
        "__float__": "float(tensor)",
        "__complex__": "complex(tensor)",
        "__index__": "a tensor as an index",
        "__contains__": "x in tensor",
        "__repr__": "print of a tensor",
        "__format__": "print of a tensor",
        "__reduce_ex__": "pickle of a tensor",
        "is_nonzero": "bool(tensor)",
        "equal": "equal",
        "allclose": "allclose",
    }.items()
} | {torch.is_nonzero: "bool(tensor)", torch.equal: "equal", torch.allclose: "allclose"}

# Operators that ask the device for the size or the worth of their result, by their name without the overload.
ASKS = {
    "aten::_local_scalar_dense": "a value inside another function",
    "aten::equal": "equal",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique": "unique",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::bincount": "bincount",
    "aten::multinomial": "multinomial",
    "aten::_linalg_check_errors": "linear algebra that checks its result",
}
BOOLEAN = (torch.bool, torch.uint8)
# Functions that copy what the host holds to the device they are given.
FROM_HOST = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
SYNCHRONISE: tuple[tuple[Any, str, str], ...] = (
    (torch.cuda, "synchronize", "synchronise"),
    (torch.cuda, "empty_cache", "empty_cache"),
    (torch.accelerator, "synchronize", "synchronise"),
    (torch.cpu, "synchronize", "synchronise"),
    (torch.cuda.Stream, "synchronize", "synchronise a stream"),
    (torch.cuda.Event, "synchronize", "synchronise an event"),
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors among arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def index_parts(index: Any) -> Sequence[Any]:
    """What stands between the brackets."""
    return index if isinstance(index, tuple) else (index,)


def target_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The device that a call asks for: a torch.device, its name, or None."""
    for value in (kwargs.get("device"), *args):
        if isinstance(value, torch.device | str):
            return value
    return None


def is_host(target: torch.device | str, rehearsal: bool) -> bool:
    """Whether a target is the host's memory; in a rehearsal a torch.device is what the program computes on."""
    if rehearsal:
        return isinstance(target, str) and target == "cpu"
    return torch.device(target).type == "cpu"


def non_blocking(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether `to` was told not to wait; from pageable memory to a GPU it does all the same."""
    asked = kwargs.get("non_blocking") or args[3:4] == (True,)  # to(device, dtype, non_blocking)
    source = args[0]
    pageable = torch.cuda.is_available() and source.device.type == "cpu" and not source.is_pinned()
    return bool(asked) and not pageable
