"""Episodes as columns: views, rules and the crediting of rewards, held against steps one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from movelist.core.action_ids import parse
from movelist.core.errors import DataError
from movelist.data.episode import HUMAN, OTHER, POLICY, Episodes, concatenate, credit, offsets_of
from oracle import Step


def worked_example(**changes):
    """The two games that are drawn at the top of data/episode.py, written out."""
    columns = {
        "state_NS": np.array([[0.0], [1.0], [2.0]], np.float32),
        "player_N": np.array([0, 1, 1]),
        "action_offsets": np.array([0, 2, 5, 7]),
        "action_id_A": np.array([7, 9, 5, 6, 8, 7, 9]),
        "chosen_N": np.array([1, 0, 0]),
        "log_prob_N": np.array([-0.5, np.nan, -1.0], np.float32),
        "reward_N": np.array([1.0, -1.0, 3.0]),
        "episode_offsets": np.array([0, 2, 3]),
        "return_EP": np.array([[1.0, -1.0], [-3.0, 3.0]]),
        "truncated_E": np.array([False, False]),
        "controller_EP": np.zeros((2, 2), np.int8),
        "num_turns": 5,
    }
    return Episodes(**{**columns, **changes})


def same(one, other):
    """Whether two Episodes hold the same, in every column."""
    for name in Episodes.__slots__:
        mine, yours = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            equal = mine.dtype == yours.dtype and np.array_equal(mine, yours, equal_nan=mine.dtype.kind == "f")
        else:
            equal = mine == yours
        if not equal:
            return False
    return True


# --- Looking at them


def test_the_worked_example_reads_as_it_is_drawn():
    episodes = worked_example().check()
    assert (episodes.num_steps, episodes.num_episodes, len(episodes), episodes.num_actions) == (3, 2, 2, 7)
    assert episodes.num_players == 2
    assert episodes.episode_N.tolist() == [0, 0, 1]
    first, second = episodes
    assert (first.steps, second.steps) == (range(0, 2), range(2, 3))
    assert (first.returns.tolist(), second.returns.tolist()) == ([1, -1], [-3, 3])
    assert [first.actions(step).tolist() for step in range(3)] == [[7, 9], [5, 6, 8], [7, 9]]
    assert [episodes.action_id_A[start + c] for start, c in zip([0, 2, 5], episodes.chosen_N, strict=True)] == [9, 5, 7]
    assert [episodes.place(step) for step in range(3)] == [
        "episode 0, step 0",
        "episode 0, step 1",
        "episode 1, step 0",
    ]


def test_episodes_are_counted_like_a_list():
    episodes = worked_example()
    assert episodes[-1].index == episodes[1].index == 1
    for index in (2, -3):
        with pytest.raises(IndexError) as caught:
            episodes[index]
        assert str(caught.value) == f"episode {index} of 2"


def test_places_skip_episodes_without_steps():
    steps = [Step([0.0], [1, 2], 0)]
    episodes = oracle.columns([[], steps, [], [], steps * 2, []]).check()
    assert [episodes.place(step) for step in range(3)] == [
        "episode 1, step 0",
        "episode 4, step 0",
        "episode 4, step 1",
    ]
    assert [list(episode.steps) for episode in episodes] == [[], [0], [], [], [1, 2], []]


def test_offsets_of_lists():
    assert offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.zeros(0, np.int64)).tolist() == [0]
    assert offsets_of(np.array([200, 200], np.uint8)).tolist() == [0, 200, 400]


@pytest.mark.parametrize("value", oracle.HARD_IDS)
def test_hard_ids_lie_in_the_columns_as_they_are(value):
    pattern = parse(value)
    alone = oracle.columns([[Step([0.0], [value], 0)]]).check()
    among = oracle.columns([[Step([0.0], [17, value, 2**40], 1)]]).check()
    assert alone[0].actions(0).tolist() == [pattern]
    assert among[0].actions(0)[among.chosen_N[0]] == pattern


# --- The rules


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("state_NS", np.zeros((2, 1), np.float32), "columns differ in length: got 2, expected 3"),
        ("chosen_N", np.zeros(4, int), "columns differ in length: got 4, expected 3"),
        ("log_prob_N", np.zeros(0, np.float32), "columns differ in length: got 0, expected 3"),
        ("reward_N", np.zeros(2), "columns differ in length: got 2, expected 3"),
        (
            "state_NS",
            np.zeros((3, 1)),
            "states have the wrong form: got float64 [3, 1], expected float32, float16 or uint8 [N, S]",
        ),
        (
            "state_NS",
            np.zeros(3, np.float32),
            "states have the wrong form: got float32 [3], expected float32, float16 or uint8 [N, S]",
        ),
        ("action_id_A", np.zeros(7), "action ids have the wrong dtype: got float64, expected int64"),
        ("action_id_A", np.arange(7, dtype=np.uint64), "action ids have the wrong dtype: got uint64, expected int64"),
        (
            "action_offsets",
            np.array([0, 2, 7]),
            "offsets do not cover the column: got 3 offsets ending at 7, expected 4 from 0 to 7",
        ),
        (
            "action_offsets",
            np.array([0, 2, 5, 8]),
            "offsets do not cover the column: got 4 offsets ending at 8, expected 4 from 0 to 7",
        ),
        (
            "action_offsets",
            np.array([1, 2, 5, 7]),
            "offsets do not cover the column: got 4 offsets ending at 7, expected 4 from 0 to 7",
        ),
        (
            "episode_offsets",
            np.array([0, 2, 2]),
            "offsets do not cover the column: got 3 offsets ending at 2, expected 3 from 0 to 3",
        ),
        (
            "episode_offsets",
            np.zeros(0, int),
            "offsets do not cover the column: got 0 offsets ending at nothing, expected 3 from 0 to 3",
        ),
        ("return_EP", np.zeros((3, 2)), "columns differ in shape: got [3, 2], expected [2, 2]"),
        ("controller_EP", np.zeros((2, 3), np.int8), "columns differ in shape: got [2, 3], expected [2, 2]"),
    ],
)
def test_columns_of_the_wrong_shape_are_refused(field, value, message):
    with pytest.raises(DataError) as caught:
        worked_example(**{field: value}).check("game.jsonl")
    assert str(caught.value) == f"{message} (game.jsonl, field {field})"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("action_offsets", [0, 2, 2, 7], "a list of legal actions is empty (game.jsonl, episode 0, step 1, field"),
        ("action_offsets", [0, 5, 2, 7], "a list of legal actions is empty (game.jsonl, episode 0, step 1, field"),
        (
            "chosen_N",
            [1, 0, 2],
            "the chosen index is outside the list: got 2, expected 0 to 1 (game.jsonl, episode 1, step 0, field",
        ),
        (
            "chosen_N",
            [1, -1, 0],
            "the chosen index is outside the list: got -1, expected 0 to 2 (game.jsonl, episode 0, step 1, field",
        ),
        ("player_N", [0, 2, 1], "there is no such player: got 2 (game.jsonl, episode 0, step 1, field"),
        ("player_N", [-1, 1, 1], "there is no such player: got -1 (game.jsonl, episode 0, step 0, field"),
        ("reward_N", [1, np.nan, 3], "a reward is not a finite number: got nan (game.jsonl, episode 0, step 1, field"),
        ("reward_N", [1, 1, np.inf], "a reward is not a finite number: got inf (game.jsonl, episode 1, step 0, field"),
        (
            "log_prob_N",
            [-np.inf, 0, 0],
            "a log-probability is impossible: got -inf (game.jsonl, episode 0, step 0, fie",
        ),
        ("log_prob_N", [-1, 0.5, 0], "a log-probability is impossible: got 0.5 (game.jsonl, episode 0, step 1, field"),
        ("state_NS", [[0], [1], [np.nan]], "a state holds NaN or infinity (game.jsonl, episode 1, step 0, field"),
        ("state_NS", [[0], [np.inf], [0]], "a state holds NaN or infinity (game.jsonl, episode 0, step 1, field"),
        (
            "action_id_A",
            [7, 9, 5, 6, 5, 7, 9],
            "the action id 0x0000000000000005 stands twice in one list (game.jsonl, episode 0, step 1, field",
        ),
        (
            "action_id_A",
            [7, 9, 5, 6, 8, -1, -1],
            "the action id 0xffffffffffffffff stands twice in one list (game.jsonl, episode 1, step 0, field",
        ),
        ("return_EP", [[1, -1], [np.nan, 3]], "a return is not a finite number (game.jsonl, episode 1, field"),
        ("truncated_E", [False, True], "a truncated episode has no final states (game.jsonl, episode 1, field"),
    ],
)
def test_a_step_that_breaks_a_rule_is_named(field, value, message):
    kinds = {"state_NS": np.float32, "log_prob_N": np.float32, "reward_N": float, "return_EP": float}
    kind = bool if field == "truncated_E" else kinds.get(field, np.int64)
    named = "final_state_EPS" if field == "truncated_E" else field
    with pytest.raises(DataError) as caught:
        worked_example(**{field: np.array(value, kind)}).check("game.jsonl")
    assert str(caught.value)[: len(message)] == message
    assert f" field {named})" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("episode_offsets", np.array([0, 4, 3])),
        ("player_N", np.array([0.0, 1.0, 1.0])),
        ("chosen_N", np.array([1.0, 0.0, 0.0])),
        ("return_EP", np.array([1.0, -3.0])),
        ("truncated_E", np.array([0, 2])),
        ("controller_EP", np.array([[0, 3], [0, 0]], np.int8)),
    ],
    ids=["falling episodes", "float players", "float choices", "flat returns", "numbers", "unknown controller"],
)
def test_columns_of_the_wrong_kind_are_refused_by_name(field, value):
    with pytest.raises(DataError, match=rf"\(game.jsonl, .*field {field}\)$|\(game.jsonl, field {field}\)$"):
        worked_example(**{field: value}).check("game.jsonl")


@pytest.mark.parametrize(
    "final_state_EPS",
    [np.zeros((2, 2, 3), np.float32), np.zeros((1, 2, 1), np.float32), np.full((2, 2, 1), np.nan, np.float32)],
    ids=["width", "episodes", "nan"],
)
def test_final_states_are_held_to_the_rules_of_states(final_state_EPS):
    truncated = worked_example(truncated_E=np.array([False, True]), final_state_EPS=final_state_EPS)
    with pytest.raises(DataError, match=r"field final_state_EPS\)$"):
        truncated.check("game.jsonl")


def test_what_keeps_the_rules_passes():
    final = np.zeros((2, 2, 1), np.float32)
    for changes in (
        {"truncated_E": np.array([True, False]), "final_state_EPS": final},
        {"state_NS": np.array([[0], [255], [3]], np.uint8)},
        {"state_NS": np.zeros((3, 1), np.float16)},
        {"action_id_A": np.array([7, 9, 7, 9, 8, 9, 7])},  # the same id in different lists
        {"log_prob_N": np.array([5e-5, 0, np.nan], np.float32)},  # rounding above 0
    ):
        episodes = worked_example(**changes)
        assert episodes.check() is episodes


def test_no_episodes_and_episodes_without_steps_are_fine():
    for games in ([], [[], []]):
        episodes = oracle.columns(games, state_size=3, num_players=2).check()
        assert (episodes.num_steps, episodes.num_actions, len(episodes)) == (0, 0, len(games))
        assert episodes.without_forced().learnable().check().num_steps == 0


# --- Leaving steps out


def steps(data, *, forced=True):
    """Games of up to 8 steps of 3 players, rewards that float64 adds exactly."""
    one = st.builds(
        lambda length, chosen, player, reward: Step([0.0], list(range(length)), chosen % length, player, reward),
        st.integers(1 if forced else 2, 3),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(-8, 8).map(float),
    )
    return data.draw(st.lists(st.lists(one, max_size=8), max_size=4))


def test_a_forced_turns_reward_goes_to_the_movers_step_before():
    """A decides, B is forced and earns 2, A is forced and earns 5, B decides, A is forced and earns 7."""
    game = [
        Step([0.0], [1, 2], 0, 0, 1.0),
        Step([1.0], [3], 0, 1, 2.0),
        Step([2.0], [4], 0, 0, 5.0),
        Step([3.0], [5, 6], 1, 1, 10.0),
        Step([4.0], [7], 0, 0, 7.0),
    ]
    episodes = oracle.columns([game], num_players=2).check()
    kept = episodes.without_forced().check()
    assert kept.state_NS[:, 0].tolist() == [0, 3]
    assert kept.reward_N.tolist() == [13.0, 10.0]  # B's 2 came before B's first decision: in the return only
    assert kept.return_EP.tolist() == [[13.0, 12.0]]
    assert [kept[0].actions(step).tolist() for step in range(2)] == [[1, 2], [5, 6]]
    assert kept.chosen_N.tolist() == [0, 1]
    assert kept.num_turns == 5
    assert episodes.reward_N.tolist() == [1, 2, 5, 10, 7]  # and the original is untouched


@given(st.data())
def test_without_forced_equals_step_by_step(data):
    games = steps(data)
    made = oracle.columns(games, num_players=3, state_size=1).without_forced().check()
    expected = oracle.columns([oracle.without_forced(game) for game in games], num_players=3, state_size=1)
    changes = {"return_EP": made.return_EP, "num_turns": made.num_turns}  # these are the whole games' in both
    assert same(made, replace(expected, **changes))


@given(st.data())
def test_selecting_steps_equals_step_by_step(data):
    games = steps(data)
    keep = [[data.draw(st.booleans()) for _ in game] for game in games]
    episodes = oracle.columns(games, num_players=3, state_size=1)
    made = episodes.select_steps(np.array([k for game in keep for k in game], bool))
    chosen = [[s for s, k in zip(game, mine, strict=True) if k] for game, mine in zip(games, keep, strict=True)]
    expected = oracle.columns(chosen, num_players=3, state_size=1)
    assert same(made, replace(expected, return_EP=episodes.return_EP, num_turns=episodes.num_turns))


def test_only_the_policys_seats_are_learned_from():
    """Seat 1 of game 0 is human, seat 0 of game 1 another program; rewards and returns stay as they are."""
    controller = np.array([[POLICY, HUMAN], [OTHER, POLICY]], np.int8)
    episodes = worked_example(controller_EP=controller)
    mine = episodes.learnable().check()
    assert mine.state_NS[:, 0].tolist() == [0, 2]
    assert mine.reward_N.tolist() == [1, 3]
    assert mine.return_EP.tolist() == episodes.return_EP.tolist()
    assert [mine[0].actions(step).tolist() for step in range(2)] == [[7, 9], [7, 9]]
    everyone = worked_example()
    assert everyone.learnable() is everyone


# --- Putting together


@given(st.data())
def test_putting_together_equals_making_at_once(data):
    parts = [steps(data, forced=False) for _ in range(data.draw(st.integers(1, 3)))]
    made = concatenate([oracle.columns(games, num_players=3, state_size=1) for games in parts]).check()
    expected = oracle.columns([game for games in parts for game in games], num_players=3, state_size=1)
    assert same(made, expected)


def test_final_states_are_filled_up_where_a_part_has_none():
    cut = worked_example(truncated_E=np.array([False, True]), final_state_EPS=np.full((2, 2, 1), 7, np.float32))
    both = concatenate([worked_example(), cut]).check()
    assert both.final_state_EPS[:, 0, 0].tolist() == [0, 0, 7, 7]
    assert both.truncated_E.tolist() == [False, False, False, True]
    assert concatenate([worked_example()]).final_state_EPS is None


def test_nothing_cannot_be_put_together():
    with pytest.raises(DataError) as caught:
        concatenate([])
    assert str(caught.value) == "no episodes to put together"


def test_different_widths_cannot_be_put_together():
    with pytest.raises(DataError) as caught:
        concatenate([worked_example(), worked_example(state_NS=np.zeros((3, 2), np.float32))])
    assert str(caught.value) == (
        "episodes differ in state width, players or dtype: "
        "got [\"(1, 2, dtype('float32'))\", \"(2, 2, dtype('float32'))\"]"
    )


# --- Crediting


def credited(players, scores, returns):
    """`credit` of one episode from all seats' scores before each step."""
    mover = np.array([row[p] for row, p in zip(scores, players, strict=True)], float)
    offsets = np.array([0, len(players)])
    return credit(mover, np.array(players, int), offsets, np.array([returns], float)).tolist()


