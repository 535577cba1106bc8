"""Resolve: turn a graph and a phase's request into a plan and its segments. Nothing moves here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from types import FunctionType
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
    loss_scale_of,
    matmul_precisions,
    segment_precision,
)
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.nodes import ColumnSelection, ModelNode, Node, features_of, layout_of, refuse_settings
from anyaccel.graph.plan import Plan
from anyaccel.graph.plan_entries import Assignment, Column, Crossing, Part
from anyaccel.graph.shape_inference import (
    Shapes,
    cast,
    check_not_taken,
    check_training_outputs,
    infer_training,
    is_floating,
    lifted,
    matched,
    training_only_inputs,
    values_read,
    with_batch,
)
from anyaccel.precision import LossScale
from anyaccel.registry import Registry, registry
from anyaccel.segment import (
    LossTerm,
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


class _Resolver:
    """One resolution.

    Attributes:
        inputs: Names of each node's input values, with columns in the form that the node takes.
        terms: Terms of the losses.
        columns: Columns to load, by name.
        groups: Parameter groups.
        in_training: Labels of the nodes that run in training mode.
        live: Names of the values through which gradients flow.
    """

    def __init__(self, graph: ModelGraph, request: Request, known: Registry) -> None:
        self._graph = graph
        self._request = request
        self._registry = known
        self._nodes = graph.nodes
        self._shapes = graph.shapes
        self._assigned: dict[str, Assignment] = {}
        self._training_only: dict[str, tuple[str, ...]] = {}
        if self._shapes.training_only:
            extra = {name for names in self._shapes.training_only.values() for name in names}
            self._training_only = training_only_inputs(request.losses, extra)
            if not request.training:
                evaluated = tuple(loss for loss in request.losses if loss.label not in self._training_only)
                self._request = replace(request, losses=evaluated)
        self._compared: dict[str, list[str]] = {}  # by node: the others whose outputs its losses take
        loss_nodes: list[str] = []
        for loss in self._request.losses:
            loss_nodes.append(loss.on)
            for text in loss.inputs:
                label = text.partition(".")[0]
                if label in self._nodes and label != loss.on:
                    self._compared.setdefault(loss.on, []).append(label)
                    loss_nodes.append(label)
        # Labels of the nodes whose outputs losses take; of all nodes, if steps are the user's own.
        self._loss_nodes = list(self._nodes) if request.custom_step else loss_nodes
        self._needed_by_losses: set[str] = set()  # these nodes, and all that they depend on

    def resolve(self) -> Resolution:
        """Decide, in order: which nodes take part, where, which are trained, what is loaded, and the segments."""
        request, active = self._request, self._active()
        self._assigned = DeviceAssigner(
            nodes=self._nodes, shapes=self._shapes, registry=self._registry, request=request
        ).assign(active)
        for label, assignment in self._assigned.items():
            node = self._nodes[label]
            self._assigned[label] = layout_of(node).assign(node, assignment, request, self._registry, self._shapes)
        loss_scale = None
        if request.training:
            self._assigned = with_sharding(self._nodes, self._assigned, request)
            loss_scale = loss_scale_of(self._assigned, request)
        table = ColumnTable(request.streams)
        columns: dict[str, str] = {}
        if request.custom_step:
            check_custom_step(request.phase, list(self._assigned.values()))
            columns = step_columns(table, self._nodes, self._shapes, self._assigned)
        in_training = self._in_training() if request.training else []
        trained = [
            label for label in in_training if self._assigned[label].parameters and not self._assigned[label].frozen
        ]
        self.inputs: dict[str, tuple[str, ...]] = {}
        for label, assignment in self._assigned.items():
            names: list[str] = []
            for upstream in self._nodes[label].upstreams:
                if isinstance(upstream, Reference):
                    names.append(feature_column(table, upstream, self._shapes, assignment).name)
                else:
                    names.extend((upstream,) if "." in upstream else self._shapes.outputs[upstream])
            self.inputs[label] = tuple(names)
        binder = LossBinder(self._nodes, self._shapes, self._assigned, table)
        self.terms = tuple(map(binder.term, self._request.losses))
        self.columns = {column.name: column for column in table.columns}
        self.groups = self._groups(trained)
        self.in_training, self.live = frozenset(in_training), self._live(trained)
        segments, parts, backends = [], [], []
        for i, labels in enumerate(self._cut()):
            first = self._assigned[labels[0]]
            segments.append(self._segment(f"{first.framework}:{i}", labels, loss_scale))
            parts.append(Part(segments[i].label, first.framework, tuple(labels)))
            backends.append(first.backend)
        crossings: Iterable[Crossing] = ()
        if len({(assignment.framework, assignment.device) for assignment in self._assigned.values()}) > 1:
            crossings = Crossings(self._assigned, self._shapes, self.live, self._registry).of(segments)
        plan = Plan(
            phase=request.phase,
            graph=self._graph.label,
            assignments=tuple(self._assigned.values()),
            columns=table.columns,
            crossings=tuple(crossings),
            parts=tuple(parts),
            notes=tuple(self._notes(active)),
            replicas=request.devices if len(request.devices) > 1 else (),
        )
        return Resolution(
            plan=plan,
            segments=tuple(segments),
            backends=tuple(backends),
            live=self.live,
            shapes=self._shapes,
            step_columns=columns,
            matmul_precisions=matmul_precisions(request.phase, request.matmul_precision, self._assigned),
        )

    # -- which nodes take part, and which are trained --------------------------------------------------------------

    def _active(self) -> set[str]:
        request = self._request
        if request.training and not request.losses and not request.custom_step:
            raise PhaseError(
                f"phase {request.phase!r} trains, but has no loss and no estimator with partial_fit to train",
                hint=self._training_hint(),
            )
        wanted = [*request.wants, *self._loss_nodes]
        for label in wanted:
            if label not in self._nodes:
                raise topology.unknown_node(
                    f"phase {self._request.phase!r} names the node {label!r}", label, self._nodes
                )
            if self._shapes.outputs[label]:
                continue
            unfitted = topology.ancestors([label], self._nodes) & set(self._shapes.unfitted)
            first = next(other for other in self._shapes.order if other in unfitted)
            through = "" if first == label else f"{label!r}, which depends on "
            raise PhaseError(
                f"phase {self._request.phase!r} needs {through}{first!r}, an estimator that is not fitted",
                hint=f"run a FitPhase first, FitPhase('fit', data=..., nodes={first!r}); a loaded state or "
                "configuration has no estimators",
            )
        self._needed_by_losses = topology.ancestors(self._loss_nodes, self._nodes)
        return self._needed_by_losses | topology.ancestors(request.wants, self._nodes)

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
        """
        learning: list[str] = []
        frozen: list[str] = []
        reasons: list[str] = []
        for label, assignment in self._assigned.items():
            if label not in self._needed_by_losses:
                continue
            reasons.append(f"{label} ({'frozen' if assignment.frozen else 'no parameters'})")
            if not assignment.frozen:
                learning.append(label)
            elif getattr(self._nodes[label], "frozen_mode", "eval") == "train":
                frozen.append(label)
        if not any(self._assigned[label].parameters for label in learning):
            hint = "unfreeze a node that a loss depends on"
            if len(learning) == len(reasons):
                hint = "use a model with trainable parameters; most frameworks ignore layers in a plain list"
            problem = f"phase {self._request.phase!r} has nothing to train: {', '.join(reasons)}"
            raise PhaseError(problem, hint=hint)
        # No node may train the model of a frozen node, which would change.
        for other in self._graph.frozen:
            twin = next((label for label in learning if self._model(label) is self._model(other)), None)
            if twin is not None:
                raise GraphError(
                    f"node {twin!r} is trained, but shares its model with node {other!r}, which is frozen",
                    hint=f"freeze both, graph.freeze({twin!r}), or use a copy in {other!r}: copy.deepcopy(model)",
                )
        in_training = [*learning, *frozen]
        # Modes of their own are kept only where the layers of a framework have such.
        for label in in_training:
            assignment = self._assigned[label]
            if getattr(self._nodes[label], "modes", "train") != "train" and not assignment.backend.keeps_modes:
                raise GraphError(
                    f"node {label!r}: modes='as_is' is not supported for models of {assignment.framework}, which "
                    "have only one mode, training or evaluation",
                    available="modes='train'",
                    hint=f"leave modes out, or freeze the node: graph.freeze({label!r})",
                )
        for loss, names in self._training_only.items():
            for name in names:
                node = name.partition(".")[0]
                if node not in in_training:
                    raise PhaseError(
                        f"the loss {loss!r} takes {name!r}, an output that exists only in training, but "
                        f"node {node!r} is frozen",
                        hint=f"unfreeze the node, graph.unfreeze({node!r}), or leave the loss out",
                    )
        self._check_training_outputs(in_training)
        return in_training

    def _check_training_outputs(self, in_training: Sequence[str]) -> None:
        """Check the outputs of models in training, which are inferred once for a built graph."""
        shapes = self._shapes
        for label in in_training:
            node = self._nodes[label]
            if not isinstance(node, ModelNode) or not shapes.outputs[label] or node.modes == "as_is":
                continue
            if label not in shapes.training:
                backend = self._assigned[label].backend
                shapes.training[label] = infer_training(node, backend, shapes.inputs[label], shapes.wanted(label))
            if not shapes.training[label]:
                continue  # unknown, or the same in both modes
            extra = len(shapes.training_only.get(label, ()))
            training = check_training_outputs(label, shapes.returned[label], extra, shapes.training[label])
            if None in training:
                taken = values_read(self._request.losses, [shapes.inputs[other] for other in self._assigned])
                check_not_taken(label, shapes.outputs[label], training, taken)

    def _live(self, trained: Sequence[str]) -> frozenset[str]:
        """Return names of the values through which gradients flow."""
        live: set[str] = set()
        for label in self._assigned if trained else ():
            if label not in self._needed_by_losses:
                continue
            before = live & set(topology.parents(self._nodes[label], self._nodes))
            if before and not getattr(self._model(label), "differentiable", True):
                raise GraphError(
                    f"node {label!r} is not differentiable and is between a loss and {', '.join(sorted(before))}, "
                    "which is trained",
                    hint="freeze the nodes before it, or remove losses that depend on it",
                )
            if label in trained or before:
                live.add(label)
        names: set[str] = set()
        for label in live:
            names.update(self._shapes.outputs[label], self._shapes.training_only.get(label, ()))
        return frozenset(names)

    def _groups(self, trained: Iterable[str]) -> tuple[ParameterGroup, ...]:
        groups: dict[str, ParameterGroup] = {}
        for label in trained:
            node = self._nodes[label]
            node_optimizer = node.optimizer if isinstance(node, ModelNode) else None
            optimizer = node_optimizer or self._graph.optimizer
            if optimizer is None:
                raise PhaseError(
                    f"node {label!r} is trained but has no optimizer",
                    hint="set one on the graph, ModelGraph(..., optimizer='adam'), or on the node, or freeze it",
                )
            check_supported(label, optimizer, self._assigned[label].backend)
            model = self._model(label)
            reason = "" if model is None else self._assigned[label].backend.untrainable_reason(model)
            if reason:
                raise PhaseError(
                    f"node {label!r} cannot be trained: {reason}",
                    hint="leave it out, or train the model with its framework's own loop and "
                    f"freeze the node: graph.freeze({label!r})",
                )
            name = (
                next(other for other in self._nodes if self._model(other) is self._model(label))
                if node_optimizer
                else ".graph"
            )  # which is the label of no node
            group = groups.get(name, ParameterGroup(name, optimizer, ()))
            groups[name] = replace(group, nodes=(*group.nodes, label))
        for group in groups.values():
            if group.optimizer.groups:
                parameters: list[str] = []
                for label in group.nodes:
                    parameters += self._assigned[label].backend.parameters(self._model(label))
                check_patterns(group.optimizer, parameters)
        return tuple(groups.values())

    def _model(self, label: str) -> object:
        return getattr(self._nodes[label], "model", None)

    # -- what is loaded, and the segments --------------------------------------------------------------------------

    def _segment(self, label: str, part: Sequence[str], loss_scale: LossScale | None) -> Segment:
        """Return the segment of some nodes, given in topological order."""
        operations = tuple(map(self._operation, part))
        losses = tuple(term for term in self.terms if term.on in part)
        computed = {name for operation in operations for name in operation.outputs}
        arrivals: dict[str, Device] = {}  # each value arrives on the device of the first that takes it
        takers: list[Operation | LossTerm] = [*operations, *losses]
        for taker in takers:
            for name in taker.inputs:
                if name not in computed:
                    arrivals.setdefault(name, taker.device)
        needed: set[str] = set()  # by the caller, or by other segments
        for node in self._request.wants:
            needed.update(self._shapes.outputs[node])
        for node, names in self.inputs.items():
            if node not in part:
                needed.update(names)
        for term in self.terms:
            if term.on not in part:
                needed.update(term.inputs)
        groups = []
        for group in self.groups:
            nodes = tuple(node for node in group.nodes if node in part)
            if nodes:
                groups.append(replace(group, nodes=nodes))
        framework = self._shapes.frameworks[part[0]]
        frozen = {
            label: node.model
            for label, node in self._nodes.items()
            if isinstance(node, ModelNode)
            and node.frozen
            and self._shapes.frameworks[label] == framework
            and self._shapes.outputs[label]
        }
        states = self._graph.optimizer_states
        return Segment(
            label=label,
            operations=operations,
            inputs={
                name: (self.columns[name].spec if name in self.columns else self._shapes.specs[name], device)
                for name, device in arrivals.items()
            },
            outputs=tuple(name for operation in operations for name in operation.outputs if name in needed),
            losses=losses,
            groups=tuple(groups),
            # A live value is an output of a node, never a column.
            needs_pullback=tuple(
                name for name in arrivals if name in self.live and is_floating(self._shapes.specs[name].dtype)
            ),
            states={node: states[node] for node in part if node in states},
            frozen=frozen,
            precision=segment_precision(part, self._assigned, self._nodes, loss_scale),
        )

    def _operation(self, label: str) -> Operation:
        node = self._nodes[label]
        model, axis = (node.model, -1) if isinstance(node, ModelNode) else (None, node.axis)
        added = self._shapes.batch_values(label)
        if added:  # where a loss takes what the node's model returns once for a batch
            taken = {name for term in self.terms if term.on == label for name in term.inputs}
            added = {name: output for name, output in added.items() if name in taken}
        extra = self._shapes.training_only.get(label, ()) if label in self.in_training else ()
        usual = self._shapes.outputs[label]
        returned, training = self._shapes.returned.get(label, ()), self._shapes.training.get(label, ())
        results: list[OutputSpec | None] = [*with_batch(returned)]
        in_training = (matched(returned, training) if training else None) or results
        in_training = [*in_training[: len(usual)], *added.values(), *in_training[len(usual) :][: len(extra)]]
        results += added.values()
        return Operation(
            label=label,
            model=model,
            inputs=self.inputs[label],
            outputs=(*usual, *added, *extra),
            device=self._assigned[label].device,
            trainable=label in self.in_training,
            axis=axis,
            arguments=self._shapes.arguments.get(label, ()),
            results=() if _in_order(results, returned) else tuple(results),  # type: ignore[arg-type]  # none missing
            training_results=() if _in_order(in_training, training or returned) else tuple(in_training),
            training_only=len(extra),
            modes=node.modes if isinstance(node, ModelNode) else "train",
        )

    def _cut(self) -> list[list[str]]:
        """Return the nodes of each segment, in topological order.

        Raises:
            GraphError: a loss would need a value of a later segment, or a model would be in two.
        """
        parents = {}
        for label in self._assigned:
            parents[label] = topology.parents(self._nodes[label], self._nodes)
            for other in self._compared.get(label, ()):  # computed before the losses on the node, where possible
                if label not in topology.ancestors([other], self._nodes) and other not in parents[label]:
                    parents[label].append(other)
        order = list(TopologicalSorter(parents).static_order())
        owners = {label: id(assignment.backend) for label, assignment in self._assigned.items()}
        if len(set(owners.values())) == 1:
            return [order]
        parts = cut(order, owners, parents)
        part_of = {label: i for i, part in enumerate(parts) for label in part}
        for label, others in self._compared.items():
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
        for label, assignment in self._assigned.items():
            framework, device = assignment.framework, assignment.device
            if assignment.reason == "fallback":
                yield f"{label}: no installed plugin runs {framework} on {assignment.requested}, so it runs on {device}"
            before = assignment.backend.device_of(self._model(label)) if assignment.reason == "default" else None
            if before is not None and before != device:
                yield f"{label} moves from {before} to {device}: neither it nor the phase requests a device"
            if assignment.frozen and label in self.in_training:
                yield f"{label} is frozen and runs in training mode: its running statistics move"
        if self._request.matmul_precision is None:
            yield from float32_notes(self._assigned, self._nodes)
        for label in self._request.learners:
            yield f"{label} learns by partial_fit on the host, step by step"
        if not self._request.training:
            for label, names in self._training_only.items():
                yield f"the loss {label!r} is left out: {', '.join(names)} exists only in training"
            return
        for label in self._shapes.order:
            if label not in active and label not in self._request.learners:
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


