"""The rungs of the ladder: nine ways to score lists of legal actions with the same weights, slowest first.

Each rung takes the steps of a minibatch and gives the log-probability of the chosen actions, the entropy and the value,
each [B]. So a rung can be held against another, and the same PPO loss can be put on each. Dimensions as everywhere, and
`K` actions of the whole game, `L` the longest list, `G` the steps of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from movelist.core import ragged
from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.batch import Batch, Rollout, plan_batches
from movelist.learn.loss import Targets, ppo_loss
from movelist.learn.model import PolicyValueNet

Array = NDArray[Any]
Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # log_prob_B, entropy_B, value_B


@dataclass(frozen=True)
class Sample:
    """The steps of one minibatch, as each rung finds them: on the device, with list lengths on the host.

    Attributes:
        rollout: The steps as movelist holds them; all of them make the minibatch.
        state_BS: [B, S].
        action_id_A: int64 [A].
        offsets: int64 [B+1] on the host.
        chosen_B: int64 [B] on the host, each an index into its own list.
        all_id_K: int64 [K] on the host, sorted: every action that the game has, as far as is known.
        longest: L, to which a padding trainer pads; it stays that of the whole minibatch in a part of it.
        targets: What the loss trains towards.
    """

    rollout: Rollout
    state_BS: torch.Tensor
    action_id_A: torch.Tensor
    offsets: Array
    chosen_B: Array
    all_id_K: Array
    longest: int
    targets: Targets

    @property
    def num_steps(self) -> int:
        """B."""
        return len(self.chosen_B)

    @property
    def count_B(self) -> Array:
        """int64 [B], list lengths."""
        return np.diff(self.offsets)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.state_BS.device

    @classmethod
    def of(cls, episodes: Episodes, targets: Targets, all_id_K: Array, net: PolicyValueNet) -> Sample:
        """All steps of some episodes as one minibatch, on the network's device."""
        device = next(net.parameters()).device
        rollout = Rollout(episodes, net.encode_ids, device)
        ids = torch.from_numpy(episodes.action_id_A).to(device)
        longest = int(rollout.count_N.max())
        there = Targets(*(value.to(device) for value in targets.standard))
        return cls(rollout, rollout.state_NS, ids, episodes.action_offsets, episodes.chosen_N, all_id_K, longest, there)

    def first(self, num_steps: int, net: PolicyValueNet) -> Sample:
        """The first steps alone."""
        keep_N = np.arange(self.num_steps) < num_steps
        targets = Targets(*(value[:num_steps] for value in self.targets.standard))
        part = Sample.of(self.rollout.episodes.select_steps(keep_N), targets, self.all_id_K, net)
        return replace(part, longest=self.longest)

    def plan(self) -> Batch:
        """The minibatch as movelist plans it."""
        return plan_batches(self.rollout, [np.arange(self.num_steps)], {})[0][0]


@dataclass(frozen=True)
class Rung:
    """One way.

    Attributes:
        name: As the table shows it.
        loss: Network, steps and settings -> the PPO loss summed over the steps, with gradient.
        answer: Network and steps -> log_prob_B, entropy_B, value_B.
        most_steps: A slow rung is timed on this many steps of a minibatch and scaled; None takes all.
        has_fixed_cost: Part of its time does not grow with the steps: timed at two sizes, and drawn on in a line.
        other_network: It has another output layer, so its log-probs are its own.
    """

    name: str
    answer: Callable[[PolicyValueNet, Sample], Answer]
    loss: Callable[[PolicyValueNet, Sample, UpdateSettings], torch.Tensor]
    most_steps: int | None = None
    has_fixed_cost: bool = False
    other_network: bool = False


def ladder(net: PolicyValueNet, head: FullHead) -> list[Rung]:
    """All rungs that are plain functions of a network, slowest first."""
    bits = net.shape.action_encoder == "bits"
    rungs = [
        *([_rung("per-sample loop, bit loop per action", per_sample_action_loop, most_steps=64)] if bits else []),
        *([_rung("per-sample loop, bit loop per list", per_sample_bit_loop, most_steps=64)] if bits else []),
        _rung("per-sample loop, vectorised bits" if bits else "per-sample loop", per_sample, most_steps=64),
        _rung("grouped by list length", grouped),
        _rung("padded and masked", padded, most_steps=256),
        _rung("mask over all actions", full_mask, most_steps=32, has_fixed_cost=True),
        _rung("mask over all actions, linear layer", head.answer, most_steps=256, has_fixed_cost=True, other=True),
        Rung("flat", flat, flat_loss(flat_scores)),
        Rung("flat + unique", flat_unique, flat_loss(unique_scores)),
        Rung("flat + unique + chunked pair", flat_chunked, flat_loss(chunked_scores)),
    ]
    return rungs


