"""Workers play what self-play plays, whatever their number; what goes wrong in them is named and ends well."""

import contextlib
import errno
import multiprocessing
import multiprocessing.shared_memory
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from movelist.core import patience
from movelist.core.errors import GameError, PlayerError, WorkerError
from movelist.core.metrics import span_hook
from movelist.core.settings import PlaySettings
from movelist.games.catalog import make_game
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play import worker, workers
from movelist.play.arena import match
from movelist.play.policy import NetPolicy, RandomPolicy, derive_seeds
from movelist.play.selfplay import GAMES, SelfPlay
from movelist.play.worker_process import Block
from movelist.play.workers import Workers
from play.test_selfplay import assert_same
from play.toys import Odd, Scripted
from play.worker_games import Timed, Unmakeable

TESTS = Path(__file__).resolve().parents[1]
SEEDS = derive_seeds(0, GAMES, 0, 20).tolist()
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def made(monkeypatch):
    """The names of all shared memory made in a test."""
    names = []

    def make(rows, state_size, capacity, make=Block.make):
        block = make(rows, state_size, capacity)
        names.append(block.form.name)
        return block

    monkeypatch.setattr(worker.Block, "make", make)
    return names


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    assert children == []


def assert_gone(names):
    for name in names:
        with pytest.raises(FileNotFoundError):
            multiprocessing.shared_memory.SharedMemory(name)


def collect(game, number, *, policy=None, counts=(20,), seed=0, say=print, **settings):
    """Some batches of episodes, one after another from the same source."""
    source = SelfPlay(game, PlaySettings(rollout_workers=number, **settings), seed=seed, say=say)
    try:
        return [source.collect(policy or RandomPolicy(), count) for count in counts]
    finally:
        source.close()


# --- The same games


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [{}, {"keep_forced": True}, {"max_turns": 6}, {"num_games": 5}], ids=lambda settings: str(settings)
)
def test_episodes_do_not_depend_on_the_number_of_workers(number, settings):
    counts = (20, 7)  # the second batch finds the workers and their memory ready
    for one, other in zip(
        collect(Odd(3), number, counts=counts, **settings), collect(Odd(3), 0, counts=counts, **settings), strict=True
    ):
        assert_same(one, other)
        assert one.truncated_E.any() == ("max_turns" in settings)
        assert (one.final_state_EPS is not None) == ("max_turns" in settings)


@pytest.mark.parametrize("name", ["kuhn_poker", "tic_tac_toe"])
def test_a_network_plays_the_same_games_in_workers(name):
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")
    torch.manual_seed(0)
    game = make_game(name)
    net = PolicyValueNet(
        ModelShape(state_size=game.state_size, hidden_dim=16, action_encoder="table", num_actions=game.num_actions)
    )
    (alone,) = collect(game, 0, policy=NetPolicy(net), counts=(40,))
    assert len(np.unique(alone.chosen_N)) > 1
    for number in (1, 3):
        (episodes,) = collect(game, number, policy=NetPolicy(net), counts=(40,), num_games=16)
        # Sums of 16 products in another order: a few units of float32's 1.2e-7.
        assert_same(episodes, alone, log_prob_tolerance=1e-6)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_match_in_workers_is_the_same_match(number):
    """A worker's turns are for both players at once; each decides its own seats'."""
    game, play = Odd(3), PlaySettings(rollout_workers=number, num_games=10)
    crew = Workers(game, play)
    try:
        found = match(Last(), RandomPolicy(), game, num_games=30, play=play, workers=crew)
    finally:
        crew.close()
    assert found == match(Last(), RandomPolicy(), Odd(3), num_games=30, play=play)
    assert found != match(RandomPolicy(), Last(), Odd(3), num_games=30, play=play)


class Last:
    """Takes the last action of each list."""

    def choose(self, turns):
        return turns.count_B - 1, np.zeros(len(turns.count_B), np.float32)


