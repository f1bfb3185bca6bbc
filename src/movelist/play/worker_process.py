"""What a worker process runs: games, and nothing else. Free of torch, which would cost each worker seconds and memory.

A worker plays its games in two halves. It posts one half's turns, and while the main process chooses for them it plays
the other half. A Task starts it; then each half goes back and forth as Post and Reply, which are small: states, lists
and choices lie in a Block of shared memory for each half.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.by_name import import_file
from movelist.core.errors import MovelistError
from movelist.core.settings import PlaySettings
from movelist.data.column import Column
from movelist.games.bot import Bot, bot_choice
from movelist.games.game import SEE_TRACEBACK, Game
from movelist.play.running import Finished, Running, advance, look, play, start

Array = NDArray[Any]
READY = "ready"  # a worker's first message: it has its game
NOBODY = -1  # no game is being played at this moment


@dataclass(frozen=True, slots=True)
class BlockForm:
    """What both processes need to know of a Block: where it lies and how much it holds."""

    name: str
    rows: int
    state_size: int
    capacity: int  # of legal actions, all lists together

    def arrays(self) -> dict[str, tuple[type, tuple[int, ...]]]:
        """Dtype and shape of each array, in the order in which they lie there."""
        whole, rows = np.int64, (self.rows,)
        return {
            "current": (whole, (1,)),
            "number_B": (whole, rows),
            "count_B": (whole, rows),
            "turn_B": (whole, rows),
            "player_B": (whole, rows),
            "choice_B": (whole, rows),
            "score_B": (np.float64, rows),
            "action_id_A": (whole, (self.capacity,)),
            "state_BS": (np.float32, (self.rows, self.state_size)),  # last, since its values are narrower
        }

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.arrays().values())


@dataclass(frozen=True, slots=True)
class Task:
    """Games to play: their numbers and seeds, and for each half its block and how many games run in it at once."""

    numbers: list[int]
    seeds: list[int]
    blocks: tuple[BlockForm, BlockForm]
    widths: tuple[int, int]
    bots: bytes  # who moves here, pickled, by their numbers among the players
    seats: list[list[int]]  # which player moves each seat of each game; empty without bots


@dataclass(frozen=True, slots=True)
class Post:
    """A half stands at its next decisions, B of them; they lie in its block. None left: the half is played out."""

    half: int
    num_turns: int
    finished: dict[int, Finished]
    action_id_A: Array | None  # the lists themselves where the block is too small for them
    columns: Mapping[Column, Array]  # what the games tell beside; no game of movelist's own does
    faults: list[tuple[int, str]]  # the rows where a bot made no choice, and what it did instead


@dataclass(frozen=True, slots=True)
class Reply:
    """The choices of a half lie in its block, which may be a new and larger one."""

    half: int
    block: BlockForm | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The game raised an exception: the game's number, the exception in one line, and its traceback."""

    number: int
    text: str
    details: str


class Block:
    """One half's turns and choices in shared memory.

    Both sides close it. The main process, which makes it, takes its name away as soon as the worker has it, too: then
    nothing is left behind whatever ends the two.

    Attributes:
        current: int64 [1], the number of the game that is being played at this moment, or NOBODY.
        number_B, count_B, turn_B, player_B: int64 [rows].
        score_B: float64 [rows].
        choice_B: int64 [rows], the bots' choices, and then the main process's answer.
        action_id_A: int64 [capacity].
        state_BS: float32 [rows, S].
    """

    current: Array
    number_B: Array
    count_B: Array
    turn_B: Array
    player_B: Array
    choice_B: Array
    score_B: Array
    action_id_A: Array
    state_BS: Array

    def __init__(self, memory: SharedMemory, form: BlockForm, *, to_unlink: bool) -> None:
        self.memory, self.form, self.to_unlink = memory, form, to_unlink
        used = 0
        for name, (dtype, shape) in form.arrays().items():
            array: Array = np.ndarray(shape, dtype, memory.buf, used)
            setattr(self, name, array)
            used += array.nbytes

    @classmethod
    def make(cls, rows: int, state_size: int, capacity: int) -> Block:
        """A new one, nobody's game being played in it.

        Raises:
            OSError: There is too little memory.
        """
        form = BlockForm("", rows, state_size, capacity)
        memory = SharedMemory(create=True, size=form.num_bytes)
        block = cls(memory, replace(form, name=memory.name), to_unlink=True)
        block.forget()
        return block

    @classmethod
    def attach(cls, form: BlockForm) -> Block:
        """The other process's."""
        return cls(SharedMemory(form.name), form, to_unlink=False)

    def forget(self) -> None:
        """Nobody's game is in it."""
        self.current[0] = NOBODY
        self.number_B[:] = NOBODY

    def unlink(self) -> None:
        """Take the name away, once; on Windows the memory goes with its last user anyway."""
        if self.to_unlink:
            self.to_unlink = False
            self.memory.unlink()

    def close(self) -> None:
        """Let go of the memory; nothing of it may be used any more."""
        self.unlink()
        vars(self).update(dict.fromkeys(name for name, value in vars(self).items() if isinstance(value, np.ndarray)))
        self.memory.close()


