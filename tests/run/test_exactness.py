"""The process's generators go on where they were, and what else is not as it was is named."""

import io
import random

import numpy as np
import torch

from movelist.run.exactness import circumstances, generators_state, restore_generators, what_differs

CPU = torch.device("cpu")


def draw():
    return [random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist(), random.random()]


def test_every_generator_goes_on_where_it_was():
    """In the middle of a pair of normal numbers too, the second of which Python and numpy keep."""
    random.gauss(0, 1), np.random.standard_normal()
    saved = io.BytesIO()
    torch.save(generators_state(), saved)
    expected = [draw(), draw()]
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    assert [draw(), draw()] != expected
    saved.seek(0)
    restore_generators(torch.load(saved, weights_only=True))
    assert [draw(), draw()] == expected


def test_the_states_of_gpus_go_onto_as_many_gpus_only(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.ones(2), torch.zeros(2)])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", given.append)
    state = generators_state()
    for count in (0, 1, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        restore_generators(state)
    assert [[part.tolist() for part in parts] for parts in given] == [[[1.0, 1.0], [0.0, 0.0]]]


def test_what_differs_is_one_line():
    now = circumstances(CPU)
    assert what_differs(now, now) == []
    assert what_differs({}, now) == []  # a checkpoint of an older version says nothing
    before = {**now, "torch": "2.9.0", "threads": "64", "no longer there": "x"}
    assert what_differs(before, now) == [
        f"Not bit for bit the run it would have been: torch {now['torch']} instead of 2.9.0, "
        f"threads {now['threads']} instead of 64."
    ]
