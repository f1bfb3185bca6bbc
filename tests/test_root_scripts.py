"""The files at the root, as a user types them: only shorter, and with their folder elsewhere."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from movelist.learn.device import multiplies_bfloat16
from movelist.run import checkpoint
from movelist.run.folder import read_settings

ROOT = Path(__file__).resolve().parents[1]
needs_openspiel = pytest.mark.skipif(
    not importlib.metadata.packages_distributions().get("pyspiel"), reason="trains on OpenSpiel's dou_dizhu"
)
SHORT = ["--total_steps", "1", "--eval_games", "0", "--no-tensorboard", "--device", "cpu"]


def python(*words, cwd=ROOT, flags=(), **environment):
    """Run Python on a file: exit code, lines of standard output, standard error."""
    done = subprocess.run(
        [sys.executable, *flags, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def greeting(lines):
    """What is said before the first update."""
    return lines[: next(place for place, line in enumerate(lines) if line.startswith("An update: "))]


@needs_openspiel
def test_few_episodes_and_mixed_precision(tmp_path):
    command = "train.py --batch_size 256 --update_frequency 10 --use_amp"
    code, lines, err = python(*command.split(), *SHORT, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    said = [line for line in lines if "NVIDIA" not in line]
    assert said[0].startswith("No --data, so self-play on OpenSpiel's dou_dizhu.")
    without = [line for line in greeting(lines) if line.startswith("--use_amp does nothing on this cpu: ")]
    assert len(without) == (not multiplies_bfloat16())  # as this processor has it
    assert [line for line in lines if line.startswith("Warning: 10 episodes")]
    settings = read_settings(tmp_path / "run")
    assert (settings["batch_size"], settings["update_frequency"], settings["use_amp"]) == (256, 10, True)
    assert checkpoint.load(tmp_path / "run")["counters"]["episodes"] == 10


@needs_openspiel
def test_all_the_flags_of_the_longer_command(tmp_path):
    command = (
        "train.py --batch_size 128 --update_frequency 5 --epochs_per_update 4 --hidden_dim 512 --lr 3e-4 "
        "--gradient_accumulation_steps 2"
    )
    code, lines, err = python(*command.split(), *SHORT, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert not [line for line in lines if line.startswith("--use_amp")]
    assert [line for line in lines if " minibatch" in line and " of up to 256 steps x 4 epochs." in line]
    state = checkpoint.load(tmp_path / "run")
    assert state["shape"]["hidden_dim"] == 512
    assert state["settings"]["lr"] == 3e-4
    assert (state["counters"]["episodes"], state["learner"]["num_updates"]) == (5, 1)


def test_train_py_is_movelist_train(tmp_path):
    assert python(ROOT / "train.py", "--lrr", "3", cwd=tmp_path) == (
        2,
        [],
        "movelist: Unrecognized options: --lrr, 3; perhaps --lr. See movelist train --help\n",
    )
    code, lines, err = python(ROOT / "train.py", "--help", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert lines[0].startswith("usage: movelist train ")
    assert list(tmp_path.iterdir()) == []


def test_profile_performance_py_is_movelist_profile(tmp_path):
    assert python(ROOT / "profile_performance.py", "--lrr", "3", cwd=tmp_path) == (
        2,
        [],
        "movelist: Unrecognized options: --lrr, 3; perhaps --lr. See movelist profile --help\n",
    )
    code, lines, err = python(ROOT / "profile_performance.py", "--help", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert lines[0].startswith("usage: movelist profile ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["train.py", "profile_performance.py"])
def test_a_script_without_the_packages_it_needs(tmp_path, script):
    """-S leaves out all that was installed: a clone on a bare Python."""
    code, lines, err = python(ROOT / script, cwd=tmp_path, flags=["-S"], PYTHONPATH="")
    assert (code, lines) == (2, [])
    assert re.fullmatch(
        r"No module named '(\w+)': run (make install|setup\.bat) and then the Python in \.venv, or install \1\.\n", err
    )
    assert list(tmp_path.iterdir()) == []


def flags_of(script, program="train.py"):
    """The words after a program in the line of a script that runs it."""
    (line,) = [line for line in (ROOT / script).read_text(encoding="utf-8").splitlines() if f" {program} " in line]
    return line.partition(f" {program} ")[2].removesuffix(" || exit $?").removesuffix(' "$@"').removesuffix(" %*")


def test_both_fast_scripts_train_alike():
    assert flags_of("train_fast.sh") == flags_of("train_fast.bat")
    assert flags_of("train_fast.sh") == "--preset fast"  # what is called fast is fast


def test_a_double_clicked_window_stays_open_and_a_script_goes_on():
    lines = (ROOT / "train_fast.bat").read_text(encoding="ascii").splitlines()
    pauses = [line for line in lines if "pause" in line]
    assert len(pauses) == 2
    assert all(line.startswith("if not defined CI ") for line in pauses)
    assert lines.index(pauses[0]) < lines.index("exit /b 0")
    assert 'find /i "%SELF%"' in pauses[0]  # only where the window was opened for this file
    assert lines.index('set "SELF=%~f0"') < next(n for n, line in enumerate(lines) if line.startswith("cd "))


@pytest.fixture
def clone(tmp_path):
    """A clone that is set up: its .venv's Python is the one that runs the tests."""
    if sys.platform == "win32":
        pytest.skip("a shell script")
    folder = tmp_path / "克隆 一"
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("train.py", "profile_performance.py", "train_fast.sh"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    launcher = folder / ".venv" / "bin" / "python"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    return folder


def shell(script, *words, cwd):
    done = subprocess.run(
        ["sh", str(script), *words], cwd=cwd, capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@needs_openspiel
def test_train_fast_from_another_folder_with_more_flags(clone, tmp_path):
    words = [*SHORT, "--update_frequency", "2", "--hidden_dim", "16", "--batch_size", "128"]
    code, lines, err = shell(clone / "train_fast.sh", *words, cwd=tmp_path)
    assert (code, err) == (0, "")
    (run,) = (clone / "runs").iterdir()
    settings = read_settings(run)
    assert (settings["batch_size"], settings["update_frequency"], settings["hidden_dim"]) == (128, 2, 16)
    assert settings["preset"] == "fast"
    assert lines[0].startswith("--preset fast set ")  # what it uses and why
    assert "--batch_size 128 was given" in lines[0]
    # What the settings mean here, and what they cost.
    assert [line for line in lines if line.startswith("An update: 2 episodes = about ")]
    assert lines[-1].startswith("Or train on: ")


@needs_openspiel
def test_train_fast_with_a_wrong_flag_says_so_once(clone, tmp_path):
    code, lines, err = shell(clone / "train_fast.sh", "--lrr", "3", cwd=tmp_path)
    assert (code, lines) == (2, [])
    assert err == "movelist: Unrecognized options: --lrr, 3; perhaps --lr. See movelist train --help\n"


def test_train_fast_before_the_set_up(clone, tmp_path):
    shutil.rmtree(clone / ".venv")
    code, lines, err = shell(clone / "train_fast.sh", cwd=tmp_path)
    assert (code, lines) == (1, [])
    assert err == "movelist is not set up here yet: run 'make install' first.\n"


def test_both_ways_to_set_up_install_the_same_extras():
    """A README that exports has to work on Windows, too."""
    makefile, batch = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "setup.bat"))
    (extras,), (on_windows,) = (re.findall(r'"\.\[([a-z,]+)\]" --group dev', text) for text in (makefile, batch))
    assert extras == on_windows
    assert "onnx" in extras.split(",")
