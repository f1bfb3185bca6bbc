"""Choices depend on the game's seed and turn alone, follow the network's probabilities, and fail with a plain word."""

import numpy as np
import pytest
import torch

from movelist.core.errors import DataError, NonFiniteError
from movelist.core.ragged import Segments
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play import policy as policy_module
from movelist.play.policy import NetPolicy, RandomPolicy, Turns, derive_seeds, gumbel, uniform

EXTREMES = [-(2**63), -1, 0, 1, 2**24 + 1, 2**53 + 1, 2**63 - 1]
# A sum of at most 16 products, in another order where a batch is cut otherwise: a few units of float32's 1.2e-7.
ROUNDING = 1e-6


def some_turns(num_games, *, state_size=4, seed=0):
    """Turns of games with lists of 1 to 9 ids of any 64 bits; states are small whole numbers."""
    rng = np.random.default_rng(seed)
    count_B = rng.integers(1, 10, num_games)
    return Turns(
        rng.integers(-3, 4, (num_games, state_size)).astype(np.float32),
        count_B,
        rng.integers(-(2**63), 2**63 - 1, count_B.sum()),
        rng.integers(0, 2**63 - 1, num_games),
        rng.integers(0, 300, num_games),
    )


def pick(turns, games):
    """The turns of these games only, in this order."""
    starts = np.cumsum(turns.count_B) - turns.count_B
    ids = [turns.action_id_A[starts[game] : starts[game] + turns.count_B[game]] for game in games]
    games = np.array(games)
    return Turns(
        turns.state_BS[games], turns.count_B[games], np.concatenate(ids), turns.seed_B[games], turns.turn_B[games]
    )


def same_list(logits, num_games, *, first_seed=0, turn=0):
    """One turn of each of many games that all offer the ids 0, 1, 2, ..."""
    size = len(logits)
    return Turns(
        np.zeros((num_games, 1), np.float32),
        np.full(num_games, size),
        np.tile(np.arange(size), num_games),
        np.arange(first_seed, first_seed + num_games),
        np.full(num_games, turn),
    )


def small_net(**shape):
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(**{"state_size": 4, "hidden_dim": 16, **shape}))
    with torch.no_grad():
        net.pair_weight.mul_(30)  # far from even, so that a wrong distribution shows
    return net


def exact_net():
    """A net of whole numbers: all its sums are exact in float32, whatever the order and the batch."""
    net = small_net()
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.from_numpy(rng.integers(-1, 2, parameter.shape)))
        net.pair_weight.mul_(0.015625)  # 2^-6, so that logits are of size 1
    return net


def net_with_logits(logits):
    """A net whose logit of id k is `logits[k]` (at least 0), exactly, in every state."""
    net = PolicyValueNet(ModelShape(state_size=1, hidden_dim=1, action_encoder="table", num_actions=len(logits)))
    with torch.no_grad():
        net.state_to_pair.weight.zero_()
        net.action_to_pair.weight.fill_(1.0)
        net.pair_weight.fill_(1.0)
        net.action_encoder.first.weight.copy_(torch.tensor(logits, dtype=torch.float32).reshape(-1, 1))
    return net


def chi_square(counts, expected):
    return float((np.square(np.asarray(counts) - expected) / expected).sum())


# --- The noise


def groupings(num_games):
    """Ways to ask for the same games: (the games' numbers, in the order asked)."""
    shuffled = np.random.default_rng(1).permutation(num_games).tolist()
    return [*[[game] for game in (0, 7, num_games - 1)], shuffled, list(range(0, num_games, 3)), [num_games - 1, 0]]


def test_noise_depends_only_on_seed_turn_and_place():
    turns = some_turns(500)
    starts = np.cumsum(turns.count_B) - turns.count_B
    all_uniform, all_gumbel = uniform(turns.seed_B, turns.turn_B), gumbel(turns)
    for games in groupings(500):
        part = pick(turns, games)
        np.testing.assert_array_equal(uniform(part.seed_B, part.turn_B), all_uniform[games])
        expected = [all_gumbel[starts[game] : starts[game] + turns.count_B[game]] for game in games]
        np.testing.assert_array_equal(gumbel(part), np.concatenate(expected))


