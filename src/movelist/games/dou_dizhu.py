"""64-bit ids for the 26,057 actions of dou dizhu that say what is played.

    bits 0 to 51    four for each rank 3, 4, ..., 9, T, J, Q, K, A, 2: how many cards of it, as a thermometer
                    (one card is 0001, three are 0111), so that a single bit answers "at least a pair?"
    bits 52, 53     the black-and-white and the coloured joker
    bits 54 to 57   pass, bid 1, bid 2, bid 3
    bit  58         some of the cards are kickers: they ride along and need not be beaten
    bits 59 to 62   the lowest rank that is no kicker, as a number: 0 for a 3, 12 for a 2, 13 and 14 for the jokers
    bit  63         the kickers are pairs

The cards alone would give 26,053 plays only 25,661 ids: 333444555666 is a run of four triples, but also 444555666 with
333 as kickers. Bits 58 to 62 tell such twins apart. Their rank also decides whether one play beats another of its kind,
and so a network need not look for it among the kickers.

`encode` reads OpenSpiel's names of the actions; `describe` gives them back from nothing but the id.
"""

from __future__ import annotations

import functools

from movelist.core import action_ids
from movelist.core.errors import DataError, GameError

CALLS = {"Pass": 54, "Bid 1": 55, "Bid 2": 56, "Bid 3": 57}
KICKERS_BIT = 58
FIRST_RANK_SHIFT = 59
PAIRS_BIT = 63

_CARDS = (
    "3456789TJQKA2BC"  # a card's place is its rank as a number; B and C are the jokers here, one letter like the rest
)
_JOKERS = {"(BWJ)": "B", "(CJ)": "C"}
_NUM_SUITED_RANKS = 13


def encode(name: str) -> int:
    """The id of the action that OpenSpiel calls `name`.

    Returns:
        A signed 64-bit integer: negative where the kickers are pairs.

    Raises:
        GameError: OpenSpiel has no such name.

    Example:
        >>> hex(encode("33")), hex(encode("Pass")), hex(encode("333444-56"))
        ('0x3', '0x40000000000000', '0x400000000001177')
    """
    if name in CALLS:
        return 1 << CALLS[name]
    main, kickers = _split(name)
    action_id = _mask(main) | _CARDS.index(main[0]) << FIRST_RANK_SHIFT
    if kickers:
        pairs = 3 * len(kickers) == 2 * len(main)  # two cards to each triple
        action_id |= _mask(kickers) | 1 << KICKERS_BIT | pairs << PAIRS_BIT
    return action_ids.parse(action_id)


def describe(action_id: int) -> str:
    """The name of an action, read from its id alone.

    Raises:
        DataError: `encode` gives no action this id.

    Example:
        >>> describe(0x3), describe(1 << 54), describe(0x400000000001177)
        ('33', 'Pass', '333444-56')
    """
    action_id = action_ids.parse(action_id)
    for name, bit in CALLS.items():
        if action_id == 1 << bit:
            return name
    name = _play_name(action_id)
    try:
        if encode(name) == action_id:
            return name
    except GameError:
        pass  # the bits make no play
    raise DataError("no action of dou dizhu has this id", got=action_id, do="Take ids from dou_dizhu.encode.")


def _split(name: str) -> tuple[str, str]:
    """The cards that count and the kickers, one letter a card.

    OpenSpiel writes a dash between them, but none for a single triple: 3444 is 444 with a kicker.
    """
    for joker, letter in _JOKERS.items():
        name = name.replace(joker, letter)
    main, dash, kickers = name.partition("-")
    if not dash and 4 <= len(main) <= 5 and len(set(main)) == 2:
        triple = main[2]  # in order, the card in the middle belongs to the triple
        return triple * 3, main.replace(triple, "")
    return main, kickers


@functools.cache  # the plays share 9,000 groups of cards
def _mask(cards: str) -> int:
    """Bits 0 to 53: a thermometer for each suited rank, one bit for each joker."""
    if not cards or not set(cards) <= set(_CARDS):
        raise GameError("not the name of a dou dizhu action", got=repr(cards), expected="a name such as 333444-56")
    mask = 0
    for card in set(cards):
        mask |= ((1 << cards.count(card)) - 1) << _shift(_CARDS.index(card))
    return mask


def _shift(rank: int) -> int:
    """The first bit of a rank."""
    return 4 * min(rank, _NUM_SUITED_RANKS) + max(rank - _NUM_SUITED_RANKS, 0)


def _play_name(action_id: int) -> str:
    """The cards of an id as OpenSpiel writes them; `describe` proves that they are right by encoding them again."""
    cards = "".join(card * _count(action_id, rank) for rank, card in enumerate(_CARDS))
    if action_id >> KICKERS_BIT & 1:
        num_triples = len(cards) // (5 if action_id >> PAIRS_BIT & 1 else 4)
        first = action_id >> FIRST_RANK_SHIFT & 15
        run = _CARDS[first : first + num_triples]
        if num_triples > 1:
            cards = "".join(card * 3 for card in run) + "-" + "".join(card for card in cards if card not in run)
    for joker, letter in _JOKERS.items():
        cards = cards.replace(letter, joker)
    return cards


def _count(action_id: int, rank: int) -> int:
    """How many cards of a rank an id holds."""
    bits = 0b1111 if rank < _NUM_SUITED_RANKS else 0b1
    return (action_id >> _shift(rank) & bits).bit_count()
