"""RLCard's games."""

import pickle
import sys

import numpy as np
import pytest

from movelist.core.errors import GameError, MissingExtraError, SettingsError
from movelist.games.catalog import make_game
from movelist.games.check import check_game
from movelist.games.rlcard import RLCardGame, game_names
from movelist.games.rlcard_bots import agents_of
from movelist.play import arena
from movelist.play.policy import RandomPolicy
from movelist.run.players import find_player
from play.toys import Odd

GAMES = [
    "blackjack",
    "bridge",
    "doudizhu",
    "gin-rummy",
    "leduc-holdem",
    "limit-holdem",
    "mahjong",
    "no-limit-holdem",
    "uno",
]


@pytest.fixture
def rlcard():
    return pytest.importorskip("rlcard", reason="an optional extra")


@pytest.mark.usefixtures("rlcard")
def test_all_games_are_known():
    assert game_names() == GAMES


@pytest.mark.usefixtures("rlcard")
@pytest.mark.parametrize("name", [*GAMES, "limit-holdem(game_num_players=3)"])
def test_promises(name):
    game = make_game(f"rlcard:{name}")
    assert check_game(game, num_games=2).name == f"rlcard:{name}"
    travelled = pickle.loads(pickle.dumps(game))
    assert check_game(travelled, num_games=1) == check_game(game, num_games=1)


def test_the_numbers_are_rlcards_own(rlcard):
    """The same game, played with RLCard alone; the landlord of doudizhu sees less than the others."""
    game = RLCardGame("doudizhu")
    assert (game.num_players, game.num_actions, game.state_size) == (3, 27_472, 901 + 3)
    for seed in range(3):
        env = rlcard.make("doudizhu", config={"seed": seed})
        bare, player = env.reset()
        state = game.new_state(seed)
        while (seat := state.current_player()) is not None:
            assert seat == player
            assert state.returns() == [0.0, 0.0, 0.0]
            assert list(state.legal_actions()) == sorted(bare["legal_actions"])
            row, width = state.observe(seat), len(bare["obs"])
            assert width == (790 if seat == 0 else 901)
            assert np.array_equal(row[:width], np.asarray(bare["obs"], np.float32))
            assert row[901:].tolist() == [float(seat == each) for each in range(3)]
            assert state.action_name(0) == env._decode_action(state.legal_actions()[0])
            bare, player = env.step(state.legal_actions()[0])
            state.apply(0)
        assert env.is_over()
        assert state.returns() == [float(value) for value in env.get_payoffs()]
        assert any(state.returns())
    with pytest.raises(GameError, match="no such legal action: got index 0"):
        state.apply(0)


@pytest.mark.usefixtures("rlcard")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leduc", "RLCard has no such game: got 'leduc', expected one of blackjack, bridge,"),
        ("uno(3)", "this names no game: got 'uno(3)', expected settings as in \"uno(game_num_players=3)\""),
        ("uno(x=f())", "this names no game: got 'uno(x=f())'"),
        ("limit-holdem(game_num_players=0)", "RLCard cannot make this game: got 'limit-holdem(game_num_players=0)'"),
    ],
)
def test_refusals_are_one_line(name, message):
    with pytest.raises(GameError) as caught:
        make_game(f"rlcard:{name}")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_without_rlcard(monkeypatch):
    monkeypatch.setitem(sys.modules, "rlcard", None)
    with pytest.raises(MissingExtraError) as caught:
        make_game("rlcard:uno")
    assert str(caught.value).startswith("RLCard's games need an extra that is not installed: got ")
    assert str(caught.value).endswith('Install it with: pip install "movelist[rlcard]".')
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("rlcard")
@pytest.mark.parametrize(
    ("game", "agents"),
    [
        ("doudizhu", ["doudizhu-rule-v1"]),
        ("leduc-holdem", ["leduc-holdem-cfr", "leduc-holdem-rule-v1", "leduc-holdem-rule-v2"]),
        ("limit-holdem", ["limit-holdem-rule-v1"]),
        ("gin-rummy", ["gin-rummy-novice-rule"]),
        ("mahjong", []),
    ],
)
def test_the_agents_of_a_game(game, agents):
    assert agents_of(make_game(f"rlcard:{game}")) == agents


@pytest.mark.usefixtures("rlcard")
@pytest.mark.parametrize(
    ("game", "agent", "least"),
    [
        ("doudizhu", "doudizhu-rule-v1", 0.6),
        ("uno", "uno-rule-v1", 0.5),
        ("gin-rummy", "gin-rummy-novice-rule", 0.8),
        ("leduc-holdem", "leduc-holdem-rule-v1", 0.7),
    ],
)
def test_an_agent_plays_the_same_games_anywhere_and_leaves_numpys_dice_alone(game, agent, least):
    """30 deals of fixed seeds, so the rates are the same each time."""
    made = make_game(f"rlcard:{game}")
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    player, _ = find_player(f"rlcard:{agent}", made, greedy=True)
    one = arena.match(player, RandomPolicy(), made, num_games=60, seed=3)
    assert one.win_rate > least and one.forfeits == 0
    if game == "uno":  # its agent draws lots
        np.random.seed(6)
        again = arena.match(pickle.loads(pickle.dumps(player)), RandomPolicy(), made, num_games=60, seed=3)
        assert again == one
    else:
        np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.usefixtures("rlcard")
def test_agents_that_are_none_are_refused():
    with pytest.raises(SettingsError, match=r"no such agent for rlcard:doudizhu: got 'doudizhu-rule-v2', expected "
                       r"doudizhu-rule-v1\. Did you mean rlcard:doudizhu-rule-v1\?"):  # fmt: skip
        find_player("rlcard:doudizhu-rule-v2", make_game("rlcard:doudizhu"), greedy=True)
    with pytest.raises(SettingsError, match="expected none: it has none for this game"):
        find_player("rlcard:any", make_game("rlcard:mahjong"), greedy=True)
    with pytest.raises(GameError, match="RLCard's agents play RLCard's games only"):
        find_player("rlcard:doudizhu-rule-v1", Odd(), greedy=True)
