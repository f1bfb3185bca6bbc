"""Policies at work: states and legal lists in, choices out, for many games at once.

A policy is anything with `choose`. The noise of a random choice comes from the game's seed and the turn, hashed, so
that a choice does not depend on which other games happened to be in the same batch, nor on how many processes play.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from movelist.core import action_ids, ragged
from movelist.core.errors import DataError, MovelistError, NonFiniteError, PlayerError
from movelist.core.metrics import span
from movelist.core.ragged import Segments
from movelist.data.column import Column
from movelist.data.episode import FURTHER, offsets_of, ranges
from movelist.games.bot import Bot, described, is_bot, player_failed
from movelist.games.columns import FEATURES
from movelist.learn.device import autocast, is_out_of_memory, to_device
from movelist.learn.model import Network, PolicyValueNet

Array = NDArray[Any]
_FEATURE_COLUMN = next(column for column in FURTHER if column.label == FEATURES)
KEPT_BYTES = 64 << 20  # of halves of scores: 32,768 ids at a width of 512, which is more than dou dizhu has


@dataclass(frozen=True, slots=True)
class Turns:
    """One turn of each of B games.

    Attributes:
        state_BS: [B, S], what each mover knows.
        count_B: int64 [B], lengths of the legal lists.
        action_id_A: int64 [A], the lists one after another.
        seed_B: int64 [B], each game's seed.
        turn_B: int64 [B], turns played in that game before this one.
        columns: What the games' states tell beside, per step [B, width] and per action [A, width].
    """

    state_BS: Array
    count_B: Array
    action_id_A: Array
    seed_B: Array
    turn_B: Array
    columns: Mapping[Column, Array] = field(default_factory=dict)

    def place(self, turn: int) -> str:
        """Turn number `turn` of these as people read it."""
        return f"game with seed {self.seed_B[turn]}, turn {self.turn_B[turn]}"

    def place_of_action(self, action: int) -> str:
        """The place of the turn in whose list entry number `action` stands."""
        return self.place(int(np.searchsorted(np.cumsum(self.count_B), action, side="right")))

    def take(self, index_B: Array) -> Turns:
        """Some of them, in the given order."""
        action_A = ranges(offsets_of(self.count_B), index_B)
        row = {"step": index_B, "action": action_A}
        return Turns(
            self.state_BS[index_B],
            self.count_B[index_B],
            self.action_id_A[action_A],
            self.seed_B[index_B],
            self.turn_B[index_B],
            {column: array[row[column.per]] for column, array in self.columns.items()},
        )


def join_turns(parts: Sequence[Turns]) -> Turns:
    """The turns of several groups of games as one."""
    if len(parts) == 1:
        return parts[0]
    state_BS, count_B, action_id_A, seed_B, turn_B = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("state_BS", "count_B", "action_id_A", "seed_B", "turn_B")
    )
    columns = {column: np.concatenate([part.columns[column] for part in parts]) for column in parts[0].columns}
    return Turns(state_BS, count_B, action_id_A, seed_B, turn_B, columns)


class Policy(Protocol):
    """Chooses actions."""

    def choose(self, turns: Turns) -> tuple[Array, Array]:
        """Choose one action for each turn.

        Returns:
            index_B: int64 [B], the choice's index in its list; log_prob_B: float32 [B], its log-probability.
        """


def choices(policy: Policy, turns: Turns) -> tuple[Array, Array]:
    """What a policy chooses, checked.

    Raises:
        PlayerError: It raised an exception, or answered something that is no choice; names game and turn.
    """
    try:
        answer: Any = policy.choose(turns)
    except MovelistError:
        raise
    except Exception as error:  # whatever somebody's code raises
        if is_out_of_memory(error):  # which is explained elsewhere
            raise
        raise player_failed(policy, described(error), *_first(turns)) from error
    try:
        index_B, log_prob_B = np.asarray(answer[0]), np.asarray(answer[1])
        fits = index_B.shape == log_prob_B.shape == turns.count_B.shape and index_B.dtype.kind in "iu"
    except (TypeError, ValueError, IndexError, KeyError):
        fits = False
    if not fits:
        fault = f"{answer!r:.80}, where two rows of {len(turns.count_B)}, indices and log-probabilities, are expected"
        raise player_failed(policy, fault, *_first(turns))
    if (index_B < 0).any() or (index_B >= turns.count_B).any():
        row = int(np.flatnonzero((index_B < 0) | (index_B >= turns.count_B))[0])
        fault = f"index {index_B[row]}, where one from 0 to {turns.count_B[row] - 1} is expected"
        raise player_failed(policy, fault, int(turns.seed_B[row]), int(turns.turn_B[row]))
    return index_B, log_prob_B


def _first(turns: Turns) -> tuple[int, int]:
    """The seed and the turn of the first of the games that were asked for together."""
    return int(turns.seed_B[0]), int(turns.turn_B[0])


Forfeits = dict[int, tuple[int, PlayerError]]  # by the game's number: which player failed first, and how


def refuse(forfeits: Forfeits | None, number: int, player: int, error: PlayerError) -> None:
    """Note who failed in which game; raise it where forfeits are not wanted."""
    if forfeits is None:
        raise error
    forfeits.setdefault(number, (player, error))


def choices_or_forfeits(
    policy: Policy, turns: Turns, number_B: Array, player: int, forfeits: Forfeits | None
) -> tuple[Array, Array]:
    """As `choices`; where forfeits are wanted, games in which the policy fails go on with the first legal action.

    Args:
        policy: Who is asked.
        turns: The turns.
        number_B: int64 [B], the games' numbers.
        player: The policy's number among the players.
        forfeits: Told of such games; None raises the error.
    """
    try:
        return choices(policy, turns)
    except PlayerError as error:
        if len(number_B) == 1 or forfeits is None:
            refuse(forfeits, int(number_B[0]), player, error)
            return np.zeros(1, np.int64), np.zeros(1, np.float32)
    # One by one, for an exception does not say which of the games it is about.
    rows = [np.array([row]) for row in range(len(number_B))]
    each = [choices_or_forfeits(policy, turns.take(row), number_B[row], player, forfeits) for row in rows]
    index_B, log_prob_B = (np.concatenate(part) for part in zip(*each, strict=True))
    return index_B, log_prob_B


def ask(
    policies: Sequence[Policy | Bot],
    policy_B: Array,
    turns: Turns,
    number_B: Array | None = None,
    forfeits: Forfeits | None = None,
) -> tuple[Array, Array]:
    """Have each turn decided by its own policy, each policy asked once at most.

    Args:
        policies: Who may be asked; bots are not, for they moved where the game is.
        policy_B: int64 [B], which of them decides.
        turns: The turns.
        number_B: int64 [B], the games' numbers, for `forfeits`.
        forfeits: See `choices_or_forfeits`.

    Returns:
        As `Policy.choose`; 0 for the turns of bots.
    """
    index_B, log_prob_B = np.zeros(len(policy_B), np.int64), np.zeros(len(policy_B), np.float32)
    for number, policy in enumerate(policies):
        mine_B = policy_B == number
        if not mine_B.any() or is_bot(policy):
            continue
        row_M = np.flatnonzero(mine_B)
        mine = turns if len(row_M) == len(mine_B) else turns.take(row_M)
        game_M = row_M if number_B is None else number_B[row_M]
        index_B[row_M], log_prob_B[row_M] = choices_or_forfeits(policy, mine, game_M, number, forfeits)
    return index_B, log_prob_B


class RandomPolicy:
    """Every legal action is equally likely."""

    greedy = False

    def choose(self, turns: Turns) -> tuple[Array, Array]:
        """See `Policy`."""
        uniform_B = uniform(turns.seed_B, turns.turn_B)
        index_B = np.minimum((uniform_B * turns.count_B).astype(np.int64), turns.count_B - 1)
        return index_B, -np.log(turns.count_B).astype(np.float32)

    def log_probs(self, turns: Turns) -> Array:
        """Log-probabilities of all legal actions, float32 [A]."""
        return np.repeat(-np.log(turns.count_B).astype(np.float32), turns.count_B)


class NetPolicy:
    """A network's policy, by the weights that it has when this object is made: make a new one after each update.

    While the weights stand still, an action's half of the pair score is computed once for each id and kept, up to
    KEPT_BYTES of halves; an id that comes after that makes room by having all others computed anew.

    Args:
        net: The network; copied, so that training it further does not change this policy.
        greedy: Always the likeliest action instead of drawing by probability.
        use_amp: Compute in mixed precision where that is faster.
    """

    def __init__(self, net: Network, *, greedy: bool = False, use_amp: bool = False) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False).eval()
        self.greedy, self.use_amp = greedy, use_amp
        self.device = next(net.parameters()).device
        self.most_rows = max(1, KEPT_BYTES // (4 * net.shape.hidden_dim))
        self._known_id_R = np.zeros(0, np.int64)  # sorted
        self._row_R = np.zeros(0, np.int64)  # where each known id's half score lies in _half_RH
        self._half_RH: torch.Tensor | None = None  # in the precision in which it is used

    @torch.no_grad()
    def choose(self, turns: Turns) -> tuple[Array, Array]:
        """See `Policy`.

        Raises:
            DataError: An id has no row in the network's table.
            NonFiniteError: The network gives NaN or infinity for a chosen action.
        """
        with span("forward"):
            log_prob_A, segments = self._log_probs(turns)
            if self.greedy:
                index_B = ragged.argmax(log_prob_A, segments)
            else:
                noise = to_device({"noise": gumbel(turns)}, self.device)["noise"]
                index_B = ragged.argmax(log_prob_A + noise, segments)
            log_prob_B = log_prob_A.index_select(0, segments.offsets[:-1] + index_B)
            both_2B = torch.stack([index_B.double(), log_prob_B.double()])
        with span("read"):
            both = both_2B.cpu().numpy()  # WAIT: the games need the choices
        refuse_non_finite(both[1], turns)
        return both[0].astype(np.int64), both[1].astype(np.float32)

    @torch.no_grad()
    def log_probs(self, turns: Turns) -> Array:
        """Log-probabilities of all legal actions, float32 [A]."""
        return self._log_probs(turns)[0].cpu().numpy()  # WAIT: it is the answer

    def act(
        self,
        state: ArrayLike,
        legal_actions: Any,
        action_features: ArrayLike | None = None,
        *,
        seed: int | None = None,
        turn: int = 0,
    ) -> tuple[int, float]:
        """Choose for a single turn, as an engine would.

        Args:
            state: [S].
            legal_actions: 64-bit ids, signed or unsigned, each once.
            action_features: [A, F], in the order of `legal_actions`, where the policy looks at them.
            seed: Of the draw, together with `turn`: the same two draw the same action, as in an engine's reader. None
                draws anew each time. A greedy policy ignores both.
            turn: Number of the turn in its game.

        Returns:
            The index of the choice in `legal_actions`, and its log-probability.

        Raises:
            DataError: The list is empty or names an action twice, an id is no 64-bit integer, or the state's width is
                another.
        """
        index_B, log_prob_B = self.choose(self._one_turn(state, legal_actions, action_features, seed, turn))
        return int(index_B[0]), float(log_prob_B[0])

    def probabilities(self, state: ArrayLike, legal_actions: Any, action_features: ArrayLike | None = None) -> Array:
        """The probability of each legal action of one turn, float32 [A]. Arguments and errors as in `act`."""
        return np.exp(self.log_probs(self._one_turn(state, legal_actions, action_features, 0, 0)))

    def _one_turn(
        self, state: ArrayLike, legal_actions: Any, action_features: ArrayLike | None, seed: int | None, turn: int
    ) -> Turns:
        shape = self.net.shape
        turns = one_turn(state, legal_actions, shape.state_size, seed=seed, turn=turn)
        return with_features(turns, action_features, shape.feature_size)

    def _log_probs(self, turns: Turns) -> tuple[torch.Tensor, Segments]:
        plan = Segments.from_counts(turns.count_B)
        if not isinstance(self.net, PolicyValueNet):
            return self._by_forward(turns, plan)
        columns = {"state": turns.state_BS, "offsets": plan.offsets.numpy(), "step": plan.step_A.numpy()}
        if self.net.action_encoder is not None:
            columns["row"] = self._rows(turns)
        if self.net.shape.feature_size:
            columns[FEATURES] = features_of(turns, self.net.shape.feature_size)
        there = to_device(columns, self.device)
        segments = Segments(there["offsets"], there["step"], plan.num_steps, plan.num_actions)
        with autocast(self.device, self.use_amp):
            half_BH = self.net.pair_state(self.net.state_encoder(there["state"]))
            half_RH, row_A = self._half_RH, there.get("row", segments.step_A)
            score_A = self.net.pair(half_BH, half_RH, segments.step_A, row_A, feature_AF=there.get(FEATURES))
        return ragged.log_softmax(score_A, segments), segments

    def _by_forward(self, turns: Turns, plan: Segments) -> tuple[torch.Tensor, Segments]:
        """By a network of one's own, of whose scores no half can be kept."""
        unique_id_U, unique_A = np.unique(turns.action_id_A, return_inverse=True)
        self.net.check_ids(torch.from_numpy(turns.action_id_A), turns.place_of_action)
        columns = {"state": turns.state_BS, "offsets": plan.offsets.numpy(), "step": plan.step_A.numpy()}
        told = to_device(self._told(turns), self.device)
        there = to_device({**columns, "unique": unique_A.reshape(-1), "id": unique_id_U}, self.device)
        segments = Segments(there["offsets"], there["step"], plan.num_steps, plan.num_actions)
        with autocast(self.device, self.use_amp):
            encoded_U = self.net.encode_ids(there["id"])
            score_A, _ = self.net(there["state"], encoded_U, segments.step_A, there["unique"], None, **told)
        return ragged.log_softmax(score_A, segments), segments

    def _told(self, turns: Turns) -> dict[str, Array]:
        """The columns that the network looks at."""
        told = {column.label: array for column, array in turns.columns.items()}
        for name in self.net.column_names:
            if name not in told:
                raise DataError("the turns lack a column that the network looks at", got=sorted(told), expected=name,
                                do="Let it play where the game tells it.")  # fmt: skip
        return {name: told[name] for name in self.net.column_names}

    def _rows(self, turns: Turns) -> Array:
        """Each id's row in the kept halves; unknown ids are computed and kept first."""
        action_id_A = turns.action_id_A
        known_A = self._is_known(action_id_A)
        if not known_A.all():
            self.net.check_ids(torch.from_numpy(action_id_A), turns.place_of_action)
            new_id = np.unique(action_id_A[~known_A])
            if len(self._known_id_R) + len(new_id) > self.most_rows:
                # Whatever else is kept may never come again; what is asked for now is needed whole.
                self._known_id_R, self._row_R, self._half_RH = self._known_id_R[:0], self._row_R[:0], None
                new_id = np.unique(action_id_A)
            self._learn(new_id)
        row_A: Array = self._row_R[np.searchsorted(self._known_id_R, action_id_A)]
        return row_A

    def _is_known(self, action_id_A: Array) -> Array:
        place_A = np.searchsorted(self._known_id_R, action_id_A)
        known_A = place_A < len(self._known_id_R)
        known_A[known_A] = self._known_id_R[place_A[known_A]] == action_id_A[known_A]
        return known_A

    def _learn(self, new_id: Array) -> None:
        """Compute and keep the halves of ids in ascending order, none of them known."""
        assert isinstance(self.net, PolicyValueNet)
        encoded = self.net.encode_ids(to_device({"id": new_id}, self.device)["id"])
        with autocast(self.device, self.use_amp):
            half = self.net.pair_action(encoded)
        if self._half_RH is None:
            self._half_RH = half.new_empty(0, half.shape[1])
        start, end = len(self._known_id_R), len(self._known_id_R) + len(new_id)
        if end > len(self._half_RH):
            # Twice the room, so that many small additions copy little.
            room = max(end, min(self.most_rows, max(2 * end, 1024)))
            grown = half.new_empty(room, half.shape[1])
            grown[:start] = self._half_RH[:start]
            self._half_RH = grown
        self._half_RH[start:end] = half
        place = np.searchsorted(self._known_id_R, new_id)
        self._known_id_R = np.insert(self._known_id_R, place, new_id)
        self._row_R = np.insert(self._row_R, place, np.arange(start, end))


