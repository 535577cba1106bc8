"""Mean check: warns of a loss that is no mean over rows, where batches are accumulated.

Gradients of accumulated batches are weighted by rows, which gives those of one large batch only for means. Settings
tell it of some losses (`accumulation.py`); of a function, or of a loss that a model returns, values do.
"""

from __future__ import annotations

import math
import warnings

from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.loading.epoch_plan import StepRange
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.train_phase import TrainPhase
from anyaccel.phases.user_level import user_level
from anyaccel.printable import printable
from anyaccel.specs import FROM_OUTPUT

_TOLERANCE = 5e-3
"""Relative; a mean in bfloat16 is rounded by 2e-3."""


class MeanCheck:
    """Compares losses over the first batch with those over its halves, in evaluation mode; once a phase.

    Args:
        phase: whose losses.
        replicated: whether its batches are shared among replicas. Only where they are, or where the phase accumulates
            batches, there is something to check.
    """

    def __init__(self, phase: TrainPhase, *, replicated: bool = False) -> None:
        own = phase.losses if (replicated or phase.accumulate > 1) and phase.step is None else ()
        self._doing = "shares batches among replicas" if replicated else "accumulates batches"
        self._left_out = "write replicas=1" if replicated else "leave accumulate out"
        self._phase, self._labels = phase, [loss.label for loss in own if _may_be_no_mean(loss)]

    @property
    def is_due(self) -> bool:
        """Whether there is something left to check."""
        return bool(self._labels)

    def look(self, runner: ChunkRunner, steps: StepRange) -> None:
        """Warn of the first loss of which the mean over two halves of a batch is not that over the batch."""
        batch = next(steps.first(1).split(steps.microbatch_size or steps.batch_size))
        if batch.batch_size < 2:
            return
        labels, self._labels = self._labels, []
        halves = list(batch.split(-(-batch.batch_size // 2)))
        whole, parted, again = (_means(runner, of) for of in ([batch], halves, [batch]))
        for label in labels:
            values = [means.get(label, math.nan) for means in (whole, parted, again)]
            if _differs(values[0], values[1]) and not _differs(values[0], values[2]):  # a random loss tells nothing
                self._warn(label, values[0], values[1])
                return

    def _warn(self, label: str, whole: float, parted: float) -> None:
        warnings.warn(
            printable(
                f"phase {self._phase.label!r} {self._doing}, and the loss {label!r} is no mean over rows: over "
                f"the first batch it is {whole:.6g}, and the mean over its two halves is {parted:.6g}. A step is not "
                "that of one batch of all rows. Hint: return the mean over the rows of the batch; where tokens or "
                "weights count, use a named loss with ignore_index, mask or sample_weight; "
                f"or {self._left_out}"
            ),
            UserWarning,
            stacklevel=user_level(),
        )


def _may_be_no_mean(loss: AppliedLoss) -> bool:
    return loss.loss.own is not None or loss.loss.name == FROM_OUTPUT


def _means(runner: ChunkRunner, batches: list[StepRange]) -> dict[str, float]:
    """Mean losses over some rows."""
    losses = LossAccumulator()
    for batch in batches:
        losses.add(runner.evaluate(batch.rows)[1])
    return losses.means()


def _differs(value: float, other: float) -> bool:
    """Whether two losses are different; not if one is no number."""
    return abs(value - other) > _TOLERANCE * max(abs(value), abs(other), 1e-6)
