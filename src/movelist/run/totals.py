"""What all processes of a training collected together for an update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from movelist.data.episode import Episodes
from movelist.learn.parallel import World


@dataclass(frozen=True)
class Totals:
    """Sums over all processes.

    Attributes:
        processes: How many there are.
        episodes: Episodes.
        steps: Steps to train on.
        actions: Legal actions of these steps.
        turns: Turns, forced ones too.
        return_P: [P], each seat's mean return.
        truncated: Episodes that were cut off before their end.
    """

    processes: int
    episodes: int
    steps: int
    actions: int
    turns: int
    return_P: NDArray[np.float64]
    truncated: int

    @classmethod
    def of(cls, episodes: Episodes, world: World) -> Totals:
        """Of each process's own episodes."""
        own = [len(episodes), episodes.num_steps, episodes.num_actions, episodes.num_turns, episodes.truncated_E.sum()]
        total = world.gather([*own, *episodes.return_EP.sum(axis=0)]).sum(axis=0)
        num_episodes, steps, actions, turns, truncated = total[:5].astype(int).tolist()
        return_P = total[5:] / max(1, num_episodes)
        return cls(world.size, num_episodes, steps, actions, turns, return_P, truncated)
