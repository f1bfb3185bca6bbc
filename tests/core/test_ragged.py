"""Softmax, entropy, KL, sampling and argmax over flat lists, held against one list at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import oracle
from movelist.core import ragged
from movelist.core.errors import DataError
from movelist.core.ragged import Segments

# float32 keeps 24 bits, 6e-8; a list's sum and logarithm cost a few of them.
CLOSE = 1e-6

LOGITS = st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=7)
LISTS = st.lists(LOGITS, min_size=1, max_size=6)


def flat(lists, dtype=torch.float64):
    return torch.tensor([x for one in lists for x in one], dtype=dtype), Segments.from_counts(list(map(len, lists)))


def random_lists(seed, num_lists, longest, scale=3.0):
    """Float32 logits as a list of tensors."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (num_lists,), generator=generator).tolist()
    return [scale * torch.randn(length, generator=generator) for length in lengths]


# --- Segments


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda c: np.array(c, np.uint8)])
def test_segments_say_where_each_list_lies(kind):
    segments = Segments.from_counts(kind([2, 3, 1]))
    assert segments.offsets.tolist() == [0, 2, 5, 6]
    assert segments.step_A.tolist() == [0, 0, 1, 1, 1, 2]
    assert (segments.num_steps, segments.num_actions) == (3, 6)
    assert segments.offsets.dtype == segments.step_A.dtype == torch.int64


def test_no_lists_are_no_lists():
    segments = Segments.from_counts([])
    assert (segments.num_steps, segments.num_actions, segments.offsets.tolist()) == (0, 0, [0])
    assert ragged.log_softmax(torch.zeros(0), segments).shape == (0,)
    assert ragged.entropy(torch.zeros(0), segments).shape == (0,)
    assert ragged.argmax(torch.zeros(0), segments).shape == (0,)


def test_small_integers_do_not_overflow():
    assert Segments.from_counts(np.array([200, 200], np.uint8)).num_actions == 400


@pytest.mark.parametrize(("counts", "length"), [([3, 0, 2], 0), ([3, -1, 2], -1)])
def test_an_empty_list_is_refused_by_its_place(counts, length):
    with pytest.raises(DataError) as caught:
        Segments.from_counts(counts)
    assert str(caught.value) == (
        f"a list of legal actions is empty: got length {length}, expected at least 1 (step 1 of 3). "
        "A turn without a legal action is no step: leave it out."
    )


@pytest.mark.parametrize(
    ("counts", "found"),
    [([1.0, 2.0], "float64 [2]"), ([[1, 2], [3, 4]], "int64 [2, 2]"), ([True, True], "bool [2]"), (3, "int64 []")],
)
def test_lengths_that_are_no_row_of_integers_are_refused(counts, found):
    with pytest.raises(DataError) as caught:
        Segments.from_counts(counts)
    assert str(caught.value) == f"list lengths are not a row of integers: got {found}"


class Operations(TorchDispatchMode):
    """Counts the tensor operations that run inside the block."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize(
    "call",
    [
        ragged.log_softmax,
        ragged.entropy,
        lambda value_A, segments: ragged.kl_divergence(value_A, torch.zeros(5), segments),
        lambda value_A, segments: ragged.kl_divergence(torch.zeros(5), value_A, segments),
        ragged.sample,
        ragged.argmax,
    ],
    ids=["log_softmax", "entropy", "kl", "other of kl", "sample", "argmax"],
)
def test_lengths_that_disagree_by_one_are_refused_before_anything_runs(call, size):
    segments, value_A = Segments.from_counts([2, 3]), torch.zeros(size)
    with Operations() as operations, pytest.raises(DataError) as caught:
        call(value_A, segments)
    assert str(caught.value) == (
        f"list lengths disagree with the flat tensor: got [{size}] values, expected [5], the sum of 2 list lengths"
    )
    # torch.zeros(5) of the KL cases runs before the call under test.
    assert operations.count <= 1


def test_a_flat_tensor_of_two_dimensions_is_refused():
    with pytest.raises(DataError, match=r"got \[5, 1\] values, expected \[5\]"):
        ragged.log_softmax(torch.zeros(5, 1), Segments.from_counts([2, 3]))


def test_nothing_asks_the_device():
    """On the meta device there are no numbers: whoever needs one to go on, as a wait does, fails there."""
    segments = Segments.from_counts([2, 3]).to("meta")
    value_A = torch.zeros(5, device="meta")
    log_prob_A = ragged.log_softmax(value_A, segments)
    assert ragged.entropy(log_prob_A, segments).shape == (2,)
    assert ragged.kl_divergence(log_prob_A, value_A, segments).shape == (2,)
    assert ragged.sample(log_prob_A, segments).shape == (2,)
    assert ragged.argmax(log_prob_A, segments).device.type == "meta"


# --- The numbers


def test_one_lists_logits_do_not_move_anothers_probabilities():
    """With the maximum of the batch, 50, in place of the list's own, the first list would be [5.2e-06, 7.1e-07]."""
    value_A, segments = flat([[1.0, -1.0], [-math.inf, 50.0]], torch.float32)
    probability_A = ragged.log_softmax(value_A, segments).exp()
    assert probability_A.tolist() == pytest.approx([0.8808, 0.1192, 0.0, 1.0], abs=5e-5)


