"""Checks of steps that are computed in parts, because batches are accumulated or split over processes; each warns once.

Running statistics, the vectors of a spectral norm and codebooks change in every call of their model. One batch of all
rows changes them once per step; parts of it change them once per part, each by its own rows.

Gradients of parts of a batch are weighted by rows. That equals the gradient of the whole only for losses that are means
over rows, of models that compute each row separately. For some losses, settings show this (`accumulation.py`), and for
some models, layers do; for a function, a loss that a model returns, and a model's own code, values show it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.output_activations import was_warned_of
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.metrics.class_values import is_distribution
from anyaccel.phases.executor.cross_segment import PipelineStage
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.loading.epoch_plan import StepRange
from anyaccel.phases.loading.loader import Chunk
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import printable
from anyaccel.segment import Operation
from anyaccel.specs import FROM_OUTPUT
from anyaccel.user_level import user_level

_TOLERANCE = 3e-5
_TOLERANCE_16_BITS = 5e-3
"""Relative; a mean in bfloat16 is rounded by 2e-3."""

Gather = Callable[[Any], list[Any]]
"""Gives the plain values that all processes of a phase give, by rank; called by all at once."""
ACCUMULATES, WITHOUT_ACCUMULATE = "accumulates batches", "leave accumulate out"

_Found = tuple[str, float, float]
"""A label, the loss over a batch, and the mean of those over its halves."""


class MeanCheck(LoopExtension):
    """Compare losses over some of the first batches with those over their halves, in evaluation mode, once per phase.

    Args:
        phase: Phase with losses and steps that are computed in parts.
        stages: Stages that compute them.
        gather: Function that returns the plain values of all processes of the phase, by rank.
        is_first: Whether this process warns.
        doing: Setting that makes the parts, such as `"accumulates batches"`.
        left_out: Alternative for the user to write.
    """

    def __init__(
        self,
        phase: PhaseSettings,
        stages: Sequence[PipelineStage],
        gather: Gather,
        *,
        is_first: bool = True,
        doing: str = ACCUMULATES,
        left_out: str = WITHOUT_ACCUMULATE,
    ) -> None:
        losses = phase.losses if phase.step is None else ()
        is_known = all(_is_known(stage) for stage in stages)
        self._phase, self._labels = phase, [loss.label for loss in losses if _is_own(loss) or not is_known]
        self._named = {loss.label for loss in losses if not _is_own(loss)}
        self._tolerance = _TOLERANCE_16_BITS if any(stage.computes_in_16_bits for stage in stages) else _TOLERANCE
        self._gather, self._is_first, self._doing, self._left_out = gather, is_first, doing, left_out

    @property
    def is_due(self) -> bool:
        """Whether there is something left to check."""
        return bool(self._labels)

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        """Warn of the first loss whose mean over two halves of a batch differs from that over the batch."""
        if not self._labels:
            return
        of_all = self._gather([steps.size.at_once, steps.n_steps])
        n_rows, n_steps = map(min, zip(*of_all, strict=True))
        if n_rows < 2:
            self._labels = self._labels if len(of_all) == 1 else []
            return
        labels, self._labels = self._labels, []
        for i in sorted({0, n_steps // 2, n_steps - 1}):  # the first may be one in which all tokens count
            batch = next(steps.skip(i).first(1).split(steps.size.at_once))
            differing = self._differing(runner, batch, labels)
            if differing is None:
                continue
            if self._is_first:
                label, whole, parted = differing
                what, hint = "is not a mean over rows", "return the mean over the rows of the batch; for tokens or "
                hint += "weights, use a named loss with ignore_index, mask or sample_weight"
                if label in self._named:
                    what = "depends on a model that mixes the rows of a batch"
                    hint = "compute each row independently in the model"
                warnings.warn(
                    printable(
                        f"phase {self._phase.label!r} {self._doing}, and the loss {label!r} {what}: over one batch it "
                        f"is {whole:.6g}, and the mean over its two halves is {parted:.6g}. A step would differ from "
                        f"one on the whole batch. Hint: {hint}; or {self._left_out}"
                    ),
                    UserWarning,
                    stacklevel=user_level(),
                )
            return

    def _differing(self, runner: ChunkRunner, batch: StepRange, labels: Sequence[str]) -> _Found | None:
        halves = list(batch.split(-(-batch.batch_size // 2)))
        whole, parted = _means(runner, [batch]), _means(runner, halves)
        pairs = [(label, whole.get(label, math.nan), parted.get(label, math.nan)) for label in labels]
        differing = [pair for pair in pairs if self._differs(pair[1], pair[2])]
        if not any(self._gather([list(pair) for pair in differing])):
            return None
        again = _means(runner, [batch])
        differing = [
            pair for pair in differing if not self._differs(pair[1], again[pair[0]])
        ]  # a random loss tells nothing
        every = self._gather([list(pair) for pair in differing])
        return next(((pair[0], pair[1], pair[2]) for theirs in every for pair in theirs), None)

    def _differs(self, value: float, other: float) -> bool:
        """Return whether two losses differ by more than rounding; False if one is not a number."""
        return abs(value - other) > self._tolerance * max(abs(value), abs(other)) + 1e-7


def _is_own(loss: AppliedLoss) -> bool:
    return loss.loss.own is not None or loss.loss.name == FROM_OUTPUT


def _is_known(stage: PipelineStage) -> bool:
    """Return whether all models are those that every backend has, which compute each row separately."""
    classes = tuple(stage.backend.models().values())
    return all(operation.model is None or type(operation.model) in classes for operation in stage.segment.operations)


def _means(runner: ChunkRunner, batches: list[StepRange]) -> dict[str, float]:
    """Return mean losses over some rows."""
    losses = LossAccumulator()
    for batch in batches:
        losses.add(runner.evaluate(batch.rows)[1])
    return losses.means()


_PREFIX = "buffers/"


class BufferCheck(LoopExtension):
    """Compare buffers before and after the first steps of a phase, and warn once.

    Args:
        phase: Phase with steps that are computed in parts.
        pipeline: Its programs.
        is_first: Whether this is the process that warns.
        doing, left_out: See `MeanCheck`.
        n_calls: Number of calls of a model in a step.
    """

    def __init__(
        self,
        phase: PhaseSettings,
        pipeline: Pipeline,
        *,
        is_first: bool = True,
        doing: str = ACCUMULATES,
        left_out: str = WITHOUT_ACCUMULATE,
        n_calls: int,
    ) -> None:
        self._phase, self._pipeline, self._is_first = phase, pipeline, is_first
        self._owners = buffer_owners(phase, pipeline)
        self._doing, self._left_out, self._n_calls = doing, left_out, n_calls
        self._before: dict[str, np.ndarray] = {}
        self._is_over = False

    @property
    def is_due(self) -> bool:
        """Whether there is something to check."""
        return bool(self._owners)

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        if not self._before and not self._is_over:
            self._before = self._values()

    def after_call(self, losses: LossAccumulator) -> None:
        """Warn of buffers that the first steps changed."""
        if self._is_over:
            return
        self._is_over = True
        now = self._values()
        names = [name for name, value in self._before.items() if value.tobytes() != now[name].tobytes()]
        if names and self._is_first:
            how = f"in every call of the model, {self._n_calls} times per step"
            warn_of_buffers(self._phase, names, self._doing, how, self._left_out)

    def _values(self) -> dict[str, np.ndarray]:
        """Return floating buffers by node and name; others are counters, and the state of random numbers."""
        self._pipeline.sync_values()
        named = (
            (f"{op.label}/{name}", value)
            for stage, op in self._owners
            for name, value in stage.backend.state(op.model).items()
            if name.startswith(_PREFIX)
        )
        return {name: value for name, value in named if value.dtype.kind not in "biu"}


def buffer_owners(phase: PhaseSettings, pipeline: Pipeline) -> list[tuple[PipelineStage, Operation]]:
    """Return the trained operations with buffers, each with its stage; nothing in a phase with a custom step."""
    trained = [(stage, op) for stage in pipeline.stages for op in stage.segment.operations if op.trainable]
    return [(stage, op) for stage, op in trained if _has_buffers(stage, op)] if phase.step is None else []


def warn_of_buffers(phase: PhaseSettings, names: Sequence[str], doing: str, how: str, left_out: str) -> None:
    """Warn of buffers that steps change, `how` in words, otherwise than one batch of all rows would."""
    changes = f"and {len(names) - 1} more change" if len(names) > 1 else "changes"
    warnings.warn(
        printable(
            f"phase {phase.label!r} {doing}, and the buffer {names[0]!r} {changes} {how}. A step "
            "would differ from one on the whole batch. Hint: use layers whose buffers do not change in training; or "
            f"{left_out}"
        ),
        UserWarning,
        stacklevel=user_level(),
    )


def _has_buffers(stage: PipelineStage, operation: Operation) -> bool:
    """Whether a model has some; one of a plugin that does not tell is asked for all its values."""
    if operation.model is None:
        return False
    figures = stage.backend.capability(MemoryFigures)
    return figures is None or bool(figures.buffers(operation.model))


# -- -------------------------------------------------------------------------------------------------------------------
# Probability check: warns of a cross entropy over outputs that are probabilities already, where it takes logits.


_ROWS = 64
"""As many are looked at."""


class ProbabilityCheck:
    """Looks at outputs that an evaluation has on the host anyway, and warns once.

    Args:
        losses: Losses of the evaluation.
        value_names: Names of each node's values.
    """

    def __init__(self, losses: Sequence[AppliedLoss], value_names: Mapping[str, Sequence[str]]) -> None:
        self._values: list[tuple[AppliedLoss, str]] = []
        for loss in losses:
            if loss.loss.own is None and loss.loss.name == "cross_entropy":
                names, wanted = value_names[loss.on], loss.inputs[0].partition(".")[2]
                named = next((name for name in names if wanted and name.endswith(f".{wanted}")), names[0])
                self._values.append((loss, named))

    def look(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Warn if the classes of outputs, [n, ...] by the names of values, are never negative and sum to 1."""
        for loss, name in self._values:
            array, class_axis = outputs.get(name), loss.loss.kwargs.get("class_axis", -1)
            if array is None or array.dtype.kind != "f" or array.ndim < 2 or not len(array):
                continue
            n_classes = array.shape[class_axis]
            rows = np.moveaxis(array[:_ROWS], class_axis, -1)
            if n_classes > 1 and is_distribution(rows.reshape(-1, n_classes)):
                self._values = []
                text = (
                    f"loss {loss.label!r} on node {loss.on!r}: cross_entropy takes logits, but these outputs are "
                    "already probabilities: no value is negative, and the classes sum to 1. Hint: remove the softmax "
                    "from the end of the model, or write a custom loss"
                )
                warnings.warn(printable(text), UserWarning, stacklevel=user_level())
                return


def warn_of_probabilities(model: Any, loss: AppliedLoss, outputs: np.ndarray) -> None:
    """Warn if the outputs of a model [n, ...], which a loss takes as logits, are probabilities; once for a model of
    which the end is known.
    """
    if not was_warned_of(model):
        ProbabilityCheck([loss], {loss.on: [loss.on]}).look({loss.on: outputs})
