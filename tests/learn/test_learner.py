"""PPO's update as a whole: what it is trained towards, each step of it, and what stops it."""

import io
import json
import math
import pickle
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import oracle
from movelist.core.action_ids import to_text
from movelist.core.errors import DataError, NonFiniteError, SettingsError
from movelist.core.settings import PlaySettings, UpdateSettings
from movelist.data.episode import HUMAN, LARGEST, OTHER, POLICY
from movelist.learn import batch as batch_module
from movelist.learn import learner as learner_module
from movelist.learn.batch import evaluation_parts, plan_batches
from movelist.learn.learner import Learner
from movelist.learn.loss import LOSS_NAMES, imitation_loss, ppo_loss
from movelist.learn.model import ModelShape, PolicyValueNet, StateEncoder
from movelist.learn.parallel import World
from movelist.play.policy import NetPolicy, Turns
from movelist.play.selfplay import SelfPlay
from oracle import Sample, Step

CPU = torch.device("cpu")
NO_LIMIT = 1e9  # a gradient norm that nothing reaches, so that gradients stay as they are


def make_learner(encoder="bits", *, seed=0, hidden_dim=16, state_encoder=None, dtype=torch.float32, **settings):
    torch.manual_seed(seed)
    shape = ModelShape(
        state_size=5, hidden_dim=hidden_dim, action_encoder=encoder, num_actions=500 if encoder == "table" else 0
    )
    net = oracle.grown(PolicyValueNet(shape, state_encoder=state_encoder), seed).to(dtype)
    return Learner(net, UpdateSettings(**settings), World(CPU), seed=seed)


def make_games(seed=0, *, num_games=4, num_steps=6, longest=12, **options):
    """Random games without forced turns."""
    games = oracle.random_games(seed, num_games=num_games, num_steps=num_steps, longest=longest, **options)
    return [[step if len(step.actions) > 1 else replace(step, actions=[1, 2]) for step in game] for game in games]


def recorded(games, net, noise=0.0, seed=0):
    """The games with log-probs by the network; `noise` moves them, as an older policy's would be."""
    w, rng = oracle.weights(net), np.random.default_rng(seed)

    def log_prob(step):
        scores = oracle.logits(w, step.state, [oracle.signed(action_id) for action_id in step.actions])
        return min(0.0, oracle.log_probs(scores)[step.chosen].item() + noise * rng.normal())

    return [[replace(step, log_prob=log_prob(step)) for step in game] for game in games]


def prepare(learner, games, **changes):
    return learner.prepare(oracle.columns(games, num_players=2, **changes).check())


def samples_of(games, prepared):
    """The steps with what they are trained towards, one by one."""
    columns = zip(*(prepared.targets[name].tolist() for name in learner_module.STANDARD_TARGETS), strict=True)
    return [Sample(step, *row) for step, row in zip([s for game in games for s in game], columns, strict=True)]


def fix_plan(monkeypatch, *minibatches):
    """Let every epoch consist of these minibatches, each a list of batches, each a list of step numbers."""
    plan = [[np.array(batch) for batch in minibatch] for minibatch in minibatches]
    monkeypatch.setattr(learner_module, "plan_minibatches", lambda *args, **kwargs: iter(plan))


def one_gradient(learner, prepared):
    """An update of one optimiser step without learning; its gradients and metrics."""
    metrics = learner.update(prepared, lr=0.0)
    assert metrics["perf/minibatches"] == 1
    return {name: p.grad.clone() for name, p in learner.net.named_parameters()}, metrics


def all_bytes(learner):
    return {name: tensor.numpy().tobytes() for name, tensor in learner.net.state_dict().items()}


def close(got, expected, tolerance):
    """Equal to `tolerance` of the largest entry."""
    return bool((got.double() - expected).abs().max() <= tolerance * expected.abs().max())


# --- prepare: against the truth


def check_targets(prepared, games, advantages, values, log_probs):
    wanted = {
        "advantage": advantages,
        "old_value": values,
        "return": [a + v for a, v in zip(advantages, values, strict=True)],
        "old_log_prob": log_probs,
    }
    for name, column in wanted.items():
        assert prepared.targets[name].dtype == np.float32
        # float32 on one side; the values went through it.
        assert prepared.targets[name].tolist() == pytest.approx(column, rel=1e-4, abs=2e-5), name


def by_hand(learner, games, *, scale=1.0, moved=0.0, finals=None, **settings):
    """Values and advantages of the games, one player at a time."""
    w = oracle.weights(learner.net)
    values = [[oracle.value(w, step.state).item() + moved for step in game] for game in games]
    advantages = []
    for number, (game, row) in enumerate(zip(games, values, strict=True)):
        rewards, players = [step.reward / scale for step in game], [step.player for step in game]
        final = finals and finals[number]
        advantages += oracle.gae(rewards, row, players, settings["gamma"], settings["gae_lambda"], final)
    return advantages, [v for row in values for v in row]


def test_targets_equal_one_player_at_a_time():
    settings = {"gamma": 0.9, "gae_lambda": 0.8}
    learner = make_learner(**settings, scale_returns=False, normalize_advantage=False)
    games = recorded(make_games(1), learner.net, noise=0.1)
    prepared = prepare(learner, games)
    log_probs = [step.log_prob for game in games for step in game]
    check_targets(prepared, games, *by_hand(learner, games, **settings), log_probs)
    assert prepared.metrics["losses/return_scale"] == 1.0


def raw_returns(games, gamma):
    """The discounted sum of each player's rewards from each step on."""
    return [
        number
        for game in games
        for number in oracle.gae([s.reward for s in game], [0.0] * len(game), [s.player for s in game], gamma, 1.0)
    ]


def test_returns_are_divided_by_the_deviation_of_all_so_far():
    """Two rollouts: the second is scaled by the deviation over both, as numpy sees it."""
    settings = {"gamma": 0.9, "gae_lambda": 0.8}
    learner = make_learner(**settings, normalize_advantage=False)
    seen = []
    for seed, size in ((1, 1.0), (2, 50.0)):
        games = recorded(make_games(seed), learner.net)
        games = [[replace(step, reward=size * step.reward + 3) for step in game] for game in games]
        seen += raw_returns(games, 0.9)
        prepared = prepare(learner, games)
        scale = float(np.std(seen))
        assert prepared.metrics["losses/return_scale"] == pytest.approx(scale, rel=1e-9)
        log_probs = [step.log_prob for game in games for step in game]
        moved = begin_of(prepared) - learner.returns.centre / learner.returns.scale  # these returns lie far from 0
        check_targets(prepared, games, *by_hand(learner, games, scale=scale, moved=moved, **settings), log_probs)
        learner.update(prepared, lr=0.0)


def test_preparing_twice_is_preparing_once():
    """The profiler prepares what it has prepared before; nothing of a training may hang on it."""
    once, twice = (make_learner(batch_size=8, epochs_per_update=2) for _ in range(2))
    for seed in range(3):
        games = make_games(seed)
        games = [[replace(step, reward=100.0 + (seed + 1) * step.reward) for step in game] for game in games]
        before = pickle.dumps(twice.state_dict())
        prepare(twice, games)
        assert pickle.dumps(twice.state_dict()) == before
        ours, theirs = prepare(once, games), prepare(twice, games)
        assert ours.metrics == theirs.metrics
        assert once.update(ours) == twice.update(theirs)
        assert all_bytes(once) == all_bytes(twice)
        assert vars(once.returns) == vars(twice.returns)


def test_a_rollout_is_counted_once_however_often_its_update_is_made():
    learner = make_learner()
    games = [[replace(step, reward=step.reward + 100.0) for step in game] for game in make_games()]
    prepared = prepare(learner, games)
    for _ in range(3):
        learner.update(prepared, lr=0.0)
    assert learner.returns.count == 24
    assert learner.net.critic.bias.item() == pytest.approx(begin_of(prepared), abs=1.0)


# --- prepare: an offset of the returns, and absurd ones


