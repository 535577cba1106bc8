"""Evaluation: losses, metrics and predictions of an EvalPhase over programs that are ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from anyaccel.data import joined_array
from anyaccel.errors import ColumnError, OutOfMemoryError, SpecError
from anyaccel.graph import ModelGraph, input_columns, topology
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.kinds import EvalPhase
from anyaccel.phases.loading import Portion, Stretch, parts_of
from anyaccel.phases.loading.sight import Sight
from anyaccel.phases.loss_accumulator import Tally
from anyaccel.phases.metrics import Metric
from anyaccel.phases.phase import Phase
from anyaccel.phases.relief import Relief
from anyaccel.specs import AppliedLoss


@dataclass(frozen=True, slots=True)
class Judgement:
    """A metric bound to the value it judges and the columns it compares with."""

    label: str
    metric: Metric
    node: str
    source: str
    columns: tuple[str, ...]
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """What an evaluation gave: losses by label and their sum (NaN of none), metrics by label, outputs by value name."""

    losses: dict[str, float]
    loss: float
    metrics: dict[str, float]
    outputs: dict[str, np.ndarray]

    @property
    def named(self) -> dict[str, float]:
        """Every figure by name: `loss`, `loss.LABEL`, and the metrics."""
        losses = (
            {"loss": self.loss, **{f"loss.{name}": value for name, value in self.losses.items()}} if self.losses else {}
        )
        return {**losses, **self.metrics}


def judged(phase: EvalPhase, losses: Sequence[AppliedLoss], graph: ModelGraph) -> list[Judgement]:
    """The metrics of a phase, bound; one without a node judges every node that a loss does, else the tails.

    Raises:
        ColumnError: there is no target to compare with.
        GraphError: a node that is not in the graph.
        SpecError: two metrics of one label.
    """
    nodes = list(dict.fromkeys(loss.on for loss in losses)) or list(graph.output_nodes)
    found = []
    for metric in phase.metrics:
        on = [metric.on] if metric.on is not None else nodes
        for node in on:
            source, names, stream = _targets(metric, node, losses, graph)
            label = metric.label if len(on) == 1 else f"{node}.{metric.label}"
            found.append(Judgement(label, metric, node, source.label, names, stream or ""))
    labels = [one.label for one in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise SpecError(f"phase {phase.label!r} has two metrics called {', '.join(twice)}", hint="give each a label=")
    return found


def _targets(metric: Metric, node: str, losses: Sequence[AppliedLoss], graph: ModelGraph) -> input_columns.Chosen:
    if node not in graph.nodes:
        raise topology.unknown_node(f"metric {metric.label!r} judges the node {node!r}", node, graph.nodes)
    own = [name for loss in losses if loss.on == node for name in loss.inputs[1:]]
    text = metric.targets if metric.targets != "targets" or not own else own[0]
    if text == "targets":
        return input_columns.targets_of(AppliedLoss("mse", on=node), graph.nodes)
    named = input_columns.named_column(text, graph.nodes)
    if named is None:
        raise ColumnError(
            f"metric {metric.label!r} compares with {text!r}, which is no column", hint="write 'FEATURE_SET.COLUMN'"
        )
    return named


def evaluate(
    chain: Chain,
    relief: Relief,
    sight: Sight,
    losses: Sequence[AppliedLoss],
    judgements: Sequence[Judgement],
    keep: Sequence[str],
    names: Mapping[str, Sequence[str]],
) -> Figures:
    """Run over all rows; where memory runs out, once more with less at once.

    Args:
        chain: programs.
        relief: the data, and what is done when there is no room for them.
        sight: what is evaluated, in host memory too, for metrics.
        losses: those wanted.
        judgements: metrics, bound.
        keep: labels of nodes whose outputs are kept.
        names: names of each node's values.

    Raises:
        OutOfMemoryError: there is no room for the least.
    """
    wanted = [name for label in dict.fromkeys([*keep, *(one.node for one in judgements)]) for name in names[label]]
    while True:
        tally, parts = Tally(), {name: list[np.ndarray]() for name in wanted}
        failure = _tried(chain, relief, tally, parts)
        if failure is None:
            break
        relief.give(failure, relief.batch)
    outputs = {name: np.concatenate(part) for name, part in parts.items()}
    all_means = tally.means()
    means = {loss.label: all_means[loss.label] for loss in losses}
    total = sum(loss.weight * means[loss.label] for loss in losses) if losses else float("nan")
    metrics = {one.label: measured(one, outputs[names[one.node][0]], sight, judgements) for one in judgements}
    return Figures(means, total, metrics, {name: outputs[name] for label in keep for name in names[label]})


def _tried(
    chain: Chain, relief: Relief, tally: Tally, parts: Mapping[str, list[np.ndarray]]
) -> OutOfMemoryError | None:
    """All outputs and losses; the outputs of a portion come to the host when it is over."""
    try:
        with closing(relief.supply.portions(0, 0, chain.order)) as portions:
            for portion in portions:
                _add(chain, portion, relief.piece, tally, parts)
                del portion  # its rows must not outlive the next
    except OutOfMemoryError as error:
        return error
    return None


def _add(
    chain: Chain, portion: Portion, piece: int | None, tally: Tally, parts: Mapping[str, list[np.ndarray]]
) -> None:
    pending: list[tuple[str, object]] = []
    step = chain.evaluator(portion.feed, portion.orders)
    for work in portion.works:
        for turn in [work] if piece is None else parts_of(work, piece):
            assert not isinstance(turn, Stretch)
            values, found = step(turn)
            tally.add(found)
            pending += [(name, values[name]) for name in parts if values[name] is not None]
    for name, value in pending:
        parts[name].append(np.array(chain.to_host(name, value)))


def measured(one: Judgement, outputs: np.ndarray, sight: Sight, others: Sequence[Judgement] = ()) -> float:
    """A metric of whole outputs, compared with columns of the same rows.

    Args:
        one: the metric, bound.
        outputs: of its node.
        sight: what is evaluated.
        others: all metrics of the phase, for the message.

    Raises:
        SpecError: the metric cannot compare them; names the node.
    """
    try:
        return float(one.metric.measure(outputs, joined_array(sight.of(one.source, one.stream), one.columns)))
    except SpecError as error:
        nodes = [other.node for other in others if other.metric is one.metric and other.node != one.node]
        on = f"name the node that it judges: Metric({one.metric.label!r}, on={nodes[0]!r})" if nodes else error.hint
        asked = f"metric {one.label!r} on node {one.node!r}: {error.problem}"
        raise SpecError(asked, available=error.available, hint=on) from None


Compared = tuple[str, tuple[str, ...]]
"""Label of a feature set, with `@STREAM` where a sampler draws them by another stream, and names of its columns."""


def compared(phase: Phase, graph: ModelGraph, values: Iterable[str]) -> dict[str, Compared]:
    """What each value (a node's label, or `label.OUTPUT`) is compared with; those that are with nothing are left out.

    A loss of the phase on the node says so, else a metric that names a column, else it is the targets of the data
    that feed the node.
    """
    found = {value: _columns(phase, graph, value) for value in values}
    return {value: one for value, one in found.items() if one is not None}


def _columns(phase: Phase, graph: ModelGraph, value: str) -> Compared | None:
    node = value.partition(".")[0]
    for text in _texts(phase, node, value):
        try:
            whole = input_columns.targets_of(AppliedLoss("mse", on=node), graph.nodes) if text == "targets" else None
            chosen = whole or input_columns.named_column(text, graph.nodes)
        except ColumnError:
            continue
        if chosen is not None:
            return f"{chosen.source.label}{_drawn(phase, chosen)}", chosen.names
    return None


def _drawn(phase: Phase, chosen: input_columns.Chosen) -> str:
    """`@STREAM` where the rows of an EvalPhase are another stream's; without a sampler all streams are the rows."""
    samplers = getattr(phase, "sampler", None)
    sampler = samplers.get(chosen.source.label) if isinstance(samplers, Mapping) else samplers
    streams: tuple[str, ...] = getattr(sampler, "streams", ())
    return f"@{chosen.stream}" if chosen.stream in streams[1:] else ""


def _texts(phase: Phase, node: str, value: str) -> Iterator[str]:
    """What may name the columns, the surest first."""
    own = {"outputs", value, f"outputs.{value.partition('.')[2]}"}
    for loss in phase.losses:
        if loss.on == node and own & set(loss.inputs):
            yield from (text for text in loss.inputs if text not in own)
    for metric in getattr(phase, "metrics", ()):
        if metric.on in (None, node) and metric.targets != "targets":
            yield metric.targets
    yield "targets"
