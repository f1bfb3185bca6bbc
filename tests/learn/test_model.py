"""The flat network against one sample at a time, and what it promises: order, neighbours and batches do not matter."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import oracle
from movelist.core import ragged
from movelist.core.errors import DataError, MovelistError
from movelist.core.ragged import Segments
from movelist.learn.model import ActionEncoder, ModelShape, PolicyValueNet, StateEncoder

# float32 keeps 24 bits, 6e-8; products over up to 64 numbers in a few layers lose some of them. Relative to the
# largest entry.
FLOAT32 = 1e-5
FLOAT64 = 1e-10


def make_net(encoder="bits", *, seed=0, state_size=5, hidden_dim=16, dtype=torch.float32, **shape):
    """A network as if trained for long, so that no layer is near its start."""
    torch.manual_seed(seed)
    rows = 500 if encoder == "table" else 0
    shape = ModelShape(state_size=state_size, hidden_dim=hidden_dim, action_encoder=encoder, num_actions=rows, **shape)
    return oracle.grown(PolicyValueNet(shape), seed).to(dtype)


def evaluate(net, steps):
    """`PolicyValueNet.evaluate` for steps written down one by one."""
    dtype = next(net.parameters()).dtype
    return net.evaluate(
        torch.tensor([step.state for step in steps], dtype=dtype),
        torch.tensor([oracle.signed(action_id) for step in steps for action_id in step.actions]),
        Segments.from_counts([len(step.actions) for step in steps]),
        torch.tensor([step.chosen for step in steps]),
    )


def all_log_probs(net, steps):
    """Log-probabilities of all legal actions and the lists' lengths, by the network's own forward."""
    ids = torch.tensor([oracle.signed(action_id) for step in steps for action_id in step.actions])
    segments = Segments.from_counts([len(step.actions) for step in steps])
    action_id_U, unique_A = ids.unique(return_inverse=True)
    states = torch.tensor([step.state for step in steps])
    score_A, value_B = net(states, net.encode_ids(action_id_U), segments.step_A, unique_A)
    return ragged.log_softmax(score_A, segments).split([len(step.actions) for step in steps]), value_B


def random_steps(seed, **options):
    return [step for game in oracle.random_games(seed, **options) for step in game]


def close(got, expected, tolerance):
    """Equal to `tolerance` of the largest entry."""
    difference = (got.detach().double() - expected).abs().max() if got.numel() else torch.tensor(0.0)
    return bool(difference <= tolerance * max(1e-3, expected.abs().max().item() if got.numel() else 0.0))


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


# --- Against the truth


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.float64, FLOAT64)])
@pytest.mark.parametrize("encoder", ["bits", "table"])
@pytest.mark.parametrize("longest", [4, 400])
def test_outputs_and_gradients_equal_one_sample_at_a_time(encoder, longest, dtype, tolerance):
    """Lists of 1 to 400, ids shared between steps; bits also of the ids that are hard to keep."""
    net = make_net(encoder, dtype=dtype)
    steps = random_steps(longest, num_games=2, num_steps=6, longest=longest, num_ids=500, hard=encoder == "bits")
    log_prob_B, entropy_B, value_B = evaluate(net, steps)
    weight_B = torch.linspace(-1, 2, len(steps), dtype=dtype)
    got = gradients(net, (weight_B * (log_prob_B + 0.5 * entropy_B + 0.3 * value_B)).sum())

    w = oracle.weights(net)
    expected = []
    for step, weight in zip(steps, weight_B.tolist(), strict=True):
        scores = oracle.logits(w, step.state, [oracle.signed(action_id) for action_id in step.actions])
        expected.append((oracle.log_probs(scores)[step.chosen], oracle.entropy(scores), oracle.value(w, step.state)))
        (weight * (expected[-1][0] + 0.5 * expected[-1][1] + 0.3 * expected[-1][2])).backward()
    for one, column in zip((log_prob_B, entropy_B, value_B), zip(*expected, strict=True), strict=True):
        assert close(one, torch.stack(column).detach(), tolerance)
    assert got.keys() == w.keys()
    for name, parameter in w.items():
        assert close(got[name], parameter.grad, tolerance), name


@pytest.mark.parametrize("encoder", ["bits", "table"])
def test_an_action_tower_of_another_width_equals_the_truth(encoder):
    net = make_net(encoder, action_hidden_dim=3)
    assert net.action_to_pair.weight.shape == (16, 3)
    steps = random_steps(1, longest=9)
    w = oracle.weights(net)
    log_probs, _ = all_log_probs(net, steps)
    for got, step in zip(log_probs, steps, strict=True):
        assert close(got, oracle.log_probs(oracle.logits(w, step.state, step.actions)).detach(), FLOAT32)


# --- What must not matter


def test_permuting_a_list_permutes_its_probabilities():
    net = make_net()
    steps = random_steps(2, longest=30, hard=True)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(step.actions)) for step in steps]
    shuffled = [
        replace(step, actions=[step.actions[i] for i in order]) for step, order in zip(steps, orders, strict=True)
    ]
    before, _ = all_log_probs(net, steps)
    after, _ = all_log_probs(net, shuffled)
    for one, other, order in zip(before, after, orders, strict=True):
        assert torch.allclose(one[torch.from_numpy(order)], other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("encoder", ["bits", "table"])
def test_a_step_does_not_depend_on_its_neighbours(encoder, place):
    """Alone and among 1,000 others, forward and gradient: equal to 1e-6 of the largest entry."""
    net = make_net(encoder)
    mine, *others = random_steps(3, num_games=1, num_steps=1001, longest=12)
    index = {"first": 0, "middle": 500, "last": 1000}[place]
    steps = [*others[:index], mine, *others[index:]]
    alone = [column[0] for column in evaluate(net, [mine])]
    among = [column[index] for column in evaluate(net, steps)]
    for one, other in zip(alone, among, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)
    expected, got = gradients(net, sum(alone)), gradients(net, sum(among))
    for name, gradient in expected.items():
        assert (got[name] - gradient).abs().max() <= 1e-6 * gradient.abs().max(), name


def test_acting_alone_and_learning_in_batches_of_256_agree():
    """Rounding differs with the batch; with logits as large as after long training the bound is 1e-4."""
    net = make_net(hidden_dim=64, state_size=40)
    with torch.no_grad():
        net.pair_weight *= 3
    steps = random_steps(4, num_games=1, num_steps=256, state_size=40, longest=400, num_ids=3000, hard=True)
    with torch.no_grad():
        together, _ = all_log_probs(net, steps)
        spread = max((one.max() - one.min()).item() for one in together)
        worst = max(
            (all_log_probs(net, [step])[0][0] - one).abs().max().item()
            for step, one in zip(steps, together, strict=True)
        )
    assert spread > 10  # logits have grown
    assert worst <= 1e-4


def test_the_same_batch_twice_gives_a_log_ratio_of_0():
    net = make_net(hidden_dim=64)
    steps = random_steps(5, num_games=1, num_steps=200, longest=400)
    with torch.no_grad():
        old = evaluate(net, steps)[0]
    new = evaluate(net, steps)[0]
    assert (new - old).abs().max() <= 1e-6


def test_an_ids_neighbours_in_its_list_change_scores_by_nothing():
    """Probabilities are shared out among the list, scores are each action's own."""
    net = make_net()
    state, row = torch.ones(1, 5), torch.zeros(3, dtype=torch.int64)
    encoded = net.encode_ids(torch.tensor([5, -1, 2**62]))
    score_A, _ = net(state, encoded, row, torch.tensor([0, 1, 2]))
    for place in range(3):
        alone_A, _ = net(state, encoded[place : place + 1], row[:1], row[:1])
        assert torch.allclose(alone_A, score_A[place], rtol=1e-6, atol=1e-6)


