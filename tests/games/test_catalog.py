"""Names become games."""

import pickle
import sys

import pytest

from movelist.core.errors import GameError, MissingExtraError, SettingsError
from movelist.games.catalog import (
    GameSpec,
    from_anywhere,
    is_known,
    is_own,
    library_of,
    make_game,
    make_known,
    names,
    own_name,
)
from movelist.games.check import check_game


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


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """A game of one's own, in a folder with any name."""
    folder = tmp_path / "games (2)"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "one.py").write_text(OWN_FILE, encoding="utf-8")
    return folder / "one.py"


OWN_FILE = """
class One:
    num_players, over = 1, False
    def __init__(self, size=1): self.size = size
    def new_state(self, seed): return One(self.size)
    def current_player(self): return None if self.over else 0
    def legal_actions(self): return [3, 4]
    def observe(self, player): return [float(self.over)] * self.size
    def apply(self, index): self.over = True
    def returns(self): return [1.0 * self.over]
def make(): return One(2)
def broken(): return 1 / 0
number = 3
"""


@pytest.mark.parametrize("part", ["One", "One(size=1)", "make"])
def test_ones_own_game_by_its_file(own_file, part):
    for place in ("one.py", str(own_file)):
        game = make_game(f"{place}:{part}")
        assert check_game(game).name == "One"
        assert is_own(f"{place}:{part}")
        assert is_known(f"{place}:{part}")
        assert from_anywhere(f"{place}:{part}") == f"{own_file}:{part}"


def test_ones_own_game_by_its_class():
    assert check_game(make_game(OneMove)).name == "OneMove"
    assert own_name(OneMove) == f"{__file__}:OneMove" or own_name(OneMove).endswith("test_catalog:OneMove")
    assert own_name(OneMove()) is None

    class Local(OneMove):
        pass

    assert own_name(Local) is None  # nobody else can find it, and it can be played here all the same
    assert check_game(make_game(Local)).name == "Local"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two.py:One", "there is no such file: got two.py:One"),
        ("one.py:Two", "one.py has no Two: got one.py:Two"),
        ("one.py:number", "this is neither a class nor a function: got one.py:number, of type int"),
        ("one.py:broken", "the game's own code failed: ZeroDivisionError: division by zero at "),
        ("fractions:Fraction", "this makes no game: got fractions:Fraction, of type Fraction, expected an object with"),
        ("no_such_module_9:One", "there is no module no_such_module_9: got no_such_module_9:One"),
        ("petingzoo:classic/chess_v6", "this names no game: got 'petingzoo:classic/chess_v6', expected as in tic_tac"),
    ],
)
def test_what_is_no_game_of_ones_own(own_file, name, message):
    with pytest.raises((GameError, SettingsError)) as caught:
        make_game(name)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


def test_a_mistyped_library_offers_the_nearest():
    with pytest.raises(SettingsError, match=r"there is no module rlcrad: .* Did you mean rlcard:doudizhu\? Start in"):
        make_game("rlcrad:doudizhu")
    with pytest.raises(GameError, match=r"Did you mean pettingzoo:classic/chess_v6\?$"):
        make_game("petingzoo:classic/chess_v6")


@pytest.mark.parametrize("name", ["one.py:One", "pettingzoo:one.py:One"])
def test_data_cannot_have_code_imported(own_file, name):
    """A recording or an exported policy comes from anywhere: that it names a file is no reason to run it."""
    own_file.write_text("raise SystemExit", encoding="utf-8")
    with pytest.raises(GameError, match="a file cannot say what is to be imported: got"):
        make_known(name)


@pytest.mark.usefixtures("openspiel")
def test_openspiels_games_with_and_without_the_library_before_them():
    for name in ("kuhn_poker", "leduc_poker(players=3)"):
        assert make_game(f"openspiel:{name}").name == make_game(name).name == name
    assert not is_own("kuhn_poker") and not is_own("rlcard:uno") and not is_own("a(b:c)")
    assert (library_of("kuhn_poker"), library_of("rlcard:uno")) == ("OpenSpiel", "RLCard")
    with pytest.raises(GameError, match="Did you mean kuhn_poker"):
        make_game("openspiel:kuhn_pker")


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
