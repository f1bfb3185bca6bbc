"""OpenSpiel's games keep the promises of games, and agree with pyspiel used by hand."""

import contextlib
import random
import sys
from collections import Counter

import numpy as np
import pytest

from movelist.core.errors import GameError, MissingExtraError
from movelist.games import dou_dizhu, openspiel
from movelist.games.check import check_game
from movelist.games.game import action_encoder, game_name, state_size
from movelist.games.openspiel import OpenSpielGame, game_names

EPISODES = 200
CHANCE = -1


@pytest.fixture(scope="module")
def pyspiel():
    return pytest.importorskip("pyspiel", reason="plays OpenSpiel's games")


def play(game, seed):
    """A random game of ours: its steps as (player, ids, index, observation, returns), and the state at the end."""
    chooser = random.Random(seed)
    state = game.new_state(seed)
    steps = []
    while (player := state.current_player()) is not None:
        ids = list(state.legal_actions())
        index = chooser.randrange(len(ids))
        steps.append((player, ids, index, state.observe(player), list(state.returns())))
        state.apply(index)
    return steps, state


def history(state):
    """All that happened as (player, OpenSpiel's number of the action), chance turns among it."""
    return [(step.player, step.action) for step in state._state.full_history()]


def replay(pyspiel, name, actions):
    """The same game with nothing but pyspiel: the same steps, with actions in OpenSpiel's numbers, and the returns."""
    bare = pyspiel.load_game(name)
    remembers = bare.get_type().provides_information_state_tensor
    state = bare.new_initial_state()
    steps = []
    for player, action in actions:
        assert player == state.current_player()
        legal = state.legal_actions()
        assert action in legal
        if player != CHANCE:
            tensor = state.information_state_tensor(player) if remembers else state.observation_tensor(player)
            steps.append((player, legal, legal.index(action), tensor, state.returns()))
        state.apply_action(action)
    assert state.is_terminal()
    return steps, state.returns()


@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "leduc_poker", "backgammon", "dou_dizhu"])
def test_random_episodes_agree_with_bare_pyspiel(pyspiel, name):
    game = OpenSpielGame(name)
    for seed in range(EPISODES):
        steps, end = play(game, seed)
        bare_steps, bare_returns = replay(pyspiel, name, history(end))
        assert len(steps) == len(bare_steps)  # so no chance turn is among ours
        assert end.returns() == bare_returns
        for (player, ids, index, observation, _), (bare_player, actions, chosen, tensor, _) in zip(
            steps, bare_steps, strict=True
        ):
            assert (player, index) == (bare_player, chosen)
            assert 0 <= player < game.num_players
            assert ids == ([game._ids[action] for action in actions] if name == "dou_dizhu" else actions)
            assert observation.dtype == np.float32
            assert observation[: -game.num_players].tolist() == np.float32(tensor).tolist()
            assert observation[-game.num_players :].tolist() == [
                float(seat == player) for seat in range(game.num_players)
            ]


@pytest.mark.parametrize("name", ["cliff_walking", "2048", "hanabi"])
def test_rewards_on_the_way_are_seen_at_once(pyspiel, name):
    game = OpenSpielGame(name)
    steps, end = play(game, 1)
    bare_steps, bare_returns = replay(pyspiel, name, history(end))
    assert [step[-1] for step in steps] == [step[-1] for step in bare_steps]
    assert any(any(step[-1]) for step in steps)
    assert end.returns() == bare_returns


@pytest.mark.parametrize(
    "name",
    [
        "tic_tac_toe",
        "leduc_poker(players=3)",
        "backgammon",
        "dou_dizhu",
        "colored_trails",
        "hearts",
        "2048",
        "misere(game=kuhn_poker())",
        "turn_based_simultaneous_game(game=goofspiel(num_cards=5))",
    ],
)
def test_promises(pyspiel, name):
    game = OpenSpielGame(name)
    report = check_game(game, num_games=5)
    assert (report.name, report.num_players, report.state_size) == (name, game.num_players, game.state_size)
    assert game_name(game) == name
    assert state_size(game) == game.state_size