def end_pays(games, offset):
    """Each player's last step of each game pays so much more, as where final scores stand in place of gains."""
    paid = []
    for game in games:
        last = {step.player: number for number, step in enumerate(game)}
        paid.append(
            [replace(s, reward=s.reward + offset * (last[s.player] == number)) for number, s in enumerate(game)]
        )
    return paid


def begin_of(prepared):
    """Where the values of a new network are to begin, in scaled units."""
    return prepared.returns.centre / prepared.metrics["losses/return_scale"]


def zero_value(learner):
    """Let the critic say 0 of everything, as a new one nearly does."""
    with torch.no_grad():
        for parameter in learner.net.critic.parameters():
            parameter.zero_()
    return learner


@pytest.mark.parametrize("offset", [-300.0, 100.0, 5000.0])
def test_an_offset_of_the_returns_leaves_the_advantages_as_they_are(offset):
    """The values begin at the returns' mean; what is learnt from is the distance to it."""
    games = recorded(make_games(num_games=16), make_learner().net)
    plain = zero_value(make_learner())
    raw = raw_returns(games, 1.0)
    centred = end_pays(games, -float(np.mean(raw)))  # so that the plain learner's values begin at the mean, too
    moved = zero_value(make_learner())
    expected, got = prepare(plain, centred), prepare(moved, end_pays(games, offset))
    assert begin_of(expected) == 0.0
    scale = float(np.std(raw))
    assert got.metrics["losses/return_scale"] == pytest.approx(scale)
    assert begin_of(got) == pytest.approx((offset + np.mean(raw)) / scale)
    assert got.targets["advantage"] == pytest.approx(expected.targets["advantage"], abs=1e-5)
    assert got.targets["old_value"] == pytest.approx(begin_of(got))
    before = moved.net.critic.bias.item()
    moved.update(got, lr=0.0)
    # The network says what the targets were made with, and what it says means what it always means.
    assert moved.net.critic.bias.item() - before == pytest.approx(begin_of(got))
    assert prepare(moved, end_pays(games, offset)).targets["old_value"] == pytest.approx(got.targets["old_value"])
    (notice,) = moved.take_notices()
    assert notice == (
        "The returns lie far from 0 for how little they differ, as where final scores stand in place of gains: the "
        f"values begin at their mean of {got.returns.centre:.4g}, and it learns the same."
    )
    assert moved.take_notices() == []


def test_a_truncated_game_goes_on_from_values_that_know_of_the_offset():
    games = end_pays(recorded(make_games(num_games=8), make_learner().net), 100.0)
    games[3] = recorded(make_games(num_games=8), make_learner().net)[3]  # broken off before the end paid
    truncated = {"truncated_E": np.arange(8) == 3, "final_state_EPS": np.zeros((8, 2, 5), np.float32)}
    learner = zero_value(make_learner(normalize_advantage=False, gae_lambda=1.0))
    prepared = prepare(learner, games, **truncated)
    scale = prepared.metrics["losses/return_scale"]
    broken = prepared.targets["return"][18:24]  # six steps a game
    expected = np.array(raw_returns([games[3]], 1.0)) / scale + begin_of(prepared)
    assert broken == pytest.approx(expected, rel=1e-4, abs=1e-4)
    ended = np.delete(raw_returns(games, 1.0), np.arange(18, 24))
    assert begin_of(prepared) == pytest.approx(ended.mean() / scale, rel=1e-6)


def test_an_offset_follows_the_scale_of_returns():
    """A scale twice as large makes of 100 deviations 50; the critic need not learn that."""
    learner = zero_value(make_learner())
    games = make_games(num_games=16)
    learner.update(prepare(learner, end_pays(games, 100.0)), lr=0.0)
    wider = end_pays([[replace(step, reward=5.0 * step.reward) for step in game] for game in games], 100.0)
    prepared = prepare(learner, wider)
    scale = prepared.metrics["losses/return_scale"]
    assert scale > 2 * learner.returns.scale
    assert scale * prepared.targets["old_value"] == pytest.approx(learner.returns.centre, rel=1e-5)
    learner.update(prepared, lr=0.0)
    assert scale * learner.net.critic.bias.item() == pytest.approx(learner.returns.centre, rel=1e-5)


def test_the_state_of_an_older_version_has_no_offset():
    learner = make_learner()
    learner.update(prepare(learner, make_games()))
    state = learner.state_dict()
    del state["returns"]["centre"]
    older = make_learner()
    older.load_state_dict(state)
    assert vars(older.returns) == vars(learner.returns)


def test_values_begin_elsewhere_only_in_a_first_update_far_from_0():
    games = make_games(num_games=16)
    near, late, constant, known = (zero_value(make_learner()) for _ in range(4))
    assert begin_of(prepare(near, games)) == 0.0
    late.update(prepare(late, games), lr=0.0)
    assert begin_of(prepare(late, end_pays(games, 100.0))) == 0.0
    assert begin_of(prepare(constant, end_pays([[replace(s, reward=0.0) for s in g] for g in games], 7.0))) == 0.0
    with torch.no_grad():  # a network that was trained before
        known.net.critic.bias.fill_(begin_of(prepare(known, end_pays(games, 100.0))))
    assert begin_of(prepare(known, end_pays(games, 100.0))) == 0.0
    assert all(learner.take_notices() == [] for learner in (near, late, constant, known))


def test_a_critic_of_ones_own_without_a_bias_to_set_stays_as_it_is():
    learner = make_learner()
    learner.net.critic = torch.nn.Linear(16, 1, bias=False)
    assert begin_of(prepare(learner, end_pays(make_games(), 100.0))) == 0.0


def many_games(**changes):
    games = make_games(num_games=60)
    games[7][-1] = replace(games[7][-1], **changes)
    return games


def test_one_absurd_return_does_not_own_the_scale_for_good():
    usual, absurd = make_learner(), make_learner()
    prepared = prepare(usual, many_games()), prepare(absurd, many_games(reward=1e6))
    usual_scale, scale = (each.metrics["losses/return_scale"] for each in prepared)
    assert usual_scale < scale < 25 * usual_scale  # with it whole, over 10,000 times
    absurd.update(prepared[1], lr=0.0)
    for seed in range(20):
        absurd.update(prepare(absurd, make_games(seed, num_games=60)), lr=0.0)
    assert absurd.returns.scale < 6 * usual_scale
    assert absurd.take_notices() == [
        "Warning: a return of 1e+06 lies more than 100 times as far out as nearly all others. It is learnt from, but "
        "hardly moves the scale of returns. If no game can pay that, look for the fault; this is said once."
    ]
    absurd.update(prepare(absurd, many_games(reward=-1e6)), lr=0.0)
    assert absurd.take_notices() == []


@pytest.mark.parametrize(
    ("unit", "reward", "settings"),
    [(1e-9, 1e9, {}), (1e-12, -1e9, {}), (1.0, 1.5 * LARGEST, {"scale_returns": False})],
)
def test_a_return_beyond_reason_is_refused_by_its_place(unit, reward, settings):
    """What the rules of episodes let pass may be too much for the unit in which a game pays."""
    learner = make_learner(**settings)
    games = [[replace(step, reward=unit * step.reward) for step in game] for game in many_games()]
    games[7][-1] = replace(games[7][-1], reward=reward)
    with pytest.raises(DataError) as caught:
        prepare(learner, games, return_EP=np.zeros((60, 2)))
    first = min(number for number, step in enumerate(games[7]) if step.player == games[7][-1].player)
    text = str(caught.value)
    limit = float(re.match(r"a return is beyond reason: got \S+, expected -(\S+) to ", text)[1])
    largest_scale = 1.0 if settings else 30 * unit  # the outlier itself is pulled in
    assert 0.1 * unit * LARGEST < limit < 1.05 * largest_scale * LARGEST
    assert text.startswith(f"a return is beyond reason: got {reward:g}, expected -")
    assert text.endswith(
        f" (before update 1, the rollout's episode 7, step {first}). Correct what this game pays, "
        "or let it pay in other units; nothing was learnt "
        "from this rollout."
    )
    assert learner.returns.count == 0