def _rung(
    name: str,
    answer: Callable[[PolicyValueNet, Sample], Answer],
    *,
    most_steps: int | None = None,
    has_fixed_cost: bool = False,
    other: bool = False,
) -> Rung:
    def loss(net: PolicyValueNet, sample: Sample, settings: UpdateSettings) -> torch.Tensor:
        return dense_loss(answer(net, sample), sample.targets, settings)

    return Rung(name, answer, loss, most_steps, has_fixed_cost, other)


def dense_loss(answer: Answer, targets: Targets, settings: UpdateSettings) -> torch.Tensor:
    """`learn.loss.ppo_loss` for trainers that know no flat lists: the same sum of the same terms."""
    log_prob_B, entropy_B, value_B = answer
    ratio_B = (log_prob_B - targets.old_log_prob_B).exp()
    clipped_B = ratio_B.clamp(1 - settings.clip_range, 1 + settings.clip_range)
    policy = -torch.minimum(ratio_B * targets.advantage_B, clipped_B * targets.advantage_B).sum()
    value = 0.5 * (value_B - targets.return_B).square().sum()
    return policy + settings.vf_coef * value - settings.ent_coef * entropy_B.sum()


# --- One network call for each step.


def bits_by_loop(action_id_A: torch.Tensor) -> torch.Tensor:
    """The 64 bits of each id, [A, 64], one bit at a time."""
    bits = torch.zeros(len(action_id_A), 64, device=action_id_A.device)
    for bit in range(64):
        bits[:, bit] = (action_id_A >> bit) & 1
    return bits


def bits_one_by_one(action_id_A: torch.Tensor) -> torch.Tensor:
    """The 64 bits of each id, [A, 64], from a loop over the actions and in it a loop over the bits."""
    rows = []
    for action_id in action_id_A.tolist():
        bits = torch.zeros(64)
        for bit in range(64):
            bits[bit] = (action_id >> bit) & 1
        rows.append(bits)
    return torch.stack(rows).to(action_id_A.device)


def per_sample_action_loop(net: PolicyValueNet, sample: Sample) -> Answer:
    """A loop over the steps, in it one over the actions, and in it one over the 64 bits."""
    return _each_step(net, sample, bits_one_by_one)


def per_sample_bit_loop(net: PolicyValueNet, sample: Sample) -> Answer:
    """A loop over the steps, and in it a loop over the 64 bits."""
    return _each_step(net, sample, bits_by_loop)


def per_sample(net: PolicyValueNet, sample: Sample) -> Answer:
    """A loop over the steps; the bits of a list at once."""
    return _each_step(net, sample, net.encode_ids)


def _each_step(net: PolicyValueNet, sample: Sample, encode: Callable[[torch.Tensor], torch.Tensor]) -> Answer:
    log_probs, entropies, values = [], [], []
    for step, (start, end) in enumerate(pairwise(sample.offsets.tolist())):
        hidden_1H = net.state_encoder(sample.state_BS[step : step + 1])
        action_AH = net.pair_action(encode(sample.action_id_A[start:end]))
        log_prob_A = _score(net, net.pair_state(hidden_1H) + action_AH).log_softmax(0)
        log_probs.append(log_prob_A[int(sample.chosen_B[step])])
        entropies.append(-(log_prob_A.exp() * log_prob_A).sum())
        values.append(net.value(hidden_1H)[0])
    return torch.stack(log_probs), torch.stack(entropies), torch.stack(values)


def _score(net: PolicyValueNet, sum_H: torch.Tensor) -> torch.Tensor:
    """The pair's formula where the sums are held: [..., H] -> [...]."""
    score: torch.Tensor = torch.relu(sum_H) @ net.pair_weight
    return score


# --- One network call for all steps whose lists are equally long.


