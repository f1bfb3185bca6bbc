"""check_game finds each broken promise of a game, and nothing in a good one."""

import random

import numpy as np
import pytest

from movelist.core.errors import GameError
from movelist.games.check import GameReport, check_game
from movelist.games.game import action_encoder, game_name, state_size

SEED = random.Random(0).randint(0, 2**63 - 1)  # of check_game's first game


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
    message = complaint(race(current_player=current_player), seed=8)
    assert message.startswith(
        f"current_player is no seat: got {player!r}, expected 0 to 1, or None when the game is over"
    )
    assert f"(Race, seed {random.Random(8).randint(0, 2**63 - 1)}, turn " in message
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
        (
            "3",
            "an action id is not an integer: got '3', expected an integer, -2^63 to 2^64 - 1 "
            f"(Race, seed {SEED}, turn 1)",
        ),
        (None, "an action id is not an integer"),
        (2**64, "an action id does not fit 64 bits: got 18446744073709551616, expected an integer, -2^63 to 2^64 - 1"),
        (-(2**63) - 1, "an action id does not fit 64 bits: got -9223372036854775809"),
    ],
)
def test_ids_that_are_no_64_bit_integers(action_id, what):
    message = complaint(race(legal_actions=lambda self: [5, action_id]))
    assert message.startswith(what)
    assert message.endswith(f"(Race, seed {SEED}, turn 1). Pack it into 64 bits.")


def test_empty_list():
    message = complaint(race(legal_actions=lambda self: [1] if self.left > 3 else []))
    assert message.startswith(f"there is no legal action: expected at least one (Race, seed {SEED}, turn ")
    assert message.endswith("Offer a pass, or let the game be over.")


@pytest.mark.parametrize("twins", [[4, 1, 4], [-1, 1, 2**64 - 1]])
def test_duplicate_ids(twins):
    message = complaint(race(legal_actions=lambda self: twins))
    duplicate = 4 if 4 in twins else -1  # the same 64 bits, signed and unsigned
    assert message == (
        f"an id is there twice: got {duplicate} at places 0 and 2, expected ids that differ within one list "
        f"(Race, seed {SEED}, turn 1). "
        "Name each action once, as list(dict.fromkeys(actions)) does; apply's index then refers to that list."
    )


@pytest.mark.parametrize("action_id", [3, -1])
def test_an_id_outside_the_table(action_id):
    game = race(legal_actions=lambda self: [0, action_id])
    game.action_encoder, game.num_actions = "table", 3
    assert complaint(game).startswith(
        f"an id is not in the table: got {action_id}, expected 0 to 2 (Race, seed {SEED}, turn 1)"
    )


def test_observe_changing_its_width():
    message = complaint(race(observe=lambda self, player: [1.0] * (3 if self.left > 4 else 2)))
    assert message.startswith(
        "observe changes its width: got 2 values for player 0, expected 3 as in a fresh state (Race,"
    )


def test_observe_of_another_width_for_another_seat():
    message = complaint(race(observe=lambda self, player: [1.0] * (3 + player)))
    assert f"got 4 values for player 1, expected 3 as in a fresh state (Race, seed {SEED}, turn 1)" in message


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (1e39, "inf")])
def test_observe_not_finite(value, shown):
    game = race(observe=lambda self, player: [1.0, value if self.left < 5 else 0.0])
    message = complaint(game)
    assert message.startswith(f"an observation is not finite: got {shown} at 1 (Race, seed {SEED}, turn ")


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
        f"(Race, seed {SEED}, turn 1)"
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
    assert f"seed {SEED}, turn " in complaint(game)


