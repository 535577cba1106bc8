"""State loading: what `state` gave, into a graph; every difference is found before anything changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from anyaccel.adapter.loadable_shapes import LoadableShapes
from anyaccel.adapter.weight_files import plain_state
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import data_config
from anyaccel.graph.state_dict import PROGRESS, SLOTS, STEP, HasState, models_of, unknown_nodes, values_of
from anyaccel.printable import printable
from anyaccel.segment import NodeState, TensorSpec
from anyaccel.user_level import user_level

_HINT = "load it into the graph that it was taken from, or what fits of it with strict=False"


class _Difference(NamedTuple):
    """What does not fit, as the parts of an error."""

    problem: str
    available: str = ""
    hint: str = _HINT


class _NodePart(NamedTuple):
    """What is loaded into a node: all of its values, of which some may be as they are, and its optimizer state."""

    values: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    n_loaded: int


def load_state(graph: HasState, given: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load what `state` gave; all of it is checked before anything changes.

    Args:
        graph: which gets the values.
        given: the state.
        strict: refuse a state that differs in anything; else load what has the same name, shape and dtype, and warn
            of all that is left out. A node's optimizer state is then loaded only where everything of the node is.

    Raises:
        StateError: names, shapes or dtypes are not those of the graph; without `strict`, nothing fits.
    """
    if not isinstance(given, Mapping):
        raise StateError(
            f"the state of a graph must be a mapping, got {type(given).__name__}", hint="give what state() gave"
        )
    arrays = {str(name): np.asarray(value) for name, value in given.items()}
    counts, by_node, differences = _sorted(graph, arrays)
    parts = {label: _node_part(graph, label, by_node[label], differences) for label in by_node}
    if differences and strict:
        raise _error_of(f"the state does not fit graph {graph.label!r}", differences)
    if differences and not any(part is not None and part.n_loaded for part in parts.values()):
        raise _error_of(f"nothing of the state fits graph {graph.label!r}", differences)
    for label, part in parts.items():
        if part is not None and (part.n_loaded or not part.values):
            _load_node(graph, label, part)
            if STEP in by_node[label] and STEP not in part.optimizer:
                differences.append(_Difference(f"the optimizer state of node {label!r} is left out, it starts anew"))
    graph.seed = counts.pop("seed", graph.seed)
    graph.progress = {name.removeprefix(PROGRESS): count for name, count in counts.items()}
    if differences:
        text = "; ".join(difference.problem for difference in differences)
        warnings.warn(printable(f"left out of graph {graph.label!r}: {text}."), UserWarning, stacklevel=user_level())


def _error_of(whole: str, differences: Iterable[_Difference]) -> StateError:
    """One error for all differences; a single one is told by itself."""
    listed = list(differences)
    if len(listed) == 1:
        problem, available, hint = listed[0]
        return StateError(problem, available=available, hint=hint)
    available = "; ".join(dict.fromkeys(each.available for each in listed if each.available))
    return StateError(f"{whole}: {'; '.join(each.problem for each in listed)}", available=available, hint=_HINT)


def _sorted(
    graph: HasState, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, int], dict[str, dict[str, np.ndarray]], list[_Difference]]:
    """The entries of the graph (seed and progress) as ints, the arrays of each node, and what belongs nowhere."""
    transforms = {name: array for name, array in arrays.items() if name.startswith(data_config.PREFIX)}
    differences: list[_Difference] = []
    try:
        data_config.check_arrays(transforms, graph.nodes.values())
    except StateError as error:
        differences.append(_Difference(error.problem, error.available, error.hint))
    counts: dict[str, int] = {}
    by_node: dict[str, dict[str, np.ndarray]] = {label: {} for label in models_of(graph)}
    strangers: dict[str, list[str]] = {}
    for name in (each for each in arrays if each not in transforms):
        label, _, rest = name.partition("/")
        if name == "seed" or name.startswith(PROGRESS):
            problem = _not_a_count(name, arrays[name])
            if problem:
                differences.append(_Difference(problem))
            else:
                counts[name] = int(arrays[name])
        elif label in by_node:
            by_node[label][rest] = arrays[name]
        else:
            strangers.setdefault(label, []).append(name)
    for label, names in sorted(strangers.items()):
        problem = (
            f"the state has {', '.join(map(repr, sorted(names)))}, but graph {graph.label!r} has no node {label!r}"
        )
        differences.append(_Difference(problem, ", ".join(by_node)))
    return counts, by_node, differences


def _not_a_count(name: str, array: np.ndarray) -> str:
    """Why an array is no count or seed; `""` if it is one."""
    if array.shape != () or array.dtype.kind not in "iu":
        return f"{name} in the state must be one integer, got {array.dtype}{list(array.shape)}"
    if int(array) < 0 and name != "seed":
        return f"{name} in the state must be at least 0, got {int(array)}"
    return ""


