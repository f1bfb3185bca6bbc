"""The slow, obvious truth that the fast code is held against.

One step at a time, in float64, with plain loops and `torch.distributions`; nothing here uses movelist's arithmetic. It
takes a network's parameters by name and applies them with matrix products written out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.distributions import Categorical, kl_divergence

from movelist.data.episode import Episodes

# The patterns that software loses: signed and unsigned edges, and what a float cannot hold.
HARD_IDS = [0, 1, -1, 2**53 + 1, 2**62 + 3, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


@dataclass(frozen=True)
class Step:
    """One decision as a person would write it down."""

    state: list[float]
    actions: list[int]
    chosen: int
    player: int = 0
    reward: float = 0.0
    log_prob: float = math.nan


@dataclass(frozen=True)
class Sample:
    """A step and what it is trained towards."""

    step: Step
    old_log_prob: float
    advantage: float
    value_target: float
    old_value: float


# --- Distributions over one list.


def log_probs(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of one list, float64."""
    return Categorical(logits=logits.double()).logits


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of one list in nats."""
    return Categorical(logits=logits.double()).entropy()


def kl(logits: torch.Tensor, other_logits: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of two lists of the same actions."""
    return kl_divergence(Categorical(logits=logits.double()), Categorical(logits=other_logits.double()))


# --- The network, written out.


def bits(action_id: int) -> list[int]:
    """The 64 bits of an id, bit 0 first."""
    return [((int(action_id) & (2**64 - 1)) >> k) & 1 for k in range(64)]


def signed(action_id: int) -> int:
    """The signed number with the same 64 bits."""
    unsigned = int(action_id) % 2**64
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters in float64, each a leaf that collects a gradient."""
    return {name: p.detach().double().clone().requires_grad_() for name, p in net.named_parameters()}


def layers(w: Mapping[str, torch.Tensor], prefix: str) -> list[str]:
    """The names of a tower's layers, from the input on."""
    names = [name.removesuffix(".weight") for name in w if name.startswith(prefix) and name.endswith(".weight")]
    return sorted(names)


def hidden(w: Mapping[str, torch.Tensor], state: Sequence[float]) -> torch.Tensor:
    """The state tower for one state: a relu after every layer."""
    x = torch.tensor([float(number) for number in state], dtype=torch.float64)
    for layer in layers(w, "state_encoder."):
        x = (w[f"{layer}.weight"] @ x + w[f"{layer}.bias"]).clamp(min=0)
    return x


def logits(w: Mapping[str, torch.Tensor], state: Sequence[float], actions: Sequence[int]) -> torch.Tensor:
    """The scores of one step's legal actions: each id by its 64 bits, or by its row where there is a table."""
    first = w["action_encoder.first.weight"]
    if "action_encoder.first.bias" in w:
        bits_A64 = torch.tensor([bits(action_id) for action_id in actions], dtype=torch.float64)
        action_AH = (bits_A64 @ first.T + w["action_encoder.first.bias"]).clamp(min=0)
    else:  # a table has no bias
        action_AH = torch.stack([first[action_id] for action_id in actions]).clamp(min=0)
    from_state_H = w["state_to_pair.weight"] @ hidden(w, state) + w["state_to_pair.bias"]
    both_AH = from_state_H + action_AH @ w["action_to_pair.weight"].T
    return both_AH.clamp(min=0) @ w["pair_weight"]


def value(w: Mapping[str, torch.Tensor], state: Sequence[float]) -> torch.Tensor:
    """The value of one state: a relu between the critic's layers, if it has several."""
    x = hidden(w, state)
    for number, layer in enumerate(layers(w, "critic.")):
        x = w[f"{layer}.weight"] @ (x.clamp(min=0) if number else x) + w[f"{layer}.bias"]
    return x[0]


# --- PPO, one sample at a time.


def sample_loss(
    w: Mapping[str, torch.Tensor],
    sample: Sample,
    *,
    clip_range: float,
    clip_range_vf: float | None,
    ent_coef: float,
    vf_coef: float,
) -> dict[str, torch.Tensor]:
    """The loss of one sample and its parts."""
    distribution = Categorical(logits=logits(w, sample.step.state, sample.step.actions))
    log_ratio = distribution.log_prob(torch.tensor(sample.step.chosen)) - sample.old_log_prob
    ratio = torch.exp(log_ratio)
    if sample.advantage >= 0:  # only ratios above 1 + c may not gain more, written without min and clamp
        surrogate = ratio if ratio <= 1 + clip_range else torch.tensor(1 + clip_range, dtype=torch.float64)
    else:
        surrogate = ratio if ratio >= 1 - clip_range else torch.tensor(1 - clip_range, dtype=torch.float64)
    policy = -surrogate * sample.advantage
    predicted = value(w, sample.step.state)
    error = (predicted - sample.value_target) ** 2
    if clip_range_vf is not None:
        low, high = sample.old_value - clip_range_vf, sample.old_value + clip_range_vf
        error_moved = (torch.clamp(predicted, low, high) - sample.value_target) ** 2
        error = error_moved if error_moved > error else error
    entropy_bonus = distribution.entropy()
    return {
        "loss": policy + vf_coef * error / 2 - ent_coef * entropy_bonus,
        "policy_loss": policy,
        "value_loss": error / 2,
        "entropy": entropy_bonus,
        "approx_kl": (ratio - 1 - log_ratio).detach(),
        "clip_fraction": torch.tensor(float(abs(ratio.item() - 1) > clip_range), dtype=torch.float64),
    }


