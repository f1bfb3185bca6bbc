"""Games whose lists name an action twice: refused, or played with each action once, by all who play them."""

import json
import pickle

import numpy as np
import pytest

import movelist
from movelist import cli
from movelist.core.errors import DataError, GameError
from movelist.core.settings import PlaySettings
from movelist.data import recordings
from movelist.data.column import Column
from movelist.games.catalog import make_game
from movelist.games.repeated import MergedGame, first_places, merging
from movelist.play.policy import RandomPolicy
from movelist.play.selfplay import SelfPlay
from movelist.run import checkpoint
from recorded import assert_equal

GAME = '''
import random


class Cards:
    """Take the largest of five cards, or a smaller one twice; ids of one pattern are spelt in two ways."""

    num_players = 2
    once = False

    def new_state(self, seed):
        return CardsState(self, random.Random(seed))


class Once(Cards):
    name = "Cards"
    once = True


class Merged(Cards):
    name = "Cards"
    repeated_actions = "merge"


class CardsState:
    def __init__(self, game, chance):
        self.game, self.chance, self.turn, self.scores = game, chance, 0, [0.0, 0.0]
        self.deal()

    def deal(self):
        low = [3, 0, -(2**63)][self.turn % 3]
        self.hand = [low + self.chance.randrange(4) for _ in range(self.chance.choice([2, 4, 5]))]

    def current_player(self):
        return self.turn % 2 if self.turn < 6 else None

    def legal_actions(self):
        return list(dict.fromkeys(self.hand)) if self.game.once else [
            card % 2**64 if place % 2 else card for place, card in enumerate(self.hand)
        ]

    def observe(self, player):
        return [float(player), self.turn / 6]

    def action_name(self, index):
        return f"card {self.legal_actions()[index] % 2**64}"

    def apply(self, index):
        self.scores[self.turn % 2] += self.legal_actions()[index] % 4
        self.turn += 1
        self.deal()

    def returns(self):
        return list(self.scores)
'''
SMALL = {"hidden_dim": 8, "total_steps": 300, "update_frequency": 32, "eval_games": 0, "seed": 3, "device": "cpu",
         "tensorboard": False, "live": False}  # fmt: skip


@pytest.fixture
def cards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cards.py").write_text(GAME, encoding="utf-8")
    return tmp_path


def flags(**more):
    values = {name: value for name, value in (SMALL | more).items() if value is not False}
    off = [f"--no-{name}" for name, value in SMALL.items() if value is False]
    return [*off, *(f"--{name}={value}" for name, value in values.items())]


def played(game, **settings):
    source = SelfPlay(game, PlaySettings(**settings), seed=5)
    episodes = source.collect(RandomPolicy(), 40)
    source.close()
    return episodes


def net(run):
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint.load(run)["learner"]["net"].items()}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_merged_game_is_the_game_that_lists_each_action_once(cards, workers):
    once = played(make_game("cards.py:Once"))
    assert (np.diff(once.action_offsets) > 2).any()
    for game in (make_game("cards.py:Merged"), make_game("cards.py:Cards", "merge")):
        assert_equal(once, played(game, rollout_workers=workers))


def test_without_a_word_it_is_refused_and_the_error_says_how_to_go_on(cards, capsys):
    with pytest.raises(DataError, match=r"stands twice in one list.*--repeated_actions merge makes one of them"):
        played(make_game("cards.py:Cards"))
    with pytest.raises(GameError, match='say --repeated_actions merge, or repeated_actions = "merge" in the game'):
        movelist.check_game(make_game("cards.py:Cards"))
    assert cli.main(["train", "--game", "cards.py:Cards", "--out", "run", *flags()]) == 2
    said = capsys.readouterr().err
    assert "an id is there twice" in said and "--repeated_actions merge" in said
    assert not (cards / "run").exists()