def _node_part(
    graph: HasState, label: str, given: Mapping[str, np.ndarray], differences: list[_Difference]
) -> _NodePart | None:
    """What fits of the arrays of a node, whose differences are added; None if it has no values to load into."""
    current = values_of(graph, label)
    if not current and label in unknown_nodes(graph):
        if given:
            differences.append(_unbuilt(graph, label))
        return None
    given = plain_state(graph.shapes.backends[label], getattr(graph.nodes[label], "model", None), current, given)
    values = {name: array for name, array in given.items() if not name.startswith((SLOTS, STEP))}
    current = _with_loadable_shapes(graph, label, current, values)
    found = list(_value_differences(label, current, values))
    optimizer = {name: array for name, array in given.items() if name not in values}
    found_slots = [*_slot_differences(label, current, optimizer), *_lacking_slots(graph, label, current, optimizer)]
    differences += [*found, *found_slots]
    fitting = {name: array for name, array in values.items() if name in current and _alike(array, current[name])}
    all_values = fitting if len(fitting) == len(current) else {**current, **fitting}
    return _NodePart(all_values, optimizer if not found and not found_slots else {}, len(fitting))


def _with_loadable_shapes(
    graph: HasState, label: str, current: dict[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The values of a node; where the model takes another shape, as if it had those that are given."""
    backend = graph.shapes.backends[label]
    differing = {
        name: TensorSpec(array.shape, array.dtype.name)
        for name, array in given.items()
        if name in current and array.dtype == current[name].dtype and array.shape != current[name].shape
    }
    loading = backend.capability(LoadableShapes) if differing else None
    if loading is None:
        return current
    loadable = loading.loadable_shapes(getattr(graph.nodes[label], "model", None), differing)
    return {**current, **{name: given[name] for name in loadable}}


def _unbuilt(graph: HasState, label: str) -> _Difference:
    return _Difference(
        f"node {label!r} is not built, because it depends on an estimator that is not fitted: "
        f"{', '.join(graph.shapes.unfitted)}",
        hint="put the fitted estimator into the graph first: neither a state nor a configuration has it",
    )


def _value_differences(
    label: str, current: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Iterator[_Difference]:
    missing, unknown = sorted(set(current) - set(given)), sorted(set(given) - set(current))
    if missing or unknown:
        problems = [f"it lacks {', '.join(missing)}"] if missing else []
        problems += [f"the node has no {', '.join(unknown)}"] if unknown else []
        yield _Difference(f"the state of node {label!r} does not fit: {'; '.join(problems)}")
    for name, array in given.items():
        if name in current and not _alike(array, current[name]):
            yield _unlike(f"{label}/{name}", array, current[name])


def _alike(given: np.ndarray, current: np.ndarray) -> bool:
    return given.shape == current.shape and given.dtype == current.dtype


def _unlike(name: str, given: np.ndarray, current: np.ndarray) -> _Difference:
    return _Difference(
        f"{name} is {given.dtype}{list(given.shape)} in the state and {current.dtype}{list(current.shape)} in the graph"
    )


def _slot_differences(
    label: str, current: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Iterator[_Difference]:
    """Slots of named optimizers have the shape of their parameter; other optimizers may have any shape and dtype."""
    if given and STEP not in given:
        yield _Difference(f"the state of node {label!r} has {', '.join(sorted(given))} but no {STEP}")
        return
    defaults = ((rule, {key: it.default for key, it in rule.settings.items()}) for rule in OPTIMIZERS.values())
    named = {slot for rule, settings in defaults for slot in rule.slots(settings)}
    for name, array in given.items():
        slot, _, parameter = name.removeprefix(SLOTS).partition("/")
        value = current.get(f"parameters/{parameter}")
        if name == STEP:
            problem = _not_a_count(f"{label}/{name}", array)
            if problem:
                yield _Difference(problem)
        elif value is None:
            yield _Difference(f"the state of node {label!r} does not fit: it has {name}", ", ".join(current))
        elif array.dtype.kind not in "biufc":
            yield _Difference(f"{label}/{name} in the state must have a numeric dtype, got {array.dtype}")
        elif slot in named and array.shape != value.shape:
            yield _unlike(f"{label}/{name}", array, value)


def _lacking_slots(
    graph: HasState, label: str, current: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Iterator[_Difference]:
    """A part of what a named optimizer keeps for a parameter; slots of another optimizer are no part of it."""
    spec = getattr(graph.nodes[label], "optimizer", None) or graph.optimizer
    if spec is None or spec.own is not None:
        return
    kept = OPTIMIZERS[spec.name].slots(spec.settings)
    slots = {name.removeprefix(SLOTS) for name in given if name.startswith(SLOTS)}
    parameters = {slot.partition("/")[2] for slot in slots if slot.partition("/")[0] in kept}
    parameters = {name for name in parameters if f"parameters/{name}" in current}
    lacking = [f"{SLOTS}{slot}/{name}" for name in parameters for slot in kept if f"{slot}/{name}" not in slots]
    if lacking:
        yield _Difference(f"the state of node {label!r} lacks {', '.join(sorted(lacking))}")


def _load_node(graph: HasState, label: str, part: _NodePart) -> None:
    backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
    backend.load_state(model, part.values)
    graph.optimizer_states.pop(label, None)
    if STEP in part.optimizer:
        device = backend.device_of(model) or Device("cpu")
        slots: dict[str, dict[str, Any]] = {}
        for name, array in part.optimizer.items():
            if name.startswith(SLOTS):
                _, slot, parameter = name.split("/", 2)
                slots.setdefault(parameter, {})[slot] = backend.from_host(
                    np.ascontiguousarray(array).reshape(array.shape), device
                )
        graph.optimizer_states[label] = NodeState(int(part.optimizer[STEP]), slots)
