"""How many processes train together, and which one this is. One alone is a world of size 1, not a special case."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class World:
    """This process among those that train together.

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
        return tensor
