"""Climb the ladder: check that all rungs say the same, then time them in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from movelist.core.settings import UpdateSettings
from movelist.data.episode import Episodes
from movelist.learn.batch import Rollout, plan_batches, plan_minibatches
from movelist.learn.device import amp_dtype, to_device
from movelist.learn.learner import Learner
from movelist.learn.loss import Targets
from movelist.learn.model import PolicyValueNet
from movelist.learn.parallel import World
from movelist.measure.clock import Timer, clock, exact_products, matmul_rate, scaled, typical_seconds
from movelist.measure.minibatches import all_actions, equal_lists, mixed_lists
from movelist.measure.rungs import FullHead, Rung, Sample, ladder

Array = NDArray[Any]
TOLERANCE = 1e-4  # of a log-prob in float32, TF32 off: rungs sum in different orders. See docs/architecture.md
CHECKED_STEPS = 64
# The learning rate is 0: every number is computed as in training, and the weights stay as they are for the next rung.
SETTINGS = UpdateSettings(lr=0.0, epochs_per_update=1)


@dataclass
class Row:
    """One rung on one minibatch.

    Attributes:
        name: Of the rung.
        lengths: "mixed" or "equal".
        num_steps: B.
        num_actions: A.
        num_unique: U.
        timed_steps: Steps that were timed; where fewer than B, the seconds below are scaled to B.
        difference: Largest difference of a log-prob from the first rung's (from its own flat form where the network is
            another), over CHECKED_STEPS steps.
        bounded: Whether the difference has to keep TOLERANCE.
        update_flops: Operations that movelist's formulas ask for in an update of this minibatch.
        evaluate_flops: The same without gradient.
        update_seconds: Forward, loss, backward, clipping and optimiser, in each repetition.
        evaluate_seconds: Without gradient, in each repetition.
    """

    name: str
    lengths: str
    num_steps: int
    num_actions: int
    num_unique: int
    timed_steps: int
    difference: float
    bounded: bool
    update_flops: int
    evaluate_flops: int
    update_seconds: list[float] = field(default_factory=list)
    evaluate_seconds: list[float] = field(default_factory=list)

    def steps_per_second(self, what: str) -> float:
        """Median of "update" or "evaluate"."""
        return self.num_steps / self._median(what)

    def spread(self, what: str) -> float:
        """Slowest over fastest repetition, less 1."""
        seconds = getattr(self, f"{what}_seconds")
        return float(max(seconds) / min(seconds) - 1)

    def matmul_share(self, what: str, rate: float) -> float:
        """Share of the matrix product rate that movelist's formulas reach in this rung's time."""
        flops: int = getattr(self, f"{what}_flops")
        return flops / self._median(what) / rate

    def _median(self, what: str) -> float:
        seconds: list[float] = getattr(self, f"{what}_seconds")
        return statistics.median(seconds)

    @property
    def good(self) -> bool:
        """Whether the rung says what the first one says."""
        return not self.bounded or self.difference <= TOLERANCE


@dataclass
class Result:
    """A whole measurement.

    Attributes:
        rows: Every rung on every minibatch.
        matmul_rates: Operations a second of a plain matrix product, measured between the rungs.
        plan_seconds: The host's planning of one minibatch, by batch size.
        gather_seconds: Gathering it on the device.
        transfer: Seconds of a minibatch's copy to the GPU, "pageable" and "pinned"; empty without a GPU.
    """

    rows: list[Row] = field(default_factory=list)
    matmul_rates: list[float] = field(default_factory=list)
    plan_seconds: dict[int, float] = field(default_factory=dict)
    gather_seconds: dict[int, float] = field(default_factory=dict)
    transfer: dict[str, float] = field(default_factory=dict)

    @property
    def matmul_rate(self) -> float:
        """The median."""
        return statistics.median(self.matmul_rates)

    def row(self, name: str, num_steps: int, lengths: str = "mixed") -> Row | None:
        """One row, or None."""
        found = [row for row in self.rows if (row.name, row.num_steps, row.lengths) == (name, num_steps, lengths)]
        return found[0] if found else None


@dataclass(frozen=True)
class _Timed:
    """What the clock is held to: a rung on a minibatch. `parts` are the sizes at which it is timed, largest last."""

    row: Row
    update: Callable[[int], object]
    evaluate: Callable[[int], object]
    sizes: tuple[int, ...]


def climb(
    net: PolicyValueNet,
    episodes: Episodes,
    *,
    batch_sizes: tuple[int, ...],
    repetitions: int,
    num_actions: int | None = None,
    seed: int = 0,
    compile: bool = False,
    timer: Timer = time.perf_counter,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Measure all rungs on minibatches of mixed and of equal lists.

    Args:
        net: Its weights are used by all rungs and stay as they are.
        episodes: Where the steps come from.
        batch_sizes: B of each minibatch.
        repetitions: Times that each rung is timed, in turns with the others.
        num_actions: Actions of the whole game; None takes the ids in the episodes.
        seed: Of the steps drawn.
        compile: Add a rung with torch.compile, if this movelist has it.
        timer: What seconds are counted with.
        say: Told what is being done.

    Raises:
        DataError: There are too few steps.
    """
    rng = np.random.default_rng(seed)
    result = Result()
    all_id_K = all_actions(episodes, num_actions, table=net.shape.action_encoder == "table", rng=rng)
    head = FullHead(net, len(all_id_K))
    # All are drawn first: what is wanting is said before the first minute is spent.
    for batch_size, mixed in [(size, mixed_lists(episodes, size, rng)) for size in batch_sizes]:
        for lengths, steps in (("mixed", mixed), ("equal", equal_lists(mixed, rng))):
            say(f"{batch_size:,} steps, {steps.num_actions:,} legal actions, lists of {lengths} length")
            sample = Sample.of(steps, _targets(net, steps, rng), all_id_K, net)
            timed = [
                *_plain_rungs(net, head, sample, lengths),
                *_trainer_rungs(net, sample, lengths, compile=compile),
            ]
            _in_turns(timed, repetitions, net, result, timer)
            result.rows += [one.row for one in timed]
        _host(net, episodes, batch_size, repetitions, result, timer)
    result.transfer = transfer(episodes, batch_sizes[-1], next(net.parameters()).device)
    return result


