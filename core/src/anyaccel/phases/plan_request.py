"""Plan request: what a phase asks of a graph: its parts, losses and metrics, wanted outputs, and the data it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anyaccel.data import FeatureSet, Sampler, SimpleSampler
from anyaccel.graph import ModelGraph, Plan, Request, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.training_outputs import training_only_inputs
from anyaccel.phases.estimator_fit import next_to_fit
from anyaccel.phases.estimator_inputs import upstream_nodes
from anyaccel.phases.estimator_partial_fit import learning_nodes
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.evaluation import BoundMetric, bind_metrics
from anyaccel.phases.fit_phase import FitPhase
from anyaccel.phases.phase import Phase
from anyaccel.phases.samplers import Samplers
from anyaccel.phases.train_phase import TrainPhase, all_losses
from anyaccel.phases.validation import measured_losses


def parts_of(phase: Phase) -> list[Phase]:
    """The phase, and its validation if it has one."""
    validation = phase.validation if isinstance(phase, TrainPhase) else None
    return [phase] if validation is None else [phase, validation]


def losses_of(phase: Phase, part: Phase) -> tuple[AppliedLoss, ...]:
    """The losses of a phase, or of its validation, which are those of the training unless it has its own."""
    return part.losses or (phase.losses if part is not phase else ())


def evaluated_losses(phase: Phase, part: Phase, graph: ModelGraph) -> tuple[AppliedLoss, ...]:
    """The losses of `losses_of` that can be computed in evaluation: not those of outputs that only training has."""
    losses, extra = losses_of(phase, part), graph.shapes.training_only.values()
    left_out = training_only_inputs(losses, {name for names in extra for name in names})
    return tuple(loss for loss in losses if loss.label not in left_out)


def metrics_of(phase: Phase, part: Phase, graph: ModelGraph) -> list[BoundMetric]:
    """The metrics of an evaluation, bound; none of any other phase.

    Raises:
        ColumnError, GraphError, SpecError: a metric that cannot be bound.
    """
    if not isinstance(part, EvalPhase):
        return []
    losses = losses_of(phase, part)
    measured = measured_losses(losses, losses if part is phase else all_losses(phase))
    return bind_metrics(part, losses, graph, measured)


def learners_of(phase: Phase, graph: ModelGraph) -> list[str]:
    """Labels of the nodes that learn by `partial_fit` in a phase; see `learning_nodes`."""
    return learning_nodes(phase.label, phase.losses, graph) if isinstance(phase, TrainPhase) else []


def kept_outputs(phase: EvalPhase, graph: ModelGraph) -> tuple[str, ...]:
    """Labels of the nodes whose outputs an evaluation keeps."""
    return graph.output_nodes if phase.outputs is None else phase.outputs


def _checked_outputs(validation: EvalPhase, graph: ModelGraph) -> tuple[str, ...]:
    """None of the outputs that a validation names, which count where it is run on its own; they must exist."""
    for label in validation.outputs or ():
        if label not in graph.nodes:
            raise topology.unknown_node(f"phase {validation.label!r} names the node {label!r}", label, graph.nodes)
    return ()


def samplers_of(phase: Phase) -> Samplers | None:
    """What draws rows in a phase; None if rows are taken as they are."""
    if not isinstance(phase, (TrainPhase, EvalPhase)):
        return None
    return None if isinstance(phase, EvalPhase) and isinstance(phase.sampler, SimpleSampler) else phase.sampler


def streams_of(phase: Phase, graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Names of the streams that may be read of each feature set; feature sets that are left out have only rows."""
    samplers = samplers_of(phase)
    if samplers is None:
        return {}
    labels = topology.feature_sets(graph.nodes.values())
    if isinstance(samplers, Sampler):
        return dict.fromkeys(labels, samplers.streams)
    return {label: samplers[label].streams for label in labels if label in samplers}


def plan_request(phase: Phase, graph: ModelGraph, done: Collection[str] = ()) -> Request:
    """What a phase asks of a graph; `done` are the estimators that it has fitted by now.

    Raises:
        AnyaccelError: metrics, estimators or outputs that do not fit the graph.
    """
    learners = learners_of(phase, graph)
    wants = dict.fromkeys(upstream_nodes(learners, graph))
    for part in parts_of(phase):
        if isinstance(part, EvalPhase):
            wants.update(dict.fromkeys(kept_outputs(part, graph) if part is phase else _checked_outputs(part, graph)))
            judged = (metric.node for metric in metrics_of(phase, part, graph))
            wants.update(dict.fromkeys(node for node in judged if node not in learners))
    if isinstance(phase, FitPhase):
        wants = dict.fromkeys(upstream_nodes(next_to_fit(phase, graph, done), graph))
    return Request(
        phase=phase.label,
        accelerator=phase.accelerator,
        losses=all_losses(phase),
        custom_step=isinstance(phase, TrainPhase) and phase.step is not None,
        training=isinstance(phase, TrainPhase) and bool(phase.losses or not learners),
        wants=tuple(wants),
        strict=phase.strict,
        policy=phase.policy,
        streams=streams_of(phase, graph),
        learners=tuple(learners),
        devices=phase.devices,
        precision=phase.precision,
        matmul_precision=phase.matmul_precision,
        sharding=phase.sharding if isinstance(phase, TrainPhase) else None,
        **({"loss_scale": phase.loss_scale} if isinstance(phase, TrainPhase) else {}),
    )


def needed_sets(
    phase: Phase, plan: Plan, metrics: Sequence[BoundMetric], graph: ModelGraph, done: Collection[str] = ()
) -> Mapping[str, FeatureSet]:
    """The feature sets that a phase needs data of: for its nodes, for what is loaded, and for its metrics."""
    labels = {assignment.node for assignment in plan.assignments}
    if isinstance(phase, FitPhase):
        labels |= topology.ancestors(next_to_fit(phase, graph, done), graph.nodes)
    labels |= topology.ancestors(learners_of(phase, graph), graph.nodes)
    needed = set(topology.feature_sets(graph.nodes[label] for label in labels))
    needed |= {column.feature_set for column in plan.columns} | {metric.feature_set for metric in metrics}
    return {label: one for label, one in topology.feature_sets(graph.nodes.values()).items() if label in needed}
