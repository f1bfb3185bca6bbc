"""One worker process as the main process sees it: start it, give it games, read its turns, hand it the choices."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import WorkerError
from movelist.core.settings import PlaySettings
from movelist.data.column import Column
from movelist.play.policy import Turns
from movelist.play.recorder import Recorder, Round
from movelist.play.running import Finished
from movelist.play.worker_process import NOBODY, Block, BlockForm, Failure, Post, Reply, Task, serve

Array = NDArray[Any]
PROCESS_NAME = "movelist worker"
PATIENCE = 5.0  # seconds in which a worker may end by itself
ACTIONS_PER_TURN = 32  # room in a new block; it grows where lists are longer


class Part:
    """One worker's share of a network call."""

    def __init__(self, block: Block, post: Post, seed_of: dict[int, int]) -> None:
        size = post.num_turns
        # Copies: the block is written again for the next turn.
        self.number_B, self.player_B = block.number_B[:size].copy(), block.player_B[:size].copy()
        self.score_B, count_B = block.score_B[:size].copy(), block.count_B[:size].copy()
        ids = block.action_id_A[: int(count_B.sum())].copy() if post.action_id_A is None else post.action_id_A
        seed_B = np.array([seed_of[number] for number in self.number_B.tolist()], np.int64)
        self.turns = Turns(block.state_BS[:size].copy(), count_B, ids, seed_B, block.turn_B[:size].copy(), post.columns)
        self.choice_B, self.faults = block.choice_B[:size].copy(), post.faults


