"""Cross-segment steps: forward through all segments, back through those that learn, clip together, update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anyaccel.adapter.losses import weight_inputs
from anyaccel.backend import ComputingBackend, Program
from anyaccel.device import Device
from anyaccel.errors import OutOfMemoryError
from anyaccel.graph.resolve import route
from anyaccel.phases.loading.epoch_plan import RowSpan, StepRows, StepSize
from anyaccel.phases.loading.loader import DeviceColumns
from anyaccel.precision import LossScaleState, ScalesLosses
from anyaccel.results.events import LogEvent, discard_event
from anyaccel.segment import LossTerm, Segment

SpanOf = Callable[[str], RowSpan | None]
"""Which rows of a feature set a step takes; None for none."""
Rows = tuple[str, Callable[[int, int], Any]]
"""A column: its feature set, and a function that gathers rows start to stop of its order."""
StageRows = tuple[Mapping[str, Rows], ...]
"""For each stage, its columns by value name."""
Parts = Sequence[tuple[SpanOf, int]]
"""The parts of a step: which rows each takes, and how many."""
Watcher = Callable[[Mapping[str, Any], SpanOf], None]


@dataclass(frozen=True, slots=True)
class _Input:
    """A value that a stage takes: from a column, or transferred from the stage that makes it."""

    name: str
    transfer: Transfer | None


@dataclass(frozen=True, slots=True)
class _GradientOutput:
    """A value whose cotangent is returned to the stage that computed it."""

    name: str
    transfer: Transfer


class CrossSegmentStep:
    """Single steps over the stages of a pipeline. Every transfer between stages is chosen once, when it is created.

    `log_event` receives an event if a transfer cannot continue as chosen.
    """

    multi_step = True
    """Whether a program may take several steps in one call: nothing is exchanged outside of it."""
    is_share = False
    """Whether the rows of a step are a share of those that it is computed with."""

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent = discard_event) -> None:
        self._stages = tuple(stages)
        self.makers: dict[str, PipelineStage] = {}
        """The stage that computes each value, by name."""
        self._inputs: list[list[_Input]] = []
        self._gradients: dict[int, list[_GradientOutput]] = {}
        self._weighted: dict[int, list[LossTerm]] = {}
        trained: list[PipelineStage] = []
        scaled: list[ScalesLosses] = []
        for stage in stages:
            taken = []
            for name, (_, device) in stage.segment.inputs.items():
                arrival = None
                if (maker := self.makers.get(name)) is not None:
                    source = TransferEnd(maker.backend, maker.device_of(name))
                    arrival = transfer(source, TransferEnd(stage.backend, device), f"outputs of {name!r}", log_event)
                taken.append(_Input(name, arrival))
            self._inputs.append(taken)
            for name in stage.segment.outputs:
                self.makers[name] = stage
            for term in stage.segment.losses:
                if weight_inputs(term):
                    self._weighted.setdefault(id(stage), []).append(term)
            if not stage.has_gradient:
                continue
            trained.append(stage)
            precision, program = stage.segment.precision, stage.program
            if precision is not None and precision.loss_scale is not None and isinstance(program, ScalesLosses):
                scaled.append(program)
            returned = self._gradients[id(stage)] = []
            for name in stage.segment.needs_pullback:
                maker, (_, device) = self.makers[name], stage.segment.inputs[name]
                end, target = TransferEnd(stage.backend, device), TransferEnd(maker.backend, maker.device_of(name))
                returned.append(_GradientOutput(name, transfer(end, target, f"gradients of {name!r}", log_event)))
        self.loss_scalings = (LossScaling(scaled),) if scaled else ()
        """By what losses are scaled in all programs; empty where they are not."""
        self._clipping = GradientClipping(trained, log_event)
        self.watchers: Sequence[Watcher] = ()
        """Are called with the values and rows of every training step when it is done."""
        self.is_updating = False
        """Whether a step has begun to change state and has not ended, as after an error between two updates."""

    def bind(self, columns: DeviceColumns) -> StageRows:
        """Return the columns of a chunk in the form that the stages accept."""
        bound = []
        for stage in self._stages:
            taken: dict[str, Rows] = {}
            for name in stage.segment.inputs:
                if name in columns:
                    column, gather = columns[name], stage.backend.gather_rows
                    taken[name] = column.feature_set, partial(gather, column.rows, order=column.order)
            bound.append(taken)
        return tuple(bound)

    def train_steps(self, rows: StageRows, start: int, n_steps: int, size: StepSize) -> list[Losses]:
        """Run steps one by one, each with the same rows of every order."""
        losses: list[Losses] = []
        for first in range(start, start + n_steps * size.rows, size.rows):
            parts = [(partial(_same_span, (first + low, first + high)), high - low) for low, high in size.cuts]
            losses += self._step(rows, parts, partial(_same_span, (first, first + size.rows)))
        return losses

    def train_step(self, rows: StageRows, step: StepRows, size: StepSize) -> list[Losses]:
        """One step with some rows of each feature set in it.

        It is computed in parts only where it takes equally many rows of each: otherwise these would weigh the losses
        of each feature set by other numbers of rows.
        """
        if len(size.cuts) == 1 or len({stop - start for start, stop in step.values()}) > 1:
            return self._step(rows, [(step.get, 1)], step.get)
        return self._step(rows, [(partial(_part_of, step, cut), cut[1] - cut[0]) for cut in size.cuts], step.get)

    def try_step(self, rows: StageRows, step: StepRows, size: StepSize) -> None:
        """Run `train_step` without notifying watchers; the caller restores a snapshot afterwards."""
        watchers, self.watchers = self.watchers, ()
        try:
            self.train_step(rows, step, size)
        finally:
            self.watchers = watchers
            for stage in self._stages:
                stage.program.zero_grad()

    def evaluate(self, rows: StageRows, step: StepRows) -> tuple[dict[str, Any], list[Losses]]:
        """Return outputs by value name (None if their rows are missing) and losses, in evaluation mode."""
        values: dict[str, Any] = {}
        losses: list[Losses] = []
        for stage, needed, columns in zip(self._stages, self._inputs, rows, strict=True):
            inputs = _gather(needed, columns, values, step.get)
            if all(value is None for value in inputs):
                values.update(dict.fromkeys(stage.segment.outputs))
                continue
            outputs, pairs = stage.program.forward(inputs)
            values.update(zip(stage.segment.outputs, outputs, strict=True))
            losses.append(Losses(stage.backend, 0, tuple(pairs), pairs=pairs))
        return values, losses

    def begin_reading(self) -> None:
        """Models are read next."""

    def _step(self, rows: StageRows, parts: Parts, whole: SpanOf) -> list[Losses]:
        """Run one update with the gradients of all parts; each part has some rows, `whole` has all.

        Gradients of the losses' means are added. Before a part of another size, those so far are rescaled to it, and at
        the end all are rescaled to the whole. Losses that weight rows are scaled by the weight of the whole.
        """
        losses: list[Losses] = []
        trained: dict[int, PipelineStage] = {}
        scale, n_rows = parts[0][1], sum(size for _, size in parts)
        shared = len(parts) > 1 or self.is_share
        factors = self._weighted_factors(rows, whole, n_rows) if shared and self._weighted else {}
        for number, (span_of, size) in enumerate(parts, 1):
            if size != scale:
                _rescale(trained.values(), scale / size)
                scale = size
            if number == len(parts):
                overlapped = self._begin_last_part(n_rows, size)
            scales = {
                id(stage): _times_each(stage, n_rows / size, factors[id(stage)])
                for stage in self._stages
                if id(stage) in factors
            }
            for stage in self._forward_backward(rows, span_of, losses, scales):
                trained[id(stage)] = stage
        if len(parts) > 1:
            _rescale([stage for stage in trained.values() if id(stage) not in overlapped], scale / n_rows)
        for scaling in self.loss_scalings:
            _rescale(trained.values(), 1.0 / scaling.scale)
        self._update(trained.values(), n_rows)
        return losses

    def _begin_last_part(self, n_rows: int, size: int) -> Collection[int]:
        """Return the last part of a step of that many rows begins; the `id`s of stages that exchange gradients within
        it.
        """
        return ()

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        """Clip and update with the gradients of that many rows.

        Skipped in all stages where losses are scaled and a gradient is not finite.
        """
        finite = True
        for scaling in self.loss_scalings:
            finite = scaling.is_finite(stages)
        clip_scales = self._clipping.scales() if finite else {}
        self.is_updating = True
        for stage in stages:
            if finite:
                stage.program.optimizer_step(clip_scales[id(stage)])
            else:
                stage.program.zero_grad()
        for scaling in self.loss_scalings:
            scaling.update(finite=finite)
        self.is_updating = False

    def _weighted_factors(self, rows: StageRows, whole: SpanOf, n_rows: int) -> dict[int, dict[str, Any]]:
        """Return, by `id` of a stage, for each loss that weights rows, its factor over the weight of the whole step."""
        calls: list[tuple[PipelineStage, list[Any]]] = []
        for stage, columns in zip(self._stages, rows, strict=True):
            needed = {name for term in self._weighted.get(id(stage), ()) for name in weight_inputs(term)}
            if needed:
                inputs = [_taken(columns[name], whole) if name in needed else None for name in stage.segment.inputs]
                calls.append((stage, inputs))
        factors: dict[int, dict[str, Any]] = {}
        for (stage, _), weights in zip(calls, self._loss_weights(calls, n_rows), strict=True):
            of_stage = factors[id(stage)] = dict[str, Any]()
            for term in self._weighted[id(stage)]:
                if term.label in weights:
                    with stage.backend.scope(term.device):
                        of_stage[term.label] = term.weight / weights[term.label]
        return factors

    def _loss_weights(self, inputs: Sequence[tuple[PipelineStage, list[Any]]], n_rows: int) -> list[dict[str, Any]]:
        """Return the weight of each loss over all rows of a step, by label, of stages with what these are computed
        from.
        """
        return [stage.program.loss_weights(values) for stage, values in inputs]

    def _forward_backward(
        self, rows: StageRows, span_of: SpanOf, losses: list[Losses], scales: Mapping[int, Mapping[str, Any]]
    ) -> list[PipelineStage]:
        """Run forward and backward through all stages; gradients stay with the programs of the returned stages.

        `scales` has the factors of losses by `id` of a stage, if they differ from those of means.
        """
        values: dict[str, Any] = {}
        pullbacks: list[tuple[PipelineStage, Any]] = []
        for stage, needed, columns in zip(self._stages, self._inputs, rows, strict=True):
            inputs = _gather(needed, columns, values, span_of)
            if all(value is None for value in inputs):  # this step has no rows for it
                values.update(dict.fromkeys(stage.segment.outputs))
                continue
            if stage.in_train_mode:
                scale = scales.get(id(stage))
                outputs, pairs, pullback = stage.program.forward_pullback(inputs, *([scale] if scale else []))
                if stage.has_gradient:
                    pullbacks.append((stage, pullback))
            else:
                outputs, pairs = stage.program.forward(inputs)
            values.update(zip(stage.segment.outputs, outputs, strict=True))
            losses.append(Losses(stage.backend, 0, tuple(pairs), pairs=pairs))
        self._backward(pullbacks)
        for watch in self.watchers:
            self.is_updating = True
            watch(values, span_of)
        return [stage for stage, _ in pullbacks]

    def _backward(self, pullbacks: Sequence[tuple[PipelineStage, Any]]) -> None:
        """Call pullbacks, the last first. Its cotangents end with it, before anything watches the step."""
        cotangents: dict[str, Any] = {}
        for stage, pullback in reversed(pullbacks):
            gradients = pullback(tuple(cotangents.get(name) for name in stage.segment.outputs))
            for target, cotangent in zip(self._gradients[id(stage)], gradients, strict=True):
                if cotangent is not None:
                    moved, name = target.transfer(cotangent), target.name
                    cotangents[name] = moved if name not in cotangents else cotangents[name] + moved


def _gather(
    needed: Sequence[_Input], columns: Mapping[str, Rows], values: Mapping[str, Any], span_of: SpanOf
) -> tuple[Any, ...]:
    """Return the inputs of a stage: None for rows that this step does not have, and for values that would need them."""
    inputs: list[Any] = []
    for value_input in needed:
        if value_input.transfer is None:
            inputs.append(_taken(columns[value_input.name], span_of))
        else:
            value = values[value_input.name]
            inputs.append(None if value is None else value_input.transfer(value))
    return tuple(inputs)


def _taken(column: Rows, span_of: SpanOf) -> Any:
    """Return rows of a column; None for none."""
    feature_set, gather_rows = column
    span = span_of(feature_set)
    return None if span is None else gather_rows(*span)


def _rescale(stages: Iterable[PipelineStage], factor: float) -> None:
    for stage in stages:
        stage.program.map_gradients(partial(_times, factor))


def _times_each(stage: PipelineStage, factor: float, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the factors of losses, times a factor, on their devices."""
    if factor == 1.0:
        return values
    scaled = {}
    for term in stage.segment.losses:
        if term.label in values:
            with stage.backend.scope(term.device):
                scaled[term.label] = factor * values[term.label]
    return scaled


