"""Games in processes of their own, while this one runs the network.

Each worker's games are in two halves. While the network chooses for one half of all workers' games, the workers play
the other. The halves take turns in a fixed order, so who shares a network call depends on the number of workers and not
on time; and a choice depends on neither, up to rounding, since its noise comes from the game's seed and the turn.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.by_name import files_in
from movelist.core.errors import GameError, MovelistError, SettingsError, WorkerError
from movelist.core.metrics import span
from movelist.core.patience import Patience
from movelist.core.settings import PlaySettings
from movelist.data.episode import Episodes
from movelist.games.bot import Bot, is_bot, packed, player_failed
from movelist.games.columns import game_columns
from movelist.games.game import Game, game_name, state_size
from movelist.play.policy import Forfeits, Policy, ask, join_turns, refuse
from movelist.play.recorder import Recorder
from movelist.play.worker import PATIENCE, PROCESS_NAME, Part, Worker
from movelist.play.worker_process import Failure, Post

Array = NDArray[Any]
NO_MAIN_GUARD = 86  # the exit code of a worker that was about to train


class Workers:
    """Worker processes for a game; they start when they are first needed, and again after `close`.

    Args:
        game: What to play; each worker gets a copy by pickle.
        settings: `rollout_workers`, and of self-play.
        say: Told when a worker failed and its games are played again, and which one does not answer.

    Raises:
        GameError: The game cannot be pickled.
    """

    def __init__(self, game: Game, settings: PlaySettings, *, say: Callable[[str], None] = print) -> None:
        check_workers(game, settings.rollout_workers)
        self.game, self.settings, self.say = game, settings, say
        self.state_size = state_size(game)
        self.columns = game_columns(game, critic=settings.critic_sees == "all")
        self.crew: list[Worker] = []
        # At exit before multiprocessing waits for its processes, which wait for us.
        Finalize(self, _stop, args=(self.crew,), exitpriority=10)

    def play(
        self,
        policies: Sequence[Policy | Bot],
        seats_GP: Array,
        seed_G: Array,
        forfeits: Forfeits | None = None,
    ) -> Episodes:
        """Play one game for each seed; arguments and result are those of `selfplay.play_games`.

        Raises:
            PlayerError: A player raised an exception, or answered something that is no choice.
            WorkerError: A worker failed twice, or did not start.
            SettingsError: The running script starts itself again in each worker.
            GameError: The game cannot be made in a worker.
        """
        try:
            with span("game"):
                crew = self._begin(policies, seats_GP, seed_G)
            half = 0
            while any(any(worker.open) for worker in crew):
                going = [worker for worker in crew if worker.open[half]]
                self._play_turn(policies, seats_GP, half, going, forfeits)
                half = 1 - half
        except BaseException:
            self.close()  # the workers wait for choices that will not come
            raise
        recorder = Recorder(self.state_size, self.columns)
        recorder.rounds = [turn for worker in crew for turn in worker.recorder.rounds]
        finished = {number: game for worker in crew for number, game in worker.finished.items()}
        return recorder.episodes([finished[number] for number in range(len(seed_G))], seats_GP)

    def close(self) -> None:
        """End the processes and give back their shared memory."""
        _stop(self.crew)

    def _begin(self, policies: Sequence[Policy | Bot], seats_GP: Array, seed_G: Array) -> list[Worker]:
        """Give each worker its games; those that have some."""
        at_once = min(self.settings.num_games, len(seed_G))
        size = min(self.settings.rollout_workers, at_once)
        if len(self.crew) < size:
            packed_game, new = _pack(self.game), range(len(self.crew), size)
            self.crew += [Worker(number, packed_game, self.settings, self.state_size, self.columns) for number in new]
        crew = self.crew[:size]
        bots = {number: player for number, player in enumerate(policies) if is_bot(player)}
        packed_bots = packed(bots)
        for worker in crew:
            first, second = (len(range(half * size + worker.number, at_once, 2 * size)) for half in (0, 1))
            numbers = list(range(worker.number, len(seed_G), size))
            seats = seats_GP[numbers].tolist() if bots else []
            worker.begin(numbers, seed_G[numbers].tolist(), (first, second), packed_bots, seats)
        return crew

    def _play_turn(
        self,
        policies: Sequence[Policy | Bot],
        seats_GP: Array,
        half: int,
        crew: list[Worker],
        forfeits: Forfeits | None,
    ) -> None:
        """One decision of each game of one half: ask each policy once, hand the choices back, record."""
        with span("game"):
            while waiting := [worker for worker in crew if worker.posts[half] is None]:
                self._listen(waiting)
            parts = [(worker, part) for worker in crew if (part := worker.take(half)) is not None]
            if not parts:
                return
            turns = join_turns([part.turns for _, part in parts])
            number_B = np.concatenate([part.number_B for _, part in parts])
            policy_B = np.concatenate([seats_GP[part.number_B, part.player_B] for _, part in parts])
            for _, part in parts:
                self._refuse_faults(policies, seats_GP, part, forfeits)
        index_B, log_prob_B = ask(policies, policy_B, turns, number_B, forfeits)
        with span("game"):
            if any(map(is_bot, policies)):
                bots = [number for number, player in enumerate(policies) if is_bot(player)]
                index_B = np.where(np.isin(policy_B, bots), np.concatenate([p.choice_B for _, p in parts]), index_B)
            start = 0
            for worker, part in parts:
                end = start + len(part.number_B)
                worker.answer(half, part, index_B[start:end], log_prob_B[start:end])
                start = end

    @staticmethod
    def _refuse_faults(
        policies: Sequence[Policy | Bot], seats_GP: Array, part: Part, forfeits: Forfeits | None
    ) -> None:
        """Raise what a bot did in place of a choice, or note it and play the first legal action."""
        for row, text in part.faults:
            number, seat = int(part.number_B[row]), int(part.player_B[row])
            seed, turn = int(part.turns.seed_B[row]), int(part.turns.turn_B[row])
            player = int(seats_GP[number, seat])
            refuse(forfeits, number, player, player_failed(policies[player], text, seed, turn, seat))
            part.choice_B[row] = 0

    def _listen(self, crew: list[Worker]) -> None:
        """Sleep until one of these workers has said something, or ended; tell whom that takes long."""
        patience = Patience()
        while not (heard := wait([worker.connection for worker in crew], patience.seconds_left)):
            if waited := patience.word_is_due():
                self.say(f"Waiting for {waited} for {'; '.join(worker.whereabouts() for worker in crew)}.")
        for worker in [worker for worker in crew if worker.connection in heard]:
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                message = worker.death()
            if isinstance(message, Post):
                worker.posts[message.half] = message
            elif isinstance(message, Failure):
                self._replace(worker, message)
            else:
                worker.ready = True

    def _replace(self, worker: Worker, failure: Failure) -> None:
        """Play a worker's games again in a fresh process; the second time, give up."""
        if not worker.ready:
            raise _did_not_start(worker, failure, game_name(self.game))
        where = worker.place(failure)
        if worker.failures:
            error = WorkerError(
                f"worker {worker.number} failed twice on the same games: {failure.text}",
                where=where,
                do="Its games alone: --rollout_workers 0 plays the same ones in this process.",
            )
            if failure.details:
                error.add_note(f"In the worker:\n{failure.details}")
            raise error
        self.say(
            f"Worker {worker.number} failed: {failure.text} ({where}). What it had to play "
            f"({len(worker.task.numbers):,} games) is played once more in a fresh process."
        )
        worker.restart()


