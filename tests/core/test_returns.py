"""Returns and advantages of interleaved players, by hand for tiny games and against one player at a time."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from movelist.core import returns
from movelist.core.errors import DataError
from movelist.core.returns import (
    Moments,
    RunningScale,
    explained_variance,
    gae,
    normalized,
    rollout_gae,
    without_outliers,
)

# float64 throughout: only the order of additions differs between the scan and the loop.
CLOSE = 1e-9

UNIT = st.floats(0, 1)
NUMBER = st.floats(-100, 100)
STEPS = st.lists(st.tuples(NUMBER, NUMBER, st.integers(0, 3)), max_size=12)


def advantages(reward, value, player, gamma=1.0, gae_lambda=1.0, **more):
    return gae(reward, value, player, gamma=gamma, gae_lambda=gae_lambda, **more)[0].tolist()


def test_two_players_by_hand():
    """A, B, A; A wins 1, B loses 1. A's first advantage is 0 + 1 - .2, with A's own two steps as one trajectory."""
    advantage, value_target = gae([0, -1, 1], [0.2, -0.1, 0.3], [0, 1, 0], gamma=1.0, gae_lambda=1.0)
    assert advantage.tolist() == pytest.approx([0.8, -0.9, 0.7])
    assert value_target.tolist() == pytest.approx([1.0, -1.0, 1.0])
    assert advantage.dtype == value_target.dtype == np.float64


def test_discount_and_lambda_by_hand():
    """Steps 1 and 3 are A's: delta_3 = 1 - .3 = .7; delta_1 = 0 + .5 * .3 - .2 = -.05; A_1 = -.05 + .5 * .8 * .7."""
    assert advantages([0, -1, 1], [0.2, -0.1, 0.3], [0, 1, 0], 0.5, 0.8) == pytest.approx([0.23, -0.9, 0.7])


def test_the_discount_counts_own_decisions_only():
    """However many turns of B lie between A's two, A discounts once."""
    for between in (0, 1, 5):
        players, zeros = [0, *[1] * between, 0], [0.0] * between
        advantage = advantages([0.0, *zeros, 8.0], [0.0, *zeros, 0.0], players, gamma=0.5)
        assert (advantage[0], advantage[-1]) == (4.0, 8.0)


@pytest.mark.parametrize(
    ("player", "reward", "expected"),
    [
        ([0, 1, 2], [2, -1, -1], [2, -1, -1]),  # three players
        ([0, 0, 1], [0, 1, -1], [1, 1, -1]),  # a player who moves twice in a row
        ([0, 2, 0], [0, -1, 1], [1, -1, 1]),  # player 1 never moves
        ([0, 1, 0], [3, 0, 1], [4, 0, 1]),  # player 0 earned 3 before the next own step: on another's turn
        ([1], [5], [5]),  # one step
    ],
)
def test_turn_orders_by_hand(player, reward, expected):
    """Values 0, gamma = lambda = 1: an advantage is what the mover still receives."""
    assert advantages(reward, [0.0] * len(reward), player) == expected


def test_one_step_is_reward_minus_value():
    assert advantages([1.0], [0.25], [0]) == [0.75]


def test_no_step_has_no_advantage():
    assert advantages([], [], []) == []
    assert advantages([], [], [], final_value={}) == []


def test_a_truncated_episode_goes_on_from_each_players_own_final_value():
    """A's last step: 1 + .5 * 10 - 0; B's: 2 + .5 * 20 - 0; A's first: 0 + .5 * A's next value 0 + .5 * 6."""
    got = advantages([0, 2, 1], [0.0, 0.0, 0.0], [0, 1, 0], 0.5, 1.0, final_value={0: 10.0, 1: 20.0, 2: 99.0})
    assert got == [3.0, 12.0, 6.0]


def test_a_truncated_episode_needs_a_final_value_of_each_mover():
    with pytest.raises(DataError) as caught:
        gae([0, 0], [0, 0], [0, 2], gamma=1, gae_lambda=1, final_value={0: 1.0})
    assert str(caught.value) == "a truncated episode lacks a final value (player 2)"


@given(STEPS, UNIT, UNIT, st.none() | st.tuples(NUMBER, NUMBER, NUMBER, NUMBER))
def test_any_episode_equals_one_player_at_a_time(steps, gamma, gae_lambda, final):
    reward, value, player = ([step[i] for step in steps] for i in range(3))
    final_value = dict(enumerate(final)) if final else None
    advantage, value_target = gae(reward, value, player, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value)
    expected = oracle.gae(reward, value, player, gamma, gae_lambda, final_value)
    assert advantage.tolist() == pytest.approx(expected, rel=CLOSE, abs=CLOSE)
    assert value_target.tolist() == pytest.approx([a + v for a, v in zip(expected, value, strict=True)], abs=1e-7)