def _targets(net: PolicyValueNet, steps: Episodes, rng: np.random.Generator) -> Targets:
    """Log-probs of even chances, and advantages and returns as they are after normalisation."""
    even = torch.from_numpy(-np.log(np.diff(steps.action_offsets))).float()
    others = [torch.from_numpy(rng.normal(size=steps.num_steps)).float() for _ in range(3)]
    return Targets(even, *others)


def _plain_rungs(net: PolicyValueNet, head: FullHead, sample: Sample, lengths: str) -> Iterator[_Timed]:
    rungs = ladder(net, head)
    checked = min(CHECKED_STEPS, sample.num_steps)
    with exact_products(), torch.no_grad():
        reference = rungs[0].answer(net, sample.first(checked, net))[0]
        own = head.flat_log_prob(net, sample.first(checked, net))
    for rung in rungs:
        sizes = _sizes(rung, sample.num_steps)
        parts = {size: sample if size == sample.num_steps else sample.first(size, net) for size in sizes}
        with exact_products(), torch.no_grad():
            said = rung.answer(net, parts[sizes[-1]])[0][:checked]
        difference = (said - (own if rung.other_network else reference)[: len(said)]).abs().max().item()
        parameters = [*net.parameters(), *(head.layer.parameters() if rung.other_network else ())]
        row = _row(rung.name, net, sample, lengths, timed_steps=sizes[-1], difference=difference)
        yield _Timed(row, _update(rung, net, parts, parameters), _evaluate(rung, net, parts), sizes)