@pytest.mark.parametrize("other", [-1e30, -1e4, 1e4, 1e30])
def test_a_neighbour_of_any_size_changes_no_bit(other):
    alone = ragged.log_softmax(*flat([[0.3, -0.7, 1.1]], torch.float32))
    value_A, segments = flat([[other, other / 2], [0.3, -0.7, 1.1], [other]], torch.float32)
    assert torch.equal(ragged.log_softmax(value_A, segments)[2:5], alone)


def test_sums_are_not_differences_of_a_running_sum():
    """After 100,000 entries of 1e4 a float32 running sum cannot see ten ones any more."""
    segments = Segments.from_counts([100_000, 10])
    value_A = torch.cat([torch.full((100_000,), 1e4), torch.ones(10)])
    assert ragged._sum(value_A, segments)[1].item() == 10.0
    log_prob_A = ragged.log_softmax(value_A, segments)
    assert torch.allclose(log_prob_A[-10:], torch.tensor(-math.log(10)), rtol=0, atol=CLOSE)
    assert torch.allclose(log_prob_A[:10], torch.tensor(-math.log(100_000)), rtol=CLOSE, atol=0)


@pytest.mark.parametrize("place", ["alone", "first", "last", "middle"])
def test_a_list_does_not_depend_on_its_neighbours(place):
    one = random_lists(0, 1, 40)[0]
    others = random_lists(1, 1000, 40, scale=20.0)
    index = {"alone": 0, "first": 0, "last": 1000, "middle": 500}[place]
    lists = [one] if place == "alone" else [*others[:index], one, *others[index:]]
    reference = one.double().requires_grad_()
    (oracle.log_probs(reference)[0] + oracle.entropy(reference)).backward()

    segments = Segments.from_counts([len(x) for x in lists])
    value_A = torch.cat(lists).requires_grad_()
    log_prob_A = ragged.log_softmax(value_A, segments)
    start = int(segments.offsets[index])
    (log_prob_A.sum() * 0 + log_prob_A[start] + ragged.entropy(log_prob_A, segments)[index]).backward()
    mine = slice(start, start + len(one))
    assert torch.allclose(log_prob_A[mine].double(), oracle.log_probs(one), rtol=CLOSE, atol=CLOSE)
    assert torch.allclose(value_A.grad[mine].double(), reference.grad, rtol=0, atol=CLOSE)
    assert not value_A.grad[: mine.start].any()
    assert not value_A.grad[mine.stop :].any()


@given(LISTS)
def test_log_softmax_and_entropy_equal_one_list_at_a_time(lists):
    value_A, segments = flat(lists)
    log_prob_A = ragged.log_softmax(value_A, segments)
    entropy_B = ragged.entropy(log_prob_A, segments)
    # float64 on both sides: only the order of additions differs.
    for part, one, entropy in zip(log_prob_A.split([len(x) for x in lists]), lists, entropy_B, strict=True):
        assert torch.allclose(part, oracle.log_probs(torch.tensor(one)), rtol=1e-12, atol=1e-12)
        assert torch.allclose(entropy, oracle.entropy(torch.tensor(one)), rtol=1e-12, atol=1e-12)
        assert abs(part.exp().sum().item() - 1) < 1e-12
        assert -1e-12 <= entropy.item() <= math.log(len(one)) + 1e-12


