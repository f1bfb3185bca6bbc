"""check_game finds each broken promise of a game, and nothing in a good one."""

import random

import numpy as np
import pytest

from movelist.core.errors import GameError
from movelist.games.game import GameReport, action_encoder, check_game, game_name, state_size


class RaceState:
    """Two players take 1 to 3 from a heap of about ten; who takes the last one wins."""

    def __init__(self, game, seed):
        self.game = game
        self.left = 8 + random.Random(seed).randrange(5)
        self.player = 0

    def current_player(self):
        return self.player if self.left else None

    def legal_actions(self):
        return list(range(1, min(3, self.left) + 1))

    def observe(self, player):
        return [self.left, player, player == self.player]

    def apply(self, index):
        self.left -= index + 1
        self.player = 1 - self.player

    def returns(self):
        return [0.0, 0.0] if self.left else [1.0 - 2 * self.player, 2 * self.player - 1.0][::-1]


class Race:
    num_players = 2
    state_class = RaceState

    def new_state(self, seed):
        return self.state_class(self, seed)


def race(**methods):
    """Race with these methods of its State replaced."""
    game = Race()
    game.state_class = type("BrokenState", (RaceState,), methods)
    return game


def complaint(game, **options):
    """The message that check_game raises; it is one line and names the game."""
    with pytest.raises(GameError) as caught:
        check_game(game, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "Race" in message
    return message


def test_a_good_game_is_described():
    report = check_game(Race(), num_games=30, seed=5)
    assert isinstance(report, GameReport)
    assert (report.name, report.num_players, report.state_size, report.num_games) == ("Race", 2, 3, 30)
    assert report.max_legal_actions == 3
    assert 30 * 3 <= report.num_steps <= 30 * 12
    assert 1 < report.mean_legal_actions < 3
    assert 0 < report.forced_share < 1
    assert str(report).startswith("Race keeps its promises: random games 30, turns ")
    assert "players 2, state size 3, legal actions 2." in str(report)
    assert "\n" not in str(report)


def test_the_report_is_a_function_of_the_seed():
    assert check_game(Race(), seed=3) == check_game(Race(), seed=3) != check_game(Race(), seed=4)


def test_no_games_and_games_without_turns_are_reported_without_dividing_by_zero():
    assert check_game(Race(), num_games=0).mean_legal_actions == 0.0
    over = check_game(race(current_player=lambda self: None))
    assert (over.num_steps, over.forced_share, over.max_legal_actions) == (0, 0.0, 0)


@pytest.mark.parametrize("num_players", [0, -1, None, "2", 2.0, True])
def test_no_players(num_players):
    game = Race()
    game.num_players = num_players
    assert complaint(game) == (
        f"a game needs players: got num_players {num_players!r}, expected an integer of at least 1 (Race)"
    )


@pytest.mark.parametrize("player", [2, -1, "0", 0.0])
def test_current_player_out_of_range(player):
    def current_player(self):
        return 0 if self.left > 5 else player

    # A fresh state has more than 5, so the fault shows later.
    message = complaint(race(current_player=current_player), seed=2)
    assert message.startswith(
        f"current_player is no seat: got {player!r}, expected 0 to 1, or None when the game is over"
    )
    assert "(Race, seed 2, turn " in message
    assert message.endswith("Play chance turns inside new_state and apply.")


def test_numpy_integers_are_integers():
    methods = {
        "current_player": lambda self: np.int64(self.player) if self.left else None,
        "legal_actions": lambda self: np.array([2**64 - 1, 2**63, 7], dtype=np.uint64)[: max(1, min(3, self.left))],
    }
    assert check_game(race(**methods)).max_legal_actions == 3


def test_the_whole_range_of_ids_is_accepted():
    ids = [-(2**63), -1, 0, 2**24 + 1, 2**53 + 1, 2**63 - 1, 2**63 + 1025]
    report = check_game(race(legal_actions=lambda self: ids, apply=lambda self, index: setattr(self, "left", 0)))
    assert report.max_legal_actions == len(ids)


@pytest.mark.parametrize(
    ("action_id", "what"),
    [
        (True, "an action id is not an integer"),
        (1.0, "an action id is not an integer"),
        (np.float64(3), "an action id is not an integer"),
        ("3", "an action id is not an integer: got '3', expected an integer, -2^63 to 2^64 - 1 (Race, seed 0, turn 1)"),
        (None, "an action id is not an integer"),
        (2**64, "an action id does not fit 64 bits: got 18446744073709551616, expected an integer, -2^63 to 2^64 - 1"),
        (-(2**63) - 1, "an action id does not fit 64 bits: got -9223372036854775809"),
    ],
)
def test_ids_that_are_no_64_bit_integers(action_id, what):
    message = complaint(race(legal_actions=lambda self: [5, action_id]))
    assert message.startswith(what)
    assert message.endswith("(Race, seed 0, turn 1). Pack it into 64 bits.")


def test_empty_list():
    message = complaint(race(legal_actions=lambda self: [1] if self.left > 3 else []))
    assert message.startswith("there is no legal action: expected at least one (Race, seed 0, turn ")
    assert message.endswith("Offer a pass, or let the game be over.")


@pytest.mark.parametrize("twins", [[4, 1, 4], [-1, 1, 2**64 - 1]])
def test_duplicate_ids(twins):
    message = complaint(race(legal_actions=lambda self: twins))
    duplicate = 4 if 4 in twins else -1  # the same 64 bits, signed and unsigned
    assert message == (
        f"an id is there twice: got {duplicate} at places 0 and 2, expected ids that differ within one list "
        "(Race, seed 0, turn 1). Let legal_actions list each action once, and apply count in that list; two different "
        "actions need two ids."
    )


@pytest.mark.parametrize("action_id", [3, -1])
def test_an_id_outside_the_table(action_id):
    game = race(legal_actions=lambda self: [0, action_id])
    game.action_encoder, game.num_actions = "table", 3
    assert complaint(game).startswith(
        f"an id is not in the table: got {action_id}, expected 0 to 2 (Race, seed 0, turn 1)"
    )


def test_observe_changing_its_width():
    message = complaint(race(observe=lambda self, player: [1.0] * (3 if self.left > 4 else 2)))
    assert message.startswith(
        "observe changes its width: got 2 values for player 0, expected 3 as in a fresh state (Race,"
    )


def test_observe_of_another_width_for_another_seat():
    message = complaint(race(observe=lambda self, player: [1.0] * (3 + player)))
    assert "got 4 values for player 1, expected 3 as in a fresh state (Race, seed 0, turn 1)" in message


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (1e39, "inf")])
def test_observe_not_finite(value, shown):
    game = race(observe=lambda self, player: [1.0, value if self.left < 5 else 0.0])
    message = complaint(game)
    assert message.startswith(f"an observation is not finite: got {shown} at 1 (Race, seed 0, turn ")


