"""The parts of a phase, which are itself and its validation, and what each asks of a graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anyaccel.data import FeatureSet
from anyaccel.graph import ModelGraph, Plan, Request, topology
from anyaccel.phases import estimator_fit
from anyaccel.phases.estimator_partial_fit import learning
from anyaccel.phases.evaluation import Judgement, judged
from anyaccel.phases.kinds import EvalPhase, FitPhase, TrainPhase
from anyaccel.phases.loading.taking import streams_of
from anyaccel.phases.phase import Phase
from anyaccel.specs import AppliedLoss


def parts_of(phase: Phase) -> list[Phase]:
    """The phase, and its validation if it has one."""
    validation = phase.validation if isinstance(phase, TrainPhase) else None
    return [phase] if validation is None else [phase, validation]


def losses_of(phase: Phase, part: Phase) -> tuple[AppliedLoss, ...]:
    """The losses of a phase, or of its validation, which are those of the training unless it has its own."""
    return part.losses or (phase.losses if part is not phase else ())


def judgements_of(phase: Phase, part: Phase, graph: ModelGraph) -> list[Judgement]:
    """The metrics of an evaluation, bound; none of any other phase.

    Raises:
        ColumnError, GraphError, SpecError: a metric that cannot be bound.
    """
    return judged(part, losses_of(phase, part), graph) if isinstance(part, EvalPhase) else []


def request_of(phase: Phase, graph: ModelGraph, done: Collection[str] = ()) -> Request:
    """What a phase asks of a graph; `done` are the estimators that it has fitted by now."""
    learners = learning(phase, graph)
    wants = dict.fromkeys(estimator_fit.sources(learners, graph))
    for part in parts_of(phase):
        if isinstance(part, EvalPhase):
            wants.update(dict.fromkeys(kept_by(part, graph) if part is phase else ()))
            judged_nodes = (one.node for one in judgements_of(phase, part, graph))
            wants.update(dict.fromkeys(one for one in judged_nodes if one not in learners))
    if isinstance(phase, FitPhase):
        wants = dict.fromkeys(estimator_fit.sources(estimator_fit.to_fit(phase, graph, done), graph))
    return Request(
        phase.label,
        phase.accelerator,
        phase.losses,
        isinstance(phase, TrainPhase) and bool(phase.losses or not learners),
        tuple(wants),
        phase.strict,
        phase.policy,
        streams_of(phase, graph),
        tuple(learners),
    )


def sets_of(
    phase: Phase, plan: Plan, judgements: Sequence[Judgement], graph: ModelGraph, done: Collection[str] = ()
) -> dict[str, FeatureSet]:
    """The feature sets that a phase needs data of: for its nodes, for what is loaded, and for its metrics."""
    labels = {one.node for one in plan.assignments}
    if isinstance(phase, FitPhase):
        labels |= topology.ancestors(estimator_fit.to_fit(phase, graph, done), graph.nodes)
    labels |= topology.ancestors(learning(phase, graph), graph.nodes)
    needed = set(topology.feature_sets(graph.nodes[label] for label in labels))
    needed |= {column.feature_set for column in plan.columns} | {one.source for one in judgements}
    return {label: one for label, one in topology.feature_sets(graph.nodes.values()).items() if label in needed}


def kept_by(phase: EvalPhase, graph: ModelGraph) -> tuple[str, ...]:
    """Labels of the nodes whose outputs an evaluation keeps."""
    return graph.output_nodes if phase.outputs is None else phase.outputs