def grouped(net: PolicyValueNet, sample: Sample) -> Answer:
    """Steps of the same list length make a full rectangle: one call for each length."""
    order, parts = [], []
    for rows_G in _groups(sample.count_B):
        order.append(rows_G)
        parts.append(_rectangle(net, sample, rows_G))
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(sample.device)
    log_prob_B, entropy_B, value_B = (torch.cat(column).index_select(0, back) for column in zip(*parts, strict=True))
    return log_prob_B, entropy_B, value_B


def _groups(count_B: Array) -> Iterator[Array]:
    order = np.argsort(count_B, kind="stable")
    edges = np.flatnonzero(np.diff(count_B[order])) + 1
    yield from np.split(order, edges)


def _rectangle(net: PolicyValueNet, sample: Sample, rows_G: Array) -> Answer:
    length = int(sample.count_B[rows_G[0]])
    place = torch.from_numpy(sample.offsets[rows_G][:, None] + np.arange(length)).to(sample.device)
    rows = torch.from_numpy(rows_G).to(sample.device)
    chosen = torch.from_numpy(sample.chosen_B[rows_G]).to(sample.device)
    ids = sample.action_id_A.index_select(0, place.reshape(-1))
    hidden_GH = net.state_encoder(sample.state_BS.index_select(0, rows))
    action = net.pair_action(net.encode_ids(ids)).view(len(rows_G), length, -1)  # [G, length, H]
    log_prob = _score(net, net.pair_state(hidden_GH).unsqueeze(1) + action).log_softmax(1)  # [G, length]
    return (
        log_prob.gather(1, chosen.unsqueeze(1)).squeeze(1),
        -(log_prob.exp() * log_prob).sum(1),
        net.value(hidden_GH),
    )


# --- Rectangles with a mask.


def padded(net: PolicyValueNet, sample: Sample) -> Answer:
    """Every list is filled up to the longest, and the filling masked."""
    real = np.arange(sample.longest) < sample.count_B[:, None]
    place = np.where(real, sample.offsets[:-1, None] + np.arange(sample.longest), 0)
    ids = sample.action_id_A.index_select(0, torch.from_numpy(place.reshape(-1)).to(sample.device))
    hidden_BH = net.state_encoder(sample.state_BS)
    action = net.pair_action(net.encode_ids(ids)).view(sample.num_steps, sample.longest, -1)  # [B, L, H]
    score_BL = _score(net, net.pair_state(hidden_BH).unsqueeze(1) + action)
    return _masked(score_BL, torch.from_numpy(real), torch.from_numpy(sample.chosen_B), net.value(hidden_BH))


def _masked(score: torch.Tensor, legal: torch.Tensor, chosen: torch.Tensor, value_B: torch.Tensor) -> Answer:
    legal, chosen = legal.to(score.device), chosen.to(score.device)
    log_prob = score.masked_fill(~legal, -torch.inf).log_softmax(1)
    entropy_B = -(log_prob.exp() * log_prob.masked_fill(~legal, 0.0)).sum(1)
    return log_prob.gather(1, chosen.unsqueeze(1)).squeeze(1), entropy_B, value_B


