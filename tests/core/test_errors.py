"""What an error says, and how the tree of errors hangs together."""

import pickle

import pytest

from movelist.core import errors
from movelist.core.errors import MovelistError, nearest

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MovelistError)]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "width differs"),
        ({"got": 3}, "width differs: got 3"),
        ({"expected": 4}, "width differs: expected 4"),
        ({"got": 0, "expected": 4}, "width differs: got 0, expected 4"),
        ({"where": "episode 7"}, "width differs (episode 7)"),
        ({"do": "Write 4 numbers."}, "width differs. Write 4 numbers."),
        (
            {"got": 3, "expected": 4, "where": "episode 7", "do": "Write 4 numbers."},
            "width differs: got 3, expected 4 (episode 7). Write 4 numbers.",
        ),
    ],
)
def test_a_message_has_the_parts_it_was_given(facts, message):
    error = MovelistError("width differs", **facts)
    assert str(error) == message
    assert (error.what, error.got, error.do) == ("width differs", facts.get("got"), facts.get("do"))


def test_a_message_is_one_line_whatever_was_found():
    assert "\n" not in str(MovelistError("a file cannot be read", got="first line\nsecond line"))


def test_an_error_survives_the_way_between_processes():
    error = errors.DataError("width differs", got=3, expected=4, where="episode 7", do="Write 4 numbers.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.DataError
    assert (str(copy), copy.what, copy.got, copy.where) == (str(error), error.what, error.got, error.where)


def test_every_error_has_one_root_and_stands_in_the_drawn_tree_with_its_exit_code():
    drawn = {line.split()[1]: int(line.split()[-1]) for line in errors.__doc__.splitlines() if "──" in line}
    assert drawn == {kind.__name__: kind.exit_code for kind in KINDS if kind is not MovelistError}
    assert all(issubclass(kind, MovelistError) and kind.exit_code in (1, 2) for kind in KINDS)


@pytest.mark.parametrize(
    ("name", "found"), [("hiden_dim", "hidden_dim"), ("lr", "lr"), ("clip", "clip_range"), ("zzzzzz", None)]
)
def test_nearest_offers_a_known_name_or_nothing(name, found):
    assert nearest(name, ["hidden_dim", "lr", "clip_range"]) == found
