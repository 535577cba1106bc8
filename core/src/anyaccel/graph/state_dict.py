"""State dict: a graph's parameters, buffers, optimizer state and progress as NumPy arrays by name; no pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.graph import data_config
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.shape_inference import Shapes
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer

_VALUES = ("parameters/", "buffers/")
_SLOTS, _STEP, _PROGRESS = "optimizer/", "optimizer_step", "progress/"
_NAMED_SLOTS = ("velocity", "m", "v")
_HINT = "load it into the graph that it was taken from"


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
        """What is known of the built graph."""


class OptimizerStates(MutableMapping[str, NodeState]):
    """Optimizer state by node; nodes that share a model share one state, which each of their labels gives.

    A state is that of the model which its node had when it was set: a node with another model has none.

    Attributes:
        nodes: the graph's current nodes, by label.
    """

    def __init__(self) -> None:
        self.nodes: Mapping[str, Node] = {}
        self._states: dict[str, tuple[NodeState, Any]] = {}

    def __repr__(self) -> str:
        return repr(dict(self))

    def _model(self, label: str) -> Any:
        return getattr(self.nodes.get(label), "model", None)

    def sharing(self, label: str) -> list[str]:
        """Labels of the nodes with the same model, the node itself included, in the graph's order."""
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
        """The label under which the state of a node is kept."""
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
        """The states without a node; nodes that share its model keep theirs."""
        heirs = [other for other in self.sharing(label) if other != label]
        states = {home: self._states[home][0] for home in self}
        return {
            (heirs[0] if home == label else home): state for home, state in states.items() if home != label or heirs
        }


def state(graph: HasState) -> dict[str, np.ndarray]:
    """Everything that is needed to continue elsewhere; see `ModelGraph.state` for the names.

    Nodes that share a model have one entry, under the first label. Fitted estimators are not included: they are Python
    objects of the user, which only pickle could write.
    """
    arrays: dict[str, np.ndarray] = {"seed": np.array(graph.seed, dtype=np.int64)}
    for label in _models(graph):
        arrays.update({f"{label}/{name}": array for name, array in _values(graph, label).items()})
        optimizer = graph.optimizer_states.get(label)
        if optimizer is not None:
            arrays[f"{label}/optimizer_step"] = np.array(optimizer.step, dtype=np.int64)
            for parameter, slots in optimizer.slots.items():
                for slot, value in slots.items():
                    array = np.array(graph.shapes.backends[label].to_host(value))
                    arrays[f"{label}/optimizer/{slot}/{parameter}"] = array
    arrays.update(data_config.transform_arrays(graph.nodes.values()))
    arrays.update({f"progress/{phase}": np.array(epochs, dtype=np.int64) for phase, epochs in graph.progress.items()})
    return arrays


def load_state(graph: HasState, given: Mapping[str, Any]) -> None:
    """Load what `state` gave; all of it is checked before anything changes.

    Raises:
        StateError: names, shapes or dtypes are not those of the graph.
    """
    if not isinstance(given, Mapping):
        raise StateError(
            f"the state of a graph must be a mapping, got {type(given).__name__}", hint="give what state() gave"
        )
    arrays = {str(name): np.asarray(value) for name, value in given.items()}
    models = _models(graph)
    transforms = {name: array for name, array in arrays.items() if name.startswith(data_config.PREFIX)}
    data_config.check_arrays(transforms, graph.nodes.values())
    counts, by_node = _sorted(
        {name: array for name, array in arrays.items() if name not in transforms}, models, graph.label
    )
    unknown = _unknown(graph)
    for label in models:
        current = _values(graph, label)
        if by_node[label] and not current and label in unknown:
            raise StateError(
                f"node {label!r} is not built, because it depends on an estimator that is not fitted: "
                f"{', '.join(graph.shapes.unfitted)}",
                hint="put the fitted estimator into the graph first: neither a state nor a configuration has it",
            )
        _check(label, current, by_node[label])
        _check_slots_complete(graph, label, by_node[label])
    for label, node in models.items():
        if label not in unknown or _values(graph, label):
            _load_node(graph, label, node.model, by_node[label])
    graph.seed = counts.pop("seed", graph.seed)
    graph.progress = {name.removeprefix(_PROGRESS): count for name, count in counts.items()}


def _load_node(graph: HasState, label: str, model: Any, arrays: Mapping[str, np.ndarray]) -> None:
    backend = graph.shapes.backends[label]
    backend.load_state(model, {name: array for name, array in arrays.items() if name.startswith(_VALUES)})
    graph.optimizer_states.pop(label, None)
    if _STEP in arrays:
        graph.optimizer_states[label] = _optimizer_state(backend, model, arrays)


def _values(graph: HasState, label: str) -> dict[str, np.ndarray]:
    """Parameters and buffers of a node; none if it cannot be built before an estimator is fitted."""
    try:
        return dict(graph.shapes.backends[label].state(getattr(graph.nodes[label], "model", None)))
    except StateError:
        if label in _unknown(graph):
            return {}
        raise


