"""Trainings in two processes: the same games, the same ends, whatever happens to one of them only."""

import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
from movelist import cli
from movelist.core.errors import DataError, SaveError
from movelist.data.loader import RecordingStream
from movelist.data.store import Store
from movelist.learn import loss as losses
from movelist.learn import parallel
from movelist.run import checkpoint
from movelist.run.training import Training
from movelist.run.watched import Watched

pytest.importorskip("pyspiel", reason="the command line knows OpenSpiel's games")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="several processes are not tested on Windows")

SMALL = ["--hidden_dim", "16", "--device", "cpu", "--no-tensorboard"]
GAME = ["--game", "kuhn_poker", *SMALL]
RECORDED = [*SMALL, "--learn_from", "all", "--eval_games", "0"]
# One optimiser step for all games of an update, so that their order does not matter.
WHOLE = ["--update_frequency", "48", "--batch_size", "512", "--epochs_per_update", "1", "--eval_games", "0"]
PLAIN = ["--update_frequency", "48", "--batch_size", "16", "--epochs_per_update", "2", "--eval_games", "10"]


def command(arguments):
    """The exit code of a command, and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["train", *arguments])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def rows(folder):
    """metrics.jsonl without what the clock says."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    clock = ("time", "SPS", "per_second", "share", "seconds")
    return [{k: v for k, v in json.loads(line).items() if not any(word in k for word in clock)} for line in lines]


def weights(folder):
    state = checkpoint.load(folder)
    return torch.cat([tensor.reshape(-1) for tensor in state["learner"]["net"].values()]).numpy()


def on(rank_wanted):
    """A decorator: only in this process."""

    def wrap(change):
        return lambda rank: change() if rank == rank_wanted else contextlib.nullcontext()

    return wrap


@contextlib.contextmanager
def patched(owner, name, make):
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@on(1)
def stop_waiting():
    """Ask this process to stop once it waits for an engine after two updates."""

    def make(tired):
        def changed(supply):
            if supply.version() == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return tired(supply)

        return changed

    return patched(Watched, "_tired", make)


# --- Without a fault