def test_a_reward_on_anothers_turn_is_the_movers_of_before():
    """A moves, then B's move pays A 3; A moves again and ends at 4, B at -4."""
    assert credited([0, 1, 0], [[0, 0], [0, 0], [3, -3]], [4, -4]) == [3, -4, 1]


@pytest.mark.parametrize(
    ("players", "returns", "expected"),
    [
        ([0, 1, 0], [1, -1], [0, -1, 1]),
        ([0, 1, 2], [2, -1, -1], [2, -1, -1]),
        ([0, 0], [5], [0, 5]),
        ([1], [9, 2], [2]),  # player 0 never moves
        ([], [1, 1], []),
    ],
)
def test_final_scores_go_to_each_players_last_step(players, returns, expected):
    assert credited(players, [[0.0] * len(returns)] * len(players), returns) == expected


@given(st.data())
def test_credit_equals_the_loop_and_adds_up(data):
    seats = 3
    games = data.draw(st.lists(st.lists(st.integers(0, seats - 1), max_size=8), max_size=4))
    row = st.lists(st.integers(-9, 9), min_size=seats, max_size=seats)
    scores = [[data.draw(row) for _ in game] for game in games]
    finals = [data.draw(row) for _ in games]
    mover = [row[p] for game, rows in zip(games, scores, strict=True) for p, row in zip(game, rows, strict=True)]
    made = credit(
        np.array(mover, float),
        np.array([p for game in games for p in game], int),
        np.cumsum([0, *map(len, games)]),
        np.array(finals, float).reshape(-1, seats),
    )
    cases = zip(games, scores, finals, strict=True)
    assert made.tolist() == [r for game, rows, final in cases for r in oracle.credit(rows, game, final)]