def _legal(sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """bool [B, K] and the chosen actions' columns, int64 [B]."""
    column_A = np.searchsorted(sample.all_id_K, sample.rollout.episodes.action_id_A)
    legal = np.zeros((sample.num_steps, len(sample.all_id_K)), bool)
    legal[np.repeat(np.arange(sample.num_steps), sample.count_B), column_A] = True
    return torch.from_numpy(legal), torch.from_numpy(column_A[sample.offsets[:-1] + sample.chosen_B])


def full_mask(net: PolicyValueNet, sample: Sample) -> Answer:
    """All actions of the game are scored for every step, and all but the legal ones masked. The pair is the chunked
    one: held as it is, [B, K, H] is more than most machines have."""
    num_actions, device = len(sample.all_id_K), sample.device
    hidden_BH = net.state_encoder(sample.state_BS)
    action_KH = net.pair_action(net.encode_ids(torch.from_numpy(sample.all_id_K).to(device)))
    step = torch.arange(sample.num_steps, device=device).unsqueeze(1).expand(-1, num_actions).reshape(-1)
    column = torch.arange(num_actions, device=device).repeat(sample.num_steps)
    score_BK = net.pair(net.pair_state(hidden_BH), action_KH, step, column).view(sample.num_steps, num_actions)
    return _masked(score_BK, *_legal(sample), net.value(hidden_BH))


class FullHead:
    """The usual masked policy: one linear layer to all actions of the game in place of the pair, so no ids are read.

    Another network: it cannot say the same as the pair, and is held against its own logits instead.
    """

    def __init__(self, net: PolicyValueNet, num_actions: int) -> None:
        self.layer = nn.Linear(net.shape.hidden_dim, num_actions).to(next(net.parameters()).device)

    def answer(self, net: PolicyValueNet, sample: Sample) -> Answer:
        """Logits of all actions, masked."""
        hidden_BH = net.state_encoder(sample.state_BS)
        return _masked(self.layer(hidden_BH), *_legal(sample), net.value(hidden_BH))

    def flat_log_prob(self, net: PolicyValueNet, sample: Sample) -> torch.Tensor:
        """The same log-probs from nothing but the legal logits, [B]."""
        batch = sample.plan()
        column_A = np.searchsorted(sample.all_id_K, sample.rollout.episodes.action_id_A)
        state_AH = net.state_encoder(sample.state_BS).index_select(0, batch.segments.step_A)
        column = torch.from_numpy(column_A).to(sample.device)
        score_A = (state_AH * self.layer.weight[column]).sum(1) + self.layer.bias[column]
        return ragged.log_softmax(score_A, batch.segments).index_select(0, batch.chosen_B)


# --- Flat lists.

Scores = Callable[[PolicyValueNet, Sample, Batch], tuple[torch.Tensor, torch.Tensor]]  # -> score_A, value_B


def flat_scores(net: PolicyValueNet, sample: Sample, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Every legal action of every step goes through its tower; [A, H] is held."""
    hidden_BH = net.state_encoder(sample.state_BS)
    state_AH = net.pair_state(hidden_BH).index_select(0, batch.segments.step_A)
    return _score(net, state_AH + net.pair_action(net.encode_ids(sample.action_id_A))), net.value(hidden_BH)


def unique_scores(net: PolicyValueNet, sample: Sample, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Every unique action goes through its tower once; [A, H] is held."""
    hidden_BH = net.state_encoder(sample.state_BS)
    action_UH = net.pair_action(sample.rollout.encoded_R.index_select(0, batch.row_U))
    state_AH = net.pair_state(hidden_BH).index_select(0, batch.segments.step_A)
    return _score(net, state_AH + action_UH.index_select(0, batch.unique_A)), net.value(hidden_BH)


def chunked_scores(net: PolicyValueNet, sample: Sample, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """What movelist trains with: unique actions, and the pair in chunks."""
    encoded_U = sample.rollout.encoded_R.index_select(0, batch.row_U)
    scores: tuple[torch.Tensor, torch.Tensor] = net(sample.state_BS, encoded_U, batch.segments.step_A, batch.unique_A)
    return scores


def _flat_answer(net: PolicyValueNet, sample: Sample, scores: Scores) -> Answer:
    batch = sample.plan()
    score_A, value_B = scores(net, sample, batch)
    log_prob_A = ragged.log_softmax(score_A, batch.segments)
    return log_prob_A.index_select(0, batch.chosen_B), ragged.entropy(log_prob_A, batch.segments), value_B


def flat(net: PolicyValueNet, sample: Sample) -> Answer:
    """See `flat_scores`."""
    return _flat_answer(net, sample, flat_scores)


def flat_unique(net: PolicyValueNet, sample: Sample) -> Answer:
    """See `unique_scores`."""
    return _flat_answer(net, sample, unique_scores)


def flat_chunked(net: PolicyValueNet, sample: Sample) -> Answer:
    """See `chunked_scores`."""
    return _flat_answer(net, sample, chunked_scores)


def flat_loss(scores: Scores) -> Callable[[PolicyValueNet, Sample, UpdateSettings], torch.Tensor]:
    """The trainer's own loss on the scores of a flat rung."""

    def loss(net: PolicyValueNet, sample: Sample, settings: UpdateSettings) -> torch.Tensor:
        batch = sample.plan()
        return ppo_loss(*scores(net, sample, batch), batch.segments, batch.chosen_B, sample.targets, settings)["loss"]

    return loss