def test_noise_differs_for_every_seed_turn_and_place():
    seeds, turn_numbers = np.meshgrid(np.arange(300), np.arange(300))
    assert len(np.unique(uniform(seeds.ravel(), turn_numbers.ravel()))) == 90_000
    # float32, so a few of 9,000 may fall on the same number: of about 2^24 different ones, 9,000^2 / 2 / 2^24 = 2.4.
    noise = gumbel(same_list([0.0] * 9, 1000))
    assert noise.dtype == np.float32
    assert len(np.unique(noise)) >= 8_980


def test_noise_is_always_finite_and_inside_the_unit_interval():
    unit = policy_module._to_unit(np.array([0, 1, 2**63, 2**64 - 2048, 2**64 - 1], np.uint64))
    assert unit.min() > 0.0
    assert unit.max() < 1.0
    assert np.isfinite(-np.log(-np.log(unit))).all()


def test_gumbel_noise_has_the_gumbel_distribution():
    noise = gumbel(same_list([0.0] * 5, 20_000)).astype(float)
    # Mean 0.57722 (Euler's constant), deviation pi / sqrt(6) = 1.28255; of 100,000 draws within 5 standard errors.
    assert noise.mean() == pytest.approx(0.57722, abs=5 * 1.283 / 100_000**0.5)
    assert noise.std() == pytest.approx(1.28255, abs=0.03)


@pytest.mark.parametrize("policy", [RandomPolicy(), NetPolicy(exact_net()), NetPolicy(exact_net(), greedy=True)])
def test_a_choice_does_not_depend_on_the_other_games(policy):
    turns = some_turns(500)
    index_B, log_prob_B = policy.choose(turns)
    assert len(np.unique(index_B)) == 9
    for games in groupings(500):
        part_index_B, part_log_prob_B = policy.choose(pick(turns, games))
        np.testing.assert_array_equal(part_index_B, index_B[games])
        # The softmax's exp and log are vectorised: their last digit depends on the place in the array.
        np.testing.assert_allclose(part_log_prob_B, log_prob_B[games], atol=ROUNDING)


# --- The distribution


def test_choices_follow_the_networks_probabilities():
    logits = [2.0, 1.0, 0.0, 3.0, 0.5]
    probability = np.exp(logits) / np.exp(logits).sum()
    turns = same_list(logits, 20_000)
    index_B, log_prob_B = NetPolicy(net_with_logits(logits)).choose(turns)
    # 4 degrees of freedom: a fair sampler passes 23.5 once in 10,000 seeds, and the seeds here are fixed.
    assert chi_square(np.bincount(index_B, minlength=5), 20_000 * probability) < 23.5
    np.testing.assert_allclose(log_prob_B, np.log(probability)[index_B], atol=ROUNDING)


@pytest.mark.parametrize("policy", [RandomPolicy(), NetPolicy(net_with_logits([0.0] * 4))])
@pytest.mark.parametrize("neighbour", ["next turn", "next seed"])
def test_even_choices_are_even_and_neighbours_are_independent(policy, neighbour):
    turns = same_list([0.0] * 4, 16_000)
    other = same_list([0.0] * 4, 16_000, **({"turn": 1} if neighbour == "next turn" else {"first_seed": 1}))
    index_B, log_prob_B = policy.choose(turns)
    other_index_B, _ = policy.choose(other)
    # Each of the 16 pairs of choices is equally likely. 15 degrees of freedom: 44.3 once in 10,000.
    assert chi_square(np.bincount(4 * index_B + other_index_B, minlength=16), np.full(16, 1000.0)) < 44.3
    np.testing.assert_allclose(log_prob_B, -np.log(4), atol=ROUNDING)


def test_random_policy_is_even_over_lists_of_every_length():
    turns = some_turns(30_000, state_size=1)
    index_B, log_prob_B = RandomPolicy().choose(turns)
    assert (index_B < turns.count_B).all()
    assert log_prob_B.dtype == np.float32
    np.testing.assert_allclose(log_prob_B, -np.log(turns.count_B), atol=ROUNDING)
    for count in range(2, 10):
        chosen = index_B[turns.count_B == count]
        # At most 8 degrees of freedom: 31.8 once in 10,000.
        assert chi_square(np.bincount(chosen, minlength=count), len(chosen) / count) < 31.8