class _Half:
    """Half of a worker's games, side by side."""

    def __init__(
        self,
        half: int,
        game: Game,
        settings: PlaySettings,
        columns: tuple[Column, ...],
        block: Block,
        width: int,
        bots: dict[int, dict[int, Bot]],
    ) -> None:
        self.half, self.game, self.settings, self.block, self.width = half, game, settings, block, width
        self.columns, self.num_players, self.bots = columns, game.num_players, bots
        self.running: list[Running] = []

    def go_on(self, waiting: deque[tuple[int, int]]) -> Post:
        """Play the choices, start games in place of those that are over, and post the turns."""
        finished: dict[int, Finished] = {}
        going = []
        play(self._each(), self.block.choice_B[: len(self.running)].tolist())
        for slot in self._each():
            if advance(slot, self.settings, finished):
                going.append(slot)
        while len(going) < self.width and waiting:
            number, seed = waiting.popleft()
            self.block.current[0] = number
            slot = start(self.game, number, seed, self.num_players, self.columns)
            if advance(slot, self.settings, finished):
                going.append(slot)
        self.running = going
        return self._post(finished)

    def _each(self) -> Iterator[Running]:
        """The games one by one, with a note for the main process where a crash would have happened."""
        for slot in self.running:
            self.block.current[0] = slot.number
            yield slot
        self.block.current[0] = NOBODY

    def _post(self, finished: dict[int, Finished]) -> Post:
        block, size = self.block, len(self.running)
        block.number_B[:size] = [slot.number for slot in self.running]
        block.turn_B[:size] = [slot.turn for slot in self.running]
        seen = look(self._each(), block.state_BS[:size])
        block.count_B[:size], block.player_B[:size], block.score_B[:size] = seen.count_B, seen.player_B, seen.score_B
        fits = len(seen.action_id_A) <= block.form.capacity
        if fits:
            block.action_id_A[: len(seen.action_id_A)] = seen.action_id_A
        ids = None if fits else seen.action_id_A
        return Post(self.half, size, finished, ids, seen.columns, self._bots_choose())

    def _bots_choose(self) -> list[tuple[int, str]]:
        """Note what the bots play; the rows where one makes no choice, and what it did."""
        faults = []
        for row, slot in enumerate(self.running if self.bots else ()):
            if (bot := self.bots[slot.number].get(slot.player)) is None:
                continue
            self.block.current[0] = slot.number
            self.block.choice_B[row], fault = bot_choice(bot, slot.state, slot.player, len(slot.actions))
            if fault:
                faults.append((row, fault))
        self.block.current[0] = NOBODY
        return faults


def serve(connection: Connection, packed_game: bytes, settings: PlaySettings, columns: tuple[Column, ...] = ()) -> None:
    """Play Tasks until the main process closes the connection, or the game fails."""
    _leave_signals_to_the_main_process()
    threading.Thread(target=_leave_with_the_main_process, daemon=True).start()
    blocks: dict[int, Block] = {}
    # The other end closes: the main process needs no more games, or is gone.
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            files, packed = pickle.loads(packed_game)
            for file in files:
                import_file(file)
            game = pickle.loads(packed)
        except Exception as error:
            connection.send(_failure(error, NOBODY))
            return
        connection.send(READY)
        while _play(connection, game, connection.recv(), settings, columns, blocks):
            pass
    for block in blocks.values():
        block.close()


def _play(
    connection: Connection,
    game: Game,
    task: Task,
    settings: PlaySettings,
    columns: tuple[Column, ...],
    blocks: dict[int, Block],
) -> bool:
    """Play one task; False if the game failed."""
    waiting = deque(zip(task.numbers, task.seeds, strict=True))
    halves = []
    try:
        bots = _bots(task)
    except Exception as error:
        connection.send(_failure(error, NOBODY))
        return False
    for half, form in enumerate(task.blocks):
        _attach(blocks, half, form)
        halves.append(_Half(half, game, settings, columns, blocks[half], task.widths[half], bots))
    if not all(_go_on(connection, half, waiting) for half in halves):
        return False
    while any(half.running for half in halves):
        reply = connection.recv()
        half = halves[reply.half]
        if reply.block is not None:
            _attach(blocks, reply.half, reply.block)
            half.block = blocks[reply.half]
        if not _go_on(connection, half, waiting):
            return False
    return True


def _bots(task: Task) -> dict[int, dict[int, Bot]]:
    """The bots of each game by their seats; empty where there are none."""
    known: dict[int, Bot] = pickle.loads(task.bots)
    return {
        number: {seat: known[player] for seat, player in enumerate(seats) if player in known}
        for number, seats in zip(task.numbers, task.seats, strict=bool(task.seats))
    }


def _go_on(connection: Connection, half: _Half, waiting: deque[tuple[int, int]]) -> bool:
    """One turn of a half; False if the game failed, whatever it raised."""
    try:
        post = half.go_on(waiting)
    except Exception as error:
        connection.send(_failure(error, int(half.block.current[0])))
        return False
    connection.send(post)
    return True


def _attach(blocks: dict[int, Block], half: int, form: BlockForm) -> None:
    """Use this block for a half from now on."""
    if half in blocks and blocks[half].form.name == form.name:
        return
    if half in blocks:
        blocks[half].close()
    blocks[half] = Block.attach(form)


def _failure(error: Exception, number: int) -> Failure:
    """An exception of the game as text, for it may be of a class that the main process cannot unpickle."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} at {place.filename}, line {place.lineno}"
    if isinstance(error, MovelistError):
        text = str(error).removesuffix(f". {SEE_TRACEBACK}")  # the note behind the error is its traceback
    return Failure(number, " ".join(text.split()), "".join(traceback.format_exception(error)))


def _leave_signals_to_the_main_process() -> None:
    """Ctrl-C and SIGTERM reach the whole group of processes; the main one decides what they mean."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)  # SIG_IGN would be passed on to an engine that a game starts
    if hasattr(signal, "pthread_sigmask"):  # they were held while this process started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _leave_with_the_main_process() -> None:
    """End this process when the main one ends, killed or not, even in the middle of a long turn."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
