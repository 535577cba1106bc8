"""From a graph and a request to a plan, and to the segments that carry it out. Nothing moves here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anyaccel.accelerator import Accelerator
from anyaccel.backend import ComputingBackend
from anyaccel.data import FeatureSet, Reference, joined_spec
from anyaccel.device import Device
from anyaccel.errors import ColumnError, GraphError, PhaseError, RecipeError
from anyaccel.graph import columns as cols
from anyaccel.graph import wiring
from anyaccel.graph.assign import assign
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.nodes import ModelNode
from anyaccel.graph.partition import cut
from anyaccel.graph.plan import Assignment, Crossing, Part, Plan
from anyaccel.graph.shapes import Shapes
from anyaccel.recipes import AppliedLoss, Loss, Optimizer
from anyaccel.registry import Registry, registry
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec


@dataclass(frozen=True, slots=True)
class Request:
    """What a phase asks of a graph. `wants` are labels of nodes whose outputs are to be kept."""

    phase: str
    accelerator: Accelerator | None = None
    losses: tuple[AppliedLoss, ...] = ()
    training: bool = False
    wants: tuple[str, ...] = ()
    strict: bool = False
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """A plan, the segments that carry it out in the order of computation, and each segment's backend.

    `live` names the values through which gradients flow: their node, or one before it, is trained. `shapes` are those of
    the whole graph.
    """

    plan: Plan
    segments: tuple[Segment, ...]
    backends: tuple[ComputingBackend, ...]
    live: frozenset[str]
    shapes: Shapes


def resolve(graph: ModelGraph, request: Request, found: Registry | None = None) -> Resolution:
    """Decide everything about a phase.

    Raises:
        AnyaccelError: whatever stands in the way, before anything has moved.
    """
    return _Resolver(graph, request, found or registry()).resolve()


class _Resolver:
    """One resolution under way."""

    def __init__(self, graph: ModelGraph, request: Request, found: Registry) -> None:
        self.graph = graph
        self.request = request
        self.found = found
        self.nodes = graph.nodes
        self.shapes: Shapes = graph.build().shapes
        self.table = cols.ColumnTable()
        self.assigned: dict[str, Assignment] = {}
        self.renamed: dict[str, tuple[str, ...]] = {}
        self.live: set[str] = set()

    def resolve(self) -> Resolution:
        active = self._active()
        self.assigned = assign(
            self.nodes,
            active,
            self.shapes,
            self.found,
            accelerator=self.request.accelerator,
            strict=self.request.strict,
            policy=self.request.policy,
        )
        labels = list(self.assigned)
        trained = self._trained(labels)
        self.renamed = {label: self._inputs(label) for label in labels}
        terms = [self._term(loss) for loss in self.request.losses]
        groups = self._groups(trained) if self.request.training else []
        parts = self._parts(labels)
        segments = tuple(self._segment(i, part, parts, terms, groups, trained) for i, part in enumerate(parts))
        backends = tuple(self._backend(part[0]) for part in parts)
        return Resolution(self._plan(parts, segments, active), segments, backends, frozenset(self.live), self.shapes)

    # -- what takes part -------------------------------------------------------------------------------------------

    def _active(self) -> set[str]:
        wanted = list(self.request.wants)
        for loss in self.request.losses:
            wanted.append(loss.on)
            wanted += [name.partition(".")[0] for name in loss.inputs if name.partition(".")[0] in self.nodes]
        for label in wanted:
            if label not in self.nodes:
                raise wiring.unknown_node(f"phase {self.request.phase!r} names the node {label!r}", label, self.nodes)
            if not self.shapes.outputs[label]:
                raise PhaseError(
                    f"phase {self.request.phase!r} needs {label!r}, an estimator that has not been fitted",
                    remedy="run a FitPhase first",
                )
        if self.request.training and not self.request.losses:
            raise PhaseError(
                f"phase {self.request.phase!r} trains and has no loss",
                remedy="give losses=[AppliedLoss('mse', on=...)]",
            )
        return wiring.ancestors(wanted, self.nodes)

    def _trained(self, labels: Sequence[str]) -> list[str]:
        if not self.request.training:
            return []
        trained = [label for label in labels if self.assigned[label].parameters and not self.assigned[label].frozen]
        if not trained:
            raise PhaseError(
                f"phase {self.request.phase!r} has nothing to train",
                there=", ".join(
                    f"{label} ({'frozen' if self.assigned[label].frozen else 'no parameters'})" for label in labels
                ),
                remedy="unfreeze a node that a loss depends on",
            )
        alive: set[str] = set()
        for label in labels:
            fed = alive & set(wiring.parents(self.nodes[label], self.nodes))
            if fed and not getattr(getattr(self.nodes[label], "model", None), "differentiable", True):
                raise GraphError(
                    f"node {label!r} cannot pull back, and stands between a loss and the trained {', '.join(sorted(fed))}",
                    remedy="freeze what comes before it, or let no loss depend on it",
                )
            if label in trained or fed:
                alive.add(label)
        self.live = {name for label in alive for name in self.shapes.outputs[label]}
        return trained

    def _parts(self, labels: Sequence[str]) -> list[list[str]]:
        owners = {label: id(self._backend(label)) for label in labels}
        parts = cut(labels, owners, {label: wiring.parents(self.nodes[label], self.nodes) for label in labels})
        homes: dict[int, int] = {}
        for i, part in enumerate(parts):
            for label in part:
                model = getattr(self.nodes[label], "model", None)
                if model is not None and homes.setdefault(id(model), i) != i:
                    raise GraphError(
                        f"node {label!r} shares its model with a node of another segment",
                        remedy="give it a model of its own",
                    )
        return parts

    def _backend(self, label: str) -> ComputingBackend:
        return self.found.computing(self.assigned[label].framework, self.assigned[label].device.kind)

    # -- values ----------------------------------------------------------------------------------------------------

    def _inputs(self, label: str) -> tuple[str, ...]:
        """Names of a node's inputs, columns in the form in which this node takes them."""
        names = list(self.shapes.inputs[label])
        given = iter(range(len(names)))
        for upstream in self.nodes[label].upstreams:
            if isinstance(upstream, Reference):
                names[next(given)] = cols.feature_column(self.table, upstream, self.shapes, self.assigned[label]).name
            else:
                for _ in range(1 if "." in upstream else len(self.shapes.outputs[upstream])):
                    next(given)
        return tuple(names)

    def _term(self, loss: AppliedLoss) -> LossTerm:
        framework = self.shapes.frameworks[loss.on]
        self._accepted(loss.on, loss.loss, framework)
        if loss.loss.own is None and len(loss.inputs) != 2:
            raise RecipeError(f"{loss.loss.name} on {loss.on!r} compares two values, and is given {len(loss.inputs)}")
        inputs = tuple(name for text in loss.inputs for name in self._loss_input(loss, text))
        return LossTerm(loss.label, loss.on, loss.loss, inputs, self.assigned[loss.on].device, loss.weight)

    def _loss_input(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        if text == "outputs":
            return self.shapes.outputs[loss.on]
        if text == "targets":
            return (self._target(loss, *cols.targets_of(loss, self.nodes)),)
        column = cols.named_column(text, self.nodes)
        if column is not None:
            return (self._target(loss, *column),)
        name = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
        if name in self.nodes:
            return self.shapes.outputs[name]
        if name in self.shapes.specs and name.partition(".")[0] in self.nodes:
            return (name,)
        raise ColumnError(
            f"the loss on {loss.on!r} takes {text!r}, which is nothing in this graph",
            there="outputs, targets, " + ", ".join(self.shapes.specs),
            remedy="use one of these names",
        )

    def _target(self, loss: AppliedLoss, source: FeatureSet, names: tuple[str, ...]) -> str:
        stored = joined_spec(source, names)
        output = self._compared(loss)
        spec = cols.target_spec(loss, stored, output, f"{source.label}.{'+'.join(names)}")
        return self.table.want(source, names, spec, self.assigned[loss.on], "targets").name

    def _compared(self, loss: AppliedLoss) -> TensorSpec:
        """The output that a loss compares its targets with: the first that it names, else its node's."""
        for text in loss.inputs:
            if text.startswith("outputs."):
                named = f"{loss.on}.{text.partition('.')[2]}"
                if named in self.shapes.specs:
                    return self.shapes.specs[named]
        outputs = self.shapes.outputs[loss.on]
        if len(outputs) > 1 and loss.loss.own is None:
            raise RecipeError(
                f"{loss.loss.name} on {loss.on!r}: the node has several outputs",
                there=", ".join(outputs),
                remedy="write inputs=['outputs.NAME', 'targets']",
            )
        return self.shapes.specs[outputs[0]]

    # -- recipes ---------------------------------------------------------------------------------------------------

    def _accepted(self, label: str, recipe: Loss | Optimizer, framework: str) -> None:
        refusal = self.found.computing(framework).refuses(recipe)
        if refusal:
            what = "loss" if isinstance(recipe, Loss) else "optimizer"
            raise RecipeError(
                f"node {label!r} is of {framework}, which does not take the {what} {recipe.name!r}: {refusal}",
                remedy=f"use a named {what}, or one of {framework}'s own",
            )

    def _groups(self, trained: Iterable[str]) -> list[ParameterGroup]:
        groups: dict[str, ParameterGroup] = {}
        for label in trained:
            node = self.nodes[label]
            own = node.optimizer if isinstance(node, ModelNode) else None
            optimizer = own or self.graph.optimizer
            if optimizer is None:
                raise PhaseError(
                    f"node {label!r} is to be trained and has no optimizer",
                    remedy="give the graph one, ModelGraph(..., optimizer=Optimizer('adam')), or the node, or freeze it",
                )
            self._accepted(label, optimizer, self.shapes.frameworks[label])
            name = self._shared_label(label) if own else "graph"
            before = groups.get(name, ParameterGroup(name, optimizer, ()))
            groups[name] = replace(before, nodes=(*before.nodes, label))
        return list(groups.values())

    def _shared_label(self, label: str) -> str:
        """The first node with the same model: nodes that share one are one to an optimizer."""
        model = getattr(self.nodes[label], "model", None)
        return next(other for other, node in self.nodes.items() if getattr(node, "model", None) is model)

    # -- segments --------------------------------------------------------------------------------------------------

    def _segment(
        self,
        i: int,
        part: list[str],
        parts: list[list[str]],
        terms: Sequence[LossTerm],
        groups: Sequence[ParameterGroup],
        trained: Sequence[str],
    ) -> Segment:
        operations = tuple(self._operation(label, label in trained) for label in part)
        losses = tuple(term for term in terms if term.on in part)
        made = {name for operation in operations for name in operation.outputs}
        taken = {name for operation in operations for name in operation.inputs} | {n for t in losses for n in t.inputs}
        mine = [replace(group, nodes=tuple(label for label in group.nodes if label in part)) for group in groups]
        devices = self._arrivals(operations, losses)
        return Segment(
            f"{self.assigned[part[0]].framework}:{i}",
            operations,
            {name: (self._spec(name), devices[name]) for name in devices if name in taken - made},
            tuple(
                name
                for operation in operations
                for name in operation.outputs
                if name in self._needed_outside(part, terms)
            ),
            losses,
            tuple(group for group in mine if group.nodes),
            tuple(name for name in devices if name in taken - made and name in self.live),
            {label: self.graph.optimizer_states[label] for label in part if label in self.graph.optimizer_states},
        )

    def _operation(self, label: str, trainable: bool) -> Operation:
        node = self.nodes[label]
        model = node.model if isinstance(node, ModelNode) else None
        axis = -1 if isinstance(node, ModelNode) else node.axis
        return Operation(
            label, model, self.renamed[label], self.shapes.outputs[label], self.assigned[label].device, trainable, axis
        )

    def _arrivals(self, operations: Iterable[Operation], losses: Iterable[LossTerm]) -> dict[str, Device]:
        """The device on which each value arrives: that of the first who takes it."""
        devices: dict[str, Device] = {}
        takers: list[Operation | LossTerm] = [*operations, *losses]
        for taker in takers:
            for name in taker.inputs:
                devices.setdefault(name, taker.device)
        return devices

    def _spec(self, name: str) -> TensorSpec:
        column = next((column for column in self.table.columns if column.name == name), None)
        return column.spec if column else self.shapes.specs[name]

    def _needed_outside(self, part: Sequence[str], terms: Iterable[LossTerm]) -> set[str]:
        needed = {name for label in self.request.wants for name in self.shapes.outputs[label]}
        for label, names in self.renamed.items():
            if label not in part:
                needed.update(names)
        for term in terms:
            if term.on not in part:
                needed.update(term.inputs)
        return needed

    # -- the plan --------------------------------------------------------------------------------------------------

    def _plan(self, parts: Sequence[Sequence[str]], segments: Sequence[Segment], active: set[str]) -> Plan:
        idle = [label for label in self.shapes.order if label not in active]
        notes = [
            f"{label}: {one.framework} is not served on {one.written}, runs on {one.device}"
            for label, one in self.assigned.items()
            if one.reason == "fallback"
        ]
        notes += [f"{label} takes no part: no loss depends on it" for label in idle if self.request.training]
        described = tuple(
            Part(s.label, self.assigned[p[0]].framework, tuple(p)) for s, p in zip(segments, parts, strict=True)
        )
        return Plan(
            self.request.phase,
            self.graph.label,
            tuple(self.assigned.values()),
            self.table.columns,
            tuple(self._crossings(segments)),
            described,
            tuple(notes),
        )

    def _crossings(self, segments: Sequence[Segment]) -> Iterable[Crossing]:
        homes = {
            name: operation.label
            for segment in segments
            for operation in segment.operations
            for name in operation.outputs
        }
        for segment in segments:
            takers = [(operation.label, operation.inputs) for operation in segment.operations]
            takers += [(term.on, term.inputs) for term in segment.losses]
            for label, names in takers:
                for name in dict.fromkeys(names):
                    if name in homes and self._crosses(homes[name], label):
                        yield self._crossing(name, homes[name], label)

    def _crosses(self, source: str, target: str) -> bool:
        one, other = self.assigned[source], self.assigned[target]
        return one.device != other.device or one.framework != other.framework

    def _crossing(self, name: str, source: str, target: str) -> Crossing:
        one, other = self.assigned[source], self.assigned[target]
        route = "move" if self._backend(source) is self._backend(target) else "host"
        return Crossing(name, source, target, one.device, other.device, route, self.shapes.specs[name].nbytes)
