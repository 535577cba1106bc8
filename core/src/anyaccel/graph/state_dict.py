"""State dict: a graph's parameters, buffers, optimizer state and progress as NumPy arrays by name; no pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from anyaccel.errors import StateError
from anyaccel.graph import data_config
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.shape_inference import Shapes
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer

VALUES = ("parameters/", "buffers/")
"""How the names of a node's values start in a state."""
SLOTS, STEP, PROGRESS = "optimizer/", "optimizer_step", "progress/"


def is_of_optimizer(name: str) -> bool:
    """Return whether an entry of a graph's state belongs to the optimizer of a node."""
    return name.partition("/")[2].startswith((SLOTS, STEP)) and not name.startswith(PROGRESS)


class HasState(Protocol):
    """The parts of a graph that its state consists of."""

    label: str
    seed: int
    progress: dict[str, int]
    optimizer: Optimizer | None
    optimizer_states: OptimizerStates

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by label."""

    @property
    def shapes(self) -> Shapes:
        """The shapes and dtypes of the built graph."""


class OptimizerStates(MutableMapping[str, NodeState]):
    """Optimizer state by node; nodes that share a model share one state, under each of their labels.

    A state belongs to the model that its node had when it was set: a node with another model has none.

    Attributes:
        nodes: Current nodes of the graph, by label.
    """

    def __init__(self) -> None:
        self.nodes: Mapping[str, Node] = {}
        self._states: dict[str, tuple[NodeState, Any]] = {}

    def __repr__(self) -> str:
        return repr(dict(self))

    def _model(self, label: str) -> Any:
        return getattr(self.nodes.get(label), "model", None)

    def sharing(self, label: str) -> list[str]:
        """Return labels of the nodes with the same model, the node itself included, in the graph's order."""
        model = self._model(label)
        if model is None:
            return []
        return [other for other in self.nodes if self._model(other) is model]

    def _drop_replaced(self) -> None:
        """Drop the states of models that no node has any more; one that another node has goes there."""
        for home, (state, model) in list(self._states.items()):
            if model is not self._model(home):
                del self._states[home]
                heir = next((label for label in self.nodes if model is not None and self._model(label) is model), None)
                if heir is not None:
                    self._states[heir] = state, model

    def _home(self, label: str) -> str:
        """Return the label under which the state of a node is kept."""
        self._drop_replaced()
        return next(iter(self.sharing(label)), label)

    def __getitem__(self, label: str) -> NodeState:
        return self._states[self._home(label)][0]

    def __setitem__(self, label: str, state: NodeState) -> None:
        self._states[self._home(label)] = state, self._model(label)

    def __delitem__(self, label: str) -> None:
        del self._states[self._home(label)]

    def __iter__(self) -> Iterator[str]:
        self._drop_replaced()
        return iter(self._states)

    def __len__(self) -> int:
        self._drop_replaced()
        return len(self._states)

    def replace(self, states: Mapping[str, NodeState]) -> None:
        """Keep these states and no other."""
        self.clear()
        self.update(states)

    def without(self, label: str) -> dict[str, NodeState]:
        """Return the states without a node; nodes that share its model keep theirs."""
        heirs = [other for other in self.sharing(label) if other != label]
        states = {home: self._states[home][0] for home in self}
        return {
            (heirs[0] if home == label else home): state for home, state in states.items() if home != label or heirs
        }


def entries(
    graph: HasState, optimizer_states: Mapping[str, NodeState], *, copy: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield everything that is needed to continue elsewhere, by name; see `ModelGraph.state` for the names.

    Nodes that share a model have one entry, under the first label. Fitted estimators are not included: they are Python
    objects of the user, which only pickle could write.

    Args:
        graph: The graph.
        optimizer_states: The state of the optimizer of each node that has one.
        copy: False yields arrays to be read at once, on the memory of models and optimizer states if possible.
    """
    yield "seed", np.array(graph.seed, dtype=np.int64)
    for label in models_of(graph):
        for name, array in values_of(graph, label, copy=copy).items():
            yield f"{label}/{name}", array
        optimizer = optimizer_states.get(label)
        if optimizer is not None:
            yield f"{label}/{STEP}", np.array(optimizer.step, dtype=np.int64)
            for parameter, slots in optimizer.slots.items():
                for slot, value in slots.items():
                    array = graph.shapes.backends[label].to_host(value)
                    yield f"{label}/{SLOTS}{slot}/{parameter}", np.array(array) if copy else array
    yield from data_config.data_configs(graph.nodes.values())[1].items()
    for phase, epochs in graph.progress.items():
        yield f"{PROGRESS}{phase}", np.array(epochs, dtype=np.int64)


def values_of(graph: HasState, label: str, *, copy: bool = False) -> dict[str, np.ndarray]:
    """Return parameters and buffers of a node; none if it cannot be built before an estimator is fitted.

    Args:
        graph: The graph.
        label: Label of the node.
        copy: False returns arrays to be read at once, from the model's own memory if possible.
    """
    backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
    try:
        return dict(backend.state(model) if copy else backend.live_state(model))
    except StateError:
        if label in unknown_nodes(graph):
            return {}
        raise


def unknown_nodes(graph: HasState) -> set[str]:
    """Return labels of the nodes whose outputs are unknown until an estimator is fitted."""
    return {label for label, names in graph.shapes.outputs.items() if not names}


def models_of(graph: HasState) -> dict[str, ModelNode]:
    """Return nodes with models; among nodes that share a model, the first."""
    seen: dict[int, str] = {}
    nodes = {label: node for label, node in graph.nodes.items() if isinstance(node, ModelNode)}
    return {label: node for label, node in nodes.items() if seen.setdefault(id(node.model), label) == label}
