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
        self._states: list[tuple[Any, NodeState]] = []  # each after the model that it belongs to

    def __repr__(self) -> str:
        return repr(dict(self))

    def _model(self, label: str) -> Any:
        return getattr(self.nodes.get(label), "model", None)

    def __getitem__(self, label: str) -> NodeState:
        own_model = self._model(label)
        for model, state in self._states:
            if model is own_model:
                return state
        raise KeyError(label)

    def __setitem__(self, label: str, state: NodeState) -> None:
        own_model = self._model(label)
        if own_model is None:
            raise KeyError(label)
        self.drop(own_model)
        self._states.append((own_model, state))

    def __delitem__(self, label: str) -> None:
        self[label]  # raises KeyError if there is none
        self.drop(self._model(label))

    def __iter__(self) -> Iterator[str]:
        first_label: dict[int, str] = {}
        for label in self.nodes:
            first_label.setdefault(id(self._model(label)), label)
        return iter([first_label[id(model)] for model, _ in self._states if id(model) in first_label])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def drop(self, model: Any = None) -> None:
        """Drop the states of models that no node has any more, and that of a model."""
        living = set(map(id, map(self._model, self.nodes)))
        kept = []
        for other, state in self._states:
            if other is not model and id(other) in living:
                kept.append((other, state))
        self._states = kept


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