@given(
    st.lists(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=7), min_size=1, max_size=6)
)
def test_kl_equals_one_list_at_a_time(lists):
    p_A, segments = flat([[p for p, _ in one] for one in lists])
    q_A, _ = flat([[q for _, q in one] for one in lists])
    kl_B = ragged.kl_divergence(ragged.log_softmax(p_A, segments), ragged.log_softmax(q_A, segments), segments)
    expected = [oracle.kl(*torch.tensor(one, dtype=torch.float64).t()) for one in lists]
    assert torch.allclose(kl_B, torch.stack(expected), rtol=1e-9, atol=1e-12)
    assert kl_B.min() > -1e-12


@given(LISTS, st.randoms(use_true_random=False))
def test_permuting_a_list_permutes_its_probabilities(lists, random):
    orders = [random.sample(range(len(one)), len(one)) for one in lists]
    value_A, segments = flat(lists)
    shuffled_A, _ = flat([[one[i] for i in order] for one, order in zip(lists, orders, strict=True)])
    starts = segments.offsets[:-1].tolist()
    place_A = torch.tensor([start + i for start, order in zip(starts, orders, strict=True) for i in order])
    log_prob_A = ragged.log_softmax(value_A, segments)
    shuffled_log_prob_A = ragged.log_softmax(shuffled_A, segments)
    assert torch.allclose(shuffled_log_prob_A, log_prob_A[place_A], rtol=1e-12, atol=1e-12)
    assert torch.allclose(
        ragged.entropy(shuffled_log_prob_A, segments), ragged.entropy(log_prob_A, segments), rtol=1e-12, atol=1e-12
    )


def test_float32_follows_the_truth_on_lists_of_1_to_400():
    lists = random_lists(2, 200, 400)
    segments = Segments.from_counts([len(x) for x in lists])
    log_prob_A = ragged.log_softmax(torch.cat(lists), segments)
    expected_A = torch.cat([oracle.log_probs(one) for one in lists])
    # Adding 400 float32 numbers one after another loses up to a few 1e-6 of the sum.
    assert torch.allclose(log_prob_A.double(), expected_A, rtol=0, atol=5e-6)
    entropy_B = torch.stack([oracle.entropy(one) for one in lists])
    assert torch.allclose(ragged.entropy(log_prob_A, segments).double(), entropy_B, rtol=1e-5, atol=1e-5)


def test_an_impossible_entry_has_no_part_in_entropy_nor_gradient():
    value_A = torch.tensor([1.0, 2.0, -math.inf], requires_grad=True)
    segments = Segments.from_counts([3])
    log_prob_A = ragged.log_softmax(value_A, segments)
    entropy_B = ragged.entropy(log_prob_A, segments)
    assert entropy_B.item() == pytest.approx(0.582203, abs=1e-6)
    assert log_prob_A[2].item() == -math.inf
    entropy_B.sum().backward()
    assert value_A.grad.isfinite().all()
    assert value_A.grad[2].item() == 0.0
    # d entropy / d logit = -p (log p + entropy)
    p = torch.tensor([1.0, 2.0], dtype=torch.float64).softmax(0)
    assert torch.allclose(value_A.grad[:2].double(), -p * (p.log() + 0.582203), atol=1e-5)


def test_an_impossible_entry_passes_no_gradient_of_log_prob_and_kl():
    value_A = torch.tensor([1.0, 2.0, -math.inf, 0.5], requires_grad=True)
    segments = Segments.from_counts([3, 1])
    log_prob_A = ragged.log_softmax(value_A, segments)
    other_A = torch.tensor([math.log(0.5), math.log(0.5), -math.inf, 0.0])
    kl_B = ragged.kl_divergence(log_prob_A, other_A, segments)
    assert kl_B.tolist() == pytest.approx([math.log(2) - 0.582203, 0.0], abs=1e-5)
    (log_prob_A[0] + kl_B.sum()).backward()
    assert value_A.grad.isfinite().all()
    assert value_A.grad[2:].tolist() == [0.0, 0.0]