# -- sharding assignment: whose parameters replicas divide, by one rule: what the node says, else the phase ------------


def with_sharding(
    nodes: Mapping[str, Node], assigned: Mapping[str, Assignment], request: Request
) -> dict[str, Assignment]:
    """Return the assignments of a training with the requested sharding of the parameters.

    Raises:
        GraphError: it is requested for a model that no framework computes, or nodes which share a model do not agree.
    """
    sharded = dict(assigned)
    first: dict[int, Assignment] = {}
    for label, assignment in assigned.items():
        node = nodes[label]
        if not isinstance(node, ModelNode):
            continue
        if node.kind.fixed:
            refuse_settings(node, "sharding")
        elif node.sharding:
            sharded[label] = replace(assignment, sharding=node.sharding, sharding_reason="node")
        elif request.sharding:
            sharded[label] = replace(assignment, sharding=request.sharding, sharding_reason="phase")
        other = first.setdefault(id(node.model), sharded[label])
        first_sharding, sharding = other.sharding or "none", sharded[label].sharding or "none"
        if first_sharding != sharding:
            raise GraphError(
                f"phase {request.phase!r}: nodes {other.node!r} and {label!r} share a model, but its parameters "
                f"are {first_sharding!r} in one and {sharding!r} in the other",
                hint="use the same sharding for both nodes",
            )
    return sharded


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