def test_greedy_takes_the_likeliest_and_the_first_of_equals():
    index_B, _ = NetPolicy(net_with_logits([1.0, 4.0, 0.0, 4.0]), greedy=True).choose(same_list([0.0] * 4, 100))
    assert index_B.tolist() == [1] * 100


def test_greedy_agrees_with_the_probabilities_of_each_list():
    policy, turns = NetPolicy(small_net(), greedy=True), some_turns(200)
    log_prob_A = policy.log_probs(turns)
    index_B, log_prob_B = policy.choose(turns)
    for index, log_prob, own in zip(
        index_B, log_prob_B, np.split(log_prob_A, np.cumsum(turns.count_B)[:-1]), strict=True
    ):
        assert np.exp(own).sum() == pytest.approx(1.0, abs=1e-5)
        assert own[index] == own.max() == log_prob


def test_log_prob_is_the_networks_log_softmax_at_the_chosen():
    net, turns = small_net(), some_turns(300)
    index_B, log_prob_B = NetPolicy(net).choose(turns)
    expected, entropy_B, _ = net.evaluate(
        torch.from_numpy(turns.state_BS),
        torch.from_numpy(turns.action_id_A),
        Segments.from_counts(turns.count_B),
        torch.from_numpy(index_B),
    )
    opinion_B = entropy_B.detach().numpy()[turns.count_B > 5] / np.log(turns.count_B[turns.count_B > 5])
    assert opinion_B.min() < 0.5 < opinion_B.max()  # it is sure of some lists and not of others
    np.testing.assert_allclose(log_prob_B, expected.detach(), atol=10 * ROUNDING)  # logits reach 10


# --- The kept halves


def test_kept_halves_equal_fresh_ones():
    net = exact_net()
    seasoned = NetPolicy(net)
    for seed in range(5):  # 2,500 ids, in pieces: the table grows twice, and new ids sort between old ones
        seasoned.choose(some_turns(100, seed=seed))
    turns = Turns(
        np.ones((2, 4), np.float32),
        np.array([7, 7]),
        np.array(EXTREMES + EXTREMES[::-1]),
        np.array([3, 4]),
        np.array([0, 9]),
    )
    for _ in range(2):  # unknown ids at first, known ones then
        fresh = NetPolicy(net).log_probs(turns)
        np.testing.assert_allclose(seasoned.log_probs(turns), fresh, atol=ROUNDING)
        np.testing.assert_allclose(fresh[:7], fresh[:6:-1], atol=ROUNDING)
        assert len(np.unique(fresh[:7].round(4))) > 4  # the ids are told apart


def test_an_update_of_the_weights_needs_a_new_policy_and_gets_one():
    net, turns = small_net(), some_turns(50)
    before = NetPolicy(net).log_probs(turns)
    with torch.no_grad():
        net.action_to_pair.weight.mul_(-1)
    assert np.abs(NetPolicy(net).log_probs(turns) - before).max() > 0.1


# --- What is refused


def test_a_table_refuses_foreign_ids_and_stays_usable():
    policy = NetPolicy(net_with_logits([0.0, 1.0, 2.0]))
    for foreign, shown in [(3, "3 (0x0000000000000003)"), (-1, "-1 (0xffffffffffffffff)")]:
        ids, counts = np.array([0, 1, 2, 1, foreign]), np.array([3, 2])
        turns = Turns(np.zeros((2, 1), np.float32), counts, ids, np.array([7, 12]), np.array([3, 34]))
        with pytest.raises(DataError) as caught:
            policy.choose(turns)
        assert str(caught.value) == (
            f"an action id has no row in the table: got {shown}, expected 0 to 2 (game with seed 12, turn 34). "
            'Use action_encoder "bits", or tell the game\'s true num_actions.'
        )
    expected = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    np.testing.assert_allclose(policy.probabilities([0.0], [0, 1, 2]), expected, atol=ROUNDING)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("part", ["pair_weight", "state_to_pair.weight", "action_to_pair.weight"])
