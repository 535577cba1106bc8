"""Prepare: everything that is known of a phase before anything moves: rows, metrics, epochs, columns in host memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from anyaccel import rng
from anyaccel.adapter.outer_contexts import OuterContexts, left_contexts
from anyaccel.adapter.single_rows import SingleRows
from anyaccel.backend import Backend
from anyaccel.data import BatchSource, MapSource, Rows, Sampler, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.graph import Column, ModelGraph, Plan, Request, Resolution, resolve, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import ModelNode
from anyaccel.graph.resolve import check_stream
from anyaccel.graph.shape_inference import training_only_inputs
from anyaccel.metrics import BoundMetric
from anyaccel.phases.evaluation import bind_metrics, measured_losses
from anyaccel.phases.loading.epoch_plan import EpochPlan, EvaluationRows, TrainingEpochs
from anyaccel.phases.loading.host_columns import check_resident, make_host_columns, target_ranges
from anyaccel.phases.loading.input_data import InputData, PhaseSources, check_same_units, input_data
from anyaccel.phases.loading.residency import (
    LoaderFactory,
    RowsLoaderFactory,
    batch_source_loaders,
    map_source_loaders,
)
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.process_groups import ProcessGroups
from anyaccel.phases.row_alignment import combinations_of
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry
from anyaccel.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPart:
    """A phase, or its validation.

    Attributes:
        part: The phase or the validation.
        rows: Its data by feature set, as passed by the user; an example of a source of batches.
        evaluated: Rows in the order of an evaluation; otherwise as passed.
        metrics: Bound metrics.
        factory: Factory of the loader.
        is_shared: Whether it is an evaluation that other processes compute the rest of.
    """

    part: PhaseSettings
    rows: Mapping[str, Rows]
    evaluated: EvaluationRows
    metrics: Sequence[BoundMetric]
    factory: LoaderFactory
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPart:
    """The data that a part uses, without their values; `epochs` is None for a source of batches."""

    part: PhaseSettings
    data: InputData
    evaluated: EvaluationRows
    metrics: Sequence[BoundMetric]
    epochs: EpochPlan | None


def prepare(
    phase: PhaseSettings,
    resolution: Resolution,
    graph: ModelGraph,
    on_host: Collection[str],
    opened: PhaseSources,
    groups: ProcessGroups,
    group: ProcessGroup,
) -> list[PreparedPart]:
    """Prepare a phase and its validation; the phase comes first.

    Args:
        phase, resolution, graph: The phase, its resolution and its graph.
        on_host: Labels of the estimators that learn in the phase, or are fitted.
        opened: Sources that are opened, and those that were read for this phase before.
        groups: What decides about processes and devices of the phase.
        group: Processes that compute the phase; this one takes its part of each batch.

    Raises:
        AnyaccelError: data, samplers, metrics or columns that do not fit.
    """
    plan, seed = resolution.plan, rng.key(graph.seed, phase.label)
    feature_sets = topology.feature_sets(graph.nodes.values())
    parts = []
    for part in phase.parts:
        parts.append(_draw(phase, part, plan, graph, on_host, groups, read=True, opened=opened))
    if group.size == 1 and phase.trains and phase.step is None:
        drawn = parts[0]
        first: dict[str, int] = {}  # by feature set: the first step with one row of it
        n_before, largest, epochs = 0, 0, drawn.epochs
        for steps in epochs.steps if isinstance(epochs, TrainingEpochs) else ():
            largest = max(largest, steps.size.at_once)
            for name, (start, stop) in steps.rows.items():
                at_once = min(steps.size.at_once, stop - start)
                if 1 in (at_once, (stop - start) % at_once):
                    first.setdefault(name, n_before + 1)
            n_before += steps.n_steps
        for segment, backend in zip(resolution.segments, resolution.backends, strict=True) if first else ():
            if (single_rows := backend.capability(SingleRows)) is None:
                continue
            for operation in segment.operations:
                if not operation.trainable or operation.model is None:
                    continue
                above = topology.ancestors([operation.label], graph.nodes)
                sets = topology.feature_sets(graph.nodes[label] for label in above)
                single = next((first[name] for name in sets if name in first), None)
                if single is None:
                    continue
                reason = single_rows.single_row_reason(operation, resolution.shapes.wanted(operation.label))
                if reason:
                    n_rows = min(map(len, drawn.data.rows.values()))
                    sizes = (*range(largest - 1, 1, -1), *range(largest + 1, n_rows + 1))
                    size = next((size for size in sizes if n_rows % size != 1), None)
                    advice = "use more rows" if size is None else f"draw batches of {size} rows"
                    samplers = phase.sampler.values() if isinstance(phase.sampler, Mapping) else [phase.sampler]
                    order = "shuffle=True, " if any(getattr(sampler, "shuffle", False) for sampler in samplers) else ""
                    drop = f", or leave that one out: sampler=SimpleSampler({largest}, {order}drop_last=True)"
                    raise PhaseError(
                        f"phase {phase.label!r}: step {single} of each epoch has a batch of one row, and node "
                        f"{operation.label!r} cannot be trained on it: {reason}",
                        hint=advice + (drop if 1 < largest <= n_rows else ""),
                    )
    if phase.trains:
        source = parts[0].data.source
        group.choose_rows(in_memory=source is None, batches=isinstance(source, BatchSource) and phase.accumulate == 1)
    prepared = []
    for drawn in parts:
        part, whole = drawn.part, drawn.epochs
        is_shared = not part.trains and whole is not None and group.shares_evaluation(whole)
        epochs = whole
        if whole is not None and (is_shared or part.trains):
            epochs = group.share_evaluation(whole) if is_shared else group.share_epochs(whole)
        in_parts = part.accumulate > 1 or (part.trains and group.size > 1)  # gradients are then weighted by rows
        ranges = target_ranges(resolution, accumulates=in_parts)
        rows, source = drawn.data.rows, drawn.data.source
        factory: LoaderFactory
        if source is None:
            assert epochs is not None
            if part.residency == "resident":
                check_resident(part.label, plan.columns)
            columns = partial(make_host_columns, plan, rows, ranges, feature_sets)
            factory = RowsLoaderFactory(plan, columns, epochs)
        else:
            # fails before anything moves
            make_host_columns(plan, dict.fromkeys(rows, source.example), ranges, feature_sets)
            computing = group if part.trains else SingleProcess()
            if isinstance(source, BatchSource):
                share = computing.share_batches(source.label)
                factory = batch_source_loaders(plan, source, ranges, part.accumulate, seed, share)
            else:
                assert isinstance(source, MapSource) and epochs is not None
                # what it draws while reading: other processes read other rows
                own_seed = rng.key(seed, *computing.random_key) if computing.random_key else seed
                factory = map_source_loaders(plan, source, ranges, epochs, own_seed)
        prepared.append(
            PreparedPart(
                part=part,
                rows=rows,
                evaluated=drawn.evaluated,
                metrics=drawn.metrics,
                factory=factory,
                is_shared=is_shared,
            )
        )
    return prepared


def draw_parts(
    phase: PhaseSettings, plan: Plan, graph: ModelGraph, on_host: Collection[str], groups: ProcessGroups
) -> list[DrawnPart]:
    """Return the data that a phase and its validation use, to the extent that this is known without the values.

    Raises:
        AnyaccelError: data, samplers or metrics that do not fit.
    """
    return [_draw(phase, part, plan, graph, on_host, groups, read=False, opened=PhaseSources()) for part in phase.parts]


def _draw(
    phase: PhaseSettings,
    part: PhaseSettings,
    plan: Plan,
    graph: ModelGraph,
    on_host: Collection[str],
    groups: ProcessGroups,
    *,
    read: bool,
    opened: PhaseSources,
) -> DrawnPart:
    metrics = metrics_of(phase, part, graph)
    columns: list[Column | BoundMetric] = [*plan.columns, *metrics]
    # the feature sets of nodes, of estimators, of what is loaded, and of metrics
    labels = topology.ancestors(on_host, graph.nodes)
    for assignment in plan.assignments:
        labels.add(assignment.node)
    needed = set(topology.feature_sets(graph.nodes[label] for label in labels))
    used = dict[str, set[str]]()
    streams = set[tuple[str, str]]()
    for column in columns:
        needed.add(column.feature_set)
        used.setdefault(column.feature_set, set()).update(column.columns)
        streams.add((column.feature_set, column.stream))
    sets = topology.feature_sets(graph.nodes.values())
    for label in sets.keys() - needed:
        del sets[label]
    samplers = part.sampled_by
    if isinstance(samplers, Mapping):
        unknown = next((name for name in samplers if name not in sets), None)
        missing = [name for name in sets if name not in samplers]
        if unknown is not None:
            raise PhaseError(
                f"phase {part.label!r} has a sampler for {unknown!r}, which is not one of its feature sets",
                available=", ".join(sets),
                hint=did_you_mean(unknown, sets),
            )
        if missing and part.trains:
            raise PhaseError(
                f"phase {part.label!r} has no sampler for {', '.join(missing)}",
                cause=f"it has samplers for {', '.join(samplers)}",
                hint=f"add {missing[0]!r} to sampler={{...}}",
            )
    data = input_data(
        part.label,
        part.data,
        sets,
        may_stream=part.trains,
        equal_lengths=part.equal_lengths or isinstance(samplers, Sampler),
        read=read,
        opened=opened,
    )
    for name, rows in data.rows.items():  # estimators may take any target
        taken = set(sets[name].targets) if on_host else used.get(name, set())
        check_same_units(part.label, rows, sets[name], taken)
    if data.source is not None:
        if on_host:
            raise PhaseError(
                f"phase {phase.label!r} streams the source {data.source.label!r}, but estimators cannot "
                "learn from a source",
                cause=f"nodes that learn by partial_fit: {', '.join(on_host)}",
                hint="freeze them, or read the source into memory: FeatureSet.from_dict(...)",
            )
        if phase.residency == "resident":
            raise PhaseError(
                f"phase {phase.label!r} has residency='resident', but its data are the source {data.source.label!r}",
                cause="a source is streamed",
                hint="leave residency out, or read the source into memory: FeatureSet.from_dict(...)",
            )
        if isinstance(data.source, BatchSource):
            own_samplers = list(part.sampler.values()) if isinstance(part.sampler, Mapping) else [part.sampler]
            chosen = [type(sampler).__name__ for sampler in own_samplers if type(sampler) is not SimpleSampler]
            if chosen:
                raise PhaseError(
                    f"phase {part.label!r} has a {chosen[0]}, but its data are the source {data.source.label!r}",
                    cause="a source of batches decides which rows make a batch",
                    hint="leave the sampler out, use a MapSource, or read the source into memory: "
                    "FeatureSet.from_dict(...)",
                )
            size, usual = getattr(part.data, "batch_size", None), type(part).default_batch_size
            other = next((it.batch_size for it in own_samplers if it.batch_size not in (usual, size)), None)
            if part.trains and isinstance(size, int) and other is not None:
                raise PhaseError(
                    f"phase {part.label!r} has batch_size={other}, but its data come in batches of {size} rows",
                    hint="leave batch_size out, and set the size where you create the batches",
                )
    evaluated, epochs = EvaluationRows(data.rows), None
    if not isinstance(data.source, BatchSource):
        combined = []
        if len(sets) > 1:
            combined = list(combinations_of(on_host, phase.all_losses, metrics, plan, graph))
        for feature_set, stream in sorted(streams):
            sampler = samplers.get(feature_set) if isinstance(samplers, Mapping) else samplers
            if sampler is not None:
                check_stream(stream, feature_set, sampler.streams)
        evaluated, epochs = part.draw(data.rows, combined)
        if part.trains and len(plan.replicas) > 1:
            groups.check_epochs(part, plan, epochs)
    return DrawnPart(part=part, data=data, evaluated=evaluated, metrics=metrics, epochs=epochs)


# -- Plan request: what a phase asks of a graph: its parts, losses and metrics, wanted outputs, and the data it needs


def losses_of(phase: PhaseSettings, part: PhaseSettings) -> tuple[AppliedLoss, ...]:
    """Return the losses of a phase, or of its validation, which uses those of the training unless it has its own."""
    return part.losses or (phase.losses if part is not phase else ())


def evaluated_losses(phase: PhaseSettings, part: PhaseSettings, graph: ModelGraph) -> tuple[AppliedLoss, ...]:
    """Return the losses of `losses_of` that can be computed in evaluation: not those of outputs that only training
    has.
    """
    losses, extra = losses_of(phase, part), graph.shapes.training_only.values()
    left_out = training_only_inputs(losses, {name for names in extra for name in names})
    return tuple(loss for loss in losses if loss.label not in left_out)


def metrics_of(phase: PhaseSettings, part: PhaseSettings, graph: ModelGraph) -> list[BoundMetric]:
    """Return the metrics of an evaluation, bound; none of any other phase.

    Raises:
        ColumnError, GraphError, SpecError: a metric that cannot be bound.
    """
    if part is phase and not part.metrics:  # its losses are trained, and nothing else is measured
        return []
    losses = losses_of(phase, part)
    measured = measured_losses(losses, losses if part is phase else phase.all_losses)
    return bind_metrics(part, losses, graph, measured)


def streams_of(phase: PhaseSettings, graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Return names of the streams that may be read of each feature set; feature sets that are left out have only
    rows.
    """
    samplers = phase.sampled_by
    if samplers is None:
        return {}
    labels = topology.feature_sets(graph.nodes.values())
    if isinstance(samplers, Sampler):
        return dict.fromkeys(labels, samplers.streams)
    return {label: samplers[label].streams for label in labels if label in samplers}


