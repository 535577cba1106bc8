"""Builds the pipeline of a phase: a program for each segment."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.graph import ModelGraph, Resolution
from anyaccel.phases.estimator_partial_fit import PartialFitEstimators
from anyaccel.phases.executor.custom_step import CustomStep
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.settings import PhaseSettings
from anyaccel.results.events import LogEvent
from anyaccel.segment import Segment


def build_pipeline(
    resolution: Resolution,
    graph: ModelGraph,
    phase: PhaseSettings,
    learners: PartialFitEstimators,
    log_event: LogEvent,
    group: ProcessGroup,
) -> Pipeline:
    """The programs of a phase, over the models as they were placed; if one cannot be built, those before it are closed.

    Args:
        resolution: the segments, and what computes each.
        graph: whose models and optimizer states they are of.
        phase: how they train.
        learners: estimators that learn from every step.
        log_event: is told what programs have to tell.
        group: the processes that compute the phase.
    """
    stages: list[PipelineStage] = []
    try:
        for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
            segment = replace(_with_placed_models(segment, graph), compile=phase.compile)
            names = (name for operation in segment.operations for name in operation.outputs)
            has_gradient = any(name in resolution.live for name in names)
            program = group.build(segment, backend)
            stages.append(PipelineStage(segment, backend, program, has_gradient))
    except BaseException:
        Pipeline(stages).close({})
        raise
    step = phase.step
    custom_step = None if step is None else CustomStep(stages[0], step, resolution.step_columns, phase.label)
    return Pipeline(stages, [learners] if learners else [], log_event, custom_step, group.step)


def _with_placed_models(segment: Segment, graph: ModelGraph) -> Segment:
    operations = tuple(
        replace(operation, model=getattr(graph[operation.label], "model", None)) for operation in segment.operations
    )
    states = {label: graph.optimizer_states[label] for label in segment.states}
    frozen = {label: getattr(graph[label], "model", None) for label in segment.frozen}
    return replace(segment, operations=operations, states=states, frozen=frozen)