def test_kl_is_infinite_where_the_other_rules_out_what_happens():
    segments = Segments.from_counts([2, 2])
    even, sure = math.log(0.5), [0.0, -math.inf]
    kl_B = ragged.kl_divergence(torch.tensor([even, even, *sure]), torch.tensor([*sure, even, even]), segments)
    assert kl_B.tolist() == [math.inf, pytest.approx(math.log(2))]


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_log_probs_are_never_of_half_precision(given_dtype, expected):
    segments = Segments.from_counts([3])
    value_A = torch.tensor([0.0, 1.0, 2.0], dtype=given_dtype)
    assert ragged.log_softmax(value_A, segments).dtype == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ragged.log_softmax(value_A, segments).dtype == expected


def test_a_nan_stays_in_its_own_list():
    value_A, segments = flat([[1.0, 2.0], [math.nan, 0.0], [3.0, 3.0]], torch.float32)
    log_prob_A = ragged.log_softmax(value_A, segments)
    assert log_prob_A.isnan().tolist() == [False, False, True, True, False, False]
    assert ragged.entropy(log_prob_A, segments).isnan().tolist() == [False, True, False]


def test_7830_actions_never_raise():
    """`torch.distributions.Categorical` refuses about one in a hundred float32 softmaxes of this size."""
    segments = Segments.from_counts([7830])
    generator = torch.Generator().manual_seed(0)
    for scale in np.geomspace(0.01, 300, 200):
        log_prob_A = ragged.log_softmax(scale * torch.randn(7830, generator=generator), segments)
        choice = int(ragged.sample(log_prob_A, segments, generator)[0])
        assert 0 <= choice < 7830
        assert math.isfinite(log_prob_A[choice].item())
        assert 0 <= ragged.entropy(log_prob_A, segments).item() < math.log(7830) + 1e-4


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
    """A list of 50,000 among 1,000 lists of 10: padded they would be 50 million numbers."""
    segments = Segments.from_counts([10] * 500 + [50_000] + [10] * 500)
    value_A = torch.randn(segments.num_actions).requires_grad_()
    with LargestTensor() as largest:
        log_prob_A = ragged.log_softmax(value_A, segments)
        ragged.sample(log_prob_A.detach(), segments)
        kl_B = ragged.kl_divergence(log_prob_A, torch.zeros_like(log_prob_A), segments)
        (ragged.entropy(log_prob_A, segments) + kl_B).sum().backward()
    assert largest.numel == segments.num_actions


# --- Choosing


def test_argmax_takes_the_first_of_equals_within_each_list():
    value_A, segments = flat([[1, 3, 3], [5], [-2, -2], [0, -math.inf], [-math.inf, -math.inf]])
    assert ragged.argmax(value_A, segments).tolist() == [1, 0, 0, 0, 0]
    assert ragged.argmax(value_A, segments).dtype == torch.int64


def test_argmax_shows_a_nan_and_leaves_the_neighbours_alone():
    value_A, segments = flat([[9, 1], [1, math.nan, 3, math.nan], [0, 2]])
    assert ragged.argmax(value_A, segments).tolist() == [0, 1, 1]


@given(LISTS)
def test_argmax_equals_pythons(lists):
    assert ragged.argmax(*flat(lists)).tolist() == [one.index(max(one)) for one in lists]


def test_sampling_is_a_function_of_the_generator():
    value_A, segments = flat([[0.0] * 50] * 20)
    first, again, other = (
        ragged.sample(value_A, segments, torch.Generator().manual_seed(seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_impossible_entry_is_never_drawn():
    value_A, segments = flat([[-math.inf, 0.0, -math.inf], [0.0, -math.inf]] * 5000, torch.float32)
    assert ragged.sample(value_A, segments, torch.Generator().manual_seed(0)).tolist() == [1, 0] * 5000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_the_probabilities(dtype):
    """Lists of different lengths side by side; each frequency within 4.5 standard deviations of its probability."""
    wanted = [[0.7, 0.2, 0.1], [0.05, 0.95], [1.0], [0.25, 0.25, 0.0, 0.5]]
    times = 20_000
    value_A, segments = flat([[math.log(p) if p else -math.inf for p in one] for one in wanted] * times, dtype)
    index = ragged.sample(value_A, segments, torch.Generator().manual_seed(5)).reshape(times, len(wanted))
    for column, one in zip(index.t(), wanted, strict=True):
        frequency = torch.bincount(column, minlength=len(one)) / times
        for got, p in zip(frequency.tolist(), one, strict=True):
            assert abs(got - p) <= 4.5 * math.sqrt(p * (1 - p) / times)