def test_ids_and_encoders(pyspiel):
    small, large, cards = OpenSpielGame("kuhn_poker"), OpenSpielGame("colored_trails"), OpenSpielGame("dou_dizhu()")
    assert (action_encoder(small), small.num_actions) == ("table", 2)
    assert (action_encoder(large), large.num_actions) == ("bits", 93_123)  # more than a table should hold
    assert (action_encoder(cards), cards.num_actions) == ("bits", 26_057)
    state = cards.new_state(1)
    assert [dou_dizhu.describe(action_id) for action_id in state.legal_actions()] == ["Pass", "Bid 1", "Bid 2", "Bid 3"]
    assert [state.action_name(index) for index in range(4)] == ["Pass", "Bid 1", "Bid 2", "Bid 3"]
    assert [small.new_state(1).action_name(index) for index in range(2)] == ["Pass", "Bet"]


def test_parameters(pyspiel):
    game = OpenSpielGame("leduc_poker(players=3)")
    assert (game.num_players, len(game.new_state(0).returns())) == (3, 3)
    assert game.new_state(0).observe(2)[-3:].tolist() == [0, 0, 1]


def test_the_seed_decides_the_deal(pyspiel):
    game = OpenSpielGame("dou_dizhu")

    def deal(seed):
        return tuple(np.concatenate([game.new_state(seed).observe(player) for player in range(3)]))

    assert deal(5) == deal(5) == deal(np.int64(5))
    # random.Random alone takes -5 for 5; seeds that differ in one bit are as different as others.
    assert len({deal(seed) for seed in [5, -5, 6, 2**63, 2**63 + 5, *range(100, 200)]}) == 105


def test_states_of_one_game_do_not_disturb_each_other(pyspiel):
    game = OpenSpielGame("leduc_poker")
    alone = [step[3].tolist() for step in play(game, 3)[0]]
    chooser, state, other = random.Random(3), game.new_state(3), game.new_state(4)
    together, kept = [], []
    while (player := state.current_player()) is not None:
        kept.append(state.observe(player))
        together.append(kept[-1].tolist())
        if other.current_player() is not None:
            other.observe(0)
            other.apply(0)
        state.apply(chooser.randrange(len(state.legal_actions())))
    assert together == alone == [row.tolist() for row in kept]  # an observation is the caller's to keep


def test_dou_dizhu_draws_are_fair(pyspiel):
    """What allows drawing from the legal actions without asking for their probabilities."""
    chooser = random.Random(0)
    for _ in range(20):
        state = pyspiel.load_game("dou_dizhu").new_initial_state()
        while state.is_chance_node():
            actions, probabilities = zip(*state.chance_outcomes(), strict=True)
            assert list(actions) == state.legal_actions()
            assert max(probabilities) == min(probabilities) == pytest.approx(1 / len(actions))
            state.apply_action(chooser.choice(actions))


def test_each_card_is_dealt_equally_often(pyspiel):
    game = OpenSpielGame("dou_dizhu")
    first_cards = Counter(game.new_state(seed)._state.history()[1] for seed in range(5_400))
    # 100 expected of each of 54 cards; five standard deviations are 50.
    assert len(first_cards) == 54
    assert all(50 < count < 150 for count in first_cards.values())


def test_chance_follows_its_probabilities(pyspiel):
    """The first tile of 2048: on each square a 2 is nine times as likely as a 4."""
    game, num_games = OpenSpielGame("2048"), 8_000
    tiles = Counter(game.new_state(seed)._state.history()[0] for seed in range(num_games))
    probability = dict(pyspiel.load_game("2048").new_initial_state().chance_outcomes())
    assert set(np.round(list(probability.values()), 6)) == {round(0.9 / 16, 6), round(0.1 / 16, 6)}
    assert set(tiles) == set(probability)
    for tile, expected in probability.items():
        deviation = np.sqrt(expected * (1 - expected) / num_games)
        assert abs(tiles[tile] / num_games - expected) < 4 * deviation  # 32 outcomes at once


class Outcomes:
    """A chance turn without a game."""

    def __init__(self, *outcomes):
        self.outcomes = outcomes

    def chance_outcomes(self):
        return self.outcomes

    def legal_actions(self):
        return [action for action, _ in self.outcomes]