def test_weights_that_are_nan_are_named_by_seed_and_turn(greedy, part):
    net = small_net()
    with torch.no_grad():
        net.get_parameter(part).fill_(torch.nan)
    turns = Turns(np.ones((1, 4), np.float32), np.array([3]), np.array([1, 2, 3]), np.array([12]), np.array([34]))
    with pytest.raises(NonFiniteError) as caught:
        NetPolicy(net, greedy=greedy).choose(turns)
    assert str(caught.value) == (
        "the policy's log-probability is not a finite number: got nan (game with seed 12, turn 34). "
        "The weights or the state hold NaN or infinity: go back to an earlier checkpoint, check the state."
    )


def test_only_the_game_with_a_bad_state_is_named():
    turns = some_turns(20)
    turns.state_BS[13, 2] = np.inf
    with pytest.raises(NonFiniteError, match=f"game with seed {turns.seed_B[13]}, turn {turns.turn_B[13]}"):
        NetPolicy(small_net()).choose(turns)


# --- One turn at a time, as an engine asks


def test_act_is_choose_for_one_turn():
    policy, turns = NetPolicy(exact_net()), some_turns(30)
    index_B, log_prob_B = policy.choose(turns)
    for game in range(30):
        part = pick(turns, [game])
        index, log_prob = policy.act(
            part.state_BS[0], part.action_id_A, seed=int(part.seed_B[0]), turn=int(part.turn_B[0])
        )
        assert (type(index), type(log_prob)) == (int, float)
        assert index == index_B[game]
        assert log_prob == pytest.approx(log_prob_B[game], abs=ROUNDING)


def test_act_reads_unsigned_ids_lists_and_arrays_alike():
    policy = NetPolicy(exact_net())
    signed = [-1, 7, -(2**63) + 1025]
    expected = policy.probabilities([1, 2, 3, -1], signed)
    assert expected.dtype == np.float32
    assert expected.sum() == pytest.approx(1.0, abs=1e-5)
    for ids in (
        [2**64 - 1, 7, 2**63 + 1025],
        np.array([2**64 - 1, 7, 2**63 + 1025], np.uint64),
        (-1, 7, 2**63 + 1025),
        ["0xffffffffffffffff", "7", "0x8000000000000401"],
    ):
        np.testing.assert_array_equal(policy.probabilities(np.array([1, 2, 3, -1]), ids), expected)


def test_act_draws_by_seed_and_turn_and_repeats_itself():
    policy = NetPolicy(net_with_logits([0.0] * 50))
    choices = [policy.act([0.0], range(50), seed=seed, turn=turn)[0] for seed in range(10) for turn in range(10)]
    assert len(set(choices)) > 30
    assert choices[37] == policy.act([0.0], range(50), seed=3, turn=7)[0]


def test_act_with_one_action():
    index, log_prob = NetPolicy(small_net()).act([0, 0, 0, 0], [2**63])
    assert (index, log_prob) == (0, 0.0)


@pytest.mark.parametrize("method", ["act", "probabilities"])
@pytest.mark.parametrize(
    ("state", "ids", "message"),
    [
        ([0, 0, 0], [1], "the state has the wrong width: got 3, expected 4"),
        ([0, 0, 0, 0, 0], [1], "the state has the wrong width: got 5, expected 4"),
        ([0, 0, 0, 0], [], "a list of legal actions is empty: got length 0, expected at least 1 (step 0 of 1)"),
        ([0, 0, 0, 0], [1.0, 2.0], "an action id is not an integer: got 1.0 (float)"),
        ([0, 0, 0, 0], np.array([1.5]), "an action id is not an integer: got "),
        ([0, 0, 0, 0], [2**64], "an action id does not fit 64 bits: got 18446744073709551616"),
        ([0, 0, 0, 0], ["seven"], "an action id is not an integer: got 'seven' (str)"),
    ],
)
def test_one_turn_that_is_wrong(method, state, ids, message):
    with pytest.raises(DataError) as caught:
        getattr(NetPolicy(small_net()), method)(state, ids)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# --- Game seeds