def check_workers(game: Game, num_workers: int) -> None:
    """Refuse early what would fail in the workers; in a worker, end instead of starting the script's work once more.

    Raises:
        GameError: The game cannot be pickled.
    """
    if multiprocessing.current_process().name.startswith(PROCESS_NAME):
        os._exit(NO_MAIN_GUARD)  # the main process explains
    if num_workers:
        _pack(game)


def _pack(game: Game) -> bytes:
    try:
        packed = pickle.dumps(game)
        return pickle.dumps((files_in(packed), packed))
    except Exception as error:  # whatever a game's own pickling raises
        raise GameError(
            "this game cannot be sent to a worker process",
            got=f"{type(error).__name__}: {error}",
            where=f"{type(game).__module__}.{type(game).__qualname__}",
            do="Define its class at the top of a module, and open files and connections in new_state; or "
            "--rollout_workers 0.",
        ) from None


def _did_not_start(worker: Worker, failure: Failure, game: str) -> MovelistError:
    if failure.details:
        error: MovelistError = GameError(
            "the game cannot be made in a worker process",
            got=failure.text,
            where=game,
            do="Define its class in a script or module that can be imported, not in a notebook or a prompt.",
        )
        error.add_note(f"In the worker:\n{failure.details}")
        return error
    if worker.process.exitcode == NO_MAIN_GUARD:
        return SettingsError(
            "--rollout_workers needs a script that can be imported: each worker imports it, and so began to train, too",
            do='Put the call of train under: if __name__ == "__main__":',
        )
    return WorkerError(
        f"worker {worker.number} did not start",
        got=failure.text,
        do="What it said stands above; each worker first imports the script that is running.",
    )


def _stop(crew: list[Worker]) -> None:
    """End all processes, in the same few seconds, and unlink what they shared."""
    for worker in crew:
        if worker.process is not None:
            worker.connection.close()
    deadline = time.monotonic() + PATIENCE
    for worker in crew:
        worker.end(deadline)
    crew.clear()
