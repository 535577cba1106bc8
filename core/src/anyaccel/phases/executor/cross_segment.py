"""Cross-segment steps: forward through all segments, back through those that learn, clip together, update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyaccel.adapter.losses import weight_inputs
from anyaccel.device import Device
from anyaccel.phases.executor.clipping import GradientClipping
from anyaccel.phases.executor.loss_scaling import loss_scalings
from anyaccel.phases.executor.stage import Losses, PipelineStage
from anyaccel.phases.executor.transfers import Transfer, TransferEnd, transfer
from anyaccel.phases.loading.device_columns import DeviceColumns
from anyaccel.phases.loading.epoch_batches import RowSpan, StepRows
from anyaccel.results.events import LogEvent, discard_event
from anyaccel.segment import LossTerm

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
    """A value whose cotangent goes back to the stage that made it."""

    name: str
    transfer: Transfer


class CrossSegmentStep:
    """Single steps over the stages of a pipeline; every transfer between them is chosen once, here.

    `log_event` is told if a transfer cannot go on as it was chosen.
    """

    multi_step = True
    """Whether a program may take several steps in one call: nothing is exchanged outside of it."""
    is_share = False
    """Whether the rows of a step are a share of those that it is computed with."""

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent = discard_event) -> None:
        self._stages = tuple(stages)
        makers = {name: stage for stage in stages for name in stage.segment.outputs}
        self._inputs = [tuple(_inputs_of(stage, makers, log_event)) for stage in stages]
        self._gradients = {
            id(stage): tuple(_gradients_of(stage, makers, log_event)) for stage in stages if stage.has_gradient
        }
        self._weighted = {
            id(stage): terms
            for stage in stages
            if (terms := [term for term in stage.segment.losses if weight_inputs(term)])
        }
        self.loss_scalings = loss_scalings(self._stages)
        """By what losses are scaled in all programs; empty where they are not."""
        self._clipping = GradientClipping([stage for stage in stages if stage.has_gradient], log_event)
        self.watchers: Sequence[Watcher] = ()
        """Are called with the values and rows of every training step when it is done."""
        self.is_updating = False
        """Whether a step has begun to change state and has not ended, as after an error between two updates."""

    def bind(self, columns: DeviceColumns) -> StageRows:
        """The columns of a chunk as the stages take them."""
        return tuple(
            {name: _rows(stage, name, columns) for name in stage.segment.inputs if name in columns}
            for stage in self._stages
        )

    def train_steps(
        self, rows: StageRows, start: int, n_steps: int, batch_size: int, microbatch_size: int | None = None
    ) -> list[Losses]:
        """Steps one by one, each with the same rows of every order, of which at most `microbatch_size` at once."""
        losses: list[Losses] = []
        for first in range(start, start + n_steps * batch_size, batch_size):
            last, most = first + batch_size, microbatch_size or batch_size
            spans = [(begin, min(begin + most, last)) for begin in range(first, last, most)]
            parts = [(partial(_same_span, span), span[1] - span[0]) for span in spans]
            losses += self._step(rows, parts, partial(_same_span, (first, last)))
        return losses

    def train_step(self, rows: StageRows, step: StepRows, microbatch_size: int | None = None) -> list[Losses]:
        """One step with some rows of each feature set in it.

        It is computed in micro-batches only where it takes equally many rows of each: otherwise these would weigh the
        losses of each feature set by other numbers of rows.
        """
        sizes = {stop - start for start, stop in step.values()}
        batch = max(sizes)
        if microbatch_size is None or microbatch_size >= batch or len(sizes) > 1:
            return self._step(rows, [(step.get, 1)], step.get)
        cuts = [(low, min(low + microbatch_size, batch)) for low in range(0, batch, microbatch_size)]
        return self._step(rows, [(partial(_part_of, step, cut), cut[1] - cut[0]) for cut in cuts], step.get)

    def try_step(self, rows: StageRows, step: StepRows, microbatch_size: int | None = None) -> None:
        """As `train_step`, unseen by watchers; the caller restores a snapshot afterwards."""
        watchers, self.watchers = self.watchers, ()
        try:
            self.train_step(rows, step, microbatch_size)
        finally:
            self.watchers = watchers
            for stage in self._stages:
                stage.program.zero_grad()

    def evaluate(self, rows: StageRows, step: StepRows) -> tuple[dict[str, Any], list[Losses]]:
        """Outputs by value name (None where rows that they need are missing) and losses, in evaluation mode."""
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
        """One update with the gradients of all parts, each of which is some rows, and how many; `whole` is all of them.

        Gradients of the losses' means are added up. Before a part of another size comes, those so far are rescaled to
        it, and at the end all to the whole. Losses that weigh rows are scaled by the weight of the whole.
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
        """The last part of a step of so many rows begins; the `id`s of stages that exchange gradients within it."""
        return ()

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        """Clip and update with the gradients of so many rows.

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
        """By `id` of a stage, for each loss that weighs rows, its factor over the weight of the whole step."""
        given: list[tuple[PipelineStage, list[Any]]] = []
        for stage, columns in zip(self._stages, rows, strict=True):
            needed = {name for term in self._weighted.get(id(stage), ()) for name in weight_inputs(term)}
            if needed:
                inputs = [_taken(columns[name], whole) if name in needed else None for name in stage.segment.inputs]
                given.append((stage, inputs))
        every = self._loss_weights(given, n_rows)
        return {
            id(stage): {
                term.label: _factor(stage, term, weights[term.label])
                for term in self._weighted[id(stage)]
                if term.label in weights
            }
            for (stage, _), weights in zip(given, every, strict=True)
        }

    def _loss_weights(self, inputs: Sequence[tuple[PipelineStage, list[Any]]], n_rows: int) -> list[dict[str, Any]]:
        """The weight of each loss over all rows of a step, by label, of stages with what these are computed from."""
        return [stage.program.loss_weights(values) for stage, values in inputs]

    def _forward_backward(
        self, rows: StageRows, span_of: SpanOf, losses: list[Losses], scales: Mapping[int, Mapping[str, Any]]
    ) -> list[PipelineStage]:
        """Forward and back through all stages; gradients stay with the programs of the stages returned.

        `scales` has the factors of losses by `id` of a stage, as far as they are not those of means.
        """
        values: dict[str, Any] = {}
        pullbacks: list[tuple[PipelineStage, Any]] = []
        for stage, needed, columns in zip(self._stages, self._inputs, rows, strict=True):
            inputs = _gather(needed, columns, values, span_of)
            if all(value is None for value in inputs):  # this step has no rows for it
                values.update(dict.fromkeys(stage.segment.outputs))
                continue
            if stage.in_train_mode:
                given = scales.get(id(stage))
                outputs, pairs, pullback = stage.program.forward_pullback(inputs, *([given] if given else []))
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
        cotangents: dict[str, Any] = {}
        for stage, pullback in reversed(pullbacks):
            given = pullback(tuple(cotangents.get(name) for name in stage.segment.outputs))
            for target, cotangent in zip(self._gradients[id(stage)], given, strict=True):
                if cotangent is not None:
                    moved, name = target.transfer(cotangent), target.name
                    cotangents[name] = moved if name not in cotangents else cotangents[name] + moved


def _inputs_of(stage: PipelineStage, makers: Mapping[str, PipelineStage], log_event: LogEvent) -> list[_Input]:
    return [
        _Input(name, _arrival(makers[name], name, stage, device, log_event) if name in makers else None)
        for name, (_, device) in stage.segment.inputs.items()
    ]


def _arrival(maker: PipelineStage, name: str, taker: PipelineStage, device: Device, log_event: LogEvent) -> Transfer:
    source, target = TransferEnd(maker.backend, maker.device_of(name)), TransferEnd(taker.backend, device)
    return transfer(source, target, f"outputs of {name!r}", log_event)


def _gradients_of(
    stage: PipelineStage, makers: Mapping[str, PipelineStage], log_event: LogEvent
) -> list[_GradientOutput]:
    targets = []
    for name in stage.segment.needs_pullback:
        maker, (_, device) = makers[name], stage.segment.inputs[name]
        source, target = TransferEnd(stage.backend, device), TransferEnd(maker.backend, maker.device_of(name))
        targets.append(_GradientOutput(name, transfer(source, target, f"gradients of {name!r}", log_event)))
    return targets


def _rows(stage: PipelineStage, name: str, columns: DeviceColumns) -> Rows:
    column = columns[name]
    return column.feature_set, partial(stage.backend.gather_rows, column.rows, order=column.order)


def _gather(
    needed: Sequence[_Input], columns: Mapping[str, Rows], values: Mapping[str, Any], span_of: SpanOf
) -> tuple[Any, ...]:
    """The inputs of a stage: None for rows that this step does not have, and for values that would need them."""
    inputs: list[Any] = []
    for value_input in needed:
        if value_input.transfer is None:
            inputs.append(_taken(columns[value_input.name], span_of))
        else:
            value = values[value_input.name]
            inputs.append(None if value is None else value_input.transfer(value))
    return tuple(inputs)


def _factor(stage: PipelineStage, term: LossTerm, weight: Any) -> Any:
    """What the sum of a loss is multiplied by, on its device."""
    with stage.backend.scope(term.device):
        return term.weight / weight


def _taken(column: Rows, span_of: SpanOf) -> Any:
    """Rows of a column; None for none."""
    feature_set, gather_rows = column
    span = span_of(feature_set)
    return None if span is None else gather_rows(*span)


def _rescale(stages: Iterable[PipelineStage], factor: float) -> None:
    for stage in stages:
        stage.program.map_gradients(partial(_times, factor))


def _times_each(stage: PipelineStage, factor: float, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The factors of losses, times a factor, on their devices."""
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
