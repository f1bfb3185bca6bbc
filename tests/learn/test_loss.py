"""The PPO loss on flat scores: by hand, against one sample at a time, and at the edges of its clipping."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import oracle
from movelist.core import ragged
from movelist.core.ragged import Segments
from movelist.core.settings import UpdateSettings
from movelist.learn.loss import LOSS_NAMES, Targets, imitation_loss, ppo_loss, recorded_ppo_loss
from oracle import Sample, Step


def targets(old_log_prob, advantage, value_target, old_value):
    columns = (old_log_prob, advantage, value_target, old_value)
    return Targets(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def one_step(ratio, advantage, *, value=0.0, value_target=0.0, old_value=0.0, **settings):
    """The loss of one step with two equal logits, whose chosen probability 1/2 is `ratio` times the old one."""
    score_A = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    value_B = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    terms = ppo_loss(
        score_A,
        value_B,
        Segments.from_counts([2]),
        torch.tensor([0]),
        targets([math.log(0.5 / ratio)], [advantage], [value_target], [old_value]),
        UpdateSettings(**{"ent_coef": 0.0, **settings}),
    )
    terms["loss"].backward()
    return {name: term.item() for name, term in terms.items()}, score_A.grad, value_B.grad


def test_the_loss_by_hand():
    """ratio 1.1, advantage 2: policy -2.2; value (3 - 1)^2 / 2 = 2; entropy log 2."""
    terms, score_gradient, value_gradient = one_step(1.1, 2.0, value=3.0, value_target=1.0, ent_coef=0.1, vf_coef=0.5)
    assert terms == pytest.approx(
        {
            "loss": -2.2 + 0.5 * 2.0 - 0.1 * math.log(2),
            "policy_loss": -2.2,
            "value_loss": 2.0,
            "entropy": math.log(2),
            "approx_kl": 0.1 - math.log(1.1),
            "clip_fraction": 0.0,
        }
    )
    assert tuple(terms) == LOSS_NAMES
    # d ratio / d logit = ratio * (1 - p, -p); entropy is at its maximum, so it pulls nowhere.
    assert score_gradient.tolist() == pytest.approx([-2 * 1.1 * 0.5, 2 * 1.1 * 0.5])
    assert value_gradient.tolist() == pytest.approx([0.5 * (3 - 1)])


def test_undecidedness_is_rewarded():
    """Its weight moves the logits of [1, 0] towards each other: a smaller first, a larger second."""
    score_A = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    settings = UpdateSettings(ent_coef=1.0)
    none = targets([0.0], [0.0], [0.0], [0.0])
    value_B = torch.zeros(1, dtype=torch.float64)
    ppo_loss(score_A, value_B, Segments.from_counts([2]), torch.tensor([0]), none, settings)["loss"].backward()
    assert score_A.grad[0] > 0.1
    assert score_A.grad[1] < -0.1


@pytest.mark.parametrize(
    ("ratio", "advantage", "policy_loss", "moves", "clipped"),
    [
        (1.1, 1.0, -1.1, True, 0),
        (1.3, 1.0, -1.2, False, 1),  # it gained enough: no more
        (0.5, 1.0, -0.5, True, 1),  # it lost what it should gain: back at full strength
        (0.9, -1.0, 0.9, True, 0),
        (0.5, -1.0, 0.8, False, 1),
        (1.5, -1.0, 1.5, True, 1),
    ],
)
def test_clipping_takes_the_worse_of_the_two(ratio, advantage, policy_loss, moves, clipped):
    terms, score_gradient, _ = one_step(ratio, advantage, clip_range=0.2)
    assert terms["policy_loss"] == pytest.approx(policy_loss)
    assert terms["clip_fraction"] == clipped
    assert bool(score_gradient.abs().max() > 1e-9) is moves


@pytest.mark.parametrize(
    ("value", "old_value", "value_target", "value_loss", "gradient"),
    [
        (1.0, 0.9, 2.0, 0.5, -1.0),  # within the range
        (1.5, 1.0, 2.0, 0.5 * 0.8**2, 0.0),  # moved to 1.2 at most: no more in this update
        (0.5, 1.0, 2.0, 0.5 * 1.5**2, -1.5),  # it went the wrong way: the free error is the worse one
        (2.5, 1.0, 2.0, 0.5 * 0.8**2, 0.0),
    ],
)
def test_values_are_clipped_around_the_old_value(value, old_value, value_target, value_loss, gradient):
    numbers = {"value": value, "old_value": old_value, "value_target": value_target}
    terms, _, value_gradient = one_step(1.0, 0.0, vf_coef=1.0, clip_range_vf=0.2, **numbers)
    assert terms["value_loss"] == pytest.approx(value_loss)
    assert value_gradient.item() == pytest.approx(gradient)
    free, _, free_gradient = one_step(1.0, 0.0, vf_coef=1.0, **numbers)
    assert free["value_loss"] == pytest.approx(0.5 * (value - value_target) ** 2)
    assert free_gradient.item() == pytest.approx(value - value_target)


def random_case(seed, num_steps, longest):
    """Scores, values and samples; old log-probs a little off, so that some ratios are clipped."""
    rng = np.random.default_rng(seed)
    scores = [2 * rng.normal(size=rng.integers(1, longest + 1)) for _ in range(num_steps)]
    chosen = [int(rng.integers(len(one))) for one in scores]
    samples = []
    for one, choice in zip(scores, chosen, strict=True):
        log_prob = oracle.log_probs(torch.tensor(one))[choice].item()
        samples.append(
            Sample(
                Step([], list(range(len(one))), choice),
                old_log_prob=log_prob + 0.3 * rng.normal(),
                advantage=rng.normal(),
                value_target=rng.normal(),
                old_value=rng.normal(),
            )
        )
    return scores, rng.normal(size=num_steps), samples


@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_loss_and_its_gradients_equal_one_sample_at_a_time(monkeypatch, dtype, clip_range_vf):
    scores, values, samples = random_case(1, num_steps=60, longest=400)
    coefficients = {"clip_range": 0.2, "clip_range_vf": clip_range_vf, "ent_coef": 0.02, "vf_coef": 0.7}

    # The truth works on scores and values as they are: the network's part is left out here.
    leaves = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in scores]
    value_leaf = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    number = {id(sample.step): i for i, sample in enumerate(samples)}
    current = []
    monkeypatch.setattr(oracle, "logits", lambda w, state, actions: leaves[current[0]])
    monkeypatch.setattr(oracle, "value", lambda w, state: value_leaf[current[0]])
    expected = dict.fromkeys(LOSS_NAMES, 0.0)
    for sample in samples:
        current[:] = [number[id(sample.step)]]
        terms = oracle.sample_loss({}, sample, **coefficients)
        terms["loss"].backward()
        expected = {name: expected[name] + terms[name].item() for name in LOSS_NAMES}

    segments = Segments.from_counts([len(one) for one in scores])
    score_A = torch.tensor(np.concatenate(scores), dtype=dtype, requires_grad=True)
    value_B = torch.tensor(values, dtype=dtype, requires_grad=True)
    chosen_B = segments.offsets[:-1] + torch.tensor([sample.step.chosen for sample in samples])
    wanted = [
        [getattr(sample, name) for sample in samples]
        for name in ("old_log_prob", "advantage", "value_target", "old_value")
    ]
    goal = Targets(*(torch.tensor(column, dtype=dtype) for column in wanted))
    terms = ppo_loss(score_A, value_B, segments, chosen_B, goal, UpdateSettings(**coefficients))
    terms["loss"].backward()

    # float32 keeps 24 bits; sums over lists of 400 and 60 steps lose a few. Relative to each tensor's largest entry.
    tolerance = 1e-10 if dtype is torch.float64 else 1e-5
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert 5 < expected["clip_fraction"] < 55  # both sides of the clipping were there
    gradient_A = torch.cat([leaf.grad for leaf in leaves])
    assert (score_A.grad - gradient_A).abs().max() <= tolerance * gradient_A.abs().max()
    assert (value_B.grad - value_leaf.grad).abs().max() <= tolerance * value_leaf.grad.abs().max()


def test_terms_are_sums_so_batches_add_up():
    """Losses [1, 1, 1] and [5]: together 8 over 4 steps are 2.0; the mean of the means would be 3.0."""
    settings = UpdateSettings(ent_coef=0.0, vf_coef=1.0)

    def loss(values):
        zeros = [0.0] * len(values)
        return ppo_loss(
            torch.zeros(len(values), dtype=torch.float64),
            torch.tensor(values, dtype=torch.float64),
            Segments.from_counts([1] * len(values)),
            torch.arange(len(values)),
            targets(zeros, zeros, zeros, zeros),
            settings,
        )["loss"].item()

    root = math.sqrt(2)  # (sqrt 2)^2 / 2 = 1
    assert loss([root] * 3) == pytest.approx(3.0)
    assert loss([math.sqrt(10)]) == pytest.approx(5.0)
    assert (loss([root] * 3) + loss([math.sqrt(10)])) / 4 == pytest.approx(2.0)
    assert loss([root] * 3 + [math.sqrt(10)]) == pytest.approx(8.0)


def test_the_first_ratio_is_1():
    """Log-probs of the same scores: nothing is clipped, and approx_kl is 0."""
    scores, values, _ = random_case(2, num_steps=50, longest=400)
    segments = Segments.from_counts([len(one) for one in scores])
    score_A = torch.tensor(np.concatenate(scores), dtype=torch.float32)
    chosen_B = segments.offsets[:-1]
    old = ragged.log_softmax(score_A, segments).index_select(0, chosen_B)
    value_B = torch.tensor(values, dtype=torch.float32)
    goal = Targets(old, torch.ones(50), value_B, value_B)
    terms = ppo_loss(score_A, value_B, segments, chosen_B, goal, UpdateSettings())
    assert (terms["approx_kl"].item(), terms["clip_fraction"].item()) == (0.0, 0.0)
    assert terms["policy_loss"].item() == -50.0


def test_a_step_with_a_single_action_has_no_policy_gradient():
    score_A = torch.tensor([3.0], requires_grad=True)
    goal = Targets(*(torch.tensor([x]) for x in (0.0, 1.0, 0.0, 0.0)))
    terms = ppo_loss(
        score_A, torch.zeros(1), Segments.from_counts([1]), torch.tensor([0]), goal, UpdateSettings(ent_coef=1.0)
    )
    terms["loss"].backward()
    assert score_A.grad.tolist() == [0.0]
    assert (terms["entropy"].item(), terms["policy_loss"].item()) == (0.0, -1.0)


def test_7830_actions_give_a_finite_loss_every_time():
    segments = Segments.from_counts([7830])
    generator = torch.Generator().manual_seed(0)
    goal = Targets(*(torch.tensor([x]) for x in (-9.0, 1.0, 0.0, 0.0)))
    for scale in np.geomspace(0.01, 100, 200):
        score_A = (scale * torch.randn(7830, generator=generator)).requires_grad_()
        best_B = score_A.detach().argmax().reshape(1)
        terms = ppo_loss(score_A, torch.zeros(1), segments, best_B, goal, UpdateSettings())
        terms["loss"].backward()
        assert all(term.isfinite() for term in terms.values())
        assert score_A.grad.isfinite().all()


def test_a_nan_is_not_swallowed():
    score_A = torch.tensor([1.0, math.nan, 0.0])
    goal = Targets(*(torch.zeros(2) for _ in range(4)))
    terms = ppo_loss(
        score_A, torch.zeros(2), Segments.from_counts([2, 1]), torch.tensor([0, 2]), goal, UpdateSettings()
    )
    assert terms["loss"].isnan()


def test_coefficients_weigh_their_parts():
    scores, values, samples = random_case(3, num_steps=20, longest=9)
    segments = Segments.from_counts([len(one) for one in scores])
    columns = [
        [getattr(sample, name) for sample in samples]
        for name in ("old_log_prob", "advantage", "value_target", "old_value")
    ]
    chosen_B = segments.offsets[:-1] + torch.tensor([sample.step.chosen for sample in samples])
    base = UpdateSettings()
    for changes in ({}, {"ent_coef": 0.0}, {"vf_coef": 0.0}, {"ent_coef": 3.0, "vf_coef": 2.0}):
        settings = replace(base, **changes)
        terms = ppo_loss(
            torch.tensor(np.concatenate(scores)), torch.tensor(values), segments, chosen_B, targets(*columns), settings
        )
        weighed = terms["policy_loss"] + settings.vf_coef * terms["value_loss"] - settings.ent_coef * terms["entropy"]
        assert terms["loss"].item() == pytest.approx(weighed.item(), rel=1e-12)


def test_nothing_asks_the_device():
    """On the meta device there are no numbers: whoever needs one to go on, as a wait does, fails there."""
    segments = Segments.from_counts([2, 3]).to("meta")
    goal = Targets(*(torch.zeros(2, device="meta") for _ in range(4)))
    score_A = torch.zeros(5, device="meta", requires_grad=True)
    chosen_B = torch.zeros(2, dtype=torch.int64, device="meta")
    terms = ppo_loss(
        score_A, torch.zeros(2, device="meta"), segments, chosen_B, goal, UpdateSettings(clip_range_vf=0.2)
    )
    terms["loss"].backward()
    assert score_A.grad.shape == (5,)


@pytest.mark.parametrize("loss", [ppo_loss, recorded_ppo_loss, imitation_loss])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("old_log_prob", [-45.0, -80.0, -95.0, -300.0])
def test_an_absurd_old_log_prob_gives_bounded_terms_and_gradients(loss, advantage, old_log_prob):
    score_A = torch.zeros(2, requires_grad=True)
    goal = Targets(*(torch.tensor([x]) for x in (old_log_prob, advantage, 0.0, 0.0)))
    terms = loss(score_A, torch.zeros(1), Segments.from_counts([2]), torch.tensor([0]), goal, UpdateSettings())
    terms["loss"].backward()
    assert all(term.abs() <= math.exp(20.01) for term in terms.values())
    assert score_A.grad.abs().max() <= 1


@pytest.mark.parametrize(("ratio", "policy_loss", "moves"), [(2.9, 2.9, True), (3.1, 3.0, False), (900.0, 3.0, False)])
def test_dual_clip_bounds_what_a_bad_step_of_an_old_policy_costs(ratio, policy_loss, moves):
    score_A = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    goal = targets([math.log(0.5 / ratio)], [-1.0], [0.0], [0.0])
    inputs = torch.zeros(1, dtype=torch.float64), Segments.from_counts([2]), torch.tensor([0]), goal
    terms = recorded_ppo_loss(score_A, *inputs, UpdateSettings(ent_coef=0.0))
    terms["loss"].backward()
    assert terms["policy_loss"].item() == pytest.approx(policy_loss)
    assert bool(score_A.grad.abs().max() > 1e-9) is moves
    assert ppo_loss(score_A, *inputs, UpdateSettings())["policy_loss"].item() == pytest.approx(ratio)
