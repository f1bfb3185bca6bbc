"""The pair score, in chunks and recomputed in backward, against the same formula written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from movelist.learn import pair
from movelist.learn.pair import pair_score


def written_out(state_BH, action_UH, weight_H, step_A, unique_A):
    """`w . relu(state + action)`, one pair at a time."""
    scores = [
        (weight_H * (state_BH[b] + action_UH[u]).clamp(min=0)).sum()
        for b, u in zip(step_A.tolist(), unique_A.tolist(), strict=True)
    ]
    return (
        torch.stack(scores) if scores else (state_BH.sum() + action_UH.sum() + weight_H.sum()) * state_BH.new_zeros(0)
    )


def random_pairs(seed, *, num_steps=5, num_unique=7, num_pairs=40, width=6, dtype=torch.float64):
    """Halves, weight and pairs; rows are used many times, once, and never."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    step_A = torch.randint(num_steps, (num_pairs,), generator=generator)
    unique_A = torch.randint(num_unique, (num_pairs,), generator=generator)
    return normal(num_steps, width), normal(num_unique, width), normal(width), step_A, unique_A


def gradients(score_A, factor_A, *leaves):
    return torch.autograd.grad((score_A * factor_A).sum(), leaves)


def test_a_score_by_hand():
    """relu([1, -2] + [1, 1]) = [2, 0]; relu([1, -2] + [-3, 5]) = [0, 3]; w = [10, 1]."""
    state_BH = torch.tensor([[1.0, -2.0]], requires_grad=True)
    action_UH = torch.tensor([[1.0, 1.0], [-3.0, 5.0]], requires_grad=True)
    weight_H = torch.tensor([10.0, 1.0], requires_grad=True)
    score_A = pair_score(state_BH, action_UH, weight_H, torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert score_A.tolist() == [20.0, 3.0]
    (score_A * torch.tensor([1.0, 100.0])).sum().backward()
    assert state_BH.grad.tolist() == [[10.0, 100.0]]
    assert action_UH.grad.tolist() == [[10.0, 0.0], [0.0, 100.0]]
    assert weight_H.grad.tolist() == [2.0, 300.0]


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.integers(1, 5))
def test_any_pairs_equal_the_formula_written_out(seed, num_steps, num_unique, num_pairs, width):
    sizes = {"num_steps": num_steps, "num_unique": num_unique, "num_pairs": num_pairs, "width": width}
    *leaves, step_A, unique_A = random_pairs(seed, **sizes)
    factor_A = torch.linspace(-1, 2, num_pairs, dtype=torch.float64)
    score_A = pair_score(*leaves, step_A, unique_A)
    expected_A = written_out(*leaves, step_A, unique_A)
    # float64 on both sides: only the order of additions differs.
    assert torch.allclose(score_A, expected_A, rtol=1e-12, atol=1e-12)
    for got, expected in zip(
        gradients(score_A, factor_A, *leaves), gradients(expected_A, factor_A, *leaves), strict=True
    ):
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_the_slope():
    *leaves, step_A, unique_A = random_pairs(3, num_pairs=12, width=3)
    assert torch.autograd.gradcheck(lambda *halves: pair_score(*halves, step_A, unique_A), leaves)


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 39, 1000])
def test_features_are_added_inside_the_relu_chunk_by_chunk(monkeypatch, rows, with_ids):
    state_BH, action_UH, weight_H, step_A, unique_A = random_pairs(9)
    generator = torch.Generator().manual_seed(1)
    feature_AF, matrix_FH = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((40, 3), (3, 6)))
    matrix_FH.requires_grad_()
    leaves = [state_BH, *([action_UH] if with_ids else []), weight_H, matrix_FH]
    factor_A = torch.linspace(-1, 2, 40, dtype=torch.float64)
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", rows * 6 * 8)
    given_UH = action_UH if with_ids else None
    score_A = pair_score(state_BH, given_UH, weight_H, step_A, unique_A, feature_AF, matrix_FH)
    sums = [state_BH[b] + (action_UH[u] if with_ids else 0) + feature_AF[a] @ matrix_FH
            for a, (b, u) in enumerate(zip(step_A.tolist(), unique_A.tolist(), strict=True))]  # fmt: skip
    expected_A = torch.stack([(weight_H * sum_H.clamp(min=0)).sum() for sum_H in sums])
    assert torch.allclose(score_A, expected_A, rtol=1e-12, atol=1e-12)
    expected = gradients(expected_A, factor_A, *leaves)
    for got, other in zip(gradients(score_A, factor_A, *leaves), expected, strict=True):
        assert torch.allclose(got, other, rtol=1e-12, atol=1e-12)


