"""Numbers of an update, summed where they arise and read once; and `span`, a mark for whoever measures time.

Nothing here reads a clock or makes the host wait: sums stay on the device until `Sums.read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

SpanHook = Callable[[str], AbstractContextManager[None]]
_span_hook: SpanHook | None = None


def span(name: str) -> AbstractContextManager[None]:
    """Mark a stretch of work, as in `with span("forward"):`. Costs nothing unless a measurer is installed.

    The trainer's own: game, plan, load (waiting for recorded episodes), copy (to the device), forward, loss, backward,
    optimiser, read (the host waits for the device's answer), logging. They may lie in one another.
    """
    return _span_hook(name) if _span_hook is not None else nullcontext()


@contextmanager
def span_hook(hook: SpanHook) -> Iterator[None]:
    """Call `hook(name)` for each span inside this block; the one before is put back afterwards, also after an error."""
    global _span_hook
    before, _span_hook = _span_hook, hook
    try:
        yield
    finally:
        _span_hook = before


class Sums:
    """Named sums of numbers on one device, float64.

    Example: two minibatches of 3 steps and 1 step; the average over steps is 2.0, not the mean of the means 3.0:
        >>> sums = Sums(("loss", "steps"), torch.device("cpu"))
        >>> sums.add({"loss": torch.tensor(3.0), "steps": torch.tensor(3.0)})
        >>> sums.add({"loss": torch.tensor(5.0), "steps": torch.tensor(1.0)})
        >>> total = sums.read()
        >>> total["loss"] / total["steps"]
        2.0
    """

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self.names = names
        self.vector = torch.zeros(len(names), dtype=torch.float64, device=device)

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add one 0-d tensor to every sum.

        Raises:
            KeyError: A name is missing, which is a mistake of the caller.
        """
        self.vector += torch.stack([values[name].detach().double() for name in self.names])

    def append(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add further 0-d tensors, to be read along with the sums."""
        self.names = (*self.names, *values)
        self.vector = torch.cat([self.vector, torch.stack([value.double() for value in values.values()])])

    def read(self) -> dict[str, float]:
        """Bring the sums to the host: this waits for the device."""
        with span("read"):
            return dict(zip(self.names, self.vector.tolist(), strict=True))  # WAIT: the one read of an update's metrics
