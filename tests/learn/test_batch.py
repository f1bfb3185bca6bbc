"""The plan of an update: every step once an epoch, evenly cut, with its own list and ids."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
from movelist.core.action_ids import parse, to_bits
from movelist.learn import batch as batch_module
from movelist.learn.batch import Rollout, plan_batches, plan_minibatches, rollout_bytes, spread
from oracle import Step

CPU = torch.device("cpu")


def rollout_of(games, **options):
    return Rollout(oracle.columns(games, **options).check(), to_bits, CPU)


def sizes(count_N, *, batch_size, accumulation=1, max_actions=10**9, **options):
    """Steps in each batch of each minibatch."""
    plan = plan_minibatches(
        np.arange(len(count_N)),
        np.asarray(count_N),
        batch_size=batch_size,
        accumulation=accumulation,
        max_actions=max_actions,
        **options,
    )
    return [[len(part) for part in minibatch] for minibatch in plan]


# --- Cutting


@pytest.mark.parametrize(
    ("items", "largest", "parts"),
    [
        (65, 64, [33, 32]),
        (64, 64, [64]),
        (1, 64, [1]),
        (0, 64, []),
        (10, 3, [3, 3, 2, 2]),
        (7, 1, [1] * 7),
    ],
)
def test_a_remainder_is_spread_evenly(items, largest, parts):
    assert spread(items, largest) == parts


@given(st.integers(0, 5000), st.integers(1, 600))
def test_parts_are_few_equal_and_complete(items, largest):
    parts = spread(items, largest)
    assert sum(parts) == items
    assert len(parts) == -(-items // largest)
    assert not parts or (max(parts) <= largest and max(parts) - min(parts) <= 1 and min(parts) >= 1)


def test_minibatches_by_hand():
    assert sizes([2] * 65, batch_size=64) == [[33], [32]]
    assert sizes([2] * 65, batch_size=32, accumulation=2) == [[17, 16], [32]]
    assert sizes([2] * 64, batch_size=16, accumulation=4) == [[16, 16, 16, 16]]
    assert sizes([2], batch_size=64, accumulation=4) == [[1]]
    assert sizes([], batch_size=64) == []


def test_another_process_may_need_more_minibatches():
    assert sizes([2] * 3, batch_size=8, num_minibatches=5) == [[1], [1], [1], [], []]
    assert sizes([2] * 20, batch_size=8, num_minibatches=3) == [[7], [7], [6]]
    assert sizes([], batch_size=8, num_minibatches=2) == [[], []]


def test_a_batch_with_too_many_actions_is_halved_within_its_minibatch():
    assert sizes([10] * 8, batch_size=8, max_actions=40) == [[4, 4]]
    assert sizes([10] * 8, batch_size=8, max_actions=39) == [[2, 2, 2, 2]]
    assert sizes([10, 10, 10, 500], batch_size=4, max_actions=20) == [[2, 1, 1]]
    assert sizes([500, 500], batch_size=2, max_actions=20) == [[1, 1]]  # a longer list is a batch of its own


@given(
    st.lists(st.integers(1, 50), max_size=60),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_every_step_stands_in_one_batch_within_the_limits(count_N, batch_size, accumulation, max_actions, random):
    order = random.sample(range(len(count_N)), len(count_N))
    plan = list(
        plan_minibatches(
            np.array(order, np.int64),
            np.array(count_N, np.int64),
            batch_size=batch_size,
            accumulation=accumulation,
            max_actions=max_actions,
        )
    )
    parts = [part for minibatch in plan for part in minibatch]
    assert [step for part in parts for step in part.tolist()] == order  # each once, and in the order given
    assert len(plan) == -(-len(count_N) // (batch_size * accumulation))
    for part in parts:
        assert 1 <= len(part) <= batch_size
        assert len(part) == 1 or sum(count_N[step] for step in part) <= max_actions
    totals = [sum(map(len, minibatch)) for minibatch in plan]
    assert not totals or max(totals) - min(totals) <= 1


# --- Gathering


@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_a_batch_holds_its_steps_lists_and_choices(seed, random):
    games = oracle.random_games(seed, num_games=3, num_steps=4, longest=5, num_ids=12)
    steps = [step for game in games for step in game]
    rollout = rollout_of(games, num_players=2)
    parts = [np.array(random.sample(range(12), random.randint(1, 12))) for _ in range(random.randint(0, 3))]
    weight_N = np.arange(12.0)
    batches, there = plan_batches(rollout, parts, {"weight": weight_N})
    assert there.keys() == {"weight"}
    assert there["weight"].tolist() == weight_N.tolist()
    assert len(batches) == len(parts)
    for batch, part in zip(batches, parts, strict=True):
        wanted = [steps[number] for number in part]
        ids = [action_id for step in wanted for action_id in step.actions]
        row_A = batch.row_U[batch.unique_A]
        assert batch.step_B.tolist() == part.tolist()
        assert rollout.unique_id_R[row_A.numpy()].tolist() == ids
        assert rollout.encoded_R[row_A].tolist() == [oracle.bits(action_id) for action_id in ids]
        assert rollout.state_NS[batch.step_B].tolist() == [step.state for step in wanted]
        assert batch.num_unique == len(batch.row_U) == len(set(ids))  # each id once in a batch
        lengths = [len(step.actions) for step in wanted]
        assert batch.segments.offsets.tolist() == np.cumsum([0, *lengths]).tolist()
        assert batch.segments.step_A.tolist() == np.repeat(np.arange(len(part)), lengths).tolist()
        assert (batch.segments.num_steps, batch.segments.num_actions) == (len(part), sum(lengths))
        assert [ids[place] for place in batch.chosen_B] == [step.actions[step.chosen] for step in wanted]


def hard_lists():
    """Lists of one, of one kind, and mixed; ids within a list differ as 64-bit patterns."""
    signed_ids = [value for value in oracle.HARD_IDS if value < 2**63]
    large = [2**63, 2**63 + 1025, 2**64 - 1]
    mixed = [7, 2**63 + 1025, -5, 2**53 + 1, 2**63 - 1]
    return [*([value] for value in oracle.HARD_IDS), signed_ids, large, mixed]


def test_hard_ids_reach_the_batch_and_come_back():
    lists = hard_lists()
    rollout = rollout_of([[Step([0.0], ids, chosen) for ids in lists for chosen in range(len(ids))]])
    expected = [parse(ids[chosen]) for ids in lists for chosen in range(len(ids))]
    order = np.random.default_rng(0).permutation(len(expected))
    batches, _ = plan_batches(rollout, np.array_split(order, 3), {})
    for batch in batches:
        row_B = batch.row_U[batch.unique_A[batch.chosen_B]]
        wanted = [expected[step] for step in batch.step_B]
        assert rollout.unique_id_R[row_B.numpy()].tolist() == wanted
        assert rollout.encoded_R[row_B].tolist() == [oracle.bits(action_id) for action_id in wanted]


def test_all_indices_go_over_in_one_copy(monkeypatch):
    copies = []

    def counting(columns, device):
        copies.append(sorted(columns))
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    rollout = rollout_of(oracle.random_games(0), num_players=2)
    monkeypatch.setattr(batch_module, "to_device", counting)
    plan_batches(rollout, [np.arange(3), np.arange(3, 24)], {"advantage": np.zeros(24)})
    assert copies == [["advantage", "plan"]]


def test_no_batches_need_no_plan():
    rollout = rollout_of([[]], state_size=2)
    batches, there = plan_batches(rollout, [], {"advantage": np.zeros(0)})
    assert (batches, there["advantage"].shape, rollout.num_steps) == ([], (0,), 0)


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32])
def test_states_keep_their_dtype(kind):
    games = [[Step([0.0, 3.0], [1, 2], 0)]]
    rollout = rollout_of(games, state_NS=np.array([[0, 3]], kind))
    assert rollout.state_NS.numpy().dtype == kind


def test_rollout_bytes_is_what_the_plan_takes():
    """States, ids, targets, and for each epoch six int64 columns: three of the steps, three of the legal actions."""
    episodes = oracle.columns(oracle.random_games(0, num_games=40, num_steps=10, num_ids=30), num_players=2)
    rollout = Rollout(episodes, to_bits, CPU)
    steps = np.arange(episodes.num_steps)
    batches, _ = plan_batches(rollout, [steps, steps], {})
    tensors = [
        t for b in batches for t in (b.step_B, b.segments.offsets, b.segments.step_A, b.unique_A, b.row_U, b.chosen_B)
    ]
    planned = episodes.state_NS.nbytes + sum(t.nbytes for t in tensors)
    planned += rollout.encoded_R.nbytes + 8 * len(rollout.unique_id_R) + 4 * 4 * episodes.num_steps  # ids, targets
    # It counts each action as a unique one, so it may only be above: by at most the third column of the actions.
    assert planned <= rollout_bytes(episodes, 2) + 16 <= planned + 2 * 8 * episodes.num_actions + 16
