"""Training beside an engine that is playing: it writes episodes to a folder, and waits for each new policy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from movelist.core.patience import Patience
from movelist.core.settings import TrainSettings
from movelist.data.episode import Episodes
from movelist.data.loader import State, Stream
from movelist.data.record_format import Widths
from movelist.data.store import Stored
from movelist.data.watch import WatchStream
from movelist.play.policy import Policy
from movelist.run.recorded import OpenData, Recorded

WATCH_LAG = 32  # updates; the default of --max_policy_lag with --watch
LOOK_SECONDS = 0.5  # how long to wait for an engine before asking whether anyone wants to stop


@dataclass
class _Elsewhere:
    """A stream that rank 0 reads for all."""

    widths: Widths

    def rollouts(self, state: State, num_episodes: int) -> Iterator[tuple[Stored | None, State]]:
        """None here."""
        return iter(())

    def done(self, state: State) -> float:
        """See `loader.Stream`."""
        return 0.0


class Watched(Recorded):
    """The supply of a folder that an engine writes to, which in turn waits for each new policy.

    Args:
        data: As for `Recorded`.
        settings: As for `Recorded`.
        asked_to_stop: Whether somebody wants to stop; all processes agree on it.
        publish: Hands the present policy to the engine; called in the first process with the files that can go.
        **common: The other arguments of `Recorded`.
    """

    each_update_counts = True

    def __init__(
        self,
        data: OpenData,
        settings: TrainSettings,
        *,
        asked_to_stop: Callable[[], bool],
        publish: Callable[[list[str] | None], None],
        **common: Any,
    ) -> None:
        super().__init__(data, settings, **common)
        self.asked_to_stop, self.publish = asked_to_stop, publish
        # Waiting is no training, so max_seconds bounds it by the clock.
        self._deadline = time.monotonic() + (settings.run.max_seconds or math.inf)
        self._look_until = math.inf
        self.source.keep_going = lambda: time.monotonic() < self._look_until
        self.source.deal = self._deal
        if self.source.max_lag is None:
            self.source.max_lag = WATCH_LAG

    def lines(self) -> list[str]:
        """See `Supply`."""
        first, *more = super().lines()
        where = f"Watching {self.data.watched}; episodes are used once, and used_files.json lists what can go."
        return [first, where, *more]

    def begin(self) -> None:
        """An engine that waits for policies need not make one up before the first update."""
        self.world.first(lambda: self.publish(None))

    def collect(self, policy: Policy, num_episodes: int) -> Episodes:
        """The next episodes that the engine wrote; none once it is time to stop. See `Supply`."""
        patience = Patience()
        while True:
            self._look_until = time.monotonic() + LOOK_SECONDS
            episodes = super().collect(policy, num_episodes)
            if self.world.gather([len(episodes)]).any() or self._tired():
                return episodes
            if waited := patience.word_is_due():
                self.say(f"Waiting for {waited} for {num_episodes:,} new episodes in {self.data.watched}.")

    def saved(self) -> None:
        """See `Supply`."""
        state = self.source.state_dict()
        self.publish(self.stream.used_up(state) if isinstance(self.stream, WatchStream) else [])

    def _tired(self) -> bool:
        """Whether one of the processes waits no longer for the engine."""
        late_R = self.world.gather([time.monotonic() > self._deadline])
        return self.asked_to_stop() or bool(late_R.any())

    def _stream(self) -> Stream:
        watched, keep_forced = self.data.watched, self.settings.play.keep_forced
        if self.world.rank or watched is None:
            return _Elsewhere(self.data.widths)
        refusing: dict[str, Any] = {"report": self._report, "num_actions": self.num_actions}
        return WatchStream(watched, keep_forced=keep_forced, widths=self.data.widths, say=self.say, **refusing)

    def _deal(self, rollout: Stored | None) -> Stored | None:
        """This process's part of what rank 0 found in the watched folder."""
        whole = np.arange(0 if rollout is None else len(rollout))
        return self.world.deal([rollout and rollout.take(whole[part]) for part in self.world.shares(len(whole))])