@pytest.mark.parametrize(("shape", "shown"), [((2, 3), "(2, 3)"), ((), "()"), ((0,), "(0,)")])
def test_observe_not_one_row(shape, shown):
    message = complaint(race(observe=lambda self, player: np.zeros(shape)))
    assert message == (
        f"observe does not return one row of numbers: got shape {shown}, expected shape [S] (Race, player 0). "
        "Flatten it."
    )


@pytest.mark.parametrize("value", [["a"], [[1], [1, 2]], [object()]])
def test_observe_not_numbers(value):
    assert complaint(race(observe=lambda self, player: value)).startswith("observe does not return numbers: got ")


@pytest.mark.parametrize("returns", [[0.0], [0.0, 0.0, 0.0], [0.0, float("nan")], [float("inf"), 0.0]])
def test_returns(returns):
    message = complaint(race(returns=lambda self: returns))
    assert message == (
        f"returns is not one finite number for each seat: got {returns}, expected 2 finite numbers "
        "(Race, seed 0, turn 1)"
    )


def test_returns_are_looked_at_when_the_game_is_over():
    message = complaint(race(returns=lambda self: [0.0, 0.0] if self.left else [1.0]))
    assert "got [1.0], expected 2 finite numbers" in message


def test_legal_actions_changing_without_a_move():
    numbers = random.Random(1)
    message = complaint(race(legal_actions=lambda self: [numbers.randrange(1000) for _ in range(8)]))
    assert message.startswith("legal_actions changes between two calls without a move: got [")
    assert ", ...] of length 8, expected [" in message


