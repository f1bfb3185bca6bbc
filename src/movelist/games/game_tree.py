"""A small game as a whole: every history of an OpenSpiel game as flat arrays, for exact answers.

The nodes stand by depth, and the children of a node one after another, in the order of its actions. A parent comes
before its children, so one pass over the depths carries chances down, and one the other way carries values up.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from movelist.core.errors import GameError
from movelist.games.game import Game, game_name
from movelist.games.openspiel import OpenSpielGame

Array = NDArray[Any]
MOST_NODES = 5_000_000
MOST_STATE_BYTES = 2 << 30  # of the states that are kept for the network
CHANCE, END = -1, -2  # in player_N; OpenSpiel's end of a game is another number
PROBES = 16  # games that are too large by far are known by a few random ways down

_HELP = "Judge such a game by matches: movelist match RUN --against OTHER."


@dataclass(frozen=True)
class GameTree:
    """All histories of a game: N nodes, I turns that look different, C levels below the root's.

    Attributes:
        player_N: int64 [N], who moves: a seat, CHANCE, or END.
        parent_N: int64 [N], -1 for the root.
        first_child_N: int64 [N], where a node's children begin; they end where the next node's begin.
        count_N: int64 [N], how many there are.
        chance_N: float64 [N], with which chance a chance node above leads here; 1 below players.
        information_N: int64 [N], which nodes the mover cannot tell apart have the same number; -1 where nobody moves.
        seen_N: int64 [N], the node's row in `state_IS`: what a policy is shown; -1 where nobody moves.
        return_NP: float64 [N, P], each seat's return at an end, 0 elsewhere.
        levels: Where each depth begins and ends.
        num_information_states: Over all seats.
        state_IS: float32 [I, S], the turns that look different to a policy.
        legal_I: int64 [I], lengths of their legal lists.
        action_id_A: int64 [A], these lists one after another.
    """

    player_N: Array
    parent_N: Array
    first_child_N: Array
    count_N: Array
    chance_N: Array
    information_N: Array
    seen_N: Array
    return_NP: Array
    levels: list[slice]
    num_information_states: int
    state_IS: Array
    legal_I: Array
    action_id_A: Array


def grow(game: Game, *, most_nodes: int = MOST_NODES) -> GameTree:
    """Walk through all histories of a game.

    Information states are OpenSpiel's texts of them; where nothing is hidden each node is one of its own. What a policy
    is shown is the state that training shows it: two information states that share it get the same probabilities.

    Args:
        game: One of OpenSpiel's.
        most_nodes: Beyond that the game is refused.

    Raises:
        GameError: It is not OpenSpiel's, or too large, or does not tell its information states.
    """
    if not isinstance(game, OpenSpielGame):
        raise GameError(
            "exact exploitability needs a game whose chances are known",
            got=game_name(game),
            expected="one of OpenSpiel's games",
            do=_HELP,
        )
    _refuse_by_probes(game, most_nodes)
    return _Walk(game, most_nodes).tree()


def _refuse_by_probes(game: OpenSpielGame, most_nodes: int) -> None:
    """Refuse what is too large by far before walking for minutes.

    The product of the branches on a random way down is the number of its last nodes on average, so in a game of at most
    `most_nodes` it is 100 times as large once in 100 ways at most, and 16 times in a row never.
    Source: Knuth 1975, "Estimating the Efficiency of Backtrack Programs".
    """
    generator, sizes = random.Random(0), []
    for _ in range(PROBES):
        state, size = game._game.new_initial_state(), 1
        while not state.is_terminal() and size <= 100 * most_nodes:
            actions = state.legal_actions()
            size *= len(actions)
            state.apply_action(generator.choice(actions))
        if size <= 100 * most_nodes:
            return
        sizes.append(size)
    raise _too_large(game, f"more than {100 * most_nodes:,} nodes, by an estimate", most_nodes)


def _too_large(game: OpenSpielGame, got: str, most_nodes: int) -> GameError:
    return GameError(
        "the game is too large for exact exploitability",
        got=got,
        expected=f"at most {most_nodes:,} nodes",
        where=game.name,
        do=_HELP,
    )


@dataclass
class _Seen:
    """The turns that look different to a policy, each kept once."""

    number: dict[Hashable, int] = field(default_factory=dict)
    rows: list[Array] = field(default_factory=list)
    lists: list[list[int]] = field(default_factory=list)

    def of(self, row: Array, ids: list[int]) -> int:
        number = self.number.setdefault((row.tobytes(), tuple(ids)), len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
            self.lists.append(ids)
        return number


class _Walk:
    """One depth-first walk: a state is alive only while its branch is open."""

    def __init__(self, game: OpenSpielGame, most_nodes: int) -> None:
        self.game, self.most_nodes = game, most_nodes
        self.player, self.parent, self.depth = array("q"), array("q"), array("q")
        self.information, self.seen = array("q"), array("q")
        self.chance, self.ends = array("d"), array("d")
        self.known: dict[Hashable, int] = {}
        self.looks = _Seen()
        self.observation, self.view = game._new_observation()
        kind = game._game.get_type()
        self.nothing_hidden = kind.information.name == "PERFECT_INFORMATION"
        if not self.nothing_hidden and not kind.provides_information_state_string:
            raise GameError(
                "exact exploitability needs information states, and OpenSpiel has none of this game",
                got=game.name,
                do=_HELP,
            )

    def tree(self) -> GameTree:
        stack: list[tuple[Any, int, int, float]] = [(self.game._game.new_initial_state(), -1, 0, 1.0)]
        while stack:
            state, parent, depth, chance = stack.pop()
            if len(self.player) == self.most_nodes:
                raise _too_large(self.game, f"more than {self.most_nodes:,} nodes", self.most_nodes)
            node = len(self.player)
            self.parent.append(parent)
            self.depth.append(depth)
            self.chance.append(chance)
            children = self._children(state)
            stack += [(state.child(action), node, depth + 1, p) for action, p in reversed(children)]
        return self._by_depth()

    def _children(self, state: Any) -> list[tuple[int, float]]:
        """Note what a node is; its actions, with their chances."""
        if state.is_terminal():
            self._note(END, -1, -1)
            self.ends.extend(state.returns())
            return []
        if state.is_chance_node():
            self._note(CHANCE, -1, -1)
            return list(state.chance_outcomes())
        player, actions = state.current_player(), state.legal_actions()
        key = len(self.player) if self.nothing_hidden else (player, state.information_state_string(player))
        self._note(player, self.known.setdefault(key, len(self.known)), self._look(state, player, actions))
        return [(action, 1.0) for action in actions]

    def _note(self, player: int, information: int, seen: int) -> None:
        self.player.append(player)
        self.information.append(information)
        self.seen.append(seen)

    def _look(self, state: Any, player: int, actions: list[int]) -> int:
        """The number of what a policy is shown, as `OpenSpielState.observe` writes it."""
        self.observation.set_from(state, player)
        row = self.game._empty_rows[player].copy()
        row[: self.game._tensor_size] = self.view
        if len(self.looks.rows) * row.nbytes > MOST_STATE_BYTES:
            got = f"states of {len(row):,} numbers that fill {MOST_STATE_BYTES >> 30} GB"
            raise _too_large(self.game, got, self.most_nodes)
        table = self.game._ids
        return self.looks.of(row, actions if table is None else [table[action] for action in actions])

    def _by_depth(self) -> GameTree:
        """Sort by depth: nodes that were met in order stay so, so children stay together."""
        depth_N = np.asarray(self.depth)
        order_N = np.argsort(depth_N, kind="stable")
        place_N = np.empty_like(order_N)
        place_N[order_N] = np.arange(len(order_N))
        met_parent_N = np.asarray(self.parent)[order_N]
        parent_N = np.where(met_parent_N < 0, -1, place_N[met_parent_N])
        count_N = np.bincount(parent_N[1:], minlength=len(order_N))
        player_N = np.asarray(self.player)
        return_NP = np.zeros((len(order_N), self.game.num_players))
        return_NP[player_N == END] = np.asarray(self.ends).reshape(-1, self.game.num_players)
        ends = np.cumsum(np.bincount(depth_N)).tolist()
        lists = self.looks.lists
        return GameTree(
            player_N=player_N[order_N],
            parent_N=parent_N,
            first_child_N=1 + np.cumsum(count_N) - count_N,
            count_N=count_N,
            chance_N=np.asarray(self.chance)[order_N],
            information_N=np.asarray(self.information)[order_N],
            seen_N=np.asarray(self.seen)[order_N],
            return_NP=return_NP[order_N],
            levels=[slice(start, end) for start, end in zip([0, *ends], ends, strict=False)],
            num_information_states=len(self.known),
            state_IS=np.array(self.looks.rows, np.float32).reshape(-1, self.game.state_size),
            legal_I=np.array([len(ids) for ids in lists], np.int64),
            action_id_A=np.fromiter(_flat(lists), np.int64),
        )


def _flat(lists: list[list[int]]) -> Iterator[int]:
    return (action for ids in lists for action in ids)
