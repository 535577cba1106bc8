"""Taking: what a phase takes of its data, by its samplers, made sure of before anything moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from anyaccel.data import FeatureSet, Rows, Sampler, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan, input_columns, topology
from anyaccel.phases.estimator_partial_fit import learning
from anyaccel.phases.evaluation import Judgement
from anyaccel.phases.kinds import EvalPhase, FitPhase, TrainPhase
from anyaccel.phases.loading import device_columns
from anyaccel.phases.loading.epoch_batches import ZIP_STRICT, Drawing, check_joints
from anyaccel.phases.loading.sight import Sight, sight_of
from anyaccel.phases.phase import Data, Phase
from anyaccel.phases.samplers import Samplers
from anyaccel.specs import AppliedLoss
from anyaccel.suggestions import did_you_mean


def streams_of(phase: Phase, graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Names of the streams that may be read of each feature set; one that is not there has none but its rows."""
    samplers = _samplers(phase)
    if samplers is None:
        return {}
    labels = topology.feature_sets(graph.nodes.values())
    if isinstance(samplers, Sampler):
        return dict.fromkeys(labels, samplers.streams)
    return {label: samplers[label].streams for label in labels if label in samplers}


def _samplers(phase: Phase) -> Samplers | None:
    """What draws in a phase; None where rows are taken as they are."""
    if not isinstance(phase, (TrainPhase, EvalPhase)):
        return None
    return None if isinstance(phase, EvalPhase) and isinstance(phase.sampler, SimpleSampler) else phase.sampler


def rows_of(part: Phase, sets: Mapping[str, FeatureSet], data: Data) -> dict[str, Rows]:
    """The rows that a phase takes from, by feature set.

    Args:
        part: the phase, or its validation.
        sets: the feature sets that it needs data of.
        data: its data as rows.

    Raises:
        PhaseError: as `loading.rows_of`; or samplers for other feature sets than there are.
        SplitError: a split that a feature set does not have.
    """
    samplers = _samplers(part)
    if isinstance(samplers, Mapping):
        _check_keys(part, samplers, sets)
    together = isinstance(part, FitPhase) or isinstance(samplers, Sampler)
    return device_columns.rows_of(part.label, data, sets, together=together)


def _check_keys(part: Phase, samplers: Mapping[str, Sampler], sets: Mapping[str, FeatureSet]) -> None:
    strange = next((name for name in samplers if name not in sets), None)
    missing = [name for name in sets if name not in samplers]
    if strange is not None:
        raise PhaseError(
            f"phase {part.label!r} has a sampler for {strange!r}, which is no feature set that it takes",
            available=", ".join(sets),
            hint=did_you_mean(strange, sets),
        )
    if missing and isinstance(part, TrainPhase):
        raise PhaseError(
            f"phase {part.label!r} has no sampler for {', '.join(missing)}",
            available=f"samplers for {', '.join(samplers)}",
            hint=f"add {missing[0]!r} to sampler={{...}}",
        )


def drawn(
    phase: Phase,
    part: Phase,
    rows: Mapping[str, Rows],
    judgements: Sequence[Judgement],
    plan: Plan,
    graph: ModelGraph,
) -> Drawing | Sight:
    """What the samplers of a phase, or of its validation, take of some rows.

    Raises:
        SamplerError: nothing can be drawn, or a stream is read that a sampler lacks.
        PhaseError: a schedule that does not fit, or a node or loss that would get different rows of feature sets.
    """
    joints = list(_joints(phase, judgements, plan, graph))
    if isinstance(part, TrainPhase):
        drawing = Drawing(part.label, part.sampler, part.schedule or ZIP_STRICT, rows)
        check_joints(part.label, drawing.turns, joints)
        return drawing
    if not isinstance(part, EvalPhase):
        return Sight(rows)
    _check_streams(part, judgements, plan)
    sight = sight_of(part.sampler, rows)
    check_joints(part.label, sight.turns(part.batch_size), joints, evaluated=True)
    return sight


def _check_streams(part: EvalPhase, judgements: Sequence[Judgement], plan: Plan) -> None:
    read = {(one.feature_set, one.stream) for one in plan.columns} | {(one.source, one.stream) for one in judgements}
    samplers = _samplers(part)
    for name, stream in sorted(read):
        one = samplers.get(name) if isinstance(samplers, Mapping) else samplers
        if one is not None:
            input_columns.check_stream(stream, name, one.streams)


def _joints(
    phase: Phase, judgements: Iterable[Judgement], plan: Plan, graph: ModelGraph
) -> Iterator[tuple[str, frozenset[str]]]:
    """What joins several feature sets, for messages, and which: nodes, losses and metrics."""
    nodes = graph.nodes
    for one in plan.assignments:
        yield from _several(f"node {one.node!r}", _sets(one.node, graph))
    for label in learning(phase, graph):
        yield from _several(f"node {label!r}", _sets(label, graph))
    for loss in phase.losses:
        yield from _several(
            f"the loss {loss.label!r}", {name for text in loss.inputs for name in _read(text, loss, graph)}
        )
    for judged in judgements:
        if judged.node in nodes:
            yield from _several(f"the metric {judged.label!r}", _sets(judged.node, graph) | {judged.source})


def _several(what: str, sets: set[str]) -> Iterator[tuple[str, frozenset[str]]]:
    if len(sets) > 1:
        yield what, frozenset(sets)


def _sets(node: str, graph: ModelGraph) -> set[str]:
    return {reference.feature_set.label for reference in topology.references(node, graph.nodes)}


def _read(text: str, loss: AppliedLoss, graph: ModelGraph) -> set[str]:
    """The feature sets that one input of a loss comes from."""
    label = text.partition(".")[0]
    if label in graph.nodes:
        return _sets(label, graph)
    named = None if text == "targets" or label == "outputs" else input_columns.named_column(text, graph.nodes)
    return _sets(loss.on, graph) if named is None else {named.source.label}
