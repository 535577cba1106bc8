"""Training steps without compilation, in sequence, like a manual loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import PhaseError
from anyaccel_torch.forward_call import share_of_batch
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.loss_scaling import UNSCALED, LossScaling
from anyaccel_torch.losses import BoundLoss, divisor


def gathered_blocks(
    columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, stop: int, batch: int, max_bytes: int
) -> Iterator[list[Tensor]]:
    """Yield rows `order[start:stop]` of each column, gathered for several batches together, in at most `max_bytes`."""
    row_bytes = sum(math.prod(column.shape[1:]) * column.element_size() for column in columns)
    n_rows = batch * max(1, max_bytes // max(1, row_bytes * batch))
    for begin in range(start, stop, n_rows):
        end = min(begin + n_rows, stop)
        yield [column.index_select(0, order[begin:end]) for column, order in zip(columns, orders, strict=True)]


class EagerSteps:
    """Training steps over lists of values: forward, one backward pass over all losses, the optimizers.

    Args:
        label: Label of the segment.
        runs: Its operations.
        losses: Its losses.
        steppers: Functions that do an optimizer step, one for each parameter group.
        trained: Parameters whose gradients are cleared after each step.
        scaling: Loss scaling.
        n_computed: Number of values that the operations compute, after those of a batch.

    Attributes:
        exchange: Function that is called with the rows of each step after its backward passes, and replaces the
            gradients by those of all processes; None in a single process.
    """

    def __init__(
        self,
        label: str,
        runs: Sequence[Run],
        losses: Sequence[BoundLoss],
        steppers: Sequence[Callable[[], None]],
        trained: Sequence[nn.Parameter],
        scaling: LossScaling = UNSCALED,
        *,
        n_computed: int = 0,
    ) -> None:
        self._label, self._runs, self._losses = label, runs, losses
        self._steppers, self._trained, self._scaling = steppers, trained, scaling
        self._empty_slots = [None] * n_computed
        self._kinds: list[tuple[bool, torch.dtype]] | None = None  # of the losses of the last call
        self._start: tuple[list[int], list[Tensor]] = [], []
        self.exchange: Callable[[int], None] | None = None

    def run(
        self,
        batches: Iterable[Sequence[Any]],
        n_microbatches: int = 1,
        after_step: Callable[[list[Tensor]], bool] | None = None,
    ) -> list[Tensor]:
        """Run one step per batch; return the mean losses of all steps, and the weights of those that have some, flat.

        `after_step` receives those of each step; if it returns True, that was the last one.
        """
        if n_microbatches == 1:
            runs, steppers, trained, scaling = self._runs, self._steppers, self._trained, self._scaling
            means, backward = [loss.mean for loss in self._losses], torch.autograd.backward
            weighs = [loss.total_weight for loss in self._losses if loss.total_weight is not None]
            history: list[Tensor] = []
            is_scaled, exchange, empty = scaling is not UNSCALED, self.exchange, self._empty_slots
            for batch in batches:
                values = [*batch, *empty]
                for run in runs:
                    run(values)
                losses: list[Tensor] = []
                kinds: list[tuple[bool, torch.dtype]] = []
                for mean in means:  # an error's traceback would keep a comprehension's frame, and with it all values
                    loss = mean(values)
                    losses.append(loss)
                    kinds.append((loss.requires_grad, loss.dtype))
                if kinds != self._kinds:
                    self._start, self._kinds = self._roots(losses), kinds
                roots, weights = self._start
                if roots:
                    backward(
                        losses if len(roots) == len(losses) else [losses[i] for i in roots],
                        scaling.scaled(weights) if is_scaled else weights,
                    )
                if exchange is not None:
                    exchange(len(values[0]))
                if not is_scaled or scaling.unscale(trained):
                    for step in steppers:
                        step()
                for parameter in trained:
                    parameter.grad = None
                for loss in losses:
                    history.append(loss.detach())
                if weighs:
                    history += [weigh(values) for weigh in weighs]
                if after_step is not None and after_step(history[-(len(means) + len(weighs)) :]):
                    break
            return history
        return self._microbatched(batches, n_microbatches, after_step)

    def _microbatched(
        self,
        batches: Iterable[Sequence[Any]],
        n_microbatches: int,
        after_step: Callable[[list[Tensor]], bool] | None,
    ) -> list[Tensor]:
        """Each batch in micro-batches of nearly equal size; gradients and losses are weighted by rows.

        Those of a loss with weights are weighted by these.
        """
        weighs = {i: loss.total_weight for i, loss in enumerate(self._losses) if loss.total_weight is not None}
        means, history = [loss.mean for loss in self._losses], list[Tensor]()
        starts: dict[Any, tuple[list[int], list[Tensor]]] = {}  # by share, and what the losses are
        for batch in batches:
            values = [*batch, *self._empty_slots]
            rows = next(len(value) for value in values if value is not None)
            totals: list[Tensor] = []
            whole = {i: weigh(values) for i, weigh in weighs.items()}
            n_parts = min(n_microbatches, rows)
            parts = [[None] * n_parts if value is None else torch.tensor_split(value, n_parts) for value in values]
            for microbatch in map(list, zip(*parts, strict=True)):  # the same rows of each value; None stays None
                share = next(len(value) for value in microbatch if value is not None) / rows
                with share_of_batch(share):
                    for run in self._runs:
                        run(microbatch)
                losses: list[Tensor] = []
                for mean in means:
                    losses.append(mean(microbatch))
                kinds = share, *((loss.requires_grad, loss.dtype) for loss in losses)
                if kinds not in starts:
                    roots, full = self._roots(losses)
                    starts[kinds] = roots, [weight * share for weight in full]
                roots, scaled = starts[kinds]
                shares = {i: weigh(microbatch) / divisor(whole[i]) for i, weigh in weighs.items()}
                if shares:  # the gradients to start backward with, each times the share of its loss
                    full = [torch.full_like(losses[i], self._losses[i].weight, requires_grad=False) for i in roots]
                    scaled = [weight * shares.get(i, share) for weight, i in zip(full, roots, strict=True)]
                torch.autograd.backward([losses[i] for i in roots], self._scaling.scaled(scaled))
                more = [loss.detach() * shares.get(i, share) for i, loss in enumerate(losses)]
                totals = [total + loss for total, loss in zip(totals, more, strict=True)] if totals else more
            if self.exchange is not None:
                self.exchange(rows)
            if self._scaling.unscale(self._trained):
                for step in self._steppers:
                    step()
            for parameter in self._trained:
                parameter.grad = None
            history += [*totals, *whole.values()]
            if after_step is not None and after_step([*totals, *whole.values()]):
                break
        return history

    def _roots(self, losses: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
        """Return indices of the losses that reach a parameter, and their weights as gradients to start backward
        with. In several processes, the rows of one may reach none.
        """
        roots = [i for i, loss in enumerate(losses) if loss.requires_grad]
        if self.exchange is None and not (roots and self._trained):
            labels = ", ".join(loss.label for loss in self._losses) or "none"
            raise PhaseError(
                f"no loss of segment {self._label!r} reaches a trained parameter "
                f"(losses: {labels}; trained parameters: {len(self._trained)})",
                hint="unfreeze a node before the loss, set requires_grad on its parameters, add a loss after it, "
                "or remove detach() and no_grad() from the model and the loss",
            )
        return roots, [torch.full_like(losses[i], self._losses[i].weight, requires_grad=False) for i in roots]