def test_with_features_nothing_of_the_size_of_all_pairs_times_the_width_is_held(monkeypatch):
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", 10 * 64 * 4)
    state_BH, action_UH, weight_H, step_A, unique_A = random_pairs(2, num_pairs=4000, width=64, dtype=torch.float32)
    feature_AF, matrix_FH = torch.randn(4000, 3), torch.randn(3, 64, requires_grad=True)
    with Largest() as largest:
        pair_score(state_BH, action_UH, weight_H, step_A, unique_A, feature_AF, matrix_FH).sum().backward()
    assert 4000 <= largest.numel < 4000 * 64 / 10


class Largest(TorchDispatchMode):
    """The most numbers that an operation gave back."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            self.numel = max(self.numel, one.numel() if isinstance(one, torch.Tensor) else 0)
        return result


@pytest.mark.parametrize("rows", [1, 3, 39, 40, 41])
def test_chunks_change_nothing(monkeypatch, rows):
    """A chunk's end in the middle of a list, at its end, and behind everything."""
    *leaves, step_A, unique_A = random_pairs(4)
    factor_A = torch.arange(40.0, dtype=torch.float64)
    whole_A = pair_score(*leaves, step_A, unique_A)
    whole = gradients(whole_A, factor_A, *leaves)
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", rows * 6 * 8)
    cut_A = pair_score(*leaves, step_A, unique_A)
    assert torch.allclose(cut_A, whole_A, rtol=1e-13, atol=1e-13)
    for got, expected in zip(gradients(cut_A, factor_A, *leaves), whole, strict=True):
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_a_row_wider_than_a_chunk_is_worked_off_alone(monkeypatch):
    *leaves, step_A, unique_A = random_pairs(5)
    expected_A = pair_score(*leaves, step_A, unique_A)
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", 1)
    assert torch.allclose(pair_score(*leaves, step_A, unique_A), expected_A, rtol=1e-13, atol=1e-13)


def test_inputs_and_gradients_passed_in_are_left_as_they_were():
    *leaves, step_A, unique_A = random_pairs(6)
    before = [leaf.detach().clone() for leaf in leaves]
    factor_A = torch.ones(40, dtype=torch.float64)
    pair_score(*leaves, step_A, unique_A).backward(factor_A)
    assert all(torch.equal(leaf, old) for leaf, old in zip(leaves, before, strict=True))
    assert factor_A.tolist() == [1.0] * 40


def test_a_closed_gate_passes_no_gradient_not_even_at_zero():
    state_BH = torch.zeros(1, 3, requires_grad=True)
    action_UH = torch.tensor([[-1.0, 0.0, 1.0]], requires_grad=True)
    pair_score(state_BH, action_UH, torch.ones(3), torch.tensor([0]), torch.tensor([0])).sum().backward()
    assert state_BH.grad.tolist() == [[0.0, 0.0, 1.0]]


def test_a_nan_reaches_its_own_pairs_and_is_not_rectified_away():
    state_BH, action_UH = torch.zeros(2, 3), torch.zeros(2, 3)
    action_UH[1, 2] = math.nan
    score_A = pair_score(state_BH, action_UH, torch.ones(3), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))
    assert score_A.isnan().tolist() == [False, True, False, True]


