"""PPO's update: prepare a rollout (values, missing log-probs, advantages), then some epochs of minibatches over it.

The host waits for the device twice in an update, in `prepare` for the values and at the end for the metrics; once more
for each epoch if there is a `target_kl`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from movelist.core import ragged, returns
from movelist.core.errors import NonFiniteError, SettingsError
from movelist.core.metrics import Sums, span
from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.batch import (
    EVALUATION_ACTIONS,
    EVALUATION_STEPS,
    Batch,
    Minibatch,
    Rollout,
    evaluation_parts,
    plan_batches,
    plan_minibatches,
)
from movelist.learn.compile import CompiledLoss
from movelist.learn.critic import Critic, knows_end, load_critic
from movelist.learn.device import (
    LossScale,
    amp_dtype,
    autocast,
    explain_out_of_memory,
    explain_too_wide,
    release_cached_memory,
    to_device,
    triton_missing,
)
from movelist.learn.guard import (
    CALMER,
    FarLogProbs,
    Guard,
    columns_of,
    non_finite_places,
    refuse_beyond_reason,
    refuse_non_finite,
)
from movelist.learn.loss import (
    STANDARD_TARGETS,
    Loss,
    Targets,
    check_terms,
    imitation_loss,
    loss_names,
    own_targets,
    ppo_loss,
)
from movelist.learn.model import Network
from movelist.learn.parallel import World

Array = NDArray[Any]
ROUNDED_AWAY = 2.0**22  # deviations from 0, where float32 rounds a value by a quarter of one, and beyond by more
CRITIC_LOSS, OLD_CRITIC_VALUE = "critic_loss", "old_critic_value"
FAR_OFF = 2.0  # deviations of the returns; nearer to 0 than this, a new network's values find their mean at once


@dataclass(frozen=True)
class Prepared:
    """A rollout with all that its update is trained towards.

    Attributes:
        rollout: The steps.
        targets: float32 [N] on the host, by the names of `Targets` without their dimension.
        metrics: What is known before the update.
        returns: The running scale with this rollout's returns, by which they are divided; `targets` take the critic's
            bias as moved to its centre.
        outlier: The return that lies farthest out, where the scale leaves some out, in the game's own units.
    """

    rollout: Rollout
    targets: dict[str, Array]
    metrics: dict[str, float]
    returns: returns.RunningScale
    outlier: float | None = None


@dataclass(frozen=True)
class Said:
    """What the networks say of a rollout, float64 on the host.

    Attributes:
        value_N: Values from the states alone.
        log_prob_N: Of the chosen actions; as recorded where nothing had to be computed.
        judged_N: The values behind the advantages: the critic's, if there is one.
        final_EP: Of where truncated episodes stopped, by the critic where it knows that; None if none was truncated.
    """

    value_N: Array
    log_prob_N: Array
    judged_N: Array
    final_EP: Array | None


class Learner:
    """Trains a network on episodes by PPO.

    Args:
        net: The network, on `world.device`.
        settings: Of the update.
        world: The processes that train together.
        seed: Of the order of steps.
        loss: What to minimise.
        critic: Gives the values behind the advantages, and is trained beside the network; on `world.device`. None takes
            the network's own values.
    """

    def __init__(
        self,
        net: Network,
        settings: UpdateSettings,
        world: World,
        *,
        seed: int = 0,
        loss: Loss = ppo_loss,
        critic: Critic | None = None,
    ) -> None:
        self.net, self.settings, self.world, self.seed, self.loss = net, settings, world, seed, loss
        self.critic = critic
        self.trained: nn.Module = net if critic is None else nn.ModuleList([net, critic])
        self.loss_names = loss_names(loss)
        self.sum_names = self.loss_names if critic is None else (*self.loss_names, CRITIC_LOSS)
        world.copy_weights(self.trained)
        # Fused: one kernel for all parameters, and the only Adam that can skip a step without asking the device.
        self.optimizer = torch.optim.Adam(self.trained.parameters(), lr=settings.lr, eps=1e-5, fused=True)
        self.returns = returns.RunningScale()
        self.far_log_probs = FarLogProbs()
        self.loss_scale = LossScale(world.device, enabled=settings.use_amp and amp_dtype(world.device) is torch.float16)
        self.num_updates = 0
        if settings.compile == "on" and net.column_names:
            raise SettingsError("compile is for networks without further columns", got=", ".join(net.column_names))
        self.notices: list[str] = []
        self.told_of_outliers = False
        self.compiled = CompiledLoss(net, settings, loss) if settings.compile == "on" else None
        self.ordered = settings.kernels == "triton" and triton_missing(world.device) is None
        if self.ordered and net.shape.feature_size:
            self.ordered = False
            self.notices.append("The triton kernel knows no action features: torch scores the legal actions.")

    def prepare(self, episodes: Episodes) -> Prepared:
        """Compute values, missing log-probs, advantages and returns for the steps that the policy made.

        The learner stays as it is: what the returns teach it is kept by `update`.

        Raises:
            DataError: An action id has no row in the network's table, or a return is beyond reason.
            NonFiniteError: A value or log-prob is NaN or infinite; names episode and step.
        """
        with span("plan"):
            episodes = episodes.learnable()
            self.net.check_ids(torch.from_numpy(episodes.action_id_A), episodes.place_of_action)
            if self.critic is not None:
                self.critic.check(episodes)
            rollout = Rollout(episodes, self.net.encode_ids, self.world.device)
        with explain_out_of_memory(min(EVALUATION_STEPS, rollout.num_steps), EVALUATION_ACTIONS):
            said = self._evaluate(rollout)
        with span("plan"):
            return self._targets(rollout, said)

    def _targets(self, rollout: Rollout, said: Said) -> Prepared:
        """Advantages and returns from what the networks say of the steps."""
        episodes, value_N, judged_N, final_EP = rollout.episodes, said.value_N, said.judged_N, said.final_EP
        log_prob_N = said.log_prob_N
        old_log_prob_N = np.where(np.isnan(episodes.log_prob_N), log_prob_N, episodes.log_prob_N)
        far_N = self.far_log_probs.find(episodes, log_prob_N, imitated=self.loss is imitation_loss)
        old_log_prob_N = np.where(far_N, log_prob_N, old_log_prob_N)
        when = f"before update {self.num_updates + 1}"
        refuse_non_finite(when, rollout, value_N, old_log_prob_N, final_EP)
        if self.critic is not None:
            refuse_non_finite(when, rollout, judged_N, old_log_prob_N, None)
        raw_N, usual_N, counted = self._counted(episodes)
        scale = self._divisor(counted)
        refuse_beyond_reason(when, episodes, raw_N, scale)
        counted.centre += self._offset(episodes, usual_N, scale * value_N)
        moved = self._bias_move(counted)
        value_N, judged_N = value_N + moved, judged_N + moved
        if final_EP is not None:
            final_EP = np.where(episodes.truncated_E[:, None], final_EP + moved, 0.0)
        advantage_N, return_N = self._advantages(episodes, judged_N, final_EP, scale)
        columns = (advantage_N, return_N - judged_N, return_N, episodes.reward_N)
        further = () if self.critic is None else (return_N - value_N,)
        whole, error, target, reward, *state_error = self.world.moments(*columns, *further)
        if self.settings.normalize_advantage:
            advantage_N = returns.normalized(advantage_N, whole)
        advantage_N = np.where(far_N, 0.0, advantage_N)  # they teach the value, not the policy
        targets = dict(zip(STANDARD_TARGETS, (old_log_prob_N, advantage_N, return_N, value_N), strict=True))
        # Where no step was paid anything, what varies in the returns are the network's own values.
        paid = bool(reward.squares or reward.mean)
        metrics = {
            "losses/explained_variance": returns.explained_variance(error, target) if paid else 0.0,
            "losses/return_scale": scale,
        }
        if self.critic is not None:
            targets[OLD_CRITIC_VALUE] = judged_N
            metrics["losses/state_explained_variance"] = (
                returns.explained_variance(state_error[0], target) if paid else 0.0
            )
        if num_far := self.world.gather([far_N.sum()]).sum():
            metrics["data/far_log_probs"] = float(num_far)
        outlier = None if usual_N is raw_N else float(raw_N[np.argmax(np.abs(raw_N - usual_N))])
        targets |= own_targets(self.loss, episodes)
        narrow = {name: column.astype(np.float32) for name, column in targets.items()}
        return Prepared(rollout, narrow, metrics, counted, outlier)

    def update(self, prepared: Prepared, *, lr: float | None = None) -> dict[str, float]:
        """Train some epochs on a prepared rollout.

        Args:
            prepared: From `prepare`, with the present weights.
            lr: Learning rate of this update; None takes the settings'.

        Returns:
            Metrics by their TensorBoard tags, averages over all steps of all epochs.

        Raises:
            NonFiniteError: A loss or gradient was NaN or infinite. The weights are as before that minibatch.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr if lr is None else lr
        self._begin(prepared)
        with span("plan"):
            epochs, targets = self._plan(prepared)
        guard = Guard(self.world.device)
        sums = Sums((*self.sum_names, "steps", "minibatches", "grad_norm"), self.world.device)
        num_epochs = 0
        for epoch in epochs:
            kl_before = sums.vector.clone()
            for minibatch in epoch:
                self._step(prepared.rollout, targets, minibatch, sums, guard)
            num_epochs += 1
            if self._moved_too_far(sums, kl_before):
                break
        metrics = self._finish(prepared, targets, epochs[:num_epochs], sums, guard)
        if self.settings.empty_cache_every and self.num_updates % self.settings.empty_cache_every == 0:
            release_cached_memory(self.world.device)
        return metrics

    def take_notices(self) -> list[str]:
        """What people should be told since the last call."""
        notices, self.notices = self.notices + self.far_log_probs.take_notices(), []
        if self.compiled is not None:
            notices, self.compiled.notices = notices + self.compiled.notices, []
        return notices

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, return scale and count, of types that a checkpoint holds."""
        return {
            "net": self.net.state_dict(),
            **({} if self.critic is None else {"critic": self.critic.state_dict()}),
            "optimizer": self.optimizer.state_dict(),
            "returns": dict(vars(self.returns)),
            "loss_scale": self.loss_scale.state_dict(),
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            CheckpointError: It was trained with another critic, or this is trained with another.
        """
        load_critic(self.critic, state.get("critic"))
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        vars(self.returns).update(state["returns"])
        self.loss_scale.load_state_dict(state["loss_scale"])
        self.num_updates = state["num_updates"]

    # ------------------------------------------------------------------ prepare

    @torch.no_grad()
    def _evaluate(self, rollout: Rollout) -> Said:
        """Values of all steps and final states, and log-probs if any was not recorded; in one read."""
        episodes, device, use_amp = rollout.episodes, self.world.device, self.settings.use_amp
        with span("forward"):
            said: dict[str, torch.Tensor] = {}
            if self.far_log_probs.wanted(episodes):
                said["value"], said["log_prob"] = self._values_and_log_probs(rollout)
            else:
                said["value"] = self._values(rollout.state_NS)
            if episodes.final_state_EPS is not None:
                final = episodes.final_state_EPS.reshape(-1, episodes.final_state_EPS.shape[-1])
                said["final"] = self._values(to_device({"final": final}, device)["final"])
            if self.critic is not None:
                said["judged"] = self.critic.of_steps(rollout, use_amp=use_amp)
                if (ends := self.critic.of_ends(episodes, device, use_amp=use_amp)) is not None:
                    said["judged_final"] = ends
        with span("read"):
            parts = torch.cat(list(said.values())).double().cpu()  # WAIT: values
        host = dict(zip(said, map(torch.Tensor.numpy, parts.split([len(part) for part in said.values()])), strict=True))
        final_EP = None
        if episodes.final_state_EPS is not None:
            final_EP = host["final"].reshape(episodes.return_EP.shape)
            # Where nobody recorded what a critic may know there, the state's value stands in.
            if "judged_final" in host:
                judged_EP = host["judged_final"].reshape(episodes.return_EP.shape)
                final_EP = np.where(knows_end(episodes)[:, None], judged_EP, final_EP)
            # An episode that ended earns nothing more.
            final_EP = np.where(episodes.truncated_E[:, None], final_EP, 0.0)
        value_N = host["value"]
        return Said(value_N, host.get("log_prob", episodes.log_prob_N), host.get("judged", value_N), final_EP)

    def _values(self, state_NS: torch.Tensor) -> torch.Tensor:
        with autocast(self.world.device, self.settings.use_amp):
            parts = [self.net.values(state_BS) for state_BS in state_NS.split(EVALUATION_STEPS)]
        return torch.cat(parts)

    def _values_and_log_probs(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Values, and log-probs of the chosen actions, under the present weights: [N] each, in one pass."""
        # Twice those of an update, since nothing is kept for a gradient; so that what bounds one bounds both.
        most = 2 * self.settings.max_actions_per_minibatch
        batches, _ = plan_batches(rollout, evaluation_parts(rollout.count_N, most), {}, ordered=self.ordered)
        values, log_probs = [], []
        for batch in batches:
            with explain_out_of_memory(batch.segments.num_steps, batch.segments.num_actions):
                score_A, value_B = self._forward(rollout, batch)
            values.append(value_B)
            log_probs.append(ragged.log_softmax(score_A, batch.segments).index_select(0, batch.chosen_B))
        return torch.cat(values), torch.cat(log_probs)

    def _counted(self, episodes: Episodes) -> tuple[Array, Array, returns.RunningScale]:
        """Each step's return in the game's own units, the same without outliers, and the scale that knows of these.

        A truncated game's returns are what was paid up to where it broke off.
        """
        place = (np.zeros(episodes.num_steps), episodes.player_N, episodes.episode_offsets)
        raw_N = returns.rollout_gae(episodes.reward_N, *place, gamma=self.settings.gamma, gae_lambda=1.0)[1]
        usual_N = returns.without_outliers(raw_N)
        return raw_N, usual_N, self.returns.after(*self.world.moments(usual_N))

    def _divisor(self, counted: returns.RunningScale) -> float:
        """A scaled unit in the game's own."""
        return counted.scale if self.settings.scale_returns else 1.0

    def _offset(self, episodes: Episodes, return_N: Array, value_N: Array) -> float:
        """How far the values of a new network lie below the returns on average, where that is far; in the game's units.

        A critic that begins there learns the same with any offset of the returns, and its values mean what they always
        mean. Otherwise it has to climb there first, by gradients cut to max_grad_norm that leave the policy nothing.
        """
        if self.num_updates or self.net.value_bias is None:
            return 0.0
        ended_N = ~episodes.truncated_E[episodes.episode_N]
        missing, spread = self.world.moments((return_N - value_N)[ended_N], return_N[ended_N])
        constant = spread.deviation <= returns.ROUNDING * abs(spread.mean)
        return 0.0 if constant or abs(missing.mean) <= FAR_OFF * spread.deviation else missing.mean

    def _bias_move(self, counted: returns.RunningScale) -> float:
        """By how much the critic's bias, in scaled units, has to move for its centre to be that of `counted`.

        Later updates move it, too: a scale that grows by 1 % moves an offset of 100 deviations by one.
        """
        before = self.returns.centre / self._divisor(self.returns)
        return counted.centre / self._divisor(counted) - before

    def _advantages(
        self, episodes: Episodes, value_N: Array, final_value_EP: Array | None, scale: float
    ) -> tuple[Array, Array]:
        """Advantages and returns in scaled units."""
        return returns.rollout_gae(
            episodes.reward_N / scale,
            value_N,
            episodes.player_N,
            episodes.episode_offsets,
            gamma=self.settings.gamma,
            gae_lambda=self.settings.gae_lambda,
            final_value_EP=final_value_EP,
        )

    # ------------------------------------------------------------------ update

    def _begin(self, prepared: Prepared) -> None:
        """Keep what the returns of a rollout teach."""
        if (moved := self._bias_move(prepared.returns)) and self.net.value_bias is not None:
            with torch.no_grad():
                self.net.value_bias.add_(moved)
                if self.critic is not None:
                    self.critic.value.bias.add_(moved)
        if (centre := prepared.returns.centre) != self.returns.centre:
            away = abs(centre) / self._divisor(prepared.returns)
            self.notices.append(
                "The returns lie far from 0 for how little they differ, as where final scores stand in place of gains: "
                f"the values begin at their mean of {centre:.4g}, and it learns the same."
                if away < ROUNDED_AWAY
                else f"Warning: the returns lie {away:.1g} times as far from 0, at {centre:.4g}, as they differ. "
                "Values in float32 are rounded by more than that, and little may be learnt: let the game pay what was "
                "won or lost."
            )
        self.returns = prepared.returns
        if prepared.outlier is not None and not self.told_of_outliers:
            self.told_of_outliers = True
            self.notices.append(
                f"Warning: a return of {prepared.outlier:g} lies more than {returns.OUTLIER:g} times as far out as "
                "nearly all others. It is learnt from, but hardly moves the scale of returns. If no game can pay that, "
                "look for the fault; this is said once."
            )

    def _plan(self, prepared: Prepared) -> tuple[list[list[Minibatch]], dict[str, torch.Tensor]]:
        """Every minibatch of every epoch, planned first and copied over once."""
        rng = np.random.default_rng([self.seed, self.num_updates])
        largest = self.settings.batch_size * self.settings.gradient_accumulation_steps
        # As many in every process, as the one with most steps needs.
        num_minibatches = int(self.world.gather([-(-prepared.rollout.num_steps // largest)]).max())
        cuts = [
            list(
                plan_minibatches(
                    rng.permutation(prepared.rollout.num_steps),
                    prepared.rollout.count_N,
                    batch_size=self.settings.batch_size,
                    accumulation=self.settings.gradient_accumulation_steps,
                    max_actions=self.settings.max_actions_per_minibatch,
                    num_minibatches=num_minibatches,
                )
            )
            for _ in range(self.settings.epochs_per_update)
        ]
        parts = [part for epoch in cuts for minibatch in epoch for part in minibatch]
        batches, targets = plan_batches(prepared.rollout, parts, prepared.targets, ordered=self.ordered)
        own_steps = [sum(map(len, minibatch)) for epoch in cuts for minibatch in epoch]
        num_steps = iter(self.world.gather(own_steps).sum(axis=0).astype(int).tolist())
        supply = iter(batches)
        epochs = [
            [Minibatch([next(supply) for _ in minibatch], next(num_steps)) for minibatch in epoch] for epoch in cuts
        ]
        return epochs, targets

    def _forward(self, rollout: Rollout, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(self.world.device, self.settings.use_amp):
            scores: tuple[torch.Tensor, torch.Tensor] = self.net(
                *rollout.gather(batch),
                batch.segments.step_A,
                batch.unique_A,
                batch.order,
                **rollout.gather_columns(batch, self.net.column_names),
            )
        return scores

    def _step(
        self, rollout: Rollout, targets: dict[str, torch.Tensor], minibatch: Minibatch, sums: Sums, guard: Guard
    ) -> None:
        """One optimiser step on one minibatch."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch in minibatch.batches:
            with explain_out_of_memory(batch.segments.num_steps, batch.segments.num_actions):
                losses.append(self._backward(rollout, targets, batch, minibatch.num_steps))
        with span("optimiser"):
            zero = torch.zeros((), device=self.world.device)
            total = {name: sum((terms[name].detach() for terms in losses), zero.clone()) for name in self.sum_names}
            # From here on all processes have the same numbers, so whatever is decided by them is decided by all.
            self.world.sum_gradients(self.trained, *total.values())
            self.loss_scale.unscale([p.grad for p in self.trained.parameters() if p.grad is not None])
            norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.settings.max_grad_norm)
            whole = norm
            if self.critic is not None:  # apart, so that it takes nothing from the steps of the policy
                own = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.settings.max_grad_norm)
                whole = torch.hypot(norm, own)
            skip = guard.add(total["loss"], whole, self.loss_scale)
            self.optimizer.found_inf = skip  # type: ignore[attr-defined]  # fused Adam leaves out the step where it is 1
            with explain_too_wide(self.net.shape.hidden_dim):  # the first step makes room for Adam's moments
                self.optimizer.step()
            one = norm.new_ones(())
            sums.add(
                {**total, "steps": one * minibatch.num_steps, "minibatches": one, "grad_norm": norm.nan_to_num(0, 0, 0)}
            )

    def _backward(
        self, rollout: Rollout, targets: dict[str, torch.Tensor], batch: Batch, num_steps: int
    ) -> dict[str, torch.Tensor]:
        """Add a batch's share of the minibatch's gradient; the sums of its loss terms."""
        with span("loss"):
            own = {name: column.index_select(0, batch.step_B) for name, column in targets.items()}
            old_critic_B = own.pop(OLD_CRITIC_VALUE, None)
            picked = Targets(*(own.pop(name) for name in STANDARD_TARGETS), more=own)
        scale = self.loss_scale.scale / num_steps
        terms = self._backward_net(rollout, batch, picked, scale)
        if self.critic is None or old_critic_B is None:
            return terms
        picked = replace(picked, old_value_B=old_critic_B)
        return terms | {CRITIC_LOSS: self.critic.backward(rollout, batch, picked, self.settings, scale)}

    def _backward_net(
        self, rollout: Rollout, batch: Batch, picked: Targets, scale: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Add the network's gradient of a batch; the sums of its loss terms."""
        if self.compiled is not None:
            compiled_terms = self.compiled.backward(*rollout.gather(batch), batch, picked, scale)
            if compiled_terms is not None:
                return compiled_terms
        with span("forward"):
            score_A, value_B = self._forward(rollout, batch)
        with span("loss"):
            terms = self.loss(score_A, value_B, batch.segments, batch.chosen_B, picked, self.settings)
        check_terms(terms, self.loss_names)
        with span("backward"):
            (terms["loss"] * scale).backward()
        return terms

    def _moved_too_far(self, sums: Sums, before: torch.Tensor) -> bool:
        if self.settings.target_kl is None:
            return False
        with span("read"):
            epoch = dict(
                zip(sums.names, (sums.vector - before).tolist(), strict=True)
            )  # WAIT: once per epoch for target_kl
        return bool(epoch["approx_kl"] > self.settings.target_kl * max(1.0, epoch["steps"]))

    def _finish(
        self,
        prepared: Prepared,
        targets: dict[str, torch.Tensor],
        epochs: list[list[Minibatch]],
        sums: Sums,
        guard: Guard,
    ) -> dict[str, float]:
        sums.append({"first_bad": guard.first_bad, "skipped": self.loss_scale.skipped})
        total = sums.read()
        minibatches = [minibatch for epoch in epochs for minibatch in epoch]
        if total["first_bad"] >= 0:
            number = int(total["first_bad"])
            raise self._bad_number(prepared, targets, minibatches[number], number)
        self.num_updates += 1
        steps = max(1.0, total["steps"])
        metrics = {f"losses/{name}": total[name] / steps for name in self.sum_names}
        metrics["losses/grad_norm"] = total["grad_norm"] / max(1.0, total["minibatches"])
        metrics["charts/learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        metrics["perf/minibatches"] = total["minibatches"]
        if self.loss_scale.enabled:
            metrics["perf/skipped_steps"] = total["skipped"]
        metrics["perf/epochs"] = float(len(epochs))
        flops = sum(
            self.net.flops(b.segments.num_steps, b.segments.num_actions, b.num_unique)
            + (0 if self.critic is None else self.critic.flops(b.segments.num_steps))
            for minibatch in minibatches
            for b in minibatch.batches
        )
        metrics["perf/update_flops"] = float(self.world.gather([flops]).sum())
        return {**prepared.metrics, **metrics, **(self.compiled.metrics() if self.compiled else {})}

    def _bad_number(
        self, prepared: Prepared, targets: dict[str, torch.Tensor], minibatch: Minibatch, number: int
    ) -> NonFiniteError:
        """The error of the first process in whose part of a minibatch something is bad, with that part's steps."""
        where = f"update {self.num_updates + 1}, minibatch {number + 1}"
        own = self._explain(prepared, targets, minibatch, where)
        unexplained = NonFiniteError("the loss is not a finite number", where=where, do=CALMER)
        for error in (own, unexplained):
            if error is not None and minibatch.batches:
                steps_M = torch.cat([batch.step_B for batch in minibatch.batches]).cpu().numpy()
                error.minibatch = columns_of(prepared.rollout, steps_M, prepared.targets)
        return next(filter(None, self.world.gather_objects(own)), unexplained)

    def _explain(
        self, prepared: Prepared, targets: dict[str, torch.Tensor], minibatch: Minibatch, where: str
    ) -> NonFiniteError | None:
        """Replay the first bad minibatch with the weights as they were, and name the first bad number in it.

        None where this process's part of it is good.
        """
        where += self.world.place
        self.optimizer.zero_grad(set_to_none=True)
        for batch in minibatch.batches:
            with torch.no_grad():
                score_A, value_B = self._forward(prepared.rollout, batch)
            for what, step, got, do in non_finite_places(
                prepared.rollout, batch, score_A, value_B, prepared.targets["old_log_prob"]
            ):
                place = f"{where}, {prepared.rollout.episodes.place(step)}"
                return NonFiniteError(f"{what} is not a finite number", got=got, where=place, do=do)
            self._backward(prepared.rollout, targets, batch, minibatch.num_steps)
        named = list(self.net.named_parameters())
        named += [] if self.critic is None else self.critic.named_parameters(prefix="the critic's")
        for name, parameter in named:
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return NonFiniteError(f"the gradient of {name} is not finite", where=where, do=CALMER)
        return None
