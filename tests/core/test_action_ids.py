"""Ids keep their 64 bits, whatever they are written as, and nothing that is no id passes for one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
from movelist.core import action_ids
from movelist.core.action_ids import listed_twice, parse, parse_list, to_bits, to_text
from movelist.core.errors import DataError

ANY_ID = st.integers(-(2**63), 2**64 - 1)


@pytest.mark.parametrize("value", oracle.HARD_IDS)
def test_the_hard_ids_survive_every_spelling(value):
    pattern = oracle.signed(value)
    hexadecimal = hex(value % 2**64)
    for spelling in (value, str(value), hexadecimal, hexadecimal.upper().replace("X", "x"), to_text(pattern)):
        assert parse(spelling) == pattern
    kind = np.uint64 if value >= 2**63 else np.int64
    assert parse(kind(value)) == pattern
    assert parse_list([value]).tolist() == [pattern]
    assert parse_list(np.array([value], kind)).tolist() == [pattern]
    assert parse_list([str(value)]).tolist() == [pattern]
    assert int(to_text(value), 16) == value % 2**64


def test_a_list_of_small_and_large_ids_is_exact():
    assert np.asarray([7, 2**63 + 1025]).dtype == np.float64  # what numpy alone makes of it
    assert parse_list([7, 2**63 + 1025]).tolist() == [7, 2**63 + 1025 - 2**64]
    assert parse_list(oracle.HARD_IDS).tolist() == [oracle.signed(value) for value in oracle.HARD_IDS]
    assert parse_list(tuple(oracle.HARD_IDS)).dtype == np.int64


@given(st.lists(ANY_ID, max_size=8))
def test_any_list_keeps_its_bits(values):
    ids = parse_list(values)
    assert ids.dtype == np.int64
    assert ids.shape == (len(values),)
    assert [int(i) % 2**64 for i in ids] == [value % 2**64 for value in values]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, ">i8", object])
def test_arrays_of_every_integer_kind_are_read(kind):
    assert parse_list(np.array([1, 2, 100], kind)).tolist() == [1, 2, 100]


def test_parsing_is_the_identity_on_what_is_parsed_already():
    ids = parse_list(oracle.HARD_IDS)
    assert parse_list(ids).tolist() == ids.tolist()
    assert parse_list(torch.from_numpy(ids)).tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (1.0, "1.0 (float)"),
        (float("nan"), "nan (float)"),
        (np.float32(3), "np.float32(3.0) (float32)"),
        (True, "True (bool)"),
        (np.True_, "np.True_ (bool)"),
        (None, "None (NoneType)"),
        ("", "'' (str)"),
        ("1.5", "'1.5' (str)"),
        ("1e3", "'1e3' (str)"),
        ("0x", "'0x' (str)"),
        ("0b1", "'0b1' (str)"),
        (" 7", "' 7' (str)"),
        ("7\n", "'7\\n' (str)"),
        (b"7", "b'7' (bytes)"),
        ([7], "[7] (list)"),
    ],
)
def test_what_is_no_integer_is_refused(value, named):
    with pytest.raises(DataError) as caught:
        parse(value)
    assert str(caught.value) == (
        f"an action id is not an integer: got {named}, expected an integer, or text such as '17' or '0x11'. "
        "Write ids as integers; a float cannot hold 64 bits."
    )


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30, "18446744073709551616", "-0x8000000000000001"])
def test_what_does_not_fit_is_refused(value):
    with pytest.raises(DataError) as caught:
        parse(value)
    assert str(caught.value) == (
        f"an action id does not fit 64 bits: got {value}, expected -2^63 to 2^64 - 1. Hash or pack it into 64 bits."
    )


@pytest.mark.parametrize("value", [10**5000, "9" * 5000, "-0x" + "f" * 5000], ids=["integer", "text", "hexadecimal"])
def test_a_number_too_long_to_print_is_refused_like_any_other(value):
    with pytest.raises(DataError, match=r"^an action id does not fit 64 bits: "):
        parse(value)


@pytest.mark.parametrize(
    "values",
    [[1, 2.5], [7, 2**64], [True, 5], [1, None], np.array([1.0, 2.0]), np.array([True, False])],
    ids=["float", "too large", "bool", "none", "floats", "bools"],
)
def test_one_bad_id_refuses_the_list(values):
    with pytest.raises(DataError, match=r"^an action id (is not an integer|does not fit 64 bits): got "):
        parse_list(values)


@pytest.mark.parametrize(
    "values",
    [[[1, 2], [3, 4]], [[1, 2], [3]], np.zeros((2, 2), np.int64), np.int64(7), "12", b"ab", {5: 1}, {1, 3}],
    ids=["nested", "uneven", "table", "number", "text", "bytes", "dict", "set"],
)
def test_what_is_no_row_of_ids_is_refused(values):
    with pytest.raises(DataError):
        parse_list(values)


def test_an_empty_list_is_an_empty_array_of_ids():
    assert parse_list([]).dtype == np.int64
    assert parse_list([]).shape == (0,)


def test_text_shows_all_64_bits():
    assert to_text(-(2**63)) == "0x8000000000000000"
    assert to_text(np.int64(-1)) == "0xffffffffffffffff"
    assert to_text(255) == "0x00000000000000ff"


def test_bits_of_the_hard_ids():
    ids = [oracle.signed(value) for value in oracle.HARD_IDS]
    expected = [oracle.bits(value) for value in oracle.HARD_IDS]
    bits = to_bits(torch.tensor(ids))
    assert bits.dtype == torch.float32
    assert bits.tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_bits_equal_pythons(ids):
    assert to_bits(torch.tensor(ids, dtype=torch.int64)).tolist() == [oracle.bits(action_id) for action_id in ids]


@pytest.mark.parametrize("kind", [torch.int32, torch.float64, torch.uint64])
def test_bits_of_anything_but_ids_are_refused(kind):
    with pytest.raises(DataError) as caught:
        to_bits(torch.zeros(3, dtype=kind))
    assert str(caught.value) == f"action ids have the wrong dtype: got {kind}, expected torch.int64"


def test_lists_that_hold_an_id_twice_are_found_whatever_their_order():
    rng = np.random.default_rng(0)
    extreme = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    for _ in range(200):
        lists = [
            rng.choice([*extreme, *range(12)], size=rng.integers(1, 6), replace=bool(rng.integers(2))).tolist()
            for _ in range(rng.integers(1, 8))
        ]
        flat = np.array([action_id for row in lists for action_id in row], np.int64)
        expected = [len(set(row)) < len(row) for row in lists]
        assert listed_twice(flat, np.array([len(row) for row in lists])).tolist() == expected


def test_equal_keys_of_different_lists_are_told_apart(monkeypatch):
    """With factors of 0 all keys are equal, and the exact comparison decides."""
    monkeypatch.setattr(action_ids, "_ODD_FACTORS", (np.uint64(0), np.uint64(0)))
    assert listed_twice(np.array([5, 3, 3, 5, 7, 5, 7]), np.array([2, 2, 3])).tolist() == [False, False, True]