def test_the_largest_rewards_of_all_games_can_be_trained_on():
    """What each number may be at most is small enough for every sum of it, and for its square in float32."""
    games = [[replace(s, reward=LARGEST * float(np.sign(s.reward))) for s in game] for game in make_games(num_games=60)]
    learner = make_learner()
    prepared = prepare(learner, games, return_EP=np.full((60, 2), LARGEST))
    assert math.isfinite(learner.update(prepared)["losses/value_loss"])


@pytest.mark.parametrize("unit", [1e-12, 1e-9, 1e9])
def test_the_unit_of_the_returns_does_not_matter(unit):
    games = make_games(num_games=16)
    plain, other = (
        prepare(make_learner(), [[replace(s, reward=u * s.reward) for s in g] for g in games]).targets
        for u in (1.0, unit)
    )
    for name, column in plain.items():
        assert other[name] == pytest.approx(column, rel=1e-5, abs=1e-6, nan_ok=True), name


def test_advantages_are_normalised_over_the_rollout():
    learner = make_learner()
    games = recorded(make_games(1), learner.net)
    prepared = prepare(learner, games)
    scale = prepared.metrics["losses/return_scale"]
    advantages, _ = by_hand(learner, games, scale=scale, gamma=1.0, gae_lambda=0.95)
    expected = (np.array(advantages) - np.mean(advantages)) / np.std(advantages)
    assert prepared.targets["advantage"].tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)


def test_a_truncated_episode_goes_on_from_its_final_states():
    """Each player from their own view of where it stopped; the other episodes have ended, whatever stands there."""
    settings = {"gamma": 0.9, "gae_lambda": 0.8}
    learner = make_learner(**settings, scale_returns=False, normalize_advantage=False)
    games = recorded(make_games(3, num_games=3), learner.net)
    final_state_EPS = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    prepared = prepare(learner, games, truncated_E=np.array([False, True, False]), final_state_EPS=final_state_EPS)
    w = oracle.weights(learner.net)
    final = {seat: oracle.value(w, final_state_EPS[1, seat].tolist()).item() for seat in range(2)}
    nothing = {0: 0.0, 1: 0.0}
    log_probs = [step.log_prob for game in games for step in game]
    expected = by_hand(learner, games, finals=[nothing, final, nothing], **settings)
    check_targets(prepared, games, *expected, log_probs)
    assert max(abs(v) for v in final.values()) > 0.01


def test_missing_log_probs_are_those_of_the_present_policy():
    learner = make_learner()
    games = recorded(make_games(4, longest=400, hard=True), learner.net)
    unrecorded = [[replace(step, log_prob=math.nan) for step in game] for game in games]
    known = prepare(learner, games).targets["old_log_prob"]
    assert np.abs(prepare(learner, unrecorded).targets["old_log_prob"] - known).max() <= 1e-5


def test_values_and_missing_log_probs_come_from_one_pass():
    learner = make_learner()
    seen = []
    learner.net.state_encoder.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    prepared = prepare(learner, make_games())
    assert sum(seen) == prepared.rollout.num_steps


def test_recorded_log_probs_are_kept_beside_missing_ones():
    """A foreign recording's log-probs are what its own policy said, however unlikely here."""
    learner = make_learner()
    games = recorded(make_games(5), learner.net)
    steps = [step for game in games for step in game]
    mixed = [replace(step, log_prob=-7.5 if i % 2 else math.nan) for i, step in enumerate(steps)]
    old_log_prob = prepare(learner, [mixed]).targets["old_log_prob"]
    assert old_log_prob[1::2].tolist() == [-7.5] * 12
    assert old_log_prob[::2].tolist() == pytest.approx([step.log_prob for step in steps[::2]], abs=1e-5)


def test_seats_of_others_are_not_learned_from_but_their_effect_stays():
    learner = make_learner(scale_returns=False, normalize_advantage=False)
    games = recorded(make_games(6, num_games=2), learner.net)
    controllers = [[POLICY, HUMAN], [OTHER, POLICY]]
    prepared = prepare(learner, games, controller_EP=np.array(controllers, np.int8))
    mine = [[s for s in game if row[s.player] == POLICY] for game, row in zip(games, controllers, strict=True)]
    assert 0 < prepared.rollout.num_steps == sum(map(len, mine)) < 12
    # A step's reward holds what others' turns earned its mover; it is that of the whole game.
    expected = by_hand(learner, mine, gamma=1.0, gae_lambda=0.95)
    check_targets(prepared, mine, *expected, [step.log_prob for game in mine for step in game])
    everyone = prepare(learner, games).targets["advantage"]
    kept = [row[s.player] == POLICY for game, row in zip(games, controllers, strict=True) for s in game]
    assert prepared.targets["advantage"].tolist() == pytest.approx(everyone[kept].tolist(), abs=1e-5)


def test_preparing_changes_no_weight_and_keeps_no_gradient():
    learner = make_learner()
    before = all_bytes(learner)
    prepared = prepare(learner, make_games())
    assert all_bytes(learner) == before
    assert all(p.grad is None for p in learner.net.parameters())
    assert not prepared.rollout.encoded_R.requires_grad


def test_evaluation_is_cut_by_steps_and_actions(monkeypatch):
    """Cut finely, the numbers are the same up to rounding; a list longer than a batch is one by itself."""
    learner = make_learner()
    games = make_games(7, longest=30)
    whole = prepare(learner, games).targets
    monkeypatch.setattr(batch_module, "EVALUATION_STEPS", 5)
    monkeypatch.setattr(batch_module, "EVALUATION_ACTIONS", 20)
    cut = prepare(make_learner(), games).targets
    for name, column in whole.items():
        assert cut[name].tolist() == pytest.approx(column.tolist(), rel=1e-4, abs=1e-5), name
    counts = np.array([3, 3, 3, 25, 10, 10, 1, 1, 1, 1, 1, 1])
    assert [part.tolist() for part in evaluation_parts(counts)] == [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9, 10], [11]]
    assert evaluation_parts(np.zeros(0, int)) == []


def test_explained_variance_of_constant_returns_is_0_and_valid_json():
    learner = make_learner(gae_lambda=1.0)
    games = [[Step([float(i)] * 5, [1, 2], 0, reward=4.0)] for i in range(5)]
    prepared = prepare(learner, games)
    metrics = {**prepared.metrics, **learner.update(prepared)}
    assert prepared.metrics == {"losses/explained_variance": 0.0, "losses/return_scale": 1.0}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_explained_variance_is_0_where_nothing_was_paid():
    """What varies in the returns then are the network's own values."""
    learner = make_learner(gae_lambda=0.9)
    steps = [[Step([float(i + n)] * 5, [1, 2], 0, reward=0.0) for n in range(4)] for i in range(5)]
    assert prepare(learner, steps).metrics["losses/explained_variance"] == 0.0


def test_an_id_outside_the_table_is_refused_before_anything_is_computed():
    learner = make_learner("table")
    with pytest.raises(DataError, match=r"^an action id has no row in the table: got 500 \(0x00000000000001f4\)"):
        prepare(learner, [[Step([0.0] * 5, [1, 500], 0)]])
    assert learner.returns.count == 0


def test_a_value_that_is_no_number_is_refused_by_its_place():
    learner = make_learner()
    with torch.no_grad():
        [*learner.net.critic.parameters()][-1].fill_(math.nan)
    with pytest.raises(NonFiniteError) as caught:
        prepare(learner, make_games())
    assert str(caught.value) == (
        "the value is not a finite number: got nan (before update 1, episode 0, step 0). "
        "The weights were not changed; try a lower --lr from the last checkpoint."
    )
    assert learner.returns.count == 0  # the scale has not seen this rollout either


