"""A world of one: the default, not a special case."""

import dataclasses

import pytest
import torch

from movelist.learn.parallel import World


def test_one_process_is_a_world_of_its_own():
    world = World(torch.device("cpu"))
    assert (world.rank, world.size, world.device.type) == (0, 1, "cpu")


def test_the_sum_over_one_process_is_what_it_has():
    tensor = torch.tensor([1.0, 2.0])
    assert World(torch.device("cpu")).all_reduce(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]


def test_a_world_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        World(torch.device("cpu")).rank = 1
