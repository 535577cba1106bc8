"""Plain training steps, one after the other, as a loop by hand does them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import PhaseError
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.losses import BoundLoss


def blocks(
    columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, stop: int, batch: int, most: int
) -> Iterator[list[Tensor]]:
    """Rows `order[start:stop]` of each column, gathered for many steps at once, but for at most `most` bytes."""
    row = sum(math.prod(column.shape[1:]) * column.element_size() for column in columns)
    held = batch * max(1, most // max(1, row * batch))
    for begin in range(start, stop, held):
        end = min(begin + held, stop)
        yield [column.index_select(0, order[begin:end]) for column, order in zip(columns, orders, strict=True)]


class PlainSteps:
    """Steps over lists of values: forward, one backward pass over all losses, the optimizers.

    Args:
        label: of the segment.
        runs: the operations.
        losses: what is judged.
        steppers: the optimizers.
        trained: parameters whose gradients are forgotten after each step.
    """

    def __init__(
        self,
        label: str,
        runs: Sequence[Run],
        losses: Sequence[BoundLoss],
        steppers: Sequence[Callable[[], None]],
        trained: Sequence[nn.Parameter],
    ) -> None:
        self._label, self._runs, self._losses = label, runs, losses
        self._steppers, self._trained = steppers, trained

    def whole(self, batches: Iterable[list[Any]]) -> list[Tensor]:
        """One step for each batch; the mean losses of all steps, one after the other."""
        runs, steppers, trained = self._runs, self._steppers, self._trained
        means, backward = [loss.mean for loss in self._losses], torch.autograd.backward
        kept: list[Tensor] = []
        roots: list[int] | None = None
        for values in batches:
            for run in runs:
                run(values)
            found: list[Tensor] = []
            for mean in means:  # a comprehension would be kept by an error, and with it all values
                found.append(mean(values))
            if roots is None:
                roots, weights = self._roots(found)
            backward([found[i] for i in roots], weights)
            for step in steppers:
                step()
            for parameter in trained:
                parameter.grad = None
            kept += [value.detach() for value in found]
        return kept

    def in_parts(self, batches: Iterable[list[Any]], parts: int) -> list[Tensor]:
        """As `whole`, each batch in so many parts, as equal as can be; gradients and losses are weighted by rows."""
        means, kept = [loss.mean for loss in self._losses], list[Tensor]()
        weights: dict[float, tuple[list[int], list[Tensor]]] = {}
        for values in batches:
            rows = next(len(value) for value in values if value is not None)
            sums: list[Tensor] = []
            for part in _cut(values, min(parts, rows)):
                share = next(len(value) for value in part if value is not None) / rows
                for run in self._runs:
                    run(part)
                found: list[Tensor] = []
                for mean in means:
                    found.append(mean(part))
                if share not in weights:
                    roots, full = self._roots(found)
                    weights[share] = roots, [one * share for one in full]
                roots, scaled = weights[share]
                torch.autograd.backward([found[i] for i in roots], scaled)
                sums = _added(sums, found, share)
            for step in self._steppers:
                step()
            for parameter in self._trained:
                parameter.grad = None
            kept += sums
        return kept

    def _roots(self, found: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
        """Which losses reach a parameter, and the weight of each as the gradient that its pullback starts from."""
        roots = [i for i, value in enumerate(found) if value.requires_grad]
        if not roots or not self._trained:
            raise PhaseError(
                f"no loss of segment {self._label!r} reaches a parameter that is to be trained",
                available=f"losses: {', '.join(loss.label for loss in self._losses) or 'none'}; "
                f"parameters to train: {len(self._trained)}",
                hint="unfreeze a node before the loss, set requires_grad on its parameters, or add a loss after it",
            )
        return roots, [torch.full_like(found[i], self._losses[i].weight, requires_grad=False) for i in roots]


def _cut(values: list[Any], parts: int) -> Iterator[list[Any]]:
    """The same rows of each value; what is None stays so."""
    cut = [[None] * parts if value is None else torch.tensor_split(value, parts) for value in values]
    for part in zip(*cut, strict=True):
        yield list(part)


def _added(sums: list[Tensor], found: Sequence[Tensor], share: float) -> list[Tensor]:
    scaled = [value.detach() * share for value in found]
    return [a + b for a, b in zip(sums, scaled, strict=True)] if sums else scaled
