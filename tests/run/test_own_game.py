"""A game of one's own by its name: from the first training to every command after it, from any folder."""

import json
import subprocess
import sys

import pytest

import movelist
from movelist.cli import main
from movelist.core.errors import CheckpointError, GameError, SettingsError

TEN = '''
class Ten:
    """Take 1 to 3 of ten sticks; who takes the last one loses."""
    num_players = 2
    def new_state(self, seed): return Sticks()

class Sticks:
    def __init__(self): self.left, self.turn = 10, 0
    def current_player(self): return self.turn % 2 if self.left else None
    def legal_actions(self): return list(range(1, min(3, self.left) + 1))
    def observe(self, player): return [float(self.left == each) for each in range(11)]
    def apply(self, index): self.left, self.turn = self.left - index - 1, self.turn + 1
    def returns(self): return [0.0, 0.0] if self.left else [[1.0, -1.0], [-1.0, 1.0]][self.turn % 2]

class Twelve(Ten): pass
class Broken(Ten):
    def new_state(self, seed): raise ValueError("no cards left")
'''
SMALL = {
    "hidden_dim": 16, "batch_size": 64, "update_frequency": 32, "total_steps": 200, "eval_games": 20, "live": False,
    "tensorboard": False,
}  # fmt: skip


def flags(**settings):
    """Settings as they are typed."""
    words = []
    for name, value in (SMALL | settings).items():
        words += [f"--{'' if value else 'no-'}{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return words


@pytest.fixture
def ten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ten.py"
    file.write_text(TEN, encoding="utf-8")
    return file


def settings_of(run):
    return json.loads((run / "settings.json").read_text(encoding="utf-8"))


def test_each_command_finds_it_again(ten, tmp_path, monkeypatch, capsys):
    assert main(["train", "--game", "ten.py:Ten", "--out", "run", *flags()]) == 0
    said = capsys.readouterr().out
    assert "Self-play on Ten." in said
    assert "movelist train --resume run" in said and "in Python" not in said
    assert settings_of(tmp_path / "run")["game"] == f"{ten}:Ten"
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr("builtins.input", lambda prompt="": "q")
    assert main(["match", "../run", "--num_games", "10"]) == 0
    assert main(["play", "../run"]) == 0
    assert main(["train", "--resume", "../run", "--total_steps", "400", "--no-live"]) == 0
    assert main(["train", "--game", f"{ten}:Ten", "--out", "../run", *flags(total_steps=500)]) == 0  # goes on
    record = ["record", "--game", "../ten.py:Ten", "--policy", "../run", "--episodes", "20", "--out", "a.jsonl"]
    assert main(record) == 0
    assert '"game":"Ten"' in (elsewhere / "a.jsonl").read_text(encoding="utf-8")
    quick = ["--num_episodes", "8", "--batch_sizes", "8", "--hidden_dim", "16", "--repetitions", "1"]
    assert main(["benchmark", "--game", "../ten.py:Ten", *quick, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["settings"]["game"] == "Ten"
    assert main(["train", "--data", "a.jsonl", "--game", "../ten.py:Ten", "--out", "recorded", *flags()]) == 0
    assert settings_of(elsewhere / "recorded")["game"] == f"{ten}:Ten"
    assert main(["match", "recorded", "--num_games", "10"]) == 0
    assert main(["export", "../run", "--out", "ten.safetensors", "--profile", "weights"]) == 0
    assert main(["match", "ten.safetensors", "--game", "../ten.py:Ten", "--num_games", "10"]) == 0
    # What goes to other machines names the game, and not where its file lies here.
    assert str(tmp_path).encode() not in (elsewhere / "ten.safetensors").read_bytes()


def test_another_game_is_refused_and_a_lost_file_is_named(ten, capsys):
    assert main(["train", "--game", "ten.py:Ten", "--out", "run", *flags()]) == 0
    with pytest.raises(CheckpointError, match="of another game: got Ten, expected Twelve"):
        movelist.match("run", game="ten.py:Twelve", num_games=2)
    ten.rename(ten.with_name("moved.py"))
    with pytest.raises(GameError, match=r"there is no such file: .*A game of your own has to be given: --game file.py"):
        movelist.match("run", num_games=2)
    assert movelist.match("run", game="moved.py:Ten", num_games=2).num_games == 2
    assert main(["train", "--resume", "run", "--game", "moved.py:Ten", "--total_steps", "600", "--no-live"]) == 0
    assert movelist.match("run", num_games=2).num_games == 2  # the run knows the new place


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--game", "nine.py:Ten"], "movelist: there is no such file: got nine.py:Ten"),
        (["--game", "ten.py:Tn"], "movelist: ten.py has no Tn: got ten.py:Tn"),
        (["--game", "ten.py:Broken"], "movelist: the game's own code failed: ValueError: no cards left"),
        (["--game", "ten.py:Sticks"], "movelist: this makes no game: got ten.py:Sticks, of type Sticks"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(ten, capsys, words, message):
    assert main(["train", *words, *flags()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1
    assert not (ten.parent / "runs").exists()


def test_workers_get_a_game_of_a_file(ten):
    alone = movelist.train("ten.py:Ten", out="alone", **SMALL)
    helped = movelist.train("ten.py:Ten", out="helped", rollout_workers=2, **SMALL)
    assert alone.match.num_games == helped.match.num_games
    assert [score.mean_return for score in alone.match.seats] == [score.mean_return for score in helped.match.seats]


def test_a_script_hands_in_its_class(ten, tmp_path):
    """The class of the program that runs goes by the program's file."""
    call = f"\nif __name__ == '__main__':\n    import movelist\n    movelist.train(Ten, out='run', **{SMALL!r})\n"
    (tmp_path / "mine.py").write_text(TEN + call, encoding="utf-8")
    subprocess.run([sys.executable, "mine.py"], check=True, cwd=tmp_path, capture_output=True)
    assert settings_of(tmp_path / "run")["game"] == f"{tmp_path / 'mine.py'}:Ten"
    assert movelist.match("run", num_games=2).num_games == 2


def test_an_object_goes_on_in_a_run_that_knows_its_class(ten):
    movelist.train("ten.py:Ten", out="run", **SMALL)
    movelist.train(movelist.make_game("ten.py:Ten"), resume="run", total_steps=300)
    assert settings_of(ten.parent / "run")["game"] == f"{ten}:Ten"


def test_one_game_against_a_policy(ten):
    said = []
    movelist.play_game(movelist.RandomPolicy(), "ten.py:Ten", seat=1, seed=3, ask=lambda prompt: "0", say=said.append)
    assert said[-1] in ("You won.", "The bot won.")
    with pytest.raises(SettingsError, match="there is no such seat: got --seat 2, expected 0 to 1"):
        movelist.play_game(movelist.RandomPolicy(), "ten.py:Ten", seat=2)
    with pytest.raises(CheckpointError, match=r"a game is needed\. Give game="):
        movelist.play_game(movelist.RandomPolicy())


def test_recordings_of_another_game_are_refused(ten, capsys):
    assert main(["record", "--game", "ten.py:Ten", "--episodes", "5", "--out", "a.jsonl"]) == 0
    assert main(["train", "--data", "a.jsonl", "--game", "ten.py:Twelve", *flags()]) == 2
    assert "the data are of another game: got Ten, expected Twelve" in capsys.readouterr().err
