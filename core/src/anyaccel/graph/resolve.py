"""Resolve: turn a graph and a phase's request into a plan and its segments. Nothing moves here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from types import FunctionType, MethodType
from typing import Any, Literal

from anyaccel.adapter.optimizers import unmatched_patterns
from anyaccel.backend import Backend, ComputingBackend
from anyaccel.data import Reference, joined_changes, joined_spec
from anyaccel.data.roles import brief, listed
from anyaccel.device import Device
from anyaccel.errors import ColumnError, GraphError, PhaseError, SamplerError, ShapeError, SpecError
from anyaccel.formulas import LOSSES, OPTIMIZERS
from anyaccel.graph import topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.device_assignment import (
    DeviceAssigner,
    Request,
    Resolution,
    float32_notes,
    matmul_precisions,
    segment_precision,
)
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.nodes import ColumnSelection, ModelNode, Node, features_of
from anyaccel.graph.plan import Plan
from anyaccel.graph.plan_entries import Assignment, Column, Crossing, Part
from anyaccel.graph.shape_inference import (
    Shapes,
    cast,
    check_training_outputs,
    infer_training,
    is_floating,
    lifted,
    matched,
    training_only_inputs,
    with_batch,
)
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
from anyaccel.specs import (
    FROM_OUTPUT,
    InGivenOrder,
    Loss,
    LossTargets,
    Optimizer,
    takes_classes,
    takes_targets_first,
)
from anyaccel.suggestions import did_you_mean


def resolve(graph: ModelGraph, request: Request, known: Registry | None = None) -> Resolution:
    """Decide everything about a phase; `known` is the registry of backends, by default that of the process.

    Raises:
        AnyaccelError: the phase cannot run; nothing has moved.
    """
    return _Resolver(graph, request, known or registry()).resolve()


@dataclass
class _Resolver:
    """One resolution.

    Attributes:
        assigned: Assignments of the nodes that take part, by label.
        needed_by_losses: Labels of the nodes whose outputs losses take (of all nodes, if steps are the user's own), and
            of all that they depend on.
        compared: By node, the other nodes whose outputs its losses take.
        training_only: By loss, its inputs that exist only in training.
        inputs: Names of each node's input values, with columns in the form that the node takes.
        terms: Terms of the losses.
        compared_values: Names of the values that they take.
        columns: Columns to load, by name.
        groups: Parameter groups.
        in_training: Labels of the nodes that run in training mode.
        live: Names of the values through which gradients flow.
    """

    graph: ModelGraph
    request: Request
    registry: Registry

    def resolve(self) -> Resolution:
        """Decide, in order: which nodes take part, where, which are trained, what is loaded, and the segments."""
        request = self.request
        nodes, shapes = self._nodes, self._shapes = self.graph.nodes, self.graph.shapes
        self.training_only: dict[str, tuple[str, ...]] = {}
        if shapes.training_only:
            extra = {name for names in shapes.training_only.values() for name in names}
            self.training_only = training_only_inputs(request.losses, extra)
            if not request.training:
                evaluated = tuple(loss for loss in request.losses if loss.label not in self.training_only)
                request = self.request = replace(request, losses=evaluated)

        # Which nodes take part.
        if request.training and not request.losses and not request.custom_step:
            raise PhaseError(
                f"phase {request.phase!r} trains, but has no loss and no estimator with partial_fit to train",
                hint=self._training_hint(),
            )
        self.compared: dict[str, list[str]] = {}
        loss_nodes: list[str] = []
        for loss in request.losses:
            loss_nodes.append(loss.on)
            for text in loss.inputs:
                label = text.partition(".")[0]
                if label in nodes and label != loss.on:
                    self.compared.setdefault(loss.on, []).append(label)
                    loss_nodes.append(label)
        if request.custom_step:
            loss_nodes = list(nodes)
        for label in (*request.wants, *loss_nodes):
            if label not in nodes:
                raise topology.unknown_node(f"phase {request.phase!r} names the node {label!r}", label, nodes)
            if not shapes.outputs[label]:
                unfitted = topology.ancestors([label], nodes) & set(shapes.unfitted)
                first = next(other for other in shapes.order if other in unfitted)
                through = "" if first == label else f"{label!r}, which depends on "
                raise PhaseError(
                    f"phase {request.phase!r} needs {through}{first!r}, an estimator that is not fitted",
                    hint=f"run a FitPhase first, FitPhase('fit', data=..., nodes={first!r}); a loaded state or "
                    "configuration has no estimators",
                )
        self.needed_by_losses = topology.ancestors(loss_nodes, nodes)
        active = self.needed_by_losses | topology.ancestors(request.wants, nodes)

        # Where they are computed, and how.
        assigner = DeviceAssigner(nodes=nodes, shapes=shapes, registry=self.registry, request=request)
        self.assigned = assigner.assign(active)

        # Which of them are trained, and the values through which gradients flow.
        in_training = self._in_training() if request.training else []
        trained = []
        for label in in_training:
            if self.assigned[label].parameters and not self.assigned[label].frozen:
                trained.append(label)
        live_nodes: set[str] = set()
        live: set[str] = set()
        for label in self.assigned if trained else ():
            if label not in self.needed_by_losses:
                continue
            before = live_nodes & set(topology.parents(nodes[label], nodes))
            if before and not getattr(self._model(label), "differentiable", True):
                raise GraphError(
                    f"node {label!r} is not differentiable and is between a loss and {', '.join(sorted(before))}, "
                    "which is trained",
                    hint="freeze the nodes before it, or remove losses that depend on it",
                )
            if label in trained or before:
                live_nodes.add(label)
                live.update(shapes.outputs[label], shapes.training_only.get(label, ()))
        self.in_training, self.live = frozenset(in_training), frozenset(live)

        # What is loaded, and what losses compare.
        table = ColumnTable(request.streams)
        step_names: dict[str, str] = {}
        if request.custom_step:
            check_custom_step(request.phase, list(self.assigned.values()))
            step_names = step_columns(table, nodes, shapes, self.assigned)
        self.inputs: dict[str, tuple[str, ...]] = {}
        for label, assignment in self.assigned.items():
            names: list[str] = []
            for upstream in nodes[label].upstreams:
                if isinstance(upstream, Reference):
                    names.append(feature_column(table, upstream, shapes, assignment).name)
                else:
                    names.extend((upstream,) if "." in upstream else shapes.outputs[upstream])
            self.inputs[label] = tuple(names)
        self.terms = tuple(map(LossBinder(nodes, shapes, self.assigned, table).term, request.losses))
        self.compared_values: set[str] = set()
        for term in self.terms:
            self.compared_values.update(term.inputs)
        self.columns = table.columns

        # The segments, and the values that cross between them or between devices.
        self.groups = self._groups(trained)
        segments, parts, backends, places = [], [], [], set()
        for i, labels in enumerate(self._cut()):
            assignment = self.assigned[labels[0]]
            segments.append(self._segment(f"{assignment.framework}:{i}", labels))
            parts.append(Part(segments[i].label, assignment.framework, tuple(labels)))
            backends.append(assignment.backend)
        for assignment in self.assigned.values():
            places.add((assignment.framework, assignment.device))
        crossings: tuple[Crossing, ...] = ()
        if len(places) > 1:
            crossings = tuple(crossings_of(segments, self.assigned, shapes, self.live, self.registry))
        plan = Plan(
            phase=request.phase,
            graph=self.graph.label,
            assignments=tuple(self.assigned.values()),
            columns=tuple(self.columns.values()),
            crossings=crossings,
            parts=tuple(parts),
            notes=tuple(self._notes(active)),
            replicas=request.devices if len(request.devices) > 1 else (),
        )
        return Resolution(
            plan=plan,
            segments=tuple(segments),
            backends=tuple(backends),
            live=self.live,
            shapes=shapes,
            step_columns=step_names,
            matmul_precisions=matmul_precisions(request, self.assigned),
        )

    def _model(self, label: str) -> object:
        return getattr(self._nodes[label], "model", None)

    def _training_hint(self) -> str:
        """Return what to do if there is neither a loss nor an estimator that learns."""
        models = [label for label, node in self._nodes.items() if node.kind.fixed]
        frozen = [label for label in models if self._nodes[label].kind.learns_from_steps]
        loss = "pass losses=[AppliedLoss('mse', on='NODE')]" if len(models) < len(self._nodes) else ""
        if frozen:
            return " or ".join(filter(None, (f"{frozen[0]!r} is frozen: graph.unfreeze({frozen[0]!r})", loss)))
        if models:
            return " or ".join(filter(None, (f"{models[0]!r} has no partial_fit: run a FitPhase for it", loss)))
        return loss

    def _in_training(self) -> list[str]:
        """Return the nodes in training mode: not frozen, or frozen in this mode; those without parameters may be
        random.

        Their outputs in training are inferred once for a built graph, and checked.
        """
        nodes, shapes = self._nodes, self._shapes
        learning: list[str] = []
        frozen: list[str] = []
        reasons: list[str] = []
        has_parameters = False
        for label, assignment in self.assigned.items():
            if label not in self.needed_by_losses:
                continue
            reasons.append(f"{label} ({'frozen' if assignment.frozen else 'no parameters'})")
            if not assignment.frozen:
                learning.append(label)
                has_parameters = has_parameters or assignment.parameters > 0
            elif getattr(nodes[label], "frozen_mode", "eval") == "train":
                frozen.append(label)
        if not has_parameters:
            hint = "unfreeze a node that a loss depends on"
            if len(learning) == len(reasons):
                hint = "use a model with trainable parameters; most frameworks ignore layers in a plain list"
            problem = f"phase {self.request.phase!r} has nothing to train: {', '.join(reasons)}"
            raise PhaseError(problem, hint=hint)
        # No node may train the model of a frozen node, which would change.
        for other, node in nodes.items():
            if isinstance(node, ModelNode) and node.frozen:
                twin = next((label for label in learning if self._model(label) is node.model), None)
                if twin is not None:
                    raise GraphError(
                        f"node {twin!r} is trained, but shares its model with node {other!r}, which is frozen",
                        hint=f"freeze both, graph.freeze({twin!r}), or use a copy in {other!r}: copy.deepcopy(model)",
                    )
        in_training = [*learning, *frozen]
        # Modes of their own are kept only where the layers of a framework have such.
        for label in in_training:
            assignment = self.assigned[label]
            if getattr(nodes[label], "modes", "train") != "train" and not assignment.backend.keeps_modes:
                raise GraphError(
                    f"node {label!r}: modes='as_is' is not supported for models of {assignment.framework}, which "
                    "have only one mode, training or evaluation",
                    available="modes='train'",
                    hint=f"leave modes out, or freeze the node: graph.freeze({label!r})",
                )
        for loss, names in self.training_only.items():
            for name in names:
                label = name.partition(".")[0]
                if label not in in_training:
                    raise PhaseError(
                        f"the loss {loss!r} takes {name!r}, an output that exists only in training, but "
                        f"node {label!r} is frozen",
                        hint=f"unfreeze the node, graph.unfreeze({label!r}), or leave the loss out",
                    )
        for label in in_training:
            node = nodes[label]
            if not isinstance(node, ModelNode) or not shapes.outputs[label] or node.modes == "as_is":
                continue
            if label not in shapes.training:
                backend = self.assigned[label].backend
                shapes.training[label] = infer_training(node, backend, shapes.inputs[label], shapes.wanted(label))
            if shapes.training[label]:  # else unknown, or the same in both modes
                check_training_outputs(label, shapes, self.request.losses, self.assigned)
        return in_training

    def _groups(self, trained: Iterable[str]) -> tuple[ParameterGroup, ...]:
        groups: dict[str, ParameterGroup] = {}
        for label in trained:
            node, model, backend = self._nodes[label], self._model(label), self.assigned[label].backend
            node_optimizer = node.optimizer if isinstance(node, ModelNode) else None
            optimizer = node_optimizer or self.graph.optimizer
            if optimizer is None:
                raise PhaseError(
                    f"node {label!r} is trained but has no optimizer",
                    hint="set one on the graph, ModelGraph(..., optimizer='adam'), or on the node, or freeze it",
                )
            check_supported(label, optimizer, backend)
            reason = "" if model is None else backend.untrainable_reason(model)
            if reason:
                raise PhaseError(
                    f"node {label!r} cannot be trained: {reason}",
                    hint="leave it out, or train the model with its framework's own loop and "
                    f"freeze the node: graph.freeze({label!r})",
                )
            name = ".graph"  # which is the label of no node
            if node_optimizer:
                name = next(other for other in self._nodes if self._model(other) is model)
            group = groups.get(name, ParameterGroup(name, optimizer, ()))
            groups[name] = replace(group, nodes=(*group.nodes, label))
        for group in groups.values():
            if group.optimizer.groups:
                parameters: list[str] = []
                for label in group.nodes:
                    parameters += self.assigned[label].backend.parameters(self._model(label))
                unmatched = unmatched_patterns(group.optimizer, parameters)
                if unmatched:
                    raise SpecError(
                        f"optimizer {group.optimizer.name!r}: no parameter name matches {unmatched[0]!r}, the pattern "
                        "of a group",
                        available=listed(parameters),
                        hint="write a pattern of names, with * for any text: groups={'*bias': {'weight_decay': 0.0}}",
                    )
        return tuple(groups.values())

    def _segment(self, label: str, part: Sequence[str]) -> Segment:
        """Return the segment of some nodes, given in topological order."""
        nodes, shapes = self._nodes, self._shapes
        losses = tuple([term for term in self.terms if term.on in part])
        needed: set[str] = set()  # by the caller, or by other segments
        for wanted in self.request.wants:
            needed.update(shapes.outputs[wanted])
        for other, names in self.inputs.items():
            if other not in part:
                needed.update(names)
        for term in self.terms:
            if term.on not in part:
                needed.update(term.inputs)
        operations: list[Operation] = []
        outputs: list[str] = []
        computed: set[str] = set()
        states: dict[str, NodeState] = {}
        for member in part:
            node = nodes[member]
            returned, training = shapes.returned.get(member, ()), shapes.training.get(member, ())
            once = shapes.batch_values(member)  # for a batch
            added = {name: output for name, output in once.items() if name in self.compared_values}
            usual = shapes.outputs[member]
            extra = shapes.training_only.get(member, ()) if member in self.in_training else ()
            results: list[OutputSpec | None] = [*with_batch(returned)]
            in_training = (matched(returned, training) if training else None) or results
            in_training = [*in_training[: len(usual)], *added.values(), *in_training[len(usual) :][: len(extra)]]
            results += added.values()
            operation = Operation(
                label=member,
                model=node.model if isinstance(node, ModelNode) else None,
                inputs=self.inputs[member],
                outputs=(*usual, *added, *extra),
                device=self.assigned[member].device,
                trainable=member in self.in_training,
                axis=-1 if isinstance(node, ModelNode) else node.axis,
                arguments=shapes.arguments.get(member, ()),
                results=() if _in_order(results, returned) else tuple(results),  # type: ignore[arg-type]  # none missing
                training_results=() if _in_order(in_training, training or returned) else tuple(in_training),
                training_only=len(extra),
                modes=node.modes if isinstance(node, ModelNode) else "train",
            )
            operations.append(operation)
            computed.update(operation.outputs)
            outputs += [name for name in operation.outputs if name in needed]
            state = self.graph.optimizer_states.get(member)
            if state is not None:
                states[member] = state
        inputs: dict[str, tuple[TensorSpec, Device]] = {}  # each arrives on the device of the first that takes it
        needs_pullback: list[str] = []
        takers: list[Operation | LossTerm] = [*operations, *losses]
        for taker in takers:
            for name in taker.inputs:
                if name in computed or name in inputs:
                    continue
                spec = self.columns[name].spec if name in self.columns else shapes.specs[name]
                inputs[name] = spec, taker.device
                if name in self.live and is_floating(spec.dtype):  # an output of a node, never a column
                    needs_pullback.append(name)
        groups = []
        for group in self.groups:
            members = tuple([node for node in group.nodes if node in part])
            if members:
                groups.append(replace(group, nodes=members))
        frozen = {}
        for other, node in nodes.items():
            is_here = shapes.frameworks[other] == shapes.frameworks[part[0]]
            if isinstance(node, ModelNode) and node.frozen and is_here and shapes.outputs[other]:
                frozen[other] = node.model
        return Segment(
            label=label,
            operations=tuple(operations),
            inputs=inputs,
            outputs=tuple(outputs),
            losses=losses,
            groups=tuple(groups),
            needs_pullback=tuple(needs_pullback),
            states=states,
            frozen=frozen,
            precision=segment_precision(part, self.assigned, nodes, self.request),
        )

    def _cut(self) -> list[list[str]]:
        """Return the nodes of each segment, in topological order.

        Raises:
            GraphError: a loss would need a value of a later segment, or a model would be in two.
        """
        parents = {}
        owners = {}
        for label, assignment in self.assigned.items():
            owners[label] = id(assignment.backend)
            parents[label] = topology.parents(self._nodes[label], self._nodes)
            for other in self.compared.get(label, ()):  # computed before the losses on the node, where possible
                if label not in topology.ancestors([other], self._nodes) and other not in parents[label]:
                    parents[label].append(other)
        order = list(TopologicalSorter(parents).static_order())
        if len(set(owners.values())) == 1:
            return [order]
        parts = cut(order, owners, parents)
        part_of = {label: i for i, part in enumerate(parts) for label in part}
        for label, others in self.compared.items():
            late = next((other for other in others if part_of[other] > part_of[label]), None)
            if late is not None:
                raise GraphError(
                    f"a loss on {label!r} compares with {late!r}, but another framework computes that later",
                    hint=f"put the loss on {late!r}, with inputs=['outputs', {label!r}]",
                )
        part_of_model: dict[int, int] = {}
        for label, i in part_of.items():
            model = self._model(label)
            if model is not None and part_of_model.setdefault(id(model), i) != i:
                raise GraphError(
                    f"node {label!r} shares its model with a node of another segment",
                    hint="use a separate model",
                )
        return parts

    def _notes(self, active: set[str]) -> Iterable[str]:
        for label, assignment in self.assigned.items():
            framework, device = assignment.framework, assignment.device
            if assignment.reason == "fallback":
                yield f"{label}: no installed plugin runs {framework} on {assignment.requested}, so it runs on {device}"
            before = assignment.backend.device_of(self._model(label)) if assignment.reason == "default" else None
            if before is not None and before != device:
                yield f"{label} moves from {before} to {device}: neither it nor the phase requests a device"
            if assignment.frozen and label in self.in_training:
                yield f"{label} is frozen and runs in training mode: its running statistics move"
        yield from float32_notes(self.request, self.assigned, self._nodes)
        for label in self.request.learners:
            yield f"{label} learns by partial_fit on the host, step by step"
        if not self.request.training:
            for label, names in self.training_only.items():
                yield f"the loss {label!r} is left out: {', '.join(names)} exists only in training"
            return
        for label in self._shapes.order:
            if label not in active and label not in self.request.learners:
                yield f"{label} takes no part: no loss depends on it"


def _in_order(results: Sequence[OutputSpec | None], returned: Sequence[OutputSpec]) -> bool:
    """Whether the results of an operation are all that a model returns, in order and batch first."""
    specs = [output.spec for output in results if output is not None]
    return None not in results and list(returned) == list(positional_outputs(specs))


# -- partition: cuts a graph into convex segments, which no path leaves and enters again -------------------------------


def cut(order: Sequence[str], owner: Mapping[str, Hashable], parents: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group nodes of one owner into convex segments, greedily in `order`.

    Args:
        order: Labels in topological order.
        owner: Owner of each node.
        parents: Labels that each node depends on.

    Returns:
        The segments in topological order; the labels of each keep `order`.
    """
    segments: list[list[str]] = []
    needs: list[set[int]] = []
    segment_of: dict[str, int] = {}
    for label in order:
        before = {segment_of[parent] for parent in parents[label]}
        # The latest segment of the same owner such that no other segment that the node depends on depends on it.
        reach = {i: _closure(needs, i) for i in before}
        target = None
        for i in reversed(range(len(segments))):
            if owner[segments[i][0]] == owner[label] and not any(i in to for j, to in reach.items() if j != i):
                target = i
                break
        if target is None:
            target = len(segments)
            segments.append([])
            needs.append(set())
        segments[target].append(label)
        needs[target] |= before - {target}
        segment_of[label] = target
    return [segments[i] for i in TopologicalSorter(dict(enumerate(needs))).static_order()]


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
    """Check that one framework computes all nodes, and can run a custom step.

    Raises:
        PhaseError: several frameworks, or one that cannot.
    """
    frameworks = {assignment.node: assignment.framework for assignment in assigned}
    if len({id(assignment.backend) for assignment in assigned}) > 1:
        raise PhaseError(
            f"phase {phase!r} has a custom step, which can use only one framework on one kind of device",
            cause=", ".join(
                f"{assignment.node}: {assignment.framework} on {assignment.device}" for assignment in assigned
            ),
            hint="put the nodes of each framework in a separate graph, or train with losses=[...]",
        )
    if not assigned[0].backend.custom_steps:
        raise PhaseError(
            f"phase {phase!r} has a custom step, which is not supported for models of {assigned[0].framework}",
            cause=", ".join(f"{node}: {framework}" for node, framework in frameworks.items()),
            hint="train with losses=[...], which can be custom functions",
        )


def step_columns(
    table: ColumnTable, nodes: Mapping[str, Node], shapes: Shapes, assigned: Mapping[str, Assignment]
) -> dict[str, str]:
    """Return names of the loaded columns by the names that a custom step finds them under.

    These are the inputs of the nodes, in the form of each node, and each target of the same data, as stored apart from
    its floating dtype. A column has its own name (joined ones `a+b`, those of other streams `a@STREAM`); if several
    would have this name, it has its name in the plan. `features` and `targets` name the only ones.
    """
    roles: dict[str, dict[str, Column]] = {"features": {}, "targets": {}}
    for label, assignment in assigned.items():
        for reference in (upstream for upstream in nodes[label].upstreams if isinstance(upstream, Reference)):
            column = feature_column(table, reference, shapes, assignment)
            roles["features"][column.name] = column
            for name in reference.targets:
                selection = ColumnSelection(reference.feature_set, (name,), reference.stream)
                spec = cast(reference.feature_set.spec(name), shapes.dtypes[label])
                target = table.want(selection, spec, assignment, "targets")
                roles["targets"].setdefault(target.name, target)
    columns = {**roles["targets"], **roles["features"]}
    short = {
        name: "+".join(column.columns) + (f"@{column.stream}" if column.stream else "")
        for name, column in columns.items()
    }
    names = {text if list(short.values()).count(text) == 1 else name: name for name, text in short.items()}
    only = {role: next(iter(labels)) for role, labels in roles.items() if len(labels) == 1}
    return {**only, **names}


# -- Transfers: which values cross from one device or framework to another in every step, and how ----------------------


Route = Literal["move", "share", "copy", "host"]
"""`move` is within one framework, `share` gives the other framework the same memory, `copy` does so and copies on the
device, for a node that may write to it, and `host` goes through host memory."""


def route(
    source: Backend, origin: Device, target: Backend, destination: Device, known: Registry | None = None
) -> Route:
    """Return the cheapest route for a value that no one writes to; `known` has the devices, by default the
    process's.
    """
    if source.framework == target.framework:
        return "move"
    ask = (known or registry()).ask  # a wrong answer names no memory space
    space, other = ask(source, "device_info", origin).memory_space, ask(target, "device_info", destination).memory_space
    return "share" if space and space == other else "host"


def crossings_of(
    segments: Iterable[Segment],
    assigned: Mapping[str, Assignment],
    shapes: Shapes,
    live: Set[str],
    known: Registry | None = None,
) -> Iterator[Crossing]:
    """Yield all crossings, segments in order: each value once for each device that it goes to, and its gradient.

    Args:
        segments: The segments of the phase.
        assigned: The assignments of its nodes.
        shapes: The shapes of the graph.
        live: Names of the values through which gradients flow.
        known: Registry with the devices; None for the registry of the process.

    Raises:
        GraphError: the gradient of a complex value would cross.
    """
    homes: dict[str, str] = {}
    for segment in segments:
        homes.update({name: operation.label for operation in segment.operations for name in operation.outputs})
        takers: list[tuple[str, Operation | LossTerm]] = [
            (operation.label, operation) for operation in segment.operations
        ]
        takers += [(term.on, term) for term in segment.losses]
        crossings: dict[tuple[str, Device], Crossing] = {}
        back: set[tuple[str, Device]] = set()  # values whose takers pass gradients on
        for target, taker in takers:
            passes_on = isinstance(taker, LossTerm) or not live.isdisjoint(taker.outputs)
            for name in dict.fromkeys(taker.inputs):
                if passes_on:
                    back.add((name, taker.device))
                source = homes.get(name, target)
                origin, destination = assigned[source], assigned[target]
                if origin.device == destination.device and origin.framework == destination.framework:
                    continue
                way = route(origin.backend, origin.device, destination.backend, destination.device, known)
                if way == "share" and isinstance(taker, Operation) and taker.model is not None:
                    arguments = (taker.arguments,) if taker.arguments else ()
                    if destination.backend.mutates_inputs(taker.model, shapes.wanted(target), *arguments):
                        way = "copy"
                before = crossings.get((name, destination.device))
                if before is None:
                    crossings[name, destination.device] = Crossing(
                        value=name,
                        source=source,
                        target=target,
                        origin=origin.device,
                        destination=destination.device,
                        route=way,
                        nbytes=shapes.specs[name].nbytes,
                    )
                elif way == "copy":
                    crossings[name, destination.device] = replace(before, route=way)
        yield from crossings.values()
        for key, crossing in crossings.items():
            if crossing.value not in live or key not in back:
                continue
            maker, user = assigned[crossing.source], assigned[crossing.target]
            dtype = shapes.specs[crossing.value].dtype
            if dtype.startswith("complex"):
                raise GraphError(
                    f"the gradient of {crossing.value!r} ({dtype}) cannot flow back from {user.framework} on "
                    f"{user.device} to {maker.framework} on {maker.device}: frameworks define gradients of "
                    "complex numbers differently",
                    hint=f"return real and imaginary parts as real numbers from {crossing.source!r}, or freeze it",
                )
            if is_floating(dtype):
                yield replace(
                    crossing,
                    source=crossing.target,
                    target=crossing.source,
                    origin=crossing.destination,
                    destination=crossing.origin,
                    route=route(user.backend, user.device, maker.backend, maker.device, known),
                    gradient=True,
                )


# -- Loss binding: from an AppliedLoss to a segment's loss term, with its inputs in the form in which it compares them


def check_supported(label: str, spec: Loss | Optimizer, backend: ComputingBackend) -> None:
    """Check that a node's backend can build a loss or optimizer.

    Raises:
        SpecError: it cannot.
    """
    if isinstance(spec, Optimizer) and spec.groups and not backend.parameter_groups:
        raise SpecError(
            f"node {label!r}: {backend.framework} does not support the optimizer's groups of parameters",
            hint="leave groups out, or use a separate optimizer for each node: ModelNode(..., optimizer=...)",
        )
    reason = backend.unsupported_reason(spec)
    if reason:
        what = "loss" if isinstance(spec, Loss) else "optimizer"
        raise SpecError(
            f"node {label!r}: {backend.framework} does not support the {what} {spec.name!r}: {reason}",
            hint=f"use a named {what}: {', '.join(LOSSES if isinstance(spec, Loss) else OPTIMIZERS)}",
        )


@dataclass(frozen=True, slots=True)
class LossBinder:
    """Create the loss terms of a phase, and add their target columns to a column table."""

    nodes: Mapping[str, Node]
    shapes: Shapes
    assigned: Mapping[str, Assignment]
    table: ColumnTable

    def term(self, loss: AppliedLoss) -> LossTerm:
        """Return the term of a loss.

        Raises:
            ColumnError, ShapeError, SpecError: an input does not exist, does not fit, or is ambiguous.
        """
        shapes, assignment = self.shapes, self.assigned[loss.on]
        check_supported(loss.on, loss.loss, assignment.backend)
        if loss.loss.own is None and loss.loss.name == FROM_OUTPUT:
            return self._from_output(loss, assignment)
        first = ""
        outputs: dict[str, tuple[str, ...]] = {}  # by input: the outputs that it names, none for a column
        for text in loss.inputs:
            name = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
            name = shapes.aliases.get(name, name)
            if text == "outputs":
                outputs[text] = shapes.outputs[loss.on]
            elif name in self.nodes:
                outputs[text] = shapes.outputs[name]
            elif name in shapes.specs and name.partition(".")[0] in self.nodes:
                outputs[text] = (name,)
            elif text == "targets" or named_column(text, self.nodes) is not None:
                outputs[text] = ()
            else:
                raise ColumnError(
                    f"the loss on {loss.on!r} has the input {text!r}, which is not in this graph",
                    available="outputs, targets, " + ", ".join(shapes.specs),
                    hint="use one of these names",
                )
            if outputs[text] and not first:
                first = outputs[text][0]
        spec = shapes.specs[first or shapes.outputs[loss.on][0]]
        positions: tuple[int, ...] = ()
        if loss.loss.own is None:
            what = f"{loss.loss.name} on {loss.on!r}"
            if len(loss.inputs) != 2:
                raise SpecError(
                    f"{what} compares two values, but got {len(loss.inputs)} inputs",
                    hint="write inputs=['outputs', 'targets']",
                )
            for names in outputs.values():
                if len(names) > 1:
                    raise SpecError(
                        f"{what}: {names[0].partition('.')[0]!r} has several outputs",
                        available=", ".join(names),
                        hint=f"say which: AppliedLoss({loss.loss.name!r}, "
                        f"inputs=['outputs.{names[0].partition('.')[2]}', 'targets'])",
                    )
            output, target = outputs[loss.inputs[0]], outputs[loss.inputs[1]]
            if not output and not LOSSES[loss.loss.name].symmetric:
                raise SpecError(
                    f"{what}: its first input, {loss.inputs[0]!r}, is not an output",
                    hint="write inputs=['outputs', 'targets'], in this order",
                )
            # The shape, per sample, of the values in the mean: elements, or positions with classes each.
            positions = spec.shape
            if takes_classes(loss.loss) and spec.shape:
                axis, wanted = class_axis(loss.loss.kwargs, spec), loss.loss.kwargs.get("class_axis", -1)
                if wanted == 0 or axis >= len(spec.shape) or wanted < -len(spec.shape):
                    raise ShapeError(
                        f"{loss.loss.name} on node {loss.on!r} has class_axis={wanted}, but its output is {spec} after "
                        "the batch",
                        cause="axis 0 is the batch",
                        available=f"1 to {len(spec.shape)}, or -1",
                        hint="write class_axis=1 for [batch, classes, ...], or leave it out for [batch, ..., classes]",
                    )
                if spec.shape[axis] == 1:  # a softmax over a single logit is always 1: the loss would train nothing
                    raise ShapeError(
                        f"{loss.loss.name} on node {loss.on!r} needs at least two classes, but its output {spec} has "
                        "one",
                        hint="use 'mse' for a number, 'binary_cross_entropy' for yes or no, or one output for each "
                        "class",
                    )
                positions = (*spec.shape[:axis], *spec.shape[axis + 1 :])
            if output and target:
                # Named losses compare two outputs as they are: nothing broadcasts.
                other = shapes.specs[target[0]]
                if other.shape != (positions if is_indices(loss, other) else spec.shape):
                    raise _unfit(loss, other, spec, target[0])
            check_weighing(loss, spec, positions, assignment.backend, by_column=not target)
        inputs: list[str] = []
        for text in loss.inputs:
            inputs += outputs[text] or [self._target(loss, text, spec, positions)]
        own = loss.loss.own
        call = own if isinstance(own, FunctionType) else getattr(own, "forward", None)  # of a function, or of a module
        if isinstance(call, (FunctionType, MethodType)):
            try:  # with as many values as it would get in the first step
                inspect.signature(call).bind(*((own,) if isinstance(own, type) else ()), *inputs)
            except TypeError as error:
                several = len(outputs[loss.inputs[0]]) if loss.inputs[0] in outputs else 1
                taken = [f"output_{i}" for i in range(several)] if several > 1 else ["outputs"]
                raise SpecError(
                    f"the loss {loss.loss.name!r} on {loss.on!r} does not accept {', '.join(inputs)}: {error}",
                    hint=f"write def loss({', '.join([*taken, 'targets'])}), or name its arguments in inputs=[...]",
                ) from None
        applied = loss.loss
        if applied.own is not None and not loss.inputs[0].startswith("outputs") and takes_targets_first(applied.own):
            applied = Loss(InGivenOrder(applied.own))  # a function of (y_true, y_pred), and the inputs begin so
        return LossTerm(
            label=loss.label,
            on=loss.on,
            loss=applied,
            inputs=(*inputs, *self._weights(loss, spec, positions)),
            device=assignment.device,
            weight=loss.weight,
            elements=math.prod(positions),
        )

    def _weights(self, loss: AppliedLoss, output: TensorSpec, positions: tuple[int, ...] | None) -> Iterator[str]:
        """Yield the columns that weigh a loss, which `positions` has for each sample; None for any shape.

        Raises:
            ShapeError: a column has neither one weight for each sample nor one for each position.
        """
        for text in loss.weights:
            chosen = named_column(text, self.nodes)
            if chosen is None:
                raise ColumnError(
                    f"the loss on {loss.on!r} is weighted by {text!r}, which is not a column of this graph",
                    available=", ".join(f"{label}.COLUMN" for label in topology.feature_sets(self.nodes.values())),
                    hint="write 'FEATURE_SET.COLUMN'",
                )
            stored = joined_spec(chosen.feature_set, chosen.names)
            shape: tuple[int, ...] | None = stored.shape
            if positions is not None:
                fitting = (positions[:n_axes] for n_axes in range(len(positions) + 1))
                shape = next((axes for axes in fitting if _without_ones(axes) == _without_ones(stored.shape)), None)
            if shape is None:
                name = f"{chosen.feature_set.label}.{brief(chosen.names)}"
                raise ShapeError(
                    f"{loss.loss.name} on node {loss.on!r} is weighted by {name}, {stored} per sample, "
                    f"but its losses have shape {list(positions or ())} per sample",
                    available="one weight for each sample, [], or for each position: the first axes of that shape",
                    hint="choose another column, or change its shape",
                )
            dtype = "float64" if output.dtype == "float64" else "float32"
            yield self.table.want(chosen, TensorSpec(shape, dtype), self.assigned[loss.on], "weights").name

    def _from_output(self, loss: AppliedLoss, assignment: Assignment) -> LossTerm:
        """Return a loss that the node's model computes; it is weighted by the rows of the node's first input."""
        name = f"{loss.on}.{loss.inputs[0].partition('.')[2]}"
        name = self.shapes.aliases.get(name, name)
        whole = self.shapes.batch_values(loss.on)
        outputs = [*whole, *(name for name in self.shapes.specs if name.startswith(f"{loss.on}."))]
        unnamed = [value for value in whole if value.rpartition(".")[2].isdecimal()]
        if name == f"{loss.on}.loss" and name not in outputs and len(unnamed) == 1:
            name = unnamed[0]  # a model that returns (outputs, loss) has no names
        if name not in (*outputs, loss.on):
            raise ColumnError(
                f"the loss on {loss.on!r} is the output {name!r}, which its model does not return",
                available=", ".join(outputs) or f"{loss.on} (its only output)",
                hint="name an output, or return {'loss': loss, 'logits': outputs} from the model; if it computes a "
                "loss only with targets, pass them as an input",
            )
        spec = whole[name].spec if name in whole else self.shapes.specs[name]
        if spec.shape or not is_floating(spec.dtype):
            raise ShapeError(
                f"the loss on {loss.on!r} is the output {name!r}, {spec}, which is not a loss",
                available="a floating scalar for a batch, or for each sample",
                hint="return the mean over the batch from the model",
            )
        check_weighing(loss, spec, (), assignment.backend, by_column=True)
        inputs = (name, self.shapes.inputs[loss.on][0], *self._weights(loss, spec, None))
        return LossTerm(
            label=loss.label, on=loss.on, loss=loss.loss, inputs=inputs, device=assignment.device, weight=loss.weight
        )

    def _target(self, loss: AppliedLoss, text: str, output: TensorSpec, positions: tuple[int, ...]) -> str:
        """Return the column that a loss compares with an output, in the form in which it takes it; nothing broadcasts
        or changes silently.

        Args:
            loss: The loss.
            text: The input of the loss that names the column.
            output: The output that the loss compares it with.
            positions: Shape of the positions of a named loss per sample.

        Raises:
            ShapeError: the shapes do not match; names the node and both shapes.
            SpecError: the dtype does not match.
        """
        assignment = self.assigned[loss.on]
        named = None if text == "targets" else named_column(text, self.nodes)
        chosen = named or targets_of(loss, self.nodes)
        name = f"{chosen.feature_set.label}.{brief(chosen.names)}"
        stored = joined_spec(chosen.feature_set, chosen.names)
        if loss.loss.own is not None:
            # It compares as it likes: [n] is aligned with [n, 1], so that none broadcasts. Numbers are compared as
            # floats, even if they are stored as integers or bools, which several losses of torch refuse.
            takes = assignment.backend.loss_targets(loss.loss) if text == loss.inputs[1] else None
            dtype = "float32" if output.dtype == "bfloat16" else output.dtype  # NumPy has no bfloat16
            if takes is not None and takes.kind == "classes":
                _check_classes(loss, takes, stored, output, name)
            compared = takes is not None and takes.kind != "classes"
            spec = replace(stored, dtype=dtype) if compared else cast(stored, dtype)
            if _without_ones(stored.shape) == _without_ones(output.shape):
                spec = replace(spec, shape=output.shape)
            spec = replace(spec, dtype=assignment.backend.loaded_dtype(spec.dtype))
        elif is_indices(loss, stored):
            if not output.shape or _without_ones(stored.shape) != _without_ones(positions) or stored.dtype == "bool":
                raise _unfit(loss, stored, output, name)
            spec = TensorSpec(positions, assignment.backend.index_dtype)
        else:
            if not is_floating(stored.dtype):
                dtypes = dict.fromkeys(chosen.names, output.dtype if is_floating(output.dtype) else "float32")
                raise SpecError(
                    f"{loss.loss.name} on {loss.on!r} compares {output.dtype} outputs with {name}, which is "
                    f"{stored.dtype}",
                    hint="cast each batch of a source, or build the graph on a copy with another dtype: "
                    f"feature_set.cast({dtypes})",
                )
            for setting in ("ignore_index", "class_weights"):
                if setting in loss.loss.kwargs:
                    raise SpecError(
                        f"{loss.loss.name} on {loss.on!r} has {setting}, which is for class indices, but "
                        f"{name} has probabilities",
                        hint="use mask= or sample_weight= instead",
                    )
            if _without_ones(stored.shape) != _without_ones(output.shape):
                raise _unfit(loss, stored, output, name)
            dtype = "float32" if output.dtype in ("bfloat16", "float16") else output.dtype  # in which it is computed
            spec = replace(stored, dtype=dtype, shape=output.shape)
        return self.table.want(chosen, spec, assignment, "targets").name


# -- Checks of losses --------------------------------------------------------------------------------------------------


def _check_classes(loss: AppliedLoss, takes: LossTargets, stored: TensorSpec, output: TensorSpec, name: str) -> None:
    """Check the shape of classes for a framework's loss; axes of length 1 are up to the loss.

    Raises:
        ShapeError: the loss cannot compare them with the output.
    """
    if not output.shape or takes.class_axis == 0:
        return
    axis = takes.class_axis - 1 if takes.class_axis > 0 else takes.class_axis % len(output.shape)
    positions = (*output.shape[:axis], *output.shape[axis + 1 :])
    one_each = _without_ones(stored.shape) == _without_ones(positions)
    one_hot = _without_ones(stored.shape) == _without_ones(output.shape)
    are_floats = is_floating(stored.dtype)
    takes_indices, takes_rows = takes.form != "probabilities", takes.form != "indices"
    if (takes_indices and one_each) or (takes_rows and one_hot and (are_floats or takes.form)):
        return
    n_classes, column = output.shape[axis : axis + 1], name.partition(".")[2]
    if one_hot and takes_rows:
        hint = f"convert them to floats: feature_set.cast({{{column!r}: 'float32'}})"
    elif one_hot:
        hint = "pass the indices of the classes: y.argmax(axis=-1)"
    elif one_each and n_classes:
        hint = f"pass a row of probabilities for each class index: np.eye({n_classes[0]}, dtype='float32')[y]"
    else:
        hint = "choose another column, or change the output of the model"
    forms = [
        *([f"class indices of shape {list(positions)} per row"] if takes_indices else []),
        *([f"probabilities of shape {list(output.shape)} per row"] if takes_rows else []),
    ]
    raise ShapeError(
        f"{loss.loss.name} on node {loss.on!r} cannot compare its output {output} with {name}, {stored}",
        available=", or ".join(forms),
        hint=hint,
    )


def is_indices(loss: AppliedLoss, target: TensorSpec) -> bool:
    """Whether a target of this spec has class indices."""
    return takes_classes(loss.loss) and not is_floating(target.dtype)


def class_axis(settings: Any, output: TensorSpec) -> int:
    """Return the axis of the classes within a sample, from the settings of `cross_entropy`; -1 without axes."""
    axis: int = settings.get("class_axis", -1)
    return axis - 1 if axis > 0 else axis % len(output.shape) if output.shape else -1


def check_weighing(
    loss: AppliedLoss, output: TensorSpec, positions: tuple[int, ...], backend: ComputingBackend, *, by_column: bool
) -> None:
    """Check that a backend supports the settings of a named loss, and that the counts are known before the computation.

    Args:
        loss: The loss.
        output: The output that it uses.
        positions: Shape of its positions per sample.
        backend: Backend of its node.
        by_column: Whether its targets are a column.

    Raises:
        SpecError: one of them is not.
    """
    settings = loss.loss.kwargs
    has_positions = takes_classes(loss.loss) and math.prod(positions) > 1
    if not backend.weighs_losses and (settings or loss.weights or has_positions):
        asked = [*settings, *(name for name in ("sample_weight", "mask") if getattr(loss, name) is not None)]
        raise SpecError(
            f"node {loss.on!r}: {backend.framework} does not support {loss.loss.name!r} with "
            f"{', '.join(asked) or 'classes at several positions'}",
            hint="use a loss of the framework, or a node of another framework",
        )
    for name in ("ignore_index", "class_weights"):
        if name in settings and not by_column:
            raise SpecError(
                f"{loss.loss.name} on {loss.on!r} has {name}, but its targets are an output of another node",
                cause=f"{name} where the targets are a column",
                hint="name a column of targets in inputs=, or use mask= or sample_weight= instead",
            )
    n_weights = len(settings.get("class_weights", ()))
    n_classes = output.shape[class_axis(settings, output)] if n_weights and output.shape else n_weights
    if n_weights != n_classes:
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} has {n_weights} class_weights, but its output has {n_classes} classes",
            hint="pass one weight per class, in the order of their indices",
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _unfit(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> ShapeError:
    """Create the error for an output and a target that a loss cannot compare; its hint has the outputs that fit."""
    count = math.prod(stored.shape)
    if takes_classes(loss.loss):
        wanted = "logits [..., classes] and class indices [...], or probabilities [..., classes]"
        cast = ""
        if is_floating(stored.dtype) and count == 1:
            column = name.partition(".")[2]
            cast = f", or, if these are class indices, cast them: feature_set.cast({{{column!r}: 'int64'}})"
        hint = f"change the model's output_shape, or choose another column{cast}"
        if stored.shape == output.shape and not is_floating(stored.dtype):
            hint = "pass probabilities as float, y.astype('float32'), or class indices, y.argmax(axis=-1)"
        if len(output.shape) > 1 and output.shape[1:] == stored.shape:  # as in torch's own loss
            hint = "if the classes come first, set class_axis: Loss('cross_entropy', class_axis=1)"
    else:
        wanted = "the same shape"
        outputs = f"{count} {'output' if count == 1 else 'outputs'}"
        if len(stored.shape) > 1:
            outputs = f"an output of shape {list(stored.shape)}"
        hint = f"give the model {outputs}, or choose another column"
        if loss.loss.name == "binary_cross_entropy" and count == 1:
            hint += "; for an output of each class the loss is 'cross_entropy'"
    return ShapeError(
        f"{loss.loss.name} on node {loss.on!r} cannot compare its output {output} with {name}, {stored}; "
        "losses never broadcast",
        available=wanted,
        hint=hint,
    )


# -- Input columns: which columns of feature sets a phase loads, in which dtype and shape, and to which device ---------


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Columns of a phase: one for each combination of form, stream and device that is needed.

    Attributes:
        streams: Streams of each feature set's sampler, by label; for other feature sets any stream may be read.
        columns: All columns so far, by name.
        by_form: All columns so far, by what distinguishes them.
    """

    streams: Mapping[str, Sequence[str]]
    columns: dict[str, Column] = field(default_factory=dict)
    by_form: dict[tuple[object, ...], Column] = field(default_factory=dict)

    def want(self, selection: ColumnSelection, spec: TensorSpec, to: Assignment, role: str) -> Column:
        """Return the column of a selection in this form on a node's device; created on first use.

        Raises:
            SamplerError: the sampler of its feature set has no such stream.
        """
        feature_set, names, asked = selection
        stream, known = asked or "", self.streams.get(feature_set.label)
        if known is not None:
            check_stream(stream, feature_set.label, known)
        if known and stream == known[0]:  # the first
            stream = ""
        key = (feature_set.label, names, stream, to.framework, to.device, spec)
        if key not in self.by_form:
            base = name = str(selection._replace(stream=stream or None))
            number = 1
            while name in self.columns:  # of the same columns in another form or place
                number += 1
                name = f"{base}#{number}"
            stored = joined_spec(feature_set, names)
            self.columns[name] = self.by_form[key] = Column(
                name=name,
                feature_set=feature_set.label,
                columns=names,
                framework=to.framework,
                device=to.device,
                spec=spec,
                stored=stored,
                backend=to.backend,
                native_device=to.native_device,
                pinned=to.pinned,
                role=role,
                stream=stream,
                joined=joined_changes(feature_set, names),
                ragged=feature_set.is_ragged(names[0]) and spec.shape[:1] == stored.shape[:1],
            )
        return self.by_form[key]


def feature_column(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> Column:
    """Return the column of a reference as a node takes it: floating values in its dtype, scalars as [1] if it needs
    that.
    """
    spec = cast(joined_spec(reference.feature_set, reference.features), shapes.dtypes[to.node])
    spec = lifted(spec) if to.node in shapes.lifted else spec
    return table.want(features_of(reference), spec, to, "features")


def check_stream(stream: str, label: str, known: Sequence[str]) -> None:
    """Check that the sampler of a feature set has a stream; `""` is its first.

    Raises:
        SamplerError: it does not.
    """
    if stream and stream not in known:
        other_sampler = "use a sampler with this stream, such as a PairSampler or a TripletSampler"
        raise SamplerError(
            f"the sampler of {label!r} has no stream {stream!r}",
            available=", ".join(known),
            hint=did_you_mean(stream, known) if len(known) > 1 else other_sampler,
        )


def targets_of(loss: AppliedLoss, nodes: Mapping[str, Node]) -> ColumnSelection:
    """Return the columns that `"targets"` means for a loss: the targets of the data that feed its node, in that stream.

    Raises:
        ColumnError: no targets, or several data sets with targets.
    """
    selections: set[ColumnSelection] = set()
    for reference in topology.references(loss.on, nodes):
        if reference.targets:
            selections.add(ColumnSelection(reference.feature_set, reference.targets, reference.stream))
    if len(selections) == 1:
        return selections.pop()
    if not selections:
        raise ColumnError(
            f"the loss on {loss.on!r} has the input 'targets', but the data that feed this node have no targets",
            hint="name target in the feature set, or columns in reference(target=[...])",
        )
    raise ColumnError(
        f"the loss on {loss.on!r} has the input 'targets', but several data sets with targets feed this node",
        available=", ".join(sorted(selection.shown for selection in selections)),
        hint="name one of these in inputs=",
    )


def named_column(text: str, nodes: Mapping[str, Node]) -> ColumnSelection | None:
    """Return the columns that `"FEATURE_SET.COLUMN"` names; None if it names no feature set of the graph.

    `"FEATURE_SET.A+B"` names two, joined; `"FEATURE_SET.COLUMN@STREAM"` another stream than the first.

    Raises:
        ColumnError: the feature set has no such column.
    """
    label, _, rest = text.partition(".")
    feature_set = topology.feature_sets(nodes.values()).get(label)
    if feature_set is None:
        return None
    columns, _, stream = (rest, "", "") if rest in feature_set.columns or "@" not in rest else rest.rpartition("@")
    names = (columns,) if columns in feature_set.columns else tuple(columns.split("+"))
    for name in names:
        feature_set.spec(name)
    return ColumnSelection(feature_set, names, stream or None)