def _sizes(rung: Rung, num_steps: int) -> tuple[int, ...]:
    if rung.most_steps is None or rung.most_steps >= num_steps:
        return (num_steps,)
    return (rung.most_steps // 2, rung.most_steps) if rung.has_fixed_cost else (rung.most_steps,)


def _row(
    name: str,
    net: PolicyValueNet,
    sample: Sample,
    lengths: str,
    *,
    timed_steps: int,
    difference: float,
    bounded: bool = True,
) -> Row:
    sizes = (sample.num_steps, len(sample.action_id_A), len(sample.rollout.unique_id_R))
    flops = net.flops(*sizes), net.flops(*sizes, backward=False)
    return Row(name, lengths, *sizes, timed_steps, difference, bounded, *flops)


def _update(
    rung: Rung, net: PolicyValueNet, parts: dict[int, Sample], parameters: list[torch.nn.Parameter]
) -> Callable[[int], object]:
    optimizer = torch.optim.Adam(parameters, lr=SETTINGS.lr, eps=1e-5, fused=True)

    def update(size: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        (rung.loss(net, parts[size], SETTINGS) / size).backward()
        torch.nn.utils.clip_grad_norm_(parameters, SETTINGS.max_grad_norm)
        optimizer.step()

    return update


def _evaluate(rung: Rung, net: PolicyValueNet, parts: dict[int, Sample]) -> Callable[[int], object]:
    @torch.no_grad()
    def evaluate(size: int) -> object:
        return rung.answer(net, parts[size])

    return evaluate


def _trainer_rungs(net: PolicyValueNet, sample: Sample, lengths: str, *, compile: bool) -> Iterator[_Timed]:
    """The trainer itself: `Learner.update` with planning, guard and metrics; `Learner.prepare` for the evaluation."""
    device = sample.device
    episodes = sample.rollout.episodes
    plain = replace(SETTINGS, batch_size=sample.num_steps, max_actions_per_minibatch=episodes.num_actions)
    variants: list[tuple[str, UpdateSettings, bool]] = [("movelist's update", plain, True)]
    offered = {f.name for f in fields(UpdateSettings)}
    if compile and "compile" in offered:
        variants.append(("+ compile", _with(plain, compile="on"), True))
    if "kernels" in offered and device.type == "cuda" and find_spec("triton") is not None:
        variants.append(("+ Triton kernel", _with(plain, kernels="triton"), True))
    if amp_dtype(device) is not None:
        variants.append(("+ mixed precision", replace(plain, use_amp=True), False))
    with exact_products(), torch.no_grad():
        few = sample.first(min(CHECKED_STEPS, sample.num_steps), net)
        reference = ladder(net, FullHead(net, 1))[0].answer(net, few)[0].cpu().numpy()
    losses: list[float] = []
    for name, settings, bounded in variants:
        learner = Learner(net, settings, World(device))
        with exact_products():
            prepared = learner.prepare(episodes)
            losses.append(learner.update(prepared)["losses/loss"])
        # An update shows its loss but no log-probs: those are of the preparation, the loss is held to the first one's.
        difference = float(np.abs(prepared.targets["old_log_prob"][: len(reference)] - reference).max())
        difference = max(difference, abs(losses[-1] - losses[0]))
        row = _row(name, net, sample, lengths, timed_steps=sample.num_steps, difference=difference, bounded=bounded)

        def update(size: int, learner: Learner = learner, prepared: Any = prepared) -> object:
            return learner.update(prepared)

        def evaluate(size: int, learner: Learner = learner) -> object:
            return learner.prepare(episodes)

        yield _Timed(row, update, evaluate, (sample.num_steps,))


def _with(settings: UpdateSettings, **given: Any) -> UpdateSettings:
    """Settings that this movelist may or may not have."""
    return replace(settings, **given)


def _in_turns(timed: list[_Timed], repetitions: int, net: PolicyValueNet, result: Result, timer: Timer) -> None:
    """Every rung once in each repetition, so that a busy moment of the machine hits all alike."""
    device = next(net.parameters()).device
    for one in timed:  # warm up: caches, allocator, optimiser states, graphs
        one.update(one.sizes[-1])
        one.evaluate(one.sizes[-1])
    for _ in range(repetitions):
        result.matmul_rates.append(matmul_rate(net.shape.hidden_dim, device, timer))
        for one in timed:
            for work, seconds in ((one.update, one.row.update_seconds), (one.evaluate, one.row.evaluate_seconds)):
                timings = [(size, typical_seconds(partial(work, size), device, timer)) for size in one.sizes]
                seconds.append(scaled(timings, one.row.num_steps))
    net.zero_grad(set_to_none=True)


def _host(
    net: PolicyValueNet, episodes: Episodes, batch_size: int, repetitions: int, result: Result, timer: Timer
) -> None:
    """What planning and gathering of a minibatch cost in an epoch over all episodes."""
    device = next(net.parameters()).device
    rollout = Rollout(episodes, net.encode_ids, device)
    order = np.random.default_rng(0).permutation(rollout.num_steps)
    cuts = plan_minibatches(
        order, rollout.count_N, batch_size=batch_size, accumulation=1, max_actions=SETTINGS.max_actions_per_minibatch
    )
    parts = [part for minibatch in cuts for part in minibatch]
    target_N = torch.zeros(rollout.num_steps, device=device)
    batches, _ = plan_batches(rollout, parts, {})

    def gather() -> None:
        for batch in batches:
            rollout.state_NS.index_select(0, batch.step_B)
            rollout.encoded_R.index_select(0, batch.row_U)
            for _ in range(4):
                target_N.index_select(0, batch.step_B)

    planning = [clock(lambda: plan_batches(rollout, parts, {}), device, timer) for _ in range(repetitions)]
    gathering = [clock(gather, device, timer) for _ in range(repetitions)]
    # Of a whole minibatch: the remainder is spread, so the parts are a little smaller than batch_size.
    size = batch_size / rollout.num_steps
    result.plan_seconds[batch_size] = statistics.median(planning) * size
    result.gather_seconds[batch_size] = statistics.median(gathering) * size


def transfer(episodes: Episodes, batch_size: int, device: torch.device) -> dict[str, float]:
    """Seconds to copy a minibatch's states and ids to the GPU, from pageable and from pinned memory; {} without one."""
    if device.type != "cuda":
        return {}
    end = int(episodes.action_offsets[min(batch_size, episodes.num_steps)])
    columns = {"state": episodes.state_NS[:batch_size], "id": episodes.action_id_A[:end]}

    def pageable() -> None:
        for column in columns.values():
            torch.from_numpy(column).to(device)

    ways: dict[str, Callable[[], object]] = {"pageable": pageable, "pinned": lambda: to_device(columns, device)}
    return {name: statistics.median(clock(work, device) for _ in range(20)) for name, work in ways.items()}