def test_what_the_error_says_works_and_the_run_remembers_it(cards, capsys):
    words = ["--game", "cards.py:Cards", "--repeated_actions", "merge"]
    assert cli.main(["train", *words, "--out", "run", *flags()]) == 0
    assert cli.main(["train", "--game", "cards.py:Once", "--out", "once", *flags()]) == 0
    assert net("run") == net("once")
    assert cli.main(["train", "--resume", "run", "--total_steps", "600"]) == 0
    assert cli.main(["train", "--resume", "once", "--total_steps", "600"]) == 0
    assert net("run") == net("once")
    capsys.readouterr()
    results = []
    for run in ("run", "once"):
        assert cli.main(["match", run, "--num_games", "50", "--no-greedy", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]


def test_from_python_an_object_and_a_class_that_says_it(cards):
    game = make_game("cards.py:Merged")
    assert isinstance(game, MergedGame) and make_game(game) is game
    assert movelist.check_game(game.game).max_legal_actions <= 4
    result = movelist.train(game.game, out="object", **SMALL)
    movelist.train(make_game("cards.py:Cards"), repeated_actions="merge", out="flag", **SMALL)
    assert net("object") == net("flag")
    assert movelist.match(result.policy, game=game, num_games=4).num_games == 4


def test_a_merged_game_is_recorded_with_each_action_once(cards, capsys):
    common = ["--episodes", "20", "--seed", "2", "--game"]
    assert cli.main(["record", *common, "cards.py:Once", "--out", "once.jsonl"]) == 0
    assert cli.main(["record", *common, "cards.py:Cards", "--out", "no.jsonl"]) == 1
    assert not (cards / "no.jsonl").exists()  # nothing is left that looks like a recording
    assert cli.main(["record", *common, "cards.py:Cards", "--out", "a.jsonl", "--repeated_actions", "merge"]) == 0
    assert (cards / "a.jsonl").read_bytes() == (cards / "once.jsonl").read_bytes()
    assert list(recordings.read(cards / "a.jsonl"))
    assert cli.main(["check", "a.jsonl"]) == 0


def test_a_benchmark_takes_the_lists_likewise(cards, capsys):
    words = ["--game", "cards.py:Cards", "--hidden_dim", "8", "--batch_sizes", "8", "--num_episodes", "20",
             "--repetitions", "1", "--json"]  # fmt: skip
    assert cli.main(["benchmark", *words]) == 1
    assert "--repeated_actions merge" in capsys.readouterr().err
    assert cli.main(["benchmark", *words, "--repeated_actions", "merge"]) in (0, 1)  # 1: a way was not quicker
    assert json.loads(capsys.readouterr().out)


class Fixed:
    """One turn with a list that the test gives, and columns for its entries."""

    num_players = 1
    columns = (Column("worth", "action", "float32", 1),)

    def __init__(self, actions, worth, said="merge"):
        self.actions, self.worth, self.repeated_actions = actions, worth, said

    def new_state(self, seed):
        return FixedState(self)


class FixedState:
    def __init__(self, game):
        self.game, self.applied = game, []

    def current_player(self):
        return None if self.applied else 0

    def legal_actions(self):
        return self.game.actions

    def observe(self, player):
        return np.zeros(1)

    def columns(self):
        return {"worth": np.array(self.game.worth, np.float32).reshape(-1, 1)}

    def describe(self, player):
        return "five cards"

    def action_name(self, index):
        return f"place {index}"

    def apply(self, index):
        self.applied.append(index)

    def returns(self):
        return [float(self.applied[0]) if self.applied else 0.0]


def test_choice_words_and_columns_follow():
    state = merging(Fixed([7, 9, 7, 9, 4], [1, 2, 1, 2, 3])).new_state(0)
    assert state.legal_actions() == [7, 9, 4]
    assert [state.action_name(index) for index in range(3)] == ["place 0", "place 1", "place 4"]
    assert state.describe(0) == "five cards"
    assert state.columns()["worth"].tolist() == [[1], [2], [3]]
    state.apply(2)
    assert state.returns() == [4.0]
    assert merging(Fixed(np.array([3, 3, 5]), [1, 1, 2])).new_state(0).legal_actions() == [3, 5]


def test_copies_with_other_features_are_refused():
    game = make_game(Fixed([7, 9, 7], [1, 2, 3]))
    with pytest.raises(GameError, match="copies of an action have different features: got 0x0000000000000007 at places "
                       r"0 and 2 \(worth\)\. They are two actions: give them two ids\."):  # fmt: skip
        SelfPlay(game, PlaySettings(), seed=0).collect(RandomPolicy(), 1)
    # Rows for some of the entries are told, also where they are as many as the actions; and so is what is no id.
    for game, what in (
        (Fixed([7, 9, 7], [1, 2]), "a column has another form: got 2 rows"),
        (Fixed([7, "a", 7], [1, 2, 3]), "action id"),
    ):
        with pytest.raises(movelist.MovelistError, match=what):
            SelfPlay(make_game(game), PlaySettings(), seed=0).collect(RandomPolicy(), 1)


def test_what_a_game_says_is_one_of_two_words():
    with pytest.raises(GameError, match="repeated_actions is none of the two: got 'join', expected 'refuse' or"):
        make_game(Fixed([1], [0], said="join"))
    plain = Fixed([1], [0], said="refuse")
    assert make_game(plain) is plain


def test_a_merged_game_goes_to_another_process_and_keeps_what_it_has():
    game = pickle.loads(pickle.dumps(merging(Fixed([7, 7, 8], [1, 1, 2]))))
    assert game.name == "Fixed" and game.worth == [1, 1, 2] and not hasattr(game, "num_actions")
    assert game.new_state(0).legal_actions() == [7, 8]
    assert not hasattr(game.new_state(0), "nothing")
    assert first_places([5, None]) == [0, 1]


class Featured(Fixed):
    """The same with features as a method of the state."""

    columns = ()

    def new_state(self, seed):
        return FeaturedState(self)


class FeaturedState(FixedState):
    def action_features(self):
        return np.array(self.game.worth, np.float32).reshape(-1, 1)


def test_action_features_follow_and_those_of_copies_have_to_agree():
    episodes = SelfPlay(make_game(Featured([7, 9, 7], [1, 2, 1])), PlaySettings(), seed=0).collect(RandomPolicy(), 1)
    assert episodes.action_id_A.tolist() == [7, 9] and episodes.feature_AF.tolist() == [[1], [2]]
    with pytest.raises(GameError, match=r"copies of an action have different features: got .* \(action_features\)"):
        SelfPlay(make_game(Featured([7, 9, 7], [1, 2, 3])), PlaySettings(), seed=0).collect(RandomPolicy(), 1)
