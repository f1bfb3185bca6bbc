"""All rungs compute one formula: held against a float64 computation of each step alone, and against each other."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from made_up import network, steps
from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.loss import Targets, ppo_loss
from movelist.learn.model import PolicyValueNet
from movelist.measure.minibatches import all_actions
from movelist.measure.rungs import (
    FullHead,
    Rung,
    Sample,
    bits_by_loop,
    bits_one_by_one,
    dense_loss,
    flat_chunked,
    full_mask,
    ladder,
)

NUM_STEPS = 12
ENCODERS = ["bits", "table"]


def make(encoder: str, num_actions: int | None = 300) -> tuple[PolicyValueNet, Sample, list[Rung], FullHead]:
    """A network, a minibatch and the rungs."""
    net, episodes = network(encoder=encoder), steps(NUM_STEPS, encoder=encoder)
    rng = np.random.default_rng(1)
    all_id_K = all_actions(episodes, 40 if encoder == "table" else num_actions, table=encoder == "table", rng=rng)
    targets = Targets(*(torch.from_numpy(rng.normal(size=NUM_STEPS)).float() for _ in range(4)))
    head = FullHead(net, len(all_id_K))
    return net, Sample.of(episodes, targets, all_id_K, net), ladder(net, head), head


def oracle(net: PolicyValueNet, episodes: Episodes) -> list[NDArray[np.float64]]:
    """Log-prob of the choice, entropy and value of each step, written out in float64 from the weights alone."""
    w = {name: weight.detach().double().numpy() for name, weight in net.state_dict().items()}

    def layer(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    results = []
    for step in range(episodes.num_steps):
        start, end = episodes.action_offsets[step : step + 2]
        ids = [int(number) for number in episodes.action_id_A[start:end]]
        hidden = np.maximum(layer("state_encoder.layers.0", episodes.state_NS[step].astype(np.float64)), 0)
        hidden = np.maximum(layer("state_encoder.layers.2", hidden), 0)
        scores = []
        for number in ids:
            if net.shape.action_encoder == "table":
                first = w["action_encoder.first.weight"][number]
            else:
                bits = np.array([((number & (2**64 - 1)) >> bit) & 1 for bit in range(64)], np.float64)
                first = layer("action_encoder.first", bits)
            pair = layer("state_to_pair", hidden) + layer("action_to_pair", np.maximum(first, 0))
            scores.append(float(np.maximum(pair, 0) @ w["pair_weight"]))
        probability = np.exp(np.array(scores) - max(scores))
        probability /= probability.sum()
        value = layer("critic", hidden)[0]
        chosen = probability[episodes.chosen_N[step]]
        results.append((np.log(chosen), -(probability * np.log(probability)).sum(), value))
    return [np.array(column) for column in zip(*results, strict=True)]


def gradients(net: PolicyValueNet, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    net.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_rung_says_what_the_formula_says(encoder: str) -> None:
    net, sample, rungs, _ = make(encoder)
    expected = oracle(net, sample.rollout.episodes)
    assert np.ptp(expected[0]) > 1, "the choices should differ in probability, or a wrong sum would not show"
    same = [rung for rung in rungs if not rung.other_network]
    assert len(same) == (9 if encoder == "bits" else 7)
    for rung in same:
        for what, column in zip(rung.answer(net, sample), expected, strict=True):
            # float32 has 7 digits; sums of 8 terms and a softmax lose one of them.
            np.testing.assert_allclose(what.detach().numpy(), column, rtol=2e-5, atol=2e-5, err_msg=rung.name)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_rung_has_the_same_loss_and_gradient(encoder: str) -> None:
    net, sample, rungs, _ = make(encoder)
    settings = UpdateSettings()
    expected_loss = rungs[0].loss(net, sample, settings)
    expected = gradients(net, expected_loss)
    assert set(expected) == {name for name, _ in net.named_parameters()}
    for rung in rungs[1:]:
        if rung.other_network:
            continue
        loss = rung.loss(net, sample, settings)
        assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5), rung.name
        for name, gradient in gradients(net, loss).items():
            largest = expected[name].abs().max()
            assert (gradient - expected[name]).abs().max() <= 1e-5 * largest, f"{rung.name}: {name}"


def test_dense_loss_is_the_trainers_loss() -> None:
    net, sample, *_ = make("bits")
    settings = UpdateSettings(vf_coef=0.7, ent_coef=0.3, clip_range=0.1)
    batch = sample.plan()
    score_A, value_B = net(
        sample.state_BS, sample.rollout.encoded_R.index_select(0, batch.row_U), batch.segments.step_A, batch.unique_A
    )
    flat = ppo_loss(score_A, value_B, batch.segments, batch.chosen_B, sample.targets, settings)["loss"]
    assert dense_loss(flat_chunked(net, sample), sample.targets, settings).item() == pytest.approx(
        flat.item(), rel=1e-6
    )


def test_bits_by_loop_are_the_bits() -> None:
    ids = [0, 1, -1, 2**53 + 1, 2**62 + 3, 2**63 - 1, -(2**63)]
    expected = [[((number & (2**64 - 1)) >> bit) & 1 for bit in range(64)] for number in ids]
    assert bits_by_loop(torch.tensor(ids)).tolist() == expected
    assert bits_one_by_one(torch.tensor(ids)).tolist() == expected


def test_the_linear_layer_agrees_with_its_legal_logits_alone() -> None:
    net, sample, _, head = make("bits")
    log_prob_B, entropy_B, _ = head.answer(net, sample)
    torch.testing.assert_close(log_prob_B, head.flat_log_prob(net, sample), rtol=1e-5, atol=1e-5)
    assert (entropy_B >= 0).all() and (entropy_B <= torch.from_numpy(np.log(sample.count_B)) + 1e-5).all()


def test_stand_ins_make_no_difference_to_a_masked_step() -> None:
    many, few = make("bits", 300), make("bits", None)
    assert len(many[1].all_id_K) == 300
    assert len(few[1].all_id_K) < 41
    # The softmax adds zeros to the same terms, in another order.
    torch.testing.assert_close(full_mask(*many[:2])[0], full_mask(*few[:2])[0], rtol=1e-6, atol=1e-6)


def test_a_part_is_padded_like_the_whole() -> None:
    net, sample, *_ = make("bits")
    part = sample.first(3, net)
    assert part.num_steps == 3 and part.longest == sample.longest == sample.count_B.max()
    whole = flat_chunked(net, sample)
    for what, expected in zip(flat_chunked(net, part), whole, strict=True):
        torch.testing.assert_close(what, expected[:3], rtol=1e-5, atol=1e-5)
