"""From a graph and a request to a plan, and to the segments that carry it out. Nothing moves here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from anyaccel.accelerator import Accelerator
from anyaccel.backend import ComputingBackend
from anyaccel.data import Reference
from anyaccel.errors import GraphError, PhaseError
from anyaccel.graph import input_columns as cols
from anyaccel.graph import topology
from anyaccel.graph.device_assignment import assign
from anyaccel.graph.graph import ModelGraph
from anyaccel.graph.loss_binding import Terms, check_accepted
from anyaccel.graph.nodes import ModelNode
from anyaccel.graph.partition import cut
from anyaccel.graph.plan import Assignment, Part, Plan
from anyaccel.graph.segment_builder import Material
from anyaccel.graph.shape_inference import Shapes
from anyaccel.graph.transfers import Crossings
from anyaccel.numpy_backend.estimator import Estimator
from anyaccel.registry import Registry, registry
from anyaccel.segment import ParameterGroup, Segment
from anyaccel.specs import AppliedLoss


@dataclass(frozen=True, slots=True)
class Request:
    """What a phase asks of a graph.

    `wants` are labels of nodes whose outputs are to be kept; `streams` has the names of the streams of each feature
    set's sampler, by label; `learners` are labels of estimators that learn on the host.
    """

    phase: str
    accelerator: Accelerator | None = None
    losses: tuple[AppliedLoss, ...] = ()
    training: bool = False
    wants: tuple[str, ...] = ()
    strict: bool = False
    policy: str | None = None
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """A plan, the segments that carry it out in the order of computation, and each segment's backend.

    `live` names the values through which gradients flow: their node, or one before it, is trained. `shapes` are those
    of the whole graph.
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
        self._graph = graph
        self._request = request
        self._found = found
        self._nodes = graph.nodes
        self._shapes = graph.shapes
        self._assigned: dict[str, Assignment] = {}

    def resolve(self) -> Resolution:
        """Decide, in order: who takes part, where, what is trained, what is loaded, and in which segments."""
        active = self._active()
        self._assigned = assign(
            self._nodes,
            active,
            self._shapes,
            self._found,
            accelerator=self._request.accelerator,
            strict=self._request.strict,
            policy=self._request.policy,
        )
        material = self._material(self._in_training() if self._request.training else [])
        backends = {label: self._backend(label) for label in self._assigned}
        parts = self._parts(backends)
        segments = tuple(
            material.segment(f"{self._assigned[part[0]].framework}:{i}", part) for i, part in enumerate(parts)
        )
        plan = Plan(
            self._request.phase,
            self._graph.label,
            tuple(self._assigned.values()),
            tuple(material.columns.values()),
            tuple(Crossings(self._assigned, backends, self._shapes, material.live).of(segments)),
            tuple(
                Part(segment.label, self._assigned[part[0]].framework, tuple(part))
                for segment, part in zip(segments, parts, strict=True)
            ),
            tuple(self._notes(active)),
        )
        return Resolution(plan, segments, tuple(backends[part[0]] for part in parts), material.live, self._shapes)

    # -- who takes part, and what is trained -----------------------------------------------------------------------

    def _active(self) -> set[str]:
        request = self._request
        if request.training and not request.losses:
            raise PhaseError(
                f"phase {request.phase!r} trains and has no loss",
                available="no estimator with partial_fit that is not frozen, which would learn without",
                hint=self._to_train(),
            )
        wanted = [*request.wants, *self._judged()]
        for label in wanted:
            self._check_gives(label)
        return topology.ancestors(wanted, self._nodes)

    def _to_train(self) -> str:
        """What to do where there is neither a loss nor an estimator that learns."""
        models = {label: model for label in self._nodes if isinstance(model := self._model(label), Estimator)}
        held = [label for label, model in models.items() if model.has_partial_fit]
        loss = "give losses=[AppliedLoss('mse', on='NODE')]" if len(models) < len(self._nodes) else ""
        if held:
            return " or ".join(filter(None, (f"{held[0]!r} is frozen: graph.unfreeze({held[0]!r})", loss)))
        if models:
            label = next(iter(models))
            return " or ".join(filter(None, (f"{label!r} has no partial_fit: run a FitPhase for it", loss)))
        return loss

    def _judged(self) -> list[str]:
        """Labels of the nodes that losses are called with."""
        named = [text.partition(".")[0] for loss in self._request.losses for text in loss.inputs]
        return [*(loss.on for loss in self._request.losses), *(one for one in named if one in self._nodes)]

    def _check_gives(self, label: str) -> None:
        if label not in self._nodes:
            raise topology.unknown_node(f"phase {self._request.phase!r} names the node {label!r}", label, self._nodes)
        if self._shapes.outputs[label]:
            return
        open_ = topology.ancestors([label], self._nodes) & set(self._shapes.unfitted)
        first = next(one for one in self._shapes.order if one in open_)
        after = "" if first == label else f"{label!r}, which depends on "
        raise PhaseError(
            f"phase {self._request.phase!r} needs {after}{first!r}, an estimator that has not been fitted",
            hint=f"run a FitPhase first, FitPhase('fit', data=..., nodes={first!r}); a state or configuration that "
            "was loaded holds no estimators",
        )

    def _in_training(self) -> list[str]:
        """The nodes that losses depend on and that are not frozen: those without parameters may still be random."""
        needed = topology.ancestors(self._judged(), self._nodes)
        found = [label for label, one in self._assigned.items() if label in needed and not one.frozen]
        if not any(self._assigned[label].parameters for label in found):
            still = [
                f"{label} ({'frozen' if one.frozen else 'no parameters'})"
                for label, one in self._assigned.items()
                if label in needed
            ]
            raise PhaseError(
                f"phase {self._request.phase!r} has nothing to train",
                available=", ".join(still),
                hint="unfreeze a node that a loss depends on",
            )
        return found

    def _live(self, trained: Sequence[str]) -> frozenset[str]:
        """Names of the values through which gradients flow."""
        alive: set[str] = set()
        needed = topology.ancestors(self._judged(), self._nodes)
        for label in (label for label in self._assigned if label in needed):
            fed = alive & set(topology.parents(self._nodes[label], self._nodes))
            if fed and not getattr(self._model(label), "differentiable", True):
                raise GraphError(
                    f"node {label!r} cannot pull back, and stands between a loss and {', '.join(sorted(fed))}, trained",
                    hint="freeze what comes before it, or let no loss depend on it",
                )
            if label in trained or fed:
                alive.add(label)
        return frozenset(name for label in alive for name in self._shapes.outputs[label])

    def _groups(self, trained: Iterable[str]) -> tuple[ParameterGroup, ...]:
        groups: dict[str, ParameterGroup] = {}
        for label in trained:
            node = self._nodes[label]
            own = node.optimizer if isinstance(node, ModelNode) else None
            optimizer = own or self._graph.optimizer
            if optimizer is None:
                raise PhaseError(
                    f"node {label!r} is to be trained and has no optimizer",
                    hint="give one to the graph, ModelGraph(..., optimizer='adam'), or to the node, or freeze it",
                )
            check_accepted(label, optimizer, self._shapes.frameworks[label], self._found)
            name = self._first_with_model(label) if own else ".graph"  # which is the label of no node
            before = groups.get(name, ParameterGroup(name, optimizer, ()))
            groups[name] = replace(before, nodes=(*before.nodes, label))
        return tuple(groups.values())

    def _first_with_model(self, label: str) -> str:
        """Nodes that share a model are one to an optimizer."""
        return next(other for other in self._nodes if self._model(other) is self._model(label))

    def _model(self, label: str) -> object:
        return getattr(self._nodes[label], "model", None)

    # -- what is loaded, and in which segments ---------------------------------------------------------------------

    def _material(self, in_training: Sequence[str]) -> Material:
        trained = [label for label in in_training if self._assigned[label].parameters]
        table = cols.ColumnTable(self._request.streams)
        inputs = {label: self._inputs(label, table) for label in self._assigned}
        maker = Terms(self._nodes, self._shapes, self._assigned, table, self._found)
        return Material(
            self._nodes,
            self._shapes,
            self._assigned,
            inputs,
            terms=tuple(maker.term(loss) for loss in self._request.losses),
            columns={column.name: column for column in table.columns},
            groups=self._groups(trained),
            in_training=frozenset(in_training),
            live=self._live(trained),
            wants=self._request.wants,
            states=self._graph.optimizer_states,
        )

    def _inputs(self, label: str, table: cols.ColumnTable) -> tuple[str, ...]:
        """Names of a node's inputs, columns in the form in which this node takes them."""
        names: list[str] = []
        for upstream in self._nodes[label].upstreams:
            if isinstance(upstream, Reference):
                names.append(cols.feature_column(table, upstream, self._shapes, self._assigned[label]).name)
            else:
                names.extend((upstream,) if "." in upstream else self._shapes.outputs[upstream])
        return tuple(names)

    def _backend(self, label: str) -> ComputingBackend:
        return self._found.computing(self._assigned[label].framework, self._assigned[label].device.kind)

    def _parts(self, backends: dict[str, ComputingBackend]) -> list[list[str]]:
        owners = {label: id(backend) for label, backend in backends.items()}
        parents = self._parents(backends)
        parts = cut(list(TopologicalSorter(parents).static_order()), owners, parents)
        self._check_judged(parts)
        homes: dict[int, int] = {}
        for i, part in enumerate(parts):
            for label in part:
                model = self._model(label)
                if model is not None and homes.setdefault(id(model), i) != i:
                    raise GraphError(
                        f"node {label!r} shares its model with a node of another segment",
                        hint="give it a model of its own",
                    )
        return parts

    def _parents(self, labels: Iterable[str]) -> dict[str, list[str]]:
        """What each node waits for: its upstreams, and what the losses on it are called with beside its own outputs."""
        parents = {label: list(topology.parents(self._nodes[label], self._nodes)) for label in labels}
        for loss in self._request.losses:
            for other in self._compared(loss):
                if loss.on not in topology.ancestors([other], self._nodes) and other not in parents[loss.on]:
                    parents[loss.on].append(other)
        return parents

    def _compared(self, loss: AppliedLoss) -> list[str]:
        named = [text.partition(".")[0] for text in loss.inputs]
        return [label for label in named if label in self._assigned and label != loss.on]

    def _check_judged(self, parts: Sequence[Sequence[str]]) -> None:
        at = {label: i for i, part in enumerate(parts) for label in part}
        for loss in self._request.losses:
            late = next((other for other in self._compared(loss) if at[other] > at[loss.on]), None)
            if late is not None:
                raise GraphError(
                    f"a loss on {loss.on!r} compares with {late!r}, which another framework computes after it",
                    hint=f"put the loss on {late!r}, with inputs=['outputs', {loss.on!r}]",
                )

    def _notes(self, active: set[str]) -> Iterable[str]:
        for label, one in self._assigned.items():
            if one.reason == "fallback":
                yield f"{label}: {one.framework} is not served on {one.written}, runs on {one.device}"
            before = self._backend(label).device_of(self._model(label)) if one.reason == "default" else None
            if before is not None and before != one.device:
                yield f"{label} moves from {before} to {one.device}: neither it nor the phase asks for a device"
        yield from (f"{label} learns by partial_fit on the host, step by step" for label in self._request.learners)
        if self._request.training:
            idle = [one for one in self._shapes.order if one not in active and one not in self._request.learners]
            yield from (f"{label} takes no part: no loss depends on it" for label in idle)