def test_the_same_number_of_workers_gives_the_same_bytes():
    """Who shares a network call does not depend on which worker is quicker."""
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=16))
    first, second = (collect(Odd(), 2, policy=NetPolicy(net))[0] for _ in range(2))
    assert_same(first, second)


def test_lists_that_outgrow_their_memory(made):
    """The first block has room for 32 actions a turn; here there are 200, and 10 at once of 20 in each half."""
    game = Timed(200)
    (episodes,) = collect(game, 1)
    assert_same(episodes, collect(game, 0)[0])
    assert episodes.num_actions == 20 * 6 * 200
    assert len(made) == 4  # two, and a larger one for each
    assert_gone(made)


@pytest.mark.parametrize(("num_games", "count"), [(1, 3), (3, 2), (256, 0), (2, 9)])
def test_fewer_games_than_workers(num_games, count):
    """Not more games at once than allowed, and no worker is waited for that has none."""
    counts = (count, 5)
    expected = collect(Odd(), 0, counts=counts)
    for one, other in zip(collect(Odd(), 3, counts=counts, num_games=num_games), expected, strict=True):
        assert_same(one, other)


def test_games_without_a_decision_and_games_that_are_over_at_once():
    for script in ([], [(0, [4], [1.0, 0.0]), (1, [5], [0.0, 2.0])]):
        (episodes,) = collect(Scripted(2, script), 2)
        assert_same(episodes, collect(Scripted(2, script), 0)[0])
        assert episodes.num_steps == 0


def test_a_resumed_source_goes_on_with_the_same_games():
    source = SelfPlay(Odd(), PlaySettings(rollout_workers=2), seed=5)
    source.collect(RandomPolicy(), 7)
    state = source.state_dict()
    assert state == {"num_started": 7}
    expected = source.collect(RandomPolicy(), 7)
    source.close()
    source.close()
    resumed = SelfPlay(Odd(), PlaySettings(rollout_workers=1), seed=5)
    resumed.load_state_dict(state)
    assert_same(resumed.collect(RandomPolicy(), 7), expected)
    resumed.close()
    assert_same(resumed.collect(RandomPolicy(), 7), collect(Odd(), 0, seed=5, counts=(7, 7, 7))[2])  # they start again
    resumed.close()


def test_workers_do_without_torch():
    """It would cost each of them hundreds of MB."""
    (episodes,) = collect(Timed(fault="tell"), 1)
    assert (episodes.state_NS[:, 2] == 0).all()
    assert (collect(Timed(fault="tell"), 0)[0].state_NS[:, 2] == 1).all()


def test_waiting_for_workers_counts_as_the_game(made):
    names = set()

    def hook(name):
        names.add(name)
        return contextlib.nullcontext()

    with span_hook(hook):
        collect(Timed(), 1)
    assert names == {"game"}
    assert_gone(made)


# --- What goes wrong in a worker


FAULTS = [
    ("raise", "the game's own code failed: ZeroDivisionError: no piece left at {file}, line "),
    ("exit", "ended with exit code 3"),
    pytest.param("kill", "ended by SIGKILL, from outside or for lack of memory", marks=posix_only),
    pytest.param("segfault", "ended by SIGSEGV", marks=posix_only),
]
GAMES_FILE = TESTS / "play" / "worker_games.py"


@pytest.mark.parametrize(("fault", "text"), FAULTS)
def test_a_worker_that_failed_is_named_and_its_games_are_played_again(fault, text, tmp_path, made):
    said = []
    game = Timed(fault=fault, seed=SEEDS[5], mark=tmp_path / "mark")
    one, other = collect(game, 2, counts=(20, 20), num_games=8, say=said.append)
    assert_same(one, collect(Timed(), 0)[0])
    assert_same(other, collect(Timed(), 0, counts=(20, 20))[1])
    (line,) = said
    assert line.startswith(f"Worker 1 failed: {text.format(file=GAMES_FILE)}")
    assert f"(game with seed {SEEDS[5]}). What it had to play (10 games) is played once more" in line
    assert_gone(made)