def plan_request(phase: PhaseSettings, graph: ModelGraph, done: Collection[str] = ()) -> Request:
    """Return the request of a phase to a graph; `done` are the estimators fitted so far.

    Raises:
        AnyaccelError: metrics, estimators or outputs that do not fit the graph.
    """
    learners = phase.learners(graph)
    wants = dict.fromkeys(topology.upstream_nodes(learners, graph.nodes))
    for part in phase.parts:
        if part is phase:
            wants.update(dict.fromkeys(part.kept_nodes(graph, done)))
        for label in part.outputs or () if part is not phase else ():  # they apply only when a validation runs alone
            if label not in graph.nodes:
                raise topology.unknown_node(f"phase {part.label!r} names the node {label!r}", label, graph.nodes)
        for metric in metrics_of(phase, part, graph):
            if metric.node not in learners:
                wants[metric.node] = None
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
    groups: ProcessGroups,
    left: Mapping[Backend, OuterContexts],
    done: Collection[str] = (),
    known: Registry | None = None,
) -> tuple[Resolution, tuple[str, ...]]:
    """Decide where a phase is computed, and check that it can be; nothing moves.

    Args:
        phase: The bound phase.
        graph: The graph that it runs on.
        groups: What decides about processes and devices of the phase.
        left: The caller's contexts, which were left.
        done: Estimators fitted so far.
        known: The devices; None for those of this machine.

    Returns:
        The plan with its segments, and labels of the estimators that learn in each step.

    Raises:
        AnyaccelError: the phase cannot run.
    """
    request = plan_request(phase, graph, done)
    resolution = resolve(graph, request, known)
    for assignment in resolution.plan.assignments:  # without a precision, it must not be in a context that sets one
        contexts = left.get(assignment.backend)
        context, precision = ("", "") if contexts is None else contexts.casts.get(assignment.device.kind, ("", ""))
        if not context or assignment.precision:
            continue
        if phase.step is not None:
            hint = f"run the phase outside this context, and enter it in the step: `with {context}:`"
        else:
            hint = f"run the phase outside this context, and set {type(phase).__name__}(..., precision={precision!r})"
        raise PhaseError(
            f"phase {phase.label!r} runs inside {context}, and node {assignment.node!r} on {assignment.device}; the "
            "context caches the weights of the first step until it ends, and also casts losses",
            hint=hint,
        )
    groups.check(phase, resolution, request.learners)
    notes = (*resolution.plan.notes, *phase.plan_notes(graph, done))
    return replace(resolution, plan=replace(resolution.plan, notes=notes)), request.learners


# -- Outer contexts: the caller's contexts around a phase, such as `torch.autocast`, are left, or refused --------------


def leave_contexts(graph: ModelGraph) -> AbstractContextManager[Mapping[Backend, OuterContexts]]:
    """Return `left_contexts` of all backends of the frameworks of a graph."""
    frameworks = set[str]()
    for node in graph.nodes.values():
        if isinstance(node, ModelNode):
            frameworks.update([node.framework] if node.framework else registry().owners(node.model))
    return left_contexts(backend for backend in registry().backends_in_use if backend.framework in frameworks)