def test_no_pairs_have_no_scores_and_no_gradient():
    *leaves, step_A, unique_A = random_pairs(7, num_pairs=0)
    score_A = pair_score(*leaves, step_A, unique_A)
    assert score_A.shape == (0,)
    for gradient in torch.autograd.grad(score_A.sum(), leaves):
        assert not gradient.any()


def test_the_weight_follows_the_halves_into_half_precision():
    """Under autocast the halves come as bfloat16 and the weight as float32; its gradient is float32 again."""
    *halves, weight_H, step_A, unique_A = random_pairs(8, dtype=torch.float32)
    halves = [half.detach().bfloat16().requires_grad_() for half in halves]
    score_A = pair_score(*halves, weight_H, step_A, unique_A)
    score_A.float().sum().backward()
    expected_A = written_out(*(half.detach().double() for half in halves), weight_H.detach().double(), step_A, unique_A)
    # bfloat16 keeps 8 bits: each of the 6 products and their sum is off by up to 0.4 %.
    assert torch.allclose(score_A.detach().double(), expected_A, rtol=0.03, atol=0.05)
    assert score_A.dtype == torch.float32
    assert (weight_H.grad.dtype, halves[0].grad.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision_do_not_stall(monkeypatch, dtype):
    """An action in 5,000 lists: adding ones in bfloat16 would stop at 256, in float16 at 2,048."""
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", 100 * 2 * 2)
    state_BH = torch.ones(5000, 2, dtype=dtype, requires_grad=True)
    action_UH = torch.ones(1, 2, dtype=dtype, requires_grad=True)
    weight_H = torch.ones(2, requires_grad=True)
    score_A = pair_score(state_BH, action_UH, weight_H, torch.arange(5000), torch.zeros(5000, dtype=torch.int64))
    assert score_A.tolist() == [4.0] * 5000
    (score_A / 8).sum().backward()
    assert action_UH.grad.tolist() == [[624.0, 624.0] if dtype is torch.bfloat16 else [625.0, 625.0]]
    assert weight_H.grad.tolist() == pytest.approx([1250.0, 1250.0], rel=2**-8)


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor held that was made inside the block."""

    def __init__(self):
        super().__init__()
        self.numel, self.seen = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen.add(function._schema.name)
        for tensor in result if isinstance(result, tuple | list) else [result]:
            # An expanded gradient has A x H entries by its shape, of which it stores A.
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_all_pairs_are_never_held_at_once(monkeypatch):
    """2,000 pairs of width 64 are 128,000 numbers; the chunks here hold 100 pairs."""
    sizes = {"num_steps": 9, "num_unique": 11, "num_pairs": 2000, "width": 64, "dtype": torch.float32}
    *leaves, step_A, unique_A = random_pairs(9, **sizes)
    monkeypatch.setitem(pair.CHUNK_BYTES, "cpu", 100 * 64 * 4)
    with LargestTensor() as largest:
        pair_score(*leaves, step_A, unique_A).sum().backward()
    assert {"aten::index_select", "aten::index_add_"} <= largest.seen  # forward and backward were watched
    assert largest.numel == 100 * 64


def test_nothing_asks_the_device():
    """On the meta device there are no numbers: whoever needs one to go on, as a wait does, fails there."""
    leaves = [torch.zeros(shape, device="meta", requires_grad=True) for shape in [(2, 3), (4, 3), (3,)]]
    index_A = torch.zeros(5, dtype=torch.int64, device="meta")
    score_A = pair_score(*leaves, index_A, index_A)
    score_A.sum().backward()
    assert score_A.shape == (5,)
    assert all(leaf.grad.shape == leaf.shape for leaf in leaves)


def test_a_gradient_of_the_gradient_is_refused_in_words():
    *leaves, step_A, unique_A = random_pairs(0)
    (grad,) = torch.autograd.grad(pair_score(*leaves, step_A, unique_A).square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