def _unknown(graph: HasState) -> set[str]:
    """Labels of the nodes whose outputs are unknown until an estimator is fitted."""
    return {label for label, names in graph.shapes.outputs.items() if not names}


def _models(graph: HasState) -> dict[str, ModelNode]:
    """Nodes with models; of those that share a model, the first."""
    seen: dict[int, str] = {}
    nodes = {label: node for label, node in graph.nodes.items() if isinstance(node, ModelNode)}
    return {label: node for label, node in nodes.items() if seen.setdefault(id(node.model), label) == label}


def _sorted(
    arrays: Mapping[str, np.ndarray], models: Mapping[str, Any], graph: str
) -> tuple[dict[str, int], dict[str, dict[str, np.ndarray]]]:
    """The entries of the graph (seed and progress) as ints, and the arrays of each node."""
    counts: dict[str, int] = {}
    by_node: dict[str, dict[str, np.ndarray]] = {label: {} for label in models}
    for name, array in arrays.items():
        label, _, rest = name.partition("/")
        if name == "seed" or name.startswith(_PROGRESS):
            counts[name] = _count(name, array)
        elif label in by_node:
            by_node[label][rest] = array
        else:
            raise StateError(
                f"the state has {name!r}, but graph {graph!r} has no node {label!r}",
                available=", ".join(models),
                hint=_HINT,
            )
    return counts, by_node


def _count(name: str, array: np.ndarray) -> int:
    if array.shape != () or array.dtype.kind not in "iu":
        raise StateError(f"{name} in the state must be one integer, got {array.dtype}{list(array.shape)}")
    if int(array) < 0 and name != "seed":
        raise StateError(f"{name} in the state must be at least 0, got {int(array)}")
    return int(array)


def _check(label: str, current: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    values = {name: array for name, array in given.items() if not name.startswith((_SLOTS, _STEP))}
    missing, unknown = sorted(set(current) - set(values)), sorted(set(values) - set(current))
    if missing or unknown:
        problems = [f"it lacks {', '.join(missing)}"] if missing else []
        problems += [f"the node has no {', '.join(unknown)}"] if unknown else []
        raise StateError(f"the state of node {label!r} does not fit: {'; '.join(problems)}", hint=_HINT)
    for name, array in values.items():
        _check_like(f"{label}/{name}", array, current[name], with_dtype=True)
    _check_optimizer(label, current, {name: array for name, array in given.items() if name not in values})


def _check_optimizer(label: str, current: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    """Slots of named optimizers have the shape of their parameter; other optimizers may have any shape and dtype."""
    if not given:
        return
    if _STEP not in given:
        raise StateError(f"the state of node {label!r} has {', '.join(sorted(given))} but no {_STEP}", hint=_HINT)
    for name, array in given.items():
        parameter = f"parameters/{name.removeprefix(_SLOTS).partition('/')[2]}"
        if name == _STEP:
            _count(f"{label}/{name}", array)
        elif parameter not in current:
            raise StateError(
                f"the state of node {label!r} does not fit: it has {name}", available=", ".join(current), hint=_HINT
            )
        elif array.dtype.kind not in "biufc":
            raise StateError(f"{label}/{name} in the state must have a numeric dtype, got {array.dtype}")
        elif name.removeprefix(_SLOTS).partition("/")[0] in _NAMED_SLOTS:
            _check_like(f"{label}/{name}", array, current[parameter], with_dtype=False)


def _check_slots_complete(graph: HasState, label: str, given: Mapping[str, np.ndarray]) -> None:
    """Refuse a part of what a named optimizer keeps for a parameter; slots of another optimizer are no part of it."""
    spec = getattr(graph.nodes[label], "optimizer", None) or graph.optimizer
    if spec is None or spec.own is not None:
        return
    kept = ("m", "v") if "betas" in spec.settings else ("velocity",)
    slots = {name.removeprefix(_SLOTS) for name in given if name.startswith(_SLOTS)}
    parameters = {slot.partition("/")[2] for slot in slots if slot.partition("/")[0] in kept}
    lacking = [f"{_SLOTS}{slot}/{name}" for name in parameters for slot in kept if f"{slot}/{name}" not in slots]
    if lacking:
        raise StateError(f"the state of node {label!r} lacks {', '.join(sorted(lacking))}", hint=_HINT)


def _check_like(name: str, given: np.ndarray, current: np.ndarray, *, with_dtype: bool) -> None:
    if given.shape != current.shape or (with_dtype and given.dtype != current.dtype):
        raise StateError(
            f"{name} is {given.dtype}{list(given.shape)} in the state and {current.dtype}{list(current.shape)} in the "
            "graph",
            hint=_HINT,
        )


def _optimizer_state(backend: ComputingBackend, model: Any, given: Mapping[str, np.ndarray]) -> NodeState:
    device = backend.device_of(model) or Device("cpu")
    slots: dict[str, dict[str, Any]] = {}
    for name, array in given.items():
        if name.startswith(_SLOTS):
            _, slot, parameter = name.split("/", 2)
            slots.setdefault(parameter, {})[slot] = backend.from_host(
                np.ascontiguousarray(array).reshape(array.shape), device
            )
    return NodeState(int(given[_STEP]), slots)