@dataclass(frozen=True, slots=True)
class Crossings:
    """Find the crossings of a phase.

    Attributes:
        live: Names of the values through which gradients flow.
        registry: Registry with the devices; None for the registry of the process.
    """

    assigned: Mapping[str, Assignment]
    shapes: Shapes
    live: Set[str]
    registry: Registry | None = None

    def of(self, segments: Iterable[Segment]) -> Iterator[Crossing]:
        """Yield all crossings, segments in order: each value once for each device that it goes to, and its gradient.

        Raises:
            GraphError: the gradient of a complex value would cross.
        """
        homes: dict[str, str] = {}
        for segment in segments:
            homes.update({name: operation.label for operation in segment.operations for name in operation.outputs})
            crossings: dict[tuple[str, Device], Crossing] = {}
            for target, taker in _takers(segment):
                for name in dict.fromkeys(taker.inputs):
                    self._add(crossings, name, homes.get(name, target), target, taker)
            yield from crossings.values()
            yield from self._gradients(segment, crossings)

    def _add(
        self,
        crossings: dict[tuple[str, Device], Crossing],
        name: str,
        source: str,
        target: str,
        taker: Operation | LossTerm,
    ) -> None:
        origin, destination = self.assigned[source], self.assigned[target]
        if origin.device == destination.device and origin.framework == destination.framework:
            return
        way = route(origin.backend, origin.device, destination.backend, destination.device, self.registry)
        if way == "share" and isinstance(taker, Operation) and self._writes(target, taker):
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
                nbytes=self.shapes.specs[name].nbytes,
            )
        elif way == "copy":
            crossings[name, destination.device] = replace(before, route=way)

    def _writes(self, target: str, taker: Operation) -> bool:
        backend = self.assigned[target].backend
        arguments = (taker.arguments,) if taker.arguments else ()
        return taker.model is not None and backend.mutates_inputs(taker.model, self.shapes.wanted(target), *arguments)

    def _gradients(self, segment: Segment, crossings: Mapping[tuple[str, Device], Crossing]) -> Iterator[Crossing]:
        """Yield the way back of values whose takers pass gradients on."""
        back = {
            (name, taker.device)
            for _, taker in _takers(segment)
            if isinstance(taker, LossTerm) or not self.live.isdisjoint(taker.outputs)
            for name in taker.inputs
        }
        for key, crossing in crossings.items():
            if crossing.value not in self.live or key not in back:
                continue
            dtype = self.shapes.specs[crossing.value].dtype
            if dtype.startswith("complex"):
                source, target = self.assigned[crossing.source], self.assigned[crossing.target]
                raise GraphError(
                    f"the gradient of {crossing.value!r} ({dtype}) cannot flow back from {target.framework} on "
                    f"{target.device} to {source.framework} on {source.device}: frameworks define gradients of "
                    "complex numbers differently",
                    hint=f"return real and imaginary parts as real numbers from {crossing.source!r}, or freeze it",
                )
            if is_floating(dtype):
                maker, taker = self.assigned[crossing.source], self.assigned[crossing.target]
                yield replace(
                    crossing,
                    source=crossing.target,
                    target=crossing.source,
                    origin=crossing.destination,
                    destination=crossing.origin,
                    route=route(taker.backend, taker.device, maker.backend, maker.device, self.registry),
                    gradient=True,
                )


