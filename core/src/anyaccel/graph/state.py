"""A graph's state as names and NumPy arrays: parameters, buffers, optimizer, progress. Taken, given, never pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.graph.nodes import ModelNode
from anyaccel.registry import registry
from anyaccel.segment import NodeState

if TYPE_CHECKING:
    from anyaccel.graph.graph import ModelGraph


def state(graph: ModelGraph) -> dict[str, np.ndarray]:
    """Everything that a run needs to go on elsewhere as if it had never stopped.

    Names: `NODE/parameters/NAME`, `NODE/buffers/NAME`, `NODE/optimizer/SLOT/NAME`, `NODE/optimizer_step`, and
    `progress/PHASE`, the epochs that a training phase of this label has done, from which sampler order and random
    streams follow. Nodes that share a model stand once, under the first label. Copies in host memory.
    """
    found: dict[str, np.ndarray] = {"seed": np.array(graph.seed, dtype=np.int64)}
    for label, node in _models(graph).items():
        backend = _backend(graph, label)
        found.update({f"{label}/{name}": array for name, array in backend.state(node.model).items()})
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
    arrays = {name: np.asarray(value) for name, value in given.items()}
    models = _models(graph)
    parts = _by_node(arrays, models, graph.label)
    for label in models:
        _check(label, _backend(graph, label).state(models[label].model), parts[label])
    for label, node in models.items():
        backend = _backend(graph, label)
        backend.load_state(
            node.model, {k: v for k, v in parts[label].items() if k.startswith(("parameters/", "buffers/"))}
        )
        graph.optimizer_states.pop(label, None)
        if "optimizer_step" in parts[label]:
            graph.optimizer_states[label] = _optimizer_state(backend, node.model, parts[label])
    graph.progress = {
        name.partition("/")[2]: int(value) for name, value in arrays.items() if name.startswith("progress/")
    }
    graph.seed = int(arrays.get("seed", np.array(graph.seed)))
    return graph


def _models(graph: ModelGraph) -> dict[str, ModelNode]:
    graph.build()
    seen: dict[int, str] = {}
    nodes = {label: node for label, node in graph.nodes.items() if isinstance(node, ModelNode)}
    return {label: node for label, node in nodes.items() if seen.setdefault(id(node.model), label) == label}


def _backend(graph: ModelGraph, label: str) -> ComputingBackend:
    return registry().computing(graph.shapes.frameworks[label])


def _by_node(
    arrays: Mapping[str, np.ndarray], models: Mapping[str, Any], graph: str
) -> dict[str, dict[str, np.ndarray]]:
    parts: dict[str, dict[str, np.ndarray]] = {label: {} for label in models}
    for name, array in arrays.items():
        label, _, rest = name.partition("/")
        if name == "seed" or label == "progress":
            continue
        if label not in parts:
            raise StateError(
                f"the state has {name!r}, and graph {graph!r} has no node {label!r}",
                there=", ".join(models),
                remedy="load it into the graph that it was taken from",
            )
        parts[label][rest] = array
    return parts


def _check(label: str, own: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    values = {name: array for name, array in given.items() if name.startswith(("parameters/", "buffers/"))}
    missing, strange = sorted(set(own) - set(values)), sorted(set(values) - set(own))
    if missing or strange:
        lacks = [f"it lacks {', '.join(missing)}"] if missing else []
        extra = [f"the node has no {', '.join(strange)}"] if strange else []
        raise StateError(
            f"the state of node {label!r} does not fit: {'; '.join(lacks + extra)}",
            remedy="load it into the graph that it was taken from",
        )
    for name, array in values.items():
        if array.shape != own[name].shape or array.dtype != own[name].dtype:
            raise StateError(
                f"{label}/{name} is {array.dtype}{list(array.shape)} in the state",
                there=f"{own[name].dtype}{list(own[name].shape)} in the graph",
            )


def _optimizer_state(backend: ComputingBackend, model: Any, given: Mapping[str, np.ndarray]) -> NodeState:
    device = backend.device_of(model) or Device("cpu")
    slots: dict[str, dict[str, Any]] = {}
    for name, array in given.items():
        if name.startswith("optimizer/"):
            _, slot, parameter = name.split("/", 2)
            slots.setdefault(parameter, {})[slot] = backend.from_host(
                np.ascontiguousarray(array).reshape(array.shape), device
            )
    return NodeState(int(given["optimizer_step"]), slots)