@given(st.lists(STEPS, max_size=5), UNIT, UNIT, st.randoms(use_true_random=False))
def test_a_rollout_is_its_episodes_one_by_one(games, gamma, gae_lambda, random):
    steps = [step for game in games for step in game]
    offsets = np.cumsum([0, *map(len, games)])
    final = np.array([[random.choice([0.0, random.uniform(-9, 9)]) for _ in range(4)] for _ in games]).reshape(-1, 4)
    reward, value, player = (np.array([step[i] for step in steps]) for i in range(3))
    advantage, _ = rollout_gae(
        reward, value, player.astype(int), offsets, gamma=gamma, gae_lambda=gae_lambda, final_value_EP=final
    )
    expected = [
        number
        for game, row in zip(games, final, strict=True)
        for number in oracle.gae(
            *([step[i] for step in game] for i in range(3)), gamma, gae_lambda, dict(enumerate(row))
        )
    ]
    assert advantage.tolist() == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 5000])
def test_long_games_equal_the_loop(length):
    rng = np.random.default_rng(length)
    reward, value, player = rng.normal(size=length), rng.normal(size=length), rng.integers(0, 3, length)
    got = advantages(reward, value, player, 0.99, 0.95)
    expected = oracle.gae(reward.tolist(), value.tolist(), player.tolist(), 0.99, 0.95)
    assert got == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


def test_long_undiscounted_sums_lose_nothing():
    """4,096 ones of one player, then one of another: 4096, 4095, ..., exact in float64."""
    player = [0] * 4096 + [1]
    assert advantages([1.0] * 4097, [0.0] * 4097, player) == [*range(4096, 0, -1), 1.0]


def test_inputs_are_left_as_they_were():
    reward, value, player = np.ones(6), np.zeros(6), np.array([0, 1, 0, 1, 0, 1])
    gae(reward, value, player, gamma=0.9, gae_lambda=0.9)
    assert (reward.tolist(), value.tolist(), player.tolist()) == ([1] * 6, [0] * 6, [0, 1] * 3)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DataError) as caught:
        gae([0, 0, 1], [0, 0], [0, 0, 0], gamma=1, gae_lambda=1)
    assert str(caught.value) == (
        "the columns of an episode differ in length: got {'rewards': 3, 'values': 2, 'players': 3}"
    )


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 4], []])
def test_offsets_that_do_not_cover_the_steps_are_refused(offsets):
    column = np.zeros(3)
    with pytest.raises(DataError) as caught:
        rollout_gae(column, column, np.zeros(3, int), np.array(offsets), gamma=1, gae_lambda=1)
    assert str(caught.value) == "episode offsets do not cover the steps: expected from 0 to 3"


# --- The scale of returns


def test_the_running_scale_is_the_deviation_of_all_by_hand():
    scale = RunningScale()
    assert scale.scale == 1.0
    scale = scale.after(Moments.of(np.array([1.0, 3.0])))
    assert (scale.count, scale.mean, scale.scale) == (2, 2.0, 1.0)
    scale = scale.after(Moments.of(np.array([8.0])))  # mean 4, squares 9 + 1 + 16
    assert (scale.count, scale.mean) == (3, 4.0)
    assert scale.scale == pytest.approx(math.sqrt(26 / 3))


def test_constant_returns_of_any_size_have_no_scale():
    """Merging means of 1e9/3 leaves a deviation of 1e-7 by rounding; divided by it, returns would be 3e15."""
    for constant in (1e9 / 3, -1e10 / 3, 0.0, 1e-3):
        scale = RunningScale()
        for count in (7, 13, 1000, 777):
            scale = scale.after(Moments.of(np.full(count, constant)))
        assert scale.scale == 1.0


@given(st.lists(st.lists(st.floats(-50_000, 50_000), max_size=20), max_size=6))
def test_the_running_scale_equals_numpys_over_everything(parts):
    scale = RunningScale()
    for part in parts:
        scale = scale.after(Moments.of(np.array(part, np.float64)))
    everything = np.array([number for part in parts for number in part])
    if not everything.size or everything.std() < 1e-6:
        return
    assert scale.mean == pytest.approx(everything.mean(), rel=1e-9, abs=1e-6)
    assert scale.scale == pytest.approx(everything.std(), rel=1e-6)


def test_a_large_offset_does_not_drown_the_deviation():
    """Mean of squares minus square of the mean would lose all digits here."""
    rng = np.random.default_rng(0)
    scale, parts = RunningScale(), [1e9 + rng.normal(size=100) for _ in range(20)]
    for part in parts:
        scale = scale.after(Moments.of(part))
    assert scale.scale == pytest.approx(np.concatenate(parts).std(), rel=1e-6)