def _takers(segment: Segment) -> Iterator[tuple[str, Operation | LossTerm]]:
    for operation in segment.operations:
        yield operation.label, operation
    for term in segment.losses:
        yield term.on, term


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


def check_patterns(optimizer: Optimizer, parameters: Sequence[str]) -> None:
    """Check that each pattern of an optimizer's groups matches a parameter of some node that it trains.

    Raises:
        SpecError: one does not.
    """
    unmatched = unmatched_patterns(optimizer, parameters)
    if unmatched:
        raise SpecError(
            f"optimizer {optimizer.name!r}: no parameter name matches {unmatched[0]!r}, the pattern of a group",
            available=listed(parameters),
            hint="write a pattern of names, with * for any text: groups={'*bias': {'weight_decay': 0.0}}",
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
        assignment = self.assigned[loss.on]
        check_supported(loss.on, loss.loss, assignment.backend)
        if loss.loss.own is None and loss.loss.name == FROM_OUTPUT:
            return self._from_output(loss, assignment)
        outputs = {text: self._outputs(loss, text) for text in loss.inputs}
        first = next((names[0] for names in outputs.values() if names), self.shapes.outputs[loss.on][0])
        spec = self.shapes.specs[first]
        positions: tuple[int, ...] = ()
        if loss.loss.own is None:
            what = f"{loss.loss.name} on {loss.on!r}"
            if len(loss.inputs) != 2:
                raise SpecError(
                    f"{what} compares two values, but got {len(loss.inputs)} inputs",
                    hint="write inputs=['outputs', 'targets']",
                )
            several = next((outputs_of for outputs_of in outputs.values() if len(outputs_of) > 1), ())
            if several:
                raise SpecError(
                    f"{what}: {several[0].partition('.')[0]!r} has several outputs",
                    available=", ".join(several),
                    hint=f"say which: AppliedLoss({loss.loss.name!r}, "
                    f"inputs=['outputs.{several[0].partition('.')[2]}', "
                    "'targets'])",
                )
            output, target = outputs[loss.inputs[0]], outputs[loss.inputs[1]]
            if not output and not LOSSES[loss.loss.name].symmetric:
                raise SpecError(
                    f"{what}: its first input, {loss.inputs[0]!r}, is not an output",
                    hint="write inputs=['outputs', 'targets'], in this order",
                )
            positions = positions_of(loss, spec)
            if output and target:
                # Named losses compare two outputs as they are: nothing broadcasts.
                other = self.shapes.specs[target[0]]
                if other.shape != (positions if is_indices(loss, other) else spec.shape):
                    raise _unfit(loss, other, spec, target[0])
            check_weighing(loss, spec, positions, assignment.backend, by_column=not target)
        inputs: list[str] = []
        for text in loss.inputs:
            inputs += outputs[text] or [self._target(loss, text, spec, positions)]
        if isinstance(loss.loss.own, FunctionType):
            try:  # with as many values as it would get in the first step
                inspect.signature(loss.loss.own).bind(*inputs)
            except TypeError as error:
                raise SpecError(
                    f"the loss {loss.loss.name!r} on {loss.on!r} does not accept {', '.join(inputs)}: {error}",
                    hint="write def loss(outputs, targets), or name its arguments in inputs=[...]",
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
        """Yield the columns that weigh a loss, which `positions` has for each sample; None for any shape."""
        for text in loss.weights:
            chosen = named_column(text, self.nodes)
            if chosen is None:
                raise ColumnError(
                    f"the loss on {loss.on!r} is weighted by {text!r}, which is not a column of this graph",
                    available=", ".join(f"{label}.COLUMN" for label in topology.feature_sets(self.nodes.values())),
                    hint="write 'FEATURE_SET.COLUMN'",
                )
            spec = weight_spec(loss, chosen, output, positions)
            yield self.table.want(chosen, spec, self.assigned[loss.on], "weights").name

    def _from_output(self, loss: AppliedLoss, assignment: Assignment) -> LossTerm:
        """Return a loss that the node's model computes; it is weighted by the rows of the node's first input."""
        name = f"{loss.on}.{loss.inputs[0].partition('.')[2]}"
        name = self.shapes.aliases.get(name, name)
        whole = self.shapes.batch_values(loss.on)
        outputs = [*whole, *(name for name in self.shapes.specs if name.startswith(f"{loss.on}."))]
        if name not in (*outputs, loss.on):
            raise ColumnError(
                f"the loss on {loss.on!r} is the output {name!r}, which its model does not return",
                available=", ".join(outputs) or f"{loss.on} (its only output)",
                hint="name an output; if the model computes a loss only with targets, pass them as an input",
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

    def _outputs(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        """Return the outputs that an input names: `outputs`, `outputs.NAME`, a label or `label.NAME`; none for a
        column.
        """
        name = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
        name = self.shapes.aliases.get(name, name)
        if text == "outputs" or name in self.nodes:
            return self.shapes.outputs[loss.on if text == "outputs" else name]
        if name in self.shapes.specs and name.partition(".")[0] in self.nodes:
            return (name,)
        if text == "targets" or named_column(text, self.nodes) is not None:
            return ()
        raise ColumnError(
            f"the loss on {loss.on!r} has the input {text!r}, which is not in this graph",
            available="outputs, targets, " + ", ".join(self.shapes.specs),
            hint="use one of these names",
        )

    def _target(self, loss: AppliedLoss, text: str, output: TensorSpec, positions: tuple[int, ...]) -> str:
        """Return the column that a loss compares with an output; `positions` are those of a named loss."""
        assignment = self.assigned[loss.on]
        named = None if text == "targets" else named_column(text, self.nodes)
        chosen = named or targets_of(loss, self.nodes)
        if loss.loss.own is not None:
            takes = assignment.backend.loss_targets(loss.loss) if text == loss.inputs[1] else None
            spec = own_target_spec(loss, chosen, output, takes)
            spec = replace(spec, dtype=assignment.backend.loaded_dtype(spec.dtype))
        else:
            spec = target_spec(loss, chosen, output, positions)
            if is_indices(loss, spec):
                spec = replace(spec, dtype=assignment.backend.index_dtype)
        return self.table.want(chosen, spec, assignment, "targets").name


# -- Loss columns: the form in which a loss takes its targets and weights; nothing broadcasts or changes silently ------


def own_target_spec(
    loss: AppliedLoss, selection: ColumnSelection, output: TensorSpec, takes: LossTargets | None
) -> TensorSpec:
    """Return the form of columns that a framework's own loss compares with an output.

    It compares as it likes: [n] is aligned with [n, 1], so that none broadcasts.

    Args:
        loss: The loss.
        selection: The columns.
        output: The output that the loss compares them with.
        takes: Targets that the loss accepts. Numbers are compared as floats, even if they are stored as integers or
            bools, which several losses of torch refuse.

    Raises:
        ShapeError: the shapes do not match; names the node and both shapes.
    """
    names = selection.names
    stored, name = joined_spec(selection.feature_set, names), f"{selection.feature_set.label}.{brief(names)}"
    dtype = "float32" if output.dtype == "bfloat16" else output.dtype  # NumPy has no bfloat16
    if takes is not None and takes.kind == "classes":
        _check_classes(loss, takes, stored, output, name)
    compared = takes is not None and takes.kind != "classes"
    stored = replace(stored, dtype=dtype) if compared else cast(stored, dtype)
    same = _without_ones(stored.shape) == _without_ones(output.shape)
    return replace(stored, shape=output.shape) if same else stored


def target_spec(
    loss: AppliedLoss, selection: ColumnSelection, output: TensorSpec, positions: tuple[int, ...]
) -> TensorSpec:
    """Return the form of columns that a named loss compares with an output.

    Args:
        loss: The loss.
        selection: The columns.
        output: The output that the loss compares them with.
        positions: Shape of its positions per sample; see `positions_of`.

    Raises:
        ShapeError: the shapes do not match; names the node and both shapes.
        SpecError: the dtype does not match.
    """
    names = selection.names
    stored, name = joined_spec(selection.feature_set, names), f"{selection.feature_set.label}.{brief(names)}"
    if is_indices(loss, stored):
        if not output.shape or _without_ones(stored.shape) != _without_ones(positions) or stored.dtype == "bool":
            raise _unfit(loss, stored, output, name)
        return TensorSpec(positions, "int64")
    if not is_floating(stored.dtype):
        dtypes = dict.fromkeys(names, output.dtype if is_floating(output.dtype) else "float32")
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} compares {output.dtype} outputs with {name}, which is {stored.dtype}",
            hint=f"build the graph on a copy with another dtype: feature_set.cast({dtypes})",
        )
    for setting in ("ignore_index", "class_weights"):
        if setting in loss.loss.kwargs:
            raise SpecError(
                f"{loss.loss.name} on {loss.on!r} has {setting}, which is for class indices, but "
                f"{name} has probabilities",
                hint="use mask= or sample_weight= instead",
            )
    dtype = "float32" if output.dtype in ("bfloat16", "float16") else output.dtype  # in which losses are computed
    if _without_ones(stored.shape) != _without_ones(output.shape):
        raise _unfit(loss, stored, output, name)
    return replace(stored, dtype=dtype, shape=output.shape)


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


def positions_of(loss: AppliedLoss, output: TensorSpec) -> tuple[int, ...]:
    """Return the shape, per sample, of the values in the mean of a named loss: elements, or positions with classes
    each.

    Raises:
        ShapeError: the output has no such axis of classes, or one class: a softmax over a single logit is always 1, so
            the loss would be 0 and train nothing.
    """
    if not takes_classes(loss.loss) or not output.shape:
        return output.shape
    axis, wanted = class_axis(loss.loss.kwargs, output), loss.loss.kwargs.get("class_axis", -1)
    if wanted == 0 or axis >= len(output.shape) or wanted < -len(output.shape):
        raise ShapeError(
            f"{loss.loss.name} on node {loss.on!r} has class_axis={wanted}, but its output is {output} after the batch",
            cause="axis 0 is the batch",
            available=f"1 to {len(output.shape)}, or -1",
            hint="write class_axis=1 for [batch, classes, ...], or leave it out for [batch, ..., classes]",
        )
    if output.shape[axis] == 1:
        raise ShapeError(
            f"{loss.loss.name} on node {loss.on!r} needs at least two classes, but its output {output} has one",
            hint="use 'mse' for a number, 'binary_cross_entropy' for yes or no, or one output for each class",
        )
    return (*output.shape[:axis], *output.shape[axis + 1 :])


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


def weight_spec(
    loss: AppliedLoss, selection: ColumnSelection, output: TensorSpec, shape: tuple[int, ...] | None
) -> TensorSpec:
    """Return the form of a weight column in a loss.

    Args:
        loss: The loss.
        selection: The column.
        output: The output that the loss takes.
        shape: Shape of the loss's positions per sample; None for any shape.

    Raises:
        ShapeError: the column has neither one weight for each sample nor one for each position.
    """
    stored = joined_spec(selection.feature_set, selection.names)
    dtype = "float64" if output.dtype == "float64" else "float32"
    if shape is None:
        return TensorSpec(stored.shape, dtype)
    for n_axes in range(len(shape) + 1):
        if _without_ones(stored.shape) == _without_ones(shape[:n_axes]):
            return TensorSpec(shape[:n_axes], dtype)
    name = f"{selection.feature_set.label}.{brief(selection.names)}"
    raise ShapeError(
        f"{loss.loss.name} on node {loss.on!r} is weighted by {name}, {stored} per sample, but its losses have "
        f"shape {list(shape)} per sample",
        available="one weight for each sample, [], or for each position: the first axes of that shape",
        hint="choose another column, or change its shape",
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


class ColumnTable:
    """Columns of a phase: one for each combination of form, stream and device that is needed.


    Args:
        streams: Streams of each feature set's sampler, by label; for other feature sets any stream may be read.
    """

    def __init__(self, streams: Mapping[str, Sequence[str]]) -> None:
        self._streams = streams
        self._columns: dict[tuple[object, ...], Column] = {}
        self._names: set[str] = set()

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns so far."""
        return tuple(self._columns.values())

    def want(self, selection: ColumnSelection, spec: TensorSpec, to: Assignment, role: str) -> Column:
        """Return the column of a selection in this form on a node's device; created on first use.

        Raises:
            SamplerError: the sampler of its feature set has no such stream.
        """
        feature_set, names, asked = selection
        stream, known = asked or "", self._streams.get(feature_set.label)
        if known is not None:
            check_stream(stream, feature_set.label, known)
        if known and stream == known[0]:  # the first
            stream = ""
        key = (feature_set.label, names, stream, to.framework, to.device, spec)
        if key not in self._columns:
            base = name = str(selection._replace(stream=stream or None))
            number = 1
            while name in self._names:  # of the same columns in another form or place
                number += 1
                name = f"{base}#{number}"
            self._names.add(name)
            stored = joined_spec(feature_set, names)
            self._columns[key] = Column(
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
        return self._columns[key]


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
    selections = {
        ColumnSelection(reference.feature_set, reference.targets, reference.stream)
        for reference in topology.references(loss.on, nodes)
        if reference.targets
    }
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