def _times(factor: float, gradient: Any) -> Any:
    return gradient * factor


def _same_span(span: RowSpan, _: str) -> RowSpan:
    return span


def _part_of(step: StepRows, cut: RowSpan, feature_set: str) -> RowSpan | None:
    span = step.get(feature_set)
    return None if span is None else (span[0] + cut[0], span[0] + cut[1])


# -- Clipping of gradients by a norm over several segments, computed on the devices ------------------------------------


@dataclass(frozen=True, slots=True)
class _Member:
    """A stage with parameters of a group: how its squared norm gets to the group's first stage, and the factor back."""

    stage: PipelineStage
    to_first: Transfer
    from_first: Transfer


class GradientClipping:
    """The parameter groups that have a `clip_norm`, and the stages that each is in.

    The first stage of a group adds up the squared norms of all and computes the factor; nothing waits for a device
    where memory is shared; `log_event` is notified if that fails.
    """

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent = discard_event) -> None:
        self._stages = tuple(stages)
        self._groups: list[tuple[str, float, list[_Member]]] = []
        clipped: dict[str, tuple[float, list[tuple[PipelineStage, TransferEnd]]]] = {}
        for stage in stages:
            for group in stage.segment.groups:
                if group.optimizer.clip_norm is None:
                    continue
                ends = clipped.setdefault(group.name, (group.optimizer.clip_norm, []))[1]
                for operation in stage.segment.operations:  # the squared norm is on the device of its first node here
                    if operation.label == group.nodes[0]:
                        ends.append((stage, TransferEnd(stage.backend, operation.device)))
        for name, (limit, ends) in clipped.items():
            members = []
            for stage, end in ends:
                to_first = transfer(end, ends[0][1], "gradient norms", log_event)
                members.append(_Member(stage, to_first, transfer(ends[0][1], end, "clipping factors", log_event)))
            self._groups.append((name, limit, members))

    def scales(self) -> Mapping[int, Mapping[str, Any] | None]:
        """Return, by `id` of a stage, the factor for the gradients of each of its groups that has a limit."""
        if not self._groups:
            return {id(stage): None for stage in self._stages}
        stats = {id(stage): stage.program.grad_stats() for stage in self._stages}
        scales: dict[int, dict[str, Any]] = {id(stage): {} for stage in self._stages}
        for name, limit, members in self._groups:
            squares = [member.to_first(stats[id(member.stage)][name][0]) for member in members]
            factor = members[0].stage.program.clip_factor(limit, squares)
            for member in members:
                scales[id(member.stage)][name] = factor if isinstance(factor, float) else member.from_first(factor)
        return scales