# --- Memory and waits


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor held that was made inside the block."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_memory_follows_the_number_of_actions():
    """A list of 50,000 among 1,000 of 10: padded, its scores alone would be 50 million numbers."""
    counts = [10] * 500 + [50_000] + [10] * 500
    segments = Segments.from_counts(counts)
    net = make_net(hidden_dim=8)
    action_id_A = torch.cat([torch.arange(count) for count in counts])
    with LargestTensor() as largest:
        log_prob_B, entropy_B, value_B = net.evaluate(
            torch.zeros(1001, 5), action_id_A, segments, torch.zeros(1001, dtype=torch.int64)
        )
        (log_prob_B + entropy_B + value_B).sum().backward()
    # 64 bits for each of the 50,000 unique ids are the most; a chunk of the pair score has at most 262,144 numbers.
    assert largest.numel == 64 * 50_000


@pytest.mark.parametrize("encoder", ["bits", "table"])
def test_the_trainers_path_asks_the_device_nothing(encoder):
    """On the meta device there are no numbers: whoever needs one to go on, as a wait does, fails there."""
    net = make_net(encoder).to("meta")
    index_A = torch.zeros(7, dtype=torch.int64, device="meta")
    encoded_U = net.encode_ids(torch.zeros(4, dtype=torch.int64, device="meta"))
    score_A, value_B = net(torch.zeros(3, 5, device="meta"), encoded_U, index_A, index_A)
    (score_A.sum() + value_B.sum()).backward()
    assert (score_A.shape, value_B.shape) == ((7,), (3,))
    assert all(parameter.grad is not None for parameter in net.parameters())