def test_a_log_prob_that_is_no_number_is_refused_by_its_place():
    learner = make_learner("table")
    games = make_games(8, num_games=3)
    bad = games[1][2]
    with torch.no_grad():
        learner.net.action_encoder.first.weight[bad.actions[0]] = math.inf
    first = min(i for i, step in enumerate(games[1]) if bad.actions[0] in step.actions)
    assert all(bad.actions[0] not in step.actions for step in games[0])
    with pytest.raises(NonFiniteError) as caught:
        prepare(learner, games)
    assert str(caught.value) == (
        f"the log-prob of the chosen action is not a finite number: got nan (before update 1, episode 1, step {first})"
        ". The weights were not changed; try a lower --lr from the last checkpoint."
    )


def test_a_final_value_that_is_no_number_is_refused_by_its_place():
    learner = make_learner()
    final_state_EPS = np.zeros((4, 2, 5), np.float32)
    final_state_EPS[2, 1] = 3e38  # a finite state, and an infinite value
    with pytest.raises(NonFiniteError, match=r"^the value of a final state is not a finite number") as caught:
        prepare(learner, make_games(), truncated_E=np.array([True] * 4), final_state_EPS=final_state_EPS)
    assert "episode 2" in str(caught.value)
    assert "player 1" in str(caught.value)


# --- update: against the truth


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize("encoder", ["bits", "table"])
@pytest.mark.parametrize("clip_range_vf", [None, 0.05])
def test_losses_and_gradients_equal_one_sample_at_a_time(encoder, clip_range_vf, dtype, tolerance):
    """Lists of 2 to 400, ids shared between steps, half of the ratios clipped.

    float32 keeps 24 bits; sums over lists and steps lose some. In float64 the share of a step, 1 / 24, is still a
    float32. Gradients relative to each tensor's largest entry.
    """
    coefficients = {"clip_range": 0.2, "clip_range_vf": clip_range_vf, "ent_coef": 0.02, "vf_coef": 0.7}
    learner = make_learner(encoder, dtype=dtype, epochs_per_update=1, max_grad_norm=NO_LIMIT, **coefficients)
    games = make_games(9, longest=400, hard=encoder == "bits")
    games = recorded(games, learner.net, noise=0.3)
    prepared = prepare(learner, games)
    # As if the value had moved since: otherwise its clipping has nothing to do.
    prepared.targets["old_value"][::2] += 0.2
    got, metrics = one_gradient(learner, prepared)
    losses, expected = oracle.ppo(oracle.weights(learner.net), samples_of(games, prepared), **coefficients)
    for name, loss in losses.items():
        assert metrics[f"losses/{name}"] == pytest.approx(loss, rel=tolerance, abs=tolerance), name
    assert 0.2 < losses["clip_fraction"] < 0.8
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in expected.values()))
    assert metrics["losses/grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, gradient in expected.items():
        assert close(got[name], gradient, tolerance), name


def test_an_optimiser_step_is_adams_on_the_clipped_gradient():
    learner = make_learner(epochs_per_update=1, max_grad_norm=0.05)
    games = recorded(make_games(10), learner.net)
    prepared = prepare(learner, games)
    free = make_learner(epochs_per_update=1, max_grad_norm=NO_LIMIT)
    gradient, metrics = one_gradient(free, prepared)
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    assert norm > 0.1
    assert metrics["losses/grad_norm"] == pytest.approx(norm, rel=1e-5)

    reference = {name: p.detach().clone().requires_grad_() for name, p in free.net.named_parameters()}
    for name, parameter in reference.items():
        parameter.grad = gradient[name] * (0.05 / norm)
    torch.optim.Adam(reference.values(), lr=0.003, eps=1e-5).step()
    learner.update(prepared, lr=0.003)
    for name, parameter in learner.net.named_parameters():
        # A step is at most lr long; where a gradient is near Adam's eps, rounding shows in its third digit.
        assert (parameter - reference[name]).abs().max() <= 0.003 * 0.01, name


def test_a_short_gradient_is_not_made_longer():
    learner = make_learner(epochs_per_update=1, max_grad_norm=0.05)
    games = recorded(make_games(10), learner.net)
    prepared = prepare(learner, games)
    free, _ = one_gradient(make_learner(epochs_per_update=1, max_grad_norm=NO_LIMIT), prepared)
    wide, _ = one_gradient(make_learner(epochs_per_update=1, max_grad_norm=100.0), prepared)
    assert all(torch.equal(wide[name], free[name]) for name in free)


# --- Cutting into batches changes nothing


def gradient_of_plan(monkeypatch, games, *minibatch, **settings):
    """The gradient and losses of one optimiser step over these batches of steps."""
    learner = make_learner(epochs_per_update=1, max_grad_norm=NO_LIMIT, **settings)
    fix_plan(monkeypatch, minibatch)
    return one_gradient(learner, prepare(learner, games))


def sixty_four_steps():
    return recorded(make_games(11, num_games=8, num_steps=8, longest=60), make_learner().net, noise=0.3)


@pytest.mark.parametrize("sizes", [[16] * 4, [1, 40, 23], [1] * 64])
def test_one_batch_equals_many_small_ones(monkeypatch, sizes):
    """The same 64 steps: sums over the whole minibatch, never a mean of means."""
    games = sixty_four_steps()
    expected, metrics = gradient_of_plan(monkeypatch, games, range(64))
    edges = np.cumsum([0, *sizes])
    batches = [range(a, b) for a, b in pairwise(edges)]
    got, cut_metrics = gradient_of_plan(monkeypatch, games, *batches)
    for name, gradient in expected.items():
        assert close(got[name], gradient.double(), 1e-6), name
    for name in ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"):
        # A loss is a small difference of larger parts, which are themselves exact to 1e-6.
        assert cut_metrics[f"losses/{name}"] == pytest.approx(metrics[f"losses/{name}"], rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 16, "gradient_accumulation_steps": 4},
        {"batch_size": 8, "gradient_accumulation_steps": 8},
        {"batch_size": 64, "max_actions_per_minibatch": 300},
        {"batch_size": 64, "max_actions_per_minibatch": 1},
    ],
)
def test_accumulation_and_smaller_batches_equal_one_large_batch(settings):
    games = sixty_four_steps()
    results = []
    for options in ({"batch_size": 64}, settings):
        learner = make_learner(epochs_per_update=1, max_grad_norm=NO_LIMIT, **options)
        results.append(one_gradient(learner, prepare(learner, games)))
    (expected, metrics), (got, cut_metrics) = results
    for name, gradient in expected.items():
        assert close(got[name], gradient.double(), 1e-6), name
    assert cut_metrics["losses/loss"] == pytest.approx(metrics["losses/loss"], abs=1e-6)


