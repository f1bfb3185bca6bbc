"""A person against the bot: what is shown, what may be typed."""

import numpy as np
import pytest

from movelist.core.errors import SettingsError
from movelist.games.catalog import make_game
from movelist.play.policy import RandomPolicy
from movelist.play.terminal import action_names, chosen_index, in_columns, play_game


class Race:
    """Two players add 1 or 2; who reaches 5 wins. The third turn is forced."""

    num_players = 2

    def new_state(self, seed):
        return RaceState()


class RaceState:
    sum, turn = 0, 0
    names = True

    def current_player(self):
        return self.turn % 2 if self.sum < 5 else None

    def legal_actions(self):
        return [1] if self.turn == 2 else [1, -2]

    def action_name(self, index):
        return ("add one", "add two")[index]

    def describe(self, player):
        return f"sum {self.sum}"

    def observe(self, player):
        return [float(self.sum), float(player)]

    def apply(self, index):
        self.sum += index + 1
        self.turn += 1

    def returns(self):
        if self.sum < 5:
            return [0.0, 0.0]
        return [1.0, -1.0] if self.turn % 2 else [-1.0, 1.0]


class Bot(RandomPolicy):
    """Always adds two where it can, and believes in it three to one."""

    def choose(self, turns):
        return turns.count_B - 1, np.zeros(len(turns.count_B), np.float32)

    def log_probs(self, turns):
        return np.log(np.array([0.25, 0.75][: turns.count_B[0]], np.float32))


def play(answers, game=None, seat=0, bot=None):
    said, asked = [], iter(answers)

    def ask(prompt):
        said.append(prompt)
        try:
            return next(asked)
        except StopIteration:
            raise EOFError from None

    return play_game(bot or Bot(), game or Race(), seat=seat, seed=1, ask=ask, say=said.append), said


def test_a_game_by_numbers_and_names():
    returns, said = play(["1", "add o"])
    # 2, bot 2, forced 1: 5 is reached by the person on turn 3.
    assert returns == [1.0, -1.0]
    assert said == [
        "You are player 0 of 0 to 1. Type a number or a name plays; p shows the bot's probabilities; q gives up.",
        "\nsum 0", "  0 add one", "  1 add two", "Your move: ", "You play add two", "Player 1 plays add two", "\nsum 4",
        "You can only play add one", "The game is over: player 0 +1, player 1 -1", "You won.",
    ]  # fmt: skip


def test_probabilities_are_shown_on_request_and_nonsense_is_answered():
    returns, said = play(["p", "2", "", "add", "q"])
    assert returns is None
    assert said[said.index("Your move: ") + 1 :][:2] == [" 75.0% add two", " 25.0% add one"]
    assert [line.split(". ")[0] for line in said if "no such" in line] == [
        "There is no such action: '2'", "There is no such action: ''", "There is no such action: 'add'"
    ]  # fmt: skip
    assert said[-1] == "You gave up."


def test_the_end_of_input_gives_up():
    returns, said = play([])
    assert returns is None and said[-1] == "You gave up."


def test_the_other_seat_and_a_lost_game():
    returns, said = play(["0", "0"], seat=1)
    # Bot 2, person 1, bot forced 1, person 1: 5 is reached by the person on the fourth turn.
    assert returns == [-1.0, 1.0]
    assert said[1] == "Player 0 plays add two"
    returns, said = play(["1"], seat=1)
    assert returns == [1.0, -1.0] and said[-1] == "The bot won."


def test_a_rounding_error_is_no_victory():
    class Rounded(RaceState):
        def returns(self):
            return [0.3, 0.1 + 0.2]

    class Even(Race):
        def new_state(self, seed):
            return Rounded()

    for seat in (0, 1):
        assert play(["0"] * 9, Even(), seat=seat)[1][-1] == "A draw."


def test_ids_are_shown_where_a_game_has_no_names():
    class Bare(RaceState):
        action_name = describe = None

    assert action_names(Bare()) == ["0x0000000000000001", "0xfffffffffffffffe"]


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("0", 0),
        ("2", 2),
        ("33", 2),
        ("3", 3),
        ("7", None),
        ("pa", 3),
        ("PASS", 3),
        ("", None),
        ("x", None),
        ("²", None),
        ("9" * 5000, None),  # Python refuses to read it as a number
    ],
)
def test_a_number_of_the_list_comes_before_a_name(answer, index):
    assert chosen_index(answer, ["3", "4", "33", "Pass"]) == index


def test_many_actions_stand_in_columns():
    assert in_columns(["a", "b"]) == ["a", "b"]
    assert in_columns([f"{n:>3}" for n in range(12)], width=24) == [
        "  0     1     2     3", "  4     5     6     7", "  8     9    10    11"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["dou_dizhu", "tic_tac_toe", "leduc_poker(players=3)", "backgammon"])
def test_openspiels_games_can_be_played(name):
    pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")

    class Even(RandomPolicy):
        def log_probs(self, turns):
            return np.full(turns.count_B[0], -np.log(turns.count_B[0]), np.float32)

    game = make_game(name)
    returns, said = play(["p"] + ["0"] * 500, game, seat=1, bot=Even())
    assert returns is not None and len(returns) == game.num_players
    assert any("%" in line for line in said)
    if name == "dou_dizhu":
        assert any(line.startswith("\nMy hand ") for line in said)


def test_the_command_names_a_wrong_seat_and_seed(tmp_path, monkeypatch):
    from movelist import policy_commands as commands
    from movelist.run import api

    (play,) = (command for command in commands.COMMANDS if command.name == "play")
    monkeypatch.setattr(api, "load_player", lambda path, game, greedy: (Bot(), Race()))
    with pytest.raises(SettingsError, match="no such seat: got --seat 2, expected 0 to 1"):
        play.run(commands.Play(policy=tmp_path, seat=2), [])
    for seed in (-1, 2**63):
        with pytest.raises(SettingsError, match=rf"--seed cannot be used: got {seed}, expected 0 to 2\^63 - 1"):
            play.run(commands.Play(policy=tmp_path, seed=seed), [])
    answers = iter(["1"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert play.run(commands.Play(policy=tmp_path), []) == 0
