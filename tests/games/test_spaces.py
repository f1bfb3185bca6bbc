"""Observations of any shape become one row of numbers."""

import numpy as np
import pytest

from movelist.core.errors import GameError
from movelist.games.spaces import filled, flat_size, flatten, with_seat

spaces = pytest.importorskip("gymnasium.spaces")


def test_each_kind_of_space_is_flattened_in_its_order():
    space = spaces.Dict(
        {
            "z": spaces.Box(0, 9, (2, 2), np.int8),
            "a": spaces.Discrete(3, start=1),
            "action_mask": spaces.Box(0, 1, (7,), np.int8),
            "m": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
        }
    )
    value = {"z": [[1, 2], [3, 4]], "a": 3, "action_mask": [1] * 7, "m": ([1, 0], [0, 1])}
    row = flatten(space, value)
    assert row.dtype == np.float32
    assert row.tolist() == [0, 0, 1, *(0, 1, 1, 0, 0), *(0, 1), *(1, 2, 3, 4)]  # a, then m, then z
    assert flat_size(space, "here") == len(row)


def test_what_has_no_fixed_width_is_refused():
    with pytest.raises(GameError, match=r"no numbers of a fixed count: got Text, expected Box, .* \(my game\)"):
        flat_size(spaces.Dict({"a": spaces.Text(4)}), "my game")


def test_seats_of_different_widths_are_padded_and_told_apart():
    assert with_seat([2, 3]).tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert with_seat([2, 2]).tolist() == [[0, 0], [0, 0]]
    row = filled(with_seat([2, 3])[0], np.float32([7, 8]), 3, "here")
    assert row.tolist() == [7, 8, 0, 1, 0]
    with pytest.raises(GameError, match="wider than announced: got 4, expected 3"):
        filled(with_seat([2, 3])[0], np.ones(4, np.float32), 3, "here")
