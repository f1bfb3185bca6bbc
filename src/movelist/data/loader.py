"""A Source that trains from recordings or a store: a thread reads ahead while the device computes.

A stream says which episodes come next, and where it stands after each rollout; the thread keeps two ready. What
a checkpoint holds is where the last rollout that was handed out ended, however far the thread has read.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import DataError
from movelist.core.metrics import span
from movelist.core.shell import quoted
from movelist.data import recordings
from movelist.data.episode import OTHER, POLICY, Episodes, Share, everything, no_episodes
from movelist.data.record_format import CONTROLLER_NAMES, DTYPES, Widths
from movelist.data.record_rules import NO_VERSION, Position, Problem, no_row
from movelist.data.same_file import distinct
from movelist.data.store import Store, Stored, join_stored, outside_table, stored

Array = NDArray[Any]
AHEAD = 2  # rollouts kept ready
BLOCK_ROLLOUTS, BLOCK_BYTES = 4, 128 << 20  # recordings are shuffled within blocks of this many rollouts, or this size
State = dict[str, Any]


class Stream(Protocol):
    """Which episodes come next."""

    widths: Widths

    def rollouts(self, state: State, num_episodes: int) -> Iterator[tuple[Stored | None, State]]:
        """Rollouts of at most `num_episodes`, each with where the stream stands after it; None while it has to wait."""

    def done(self, state: State) -> float:
        """Share of all that there is, 0 to 1; 0 where nobody knows."""


def even_parts(num_episodes: int, largest: int) -> list[Array]:
    """Numbers 0 to num_episodes - 1, cut into as few parts as `largest` allows, as equal as can be."""
    return np.array_split(np.arange(num_episodes), max(1, -(-num_episodes // largest)))


class StoreStream:
    """All episodes of a store in a random order, another one each pass.

    Args:
        store: The store.
        passes: How many times.
        seed: Of the order.
        share: Which episodes of a rollout are read here; together, several processes read what one would.
        num_episodes: How many of the store's, the same in all processes, though it may be added to; None takes all.
        num_actions: Rows of the network's table of actions, without which an episode is left out; 0 for no table.
        report: Told of each episode that is left out, in the first pass.
    """

    def __init__(
        self,
        store: Store,
        *,
        passes: int,
        seed: int,
        share: Share = everything,
        num_episodes: int | None = None,
        num_actions: int = 0,
        report: Callable[[Problem], None] | None = None,
    ) -> None:
        self.store, self.passes, self.seed, self.share, self.widths = store, passes, seed, share, store.widths
        self.num_episodes = len(store) if num_episodes is None else num_episodes
        self.num_actions, self.report = num_actions, report

    def rollouts(self, state: State, num_episodes: int) -> Iterator[tuple[Stored | None, State]]:
        """See `Stream`."""
        first, sizes = state.get("part", 0), state.get("sizes", [])
        for number in range(state.get("pass", 0), self.passes):
            sizes = self._sizes(sizes)
            parts = self._parts(number, sizes, num_episodes)
            for part in range(first, len(parts)):
                mine = parts[part][self.share(len(parts[part]))]
                place = {"pass": number, "part": part + 1, "of": len(parts), "sizes": sizes}
                yield self._taken(mine, number), place
            first, sizes = 0, []

    def _taken(self, index_E: Array, number: int) -> Stored:
        """These episodes; those with an id that the network's table has no row for are left out and told."""
        taken = self.store.take(index_E)
        if not self.num_actions or not (bad_E := outside_table(taken.episodes, self.num_actions)).any():
            return taken
        for place in self.store.places(index_E)[bad_E].tolist():
            if self.report is not None and number == 0:
                self.report(no_row(str(self.store.path), f"episode {place}", self.num_actions))
        return taken.take(np.flatnonzero(~bad_E))

    def _sizes(self, before: list[int]) -> list[int]:
        """How many episodes the store had each time this pass was taken up: what came since follows in its own order.

        Raises:
            DataError: It has fewer than before.
        """
        if before and before[-1] > self.num_episodes:
            raise DataError("the store has fewer episodes than when this training began", got=self.num_episodes,
                            expected=before[-1], where=str(self.store.path),
                            do="Put it back, or begin a new run with --init_from.")  # fmt: skip
        return before if before and before[-1] == self.num_episodes else [*before, self.num_episodes]

    def _parts(self, number: int, sizes: list[int], num_episodes: int) -> list[Array]:
        """The numbers of the episodes of each rollout of a pass."""
        rng = np.random.default_rng([self.seed, number])
        parts = []
        for start, stop in pairwise([0, *sizes]):
            order = start + rng.permutation(stop - start)
            parts += [order[part] for part in even_parts(len(order), num_episodes)]
        return parts

    def done(self, state: State) -> float:
        """See `Stream`; of a version that did not note the parts of a pass, the share of the passes there were then."""
        if "of" not in state:
            return float(state.get("done", 0.0))
        return float((state["pass"] + state["part"] / state["of"]) / self.passes)