def good(worlds, folder):
    """Train; train on after a stop; from a store, from recordings too few for all, and from a watched folder."""
    store, tiny, watched = (["--data", f"{folder}/{name}", *RECORDED] for name in ("store", "tiny.jsonl", "engine"))
    ended = []
    for arguments in (
        [*GAME, *WHOLE, "--total_steps", "300", "--out", f"{folder}/whole"],
        [*GAME, *PLAIN, "--total_steps", "500", "--out", f"{folder}/once"],
        [*GAME, *PLAIN, "--total_steps", "200", "--out", f"{folder}/twice"],
        ["--resume", f"{folder}/twice", "--total_steps", "500"],
        [*store, "--update_frequency", "4", "--out", f"{folder}/data"],
        [*tiny, "--update_frequency", "2", "--out", f"{folder}/few"],
        [*watched, "--update_frequency", "8", "--watch", "--out", f"{folder}/watching"],
    ):
        with stop_waiting(next(worlds)):
            ended.append(command(arguments))
    return ended


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    assert cli.main(["record", "--game", "kuhn_poker", "--episodes", "21", "--out", f"{folder}/games.jsonl"]) == 0
    assert cli.main(["convert", f"{folder}/games.jsonl", "--out", f"{folder}/store"]) == 0
    lines = (folder / "games.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "tiny.jsonl").write_bytes(b"".join(lines[:4]))
    (folder / "engine").mkdir()
    shutil.copy(folder / "games.jsonl", folder / "engine")
    return folder, ranks.run(good, str(folder), num_worlds=7)


def test_rank_0_speaks_and_writes_and_the_others_are_silent(trained):
    folder, (first, second) = trained
    for code, out, err in first:
        assert (code, err) == (0, "")
        assert "2 processes train together, each on its own share" in out
    assert second == [(0, "", "")] * len(first)
    folders = {"data", "engine", "few", "once", "store", "twice", "watching", "whole"}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == folders


def test_two_processes_play_the_games_of_one_and_learn_the_same(trained):
    folder, _ = trained
    assert command([*GAME, *WHOLE, "--total_steps", "300", "--out", f"{folder}/alone"])[0] == 0
    alone, pair = rows(folder / "alone"), rows(folder / "whole")
    assert len(alone) == len(pair) >= 3
    for one, two in zip(alone, pair, strict=True):
        for row in (one, two):
            del row["perf/update_flops"]
        # Exact where it is about games; weights differ by rounding, and Adam's first steps where gradients are near 0.
        assert one == pytest.approx(two, rel=1e-3, abs=1e-4)
        for name in ("step", "charts/episodes", "charts/episodic_return_seat_0", "charts/episodic_length"):
            assert one[name] == two[name]
    np.testing.assert_allclose(weights(folder / "alone"), weights(folder / "whole"), atol=2e-4)


def test_a_training_resumed_with_as_many_processes_is_the_same_to_the_bit(trained):
    folder, _ = trained
    assert rows(folder / "once") == rows(folder / "twice")
    assert weights(folder / "once").tobytes() == weights(folder / "twice").tobytes()


def test_another_number_of_processes_goes_on_and_says_so(trained):
    folder, _ = trained
    code, out, _ = command(["--resume", f"{folder}/once", "--total_steps", "600"])
    assert code == 0
    assert "Trained in 2 processes so far, now in 1: it goes on with the same games or data, but" in out
    assert rows(folder / "once")[-1]["step"] >= 600


def test_every_recorded_episode_is_used_once_by_one_of_them(trained):
    folder, _ = trained
    store = Store(folder / "store")
    assert rows(folder / "data")[-1]["step"] == store.num_steps
    assert rows(folder / "data")[-1]["charts/episodes"] == len(store) == 21
    assert rows(folder / "few")[-1]["charts/episodes"] == 3  # the last rollout has one episode: nothing for rank 0


def test_rank_0_deals_out_what_an_engine_writes_and_all_stop_waiting_together(trained):
    folder, (first, _) = trained
    assert [row["charts/episodes"] for row in rows(folder / "watching")] == [8, 16]  # of 21: it waits for 3 more
    assert "Another process was asked to stop." in first[6][1]
    assert (folder / "watching" / "policies" / "policy-2.safetensors").is_file()


def test_what_two_processes_trained_is_exported(trained):
    folder, _ = trained
    assert cli.main(["export", f"{folder}/whole", "--profile", "weights", "--out", f"{folder}/policy.safetensors"]) == 0
    assert (folder / "policy.safetensors").stat().st_size > 1000


# --- One of two


def in_update(number, act):
    """Do something at the start of the update with this number."""

    def make(update):
        def changed(training, prepared):
            if training.learner.num_updates + 1 == number:
                act(training)
            return update(training, prepared)

        return changed

    return patched(Training, "update", make)


@on(1)
def signal_to_one():
    return in_update(2, lambda _: os.kill(os.getpid(), signal.SIGTERM))


@on(1)
def bad_numbers_in_one():
    def poison(training):
        training.learner.loss = lambda *args: {name: term * np.nan for name, term in losses.ppo_loss(*args).items()}

    return in_update(2, poison)


@on(1)
def bad_states_in_one():
    def make(collect):
        def changed(training):
            episodes = collect(training)
            if training.learner.num_updates == 1:
                state_NS = episodes.state_NS.copy()
                state_NS[3] = np.nan
                episodes = replace(episodes, state_NS=state_NS)
            return episodes

        return changed

    return patched(Training, "collect", make)


@on(1)
def bad_data_in_one():
    def make(collect):
        def changed(training):
            if training.learner.num_updates == 1:
                raise DataError("a file is bad", where="x.jsonl")
            return collect(training)

        return changed

    return patched(Training, "collect", make)


@on(1)
def mistake_in_one():
    def stumble(training):
        training.learner.loss = lambda *args: 1 / 0

    return in_update(2, stumble)


@on(0)
def full_disk_of_the_first():
    def make(write):
        def changed(training, counters, best):
            return SaveError("a file cannot be written", got="No space left on device", where="update-000001.pt")

        return changed

    return patched(Training, "_write", make)


@on(1)
def far_moves_of_one():
    """The policy of one process's steps moves far; both stop after the first of two epochs."""

    def move(training):
        training.learner.loss = lambda *args: (
            (terms := losses.ppo_loss(*args)) | {"approx_kl": terms["approx_kl"] * 0 + 100}
        )

    return in_update(2, move)


@on(1)
def late_in_one():
    """Its clock says that the time is up."""

    def make(count):
        def changed(training, totals, *, seconds):
            count(training, totals, seconds=1000.0)

        return changed

    return patched(Training, "count", make)


@on(1)
def early_end_of_one():
    """Its recordings end after the first rollout."""

    def make(rollouts):
        def changed(stream, state, num_episodes):
            return itertools.islice(rollouts(stream, state, num_episodes), 0 if state else 1)

        return changed

    return patched(RecordingStream, "rollouts", make)


FAULTS = {
    "end": (early_end_of_one, 0, "Trained "),
    "signal": (signal_to_one, 0, "Another process was asked to stop."),
    "loss": (bad_numbers_in_one, 1, "the gradient of "),
    "states": (bad_states_in_one, 1, "the value is not a finite number"),
    "data": (bad_data_in_one, 1, "movelist: a file is bad (x.jsonl)\n"),
    "mistake": (mistake_in_one, 1, "movelist: ZeroDivisionError: division by zero\n"),
    "disk": (full_disk_of_the_first, 1, "No space left on device"),
    "kl": (far_moves_of_one, 0, "Trained "),
    "clock": (late_in_one, 0, "Trained "),
}


def faulty(worlds, folder):
    """Train with each fault in one process; how and after how many seconds it ends in each."""
    parallel.FAREWELL_SECONDS = 1.0  # the process goes on after each, so rank 0 never says that it has said it
    found = {}
    for name, (fault, _, _) in FAULTS.items():
        rank, started = next(worlds), time.monotonic()
        arguments = [*GAME, *PLAIN, "--eval_games", "0", "--total_steps", "400", "--target_kl", "0.5"]
        if name == "end":
            arguments = ["--data", f"{folder}/games.jsonl", *RECORDED, "--update_frequency", "4"]
        with fault(rank):
            code, out, err = command([*arguments, "--max_seconds", "300", "--out", f"{folder}/{name}"])
        found[name] = code, out, err, time.monotonic() - started
    return found


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    assert cli.main(["record", "--game", "kuhn_poker", "--episodes", "21", "--out", f"{folder}/games.jsonl"]) == 0
    return folder, ranks.run(faulty, str(folder), num_worlds=len(FAULTS))


@pytest.mark.parametrize("name", FAULTS)
def test_what_happens_to_one_ends_both_with_the_same_reason(faults, name):
    _, (first, second) = faults
    _, expected, words = FAULTS[name]
    code, out, err, seconds = first[name]
    assert code == second[name][0] == expected
    assert max(seconds, second[name][3]) < 30  # the promise; a hang would take ten minutes
    assert words in out + err
    assert err.count("\n") == (expected != 0)  # one line, no traceback
    assert second[name][1] == ""
    assert second[name][2] == "" or (name == "mistake" and "division by zero" in second[name][2])


def test_a_stop_asked_of_one_saves_after_that_update(faults):
    folder, _ = faults
    assert checkpoint.load(folder / "signal")["learner"]["num_updates"] == 2


def test_who_has_no_more_data_goes_on_with_nothing_until_all_are_at_the_end(faults):
    folder, _ = faults
    # Rollouts of 4, 4, 4, 4, 3 and 2 episodes: rank 0 has 2, 2, 2, 2, 1 and 1 of them, rank 1 its first 2 only.
    assert [row["charts/episodes"] for row in rows(folder / "end")] == [4, 6, 8, 10, 11, 12]


def test_the_clock_of_one_counts_for_all(faults):
    folder, _ = faults
    assert checkpoint.load(folder / "clock")["counters"]["seconds"] >= 500


def test_both_stop_an_epoch_early(faults):
    folder, _ = faults
    assert [row["perf/epochs"] for row in rows(folder / "kl")][:2] == [2, 1]


def test_the_place_of_a_bad_number_names_its_process(faults):
    _, (first, _) = faults
    assert "update 2, minibatch 1, rank 1" in first["loss"][2]


# --- While a writer goes on


@on(1)
def growing_before_it_is_read():
    """The recording grows after rank 0 looked, and before rank 1 does."""

    def make(begin):
        def changed(stream, files, **named):
            with Path(files[0]).open("ab") as file:
                file.write(Path(files[0]).with_suffix(".more").read_bytes())
            time.sleep(0.5)
            begin(stream, files, **named)

        return changed

    return patched(RecordingStream, "__init__", make)


def grown(worlds, folder):
    with growing_before_it_is_read(next(worlds)):
        arguments = ["--data", f"{folder}/games.jsonl", *RECORDED, "--update_frequency", "8"]
        return command([*arguments, "--out", f"{folder}/run"])


def test_all_read_what_rank_0_found_of_a_file_that_grows(tmp_path):
    for name, count in (("games", 21), ("more", 5)):
        file = f"{tmp_path}/{name}.jsonl"
        assert cli.main(["record", "--game", "kuhn_poker", "--episodes", str(count), "--out", file]) == 0
    (tmp_path / "more.jsonl").rename(tmp_path / "games.more")
    (code, _, err), other = ranks.run(grown, str(tmp_path))
    assert (code, err, other[0]) == (0, "", 0)
    assert rows(tmp_path / "run")[-1]["charts/episodes"] == 21


# --- As people start it


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_a_wrong_flag_is_named_once(monkeypatch, rank, lines):
    monkeypatch.setenv("RANK", rank)
    code, _, err = command(["--lr", "high"])
    assert (code, err.count("\n")) == (2, lines)


def test_torchrun_ends_all_when_one_is_killed(tmp_path):
    """The other one hears of it at once; the launcher names who was killed."""
    run = tmp_path / "run"
    arguments = [*GAME, *PLAIN, "--total_steps", "100000000", "--save_every", "1", "--out", str(run)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    started = subprocess.Popen(
        [*launcher, "-m", "movelist", "train", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + ranks.TIMEOUT_SECONDS
        while not list(run.glob("checkpoints/update-*.pt")):
            assert started.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        killed = time.monotonic()
        os.kill(_rank_1_of(started.pid), signal.SIGKILL)
        out, _ = started.communicate(timeout=60)
    finally:
        started.kill()
    assert time.monotonic() - killed < 30
    assert started.returncode == 1
    assert "Signal 9 (SIGKILL)" in out
    assert out.count("Traceback") == 1  # the launcher's own
    # Unless the launcher ends it first.
    assert "another process of this training ended without a word" in out or "Signal 15 (SIGTERM)" in out
    assert checkpoint.load(run)["learner"]["num_updates"] >= 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads the names of threads as Linux keeps them")
def test_no_thread_of_the_process_group_is_left_to_abort_the_process_at_its_end(tmp_path):
    script = tmp_path / "train_and_look.py"
    script.write_text(
        "import os, sys\n"
        "from movelist import cli\n"
        f"assert cli.main({['train', *GAME, *PLAIN, '--total_steps', '1', '--out', str(tmp_path / 'run')]}) == 0\n"
        "names = [open(f'/proc/self/task/{task}/comm').read() for task in os.listdir('/proc/self/task')]\n"
        "sys.exit(any('gloo' in name for name in names))\n",
        encoding="utf-8",
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, str(script)], capture_output=True, text=True, timeout=ranks.TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr


def _rank_1_of(launcher):
    import psutil

    children = psutil.Process(launcher).children()
    return next(child.pid for child in children if child.environ().get("RANK") == "1")
