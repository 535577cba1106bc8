"""Evaluation: losses, metrics and predictions of an EvalPhase, computed by programs that are ready."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from anyaccel import interrupts
from anyaccel.adapter import loss_function
from anyaccel.adapter.output_activations import was_warned_of
from anyaccel.data import joined_array
from anyaccel.device import Device
from anyaccel.errors import ENVIRONMENT_ERRORS, ColumnError, PhaseError, SpecError, UndefinedMetricWarning
from anyaccel.graph import ModelGraph, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.resolve import named_column, targets_of
from anyaccel.metrics import SYNONYMS, BoundMetric, Metric, metric_names
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.learners import Learners
from anyaccel.phases.loading.epoch_plan import EvaluationRows
from anyaccel.phases.loading.loader import LoadedRows
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.nan_check import NonFiniteLosses
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.step_checks import ProbabilityCheck
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel.results.events import LogEvent, discard_event
from anyaccel.results.records import Compared, EvaluationValues
from anyaccel.segment import LossTerm
from anyaccel.specs import takes_classes
from anyaccel.user_level import user_level

Attempt = tuple[dict[str, float], dict[str, list[np.ndarray]]]
"""Mean losses over all rows, and the parts of each output."""


def bind_metrics(
    phase: PhaseSettings, losses: Sequence[AppliedLoss], graph: ModelGraph, measured: Mapping[str, Metric]
) -> list[BoundMetric]:
    """Return the bound metrics of a phase. One without a node is bound to every node with a loss, or to the output
    nodes.

    The losses in `measured`, which are computed like metrics, come last, by label.

    Raises:
        ColumnError: the metric has no target.
        GraphError: a node that is not in the graph.
        SpecError: two metrics with one label, or one with the name of a loss.
    """
    default_nodes = list(dict.fromkeys(loss.on for loss in losses)) or list(graph.output_nodes)
    bound = []
    for metric in (*phase.metrics, *measured.values()):
        nodes = [metric.on] if metric.on is not None else default_nodes
        for node in nodes:
            if node not in graph.nodes:
                raise topology.unknown_node(f"metric {metric.label!r} is on the node {node!r}", node, graph.nodes)
            compared = [name for loss in losses if loss.on == node for name in loss.inputs[1:]]
            text = metric.targets if metric.targets != "targets" or not compared else compared[0]
            if text == "targets":
                source, columns, stream = targets_of(AppliedLoss("mse", on=node), graph.nodes)
            else:
                chosen = named_column(text, graph.nodes)
                if chosen is None:
                    raise ColumnError(
                        f"metric {metric.label!r} compares with {text!r}, which is not a column",
                        hint="write 'FEATURE_SET.COLUMN'",
                    )
                source, columns, stream = chosen
            label = metric.label if len(nodes) == 1 else f"{node}.{metric.label}"
            where: Any = {"feature_set": source.label, "columns": columns, "stream": stream or ""}
            mask: tuple[str, ...] = ()
            if metric.mask is not None:
                of_mask = named_column(metric.mask, graph.nodes)
                has_rows = of_mask is not None and of_mask.feature_set.label == source.label
                if of_mask is None or not has_rows or (of_mask.stream or "") != (stream or ""):
                    raise ColumnError(
                        f"metric {metric.label!r} has the mask {metric.mask!r}, which is not a column of the data of "
                        "its targets",
                        available=f"columns of {source.label!r}",
                        hint=f"write mask='{source.label}.COLUMN'",
                    )
                mask = of_mask.names
            bound.append(BoundMetric(label=label, metric=metric, node=node, mask=mask, **where))
    labels = [metric.label for metric in bound]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise SpecError(f"phase {phase.label!r} has two metrics called {', '.join(twice)}", hint="give each a label=")
    labels = labels[: len(labels) - len(measured)]
    names_of_losses = {"loss", *(f"loss.{loss.label}" for loss in losses)}
    taken = next((label for label in labels if label in names_of_losses), None)
    if taken is not None:
        raise SpecError(
            f"phase {phase.label!r} has a metric called {taken!r}, but a loss in the results has that name",
            hint="give the metric another label=",
        )
    return bound


def trained_as(loss: AppliedLoss, trained: Iterable[AppliedLoss]) -> str | None:
    """Return the label of the trained loss with the same values, ignoring label and weight, or None."""
    values = _values_of(loss)
    return next((other.label for other in trained if _values_of(other) == values), None)


def measured_losses(losses: Iterable[AppliedLoss], trained: Sequence[AppliedLoss]) -> dict[str, Metric]:
    """Return the losses of a validation that are not trained, by label: computed of all its outputs, as metrics are."""
    return {
        loss.label: Metric(_named_loss(loss), on=loss.on, targets=loss.inputs[1], label=f"loss.{loss.label}")
        for loss in losses
        if trained_as(loss, trained) is None
    }


def _values_of(loss: AppliedLoss) -> tuple[Any, ...]:
    return loss.loss, loss.on, loss.inputs, loss.sample_weight, loss.mask


def _named_loss(loss: AppliedLoss) -> Callable[[np.ndarray, np.ndarray], float]:
    term = LossTerm(loss.label, loss.on, loss.loss, loss.inputs, Device("cpu"))
    host: Any = registry().find(BUILT_IN)
    compute = loss_function(host.ops, term)

    def named_loss(outputs: np.ndarray, targets: np.ndarray) -> float:
        shape = list(outputs.shape)
        if takes_classes(loss.loss) and targets.shape != outputs.shape:
            del shape[loss.loss.kwargs.get("class_axis", -1)]
        if targets.size == math.prod(shape):
            targets = targets.reshape(shape)
        if not takes_classes(loss.loss):
            targets = targets.astype(outputs.dtype)
        result = compute([outputs, targets])
        return float(result.sum) / float(result.weight)

    return named_loss


class Evaluation:
    """Evaluate rows; it can run many times, as the validation of a TrainPhase.

    Args:
        pipeline: The programs.
        loaded: The rows on devices.
        rows: The same rows in host memory, for metrics.
        losses: Requested losses, each with the label of the program's loss that computes it; None if it is a metric.
        metrics: Requested metrics.
        keep: Labels of nodes whose outputs are kept.
        value_names: Names of each node's values.
        learners: Nodes that learn in each step; their metrics are computed on the host.
        group: The processes that compute some batches each.
        log_event: Function that receives undefined metrics, each once.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        loaded: LoadedRows,
        rows: EvaluationRows,
        losses: Sequence[tuple[AppliedLoss, str | None]],
        metrics: Sequence[BoundMetric],
        keep: Sequence[str],
        value_names: Mapping[str, Sequence[str]],
        learners: Learners,
        group: ProcessGroup,
        log_event: LogEvent = discard_event,
    ) -> None:
        self._log_event, self._undefined = log_event, set[str]()
        self._group = group
        self._pipeline, self._loaded, self._rows = pipeline, loaded, rows
        self._losses, self._metrics, self._learners = losses, metrics, learners
        operations = [operation for stage in pipeline.stages for operation in stage.segment.operations]
        warned = {operation.label for operation in operations if was_warned_of(operation.model)}
        self._probabilities = ProbabilityCheck([loss for loss, _ in losses if loss.on not in warned], value_names)
        on_host = [metric.node for metric in metrics if metric.node in learners.labels]
        computed = [metric.node for metric in metrics if metric.node not in learners.labels]
        self._names = value_names
        self._kept = [name for label in keep for name in value_names[label]]
        inputs = learners.upstreams if on_host else ()
        self._wanted = [name for label in dict.fromkeys([*keep, *inputs, *computed]) for name in value_names[label]]

    def run(self) -> EvaluationValues:
        """Compute all rows; if memory runs out, compute again with fewer rows at once.

        Raises:
            OutOfMemoryError: even the smallest number does not fit.
        """
        while isinstance(result := self._attempt_or_error(), MemoryError):
            self._loaded.make_room(result)
        all_means, parts = result
        parts = self._group.outputs_of_all(parts)
        for metric in self._metrics:
            rows = self._rows.of(metric.feature_set, metric.stream)
            all_outputs = parts.get(next(iter(self._names[metric.node]), ""), ())
            by_row = len(metric.columns) == 1 and rows.is_ragged(metric.columns[0])
            if not by_row and (any(map(rows.is_ragged, metric.columns)) or _differ(all_outputs)):
                raise SpecError(
                    f"metric {metric.label!r} on node {metric.node!r} compares values that differ in "
                    "length, and would count the padding of the shorter ones",
                    hint=f"leave the metric out, and compute it from results.prediction({metric.node!r}), which is "
                    "padded with NaN after each batch, and the lengths of the rows",
                )
        outputs = {name: _joined_outputs(name, arrays) for name, arrays in parts.items()}
        self._probabilities.look(outputs)
        metrics = {metric.label: self._measure(metric, outputs) for metric in self._metrics}
        means = {
            loss.label: metrics.pop(f"loss.{loss.label}") if label is None else all_means[label]
            for loss, label in self._losses
        }
        total = sum(loss.weight * means[loss.label] for loss, _ in self._losses) if self._losses else float("nan")
        return EvaluationValues(means, total, metrics, {name: outputs[name] for name in self._kept})

    def _attempt_or_error(self) -> Attempt | MemoryError:
        """Return the result, or the error that memory ran out, outside of the frame whose values are in the way."""
        try:
            return self._attempt()
        except MemoryError as error:
            return error

    def _attempt(self) -> Attempt:
        """Compute all rows; mean losses, and the parts of each output."""
        losses, parts = LossAccumulator(self._group.total), {name: list[np.ndarray]() for name in self._wanted}
        with closing(self._loaded.loader.chunks(0)) as chunks:
            for chunk in chunks:
                pending: list[tuple[str, object]] = []
                runner, max_rows = self._pipeline.runner(chunk.columns), self._loaded.max_rows
                for step in chunk.steps:
                    for part in [step] if max_rows is None else step.split(max_rows):
                        values, step_losses = runner.evaluate(part.rows)
                        losses.add(step_losses)
                        pending += [(name, values[name]) for name in parts if values[name] is not None]
                        interrupts.check()
                for name, value in pending:
                    parts[name].append(np.array(self._pipeline.to_host(name, value)))
                del chunk  # its rows must not outlive the next
        return losses.means(), parts

    def _measure(self, metric: BoundMetric, outputs: Mapping[str, np.ndarray]) -> float:
        if metric.node in self._learners.labels:
            predicted = self._learners.predict(metric.node, outputs, self._rows.rows)
        else:
            predicted = outputs[self._names[metric.node][0]]
        rows = self._rows.of(metric.feature_set, metric.stream)
        is_ragged = len(metric.columns) == 1 and rows.is_ragged(metric.columns[0])
        ragged = rows.ragged_column(metric.columns[0]) if is_ragged else None
        width = predicted.shape[1] if ragged is not None and predicted.ndim > 1 else None
        targets = _of_width(joined_array(rows, metric.columns), width)
        mask = _of_width(joined_array(rows, metric.mask), width) if metric.mask else None
        try:
            with interrupts.allowed():
                lengths = None if ragged is None else ragged.lengths
                tell = partial(self._tell_undefined, metric.label)
                return metric.metric.compute(predicted, targets, mask=mask, lengths=lengths, if_undefined=tell)
        except SpecError as error:
            others = [
                other.node for other in self._metrics if other.metric is metric.metric and other.node != metric.node
            ]
            on = f"name the node to judge: Metric({metric.metric.label!r}, on={others[0]!r})" if others else error.hint
            problem = f"metric {metric.label!r} on node {metric.node!r}: {error.problem}"
            raise SpecError(problem, available=error.available, hint=on) from None
        except ENVIRONMENT_ERRORS as error:
            error.add_note(f"raised by metric {metric.label!r} on node {metric.node!r}")
            raise
        except Exception as error:  # of a function of the user's, or of a framework
            named = SYNONYMS.get(metric.metric.label, metric.metric.label)
            arrays = (
                f"outputs {predicted.dtype}{list(predicted.shape)} and targets {targets.dtype}{list(targets.shape)}"
            )
            raise SpecError(
                f"metric {metric.metric.label!r} on node {metric.node!r} raised {type(error).__name__}: {error}",
                cause=f"it is called with {arrays}, NumPy arrays, and returns a number",
                hint=f"write metrics=[{named!r}]: this name takes the outputs of a model"
                if named in metric_names()
                else "give a function: def metric(outputs, targets): return float(...)",
            ) from error

    def _tell_undefined(self, label: str, text: str) -> None:
        """Report an undefined metric once, for any number of epochs."""
        if label not in self._undefined:
            self._undefined.add(label)
            self._log_event("metric", text)
            warnings.warn(printable(text), UndefinedMetricWarning, stacklevel=user_level())