@pytest.mark.parametrize(("number", "action"), [(0.0, 7), (0.24, 7), (0.25, 9), (0.74, 9), (0.75, 5), (1 - 2**-53, 5)])
def test_weighted_draw(number, action):
    assert openspiel._draw_weighted(Outcomes((7, 0.25), (8, 0.0), (9, 0.5), (5, 0.25)), number) == action


def test_weighted_draw_where_rounding_leaves_a_rest():
    outcomes = Outcomes((7, 0.2), (9, 0.7), (5, 0.1 - 1e-12), (6, 0.0))
    assert openspiel._draw_weighted(outcomes, 1 - 2**-53) == 9  # never the impossible one


@pytest.mark.parametrize(("number", "action"), [(0.0, 7), (0.33, 7), (0.34, 9), (1 - 2**-53, 5)])
def test_even_draw(number, action):
    assert openspiel._draw_evenly(Outcomes((7, 1 / 3), (9, 1 / 3), (5, 1 / 3)), number) == action


@pytest.mark.parametrize("index", [-1, 2, 100])
def test_an_index_outside_the_list(pyspiel, index):
    state = OpenSpielGame("kuhn_poker").new_state(0)
    with pytest.raises(GameError) as caught:
        state.apply(index)
    assert str(caught.value) == f"no such legal action: got index {index}, expected 0 to 1 (kuhn_poker)"
    assert state.current_player() == 0


def test_a_move_after_the_end(pyspiel):
    state = play(OpenSpielGame("kuhn_poker"), 0)[1]
    with pytest.raises(GameError) as caught:
        state.apply(0)
    assert str(caught.value) == (
        "no such legal action: got index 0, expected no move, for the game is over (kuhn_poker)"
    )


def test_apply_without_asking_for_the_list(pyspiel):
    state = OpenSpielGame("kuhn_poker").new_state(0)
    state.apply(0)
    state.apply(0)
    assert state.current_player() is None
    assert sum(state.returns()) == 0


BECAUSE = "this game cannot be played here, because "
CANNOT = "OpenSpiel cannot make this game: got "
LEDUC = "parameters among action_mapping, players, starting_player, suit_isomorphism"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "leduk_poker",
            "there is no such game: got 'leduk_poker', expected one of OpenSpiel's. Did you mean leduc_poker?",
        ),
        (
            "zzz(players=2)",
            "there is no such game: got 'zzz(players=2)', expected one of OpenSpiel's. "
            "List them with movelist.games.catalog.names().",
        ),
        (
            "leduc_poker(playrs=3)",
            f"{CANNOT}'leduc_poker(playrs=3)', expected {LEDUC} (OpenSpiel says: Unknown parameter 'playrs'.). "
            "Write leduc_poker(NAME=VALUE).",
        ),
        (
            "leduc_poker(players=99)",
            f"{CANNOT}'leduc_poker(players=99)', expected {LEDUC} (OpenSpiel says: "
            "num_players_ <= kGameType.max_num_players; num_players_ = 99, kGameType.max_num_players = 10). "
            "Write leduc_poker(NAME=VALUE).",
        ),
        (
            "tic_tac_toe(players=2)",
            f"{CANNOT}'tic_tac_toe(players=2)', expected no parameters (OpenSpiel says: Unknown parameter 'players'.). "
            "Write tic_tac_toe.",
        ),
        (
            "misere",
            f"{CANNOT}'misere', expected parameters among game (OpenSpiel says: Missing parameter game). "
            "Write misere(NAME=VALUE), and a game as a value with its brackets: game=tic_tac_toe().",
        ),
        (
            "misere(game=nosuch())",
            f"{CANNOT}'misere(game=nosuch())', expected parameters among game "
            "(OpenSpiel says: Unknown game 'nosuch'.). "
            "Write misere(NAME=VALUE), and a game as a value with its brackets: game=tic_tac_toe().",
        ),
        (
            "nfg_game",
            f"{CANNOT}'nfg_game', expected parameters among filename (OpenSpiel says: map::at). "
            "Write nfg_game(NAME=VALUE).",
        ),
        (
            "leduc_poker(players=3",
            "a game's parameters end with a bracket: got 'leduc_poker(players=3', expected leduc_poker(NAME=VALUE)",
        ),
        ("mfg_garnet", f"{BECAUSE}it is a mean-field game, without players that take turns: got 'mfg_garnet'"),
        (
            "negotiation",
            f"{BECAUSE}its chance is drawn inside OpenSpiel, so no seed can repeat a game: got 'negotiation'",
        ),
        ("coin_game", f"{BECAUSE}OpenSpiel does not write its states as numbers: got 'coin_game'"),
        (
            "crossword",
            f"{BECAUSE}OpenSpiel does not write its states as numbers: got 'crossword' "
            "(OpenSpiel says: ObservationTensorShape unimplemented.)",
        ),
    ],
)
def test_refusals_are_one_line(pyspiel, capfd, name, message):
    with pytest.raises(GameError) as caught:
        OpenSpielGame(name)
    assert str(caught.value) == message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")  # nor does C++ add its own


