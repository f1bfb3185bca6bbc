"""Minibatches: real steps untouched, and the same work dealt out in lists of one length."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import steps
from movelist.core.errors import DataError
from movelist.data.episode import Episodes
from movelist.measure.minibatches import all_actions, equal_lists, mixed_lists, pick_steps


def lists(episodes: Episodes) -> list[tuple[int, ...]]:
    edges = episodes.action_offsets
    return [tuple(episodes.action_id_A[a:b].tolist()) for a, b in itertools.pairwise(edges)]


@given(seed=st.integers(0, 1000), batch_size=st.integers(2, 40))
def test_mixed_and_equal_lists_keep_b_a_and_u(seed: int, batch_size: int) -> None:
    source = steps(80, encoder="bits", seed=seed)
    rng = np.random.default_rng(seed)
    mixed = mixed_lists(source, batch_size, rng).check()
    assert mixed.num_steps == batch_size
    assert mixed.num_actions % batch_size == 0
    known = Counter(zip(map(bytes, source.state_NS), lists(source), source.chosen_N.tolist(), strict=True))
    drawn = Counter(zip(map(bytes, mixed.state_NS), lists(mixed), mixed.chosen_N.tolist(), strict=True))
    assert drawn <= known, "every step is one of the source, none twice"

    equal = equal_lists(mixed, rng).check()
    assert set(np.diff(equal.action_offsets)) == {mixed.num_actions // batch_size}
    assert Counter(equal.action_id_A.tolist()) == Counter(mixed.action_id_A.tolist())
    assert all(len(set(ids)) == len(ids) for ids in lists(equal))
    np.testing.assert_array_equal(equal.state_NS, mixed.state_NS)


def test_forced_steps_are_not_drawn() -> None:
    source = steps(30, encoder="bits")
    count_N = np.where(np.arange(30) % 2, np.diff(source.action_offsets), 1)
    keep = np.concatenate([np.arange(a, a + n) for a, n in zip(source.action_offsets[:-1], count_N, strict=True)])
    short = Episodes(
        **{name: getattr(source, name) for name in source.__dataclass_fields__}
        | {
            "action_offsets": np.r_[0, np.cumsum(count_N)],
            "action_id_A": source.action_id_A[keep],
            "chosen_N": np.zeros(30, np.int64),
        }
    )
    mixed = mixed_lists(short, 8, np.random.default_rng(0))
    assert np.diff(mixed.action_offsets).min() > 1


def test_pick_steps_keeps_the_order() -> None:
    source = steps(10, encoder="bits")
    picked = pick_steps(source, np.array([7, 2]))
    assert lists(picked) == [lists(source)[7], lists(source)[2]]
    np.testing.assert_array_equal(picked.state_NS, source.state_NS[[7, 2]])
    assert np.isnan(picked.log_prob_N).all()


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        mixed_lists(steps(5, encoder="bits"), 8, np.random.default_rng(0))
    assert str(caught.value) == (
        "too few steps with a choice to measure on: got 5, expected at least 8, the batch size. "
        "Raise --num_episodes or lower --batch_sizes."
    )


def test_steps_that_cannot_be_swapped_are_refused() -> None:
    source = steps(7, encoder="bits")
    assert source.num_actions % 7
    with pytest.raises(DataError, match="no steps to swap for, to make the legal actions a multiple of the steps"):
        mixed_lists(source, 7, np.random.default_rng(0))
    with pytest.raises(DataError, match="lists of one length need as many legal actions as a multiple of the steps"):
        equal_lists(source, np.random.default_rng(0))


def test_all_actions_hold_those_seen() -> None:
    source, rng = steps(30, encoder="bits"), np.random.default_rng(0)
    seen = np.unique(source.action_id_A)
    np.testing.assert_array_equal(all_actions(source, None, table=False, rng=rng), seen)
    many = all_actions(source, 1000, table=False, rng=rng)
    assert len(many) == 1000 and np.isin(seen, many).all() and (np.diff(many) > 0).all()
    np.testing.assert_array_equal(all_actions(steps(5, encoder="table"), 40, table=True, rng=rng), np.arange(40))