@pytest.mark.parametrize("constant", [0.0, 1.0, -49152.0])
def test_constant_returns_stay_as_they_are(constant):
    scale = RunningScale()
    for _ in range(3):
        scale = scale.after(Moments.of(np.full(5, constant)))
    assert scale.scale == 1.0
    assert scale.count == 15


@pytest.mark.parametrize("unit", [1e-100, 1e-12, 1e-9, 1.0, 1e9, 1e100])
def test_the_scale_of_returns_follows_their_unit(unit):
    """What is small is not nothing: only rounding, seen from the mean, counts as no deviation."""
    parts = [unit * np.array([1.0, -1.0, 0.5]), unit * np.array([3.0, -2.0])]
    scale = RunningScale()
    for part in parts:
        scale = scale.after(Moments.of(part))
    assert scale.scale == pytest.approx(np.concatenate(parts).std(), rel=1e-12)


def test_taking_in_returns_leaves_the_scale_as_it_was():
    before = RunningScale().after(Moments.of(np.array([1.0, 3.0])))
    after = before.after(Moments.of(np.array([8.0])))
    assert (before.count, before.mean, before.squares) == (2, 2.0, 2.0)
    assert (after.count, after.mean, after.squares) == (3, 4.0, 26.0)


# --- Outliers


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e9])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_an_absurd_return_is_pulled_in_to_what_is_usual(unit, offset):
    """Nine in ten lie 1 from the median, one in ten 2: the limit is 200."""
    usual = np.array([-1.0, 1.0] * 45 + [2.0, -2.0] * 5)
    cleaned = without_outliers(unit * (offset + np.append(usual, [1e6, -1e200])))
    expected = unit * (offset + np.append(usual, [200.0, -200.0]))
    assert cleaned.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.parametrize(
    "returns",
    [
        [],
        [5.0],
        [4.0] * 100,
        [0.0] * 99 + [1000.0],  # a lottery: of what is not a draw, all is so
        [1.0, -1.0] * 45 + [1e6] * 10,  # one in ten: that is how the game pays
        [0.0] * 60 + [2.0**k for k in range(8)] + [-(2.0**k) for k in range(8)],  # bombs in dou dizhu
    ],
)
def test_returns_as_games_pay_them_are_left_alone(returns):
    given = np.array(returns, np.float64)
    assert without_outliers(given) is given


def test_among_draws_it_is_the_others_that_say_what_is_usual():
    """The draws differ by the rounding of their sums."""
    draws, others = np.full(960, 1e-17), np.array([1.0, -1.0] * 20)
    draws[::2] = 0.0
    given = np.concatenate([draws, others])
    assert without_outliers(given) is given
    assert without_outliers(np.append(given, 1e6)).max() == pytest.approx(100.0)


# --- Advantages and the quality of values


def normal(advantage_N):
    return normalized(advantage_N, Moments.of(advantage_N))


def test_normalized_by_hand():
    assert normal(np.array([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30).filter(lambda x: len(set(x)) > 1))
def test_normalized_has_mean_0_and_deviation_1(numbers):
    scaled = normal(np.array(numbers, float))
    assert scaled.mean() == pytest.approx(0, abs=1e-9)
    assert scaled.std() == pytest.approx(1, rel=1e-6)
    assert np.argmax(scaled) == np.argmax(numbers)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1.0, -3.7, 49152.1, 1e9 + 0.1])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_equal_advantages_become_zeros(constant, size):
    """Their mean may be a rounding error off; that error is no advantage."""
    assert np.abs(normal(np.full(size, constant))).max() < 1e-6


def test_no_advantages_stay_none():
    assert normal(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], 1.0),
        ([0.0, 0.0], [-1.0, 1.0], 0.0),
        ([1.0, -1.0], [-1.0, 1.0], -3.0),
        ([5.0, 6.0], [0.0, 1.0], 1.0),  # a constant offset is no variance
        ([0.3, -7.0], [4.0, 4.0], 0.0),  # constant returns: 0 by definition
        ([3.0], [4.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_explained_variance_by_hand_and_as_json(value, target, expected):
    value_N, target_N = np.array(value), np.array(target)
    got = explained_variance(Moments.of(target_N - value_N), Moments.of(target_N))
    assert got == pytest.approx(expected)
    assert json.loads(json.dumps(got, allow_nan=False)) == got


def test_the_scan_keeps_trajectories_apart_by_hand():
    term, decay = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 0.0, 1.0, 0.0])
    assert returns._reverse_scan(term, decay).tolist() == [2.0, 2.0, 12.0, 8.0]
    assert (term.tolist(), decay.tolist()) == ([1, 2, 4, 8], [0.5, 0, 1, 0])
