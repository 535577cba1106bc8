"""ModelGraph: nodes wired to data and to each other, an optimizer, and what training has left behind."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.errors import GraphError, StateError
from anyaccel.graph import serialization, topology
from anyaccel.graph import state_dict as states
from anyaccel.graph.drawing import mermaid, notebook
from anyaccel.graph.nodes import ModelNode, Node, check_label, checked_optimizer
from anyaccel.graph.plan import Plan
from anyaccel.graph.shape_inference import Shapes, infer, unfitted
from anyaccel.registry import registry
from anyaccel.specs import Optimizer


class ModelGraph:
    """A directed acyclic graph of models of any framework. Methods that change the graph return it.

    Args:
        nodes: ModelNode and ConcatNode, in any order.
        optimizer: for every node without one of its own: an Optimizer, or what `Optimizer(...)` takes first.
        label: its name in plans and results.
        seed: the one number from which weights of unbuilt models and random streams follow.

    Raises:
        GraphError: duplicate labels, unknown upstreams, a cycle; no node at all; a seed that is no int of 64 bits.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        optimizer: Optimizer | str | type | None = None,
        label: str = "graph",
        *,
        seed: int = 0,
    ) -> None:
        self.label = check_label(label, "a graph")
        self.optimizer = checked_optimizer(optimizer, f"graph {label!r}")
        self.seed = _checked_seed(self.label, seed)
        self.optimizer_states = states.OptimizerStates()
        self.progress: dict[str, int] = {}
        self.refresh: Callable[[], None] | None = None
        """While a phase is at work: brings models and optimizer states up to date with its programs."""
        self._shapes: Shapes | None = None
        self._nodes: dict[str, Node] = {}
        self._become(nodes)

    def __repr__(self) -> str:
        return f"ModelGraph({', '.join(self._nodes)}; {self.label!r})"

    def _become(self, nodes: Iterable[Node]) -> ModelGraph:
        found = topology.by_label(nodes)
        if not found:
            raise GraphError(f"graph {self.label!r} has no node", hint="give it ModelNode(...) objects")
        topology.topological(found)
        self._nodes, self._shapes = found, None
        self.optimizer_states.nodes = found
        return self

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by label, in the order given."""
        return self._nodes

    def __getitem__(self, label: str) -> Node:
        """A node by its label.

        Raises:
            GraphError: there is none of this label.
        """
        if label not in self._nodes:
            raise topology.unknown_node(f"graph {self.label!r} has no node {label!r}", label, self._nodes)
        return self._nodes[label]

    @property
    def frozen(self) -> tuple[str, ...]:
        """Labels of the frozen nodes."""
        return tuple(label for label, node in self._nodes.items() if isinstance(node, ModelNode) and node.frozen)

    @property
    def input_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that only data feed."""
        return tuple(label for label, node in self._nodes.items() if not topology.parents(node, self._nodes))

    @property
    def output_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that feed no other."""
        return tuple(topology.tails(self._nodes))

    @property
    def is_built(self) -> bool:
        """Whether every shape is known."""
        return self._shapes is not None

    @property
    def shapes(self) -> Shapes:
        """What `build` found."""
        self.build()
        assert self._shapes is not None
        return self._shapes

    # -- changing --------------------------------------------------------------------------------------------------

    def build(self, force: bool = False) -> ModelGraph:
        """Infer every shape, and build models that are still unbuilt. Does nothing if that is done.

        What an estimator gives is known once it is fitted; until then it and what it feeds are left open.

        Args:
            force: infer again, after a model was changed by hand.

        Raises:
            ShapeError: something does not fit; names the node and both shapes.
            NoBackendError: a model of a framework that nobody serves.
        """
        if self._shapes is None or force or unfitted(self._nodes) != self._shapes.unfitted:
            self._shapes = infer(self._nodes, registry(), self.seed)
        return self

    def add_node(self, node: Node) -> ModelGraph:
        """Add a node."""
        return self._become([*self._nodes.values(), node])

    def replace_node(self, label: str, node: Node) -> ModelGraph:
        """Put another node in the place of one; what it fed, the new one feeds, and optimizer state of the old is gone.

        Raises:
            GraphError: there is no such node, or the new one does not fit; the graph is then as it was.
        """
        self[label]
        topology.check_node(node)
        before, kept = (
            {name: other.upstreams for name, other in self._nodes.items()},
            self.optimizer_states.without(label),
        )
        others = [_rewired(other, label, node.label) if name != label else node for name, other in self._nodes.items()]
        try:
            self._become(others)
        except BaseException:
            for name, upstreams in before.items():
                self._nodes[name].upstreams = upstreams
            raise
        self.optimizer_states.clear()
        self.optimizer_states.update(kept)
        return self

    def remove_node(self, label: str) -> ModelGraph:
        """Take a node out.

        Raises:
            GraphError: there is no such node, or others depend on it.
        """
        self[label]
        dependents = topology.consumers(label, self._nodes)
        if dependents:
            raise GraphError(
                f"node {label!r} feeds {', '.join(map(repr, dependents))}",
                hint="remove or rewire these first, or use replace_node",
            )
        kept = self.optimizer_states.without(label)
        self._become([node for name, node in self._nodes.items() if name != label])
        self.optimizer_states.clear()
        self.optimizer_states.update(kept)
        return self

    def freeze(self, *labels: str | Iterable[str]) -> ModelGraph:
        """Keep the parameters of these nodes (of all, if none is named) as they are in the phases to come.

        Raises:
            GraphError: something that is no label of a node, or an empty list of labels.
        """
        return self._set_frozen(labels, True)

    def unfreeze(self, *labels: str | Iterable[str]) -> ModelGraph:
        """Train these nodes (all, if none is named) again.

        Raises:
            GraphError: as `freeze` does.
        """
        return self._set_frozen(labels, False)

    def _set_frozen(self, labels: Sequence[str | Iterable[str]], frozen: bool) -> ModelGraph:
        nodes = [self[label] for label in topology.labels_in(labels, self._nodes)]
        for node in nodes:
            if isinstance(node, ModelNode):
                node.frozen = frozen
        return self

    # -- telling ---------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """A table of nodes: framework, inputs, outputs, parameters, device. Builds the graph."""
        return mermaid.summary(self._nodes, self.shapes, registry(), self.label)

    def visualize(self, format: str = "mermaid", *, plan: Plan | None = None) -> str:
        """The graph as text for drawing, coloured by device; labels are escaped, and nothing is built or placed.

        Args:
            format: `"mermaid"`, or `"svg"` for a standalone drawing, which a notebook shows as one.
            plan: of a phase: nodes are shown where it computes them, with the routes between devices. Without one,
                where their models are now, else where they ask to be.

        Raises:
            GraphError: another format, or the plan of another graph.
        """
        return mermaid.draw(self.label, self._nodes, self._shapes, plan, registry(), format)

    def _repr_html_(self) -> str:
        return notebook.graph_html(self)

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Everything that a run needs to go on elsewhere as if it had never stopped, by name; see `graph.state`.

        Names: `NODE/parameters/NAME`, `NODE/buffers/NAME`, `NODE/optimizer/SLOT/NAME`, `NODE/optimizer_step`,
        `progress/PHASE` and `seed`. Copies in host memory, ready for `numpy.savez` or safetensors. In a callback of a
        phase that is at work it is the state of now.
        """
        if self.refresh is not None:
            self.refresh()
        return states.state(self)

    def load_state(self, given: Mapping[str, Any]) -> ModelGraph:
        """Take what `state` gave; all of it is checked before anything is changed.

        Raises:
            StateError: names, shapes or dtypes are not those of this graph.
        """
        if self.refresh is not None:
            raise StateError(f"graph {self.label!r} is at work", hint="load a state before the phase, or after it")
        return states.load_state(self, given)

    # -- configuration ---------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """The wiring as plain data, ready for JSON. Models that no backend names must be given again when read.

        Raises:
            ConfigError: an optimizer that is a framework's own class.
        """
        optimizer = self.optimizer.get_config() if self.optimizer else None
        nodes = serialization.node_configs(self._nodes.values())
        return {"label": self.label, "seed": self.seed, "optimizer": optimizer, "nodes": nodes}

    @classmethod
    def from_config(
        cls,
        given: Mapping[str, Any],
        *,
        feature_sets: Iterable[Any] = (),
        models: Mapping[str, Any] | None = None,
        allow: Iterable[type] = (),
    ) -> ModelGraph:
        """Read what `get_config` wrote.

        Args:
            given: the configuration.
            feature_sets: the data that it refers to by label.
            models: objects for nodes whose model no backend names, by node label.
            allow: further model classes that the configuration may name; others are refused, and nothing is imported.

        Raises:
            ConfigError: malformed, or it names what is not registered or was not given.
        """
        plain = serialization.checked(given, {"label", "seed", "optimizer", "nodes"}, {"nodes"}, "a graph")
        sets = serialization.by_label(feature_sets)
        own = dict(models or {})
        nodes = serialization.read_nodes(serialization.entries(plain, "nodes", "a graph"), sets, own, tuple(allow))
        optimizer = Optimizer.from_config(plain["optimizer"]) if plain.get("optimizer") else None
        graph = cls(nodes, optimizer, plain.get("label", "graph"), seed=plain.get("seed", 0))
        for label in own:
            graph[label]
        return graph


def _rewired(node: Node, old: str, new: str) -> Node:
    def rename(upstream: Any) -> Any:
        if not isinstance(upstream, str):
            return upstream
        label, dot, output = upstream.partition(".")
        return f"{new if label == old else label}{dot}{output}"

    node.upstreams = tuple(map(rename, node.upstreams))
    return node


def _checked_seed(label: str, seed: Any) -> int:
    try:
        found = operator.index(seed)
    except TypeError:
        found = 2**63
    if not -(2**63) <= found < 2**63:
        raise GraphError(f"graph {label!r}: seed={seed!r} is not an int of 64 bits", hint="write seed=0")
    return found