@pytest.mark.parametrize(
    "what", ["player to move: 1 instead of 0", "list of legal actions: [1", "observation of player 0", "score: ["]
)
def test_observe_changing_the_state(what):
    def observe(self, player):
        self.count = getattr(self, "count", 0) + 1
        if what.startswith("player"):
            self.player = 1
        if what.startswith("list") and self.left > 2:
            self.left -= self.left - 2
        return [self.count if what.startswith("observation") else 0.0]

    methods = {"observe": observe}
    if what.startswith("score"):
        methods["returns"] = lambda self: [getattr(self, "count", 0), 0.0]
    message = complaint(race(**methods))
    assert message.startswith(f"observe changes the state: got another {what}")
    assert message.endswith("Only apply may.")


@pytest.mark.parametrize("what", ["player to move", "list of legal actions", "score", "observation of player 0"])
def test_the_same_seed_giving_another_game(what):
    class Forgetful(RaceState):
        def __init__(self, game, seed):
            super().__init__(game, seed)
            game.count = 1 - getattr(game, "count", 1)
            if what.startswith("player"):
                self.player = game.count
            self.luck = game.count

        def legal_actions(self):
            return [self.luck] if what.startswith("list") else super().legal_actions()

        def observe(self, player):
            return [self.luck if what.startswith("observation") else 0]

        def returns(self):
            return [self.luck if what == "score" else 0, 0]

    game = Race()
    game.state_class = Forgetful
    message = complaint(game)
    assert message.startswith(f"the same seed and choices do not give the same game: got another {what}")
    assert message.endswith("Take all chance from random.Random(seed), and let states share nothing.")


def test_states_that_share_their_board():
    """Two games at once must not disturb each other."""

    class Shared(RaceState):
        left = property(lambda self: self.game.left, lambda self, left: setattr(self.game, "left", left))

    game = Race()
    game.state_class = Shared
    assert "seed 0, turn " in complaint(game)


def test_a_game_that_never_ends():
    game = race(apply=lambda self, index: None)
    assert complaint(game, max_turns=50) == (
        "a game does not end: got 50 turns (Race, seed 0). "
        "Let current_player return None at the end, or raise max_turns."
    )


def test_a_game_of_exactly_max_turns_is_no_endless_game():
    one_turn = race(apply=lambda self, index: setattr(self, "left", 0))
    assert check_game(one_turn, max_turns=2).num_steps == 20


def test_game_name():
    game = Race()
    assert game_name(game) == "Race"
    game.name = "the race"
    assert game_name(game) == "the race"


def test_state_size():
    assert state_size(Race()) == 3
    with pytest.raises(GameError, match=r"^observe does not return one row of numbers"):
        state_size(race(observe=lambda self, player: 5))


def test_action_encoder():
    game = Race()
    assert action_encoder(game) == "bits"
    game.action_encoder = "table"
    with pytest.raises(GameError) as caught:
        action_encoder(game)
    assert str(caught.value) == (
        "a table needs to know how many actions there are (Race). "
        "Give the game num_actions, or the action_encoder 'bits'."
    )
    game.num_actions = 4
    assert action_encoder(game) == "table"
    game.action_encoder = "embedding"
    with pytest.raises(GameError) as caught:
        action_encoder(game)
    assert str(caught.value) == "no such action encoder: got 'embedding', expected 'bits' or 'table' (Race)"