# --- Parts


def test_ids_enter_as_bits_or_as_rows():
    ids = torch.tensor([0, 3, 499])
    assert make_net("bits").encode_ids(ids).tolist() == [oracle.bits(action_id) for action_id in (0, 3, 499)]
    assert make_net("table").encode_ids(ids) is ids


@pytest.mark.parametrize(("bad", "shown"), [(500, "500 (0x00000000000001f4)"), (-1, "-1 (0xffffffffffffffff)")])
def test_an_id_without_a_row_is_refused(bad, shown):
    with pytest.raises(DataError) as caught:
        make_net("table").check_ids(torch.tensor([0, bad, 777]))
    assert str(caught.value) == (
        f"an action id has no row in the table: got {shown}, expected 0 to 499. "
        'Use action_encoder "bits", or tell the game\'s true num_actions.'
    )


def test_ids_with_a_row_and_all_bits_are_fine():
    assert make_net("table").check_ids(torch.tensor([0, 499])) is None
    assert make_net("table").check_ids(torch.zeros(0, dtype=torch.int64)) is None
    assert make_net("bits").check_ids(torch.tensor([-(2**63), 2**63 - 1])) is None


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.float32, torch.int64])
def test_states_of_any_number_type_are_read(kind):
    net = make_net()
    state_BS = torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 255]])
    expected = net.state_encoder(state_BS.float())
    assert torch.equal(net.state_encoder(state_BS.to(kind)), expected)


def test_encoders_are_layers_with_relu():
    state = StateEncoder(3, 4)(torch.randn(50, 3))
    bits = ActionEncoder(4)(torch.randint(0, 2, (50, 64)).float())
    rows = ActionEncoder(4, num_rows=10)(torch.arange(10))
    for hidden, size in ((state, 50), (bits, 50), (rows, 10)):
        assert hidden.shape == (size, 4)
        assert hidden.min() == 0 < hidden.max()