@pytest.mark.parametrize(("fault", "text"), FAULTS)
def test_a_worker_that_fails_again_stops_the_run(fault, text, made):
    said = []
    with pytest.raises(WorkerError) as caught:
        collect(Timed(fault=fault, seed=SEEDS[5]), 2, say=said.append)
    assert str(caught.value).startswith(f"worker 1 failed twice on the same games: {text.format(file=GAMES_FILE)}")
    assert str(caught.value).endswith(
        f"(game with seed {SEEDS[5]}). Its games alone: --rollout_workers 0 plays the same ones in this process."
    )
    assert "\n" not in str(caught.value)
    assert len(said) == 1
    assert caught.value.exit_code == 1
    if fault == "raise":
        assert f"(game with seed {SEEDS[5]}, turn 3)" in str(caught.value)
        assert "in perhaps_fail" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []  # closed before the error is seen
    assert_gone(made)


def test_a_failing_observe_is_laid_to_its_own_game():
    with pytest.raises(WorkerError) as caught:
        collect(Timed(fault="raise", where="observe", seed=SEEDS[7]), 1, say=lambda text: None)
    assert f"(game with seed {SEEDS[7]})" in str(caught.value)


def test_a_broken_promise_of_the_game_is_told_in_its_own_words():
    game = Scripted(2, [(0, [1, 2], [0.0, 0.0]), (1, [], [0.0, 0.0])])
    with pytest.raises(WorkerError) as caught:
        collect(game, 1, counts=(1,), say=lambda text: None)
    assert f"the same games: a turn offers no legal action (game with seed {SEEDS[0]}, turn 1)" in str(caught.value)


def test_a_worker_killed_between_its_turns_names_all_its_games():
    """Killed from outside while the network chooses, and it waits with its only game: no game is to blame."""

    class Killer(RandomPolicy):
        def __init__(self):
            self.left = 1

        def choose(self, turns):
            if self.left and turns.turn_B.max() >= 2:
                self.left -= 1
                (process,) = multiprocessing.active_children()
                process.kill()
            return super().choose(turns)

    said = []
    (episodes,) = collect(Timed(), 1, policy=Killer(), say=said.append, num_games=1)
    assert_same(episodes, collect(Timed(), 0)[0])
    text = "Worker 0 failed: ended by SIGKILL, from outside or for lack of memory (playing the games with seeds "
    assert said[0].startswith(f"{text}{', '.join(map(str, SEEDS[:5]))} and 15 more).")


def test_a_worker_that_died_while_the_network_learnt():
    said = []
    source = SelfPlay(Timed(), PlaySettings(rollout_workers=1), say=said.append)
    source.collect(RandomPolicy(), 7)
    (process,) = multiprocessing.active_children()
    process.kill()
    process.join()
    assert_same(source.collect(RandomPolicy(), 7), collect(Timed(), 0, counts=(7, 7))[1])
    source.close()
    assert len(said) == 1
    assert said[0].startswith("Worker 0 failed: ended by ")


def test_an_error_of_the_policy_leaves_workers_that_can_be_used_again():
    class Broken(RandomPolicy):
        def choose(self, turns):
            raise ArithmeticError("no weights")

    source = SelfPlay(Timed(), PlaySettings(rollout_workers=2))
    with pytest.raises(PlayerError, match="made no choice: got ArithmeticError: no weights at "):
        source.collect(Broken(), 20)
    assert multiprocessing.active_children() == []
    assert_same(source.collect(RandomPolicy(), 20), collect(Timed(), 0)[0])
    source.close()


# --- What cannot start