def test_a_game_without_an_observer_is_refused(pyspiel, monkeypatch):
    """OpenSpiel answers None for contents that a game does not write, and the process would crash on it."""
    make_contents = pyspiel.IIGObservationType
    monkeypatch.setattr(
        pyspiel, "IIGObservationType", lambda **flags: make_contents(**flags | {"perfect_recall": False})
    )
    with pytest.raises(GameError) as caught:
        OpenSpielGame("hearts")  # has an information state and no observation
    assert str(caught.value) == (
        f"{BECAUSE}OpenSpiel does not write its states as numbers: got 'hearts' (OpenSpiel says: no observer)"
    )


def test_goofspiel_in_turns(pyspiel):
    game, name = OpenSpielGame("goofspiel"), "turn_based_simultaneous_game(game=goofspiel())"
    assert game.name == "goofspiel"
    assert game.notes[-1].startswith("Its players move at the same time")
    assert not any("same time" in note for note in OpenSpielGame("kuhn_poker").notes)
    for seed in range(20):
        steps, end = play(game, seed)
        bare_steps, bare_returns = replay(pyspiel, name, history(end))
        assert [step[:3] for step in steps] == [step[:3] for step in bare_steps]
        assert end.returns() == bare_returns


def test_every_turn_based_form_works(pyspiel, tmp_path):
    """Of all simultaneous games of OpenSpiel."""
    (tmp_path / "game.nfg").write_text('NFG 1 R "Test" { "A" "B" } { 2 2 }\n\n1 1 0 2 0 2 1 1\n', encoding="utf-8")
    parameters = {
        "nfg_game": f"(filename={tmp_path / 'game.nfg'})",
        "normal_form_extensive_game": "(game=kuhn_poker())",
        "repeated_game": "(stage_game=matrix_rps(),num_repetitions=3)",
    }
    names = [kind.short_name for kind in pyspiel.registered_games() if kind.dynamics.name == "SIMULTANEOUS"]
    for name in names:
        game = OpenSpielGame(name + parameters.get(name, ""))
        assert game.new_state(0).current_player() == 0


def test_openspiels_warnings_are_passed_on(pyspiel, capfd):
    OpenSpielGame("quoridor")
    assert "known issues" in capfd.readouterr().err


def test_every_listed_game_can_be_made(pyspiel, capfd):
    names = game_names()
    assert {"tic_tac_toe", "kuhn_poker", "leduc_poker", "backgammon", "dou_dizhu", "chess"} <= set(names)
    assert "goofspiel" in names
    assert not {"mfg_garnet", "negotiation", "coin_game", "crossword", "misere", "efg_game"} & set(names)
    for name in names:
        assert OpenSpielGame(name).new_state(0).current_player() is not None
    others = set(pyspiel.registered_names()) - set(names)
    made = []
    for name in others:
        with contextlib.suppress(GameError):
            made.append(OpenSpielGame(name).name)
    assert made == ["coop_to_1p"]  # it takes a game as a parameter, and has one in reserve


def test_without_openspiel(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    for use in (lambda: OpenSpielGame("tic_tac_toe"), game_names):
        with pytest.raises(MissingExtraError) as caught:
            use()
        message = str(caught.value)
        assert message.startswith("OpenSpiel's games need an extra that is not installed: got ")
        assert message.endswith('Install it with: pip install "movelist[games]".')
        assert "\n" not in message
        assert caught.value.exit_code == 2
