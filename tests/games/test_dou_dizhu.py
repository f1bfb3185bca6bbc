"""The ids of dou dizhu: all different, readable from the id alone, and meaning what the module says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from movelist.core.errors import DataError, GameError
from movelist.games.dou_dizhu import FIRST_RANK_SHIFT, KICKERS_BIT, PAIRS_BIT, describe, encode

CARD_BITS = (1 << 54) - 1


@pytest.fixture(scope="module")
def names():
    """OpenSpiel's names of all actions, in its order."""
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel names the actions")
    game = pyspiel.load_game("dou_dizhu")
    state = game.new_initial_state()
    return [state.action_to_string(0, action) for action in range(game.num_distinct_actions())]


def test_all_actions_have_an_id_of_their_own(names):
    ids = {encode(name) for name in names}
    assert len(names) == len(ids) == 26_057
    assert all(-(2**63) <= action_id < 2**63 for action_id in ids)


def test_every_id_says_which_action_it_is(names):
    assert [describe(encode(name)) for name in names] == names


def test_the_cards_alone_would_not_do(names):
    """The fact that bits 58 to 62 are there for."""
    plays = names[4:]
    assert names[:4] == ["Pass", "Bid 1", "Bid 2", "Bid 3"]
    assert len(plays) == 26_053
    assert len({encode(name) & CARD_BITS for name in plays}) == 25_661


def test_each_bit_counts_its_cards(names):
    """The thermometer against counting letters."""
    for name in names[4::50]:
        text = name.replace("(BWJ)", "B").replace("(CJ)", "C")
        action_id = encode(name)
        for rank, card in enumerate("3456789TJQKA2"):
            assert action_id >> 4 * rank & 15 == (1 << text.count(card)) - 1
        assert action_id >> 52 & 1 == text.count("B")
        assert action_id >> 53 & 1 == text.count("C")


@pytest.mark.parametrize(
    ("name", "cards", "first_rank", "kickers", "pairs"),
    [
        ("3", 0x1, 0, False, False),
        ("2222", 0xF << 48, 12, False, False),
        ("34567", 0x11111, 0, False, False),
        ("(BWJ)", 1 << 52, 13, False, False),
        ("(CJ)", 1 << 53, 14, False, False),
        ("(BWJ)(CJ)", 3 << 52, 13, False, False),
        ("3334", 0x17, 0, True, False),
        ("3444", 0x71, 1, True, False),
        ("33344", 0x37, 0, True, True),
        ("33444", 0x73, 1, True, True),
        ("AAA(CJ)", 7 << 44 | 1 << 53, 11, True, False),
        ("333444", 0x77, 0, False, False),
        ("333444-56", 0x1177, 0, True, False),
        ("333444-5566", 0x3377, 0, True, True),
        ("444555666-333", 0x7777, 1, True, False),
        ("333444555666", 0x7777, 0, False, False),
        ("333444555-666", 0x7777, 0, True, False),
    ],
)
def test_the_bits_of_plays(name, cards, first_rank, kickers, pairs):
    pattern = cards | first_rank << FIRST_RANK_SHIFT | kickers << KICKERS_BIT | pairs << PAIRS_BIT
    assert encode(name) % 2**64 == pattern
    assert (encode(name) < 0) == pairs  # a signed integer, as in numpy and torch
    assert describe(pattern) == describe(encode(name)) == name  # unsigned or signed


@pytest.mark.parametrize(("name", "bit"), [("Pass", 54), ("Bid 1", 55), ("Bid 2", 56), ("Bid 3", 57)])
def test_the_bits_of_calls(name, bit):
    assert encode(name) == 1 << bit
    assert describe(1 << bit) == name


@pytest.mark.parametrize("name", ["", "Bid 4", "pass", "333 444", "-33", "1"])
def test_other_names_are_refused(name):
    with pytest.raises(GameError) as caught:
        encode(name)
    assert str(caught.value).startswith("not the name of a dou dizhu action: got '")
    assert str(caught.value).endswith("expected a name such as 333444-56")


@pytest.mark.parametrize("action_id", [0, 0b10, 0b101, 3 << 54, 0x7777 | 1 << KICKERS_BIT | 14 << FIRST_RANK_SHIFT, -1])
def test_ids_that_mean_nothing_are_refused(action_id):
    with pytest.raises(DataError) as caught:
        describe(action_id)
    assert str(caught.value) == f"no action of dou dizhu has this id: got {action_id}. Take ids from dou_dizhu.encode."


@given(st.integers(-(2**63), 2**64 - 1))
def test_describe_reads_an_id_or_refuses_it(action_id):
    try:
        name = describe(action_id)
    except DataError:
        return
    assert encode(name) % 2**64 == action_id % 2**64
