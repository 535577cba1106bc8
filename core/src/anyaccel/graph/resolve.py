"""Resolve: from a graph and a phase's request to a plan, and the segments that carry it out. Nothing moves here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

from anyaccel.data import Reference
from anyaccel.device import Device
from anyaccel.errors import GraphError, PhaseError
from anyaccel.graph import input_columns, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.device_assignment import DeviceAssigner
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.input_columns import ColumnSelection, ColumnTable
from anyaccel.graph.loss_binding import LossBinder, check_patterns, check_supported
from anyaccel.graph.nodes import ModelNode, Node, layout_of, refuse_settings
from anyaccel.graph.plan import Plan
from anyaccel.graph.plan_entries import Assignment, Column, Part
from anyaccel.graph.precision_assignment import (
    check_loss_scale,
    float32_notes,
    matmul_precisions,
    segment_precision,
    with_precision,
)
from anyaccel.graph.resolution import Request, Resolution
from anyaccel.graph.shape_inference import Shapes, cast, is_floating
from anyaccel.graph.training_outputs import (
    check_in_training,
    check_not_taken,
    check_training_outputs,
    infer_training,
    matched,
    training_only_inputs,
    training_results,
    values_read,
    with_batch,
)
from anyaccel.graph.transfers import Crossings
from anyaccel.registry import Registry, registry
from anyaccel.segment import (
    LossTerm,
    NodeState,
    Operation,
    OutputSpec,
    ParameterGroup,
    Segment,
    TensorSpec,
    positional_outputs,
)


def resolve(graph: ModelGraph, request: Request, known: Registry | None = None) -> Resolution:
    """Decide everything about a phase; `known` is the registry of backends, by default that of the process.

    Raises:
        AnyaccelError: the phase cannot run; nothing has moved.
    """
    return _Resolver(graph, request, known or registry()).resolve()


class _Resolver:
    """One resolution."""

    def __init__(self, graph: ModelGraph, request: Request, known: Registry) -> None:
        self._graph = graph
        self._request = request
        self._registry = known
        self._nodes = graph.nodes
        self._shapes = graph.shapes
        self._assigned: dict[str, Assignment] = {}
        extra = {name for names in self._shapes.training_only.values() for name in names}
        self._training_only = training_only_inputs(request.losses, extra)
        if not request.training:
            evaluated = tuple(loss for loss in request.losses if loss.label not in self._training_only)
            self._request = replace(request, losses=evaluated)

    def resolve(self) -> Resolution:
        """Decide, in order: which nodes take part, where, which are trained, what is loaded, and the segments."""
        request, active = self._request, self._active()
        self._assigned = self._assignments(active)
        if request.training:
            self._assigned = {
                label: with_sharding(self._nodes[label], assignment, request)
                for label, assignment in self._assigned.items()
            }
            check_shared_models(request.phase, self._nodes, self._assigned)
            check_loss_scale(self._assigned)
        table = input_columns.ColumnTable(request.streams)
        own = self._step_columns(table)
        builder = self._builder(self._in_training() if request.training else [], table)
        parts = self._partition()
        first = [self._assigned[labels[0]] for labels in parts]
        segments = tuple(
            builder.segment(f"{assignment.framework}:{i}", labels)
            for i, (assignment, labels) in enumerate(zip(first, parts, strict=True))
        )
        plan = Plan(
            phase=request.phase,
            graph=self._graph.label,
            assignments=tuple(self._assigned.values()),
            columns=tuple(builder.columns.values()),
            crossings=tuple(Crossings(self._assigned, self._shapes, builder.live, self._registry).of(segments)),
            parts=tuple(map(_part, segments, first, parts)),
            notes=tuple(self._notes(active)),
            replicas=request.devices if len(request.devices) > 1 else (),
        )
        backends = tuple(assignment.backend for assignment in first)
        return Resolution(
            plan=plan,
            segments=segments,
            backends=backends,
            live=builder.live,
            shapes=self._shapes,
            step_columns=own,
            matmul_precisions=matmul_precisions(request.phase, request.matmul_precision, self._assigned),
        )

    def _assignments(self, active: set[str]) -> dict[str, Assignment]:
        """Where each node runs, in which precision, and with which parameters in host memory."""
        request = self._request
        assigned = DeviceAssigner(
            nodes=self._nodes,
            shapes=self._shapes,
            registry=self._registry,
            accelerator=request.accelerator,
            strict=request.strict,
            policy=request.policy,
            replicas=request.devices,
        ).assign(active)
        computed = {label: with_precision(self._nodes[label], each, request) for label, each in assigned.items()}
        for label, assignment in computed.items():
            node = self._nodes[label]
            computed[label] = layout_of(node).assign(node, assignment, request, self._registry, self._shapes)
        return computed

    # -- which nodes take part, and which are trained --------------------------------------------------------------

    def _active(self) -> set[str]:
        request = self._request
        if request.training and not request.losses and not request.custom_step:
            raise PhaseError(
                f"phase {request.phase!r} trains, but has no loss and no estimator with partial_fit to train",
                hint=self._training_hint(),
            )
        wanted = [*request.wants, *self._loss_nodes()]
        for label in wanted:
            self._check_computable(label)
        return topology.ancestors(wanted, self._nodes)

    def _training_hint(self) -> str:
        """What to do where there is neither a loss nor an estimator that learns."""
        models = [label for label, node in self._nodes.items() if node.kind.fixed]
        frozen = [label for label in models if self._nodes[label].kind.learns_from_steps]
        loss = "give losses=[AppliedLoss('mse', on='NODE')]" if len(models) < len(self._nodes) else ""
        if frozen:
            return " or ".join(filter(None, (f"{frozen[0]!r} is frozen: graph.unfreeze({frozen[0]!r})", loss)))
        if models:
            return " or ".join(filter(None, (f"{models[0]!r} has no partial_fit: run a FitPhase for it", loss)))
        return loss

    def _loss_nodes(self) -> list[str]:
        """Labels of the nodes whose outputs are inputs of losses; of all nodes, if steps are the user's own."""
        if self._request.custom_step:
            return list(self._nodes)
        named = [text.partition(".")[0] for loss in self._request.losses for text in loss.inputs]
        return [*(loss.on for loss in self._request.losses), *(label for label in named if label in self._nodes)]

    def _check_computable(self, label: str) -> None:
        if label not in self._nodes:
            raise topology.unknown_node(f"phase {self._request.phase!r} names the node {label!r}", label, self._nodes)
        if self._shapes.outputs[label]:
            return
        unfitted = topology.ancestors([label], self._nodes) & set(self._shapes.unfitted)
        first = next(other for other in self._shapes.order if other in unfitted)
        through = "" if first == label else f"{label!r}, which depends on "
        raise PhaseError(
            f"phase {self._request.phase!r} needs {through}{first!r}, an estimator that is not fitted",
            hint=f"run a FitPhase first, FitPhase('fit', data=..., nodes={first!r}); a state or configuration that "
            "was loaded has no estimators",
        )

    def _in_training(self) -> list[str]:
        """The nodes in training mode: not frozen, or frozen in this mode; those without parameters may be random."""
        needed = topology.ancestors(self._loss_nodes(), self._nodes)
        assigned = {label: assignment for label, assignment in self._assigned.items() if label in needed}
        labels = [label for label, assignment in assigned.items() if not assignment.frozen]
        if not any(assigned[label].parameters for label in labels):
            reasons = {label: "frozen" if each.frozen else "no parameters" for label, each in assigned.items()}
            hint = "unfreeze a node that a loss depends on"
            if not any(each.frozen for each in assigned.values()):
                hint = "give a model parameters that can be trained; layers in a plain list are mostly no part of it"
            shown = ", ".join(f"{label} ({reason})" for label, reason in reasons.items())
            raise PhaseError(f"phase {self._request.phase!r} has nothing to train: {shown}", hint=hint)
        self._check_not_frozen(labels)
        frozen = [label for label in assigned if self._frozen_in_training(label)]
        self._check_modes([*labels, *frozen])
        check_in_training(self._training_only, [*labels, *frozen])
        self._check_training_outputs([*labels, *frozen])
        return [*labels, *frozen]

    def _frozen_in_training(self, label: str) -> bool:
        node = self._nodes[label]
        return isinstance(node, ModelNode) and node.frozen and node.frozen_mode == "train"

    def _check_modes(self, in_training: Sequence[str]) -> None:
        """Modes of their own are kept only where the layers of a framework have such."""
        for label in in_training:
            assignment = self._assigned[label]
            if getattr(self._nodes[label], "modes", "train") != "train" and not assignment.backend.keeps_modes:
                raise GraphError(
                    f"node {label!r}: modes='as_is' is not supported for models of {assignment.framework}, which run "
                    "in training or evaluation mode as a whole",
                    available="modes='train'",
                    hint=f"leave modes out, or freeze the node: graph.freeze({label!r})",
                )

    def _check_training_outputs(self, in_training: Sequence[str]) -> None:
        """What a model gives in training is inferred once for a built graph."""
        shapes = self._shapes
        taken = values_read(self._request.losses, [shapes.inputs[label] for label in self._assigned])
        for label in in_training:
            node = self._nodes[label]
            if not isinstance(node, ModelNode) or not shapes.outputs[label] or node.modes == "as_is":
                continue
            if label not in shapes.training:
                backend = self._assigned[label].backend
                shapes.training[label] = infer_training(node, backend, shapes.inputs[label], shapes.wanted(label))
            extra = len(shapes.training_only.get(label, ()))
            returned, training = shapes.returned[label], shapes.training[label]
            check_training_outputs(label, returned, extra, training)
            check_not_taken(label, shapes.outputs[label], matched(returned, training) or (), taken)

    def _check_not_frozen(self, in_training: Sequence[str]) -> None:
        """A model that one node trains must not be that of a frozen node, which would change."""
        frozen = {label for label, node in self._nodes.items() if isinstance(node, ModelNode) and node.frozen}
        for label in in_training:
            twin = next((other for other in frozen if self._model(other) is self._model(label)), None)
            if twin is not None:
                raise GraphError(
                    f"node {label!r} is trained, and its model is also that of node {twin!r}, which is frozen",
                    hint=f"freeze both, graph.freeze({label!r}), or give {twin!r} a copy: copy.deepcopy(model)",
                )

    def _live(self, trained: Sequence[str]) -> frozenset[str]:
        """Names of the values through which gradients flow."""
        live: set[str] = set()
        needed = topology.ancestors(self._loss_nodes(), self._nodes)
        for label in (label for label in self._assigned if label in needed):
            before = live & set(topology.parents(self._nodes[label], self._nodes))
            if before and not getattr(self._model(label), "differentiable", True):
                raise GraphError(
                    f"node {label!r} is not differentiable and is between a loss and {', '.join(sorted(before))}, "
                    "which is trained",
                    hint="freeze what comes before it, or let no loss depend on it",
                )
            if label in trained or before:
                live.add(label)
        given = (self._shapes.outputs, self._shapes.training_only)
        return frozenset(name for label in live for names in given for name in names.get(label, ()))

    def _groups(self, trained: Iterable[str]) -> tuple[ParameterGroup, ...]:
        groups: dict[str, ParameterGroup] = {}
        for label in trained:
            node = self._nodes[label]
            own = node.optimizer if isinstance(node, ModelNode) else None
            optimizer = own or self._graph.optimizer
            if optimizer is None:
                raise PhaseError(
                    f"node {label!r} is trained and has no optimizer",
                    hint="give one to the graph, ModelGraph(..., optimizer='adam'), or to the node, or freeze it",
                )
            check_supported(label, optimizer, self._assigned[label].backend)
            self._check_trainable(label)
            name = self._first_with_model(label) if own else ".graph"  # which is the label of no node
            group = groups.get(name, ParameterGroup(name, optimizer, ()))
            groups[name] = replace(group, nodes=(*group.nodes, label))
        for group in groups.values():
            if group.optimizer.groups:
                check_patterns(group.optimizer, [name for label in group.nodes for name in self._parameters(label)])
        return tuple(groups.values())

    def _parameters(self, label: str) -> list[str]:
        return list(self._assigned[label].backend.parameters(self._model(label)))

    def _check_trainable(self, label: str) -> None:
        model = self._model(label)
        reason = "" if model is None else self._assigned[label].backend.untrainable_reason(model)
        if reason:
            raise PhaseError(
                f"node {label!r} cannot be trained: {reason}",
                hint="leave that out, or train the model by its framework's own loop and freeze the node: "
                f"graph.freeze({label!r})",
            )

    def _first_with_model(self, label: str) -> str:
        return next(other for other in self._nodes if self._model(other) is self._model(label))

    def _model(self, label: str) -> object:
        return getattr(self._nodes[label], "model", None)

    # -- what is loaded, and the segments --------------------------------------------------------------------------

    def _builder(self, in_training: Sequence[str], table: input_columns.ColumnTable) -> SegmentBuilder:
        learning = (label for label in in_training if not self._assigned[label].frozen)
        trained = [label for label in learning if self._assigned[label].parameters]
        inputs = {label: self._inputs(label, table) for label in self._assigned}
        binder = LossBinder(self._nodes, self._shapes, self._assigned, table)
        return SegmentBuilder(
            nodes=self._nodes,
            shapes=self._shapes,
            assigned=self._assigned,
            inputs=inputs,
            terms=tuple(map(binder.term, self._request.losses)),
            columns={column.name: column for column in table.columns},
            groups=self._groups(trained),
            in_training=frozenset(in_training),
            live=self._live(trained),
            wants=self._request.wants,
            states=self._graph.optimizer_states,
            request=self._request,
        )

    def _step_columns(self, table: input_columns.ColumnTable) -> dict[str, str]:
        if not self._request.custom_step:
            return {}
        check_custom_step(self._request.phase, list(self._assigned.values()))
        return step_columns(table, self._nodes, self._shapes, self._assigned)

    def _inputs(self, label: str, table: input_columns.ColumnTable) -> tuple[str, ...]:
        """Names of a node's inputs, with columns in the form in which this node takes them."""
        names: list[str] = []
        for upstream in self._nodes[label].upstreams:
            if isinstance(upstream, Reference):
                column = input_columns.feature_column(table, upstream, self._shapes, self._assigned[label])
                names.append(column.name)
            else:
                names.extend((upstream,) if "." in upstream else self._shapes.outputs[upstream])
        return tuple(names)

    def _partition(self) -> list[list[str]]:
        owners = {label: id(assignment.backend) for label, assignment in self._assigned.items()}
        parents = {label: self._depends_on(label) for label in self._assigned}
        parts = cut(list(TopologicalSorter(parents).static_order()), owners, parents)
        self._check_loss_order(parts)
        part_of_model: dict[int, int] = {}
        for i, part in enumerate(parts):
            for label in part:
                model = self._model(label)
                if model is not None and part_of_model.setdefault(id(model), i) != i:
                    raise GraphError(
                        f"node {label!r} shares its model with a node of another segment",
                        hint="give it a model of its own",
                    )
        return parts

    def _depends_on(self, label: str) -> list[str]:
        """A node's upstreams, and the other nodes whose outputs are inputs of the losses on it."""
        parents = list(topology.parents(self._nodes[label], self._nodes))
        for loss in self._request.losses:
            for other in self._compared(loss) if loss.on == label else ():
                if label not in topology.ancestors([other], self._nodes) and other not in parents:
                    parents.append(other)
        return parents

    def _compared(self, loss: AppliedLoss) -> list[str]:
        named = [text.partition(".")[0] for text in loss.inputs]
        return [label for label in named if label in self._assigned and label != loss.on]

    def _check_loss_order(self, parts: Sequence[Sequence[str]]) -> None:
        part_of = {label: i for i, part in enumerate(parts) for label in part}
        for loss in self._request.losses:
            late = next((other for other in self._compared(loss) if part_of[other] > part_of[loss.on]), None)
            if late is not None:
                raise GraphError(
                    f"a loss on {loss.on!r} compares with {late!r}, which another framework computes later",
                    hint=f"put the loss on {late!r}, with inputs=['outputs', {loss.on!r}]",
                )

    def _notes(self, active: set[str]) -> Iterable[str]:
        for label, assignment in self._assigned.items():
            framework, device = assignment.framework, assignment.device
            if assignment.reason == "fallback":
                yield f"{label}: no installed plugin runs {framework} on {assignment.requested}, so it runs on {device}"
            before = assignment.backend.device_of(self._model(label)) if assignment.reason == "default" else None
            if before is not None and before != device:
                yield f"{label} moves from {before} to {device}: neither it nor the phase asks for a device"
            if self._request.training and self._frozen_in_training(label):
                yield f"{label} is frozen and runs in training mode: its running statistics move"
        yield from float32_notes(self._request.matmul_precision, self._assigned, self._nodes)
        yield from (f"{label} learns by partial_fit on the host, step by step" for label in self._request.learners)
        if not self._request.training:
            for label, names in self._training_only.items():
                yield f"the loss {label!r} is left out: {', '.join(names)} exists only in training"
        if self._request.training:
            idle = [label for label in self._shapes.order if label not in active | set(self._request.learners)]
            yield from (f"{label} takes no part: no loss depends on it" for label in idle)