def features_of(turns: Turns, width: int) -> Array:
    """The action features of turns, float32 [A, F], for who looks at them.

    Raises:
        DataError: There are none, or they are of another width.
    """
    found = next((array for column, array in turns.columns.items() if column.label == FEATURES), None)
    if found is None or found.shape != (len(turns.action_id_A), width):
        raise DataError("the policy looks at action features", expected=f"[{len(turns.action_id_A)}, {width}]",
                        got="none" if found is None else list(found.shape),
                        do="Give them with the legal actions, in their order.")  # fmt: skip
    return found


def with_features(turns: Turns, action_features: ArrayLike | None, width: int) -> Turns:
    """The same turns with what is known of each legal action beside its id; checked where it is needed.

    Raises:
        DataError: A number is not finite.
    """
    if action_features is None or not width:
        return turns
    feature_AF = np.asarray(action_features, np.float32)
    if not np.isfinite(feature_AF).all():
        raise DataError("action features hold NaN or infinity", expected="finite numbers")
    return replace(turns, columns={**turns.columns, _FEATURE_COLUMN: feature_AF})


def one_turn(state: ArrayLike, legal_actions: Any, state_size: int, *, seed: int | None, turn: int) -> Turns:
    """A single turn, as `NetPolicy.act` takes it.

    Raises:
        DataError: The list names an action twice, an id is no 64-bit integer, or the state has the wrong width.
    """
    ids = action_ids.parse_list(legal_actions)
    if action_ids.listed_twice(ids, np.array([len(ids)])).any():
        repeated = np.sort(ids)
        first = int(repeated[:-1][np.diff(repeated) == 0][0])
        raise DataError(
            "a list of legal actions names an action twice",
            got=f"{first} ({action_ids.to_text(first)})",
            do="Name each once, as list(dict.fromkeys(actions)) does; the index refers to that list.",
        )
    row = np.asarray(state, np.float32).reshape(1, -1)
    if row.shape[1] != state_size:
        raise DataError("the state has the wrong width", got=row.shape[1], expected=state_size)
    drawn = secrets.randbits(63) if seed is None else seed
    return Turns(row, np.array([len(ids)]), ids, np.array([drawn]), np.array([turn]))