def test_logged_losses_are_means_over_steps(monkeypatch):
    """Two minibatches of 3 steps and 1, without learning: what is logged is the mean over all 4."""
    games = recorded(make_games(12, num_games=1, num_steps=4), make_learner().net, noise=0.3)
    learner = make_learner(epochs_per_update=1)
    prepared = prepare(learner, games)
    fix_plan(monkeypatch, [range(3)], [[3]])
    metrics = learner.update(prepared, lr=0.0)
    samples = samples_of(games, prepared)
    coefficients = {"clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.01, "vf_coef": 0.5}
    w = oracle.weights(learner.net)
    together, parts = (
        oracle.ppo(w, samples, **coefficients)[0],
        [oracle.ppo(w, part, **coefficients)[0] for part in (samples[:3], samples[3:])],
    )
    assert metrics["losses/loss"] == pytest.approx(together["loss"], rel=1e-5, abs=1e-6)
    assert abs(metrics["losses/loss"] - (parts[0]["loss"] + parts[1]["loss"]) / 2) > 0.01
    assert metrics["perf/minibatches"] == 2


@pytest.mark.parametrize(("num_steps", "sizes"), [(65, [33, 32]), (1, [1]), (64, [64]), (129, [43, 43, 43])])
def test_remainders_are_spread_and_everything_stays_finite(monkeypatch, num_steps, sizes):
    seen = []

    def spy(rollout, parts, columns, **options):
        seen.extend(len(part) for part in parts)
        return plan_batches(rollout, parts, columns, **options)

    learner = make_learner(batch_size=64, epochs_per_update=1)
    prepared = prepare(learner, make_games(13, num_games=1, num_steps=num_steps))
    monkeypatch.setattr(learner_module, "plan_batches", spy)
    metrics = learner.update(prepared)
    assert seen == sizes
    assert all(math.isfinite(number) for number in metrics.values())
    assert all(p.isfinite().all() for p in learner.net.parameters())


def test_equal_advantages_move_the_policy_nowhere():
    """Four equal advantages are normalised to 0, not to NaN."""
    learner = make_learner(ent_coef=0.0, vf_coef=0.0, gae_lambda=1.0, scale_returns=False)
    with torch.no_grad():
        for parameter in learner.net.critic.parameters():
            parameter.zero_()
    prepared = prepare(learner, [[Step([float(i)] * 5, [1, 2], 0, reward=3.0)] for i in range(4)])
    assert prepared.targets["advantage"].tolist() == [0.0] * 4
    before = all_bytes(learner)
    metrics = learner.update(prepared)
    assert all(math.isfinite(number) for number in metrics.values())
    assert all_bytes(learner) == before


@pytest.mark.parametrize("emptied", ["no steps", "no seat of the policy"])
def test_no_steps_are_no_update_and_no_error(emptied):
    learner = make_learner(target_kl=0.1)
    before = all_bytes(learner)
    if emptied == "no steps":
        prepared = prepare(learner, [[], []], state_NS=np.zeros((0, 5), np.float32))
    else:
        prepared = prepare(learner, make_games(), controller_EP=np.full((4, 2), HUMAN, np.int8))
    metrics = learner.update(prepared)
    assert json.dumps(metrics, allow_nan=False)
    assert metrics["perf/minibatches"] == 0
    assert all_bytes(learner) == before


# --- The ratio


def test_the_first_ratio_is_1():
    """Without learning, nothing moves: log-probs of the rollout's own evaluation against those of its minibatches."""
    learner = make_learner(epochs_per_update=1, batch_size=16)
    prepared = prepare(learner, make_games(14, num_games=8, longest=400, hard=True))
    metrics = learner.update(prepared, lr=0.0)
    assert metrics["losses/clip_fraction"] == 0
    # For a small log ratio x, approx_kl is x^2 / 2 plus float32's rounding of 1 + x, 6e-8.
    assert abs(metrics["losses/approx_kl"]) <= 1e-7
    assert metrics["losses/policy_loss"] == pytest.approx(-prepared.targets["advantage"].mean(), abs=1e-6)


def test_old_and_new_of_the_same_minibatch_agree_to_1e_6(monkeypatch):
    """Lists of 1 to 400; the evaluation and the one minibatch are the same batch here."""
    learner = make_learner(epochs_per_update=1, batch_size=4096, hidden_dim=64)
    games = oracle.random_games(15, num_games=8, num_steps=32, longest=400, hard=True)
    prepared = prepare(learner, games)
    fix_plan(monkeypatch, [range(256)])
    log_ratios = []
    original = learner_module.ppo_loss

    def spy(score_A, value_B, segments, chosen_B, targets, settings):
        log_prob_A = learner_module.ragged.log_softmax(score_A.detach(), segments)
        log_ratios.append(log_prob_A.index_select(0, chosen_B) - targets.old_log_prob_B)
        return original(score_A, value_B, segments, chosen_B, targets, settings)

    monkeypatch.setattr(learner, "loss", spy)
    learner.update(prepared, lr=0.0)
    (log_ratio_B,) = log_ratios
    assert log_ratio_B.shape == (256,)
    assert log_ratio_B.abs().max() <= 1e-6


def test_acting_one_by_one_and_learning_in_batches_agree_to_1e_4():
    """With logits as large as after long training, and lists of 1 to 400."""
    learner = make_learner(hidden_dim=64)
    with torch.no_grad():
        learner.net.pair_weight *= 3
    games = oracle.random_games(16, num_games=8, num_steps=32, longest=400, hard=True)
    learned = prepare(learner, games).targets["old_log_prob"]
    policy, worst, lowest = NetPolicy(learner.net), 0.0, 0.0
    for step, log_prob in zip([s for game in games for s in game], learned, strict=True):
        ids = np.array([oracle.signed(action_id) for action_id in step.actions])
        turn = Turns(
            np.array([step.state], np.float32), np.array([len(ids)]), ids, np.zeros(1, np.int64), np.zeros(1, np.int64)
        )
        acted = policy.log_probs(turn)
        worst, lowest = max(worst, abs(acted[step.chosen] - log_prob)), min(lowest, acted.min())
    assert lowest < -10  # logits have grown
    assert worst <= 1e-4


# --- Epochs, rates, stopping


def test_every_epoch_takes_every_step_once_in_an_order_of_its_own(monkeypatch):
    orders = []
    original = learner_module.plan_minibatches

    def spy(order_N, *args, **kwargs):
        orders.append(order_N.tolist())
        return original(order_N, *args, **kwargs)

    monkeypatch.setattr(learner_module, "plan_minibatches", spy)
    games = make_games()

    def two_updates(seed):
        learner = make_learner(epochs_per_update=3, batch_size=8, seed=seed)
        for _ in range(2):
            learner.update(prepare(learner, games))
        return [tuple(orders.pop(0)) for _ in range(6)]

    first, again, other = two_updates(1), two_updates(1), two_updates(2)
    assert all(sorted(order) == list(range(24)) for order in first)
    assert len({*first, *other}) == 12
    assert first == again


def test_target_kl_stops_after_the_epoch_that_moved_too_far():
    games = recorded(make_games(17), make_learner().net)

    def epochs(target_kl):
        learner = make_learner(epochs_per_update=6, batch_size=8, target_kl=target_kl)
        metrics = learner.update(prepare(learner, games), lr=0.01)
        return metrics["perf/epochs"], metrics["perf/minibatches"]

    assert epochs(None) == (6, 18)
    assert epochs(1e9) == (6, 18)
    stopped, minibatches = epochs(1e-3)
    assert 1 <= stopped < 6
    assert minibatches == 3 * stopped
    assert epochs(1e-12)[0] == 1


def test_target_kl_is_a_mean_over_the_steps_of_one_epoch(monkeypatch):
    """Every step is `kl` away from the recorded policy and nothing is learned: only a target below that stops."""
    games = recorded(make_games(18), make_learner().net)
    moved = [[replace(step, log_prob=step.log_prob - 0.5) for step in game] for game in games]
    kl = math.exp(0.5) - 1 - 0.5

    def epochs(target_kl):
        learner = make_learner(epochs_per_update=3, batch_size=8, target_kl=target_kl)
        metrics = learner.update(prepare(learner, moved), lr=0.0)
        assert metrics["losses/approx_kl"] == pytest.approx(kl, rel=1e-4)
        return metrics["perf/epochs"]

    assert epochs(0.9 * kl) == 1
    assert epochs(1.1 * kl) == 3


def test_target_kl_looks_at_the_last_epoch_alone(monkeypatch):
    """Epochs of mean KL 0, .3 and .6: a target of .2 stops after the second; the mean of all so far is .15 there."""
    original, calls = learner_module.ppo_loss, []

    def grows(score_A, value_B, segments, chosen_B, targets, settings):
        calls.append(None)
        terms = original(score_A, value_B, segments, chosen_B, targets, settings)
        return {**terms, "approx_kl": torch.tensor(0.3 * (len(calls) - 1) * segments.num_steps)}

    learner = make_learner(epochs_per_update=4, batch_size=24, target_kl=0.2)
    monkeypatch.setattr(learner, "loss", grows)
    assert learner.update(prepare(learner, make_games()))["perf/epochs"] == 2


def test_one_optimiser_steps_gradient_does_not_reach_the_next():
    """Two epochs without learning: the second gradient is the first one again, not twice as long."""
    games = make_games()
    gradients = []
    for epochs in (1, 2):
        learner = make_learner(epochs_per_update=epochs, batch_size=24, max_grad_norm=NO_LIMIT)
        learner.update(prepare(learner, games), lr=0.0)
        gradients.append({name: p.grad for name, p in learner.net.named_parameters()})
    for name, gradient in gradients[0].items():
        assert close(gradients[1][name], gradient.double(), 1e-6), name


def test_the_learning_rate_is_the_given_one_or_the_settings():
    learner = make_learner(lr=0.002, epochs_per_update=1)
    prepared = prepare(learner, make_games())
    before = all_bytes(learner)
    assert learner.update(prepared, lr=0.0)["charts/learning_rate"] == 0.0
    assert all_bytes(learner) == before
    assert learner.update(prepared, lr=0.1)["charts/learning_rate"] == 0.1
    assert learner.update(prepared)["charts/learning_rate"] == 0.002
    assert learner.num_updates == 3
    assert all_bytes(learner) != before


def test_metrics_are_named_numbers():
    learner = make_learner(epochs_per_update=2, batch_size=24)
    prepared = prepare(learner, make_games())
    metrics = learner.update(prepared)
    assert set(metrics) == {
        *(f"losses/{name}" for name in LOSS_NAMES),
        "losses/explained_variance",
        "losses/return_scale",
        "losses/grad_norm",
        "charts/learning_rate",
        "perf/minibatches",
        "perf/epochs",
        "perf/update_flops",
    }
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    rollout = prepared.rollout
    sizes = (rollout.num_steps, len(rollout.episodes.action_id_A), len(rollout.unique_id_R))
    assert metrics["perf/update_flops"] == 2 * learner.net.flops(*sizes)


def test_cached_memory_is_given_back_as_often_as_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(learner_module, "release_cached_memory", lambda device: calls.append(learner.num_updates))
    for every, expected in ((0, []), (2, [2, 4])):
        calls.clear()
        learner = make_learner(empty_cache_every=every, epochs_per_update=1)
        for _ in range(5):
            learner.update(prepare(learner, make_games()))
        assert calls == expected


class Waits(TorchFunctionMode):
    """Remembers the calls that make the host wait for a device."""

    NAMES = frozenset({"item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero", "unique"})

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in self.NAMES:
            self.calls.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_the_host_waits_once_to_prepare_once_to_update_and_once_an_epoch_for_target_kl():
    games = make_games()
    for target_kl, expected in ((None, ["tolist"]), (1e9, ["tolist"] * 4)):
        learner = make_learner(target_kl=target_kl, epochs_per_update=3, batch_size=8)
        episodes = oracle.columns(games, num_players=2)
        with Waits() as waits:
            prepared = learner.prepare(episodes)
        assert waits.calls == ["cpu"]
        with Waits() as waits:
            learner.update(prepared)
        assert waits.calls == expected


# --- Numbers that are none


def steps_with(action_id, games):
    return [number for number, step in enumerate(s for game in games for s in game) if action_id in step.actions]


def with_one_bad_action(num_ids=400):
    """Games in which id 499 stands in the list of step 3 of episode 2, and nowhere else."""
    games = make_games(19, num_games=4, num_steps=6, num_ids=num_ids)
    games[2][3] = replace(games[2][3], actions=[*games[2][3].actions, 499])
    assert steps_with(499, games) == [15]
    return recorded(games, make_learner("table").net)


def test_a_bad_row_of_the_table_stops_the_update_and_changes_no_weight(monkeypatch):
    """Minibatches: good, bad, good. What is left are the weights after the first one, to the byte."""
    games = with_one_bad_action()
    plan = [range(8)], [range(8, 12), range(12, 20)], [range(20, 24)]

    def start(*minibatches):
        learner = make_learner("table", epochs_per_update=1, lr=0.01)
        with torch.no_grad():
            learner.net.action_encoder.first.weight[499] = math.nan
        fix_plan(monkeypatch, *minibatches)
        return learner, prepare(learner, games)

    good, prepared = start(plan[0])
    good.update(prepared)
    learner, prepared = start(*plan)
    with pytest.raises(NonFiniteError) as caught:
        learner.update(prepared)
    assert str(caught.value) == (
        f"the logit of action {to_text(499)} is not a finite number: got nan "
        "(update 1, minibatch 2, episode 2, step 3). The weights were not changed by it; "
        "try a lower --lr or --max_grad_norm from the last checkpoint."
    )
    assert all_bytes(learner) == all_bytes(good)
    moments = [learner.optimizer.state_dict()["state"], good.optimizer.state_dict()["state"]]
    for mine, theirs in zip(moments[0].values(), moments[1].values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert learner.num_updates == 0


class Breakable(torch.nn.Module):
    """The usual state encoder, whose output is NaN for states that start with `bad`, once that is set."""

    def __init__(self):
        super().__init__()
        self.inner, self.bad = StateEncoder(5, 16), math.nan

    def forward(self, state_BS):
        hidden_BH = self.inner(state_BS)
        return torch.where(state_BS[:, :1] == self.bad, math.nan, hidden_BH)


@pytest.mark.parametrize("bad_step", [0, 9, 23])
def test_a_bad_state_stops_the_update_by_its_place(monkeypatch, bad_step):
    """Also where it is in a later epoch's last batch; the first action of its list is named."""
    encoder = Breakable()
    learner = make_learner(state_encoder=encoder, epochs_per_update=2)
    games = make_games(20, hard=True)
    prepared = prepare(learner, games)
    fix_plan(monkeypatch, [range(4), range(4, 12)], [range(12, 24)])
    encoder.bad = float(prepared.rollout.state_NS[bad_step, 0])
    before = all_bytes(learner)
    with pytest.raises(NonFiniteError) as caught:
        learner.update(prepared, lr=1e-7)
    step = games[bad_step // 6][bad_step % 6]
    minibatch = 1 if bad_step < 12 else 2
    assert str(caught.value).startswith(
        f"the logit of action {to_text(step.actions[0])} is not a finite number: got nan "
        f"(update 1, minibatch {minibatch}, episode {bad_step // 6}, step {bad_step % 6}). "
    )
    assert (all_bytes(learner) == before) is (minibatch == 1)
    assert all(p.isfinite().all() for p in learner.net.parameters())


def test_after_a_stop_the_same_learner_can_go_on():
    encoder = Breakable()
    learner = make_learner(state_encoder=encoder)
    prepared = prepare(learner, make_games())
    encoder.bad = float(prepared.rollout.state_NS[5, 0])
    before = all_bytes(learner)
    learner.settings = replace(learner.settings, batch_size=24)
    with pytest.raises(NonFiniteError, match=r"episode 0, step 5"):
        learner.update(prepared)
    assert all_bytes(learner) == before
    encoder.bad = math.nan
    assert math.isfinite(learner.update(prepared)["losses/loss"])
    assert all_bytes(learner) != before


class Value(torch.nn.Module):
    """A critic that answers with what it is told to."""

    def __init__(self):
        super().__init__()
        self.weight, self.answer = torch.nn.Parameter(torch.zeros(16)), 0.0

    def forward(self, hidden_BH):
        return (hidden_BH @ self.weight + self.answer).unsqueeze(-1)


def test_a_bad_value_is_named():
    learner = make_learner()
    learner.net.critic = critic = Value()
    prepared = prepare(learner, make_games())
    critic.answer = math.inf
    with pytest.raises(NonFiniteError, match=r"^the value is not a finite number: got inf \(update 1, minibatch 1, ep"):
        learner.update(prepared)


def test_a_loss_that_overflows_is_named_by_the_step_whose_ratio_did(monkeypatch):
    """A foreign recording says -300: ratio e^300 is infinite in float32, though all logits and values are finite."""
    learner = make_learner(epochs_per_update=1)
    games = recorded(make_games(21), learner.net)
    games[1][4] = replace(games[1][4], log_prob=-300.0)
    monkeypatch.setattr(learner.far_log_probs, "find", lambda episodes, *_, **__: np.zeros(episodes.num_steps, bool))
    learner.loss = lambda *args: {
        name: term + (args[0].index_select(0, args[3]) - args[4].old_log_prob_B).exp().sum()
        for name, term in ppo_loss(*args).items()
    }
    prepared = prepare(learner, games)
    fix_plan(monkeypatch, [range(6)], [range(6, 24)])
    with pytest.raises(NonFiniteError, match=r"\(update 1, minibatch 2, episode 1, step 4\)") as caught:
        learner.update(prepared)
    assert "write the natural logarithm of the probability" in str(caught.value)
    assert "--lr" not in str(caught.value)


@pytest.mark.parametrize("bad", [-95.0, -80.0, -45.0])
def test_a_log_prob_that_is_far_off_costs_its_step_and_is_told(bad):
    learner = make_learner()
    games = recorded(make_games(21), learner.net)
    own = games[1][4].log_prob
    games[1][4] = replace(games[1][4], log_prob=bad)
    prepared = prepare(learner, games)
    assert prepared.targets["old_log_prob"][10] == pytest.approx(own, abs=1e-4)
    assert np.flatnonzero(prepared.targets["advantage"] == 0).tolist() == [10]
    metrics = learner.update(prepared)
    assert metrics["data/far_log_probs"] == 1
    assert abs(metrics["losses/policy_loss"]) < 10
    assert all(math.isfinite(number) for number in metrics.values())
    (notice,) = learner.take_notices()
    assert f"got {bad:g}, the present policy gives" in notice
    assert "(this rollout's episode 1, step 4)" in notice
    prepare(learner, games)
    assert learner.take_notices() == []


def test_a_healthy_rollout_has_no_far_log_prob_and_imitation_minds_none():
    learner = make_learner()
    games = recorded(make_games(21), learner.net)
    assert "data/far_log_probs" not in prepare(learner, games).metrics
    games[1][4] = replace(games[1][4], log_prob=-95.0)
    learner.loss = imitation_loss
    prepared = prepare(learner, games)
    assert "data/far_log_probs" not in prepared.metrics
    assert math.isfinite(learner.update(prepared)["losses/approx_kl"])
    assert learner.take_notices() == []


@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_loss_may_name_further_numbers_to_log(compile):
    def with_penalty(*args):
        terms = ppo_loss(*args)
        return {**terms, "penalty": terms["entropy"] * 3}

    with_penalty.names = (*LOSS_NAMES, "penalty")
    usual = make_learner()
    learner = Learner(usual.net, UpdateSettings(compile=compile), World(CPU), loss=with_penalty)
    if learner.compiled:
        learner.compiled.backend = lambda graph, _: graph.forward
    metrics = learner.update(prepare(learner, make_games()))
    assert metrics["losses/penalty"] == pytest.approx(3 * metrics["losses/entropy"])


def towards_the_recorded(*args):
    """A loss with a target of its own: the value of a step is to be the log-prob that was recorded with it."""
    terms, value_B, targets = ppo_loss(*args), args[1], args[4]
    mixed_up = (targets.more["recorded"] - targets.old_log_prob_B).abs().sum()
    missed = (value_B - targets.more["recorded"]).square().sum()
    return {**terms, "loss": terms["loss"] + missed, "missed": missed, "mixed_up": mixed_up}


towards_the_recorded.names = (*LOSS_NAMES, "missed", "mixed_up")
towards_the_recorded.targets = lambda episodes: {"recorded": episodes.log_prob_N}


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 64},
        {"batch_size": 4, "gradient_accumulation_steps": 16},
        {"batch_size": 64, "compile": "on"},
        {"batch_size": 4, "gradient_accumulation_steps": 16, "compile": "on"},
        {"batch_size": 4, "epochs_per_update": 3},
    ],
)
def test_a_target_of_ones_own_is_each_steps_own_with_any_cut_and_compiled(settings):
    usual = make_learner()
    games = recorded(make_games(3), usual.net, noise=0.1)
    learner = Learner(
        usual.net, UpdateSettings(**{"epochs_per_update": 1, **settings}), World(CPU), loss=towards_the_recorded
    )
    if learner.compiled:
        learner.compiled.backend = lambda graph, _: graph.forward
    value_N = [
        value for game in games for value in [oracle.value(oracle.weights(usual.net), s.state).item() for s in game]
    ]
    told = [step.log_prob for game in games for step in game]
    metrics = learner.update(prepare(learner, games), lr=0.0)
    assert metrics.get("perf/compiled", 1.0) == 1.0 and metrics["losses/mixed_up"] < 1e-6  # log-probs in float32
    assert metrics["losses/missed"] == pytest.approx(np.square(np.subtract(value_N, told)).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"return": np.zeros(24)}, "a loss's own target needs a name of its own: got return"),
        ({"turn": np.zeros(3)}, r"the loss's target turn is not a finite number for each step: got shape \[3\]"),
        ({"turn": np.full(24, np.nan)}, "the loss's target turn is not a finite number for each step"),
    ],
)
def test_a_target_of_ones_own_that_is_none_is_refused(made, message):
    def wrong(*args):
        return ppo_loss(*args)

    wrong.targets = lambda episodes: made
    learner = Learner(make_learner().net, UpdateSettings(), World(CPU), loss=wrong)
    with pytest.raises(SettingsError, match=message):
        prepare(learner, make_games())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (LOSS_NAMES, "the loss returned other terms than it names: got loss, .*, penalty, expected"),
        (("loss", "penalty"), "the loss's `names` cannot be logged"),
        ((*LOSS_NAMES, "steps"), "the loss's `names` cannot be logged"),
    ],
)
def test_a_loss_that_names_other_terms_is_refused(names, message):
    def wrong(*args):
        return {**ppo_loss(*args), "penalty": args[1].sum()}

    wrong.names = names
    with pytest.raises(SettingsError, match=message):
        learner = Learner(make_learner().net, UpdateSettings(), World(CPU), loss=wrong)
        learner.update(prepare(learner, make_games()))


