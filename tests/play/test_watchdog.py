"""Which call of a game does not come back is said, and said again."""

import threading

import pytest

from movelist.core import patience
from movelist.core.settings import PlaySettings
from movelist.play import watchdog
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay
from play.toys import Scripted, ScriptedState

SCRIPT = [(0, [1, 2], [0, 0]), (1, [5], [0, 0]), (0, [3, 4], [1, -1])]  # turn 1 is forced


class Stuck(Scripted):
    """A game that hangs in one method, from turn 1 on, until `heard` holds two words."""

    def __init__(self, where, heard):
        super().__init__(2, SCRIPT)
        self.where, self.heard = where, heard
        self.enough = threading.Event()

    def say(self, text):
        self.heard.append(text)
        if len(self.heard) >= 2:
            self.enough.set()

    def hang(self, where, turn):
        if where == self.where and turn >= 1:
            assert self.enough.wait(30), "nothing was said"

    def new_state(self, seed):
        self.hang("new_state", self.asked)
        self.asked = 1
        return StuckState(self)

    asked = 0


class StuckState(ScriptedState):
    def __init__(self, game):
        super().__init__(game)
        self.game = game

    def apply(self, index):
        self.game.hang("apply", self.turn)
        super().apply(index)

    def observe(self, player):
        self.game.hang("observe", self.turn)
        return super().observe(player)

    def legal_actions(self):
        self.game.hang("legal_actions", self.turn)
        return super().legal_actions()

    def returns(self):
        self.game.hang("returns", self.turn)
        return super().returns()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("where", "turn"), [("apply", 1), ("observe", 2), ("legal_actions", 1), ("returns", 2), ("new_state", 0)]
)
def test_a_game_that_hangs_in_this_process_is_named_again_and_again(impatient, where, turn):
    game = Stuck(where, [])
    source = SelfPlay(game, PlaySettings(num_games=1), say=game.say)
    source.collect(RandomPolicy(), 1)
    for text in game.heard[:2]:
        assert text.startswith("Waiting for 0 s for the game: game with seed ")
        assert f", turn {turn}, in {where} (" in text
        assert text.endswith(").")


def test_a_game_that_goes_on_is_not_spoken_of(impatient):
    heard = []
    SelfPlay(Scripted(2, SCRIPT), PlaySettings(), say=heard.append).collect(RandomPolicy(), 50)
    assert heard == []
    assert not [thread for thread in threading.enumerate() if thread.name == "movelist watchdog"]


def test_the_pauses_double_up_to_a_limit(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    wait, said = patience.Patience(), []
    for second in range(2000):
        now[0] = float(second)
        if text := wait.word_is_due():
            said.append(text)
    assert said == ["30 s", "90 s", "210 s", "450 s", "930 s", "1,530 s"]