def refuse_non_finite(log_prob_B: Array, turns: Turns) -> None:
    """Stop before a choice is played whose probability is no number.

    Raises:
        NonFiniteError: Names the game and the turn.
    """
    bad = np.flatnonzero(~np.isfinite(log_prob_B))
    if bad.size:
        raise NonFiniteError(
            "the policy's log-probability is not a finite number",
            got=log_prob_B[bad[0]],
            where=turns.place(int(bad[0])),
            do="The weights or the state hold NaN or infinity: go back to an earlier checkpoint, check the state.",
        )


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> Array:
    """Spread 64 bits so that neighbours are unlike. Source: SplitMix64's finaliser, Steele et al. 2014."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def _turn_key(seed_B: Array, turn_B: Array) -> Array:
    return _mix(_mix(seed_B.astype(np.uint64)) + (turn_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _to_unit(bits: Array) -> Array:
    """The upper 52 bits as a number strictly between 0 and 1; with 53 the largest would round to 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def uniform(seed_B: Array, turn_B: Array) -> Array:
    """One number in (0, 1) for each (game seed, turn), float64 [B]; always the same for the same pair."""
    return _to_unit(_turn_key(seed_B, turn_B))


def gumbel(turns: Turns) -> Array:
    """Standard Gumbel noise for each (game seed, turn, place in the list), float32 [A]."""
    step_A = np.repeat(np.arange(len(turns.count_B)), turns.count_B)
    starts = np.cumsum(turns.count_B) - turns.count_B
    place_A = (np.arange(len(step_A)) - starts[step_A]).astype(np.uint64) + np.uint64(1)
    bits_A = _mix(_turn_key(turns.seed_B, turns.turn_B)[step_A] + place_A * _GOLDEN)
    return -np.log(-np.log(_to_unit(bits_A))).astype(np.float32)


def derive_seeds(seed: int, purpose: int, first: int, num_seeds: int) -> Array:
    """Game seeds number `first` and following of a stream, int64 [num_seeds], each 0 to 2^63 - 1.

    Streams of other seeds or purposes share no pattern with this one.
    """
    base = int(np.random.SeedSequence([seed, purpose]).generate_state(1, np.uint64)[0])
    number = np.arange(first + 1, first + num_seeds + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return (_mix(np.uint64(base) + number * _GOLDEN) >> np.uint64(1)).astype(np.int64)