class Worker:
    """A worker as the main process sees it: one process, or the second if the first one failed."""

    task: Task

    def __init__(
        self, number: int, packed_game: bytes, settings: PlaySettings, state_size: int, columns: tuple[Column, ...] = ()
    ) -> None:
        self.number, self.packed_game, self.settings, self.state_size = number, packed_game, settings, state_size
        self.columns = columns  # what the game's states tell beside what they show
        self.process: Any = None  # multiprocessing's, of the spawn context
        self.connection: Connection
        self.ready = False
        self.blocks: list[Block] = []
        self._forget()

    def _forget(self) -> None:
        """Know nothing yet of the task's games."""
        self.failures = 0
        self.posts: list[Post | None] = [None, None]
        self.open = [True, True]  # which halves are not played out
        self.recorder = Recorder(self.state_size)
        self.finished: dict[int, Finished] = {}

    def begin(
        self,
        numbers: list[int],
        seeds: list[int],
        widths: tuple[int, int],
        bots: bytes,
        seats: list[list[int]],
    ) -> None:
        """Let these games be played, so many at once in each half; bots move there, see `Task`."""
        self._forget()
        for half, width in enumerate(widths):
            if len(self.blocks) <= half or self.blocks[half].form.rows < width:
                self._new_block(half, width, ACTIONS_PER_TURN * width)
            self.blocks[half].forget()
        self.seed_of = dict(zip(numbers, seeds, strict=True))
        self.task = Task(numbers, seeds, (self.blocks[0].form, self.blocks[1].form), widths, bots, seats)
        if self.process is None:
            self._start()
        self._send(self.task)

    def restart(self) -> None:
        """The same task from its start, in a fresh process."""
        failures = self.failures
        self.end(time.monotonic() + PATIENCE)
        self.begin(self.task.numbers, self.task.seeds, self.task.widths, self.task.bots, self.task.seats)
        self.failures = failures + 1

    def _start(self) -> None:
        # On every platform as on Windows: a fresh interpreter, which holds nothing of this process.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        process = context.Process(
            target=serve,
            args=(theirs, self.packed_game, self.settings, self.columns),
            name=f"{PROCESS_NAME} {self.number}",
            daemon=True,
        )
        self.ready = False
        try:
            with _signals_held():
                process.start()
                self.process = process  # not before: one that did not start cannot be ended
        except OSError as error:  # too many processes, or too little memory
            self.connection.close()
            raise WorkerError(
                f"worker {self.number} cannot be started", got=error.strerror or error, do="Lower --rollout_workers."
            ) from None
        finally:
            theirs.close()  # else we would not notice that the worker closed it

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is noticed when its answer is waited for
            self.connection.send(message)

    def _new_block(self, half: int, rows: int, capacity: int) -> None:
        _require_shared_memory(BlockForm("", rows, self.state_size, capacity).num_bytes)
        try:
            block = Block.make(rows, self.state_size, capacity)
        except OSError as error:
            raise WorkerError(
                "the workers' shared memory cannot be made",
                got=error.strerror or error,
                do="Lower --num_games or --rollout_workers.",
            ) from None
        if half < len(self.blocks):
            self.blocks[half].close()
            self.blocks[half] = block
        else:
            self.blocks.append(block)

    def take(self, half: int) -> Part | None:
        """What the worker posted for a half; None if the half is played out."""
        post = self.posts[half]
        assert post is not None
        self.posts[half] = None
        self.blocks[half].unlink()  # the worker has attached it
        self.finished |= post.finished
        self.open[half] = post.num_turns > 0
        return Part(self.blocks[half], post, self.seed_of) if post.num_turns else None

    def answer(self, half: int, part: Part, index_B: Array, log_prob_B: Array) -> None:
        """Hand the choices back, in a larger block if the lists did not fit, and record the turns."""
        form: BlockForm | None = None
        num_actions = len(part.turns.action_id_A)
        if num_actions > self.blocks[half].form.capacity:
            self._new_block(half, self.blocks[half].form.rows, 2 * num_actions)
            form = self.blocks[half].form
        self.blocks[half].choice_B[: len(index_B)] = index_B
        self._send(Reply(half, form))
        turns = Round(part.number_B, part.turns, part.player_B, part.score_B, index_B, log_prob_B)
        self.recorder.add(turns)

    def death(self) -> Failure:
        """How the process ended, and in the middle of which game."""
        self.process.join(PATIENCE)  # its end of the connection closes a moment earlier
        code = self.process.exitcode
        if code is None:
            text = "it closed its connection"
        elif code < 0:
            name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
            text = f"ended by {name}" + (", from outside or for lack of memory" if name == "SIGKILL" else "")
        else:
            text = f"ended with exit code {code if code < 256 else hex(code)}"  # Windows: 0xc0000005 is a bad access
        return Failure(self._current(), text, "")

    def _current(self) -> int:
        """The number of the game that is being played at this moment, or NOBODY."""
        return max(int(block.current[0]) for block in self.blocks)

    def whereabouts(self) -> str:
        """What the worker is busy with."""
        if not self.ready:
            return f"worker {self.number}, which is starting"
        number = self._current()
        where = self.place(Failure(number, "", ""))
        if number == NOBODY:
            return f"worker {self.number}, {where}"
        rows = [(block, row) for block in self.blocks for row in np.flatnonzero(block.number_B == number)]
        turns = [int(block.turn_B[row]) for block, row in rows]  # of its last decision; what was there before is older
        return f"worker {self.number}: {where}, turn {max(turns, default=0)} or after"

    def place(self, failure: Failure) -> str:
        """The game that failed, or those among which it is, by their seeds."""
        if failure.number != NOBODY:
            return f"game with seed {self.seed_of[failure.number]}"
        seeds = [seed for number, seed in self.seed_of.items() if number not in self.finished]
        more = f" and {len(seeds) - 5} more" if len(seeds) > 5 else ""
        return f"playing the games with seeds {', '.join(map(str, seeds[:5]))}{more}"

    def end(self, deadline: float) -> None:
        """Have the process end: by itself as its connection is closed, from the deadline on by force."""
        if self.process is not None:
            self.connection.close()
            self.process.join(max(0.0, deadline - time.monotonic()))
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join()
            self.process.close()
            self.process = None
        for block in self.blocks:
            block.close()
        self.blocks.clear()


def _require_shared_memory(size: int) -> None:
    """A file system that is too full would end the process that writes, without a word; containers have 64 MB."""
    folder = Path("/dev/shm")
    if folder.is_dir() and (free := shutil.disk_usage(folder).free) < size:
        raise WorkerError(
            "there is too little shared memory for the workers",
            got=f"{free >> 20:,} MB free in {folder}",
            expected=f"{-(-size >> 20):,} MB more",
            do="Lower --num_games, or give the container more: docker run --shm-size 1g.",
        )


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait, also in a process that starts here: there until it lets them come."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