def test_a_game_that_cannot_be_pickled_is_named(tmp_path):
    game = Timed()
    game.log = (tmp_path / "log.txt").open("w", encoding="utf-8")
    with game.log, pytest.raises(GameError) as caught:
        SelfPlay(game, PlaySettings(rollout_workers=1))
    assert str(caught.value) == (
        "this game cannot be sent to a worker process: got TypeError: cannot pickle '_io.TextIOWrapper' object "
        "(play.worker_games.Timed). Define its class at the top of a module, and open files and connections in "
        "new_state; or --rollout_workers 0."
    )
    SelfPlay(game, PlaySettings()).close()


def test_a_game_that_a_worker_cannot_make(made):
    with pytest.raises(GameError) as caught:
        collect(Unmakeable(), 2)
    assert str(caught.value).startswith(
        f"the game cannot be made in a worker process: got FileNotFoundError: no engine here at {GAMES_FILE}, line "
    )
    assert str(caught.value).endswith(
        "(timed). Define its class in a script or module that can be imported, not in a notebook or a prompt."
    )
    assert_gone(made)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="only Linux shows its shared memory")
def test_too_little_shared_memory(monkeypatch):
    monkeypatch.setattr(worker.shutil, "disk_usage", lambda folder: namedtuple("Usage", "free")(3 << 20))
    with pytest.raises(WorkerError) as caught:
        collect(Timed(10), 1, counts=(20_000,), num_games=20_000)
    assert str(caught.value) == (
        "there is too little shared memory for the workers: got 3 MB free in /dev/shm, expected 4 MB more. Lower "
        "--num_games, or give the container more: docker run --shm-size 1g."
    )


def test_shared_memory_that_cannot_be_made(monkeypatch):
    def fail(*sizes):
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(worker.Block, "make", fail)
    with pytest.raises(WorkerError, match=r"shared memory cannot be made: got no memory\. Lower --num_games or"):
        collect(Timed(), 2)


def test_a_process_that_cannot_be_started(monkeypatch, made):
    start = multiprocessing.context.SpawnProcess.start

    def fail_second(process):
        if process.name == "movelist worker 1":
            raise OSError(errno.EAGAIN, "too many processes")
        start(process)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", fail_second)
    with pytest.raises(WorkerError, match=r"worker 1 cannot be started: got too many processes\. Lower --rollout_wor"):
        collect(Timed(), 2)
    assert len(made) == 4
    assert_gone(made)