# -- The loss scale of all programs of a phase, which is one: gradients go from segment to segment ---------------------


class LossScaling:
    """Read and change the loss scale of several programs, which all have the same value.

    Args:
        programs: The programs whose losses are scaled.
    """

    def __init__(self, programs: Sequence[ScalesLosses]) -> None:
        self._programs, self._skipped_before = programs, 0

    @property
    def state(self) -> LossScaleState:
        """The current state, after waiting for the steps so far."""
        return self._programs[0].loss_scale_state()

    @property
    def scale(self) -> float:
        """The current factor on losses."""
        return self.state.scale

    @property
    def n_skipped(self) -> int:
        """The number of skipped steps of this phase."""
        return self.state.skipped - self._skipped_before

    def load(self, state: LossScaleState) -> None:
        """Continue from the state of an earlier run."""
        self._skipped_before = state.skipped
        for program in self._programs:
            program.load_loss_scale_state(state)

    def is_finite(self, stages: Iterable[PipelineStage]) -> bool:
        """Whether all gradients of some stages are finite; waits for them."""
        stats = [stats for stage in stages for stats in stage.program.grad_stats().values()]
        return all(bool(finite) for _, finite in stats)

    def update(self, *, finite: bool) -> None:
        """Count a step that was done, or skipped."""
        for program in self._programs:
            program.update_loss_scale(finite=finite)