def _differ(arrays: Sequence[np.ndarray]) -> bool:
    """Whether the samples of batches differ in shape."""
    return len({array.shape[1:] for array in arrays}) > 1


def _joined_outputs(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the outputs of all batches, [n, *shape]; if batches differ in length, shorter ones are padded with NaN.

    Args:
        name: Name of the output, for messages.
        arrays: Array of each batch.

    Raises:
        PhaseError: batches differ in length, and their dtype has no NaN.
    """
    if not _differ(arrays):
        return np.concatenate(arrays)
    shapes = [array.shape[1:] for array in arrays]
    if arrays[0].dtype.kind != "f" or len({len(shape) for shape in shapes}) > 1:
        other = next(shape for shape in shapes if shape != shapes[0])
        raise PhaseError(
            f"the output {name!r} is {arrays[0].dtype}{list(shapes[0])} per sample in one batch and "
            f"{list(other)} in another, because each batch is padded to its own length",
            cause="only floating outputs can be joined, padded with NaN",
            hint="leave it out with outputs=[...], or pad all to one length: pad={'COLUMN': Pad(..., length=...)}",
        )
    longest = tuple(max(extents) for extents in zip(*shapes, strict=True))
    joined = np.full((sum(map(len, arrays)), *longest), np.nan, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
        start += len(array)
    return joined


class Validation(LoopExtension):
    """Evaluate after every n epochs, and after the last; an epoch counts as complete even if this fails.

    Args:
        run: The run; the record of the epoch receives the values.
        evaluation: The evaluation.
        non_finite: Check of its losses.
        progress: Progress that shows the activity.
    """

    def __init__(self, run: Run, evaluation: Evaluation, non_finite: NonFiniteLosses, progress: Progress) -> None:
        self._run, self._evaluation, self._non_finite, self._progress = run, evaluation, non_finite, progress

    def epoch_ends(self) -> None:
        run, n_done = self._run, self._run.epoch + 1
        if n_done % run.phase.validate_every and n_done < run.phase.epochs:
            return
        self._progress.doing("validating")
        values = self._evaluation.run().named
        run.history[-1] = replace(run.history[-1], validation=values)
        self._non_finite.validation(values)
        self._progress.doing("")


def _of_width(array: np.ndarray, width: int | None) -> np.ndarray:
    """Return padded rows with the width of the outputs; no row continues after it."""
    return array if width is None or array.ndim < 2 else array[:, :width]


def compared(phase: PhaseSettings, graph: ModelGraph, values: Iterable[str]) -> dict[str, Compared]:
    """Return the columns that each value (`NODE` or `NODE.OUTPUT`) is compared with; values without any are left out.

    These are the columns of a loss of the phase on the node, otherwise those of a metric, otherwise the targets of the
    data that feed the node.
    """
    columns: dict[str, Compared] = {}
    for value in values:
        node, _, output = value.partition(".")
        outputs = {"outputs", value, f"outputs.{output}"}
        texts: list[str] = []  # that may name the columns, the most certain first
        for loss in phase.losses:
            if loss.on == node and outputs & set(loss.inputs):
                texts += [text for text in loss.inputs if text not in outputs]
        for metric in phase.metrics:
            if metric.on in (None, node) and metric.targets != "targets":
                texts.append(metric.targets)
        for text in (*texts, "targets"):
            try:
                targets = targets_of(AppliedLoss("mse", on=node), graph.nodes) if text == "targets" else None
                chosen = targets or named_column(text, graph.nodes)
            except ColumnError:
                continue
            if chosen is not None:
                label, samplers = chosen.feature_set.label, phase.sampled_by
                sampler = samplers.get(label) if isinstance(samplers, Mapping) else samplers
                # without a sampler, all streams are the rows
                streams: tuple[str, ...] = getattr(sampler, "streams", ())
                columns[value] = f"{label}@{chosen.stream}" if chosen.stream in streams[1:] else label, chosen.names
                break
    return columns
