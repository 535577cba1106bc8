"""Builds the pipeline of a phase: a program for each segment, on a device, on several, or as one of many replicas."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.adapter.replicated_program import build_replicated
from anyaccel.backend import ComputingBackend, Program
from anyaccel.graph import ModelGraph, Plan, Resolution
from anyaccel.phases.distributed.replicated_step import GlobalBatchReplicas
from anyaccel.phases.distributed.replicated_training import ReplicatedTraining
from anyaccel.phases.distributed.sharding import divides, whole_nodes
from anyaccel.phases.estimator_partial_fit import PartialFitEstimators
from anyaccel.phases.executor.custom_step import CustomStep
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.executor.stage import PipelineStage, StepReplicas
from anyaccel.phases.settings import PhaseSettings
from anyaccel.results.events import LogEvent
from anyaccel.segment import Segment


def build_pipeline(
    resolution: Resolution,
    graph: ModelGraph,
    phase: PhaseSettings,
    learners: PartialFitEstimators,
    log_event: LogEvent,
    replicated: ReplicatedTraining | None = None,
) -> Pipeline:
    """The programs of a phase, over the models as they were placed; if one cannot be built, those before it are closed.

    Args:
        resolution: the segments, and what computes each.
        graph: whose models and optimizer states they are of.
        phase: how they train.
        learners: estimators that learn from every step.
        log_event: is told what programs have to tell.
        replicated: the other replicas of this process; None where there are none.
    """
    stages: list[PipelineStage] = []
    try:
        for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
            segment = replace(_with_placed_models(segment, graph), compile=phase.compile)
            names = (name for operation in segment.operations for name in operation.outputs)
            has_gradient = any(name in resolution.live for name in names)
            program = _program(backend, segment, resolution.plan, phase, replicated)
            stages.append(PipelineStage(segment, backend, program, has_gradient))
    except BaseException:
        Pipeline(stages).close({})
        raise
    step = phase.step
    custom_step = None if step is None else CustomStep(stages[0], step, resolution.step_columns, phase.label)
    step_replicas: StepReplicas | None = None if replicated is None or replicated.fixed_order else replicated
    if replicated is not None and replicated.global_batches:
        step_replicas = GlobalBatchReplicas(
            replicated.compare_step, replicated.end_step, multi_step=not replicated.compares_batches
        )
    return Pipeline(stages, learners or None, log_event, custom_step, step_replicas)


def _program(
    backend: ComputingBackend, segment: Segment, plan: Plan, phase: PhaseSettings, replicated: ReplicatedTraining | None
) -> Program:
    if replicated is not None:
        return replicated.build(segment, backend)
    if not (plan.replicas or phase.deterministic):
        return backend.build(segment)
    devices = plan.replicas or (segment.operations[0].device,)
    return build_replicated(
        backend,
        segment,
        devices,
        deterministic=phase.deterministic,
        divided=divides(plan),
        whole=whole_nodes(plan),
    )


def _with_placed_models(segment: Segment, graph: ModelGraph) -> Segment:
    operations = tuple(
        replace(operation, model=getattr(graph[operation.label], "model", None)) for operation in segment.operations
    )
    states = {label: graph.optimizer_states[label] for label in segment.states}
    frozen = {label: getattr(graph[label], "model", None) for label in segment.frozen}
    return replace(segment, operations=operations, states=states, frozen=frozen)
