"""Names become games."""

import pickle
import sys

import pytest

from movelist.core.errors import GameError, MissingExtraError
from movelist.games.catalog import GameSpec, make_game, names
from movelist.games.game import check_game


@pytest.fixture
def openspiel():
    pytest.importorskip("pyspiel", reason="the games of the catalog are OpenSpiel's")


class OneMove:
    """A game that is no OpenSpiel game, and its own state."""

    num_players = 1
    over = False

    def new_state(self, seed):
        return OneMove()

    def current_player(self):
        return None if self.over else 0

    def legal_actions(self):
        return [0]

    def observe(self, player):
        return [0.0]

    def apply(self, index):
        self.over = True

    def returns(self):
        return [0.0]


@pytest.mark.usefixtures("openspiel")
def test_an_openspiel_game_travels_by_its_name():
    """Worker processes get it so; OpenSpiel's own objects cannot be pickled."""
    game = make_game("leduc_poker(players=3)")
    assert len(pickle.dumps(game)) < 200
    travelled = pickle.loads(pickle.dumps(game))
    assert check_game(travelled, num_games=2) == check_game(game, num_games=2)
    assert travelled.name == game.name


@pytest.mark.usefixtures("openspiel")
@pytest.mark.parametrize("name", ["tic_tac_toe", "leduc_poker(players=3)", "dou_dizhu"])
def test_a_name_and_a_description_make_the_same_game(name):
    reports = [check_game(make_game(source), num_games=2) for source in (name, GameSpec(name))]
    assert reports[0] == reports[1]
    assert reports[0].name == name


def test_a_game_is_handed_back():
    game = OneMove()
    assert make_game(game) is game
    assert check_game(make_game(game)).num_steps == 20


def test_a_description_is_small_and_travels():
    spec = GameSpec("dou_dizhu")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len(pickle.dumps(spec)) < 200
    assert {spec: 1}[GameSpec("dou_dizhu")] == 1


@pytest.mark.usefixtures("openspiel")
def test_names():
    assert names() == sorted(names())
    assert "dou_dizhu" in names()


@pytest.mark.usefixtures("openspiel")
def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(GameError) as caught:
        make_game("dou_dizu")
    assert str(caught.value).endswith("Did you mean dou_dizhu?")


def test_without_openspiel(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    for use in (names, lambda: make_game("dou_dizhu"), GameSpec("dou_dizhu").make):
        with pytest.raises(MissingExtraError, match=r"movelist\[games\]"):
            use()
    assert make_game(game := OneMove()) is game