class RecordingStream:
    """The episodes of recordings, file after file, shuffled within blocks.

    Args:
        files: In the order to be read.
        passes: How many times.
        seed: Of the order within blocks.
        keep_forced: Keep turns with one legal action.
        report: Told of each problem, in the first pass.
        share: Which episodes of a rollout are kept here; several processes all read the files, and share what is there.
        sizes: How many bytes of each file are read, the same in all processes, though a writer goes on; None reads all.
        num_actions: Rows of the network's table of actions, without which an episode is left out; 0 for no table.

    Raises:
        DataError: No episode can be used.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        passes: int,
        seed: int,
        keep_forced: bool,
        report: Callable[[Problem], None] | None = None,
        share: Share = everything,
        sizes: Sequence[int] | None = None,
        num_actions: int = 0,
    ) -> None:
        self.ends = dict(zip(map(str, files), sizes, strict=True)) if sizes is not None else {}
        self.num_actions = num_actions
        self.files, self.passes, self.seed, self.keep_forced, self.report = files, passes, seed, keep_forced, report
        self.share = share
        self.widths = first_widths(files)

    def rollouts(self, state: State, num_episodes: int) -> Iterator[tuple[Stored | None, State]]:
        """See `Stream`."""
        first = state.get("part", 0)
        for number in range(state.get("pass", 0), self.passes):
            for block, start in self._blocks(state, number, num_episodes):
                rng = np.random.default_rng([self.seed, number, start["block"]])
                order = rng.permutation(len(block))
                parts = even_parts(len(block), num_episodes)
                for part in range(first, len(parts)):
                    mine = parts[part][self.share(len(parts[part]))]
                    yield block.take(order[mine]), {**start, "pass": number, "part": part + 1, "size": len(block)}
                first = 0
            state = {}

    def _blocks(self, state: State, number: int, num_episodes: int) -> Iterator[tuple[Stored, State]]:
        """Blocks of one pass, each with where it starts."""
        start = {"files": list(map(str, self.files)), "file": 0, "position": asdict(Position()), "block": 0, **state}
        whole = start.pop("size", 0)  # of a block that is begun: what came since belongs to the next one
        report = self.report if number == 0 else None
        parts: list[Stored] = []
        count = size = 0
        for file in range(start["file"], len(files := self._files_left(start["files"], start["file"]))):
            position = Position(**start["position"]) if file == start["file"] else Position()
            reading = recordings.read(
                files[file],
                start=position,
                expected=self.widths,
                report=report,
                end=self.ends.get(str(files[file])),
                num_actions=self.num_actions,
            )
            for columns in reading:
                ready, taken = stored(columns, keep_forced=self.keep_forced), 0
                while taken < len(ready):
                    most = whole or num_episodes * BLOCK_ROLLOUTS
                    part = ready.take(np.arange(taken, min(len(ready), taken + most - count)))
                    parts.append(part)
                    taken, count = taken + len(part), count + len(part)
                    size += part.episodes.state_NS.nbytes
                    if count >= most or (not whole and size >= BLOCK_BYTES and count >= num_episodes):
                        yield join_stored(parts), start
                        place = {"files": start["files"], "file": file, "position": asdict(columns.position(taken - 1))}
                        start = {**place, "block": start["block"] + 1}
                        parts, count, size, whole = [], 0, 0, 0
        if parts:
            yield join_stored(parts), start

    def _files_left(self, names: list[str], used: int) -> list[Path]:
        """The pass's files by the names it began with, of which some are used; `names` learns those that came since.

        Raises:
            DataError: One that is not used yet is gone.
        """
        there = list(map(str, self.files))
        for name in names[used:]:
            if name not in there and not _passed_over(Path(name), self.files):
                raise DataError("a recording that this training still needs is gone", got=name,
                                do="Put it back, or begin a new run with --init_from.")  # fmt: skip
        names += [name for name in there if name not in set(names)]
        return list(map(Path, names))

    def done(self, state: State) -> float:
        """See `Stream`; by files, since nobody has counted their episodes."""
        share = (state.get("pass", 0) + state.get("file", 0) / len(state.get("files", self.files))) / self.passes
        return float(min(share, 0.999))


def _passed_over(file: Path, files: Sequence[Path]) -> bool:
    """Whether a file that is there is not among the files as a copy or leftover, which version 0.1 took, too."""
    if not file.is_file():
        return False
    if recordings.is_leftover(file, file.parent.parent):
        return True
    return len(distinct([*files, file], lambda text: None)) == len(files)


def first_widths(files: Sequence[Path]) -> Widths:
    """The widths of the first episode that can be used.

    Raises:
        DataError: None can; names the first problem.
    """
    problems: list[Problem] = []
    for file in files:
        for columns in recordings.read(file, report=problems.append):
            return columns.widths
    first = f", the first problem: {problems[0]}" if problems else ""
    raise DataError(f"nothing in the recordings can be used{first}", where=", ".join(map(str, files[:3])),
                    do=f"See movelist check {quoted(files[0])}")  # fmt: skip


@dataclass
class RecordedSource:
    """Episodes from a stream, as a Source.

    Attributes:
        stream: Which episodes come next.
        learn_from: The controllers whose steps are trained on.
        max_lag: Seats of a policy older than this many updates are not trained on; None never minds.
        version: The present policy's number.
        keep_going: Asked while waiting; once it says no, nothing more is handed out.
        say: Told what a person should know.
        total: The sums of some numbers over all processes that read together.
        deal: What this process gets of a rollout that one of them read for all; None stands for none.
        last: The last rollout.
        metrics: Numbers of the last rollout, by their tags.
    """

    stream: Stream
    learn_from: frozenset[int] = frozenset({POLICY})
    max_lag: int | None = None
    version: Callable[[], int] = lambda: 0
    keep_going: Callable[[], bool] = lambda: True
    say: Callable[[str], None] = lambda _: None
    total: Callable[..., list[int]] = lambda *numbers: list(numbers)
    deal: Callable[[Stored | None], Stored | None] = lambda rollout: rollout
    last: Stored | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    _waited: float = 0.0  # seconds since the last rollout
    _state: State = field(default_factory=dict)
    _ready: queue.Queue[Any] = field(default_factory=queue.Queue)
    _thread: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _said: set[str] = field(default_factory=set)

    def collect(self, policy: Any, num_episodes: int) -> Episodes:
        """The next episodes; see `data.episode.Source`. The policy is not asked: they are played already."""
        while True:
            self._start(num_episodes)
            started = time.perf_counter()
            with span("load"):
                rollout = self.deal(self._next())
            self._waited += time.perf_counter() - started
            learnable = self._taken(rollout) if rollout else nothing(self.stream.widths)
            # Who is at the end goes on with nothing until all are.
            steps, not_at_the_end = self.total(learnable.num_steps, rollout is not None)
            if steps or not not_at_the_end:
                return learnable
            if rollout:
                self._refuse_if_nobody(rollout)

    def _taken(self, rollout: Stored) -> Episodes:
        """The steps to train on."""
        episodes, self.metrics = self._chosen(rollout)
        self.last = rollout
        self.metrics["data/wait_seconds"], self._waited = self._waited, 0.0
        return episodes.learnable()

    @property
    def done(self) -> float:
        """Share of the data that is used, 0 to 1."""
        return self.stream.done(self._state)

    def state_dict(self) -> State:
        """Where the last rollout handed out ended."""
        return dict(self._state)

    def load_state_dict(self, state: State) -> None:
        """Go on from there."""
        self.close()
        self._state = dict(state)

    def close(self) -> None:
        """Stop reading ahead."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._stop = None, threading.Event()

    def _start(self, num_episodes: int) -> None:
        if self._thread is None:
            self._ready = queue.Queue(AHEAD)
            arguments = (self.stream, self._state, num_episodes, self._ready, self._stop)
            self._thread = threading.Thread(target=_read_ahead, args=arguments, daemon=True, name="movelist-loader")
            self._thread.start()

    def _next(self) -> Stored | None:
        """The next rollout; None once there is none, or nobody wants to wait for it."""
        while True:
            try:
                item = self._ready.get(timeout=0.2)
            except queue.Empty:
                if not self.keep_going():
                    return None
                continue
            if isinstance(item, BaseException):
                self.close()
                raise item
            if item is None:
                self.close()
                return None
            rollout, self._state = item
            return rollout  # type: ignore[no-any-return]

    def _chosen(self, rollout: Stored) -> tuple[Episodes, dict[str, float]]:
        """Mark the seats to be trained on as POLICY and the others as OTHER; and what is to be said about them."""
        episodes, version_EP = rollout.episodes, rollout.version_EP
        mine_EP = np.isin(episodes.controller_EP, sorted(self.learn_from))
        known_EP = mine_EP & (version_EP != NO_VERSION)
        lag_EP = np.maximum(0, self.version() - version_EP)
        old_EP = known_EP & (lag_EP > self.max_lag) if self.max_lag is not None else np.zeros_like(mine_EP)
        mine_EP &= ~old_EP
        seat = (episodes.episode_N, episodes.player_N)
        missing = float(np.isnan(episodes.log_prob_N[mine_EP[seat]]).mean()) if mine_EP[seat].any() else 0.0
        metrics = {"data/too_old_seats": float(old_EP.sum()), "data/missing_log_prob_share": missing}
        if known_EP.any():
            metrics["data/policy_lag"] = float(lag_EP[known_EP].mean())
        controller_EP = np.where(mine_EP, POLICY, OTHER).astype(np.int8)
        return replace(episodes, controller_EP=controller_EP), metrics

    def _refuse_if_nobody(self, rollout: Stored) -> None:
        there = set(np.unique(rollout.episodes.controller_EP).tolist())
        if not there & self.learn_from:
            wanted = " or ".join(CONTROLLER_NAMES[number] for number in sorted(self.learn_from))
            found = " and ".join(CONTROLLER_NAMES[number] for number in sorted(there))
            raise DataError("no step of these episodes can be trained on", got=f"seats moved by {found}",
                            expected=f"some moved by {wanted}",
                            do="Say --learn_from all, or --imitate for games of people.")  # fmt: skip
        if "old" not in self._said:
            self._said.add("old")
            self.say(f"Episodes are left out: their policies are more than {self.max_lag} updates old "
                     "(--max_policy_lag).")  # fmt: skip


def _read_ahead(
    stream: Stream, state: State, num_episodes: int, ready: queue.Queue[Any], stop: threading.Event
) -> None:
    """The thread: fill the queue until the stream ends or `stop` is set; an error is handed over, not printed."""

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    try:
        for rollout, after in stream.rollouts(state, num_episodes):
            if stop.is_set():
                return
            if rollout is None:
                stop.wait(0.5)
            else:
                put((rollout, after))
        put(None)
    except BaseException as error:
        put(error)


def nothing(widths: Widths) -> Episodes:
    """No episodes, which is how a Source says that there are no more."""
    return no_episodes(widths.state_size, widths.num_players, DTYPES[widths.state_dtype])
