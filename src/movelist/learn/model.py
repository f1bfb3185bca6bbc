"""The network: a tower for states, a tower for actions, a score for each pair of them, and a value.

    state  -> StateEncoder  -> h_state  --U--+
                                             +--> w . relu(U h_state + V h_action) = logit
    action -> ActionEncoder -> h_action --V--+
    h_state -> critic -> value

A state goes through its tower once a step, an action once for each unique id; only the pair is computed for every legal
action, and it is one addition and one dot product. The network never sees an id: `encode_ids` turns ids into 64 bits,
or into rows of a table, outside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from movelist.core import by_name, ragged
from movelist.core.action_ids import to_bits, to_text
from movelist.core.by_name import HANDED_IN
from movelist.core.errors import DataError, SettingsError
from movelist.core.ragged import Segments
from movelist.learn.batch import PairOrder
from movelist.learn.pair import pair_score

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """All that is needed to build a network; saved with every checkpoint.

    Attributes:
        state_size: S, the width of a state.
        hidden_dim: H, the width of the layers.
        action_hidden_dim: Width of the action tower; 0 is H.
        action_encoder: "bits" or "table".
        num_actions: Rows of the table; 0 for "bits".
        state_encoder: The name of what builds the state encoder (see `core.by_name`); "" is the standard one.
        network: The name of what builds the whole network; "" is `PolicyValueNet`.
    """

    state_size: int
    hidden_dim: int = 512
    action_hidden_dim: int = 0
    action_encoder: str = "bits"
    num_actions: int = 0
    state_encoder: str = ""
    network: str = ""

    def __post_init__(self) -> None:
        for name in (self.state_encoder, self.network):
            if name and not name.startswith(HANDED_IN):
                by_name.check_name(name)
        if self.action_encoder not in ("bits", "table") or (self.action_encoder == "table") != (self.num_actions > 0):
            raise SettingsError(
                "the action_encoder contradicts num_actions",
                got=f"{self.action_encoder!r} and {self.num_actions}",
                expected="'bits' and 0, or 'table' and the number of its rows",
            )


class StateEncoder(nn.Module):
    """States [B, S] of any number type -> [B, H]: two layers with relu. Any module of this form can replace it."""

    def __init__(self, state_size: int, hidden_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _linear(state_size, hidden_dim), nn.ReLU(), _linear(hidden_dim, hidden_dim), nn.ReLU()
        )

    def forward(self, state_BS: torch.Tensor) -> torch.Tensor:
        """[B, S] -> [B, H]."""
        return self.layers(state_BS.to(next(self.layers.parameters()).dtype))  # type: ignore[no-any-return]


class ActionEncoder(nn.Module):
    """Encoded actions, 64 bits float32 [U, 64] or table rows int64 [U] -> [U, H]: one layer with relu."""

    def __init__(self, hidden_dim: int, num_rows: int = 0) -> None:
        super().__init__()
        self.first: nn.Module = nn.Embedding(num_rows, hidden_dim) if num_rows else _linear(64, hidden_dim)

    def forward(self, encoded_U: torch.Tensor) -> torch.Tensor:
        """[U, 64] or [U] -> [U, H]."""
        if encoded_U.dim() == 2:  # bits, in the layer's precision
            encoded_U = encoded_U.to(next(self.first.parameters()).dtype)
        return torch.relu(self.first(encoded_U))


class Network(nn.Module, ABC):
    """What a training asks of a network. One of your own is a subclass with `forward` and `values`.

    A network of your own that looks at further columns of the episodes names them in `column_names`; its `forward` is
    given them by these names, [B, width] per step and [A, width] per action; `values` is not.

    Args:
        shape: The sizes.
    """

    column_names: tuple[str, ...] = ()

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape

    def encode_ids(self, action_id_U: torch.Tensor) -> torch.Tensor:
        """What the network takes in place of ids: float32 [U, 64], or int64 [U] rows of the table.

        Ids of a table are small dense numbers, so the id is its row; `check_ids` has seen to it on the host.
        """
        return action_id_U if self.shape.action_encoder == "table" else to_bits(action_id_U)

    def check_ids(self, action_id_A: torch.Tensor, place: Callable[[int], str] | None = None) -> None:
        """Refuse ids that a table has no row for. On the host, before ids go to the device.

        Args:
            action_id_A: int64 [A].
            place: Says where number a of them stands, for the error.

        Raises:
            DataError: Names the first such id.
        """
        if self.shape.action_encoder != "table":
            return
        outside = (action_id_A < 0) | (action_id_A >= self.shape.num_actions)
        if bool(outside.any()):  # on the host: no device is asked
            number = int(outside.int().argmax())
            first = int(action_id_A[number])
            raise DataError(
                "an action id has no row in the table",
                got=f"{first} ({to_text(first)})",
                expected=f"0 to {self.shape.num_actions - 1}",
                where=None if place is None else place(number),
                do='Use action_encoder "bits", or tell the game\'s true num_actions.',
            )

    @abstractmethod
    def values(self, state_BS: torch.Tensor) -> torch.Tensor:
        """[B, S] -> [B], the movers' expected returns in scaled units, as `forward` gives them."""

    @property
    def value_bias(self) -> nn.Parameter | None:
        """What is added to every value, [1], so that they can begin at the mean of the returns; None for none."""
        return None

    def flops(self, num_steps: int, num_actions: int, num_unique: int, *, backward: bool = True) -> int:
        """Floating-point operations that the formulas ask for; 0 where nobody counted them."""
        return 0