@contextlib.contextmanager
def started(tmp_path, script):
    """Run a script of its own, as users do, in a group of processes that is ended in any case."""
    path = tmp_path / "脚本 1.py"
    path.write_text(script, encoding="utf-8")
    paths = [str(TESTS), str(TESTS.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    how = {"cwd": tmp_path, "env": environment, "encoding": "utf-8", "start_new_session": True}
    process = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    try:
        yield process
    finally:
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = """
import movelist
from play.worker_games import Timed
print("here")
movelist.train(game=Timed(), rollout_workers=2, hidden_dim=16, update_frequency=8, total_steps=50, tensorboard=False)
"""
    with started(tmp_path, script) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    message = (
        "--rollout_workers needs a script that can be imported: each worker imports it, and so began to train, too. "
        'Put the call of train under: if __name__ == "__main__":'
    )
    assert error.splitlines()[-1] == f"movelist.core.errors.SettingsError: {message}"
    assert error.count("Traceback") == 1  # the workers keep quiet
    assert len(list((tmp_path / "runs").iterdir())) == 1  # and make no runs


def test_in_a_worker_nothing_is_trained(monkeypatch):
    codes = []
    monkeypatch.setattr(workers.os, "_exit", codes.append)
    monkeypatch.setattr(multiprocessing.current_process(), "name", "movelist worker 1")
    workers.check_workers(Timed(), 0)
    assert codes == [workers.NO_MAIN_GUARD]


def test_a_worker_that_does_not_start_is_told(monkeypatch, tmp_path):
    """Each worker imports the script; a script that is not there, as with `python - < script`, cannot be."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "missing.py"), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(WorkerError) as caught:
        collect(Timed(), 1)
    assert str(caught.value) == (
        "worker 0 did not start: got ended with exit code 1. What it said stands above; each worker first imports the "
        "script that is running."
    )


# --- How it ends


def gone(pids, seconds=20.0):
    """Whether these processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@posix_only
def test_a_killed_main_process_leaves_no_worker_and_no_memory(tmp_path):
    """The games hang, so the workers do not come to look at their connection."""
    script = """
import multiprocessing, time
from movelist.core.settings import PlaySettings
from movelist.play import worker
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay
from play.worker_games import Timed

class Telling(RandomPolicy):
    num_asked = 0
    def choose(self, turns):
        self.num_asked += 1
        if self.num_asked == 8:  # turn 3 of the second half: the first half has its choices
            time.sleep(0.5)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        return super().choose(turns)

if __name__ == "__main__":
    make = worker.Block.make
    worker.Block.make = lambda *sizes: (block := make(*sizes), print(block.form.name))[0]
    SelfPlay(Timed(fault="hang"), PlaySettings(rollout_workers=2)).collect(Telling(), 8)
"""
    with started(tmp_path, script) as process:
        lines = [process.stdout.readline().split() for _ in range(5)]
        pids = [int(pid) for pid in lines[4]]
        assert len(pids) == 2
        process.kill()
        _, error = process.communicate(timeout=60)
    assert error == ""  # multiprocessing's tracker would complain of memory that it has to clean up
    assert gone(pids)
    assert_gone([name for line in lines[:4] for name in line])


@posix_only
def test_ctrl_c_stops_the_run_after_the_update(tmp_path):
    """It reaches the workers as well, which leave it to the main process."""
    script = """
import movelist
from play.toys import Odd
if __name__ == "__main__":
    movelist.train(game=Odd(), rollout_workers=2, hidden_dim=16, update_frequency=8, total_steps=None, out="run",
                   device="cpu", tensorboard=False, eval_games=0)
"""
    with started(tmp_path, script) as process:
        assert any("update 1 " in line for line in process.stdout)
        pids = [child.pid for child in psutil.Process(process.pid).children()]
        assert len(pids) >= 2  # and multiprocessing's resource tracker
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    assert "Stopping after this update." in out
    assert "failed" not in out
    assert "Stopped before the end." in out
    assert gone(pids)


def test_a_script_that_closes_nothing_ends_all_the_same(tmp_path):
    script = """
from movelist.core.settings import PlaySettings
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay
from play.worker_games import Timed
if __name__ == "__main__":
    source = SelfPlay(Timed(), PlaySettings(rollout_workers=2))
    print(source.collect(RandomPolicy(), 8).num_steps)
"""
    with started(tmp_path, script) as process:
        out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (0, "48\n", "")


# --- Silence


def test_a_worker_that_does_not_answer_is_named_again_and_again(monkeypatch, tmp_path):
    """Until somebody ends it; then what it had to play is played once more."""
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.3)
    heard = []

    def say(text):
        heard.append(text)
        hanging = [line for line in heard if f"game with seed {SEEDS[5]}" in line and "Waiting" in line]
        if len(hanging) == 2 and text is hanging[1]:
            for child in multiprocessing.active_children():
                child.kill()

    game = Timed(fault="hang", seed=SEEDS[5], mark=tmp_path / "mark")
    (episodes,) = collect(game, 1, say=say)
    assert len(episodes) == 20
    waiting = [line for line in heard if line.startswith("Waiting for ") and "starting" not in line]
    assert len(waiting) >= 2
    assert all(f"worker 0: game with seed {SEEDS[5]}, turn 3 or after." in line for line in waiting)


def test_a_worker_that_is_still_starting_is_said_to(monkeypatch):
    crew = Workers(Timed(), PlaySettings(rollout_workers=1))
    one = worker.Worker(4, b"", crew.settings, 3)
    assert one.whereabouts() == "worker 4, which is starting"
