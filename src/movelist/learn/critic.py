"""A critic that knows more than the player: its values are behind the advantages while training, and nowhere else.

It is a tower of its own beside the network, over the state and what the game tells a critic (all hands, the deck). The
network, with its value from the state alone, stays as it is: policy, play and exports know nothing of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from movelist.core.errors import CheckpointError, DataError
from movelist.core.metrics import span
from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.batch import EVALUATION_STEPS, Batch, Rollout
from movelist.learn.device import autocast, to_device
from movelist.learn.loss import Targets, value_loss
from movelist.learn.model import StateEncoder

Array = NDArray[Any]
CRITIC_STATE = "critic_state"  # the column, in games and recordings


class Critic(nn.Module):
    """States [B, S] and critic states [B, C] -> values [B], in scaled units.

    Args:
        state_size: S.
        critic_size: C.
        hidden_dim: Width of its layers.
    """

    def __init__(self, state_size: int, critic_size: int, hidden_dim: int) -> None:
        super().__init__()
        self.state_size, self.critic_size, self.hidden_dim = state_size, critic_size, hidden_dim
        self.encoder = StateEncoder(state_size + critic_size, hidden_dim)
        self.value = nn.Linear(hidden_dim, 1)
        nn.init.orthogonal_(self.value.weight, 0.1)
        nn.init.zeros_(self.value.bias)

    def forward(self, state_BS: torch.Tensor, critic_BC: torch.Tensor) -> torch.Tensor:
        """[B, S], [B, C] -> [B], float32."""
        hidden_BH = self.encoder(torch.cat([state_BS.float(), critic_BC.float()], dim=1))
        with torch.autocast(hidden_BH.device.type, enabled=False):  # beside a large bias, bfloat16 knows no small steps
            value_B: torch.Tensor = self.value(hidden_BH.float()).squeeze(-1)
        return value_B

    def of_steps(self, rollout: Rollout, *, use_amp: bool) -> torch.Tensor:
        """The values of all steps of a rollout, [N], on its device."""
        critic_NC = rollout.columns.get(CRITIC_STATE, rollout.state_NS.new_zeros(0, self.critic_size))
        return self._in_parts(rollout.state_NS, critic_NC, use_amp)

    def of_ends(self, episodes: Episodes, device: torch.device, *, use_amp: bool) -> torch.Tensor | None:
        """The values of where episodes stopped, [E * P] on the device, 0 where that is not known; None without any."""
        if episodes.final_critic_EC is None or episodes.final_state_EPS is None:
            return None
        num_players, known_E = episodes.num_players, knows_end(episodes)
        final_EPS = episodes.final_state_EPS
        columns = {
            "state": final_EPS.reshape(-1, final_EPS.shape[-1]),
            "critic": np.repeat(np.nan_to_num(episodes.final_critic_EC), num_players, axis=0),
            "known": np.repeat(known_E, num_players),
        }
        there = to_device(columns, device)
        return self._in_parts(there["state"], there["critic"], use_amp) * there["known"]

    def backward(
        self, rollout: Rollout, batch: Batch, targets: Targets, settings: UpdateSettings, scale: torch.Tensor
    ) -> torch.Tensor:
        """Add a batch's gradient, times `scale`; the loss, summed over the steps.

        Args:
            rollout: Where the steps are.
            batch: Which of them.
            targets: What to train towards; the old values are this critic's.
            settings: Its coefficient and clipping are those of the network's own value.
            scale: 0-d.
        """
        with span("forward"), autocast(rollout.device, settings.use_amp):
            critic_BC = rollout.gather_columns(batch, [CRITIC_STATE])[CRITIC_STATE]
            value_B = self(rollout.state_NS.index_select(0, batch.step_B), critic_BC)
        with span("loss"):
            loss = value_loss(value_B, targets, settings.clip_range_vf)
        with span("backward"):
            (settings.vf_coef * loss * scale).backward()
        return loss.detach()

    def check(self, episodes: Episodes) -> None:
        """Refuse episodes that do not tell what it is to know.

        Raises:
            DataError: They have no critic states, or wider or narrower ones.
        """
        width = None if episodes.critic_state_NC is None else episodes.critic_state_NC.shape[1]
        if width != self.critic_size and episodes.num_steps:
            raise DataError(
                "the critic is to see all, and the episodes do not tell that",
                got="no critic_state" if width is None else f"critic_state of width {width}",
                expected=f"width {self.critic_size}",
                do="Record critic_state, or say --critic_sees state.",
            )

    def flops(self, num_steps: int) -> int:
        """Floating-point operations of one forward and backward pass over so many steps."""
        first = 2 * (self.state_size + self.critic_size) * self.hidden_dim * num_steps
        return 2 * first + 3 * 2 * self.hidden_dim * (self.hidden_dim + 1) * num_steps

    def _in_parts(self, state_NS: torch.Tensor, critic_NC: torch.Tensor, use_amp: bool) -> torch.Tensor:
        pairs = zip(state_NS.split(EVALUATION_STEPS), critic_NC.split(EVALUATION_STEPS), strict=True)
        with autocast(state_NS.device, use_amp):
            return torch.cat([self(state_BS, critic_BC) for state_BS, critic_BC in pairs])


def knows_end(episodes: Episodes) -> Array:
    """bool [E]: it is recorded what a critic may know of where the episode stopped."""
    if episodes.final_critic_EC is None:
        return np.zeros(episodes.num_episodes, bool)
    return np.asarray(np.isfinite(episodes.final_critic_EC).all(axis=1))


def load_critic(critic: Critic | None, state: Mapping[str, torch.Tensor] | None) -> None:
    """Give a critic the weights of a checkpoint's.

    Raises:
        CheckpointError: There is one only here or only there, or they know different things.
    """
    now = None if critic is None else critic.state_dict()
    if _form(now) != _form(state):
        raise CheckpointError("the checkpoint is of another critic", got=_form(state), expected=_form(now),
                              do="Go on with the --critic_sees and the game that the run began with.")  # fmt: skip
    if critic is not None and state is not None:
        critic.load_state_dict(state)


def take_over(critic: Critic | None, state: Mapping[str, torch.Tensor] | None) -> None:
    """Begin with the weights of another run's critic, if it had one that knew as much."""
    if critic is not None and _form(critic.state_dict()) == _form(state):
        load_critic(critic, state)


def _form(state: Mapping[str, torch.Tensor] | None) -> str:
    """A critic as people read it."""
    if state is None:
        return "values from the state alone"
    hidden_dim, size = next(iter(state.values())).shape
    return f"one that reads {size} numbers, {hidden_dim} wide"