# -- Pipeline stage: a segment with the program that computes it, and the losses that it gives -------------------------


LossPairs = dict[str, tuple[Any, Any]]
"""Losses as (sum, weight), by label."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A segment and its program. `has_gradient` says whether gradients flow through it."""

    segment: Segment
    backend: ComputingBackend
    program: Program
    has_gradient: bool

    @property
    def in_train_mode(self) -> bool:
        """Whether it is computed in training mode; dropout is random even without parameters."""
        return self.has_gradient or any(op.trainable and op.model is not None for op in self.segment.operations)

    @property
    def computes_in_16_bits(self) -> bool:
        """Whether an operation is computed in 16 bits, or returns them."""
        precision = self.segment.precision
        dtypes = [] if precision is None else [of_node.dtype for _, of_node in precision.precisions]
        dtypes += [result.spec.dtype for operation in self.segment.operations for result in operation.results]
        return any(dtype.endswith("16") for dtype in dtypes)

    def device_of(self, name: str) -> Device:
        """Return the device of one of its outputs."""
        return next(operation.device for operation in self.segment.operations if name in operation.outputs)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses that are still on their devices: means [n_steps or more, labels] of equal steps, or pairs of a single
    step.

    Attributes:
        backend: Backend of the tensors.
        batch_size: Rows of each step; 0 for pairs, which have their own weights.
        labels: Labels of the losses.
        means: Means of several steps, followed by the weights of the losses in `weighted`; None for pairs.
        n_steps: Number of valid rows of `means`.
        pairs: Sum and weight of one step, by label; None for means.
        weighted: Labels of the losses that weight rows or positions; the weight of other losses is their batch size.
        elements: By label, the number of elements of a row in the mean of a loss, as pairs count these; 1 by default.
    """

    backend: ComputingBackend
    batch_size: int
    labels: tuple[str, ...]
    means: Any = None
    n_steps: int = 0
    pairs: LossPairs | None = None
    weighted: tuple[str, ...] = ()
    elements: Mapping[str, int] = field(default_factory=dict)

    def is_ready(self) -> bool:
        """Whether they are computed, without waiting; pairs count as such."""
        return self.means is None or self.backend.is_ready(self.means)


# -- -------------------------------------------------------------------------------------------------------------------
# Transfers: functions that copy a value from one segment's framework and device to another's, chosen beforehand.


Transfer = Callable[[Any], Any]


class TransferEnd(NamedTuple):
    """One end of a transfer."""

    backend: ComputingBackend
    device: Device

    def __str__(self) -> str:
        return f"{self.backend.framework} on {self.device}"


def transfer(
    source: TransferEnd, target: TransferEnd, name: str = "values", log_event: LogEvent = discard_event
) -> Transfer:
    """Return a function that copies a tensor from `source` to `target`.

    The result may share memory with its argument: a program never writes to its inputs.

    Args:
        source: Place of the tensor.
        target: Destination.
        name: Name of the value, for events.
        log_event: Function that is called if memory cannot be shared although both backends promise it.
    """
    kind = route(source.backend, source.device, target.backend, target.device)
    if kind == "move":
        return _identity if source.device == target.device else partial(_move, target, name)
    through_host = partial(_through_host, source.backend, target, name)
    if kind != "share":
        return through_host
    message = f"{name} go from {source} to {target} through host memory, because sharing memory failed"
    return SharedTransfer(target, through_host, partial(_log_failure, log_event, message))


class SharedTransfer:
    """Share memory by DLPack. From the first failure on, copy through host memory.

    Args:
        target: Destination of the tensor.
        through_host: Function that copies a tensor there through host memory.
        on_failure: Function that is called once, with the error that sharing raised.
    """

    def __init__(self, target: TransferEnd, through_host: Transfer, on_failure: Callable[[Exception], None]) -> None:
        self._share = partial(_share, target)
        self._through_host = through_host
        self._on_failure = on_failure
        self._failed = False

    def __call__(self, value: Any) -> Any:
        """Return the value at the target.

        Raises:
            AnyaccelError: it cannot be copied through host memory either.
        """
        if self._failed:
            return self._through_host(value)
        try:
            return self._share(value)
        except OutOfMemoryError:
            raise
        except Exception as error:  # frameworks refuse with exceptions of their own
            copied = self._through_host(value)
            self._failed = True
            self._on_failure(error)
            return copied


def _log_failure(log_event: LogEvent, message: str, error: Exception) -> None:
    lines = str(error).splitlines()
    log_event("transfer", f"{message} ({type(error).__name__}: {lines[0] if lines else ''})")


def _identity(value: Any) -> Any:
    return value


def _move(target: TransferEnd, edge: str, value: Any) -> Any:
    """`edge` is read by ledgers, from the stack, as in `_through_host`."""
    return target.backend.move(value, target.device)


def _share(target: TransferEnd, value: Any) -> Any:
    # NumPy turns arrays without axes into scalars, which do not support DLPack.
    return target.backend.from_dlpack(np.asarray(value) if isinstance(value, np.generic) else value, target.device)


def _through_host(source: ComputingBackend, target: TransferEnd, edge: str, value: Any) -> Any:
    return target.backend.from_host(np.asarray(source.to_host(value)), target.device)