def test_game_seeds_never_repeat():
    streams = [derive_seeds(seed, purpose, 0, 100_000) for seed in (0, 1, 2, 2**62) for purpose in (1, 2)]
    seeds = np.concatenate(streams)
    assert seeds.dtype == np.int64
    assert seeds.min() >= 0
    assert len(np.unique(seeds)) == 800_000


def test_game_seeds_are_numbered():
    whole = derive_seeds(7, 1, 0, 1000)
    np.testing.assert_array_equal(derive_seeds(7, 1, 300, 5), whole[300:305])
    assert derive_seeds(7, 1, 0, 0).size == 0


def test_act_without_a_seed_draws_anew():
    policy = NetPolicy(net_with_logits([0.0] * 50))
    assert len({policy.act([0.0], range(50))[0] for _ in range(50)}) > 10
    greedy = NetPolicy(net_with_logits([0.0, 3.0, 1.0]), greedy=True)
    assert {greedy.act([0.0], range(3))[0] for _ in range(20)} == {1}


@pytest.mark.parametrize("method", ["act", "probabilities"])
@pytest.mark.parametrize("ids", [[5, 7, 5], [1, 1], [2**64 - 1, 3, -1]])
def test_a_list_that_names_an_action_twice_is_refused(method, ids):
    with pytest.raises(DataError, match=r"names an action twice: got .*\. Name each once, as list\(dict\.fromkeys"):
        getattr(NetPolicy(small_net()), method)([0, 0, 0, 0], ids)


# --- What a policy keeps


def test_what_is_kept_is_bounded_and_choices_stay_the_same():
    policy, net = NetPolicy(small_net()), small_net()
    policy.most_rows = 100
    for seed in range(60):  # about 50 new ids each
        turns = some_turns(10, seed=seed)
        index_B, log_prob_B = policy.choose(turns)
        expected_B, expected_log_prob_B = NetPolicy(net).choose(turns)
        assert np.array_equal(index_B, expected_B)
        np.testing.assert_allclose(log_prob_B, expected_log_prob_B, atol=ROUNDING)
        assert len(policy._known_id_R) <= 100
        assert len(policy._half_RH) <= 100


def test_more_ids_in_one_call_than_are_kept_are_scored_all_the_same():
    policy = NetPolicy(small_net())
    policy.most_rows = 3
    turns = some_turns(20)
    for _ in range(2):
        np.testing.assert_allclose(policy.log_probs(turns), NetPolicy(small_net()).log_probs(turns), atol=ROUNDING)


def test_what_is_kept_is_computed_once_for_each_id(monkeypatch):
    policy, computed = NetPolicy(small_net()), []
    real = policy.net.pair_action
    monkeypatch.setattr(policy.net, "pair_action", lambda encoded: computed.append(len(encoded)) or real(encoded))
    turns = same_list([0.0] * 30, 5)
    wide = Turns(np.zeros((5, 4), np.float32), *(getattr(turns, name) for name in
                 ("count_B", "action_id_A", "seed_B", "turn_B")))  # fmt: skip
    for _ in range(3):
        policy.choose(wide)
    assert computed == [30]


def test_halves_are_kept_in_the_precision_in_which_they_are_used():
    net = small_net().to(torch.bfloat16)
    policy = NetPolicy(net)
    half = net.pair_action(net.encode_ids(torch.tensor([3])))
    policy.log_probs(some_turns(3))
    assert policy._half_RH.dtype == half.dtype


def test_a_policy_plays_the_weights_that_its_network_had():
    net, turns = small_net(), some_turns(40)
    policy = NetPolicy(net)
    policy.log_probs(pick(turns, range(20)))  # half of the ids are known before the weights move
    expected = NetPolicy(small_net()).log_probs(turns)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    np.testing.assert_allclose(policy.log_probs(turns), expected, atol=ROUNDING)
    assert net.pair_weight.requires_grad  # the network itself goes on training


def test_a_layer_that_draws_lots_in_training_does_not_while_acting():
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5))
    net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=16), state_encoder=encoder)
    policy, turns = NetPolicy(net), some_turns(5)
    assert np.array_equal(policy.log_probs(turns), policy.log_probs(turns))
    assert net.training
