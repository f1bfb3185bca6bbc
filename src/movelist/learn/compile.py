"""The forward pass and the loss of a batch as one compiled graph, and its gradient as another: `--compile on`.

The numbers of steps, legal actions and unique ids stay symbols in a graph, so it serves batches of many sizes. torch
makes graphs of their own for sizes of 1: batches with such a size are computed without a graph. On a CPU it also sums
more than 4,096 terms in another way than fewer, which makes MAX_GRAPHS in all; a training rarely sees more than 2.
Where no graph can be had (no C++ compiler, a state encoder that cannot be traced), a notice says so once and training
goes on without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from movelist.core.metrics import span
from movelist.core.ragged import Segments
from movelist.core.settings import UpdateSettings
from movelist.learn.batch import Batch, PairOrder
from movelist.learn.device import autocast
from movelist.learn.loss import Loss, Targets, loss_names, ppo_loss
from movelist.learn.model import Network

# Actions up to 4,096, then steps and unique ids are as few; or more actions, with either of both up to 4,096 or above.
MAX_GRAPHS = 5
Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class CompiledLoss:
    """Computes loss terms and gradients of batches in compiled graphs, as far as that is possible.

    Args:
        net: The network; its parameters keep their names.
        settings: Of the update.
        loss: What to minimise.
        backend: What makes a callable of a traced graph; None takes torch's compiler, inductor.

    Attributes:
        num_graphs: Graphs traced so far, a forward and backward pair counting as one.
        num_compiled: Batches that were computed in a graph, of `num_batches`.
        notices: What people should be told, each once.
    """

    def __init__(
        self, net: Network, settings: UpdateSettings, loss: Loss = ppo_loss, *, backend: Backend | None = None
    ) -> None:
        self.net, self.settings, self.loss, self.backend = net, settings, loss, backend
        self.names = loss_names(loss)
        self.num_graphs = self.num_compiled = self.num_batches = 0
        self.notices: list[str] = []
        self._compiled: Callable[..., tuple[torch.Tensor, ...]] | None = None
        self._has_worked = self._given_up = self._limit_reached = False

    def backward(
        self, state_BS: torch.Tensor, encoded_U: torch.Tensor, batch: Batch, targets: Targets, scale: torch.Tensor
    ) -> dict[str, torch.Tensor] | None:
        """Add `scale` times the gradient of a batch's loss to the parameters' gradients.

        Args:
            state_BS: [B, S], the batch's states.
            encoded_U: The batch's unique actions as the network takes them.
            batch: Lists, choices, and which action is which unique one.
            targets: What to train towards.
            scale: 0-d, what the loss is multiplied with.

        Returns:
            The loss terms, as `loss` gives them; None if nothing was done, and the caller must do without a graph.
        """
        self.num_batches += 1
        sizes = (batch.segments.num_steps, batch.segments.num_actions, batch.num_unique)
        if self._given_up or min(sizes) < 2:
            return None
        inputs = (
            state_BS,
            encoded_U,
            batch.segments.offsets,
            batch.segments.step_A,
            batch.unique_A,
            batch.chosen_B,
            (*targets.standard, dict(targets.more)),
            (batch.order.order_A, batch.order.unique_offsets) if batch.order else None,
        )
        try:
            terms = self._run(inputs, scale)
        except Exception as error:
            # A failure while compiling leaves no gradient behind: a graph's backward is a single step of autograd.
            if not self._note(error):
                raise
            return None
        self.num_compiled += 1
        self._has_worked = True
        return dict(zip(self.names, terms, strict=True))

    def metrics(self) -> dict[str, float]:
        """The share of batches since the last call that went through a graph, and the number of graphs."""
        share = self.num_compiled / max(1, self.num_batches)
        self.num_compiled = self.num_batches = 0
        return {"perf/compiled": share, "perf/graphs": float(self.num_graphs)}

    def _run(self, inputs: tuple[Any, ...], scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shapes: Any = import_module("torch.fx.experimental._config")
        # Left on, sizes that happen to be equal in the first batch would count as always equal, and the next batch
        # would need another graph.
        with shapes.patch(use_duck_shape=False):
            if self._compiled is None:
                self._compiled = torch.compile(self._terms, dynamic=True, fullgraph=True, backend=self._count)
            with span("forward"), autocast(inputs[0].device, self.settings.use_amp):
                terms = self._compiled(*inputs)
            with span("backward"):  # the gradient's graph is compiled here the first time
                (terms[0] * scale).backward()
        return terms

    def _terms(
        self,
        state_BS: torch.Tensor,
        encoded_U: torch.Tensor,
        offsets: torch.Tensor,
        step_A: torch.Tensor,
        unique_A: torch.Tensor,
        chosen_B: torch.Tensor,
        targets: tuple[Any, ...],
        order: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, ...]:
        """What is traced: tensors only, with the sizes taken from them."""
        pair_order = None if order is None else PairOrder(offsets, *order)
        score_A, value_B = self.net(state_BS, encoded_U, step_A, unique_A, pair_order)
        segments = Segments(offsets, step_A, state_BS.shape[0], step_A.shape[0])
        terms = self.loss(score_A, value_B, segments, chosen_B, Targets(*targets[:-1], more=targets[-1]), self.settings)
        return tuple(terms[name] for name in self.names)

    def _count(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        make: Any = self.backend or torch._dynamo.lookup_backend("inductor")
        compiled: Callable[..., Any] = make(graph, inputs)
        self.num_graphs += 1  # only now: torch may give up a trace and start again
        return compiled

    def _note(self, error: Exception) -> bool:
        """Take note of why a batch could not be compiled; False if the error is of another kind."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        if isinstance(error, FailOnRecompileLimitHit):
            if not self._limit_reached:
                self.notices.append(
                    f"--compile: torch's limit of graphs is reached after {self.num_graphs}; batches that fit none of "
                    "them are computed without."
                )
            self._limit_reached = True
            return True
        # At first everything counts as a failure to compile: compilers fail in many ways, and an error of our own
        # comes again without a graph.
        if self._has_worked and not isinstance(error, TorchDynamoException):
            return False
        self._given_up = True
        self.notices.append(f"--compile does not work here, going on without: {_first_line(error)}")
        return True


def _first_line(error: Exception) -> str:
    """The kind of an error and the first line of its text that says something."""
    error = getattr(error, "inner_exception", error)  # what torch wraps in an error of its own
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no explanation'}"[:200]