class Planes(nn.Module):
    """A state encoder of one's own: 1 x 5 planes through a convolution."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, kernel_size=2)

    def forward(self, state_BS):
        return self.convolution(state_BS.unsqueeze(1)).flatten(1)


def test_encoder_and_critic_can_be_replaced():
    critic = nn.Linear(16, 1)
    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=16), state_encoder=Planes(), critic=critic)
    steps = random_steps(6, num_games=1)
    log_prob_B, entropy_B, value_B = evaluate(net, steps)
    (log_prob_B + entropy_B + value_B).sum().backward()
    states = torch.tensor([step.state for step in steps])
    assert torch.allclose(value_B, critic(net.state_encoder(states)).squeeze(-1))
    assert net.state_encoder.convolution.weight.grad.abs().sum() > 0
    assert critic.weight.grad.abs().sum() > 0


def test_the_first_policy_is_close_to_even_and_the_first_values_small():
    torch.manual_seed(0)
    net = PolicyValueNet(ModelShape(state_size=5, hidden_dim=64))
    steps = random_steps(7, longest=12, num_games=10, hard=True)
    log_probs, value_B = all_log_probs(net, steps)
    assert max((one + np.log(len(one))).abs().max().item() for one in log_probs) < 0.5
    assert value_B.abs().max() < 1.0


def test_values_are_float32_in_mixed_precision_and_log_probs_as_well():
    net = make_net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_prob_B, entropy_B, value_B = evaluate(net, random_steps(8))
    assert log_prob_B.dtype == entropy_B.dtype == value_B.dtype == torch.float32


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_bias_of_the_critic_costs_values_no_digits_in_mixed_precision(bias):
    net = make_net()
    net.critic = torch.nn.Linear(net.shape.hidden_dim, 1, bias=bias)
    values = []
    for offset in (0.0, 1000.0 * bias):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            if offset:
                net.critic.bias.add_(offset)
            values.append(evaluate(net, random_steps(8))[2])
    near_B, far_B = values
    assert far_B.tolist() == pytest.approx((near_B + 1000.0 * bias).tolist(), abs=1e-3)


def test_mixed_precision_stays_near():
    """bfloat16 keeps 8 bits: logits of up to 10 are off by a few hundredths, log-probs by twice that."""
    net, steps = make_net(), random_steps(9, longest=40, num_games=10)
    expected, _ = all_log_probs(net, steps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, _ = all_log_probs(net, steps)
    assert max((one - other).abs().max().item() for one, other in zip(got, expected, strict=True)) < 0.2


def test_a_processor_adds_the_halves_of_a_pair_in_float32():
    """In float32 it is faster, and the score loses nothing more; a policy that keeps the halves keeps them so."""
    net = make_net("bits")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden_BH = net.state_encoder(torch.randn(3, net.shape.state_size))
        assert hidden_BH.dtype is torch.bfloat16
        assert net.pair_state(hidden_BH).dtype is torch.float32
        assert net.pair_action(net.encode_ids(torch.tensor([5, -7]))).dtype is torch.float32


# --- Readable errors


@pytest.mark.parametrize(("num_states", "num_choices"), [(1, 2), (3, 2), (2, 1), (2, 3)])
def test_states_lists_and_choices_that_differ_in_number_are_refused(num_states, num_choices):
    net = make_net()
    ids, choices = torch.arange(5), torch.zeros(num_choices, dtype=torch.int64)
    with pytest.raises(DataError) as caught:
        net.evaluate(torch.zeros(num_states, 5), ids, Segments.from_counts([2, 3]), choices)
    assert str(caught.value) == (
        f"states, lists and choices differ in number: got ({num_states}, {num_choices}), expected 2"
    )


@pytest.mark.parametrize("num_ids", [4, 6])
def test_lengths_that_disagree_with_the_ids_by_one_are_refused(num_ids):
    net = make_net()
    with pytest.raises(DataError, match=r"list lengths disagree|differ in number"):
        net.evaluate(
            torch.zeros(2, 5), torch.arange(num_ids), Segments.from_counts([2, 3]), torch.zeros(2, dtype=torch.int64)
        )


@pytest.mark.parametrize("shape", [{"action_encoder": "table"}, {"num_actions": 7}, {"action_encoder": "tabel"}])
def test_a_shape_that_contradicts_itself_is_refused(shape):
    """A table without rows, rows without a table, an encoder that does not exist."""
    with pytest.raises(MovelistError, match=r"action_encoder|num_actions|table"):
        PolicyValueNet(ModelShape(state_size=3, hidden_dim=4, **shape))


# --- Counting


@pytest.mark.parametrize("encoder", ["bits", "table"])
@pytest.mark.parametrize("action_hidden_dim", [0, 5])
def test_flops_equal_those_that_torch_counts(encoder, action_hidden_dim):
    """torch's counter sees matrix products but not the pair, which the formula puts at 4 operations for each number.

    In backward it leaves out what nobody needs, as the formula does: the gradient of states and of bits.
    """
    net = make_net(encoder, action_hidden_dim=action_hidden_dim)
    num_steps, num_actions, num_unique, width = 7, 31, 11, 16
    step_A, unique_A = torch.arange(num_actions) % num_steps, torch.arange(num_actions) % num_unique
    encoded_U = net.encode_ids(torch.arange(num_unique))
    with FlopCounterMode(display=False) as counter:
        score_A, value_B = net(torch.zeros(num_steps, 5), encoded_U, step_A, unique_A)
        forward = counter.get_total_flops()
        (score_A.sum() + value_B.sum()).backward()
    pair = 4 * width * num_actions
    assert net.flops(num_steps, num_actions, num_unique, backward=False) == forward + pair
    assert net.flops(num_steps, num_actions, num_unique) == counter.get_total_flops() + 3 * pair


@pytest.mark.parametrize(("chosen", "got", "step"), [([2, 0], 2, 0), ([0, 3], 3, 1), ([1, -1], -1, 1)])
def test_a_choice_outside_its_own_list_is_refused(chosen, got, step):
    net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=8))
    inputs = torch.zeros(2, 4), torch.tensor([7, 9, 5, 6, 8]), Segments.from_counts([2, 3])
    expected = (
        rf"^the chosen index is outside the list: got {got}, expected 0 to {1 + step} \(step {step} of the batch\)"
    )
    with pytest.raises(DataError, match=expected):
        net.evaluate(*inputs, torch.tensor(chosen))