class PolicyValueNet(Network):
    """The policy and the value in one network.

    Args:
        shape: The sizes.
        state_encoder: A module [B, S] -> [B, H] in place of the standard one.
        critic: A module [B, H] -> [B, 1] in place of the standard one.
    """

    def __init__(
        self, shape: ModelShape, *, state_encoder: nn.Module | None = None, critic: nn.Module | None = None
    ) -> None:
        super().__init__(shape)
        hidden_dim = shape.hidden_dim
        self.state_encoder = state_encoder or StateEncoder(shape.state_size, hidden_dim)
        action_hidden_dim = shape.action_hidden_dim or hidden_dim
        self.action_encoder = ActionEncoder(action_hidden_dim, shape.num_actions)
        self.state_to_pair = _linear(hidden_dim, hidden_dim)
        self.action_to_pair = _linear(action_hidden_dim, hidden_dim, bias=False)
        # A tenth of the usual size, so that the first policy is close to even and explores.
        self.pair_weight = nn.Parameter(torch.randn(hidden_dim) * 0.1 / math.sqrt(hidden_dim))
        self.critic = critic or _linear(hidden_dim, 1, gain=0.1)

    def pair_state(self, hidden_BH: torch.Tensor) -> torch.Tensor:
        """U h_state: [B, H] -> [B, H]."""
        return _to_add(self.state_to_pair(hidden_BH))

    def pair_action(self, encoded_U: torch.Tensor) -> torch.Tensor:
        """V h_action of encoded actions -> [U, H]; fixed while the weights are, so a rollout computes it once an id."""
        return _to_add(self.action_to_pair(self.action_encoder(encoded_U)))

    def pair(
        self,
        state_BH: torch.Tensor,
        action_UH: torch.Tensor,
        step_A: torch.Tensor,
        unique_A: torch.Tensor,
        order: PairOrder | None = None,
    ) -> torch.Tensor:
        """One logit for each legal action, [A], from the halves `pair_state` and `pair_action`.

        With an `order` the Triton kernel computes it, without one torch does.
        """
        if order is not None:
            from movelist.learn.pair_triton import ordered_pair_score  # it needs triton, which not every machine has

            return ordered_pair_score(state_BH, action_UH, self.pair_weight, step_A, unique_A, order)
        return pair_score(state_BH, action_UH, self.pair_weight, step_A, unique_A)

    def value(self, hidden_BH: torch.Tensor) -> torch.Tensor:
        """[B, H] -> [B], the mover's expected return in scaled units."""
        if isinstance(self.critic, nn.Linear) and hidden_BH.dtype in HALVES:
            # The bias is added in float32: beside one of 100, bfloat16 knows no step below a half.
            product_B = nn.functional.linear(hidden_BH, self.critic.weight).squeeze(-1).float()
            return product_B if self.critic.bias is None else product_B + self.critic.bias.float()
        value_B: torch.Tensor = self.critic(hidden_BH).squeeze(-1)
        return value_B.float() if value_B.dtype in HALVES else value_B

    @property
    def value_bias(self) -> nn.Parameter | None:
        """What the critic adds to every value, [1]; None where a critic of your own is no linear layer with a bias."""
        bias: nn.Parameter | None = self.critic.bias if isinstance(self.critic, nn.Linear) else None
        return bias

    def values(self, state_BS: torch.Tensor) -> torch.Tensor:
        """See `Network`."""
        return self.value(self.state_encoder(state_BS))

    def forward(
        self,
        state_BS: torch.Tensor,
        encoded_U: torch.Tensor,
        step_A: torch.Tensor,
        unique_A: torch.Tensor,
        order: PairOrder | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of all legal actions, and values.

        Args:
            state_BS: [B, S].
            encoded_U: The batch's unique actions as `encode_ids` gives them.
            step_A: int64 [A], each legal action's step.
            unique_A: int64 [A], each legal action's row in `encoded_U`.
            order: Use the Triton kernel, with its sums in this order; None uses torch.

        Returns:
            score_A, value_B.
        """
        hidden_BH = self.state_encoder(state_BS)
        score_A = self.pair(self.pair_state(hidden_BH), self.pair_action(encoded_U), step_A, unique_A, order)
        return score_A, self.value(hidden_BH)

    def evaluate(
        self, state_BS: torch.Tensor, action_id_A: torch.Tensor, segments: Segments, chosen_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a trainer of your own needs of a batch of steps with lists of any lengths.

        Args:
            state_BS: [B, S].
            action_id_A: int64 [A], the legal actions of all steps one after another.
            segments: The lists, on the same device.
            chosen_B: int64 [B], the chosen index in each list.

        Returns:
            log_prob_B of the chosen actions, entropy_B, value_B; all with gradient.

        Raises:
            DataError: Sizes disagree, or a chosen index is outside its list.

        Example:
            >>> net = PolicyValueNet(ModelShape(state_size=4, hidden_dim=8))
            >>> lists = Segments.from_counts([2, 3])
            >>> log_prob_B, entropy_B, value_B = net.evaluate(
            ...     torch.zeros(2, 4), torch.tensor([7, 9, 5, 6, 8]), lists, torch.tensor([1, 0]))
            >>> log_prob_B.shape
            torch.Size([2])
        """
        if len(state_BS) != segments.num_steps or len(chosen_B) != segments.num_steps:
            sizes = (len(state_BS), len(chosen_B))
            raise DataError("states, lists and choices differ in number", got=sizes, expected=segments.num_steps)
        if len(action_id_A) != segments.num_actions:
            raise DataError("list lengths disagree with the ids", got=len(action_id_A), expected=segments.num_actions)
        outside_B = (chosen_B < 0) | (chosen_B >= segments.offsets.diff())
        if bool(outside_B.any()):  # WAIT: else another step's action would be taken for the chosen one
            step = int(outside_B.nonzero()[0])  # WAIT: only for the error
            raise DataError(
                "the chosen index is outside the list",
                got=int(chosen_B[step]),
                expected=f"0 to {int(segments.offsets.diff()[step]) - 1}",
                where=f"step {step} of the batch",
            )
        # WAIT: `unique` asks the device for a size; the trainer plans it on the host instead (learn/batch.py).
        action_id_U, unique_A = torch.unique(action_id_A, return_inverse=True)
        score_A, value_B = self(state_BS, self.encode_ids(action_id_U), segments.step_A, unique_A)
        log_prob_A = ragged.log_softmax(score_A, segments)
        log_prob_B = log_prob_A[segments.offsets[:-1] + chosen_B]
        return log_prob_B, ragged.entropy(log_prob_A, segments), value_B

    def flops(self, num_steps: int, num_actions: int, num_unique: int, *, backward: bool = True) -> int:
        """Floating-point operations that the formulas ask for, with a multiplication and an addition as two.

        Counts the standard towers' matrix products and the pair; a backward pass counts twice the forward one, less the
        gradients of the inputs, which nobody needs.
        """
        width, action_width = self.shape.hidden_dim, self.shape.action_hidden_dim or self.shape.hidden_dim
        first_state = 2 * self.shape.state_size * width * num_steps
        first_action = 0 if self.shape.action_encoder == "table" else 2 * 64 * action_width * num_unique
        inner = 2 * width * (2 * width * num_steps + action_width * num_unique + num_steps)
        pair = 4 * width * num_actions
        if not backward:
            return first_state + first_action + inner + pair
        return 2 * (first_state + first_action) + 3 * (inner + pair)


EncoderMaker = Callable[..., nn.Module]  # (state_size, hidden_dim) -> a module [B, S] -> [B, H]
NetworkMaker = Callable[[ModelShape], Network]


def _to_add(half: torch.Tensor) -> torch.Tensor:
    """A processor multiplies bfloat16 twice as fast as float32 and adds it slower, so a pair's halves are float32."""
    return half.float() if half.device.type == "cpu" and half.dtype is torch.bfloat16 else half


def _linear(size_in: int, size_out: int, *, bias: bool = True, gain: float = math.sqrt(2)) -> nn.Linear:
    """A layer with orthogonal weights and no bias at first. Source: Saxe et al. 2014, arXiv 1312.6120."""
    layer = nn.Linear(size_in, size_out, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
