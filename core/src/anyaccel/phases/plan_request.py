"""Plan request: what a phase asks of a graph: its parts, losses and metrics, wanted outputs, and the data it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.backend import Backend
from anyaccel.data import FeatureSet, Sampler
from anyaccel.graph import ModelGraph, Plan, Request, Resolution, resolve, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.training_outputs import training_only_inputs
from anyaccel.metrics import BoundMetric
from anyaccel.phases.evaluation import bind_metrics, measured_losses
from anyaccel.phases.outer_contexts import check_precision
from anyaccel.phases.process_groups import process_groups
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry


def losses_of(phase: PhaseSettings, part: PhaseSettings) -> tuple[AppliedLoss, ...]:
    """The losses of a phase, or of its validation, which are those of the training unless it has its own."""
    return part.losses or (phase.losses if part is not phase else ())


def evaluated_losses(phase: PhaseSettings, part: PhaseSettings, graph: ModelGraph) -> tuple[AppliedLoss, ...]:
    """The losses of `losses_of` that can be computed in evaluation: not those of outputs that only training has."""
    losses, extra = losses_of(phase, part), graph.shapes.training_only.values()
    left_out = training_only_inputs(losses, {name for names in extra for name in names})
    return tuple(loss for loss in losses if loss.label not in left_out)


def metrics_of(phase: PhaseSettings, part: PhaseSettings, graph: ModelGraph) -> list[BoundMetric]:
    """The metrics of an evaluation, bound; none of any other phase.

    Raises:
        ColumnError, GraphError, SpecError: a metric that cannot be bound.
    """
    losses = losses_of(phase, part)
    measured = measured_losses(losses, losses if part is phase else phase.all_losses)
    return bind_metrics(part, losses, graph, measured)


def _checked_outputs(validation: PhaseSettings, graph: ModelGraph) -> tuple[str, ...]:
    """None of the outputs that a validation names, which count where it is run on its own; they must exist."""
    for label in validation.outputs or ():
        if label not in graph.nodes:
            raise topology.unknown_node(f"phase {validation.label!r} names the node {label!r}", label, graph.nodes)
    return ()


def streams_of(phase: PhaseSettings, graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Names of the streams that may be read of each feature set; feature sets that are left out have only rows."""
    samplers = phase.sampled_by
    if samplers is None:
        return {}
    labels = topology.feature_sets(graph.nodes.values())
    if isinstance(samplers, Sampler):
        return dict.fromkeys(labels, samplers.streams)
    return {label: samplers[label].streams for label in labels if label in samplers}


def plan_request(phase: PhaseSettings, graph: ModelGraph, done: Collection[str] = ()) -> Request:
    """What a phase asks of a graph; `done` are the estimators that it has fitted by now.

    Raises:
        AnyaccelError: metrics, estimators or outputs that do not fit the graph.
    """
    learners = phase.learners(graph)
    wants = dict.fromkeys(topology.upstream_nodes(learners, graph.nodes))
    for part in phase.parts:
        wants.update(dict.fromkeys(part.kept_nodes(graph, done) if part is phase else _checked_outputs(part, graph)))
        judged = (metric.node for metric in metrics_of(phase, part, graph))
        wants.update(dict.fromkeys(node for node in judged if node not in learners))
    return Request(
        phase=phase.label,
        accelerator=phase.accelerator,
        losses=phase.all_losses,
        custom_step=phase.step is not None,
        training=phase.trains and bool(phase.losses or not learners),
        wants=tuple(wants),
        strict=phase.strict,
        policy=phase.policy,
        streams=streams_of(phase, graph),
        learners=tuple(learners),
        devices=phase.devices,
        precision=phase.precision,
        matmul_precision=phase.matmul_precision,
        sharding=phase.sharding,
        loss_scale=phase.loss_scale,
    )


def resolve_phase(
    phase: PhaseSettings,
    graph: ModelGraph,
    left: Mapping[Backend, OuterContexts],
    done: Collection[str] = (),
    known: Registry | None = None,
) -> tuple[Resolution, tuple[str, ...]]:
    """Decide where a phase is computed, and check that it can be; nothing moves.

    Args:
        phase: bound.
        graph: it runs on.
        left: the caller's contexts, which were left.
        done: the estimators that it has fitted by now.
        known: has the devices; None for those of this machine.

    Returns:
        the plan with what carries it out, and labels of the estimators that learn in each step.

    Raises:
        AnyaccelError: the phase cannot run.
    """
    request = plan_request(phase, graph, done)
    resolution = resolve(graph, request, known)
    check_precision(phase, resolution.plan, left)
    process_groups(phase, graph).check(phase, resolution, request.learners)
    notes = (*resolution.plan.notes, *phase.plan_notes(graph, done))
    return replace(resolution, plan=replace(resolution.plan, notes=notes)), request.learners


def needed_sets(
    plan: Plan, metrics: Sequence[BoundMetric], graph: ModelGraph, on_host: Collection[str]
) -> Mapping[str, FeatureSet]:
    """The feature sets that a phase needs data of: for nodes, estimators, what is loaded, and metrics."""
    labels = {assignment.node for assignment in plan.assignments}
    labels |= topology.ancestors(on_host, graph.nodes)
    needed = set(topology.feature_sets(graph.nodes[label] for label in labels))
    needed |= {column.feature_set for column in plan.columns} | {metric.feature_set for metric in metrics}
    return {label: one for label, one in topology.feature_sets(graph.nodes.values()).items() if label in needed}
