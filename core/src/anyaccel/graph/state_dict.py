"""A graph's state as names and NumPy arrays: parameters, buffers, optimizer, progress. Taken, given, never pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.registry import registry
from anyaccel.segment import NodeState

if TYPE_CHECKING:
    from anyaccel.graph.graph import ModelGraph

_VALUES = ("parameters/", "buffers/")
_SLOTS, _STEP, _PROGRESS = "optimizer/", "optimizer_step", "progress/"
_NAMED_SLOTS = ("velocity", "m", "v")
_REMEDY = "load it into the graph that it was taken from"


class OptimizerStates(MutableMapping[str, NodeState]):
    """What training left of each node's optimizer. Nodes that share a model share one, found under each of them.

    Attributes:
        nodes: the graph's nodes of now, by label.
    """

    def __init__(self) -> None:
        self.nodes: Mapping[str, Node] = {}
        self._kept: dict[str, NodeState] = {}

    def __repr__(self) -> str:
        return repr(self._kept)

    def sharing(self, label: str) -> list[str]:
        """Labels of the nodes that have the same model as one has, its own among them, in the graph's order."""
        model = getattr(self.nodes.get(label), "model", None)
        every = self.nodes.items() if model is not None else ()
        return [other for other, node in every if getattr(node, "model", None) is model]

    def _home(self, label: str) -> str:
        return next(iter(self.sharing(label)), label)

    def __getitem__(self, label: str) -> NodeState:
        return self._kept[self._home(label)]

    def __setitem__(self, label: str, state: NodeState) -> None:
        self._kept[self._home(label)] = state

    def __delitem__(self, label: str) -> None:
        del self._kept[self._home(label)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def without(self, label: str) -> dict[str, NodeState]:
        """All but what one node alone has: where others share its model, they have it."""
        heirs = [other for other in self.sharing(label) if other != label]
        return {
            (heirs[0] if home == label else home): state for home, state in self._kept.items() if home != label or heirs
        }


def state(graph: ModelGraph) -> dict[str, np.ndarray]:
    """Everything that a run needs to go on elsewhere as if it had never stopped.

    Names: `NODE/parameters/NAME`, `NODE/buffers/NAME`, `NODE/optimizer/SLOT/NAME`, `NODE/optimizer_step`, and
    `progress/PHASE`, the epochs that a training phase of this label has done, from which sampler order and random
    streams follow. Nodes that share a model stand once, under the first label. Copies in host memory. What estimators
    have learnt is not in it: it is in objects of the user's, which only pickle could write.
    """
    found: dict[str, np.ndarray] = {"seed": np.array(graph.seed, dtype=np.int64)}
    for label in _models(graph):
        backend = _backend(graph, label)
        found.update({f"{label}/{name}": array for name, array in _values(graph, label).items()})
        kept = graph.optimizer_states.get(label)
        if kept is not None:
            found[f"{label}/optimizer_step"] = np.array(kept.step, dtype=np.int64)
            for parameter, slots in kept.slots.items():
                for slot, value in slots.items():
                    found[f"{label}/optimizer/{slot}/{parameter}"] = np.array(backend.to_host(value))
    found.update({f"progress/{phase}": np.array(done, dtype=np.int64) for phase, done in graph.progress.items()})
    return found


def load_state(graph: ModelGraph, given: Mapping[str, Any]) -> ModelGraph:
    """Take what `state` gave; all of it is checked before anything is changed.

    Raises:
        StateError: names, shapes or dtypes are not those of this graph.
    """
    if not isinstance(given, Mapping):
        raise StateError(f"a {type(given).__name__} is not the state of a graph", hint="give what state() gave")
    arrays = {str(name): np.asarray(value) for name, value in given.items()}
    models = _models(graph)
    counts, parts = _sorted(arrays, models, graph.label)
    for label in models:
        own = _values(graph, label)
        if parts[label] and not own and label in _open(graph):
            raise StateError(
                f"node {label!r} cannot take a state: not built yet, it depends on an estimator that is not fitted",
                available=", ".join(graph.shapes.unfitted),
                hint="put the fitted estimator into the graph first: neither a state nor a configuration holds it",
            )
        _check(label, own, parts[label])
    for label, node in models.items():
        if label in _open(graph) and not _values(graph, label):
            continue
        backend = _backend(graph, label)
        backend.load_state(node.model, {k: v for k, v in parts[label].items() if k.startswith(_VALUES)})
        graph.optimizer_states.pop(label, None)
        if _STEP in parts[label]:
            graph.optimizer_states[label] = _optimizer_state(backend, node.model, parts[label])
    graph.seed = counts.pop("seed", graph.seed)
    graph.progress = {name.removeprefix(_PROGRESS): count for name, count in counts.items()}
    return graph


def _values(graph: ModelGraph, label: str) -> dict[str, np.ndarray]:
    """Parameters and buffers of a node; none of one that cannot be built before an estimator is fitted."""
    try:
        return dict(_backend(graph, label).state(getattr(graph.nodes[label], "model", None)))
    except StateError:
        if label in _open(graph):
            return {}
        raise


def _open(graph: ModelGraph) -> set[str]:
    """Labels of the nodes of which it is not known what they give."""
    return {label for label, names in graph.shapes.outputs.items() if not names}


def _models(graph: ModelGraph) -> dict[str, ModelNode]:
    graph.build()
    seen: dict[int, str] = {}
    nodes = {label: node for label, node in graph.nodes.items() if isinstance(node, ModelNode)}
    return {label: node for label, node in nodes.items() if seen.setdefault(id(node.model), label) == label}


def _backend(graph: ModelGraph, label: str) -> ComputingBackend:
    return registry().computing(graph.shapes.frameworks[label])


def _sorted(
    arrays: Mapping[str, np.ndarray], models: Mapping[str, Any], graph: str
) -> tuple[dict[str, int], dict[str, dict[str, np.ndarray]]]:
    """What belongs to the graph (its seed, and progress by name), and what belongs to each node."""
    counts: dict[str, int] = {}
    parts: dict[str, dict[str, np.ndarray]] = {label: {} for label in models}
    for name, array in arrays.items():
        label, _, rest = name.partition("/")
        if name == "seed" or name.startswith(_PROGRESS):
            counts[name] = _count(name, array)
        elif label in parts:
            parts[label][rest] = array
        else:
            raise StateError(
                f"the state has {name!r}, and graph {graph!r} has no node {label!r}",
                available=", ".join(models),
                hint=_REMEDY,
            )
    return counts, parts


def _count(name: str, array: np.ndarray) -> int:
    if array.shape != () or array.dtype.kind not in "iu":
        raise StateError(f"{name} is {array.dtype}{list(array.shape)} in the state", available="it is one integer")
    if int(array) < 0 and name != "seed":
        raise StateError(f"{name} is {int(array)} in the state", available="it is a count")
    return int(array)


def _check(label: str, own: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    values = {name: array for name, array in given.items() if not name.startswith((_SLOTS, _STEP))}
    missing, strange = sorted(set(own) - set(values)), sorted(set(values) - set(own))
    if missing or strange:
        lacks = [f"it lacks {', '.join(missing)}"] if missing else []
        extra = [f"the node has no {', '.join(strange)}"] if strange else []
        raise StateError(f"the state of node {label!r} does not fit: {'; '.join(lacks + extra)}", hint=_REMEDY)
    for name, array in values.items():
        _check_like(f"{label}/{name}", array, own[name], with_dtype=True)
    _check_optimizer(label, own, {name: array for name, array in given.items() if name not in values})


def _check_optimizer(label: str, own: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    """Slots of named optimizers are of the shape of their parameter; those of others, and dtypes, are their choice."""
    if not given:
        return
    if _STEP not in given:
        raise StateError(f"the state of node {label!r} has {', '.join(sorted(given))}, and no {_STEP}", hint=_REMEDY)
    for name, array in given.items():
        parameter = f"parameters/{name.removeprefix(_SLOTS).partition('/')[2]}"
        if name == _STEP:
            _count(f"{label}/{name}", array)
        elif parameter not in own:
            raise StateError(
                f"the state of node {label!r} does not fit: it has {name}", available=", ".join(own), hint=_REMEDY
            )
        elif array.dtype.kind not in "biuf":
            raise StateError(f"{label}/{name} is of {array.dtype} in the state", available="optimizers keep numbers")
        elif name.removeprefix(_SLOTS).partition("/")[0] in _NAMED_SLOTS:
            _check_like(f"{label}/{name}", array, own[parameter], with_dtype=False)


def _check_like(name: str, given: np.ndarray, own: np.ndarray, *, with_dtype: bool) -> None:
    if given.shape != own.shape or (with_dtype and given.dtype != own.dtype):
        raise StateError(
            f"{name} is {given.dtype}{list(given.shape)} in the state",
            available=f"{own.dtype}{list(own.shape)} in the graph",
            hint=_REMEDY,
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