def test_a_game_that_never_ends():
    game = race(apply=lambda self, index: None)
    assert complaint(game, max_turns=50) == (
        f"a game does not end: got 50 turns (Race, seed {SEED}). "
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


# --- The questions that training asks


@pytest.mark.parametrize("bits", [32, 31])
def test_a_generator_that_takes_few_bits_of_a_seed_is_told_the_cure(bits):
    class Narrow(RaceState):
        def __init__(self, game, seed):
            if seed >= 2**bits:
                raise ValueError(f"Seed must be between 0 and 2**{bits} - 1")
            super().__init__(game, seed)

    game = Race()
    game.state_class = Narrow
    with pytest.raises(GameError) as caught:
        check_game(game, num_games=1)
    message = str(caught.value)
    assert message.startswith("the game's own code failed: ValueError: Seed must be between 0 and 2**")
    assert f"(game with seed {SEED}, new_state)" in message
    assert message.endswith(
        f"Seeds are 0 to 2^63 - 1, and this one is taken as seed % 2**{bits}: let new_state do that."
    )
    assert isinstance(caught.value.__cause__, ValueError)


def test_seeds_are_those_of_the_whole_range():
    seeds = []
    game = Race()
    game.state_class = lambda game, seed: seeds.append(seed) or RaceState(game, seed)
    check_game(game, num_games=50)
    assert 2**62 < max(seeds) < 2**63
    assert min(seeds) >= 0
    assert len(set(seeds)) == 51  # each game twice, and one state more for the width


def test_a_game_that_training_would_cut_off_is_none_that_does_not_end():
    game = race(apply=lambda self, index: None)
    report = check_game(game, num_games=2, max_turns=50, cut_off=True)
    assert (report.num_cut_off, report.num_steps) == (2, 100)
    assert ", cut off 2" in str(report)
    assert check_game(Race(), cut_off=True).num_cut_off == 0


@pytest.mark.parametrize("method", ["current_player", "legal_actions", "observe", "apply", "returns", "action_name"])
def test_an_exception_in_the_games_own_code_is_named_with_seed_and_turn(method):
    def fail(self, *arguments):
        if self.left < 8 or method == "apply":
            raise KeyError("no\ncard")
        return getattr(RaceState, method)(self, *arguments) if method != "action_name" else "take"

    with pytest.raises(GameError) as caught:
        check_game(race(**{method: fail}))
    message = str(caught.value)
    assert message.startswith(f"the game's own code failed: KeyError: 'no\\ncard' at {__file__}, line ")
    assert f"(Race, seed {SEED}, turn " in message
    assert message.endswith("Called from Python, movelist.train and movelist.check_game show its traceback.")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("method", ["action_name", "describe"])
def test_words_that_are_no_text(method):
    message = complaint(race(**{method: lambda self, which: which}))
    assert message.startswith(f"{method} does not return text: got ")


def test_a_class_in_place_of_a_game():
    for ask in (check_game, state_size):
        with pytest.raises(GameError) as caught:
            ask(Race)
        assert (
            str(caught.value) == "a game is wanted, not its class: got Race, expected an instance. Write Race() for it."
        )


@pytest.mark.parametrize(("returns", "shown"), [(None, "None"), (0.0, "0.0"), (["a", "b"], "['a', 'b']"), ([], "[]")])
def test_returns_that_are_no_row_of_numbers(returns, shown):
    message = complaint(race(returns=lambda self: returns))
    assert message.startswith(f"returns is not one finite number for each seat: got {shown}, expected 2 finite numbers")


def test_a_player_that_is_a_bool():
    message = complaint(race(current_player=lambda self: bool(self.player) if self.left else None))
    assert message.startswith("current_player is no seat: got False, expected 0 to 1, or None when the game is over")
    assert message.endswith("Write int(...) around it.")


@pytest.mark.parametrize(
    ("make", "kind"), [(iter, "list_iterator"), (set, "set"), (dict.fromkeys, "dict"), (lambda ids: "12", "str")]
)
def test_legal_actions_that_are_no_row(make, kind):
    message = complaint(race(legal_actions=lambda self: make([1, 2])))
    assert message.startswith(
        f"legal_actions is not a row of ids: got {kind}, expected a list, a tuple or an array [A]"
    )
    assert message.endswith("Return a list: list(...), and sorted(...) of a set.")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (1e38, "an observation is too large to learn from: got 1e+38 at 1, expected at most 1e+16"),
        (2**60 + 1, "an observation is an integer that float32 would round: got 1152921504606846977 at 1, expected"),
        (-(2**24) - 1, "an observation is an integer that float32 would round: got -16777217 at 1, expected at most"),
        (2**70 + 1, "an observation is an integer that float32 would round: got 1180591620717411303425 at 1"),
    ],
)
def test_observations_that_training_cannot_use(value, what):
    message = complaint(race(observe=lambda self, player: [0, value if self.left < 8 else 0]))
    assert message.startswith(what)


@pytest.mark.parametrize("values", [[2**24, -(2**24), 2**30], [0.1, 12345678.9, -1e15], [True, False, True]])
def test_observations_that_float32_holds(values):
    assert check_game(race(observe=lambda self, player: values)).state_size == 3


def test_num_players_changing_with_the_seed():
    class Several(RaceState):
        def __init__(self, game, seed):
            super().__init__(game, seed)
            game.num_players = 2 + seed % 2

    game = Race()
    game.state_class = Several
    with pytest.raises(GameError) as caught:
        check_game(game)
    assert str(caught.value).startswith(
        "num_players changes with the seed: got 3, expected 2 as before (game with seed"
    )
    assert str(caught.value).endswith("Make one game for each number of players.")


# --- What is allowed and worth knowing


def test_an_observation_that_never_changes_is_noted():
    (note,) = check_game(race(observe=lambda self, player: [1.0])).notes
    assert note == "observe shows the same numbers to every seat at every turn, so play cannot depend on them"
    assert note in str(check_game(race(observe=lambda self, player: [1.0])))
    assert check_game(Race()).notes == ()


def _filled(self, player):
    self.row[:] = [self.left, player, 0]
    return self.row


def _listed(self):
    self.game.ids[:] = RaceState.legal_actions(self)
    return self.game.ids


@pytest.mark.parametrize("owner", ["state", "game"])
def test_an_array_that_all_seats_share_is_noted(owner):
    class Reusing(RaceState):
        observe = _filled

        def __init__(self, game, seed):
            super().__init__(game, seed)
            self.row = game.row if owner == "game" else np.zeros(3, np.float32)

    game = Race()
    game.row, game.state_class = np.zeros(3, np.float32), Reusing
    (note,) = check_game(game).notes
    assert note.startswith("observe hands out the same array again with other content: training copies it")


def test_a_list_that_all_states_share_is_noted():
    game = race(legal_actions=_listed)
    game.ids = []
    (note,) = check_game(game).notes
    assert note.startswith("legal_actions hands out the same array again with other content")
    constant = (1, 2)
    assert check_game(race(legal_actions=lambda self: constant[: max(1, min(2, self.left))])).notes == ()