class BadGradient(torch.autograd.Function):
    """Passes numbers on, and an infinite gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.full_like(grad, math.inf)


class BadBackward(torch.nn.Module):
    """The usual state encoder, whose gradient is infinite for batches that hold the state that starts with `bad`."""

    def __init__(self):
        super().__init__()
        self.inner, self.bad = StateEncoder(5, 16), math.nan

    def forward(self, state_BS):
        hidden_BH = self.inner(state_BS)
        return BadGradient.apply(hidden_BH) if (state_BS[:, 0] == self.bad).any() else hidden_BH


@pytest.mark.parametrize("bad_minibatch", [0, 1, 2])
def test_a_bad_gradient_is_named_by_its_parameter(monkeypatch, bad_minibatch):
    """Also where good minibatches came after it, whose gradients are finite."""
    encoder = BadBackward()
    learner = make_learner(state_encoder=encoder, epochs_per_update=1)
    prepared = prepare(learner, make_games())
    fix_plan(monkeypatch, *([range(8 * i, 8 * i + 8)] for i in range(3)))
    encoder.bad = float(prepared.rollout.state_NS[8 * bad_minibatch + 2, 0])
    with pytest.raises(NonFiniteError) as caught:
        learner.update(prepared)
    assert str(caught.value).startswith(
        f"the gradient of state_encoder.inner.layers.0.weight is not finite (update 1, minibatch {bad_minibatch + 1}). "
    )
    assert all(p.isfinite().all() for p in learner.net.parameters())


def test_a_loss_that_overflows_by_itself_is_an_error():
    """Finite values whose squares are not."""
    learner = make_learner()
    learner.net.critic = critic = Value()
    prepared = prepare(learner, make_games())
    critic.answer = 1e30
    with pytest.raises(NonFiniteError, match=r"is not a finite number.*\(update 1, minibatch 1"):
        learner.update(prepared)


# --- Mixed precision, as far as a CPU can show it


@pytest.fixture
def with_loss_scale(monkeypatch):
    """As on a card that computes in float16, but computing in float32."""
    monkeypatch.setattr(learner_module, "amp_dtype", lambda device: torch.float16)


def test_the_loss_scale_changes_no_bit_of_the_result(with_loss_scale):
    """A power of two multiplies and divides exactly."""
    games = make_games(22)
    results = []
    for use_amp in (False, True):
        learner = make_learner(use_amp=use_amp, batch_size=8)
        metrics = learner.update(prepare(learner, games))
        results.append((all_bytes(learner), metrics["losses/loss"], metrics["losses/grad_norm"]))
        assert metrics.get("perf/skipped_steps") == (0.0 if use_amp else None)
        assert learner.loss_scale.scale.item() == (2.0**16 if use_amp else 1.0)
    assert results[0] == results[1]


def test_an_overflow_of_the_scale_skips_its_step_only(with_loss_scale):
    # The weight of the value loss makes gradients larger than 2, so that 2^127 times them is infinite.
    learner = make_learner(use_amp=True, batch_size=12, epochs_per_update=1, max_grad_norm=NO_LIMIT, vf_coef=1000.0)
    prepared = prepare(learner, make_games(23))
    learner.loss_scale.scale.fill_(2.0**127)
    before, seen = all_bytes(learner), 0
    while all_bytes(learner) == before:
        metrics = learner.update(prepared)
        seen += 1
        assert seen < 20
        assert json.dumps(metrics, allow_nan=False)
    assert metrics["perf/skipped_steps"] >= 1
    assert learner.loss_scale.scale.item() == 2.0 ** (127 - metrics["perf/skipped_steps"])
    assert all(p.isfinite().all() for p in learner.net.parameters())


def test_a_true_nan_is_sticky_under_the_loss_scale_as_well(with_loss_scale):
    encoder = Breakable()
    learner = make_learner(state_encoder=encoder, use_amp=True)
    prepared = prepare(learner, make_games())
    encoder.bad = float(prepared.rollout.state_NS[5, 0])
    with pytest.raises(NonFiniteError, match=r"episode 0, step 5"):
        learner.update(prepared)


def test_an_update_in_bfloat16_comes_near_the_one_in_float32(monkeypatch):
    """Losses differ by what 8 bits lose, and gradients point nearly the same way; both are float32 themselves."""
    games = recorded(make_games(24, longest=40), make_learner().net, noise=0.1)
    exact = make_learner(epochs_per_update=1, max_grad_norm=NO_LIMIT)
    expected, metrics = one_gradient(exact, prepare(exact, games))
    monkeypatch.setattr("movelist.learn.device.amp_dtype", lambda device: torch.bfloat16)
    learner = make_learner(use_amp=True, epochs_per_update=1, max_grad_norm=NO_LIMIT)
    got, half_metrics = one_gradient(learner, prepare(learner, games))
    for name in ("policy_loss", "value_loss", "entropy"):
        assert half_metrics[f"losses/{name}"] == pytest.approx(metrics[f"losses/{name}"], abs=0.05)
    for name, gradient in expected.items():
        assert got[name].dtype == torch.float32
        assert torch.cosine_similarity(got[name].flatten(), gradient.flatten(), dim=0) > 0.99, name


# --- Keeping and going on


def train(learner, num_updates, first=0):
    for number in range(first, first + num_updates):
        learner.update(prepare(learner, make_games(100 + number)))
    return learner


def test_the_same_seed_gives_the_same_bytes():
    settings = {"batch_size": 8, "epochs_per_update": 2}
    for encoder in ("bits", "table"):
        first, again, other = (train(make_learner(encoder, seed=seed, **settings), 3) for seed in (1, 1, 2))
        assert all_bytes(first) == all_bytes(again) != all_bytes(other)


def test_training_goes_on_from_a_file_to_the_byte():
    settings = {"batch_size": 8, "epochs_per_update": 2, "seed": 3}
    straight = train(make_learner(**settings), 4)
    file = io.BytesIO()
    torch.save(train(make_learner(**settings), 2).state_dict(), file)
    file.seek(0)
    resumed = make_learner(**settings | {"seed": 3})
    with torch.no_grad():
        for parameter in resumed.net.parameters():
            parameter.zero_()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.num_updates == 2
    assert (resumed.returns.count, resumed.returns.scale) != (0.0, 1.0)
    train(resumed, 2, first=2)
    assert all_bytes(resumed) == all_bytes(straight)
    assert vars(resumed.returns) == vars(straight.returns)


def test_a_run_of_a_card_that_scales_its_loss_goes_on_here(with_loss_scale):
    """Its scale of 65,536 means nothing where gradients are not divided by it."""
    there = train(make_learner(use_amp=True, max_grad_norm=NO_LIMIT), 1)
    here, plain = make_learner(use_amp=False, max_grad_norm=NO_LIMIT), make_learner(max_grad_norm=NO_LIMIT)
    train(plain, 1)
    here.load_state_dict(there.state_dict())
    games = make_games(25)
    assert here.update(prepare(here, games))["losses/grad_norm"] == pytest.approx(
        plain.update(prepare(plain, games))["losses/grad_norm"], rel=1e-3
    )


# --- It learns


class Lamp:
    """Four times: a lamp is on or off, and one of two ids is right for it. A point for each right choice."""

    num_players = 1
    on, off = 2**63 + 1025, 7  # the right id; as unsigned numbers, as a game may have them

    def new_state(self, seed):
        return LampState(np.random.default_rng(seed))


class LampState:
    def __init__(self, chance):
        self.chance, self.left, self.score = chance, 5, 0.0
        self.draw()

    def draw(self):
        self.left -= 1
        self.lit = bool(self.chance.integers(2))
        self.actions = [int(i) for i in self.chance.permutation(np.array([Lamp.on, Lamp.off], np.uint64))]

    def current_player(self):
        return 0 if self.left else None

    def legal_actions(self):
        return self.actions

    def observe(self, player):
        return [float(self.lit), 1.0, self.left / 4, 0.0, 0.0]

    def apply(self, index):
        self.score += self.actions[index] == (Lamp.on if self.lit else Lamp.off)
        self.draw()

    def returns(self):
        return [self.score]


def test_it_learns_which_of_two_actions_is_right():
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=32))
    learner = Learner(net, UpdateSettings(batch_size=64, lr=3e-3), World(CPU), seed=0)
    source = SelfPlay(Lamp(), PlaySettings(num_games=64), seed=0)
    first = source.collect(NetPolicy(net), 64)
    for _ in range(15):
        learner.update(learner.prepare(source.collect(NetPolicy(net), 64)))
    last = source.collect(NetPolicy(net, greedy=True), 256)
    assert 0.35 < first.return_EP.mean() / 4 < 0.65
    assert last.return_EP.mean() / 4 > 0.95


def test_gradients_that_no_scale_mends_are_an_error(with_loss_scale, monkeypatch):
    """Halving the scale mends an overflow; a gradient that is infinite at every scale would be skipped for ever."""
    encoder = BadBackward()
    learner = make_learner(state_encoder=encoder, epochs_per_update=1, use_amp=True)
    prepared = prepare(learner, make_games())
    fix_plan(monkeypatch, *([range(24)] for _ in range(1)))
    encoder.bad = float(prepared.rollout.state_NS[2, 0])
    learner.update(prepared)
    assert learner.loss_scale.state_dict() == {"scale": 2.0**15, "good_steps": 0.0, "skipped": 1.0}
    learner.loss_scale.scale.fill_(2.0**-10)
    with pytest.raises(NonFiniteError, match=r"^the gradient of state_encoder.inner.layers.0.weight is not finite"):
        learner.update(prepare(learner, make_games()))