def _part(segment: Segment, assignment: Assignment, labels: Sequence[str]) -> Part:
    return Part(segment.label, assignment.framework, tuple(labels))


# -- partition: cuts a graph into convex segments, which no path leaves and enters again -------------------------------


def cut(order: Sequence[str], owner: Mapping[str, Hashable], parents: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group nodes of one owner into convex segments, greedily in `order`.

    Args:
        order: labels in topological order.
        owner: what computes each node.
        parents: labels that each node depends on.

    Returns:
        the segments in topological order; the labels of each keep `order`.
    """
    segments: list[list[str]] = []
    needs: list[set[int]] = []
    segment_of: dict[str, int] = {}
    for label in order:
        before = {segment_of[parent] for parent in parents[label]}
        target = _joinable(segments, needs, owner, label, before)
        if target is None:
            target = len(segments)
            segments.append([])
            needs.append(set())
        segments[target].append(label)
        needs[target] |= before - {target}
        segment_of[label] = target
    return [segments[i] for i in TopologicalSorter(dict(enumerate(needs))).static_order()]


def _joinable(
    segments: Sequence[Sequence[str]],
    needs: Sequence[set[int]],
    owner: Mapping[str, Hashable],
    label: str,
    before: set[int],
) -> int | None:
    """The latest segment of the same owner such that no other segment that `label` depends on depends on it."""
    reach = {i: _closure(needs, i) for i in before}
    for i in reversed(range(len(segments))):
        if owner[segments[i][0]] == owner[label] and not any(i in reached for j, reached in reach.items() if j != i):
            return i
    return None


def _closure(needs: Sequence[set[int]], start: int) -> set[int]:
    reached: set[int] = set()
    todo = [start]
    while todo:
        for other in needs[todo.pop()] - reached:
            reached.add(other)
            todo.append(other)
    return reached


# -- step columns: what a training step of the user's own gets of each batch, by name ----------------------------------


def check_custom_step(phase: str, assigned: Sequence[Assignment]) -> None:
    """Check that one framework computes all nodes, and can run a step of the user's own.

    Raises:
        PhaseError: it is several, or one that cannot.
    """
    frameworks = {assignment.node: assignment.framework for assignment in assigned}
    if len({id(assignment.backend) for assignment in assigned}) > 1:
        raise PhaseError(
            f"phase {phase!r} has a step of your own, which is the code of one framework on one kind of device",
            cause=", ".join(f"{each.node}: {each.framework} on {each.device}" for each in assigned),
            hint="put the nodes of one framework in a graph of their own, or train with losses=[...]",
        )
    if not assigned[0].backend.custom_steps:
        raise PhaseError(
            f"phase {phase!r} has a step of your own, which is not supported for models of {assigned[0].framework}",
            cause=", ".join(f"{node}: {framework}" for node, framework in frameworks.items()),
            hint="train with losses=[...], which may be functions of your own",
        )


def step_columns(
    table: ColumnTable, nodes: Mapping[str, Node], shapes: Shapes, assigned: Mapping[str, Assignment]
) -> dict[str, str]:
    """Names of the loaded columns by the names that a step finds them under.

    These are what the nodes take, in the form in which they take it, and each target of the same data, as stored but
    for its floating dtype. A column goes by its own name (joined ones by `a+b`, those of other streams by `a@STREAM`),
    or where several would have this name, by that in the plan. `features` and `targets` name the only ones.
    """
    roles: dict[str, dict[str, Column]] = {"features": {}, "targets": {}}
    for label, assignment in assigned.items():
        for reference in (each for each in nodes[label].upstreams if isinstance(each, Reference)):
            column = input_columns.feature_column(table, reference, shapes, assignment)
            roles["features"][column.name] = column
            for target in _targets(table, reference, shapes, assignment):
                roles["targets"].setdefault(target.name, target)
    columns = {**roles["targets"], **roles["features"]}
    short = {name: _short_name(column) for name, column in columns.items()}
    names = {text if list(short.values()).count(text) == 1 else name: name for name, text in short.items()}
    only = {role: next(iter(found)) for role, found in roles.items() if len(found) == 1}
    return {**only, **names}


def _targets(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> list[Column]:
    columns = []
    for name in reference.targets:
        selection = ColumnSelection(reference.feature_set, (name,), reference.stream)
        spec = cast(reference.feature_set.spec(name), shapes.dtypes[to.node])
        columns.append(table.want(selection, spec, to, "targets"))
    return columns


def _short_name(column: Column) -> str:
    stream = f"@{column.stream}" if column.stream else ""
    return "+".join(column.columns) + stream


# -- segment builder: the segments of a phase as backends receive them, with operations, inputs and outputs ------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBuilder:
    """Builds the segments of a phase.

    Attributes:
        inputs: names of each node's input values, with columns in the form in which the node takes them.
        in_training: labels of the nodes that run in training mode.
        live: names of the values through which gradients flow.
        wants: labels of the nodes whose outputs are kept.
        states: optimizer state by node.
        request: of the phase.
    """

    nodes: Mapping[str, Node]
    shapes: Shapes
    assigned: Mapping[str, Assignment]
    inputs: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, Column]
    terms: tuple[LossTerm, ...]
    groups: tuple[ParameterGroup, ...]
    in_training: frozenset[str]
    live: frozenset[str]
    wants: tuple[str, ...]
    states: Mapping[str, NodeState]
    request: Request

    def segment(self, label: str, part: Sequence[str]) -> Segment:
        """The segment of some nodes, given in topological order."""
        operations = tuple(map(self._operation, part))
        losses = tuple(term for term in self.terms if term.on in part)
        computed = {name for operation in operations for name in operation.outputs}
        arrivals = {name: device for name, device in _arrivals(operations, losses).items() if name not in computed}
        needed = self._needed_outside(part)
        groups = (replace(group, nodes=tuple(node for node in group.nodes if node in part)) for group in self.groups)
        return Segment(
            label=label,
            operations=operations,
            inputs={name: (self._spec(name), device) for name, device in arrivals.items()},
            outputs=tuple(name for operation in operations for name in operation.outputs if name in needed),
            losses=losses,
            groups=tuple(group for group in groups if group.nodes),
            needs_pullback=tuple(
                name for name in arrivals if name in self.live and is_floating(self._spec(name).dtype)
            ),
            states={node: self.states[node] for node in part if node in self.states},
            frozen=self._frozen(self.shapes.frameworks[part[0]]),
            precision=segment_precision(part, self.assigned, self.nodes, self.request),
        )

    def _frozen(self, framework: str) -> dict[str, Any]:
        models = {label: node for label, node in self.nodes.items() if isinstance(node, ModelNode) and node.frozen}
        alike = (label for label in models if self.shapes.frameworks[label] == framework)
        return {label: models[label].model for label in alike if self.shapes.outputs[label]}

    def _operation(self, label: str) -> Operation:
        node = self.nodes[label]
        model, axis = (node.model, -1) if isinstance(node, ModelNode) else (None, node.axis)
        # What a node's model returns once for a batch, where a loss takes it
        taken = {name for term in self.terms if term.on == label for name in term.inputs}
        added = {name: output for name, output in self.shapes.batch_values(label).items() if name in taken}
        extra = self.shapes.training_only.get(label, ()) if label in self.in_training else ()
        usual = self.shapes.outputs[label]
        returned, training = self.shapes.returned.get(label, ()), self.shapes.training.get(label, ())
        results = [*with_batch(returned), *added.values()]
        in_training = training_results(returned, training, len(usual) + len(extra))
        in_training[len(usual) : len(usual)] = added.values()
        return Operation(
            label=label,
            model=model,
            inputs=self.inputs[label],
            outputs=(*usual, *added, *extra),
            device=self.assigned[label].device,
            trainable=label in self.in_training,
            axis=axis,
            arguments=self.shapes.arguments.get(label, ()),
            results=() if _in_order(results, returned) else tuple(results),
            training_results=() if _in_order(in_training, training or returned) else tuple(in_training),
            training_only=len(extra),
            modes=node.modes if isinstance(node, ModelNode) else "train",
        )

    def _spec(self, name: str) -> TensorSpec:
        return self.columns[name].spec if name in self.columns else self.shapes.specs[name]

    def _needed_outside(self, part: Sequence[str]) -> set[str]:
        needed = {name for label in self.wants for name in self.shapes.outputs[label]}
        needed.update(name for label, names in self.inputs.items() if label not in part for name in names)
        needed.update(name for term in self.terms if term.on not in part for name in term.inputs)
        return needed


def _in_order(results: Sequence[OutputSpec | None], returned: Sequence[OutputSpec]) -> bool:
    """Whether the results of an operation are all that a model returns, in order and batch first."""
    specs = [output.spec for output in results if output is not None]
    return None not in results and list(returned) == list(positional_outputs(specs))


def _arrivals(operations: Iterable[Operation], losses: Iterable[LossTerm]) -> dict[str, Device]:
    """The device on which each value arrives: that of the first operation or loss that takes it."""
    takers: list[Operation | LossTerm] = [*operations, *losses]
    devices: dict[str, Device] = {}
    for taker in takers:
        for name in taker.inputs:
            devices.setdefault(name, taker.device)
    return devices


# -- sharding assignment: whose parameters replicas divide, by one rule: what the node says, else the phase ------------


def with_sharding(node: Node, assignment: Assignment, request: Request) -> Assignment:
    """The assignment of a node of a training with what is asked of its parameters.

    Raises:
        GraphError: it is asked of a model that is computed as it is.
    """
    if not isinstance(node, ModelNode):
        return assignment
    if node.kind.fixed:
        refuse_settings(node, "sharding")
        return assignment
    name, reason = (node.sharding, "node") if node.sharding else (request.sharding, "phase")
    return replace(assignment, sharding=name, sharding_reason=reason) if name else assignment


def check_shared_models(phase: str, nodes: Mapping[str, Node], assigned: Mapping[str, Assignment]) -> None:
    """Check that nodes which share a model agree about its parameters.

    Raises:
        GraphError: they do not.
    """
    first: dict[int, Assignment] = {}
    for label, each in assigned.items():
        node = nodes[label]
        other = first.setdefault(id(node.model), each) if isinstance(node, ModelNode) else each
        if _kept(other) != _kept(each):
            raise GraphError(
                f"phase {phase!r}: nodes {other.node!r} and {label!r} share a model, and its parameters are to be "
                f"{_kept(other)!r} in one and {_kept(each)!r} in the other",
                hint="give both nodes the same sharding",
            )


def _kept(assignment: Assignment) -> str:
    return assignment.sharding or "none"
