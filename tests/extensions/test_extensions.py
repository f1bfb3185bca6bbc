"""Each way to extend movelist is a small program here, which touches no file of src/; docs/extending.md shows them."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = sorted(HERE.glob("own_*.py"))
MOST_LINES = 20  # of code; the point of a door is that little is needed to go through it
pytest.importorskip("pyspiel", reason="they play OpenSpiel's games")


def run(*command, folder):
    """What a command prints; it must end well and without a warning."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def trained(folder):
    """The run of a folder's training, and its last metrics."""
    (run_folder,) = (folder / "runs").iterdir()
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return run_folder, json.loads(lines[-1])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_are_short(program):
    tree = ast.parse(program.read_text(encoding="utf-8"))
    docs = {node.body[0].lineno for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)}  # fmt: skip
    code = [
        number
        for number, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in docs and "import" not in line.split()
    ]
    # The column's program holds a whole game and a whole network besides.
    assert len(code) <= (2 * MOST_LINES if program.stem == "own_column" else MOST_LINES)


@pytest.fixture(scope="module", params=[p for p in PROGRAMS if p.stem != "own_command"], ids=lambda path: path.stem)
def done(request, tmp_path_factory):
    """(program, its folder, what it said), each run once."""
    folder = tmp_path_factory.mktemp(request.param.stem)
    return request.param.stem, folder, run(request.param, folder=folder)


def test_programs_train(done):
    name, folder, said = done
    run_folder, last = trained(folder)
    assert re.search(r"Trained 3,\d\d\d steps", said)
    assert last["losses/entropy"] > 0
    if name == "own_callback":
        told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert [line["update"] for line in told] == list(range(1, int(last["charts/updates"]) + 1))
        assert told[-1]["steps"] == last["step"]
    if name == "own_export":
        assert re.search(r"policy\.packed: packed, [\d,]+ bytes, .* equal to torch on 200 lists", said)
        assert "win rate" in said.partition("equal to torch")[2]
    if name in ("own_network", "own_encoder"):  # whose checkpoints name a class: other commands find it
        match = run("-m", "movelist", "match", run_folder, "--num_games", "20", folder=folder)
        assert "win rate" in match
        goal = ["--total_steps", "4000", "--eval_games", "0"]
        said = run("-m", "movelist", "train", "--resume", run_folder, *goal, folder=folder)
        assert re.search(r"Trained 4,\d\d\d steps", said)


def test_a_command_of_ones_own_stands_beside_the_others(tmp_path):
    program = HERE / "own_command.py"
    goal = ["--total_steps", "1500", "--batch_size", "512", "--update_frequency", "64", "--eval_games", "0"]
    run(program, "train", "--game", "kuhn_poker", "--out", "mine", *goal, folder=tmp_path)
    lines = (tmp_path / "mine" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert run(program, "updates", "mine", folder=tmp_path) == f"{len(lines)}\n"
    assert "How many updates a run has made." in run(program, "--help", folder=tmp_path)


@pytest.mark.parametrize(
    ("game", "encoder"),
    [
        ("tic_tac_toe", "Entities(features=3, by_columns=True, heads=2)"),
        ("leduc_poker", "LastTurns(turns=8, width=2)"),
    ],
)
def test_the_examples_of_encoders_train_from_the_command_line(game, encoder, tmp_path):
    name = f"{ROOT / 'examples' / 'encoders.py'}:{encoder}"
    sizes = [
        "--hidden_dim",
        "32",
        "--update_frequency",
        "128",
        "--total_steps",
        "6000",
        "--eval_games",
        "400",
        "--eval_every",
        "1",
    ]
    sizes += ["--eval_every", "1", "--batch_size", "256", "--lr", "2e-3", "--ent_coef", "0.05"]
    run("-m", "movelist", "train", "--game", game, "--state_encoder", name, *sizes, folder=tmp_path)
    run_folder, last = trained(tmp_path)
    assert json.loads((run_folder / "settings.json").read_text(encoding="utf-8"))["state_encoder"] == name
    assert last["arena/mean_return"] > 0.2  # random players have 0
    export = run("-m", "movelist", "export", run_folder, "--out", tmp_path / "policy.onnx", folder=tmp_path)
    assert "equal to torch on 200 lists" in export