def ppo(
    w: Mapping[str, torch.Tensor], samples: Sequence[Sample], **coefficients: float | None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Means over the samples, and the gradient of the mean loss by parameter."""
    sums: dict[str, float] = {}
    for parameter in w.values():
        parameter.grad = torch.zeros_like(parameter)
    for sample in samples:
        terms = sample_loss(w, sample, **coefficients)
        (terms["loss"] / len(samples)).backward()
        for name, term in terms.items():
            sums[name] = sums.get(name, 0.0) + term.item()
    gradients = {name: parameter.grad.clone() for name, parameter in w.items()}
    return {name: total / len(samples) for name, total in sums.items()}, gradients


# --- Returns, one player at a time.


def gae(
    reward: Sequence[float],
    values: Sequence[float],
    player: Sequence[int],
    gamma: float,
    gae_lambda: float,
    final_value: Mapping[int, float] | None = None,
) -> list[float]:
    """Advantages of one episode: each player walks back over their own steps."""
    advantage = [0.0] * len(reward)
    for seat in set(player):
        following_value = final_value[seat] if final_value else 0.0
        following_advantage = 0.0
        for t in reversed(range(len(reward))):
            if player[t] != seat:
                continue
            delta = reward[t] + gamma * following_value - values[t]
            advantage[t] = delta + gamma * gae_lambda * following_advantage
            following_value, following_advantage = values[t], advantage[t]
    return advantage


def credit(scores: Sequence[Sequence[float]], player: Sequence[int], returns: Sequence[float]) -> list[float]:
    """Rewards of one episode from all seats' scores before each step: gained until the own next step or the end."""
    rewards = []
    for t, seat in enumerate(player):
        until = returns[seat]
        for later in range(len(player) - 1, t, -1):
            if player[later] == seat:
                until = scores[later][seat]
        rewards.append(until - scores[t][seat])
    return rewards


def without_forced(game: Sequence[Step]) -> list[Step]:
    """Leave out steps with one legal action; their reward goes to the mover's step before, if there is one."""
    kept: list[Step] = []
    for step in game:
        if len(step.actions) > 1:
            kept.append(step)
            continue
        for place in range(len(kept) - 1, -1, -1):
            if kept[place].player == step.player:
                kept[place] = replace(kept[place], reward=kept[place].reward + step.reward)
                break
    return kept


# --- From plain records to columns, and random records.


def columns(
    games: Sequence[Sequence[Step]], *, num_players: int = 1, state_size: int = 0, **others: object
) -> Episodes:
    """`Episodes` with these steps; `others` are further columns by name, and go before what the steps say."""
    steps = [step for game in games for step in game]
    return_EP = np.zeros((len(games), num_players))
    for number, game in enumerate(games):
        for step in game:
            return_EP[number, step.player] += step.reward
    made: dict[str, object] = {
        "state_NS": np.array([step.state for step in steps] or np.zeros((0, state_size)), np.float32),
        "player_N": np.array([step.player for step in steps], np.int64),
        "action_offsets": np.cumsum([0, *(len(step.actions) for step in steps)]),
        "action_id_A": np.array([signed(action) for step in steps for action in step.actions], np.int64),
        "chosen_N": np.array([step.chosen for step in steps], np.int64),
        "log_prob_N": np.array([step.log_prob for step in steps], np.float32),
        "reward_N": np.array([step.reward for step in steps], np.float64),
        "episode_offsets": np.cumsum([0, *(len(game) for game in games)]),
        "return_EP": return_EP,
        "truncated_E": np.zeros(len(games), bool),
        "controller_EP": np.zeros((len(games), num_players), np.int8),
        "num_turns": len(steps),
    }
    return Episodes(**{**made, **others})


def random_games(
    seed: int,
    *,
    num_games: int = 4,
    num_steps: int = 6,
    state_size: int = 5,
    num_ids: int = 500,
    longest: int = 12,
    num_players: int = 2,
    hard: bool = False,
) -> list[list[Step]]:
    """Games of random numbers; lists of 1 to `longest` ids from a pool of `num_ids`, so steps share ids.

    `hard` draws the ids from all 64 bits, with the hard ones among them; otherwise they are 0 to `num_ids` - 1.
    """
    rng = np.random.default_rng(seed)
    pool = np.arange(num_ids)
    if hard:
        pool = np.unique([*map(signed, HARD_IDS), *rng.integers(-(2**63), 2**63 - 1, num_ids).tolist()])
    games = []
    for _ in range(num_games):
        game = []
        for _ in range(num_steps):
            actions = rng.choice(pool, rng.integers(1, longest + 1), replace=False).tolist()
            game.append(
                Step(
                    state=rng.normal(size=state_size).astype(np.float32).tolist(),
                    actions=actions,
                    chosen=int(rng.integers(len(actions))),
                    player=int(rng.integers(num_players)),
                    reward=float(rng.normal()),
                )
            )
        games.append(game)
    return games


def grown(net: torch.nn.Module, seed: int = 0, factor: float = 10.0) -> torch.nn.Module:
    """The network as if trained for long: every weight moved, and logits `factor` times as large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            size = parameter.std() if parameter.numel() > 1 and parameter.std() > 0 else 0.1
            parameter += 0.3 * size * torch.randn(parameter.shape, generator=generator)
        net.pair_weight *= factor
    return net
