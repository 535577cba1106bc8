"""State loading: load the output of `state` into a graph; every difference is found before anything changes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyaccel.adapter.loadable_shapes import LoadableShapes
from anyaccel.adapter.weight_files import plain_state
from anyaccel.arguments import shown
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import data_config
from anyaccel.graph.state_dict import PROGRESS, SLOTS, STEP, VALUES, HasState, models_of, unknown_nodes, values_of
from anyaccel.graph.weight_loading import (
    Change,
    Names,
    check_axes,
    check_functions,
    check_shared,
    is_float,
    match,
    named_values,
    plain_names,
    problems_of,
    renamed,
)
from anyaccel.printable import printable
from anyaccel.segment import NodeState, TensorSpec
from anyaccel.user_level import user_level

_HINT = "load it into the graph that it belongs to, or load the matching parts with strict=False"


class _Difference(NamedTuple):
    """A difference, as the parts of an error."""

    problem: str
    available: str = ""
    hint: str = _HINT


class _NodePart(NamedTuple):
    """The values to load into a node, which may include current ones, and its optimizer state."""

    values: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    n_loaded: int


def load_state(graph: HasState, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load the output of `state`. Everything is checked before anything changes.

    Args:
        graph: The graph that receives the values.
        state: The state.
        strict: Refuse a state with any difference; otherwise load the arrays with the same name, shape and dtype, and
            warn about the others. A node's optimizer state is then loaded only if everything of the node is.

    Raises:
        StateError: names, shapes or dtypes are not those of the graph; without `strict`, nothing fits.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"the state of a graph must be a mapping, got {type(state).__name__}", hint="pass the result of state()"
        )
    arrays = {str(name): np.asarray(value) for name, value in state.items()}
    differences: list[_Difference] = []
    try:
        data_config.check_arrays(arrays, graph.nodes.values())
    except StateError as error:
        differences.append(_Difference(error.problem, error.available, error.hint))
    # The seed and the progress of the graph, the arrays of each node, and what belongs nowhere.
    counts: dict[str, int] = {}
    by_node: dict[str, dict[str, np.ndarray]] = {label: {} for label in models_of(graph)}
    strangers: dict[str, list[str]] = {}
    for name, array in arrays.items():
        label, _, rest = name.partition("/")
        if name.startswith(data_config.PREFIX):
            continue
        if name == "seed" or name.startswith(PROGRESS):
            if problem := _not_a_count(name, array):
                differences.append(_Difference(problem))
            else:
                counts[name] = int(array)
        elif label in by_node:
            by_node[label][rest] = array
        else:
            strangers.setdefault(label, []).append(name)
    for label, names in sorted(strangers.items()):
        problem = (
            f"the state has {', '.join(map(repr, sorted(names)))}, but graph {graph.label!r} has no node {label!r}"
        )
        differences.append(_Difference(problem, ", ".join(by_node)))
    parts: dict[str, _NodePart] = {}
    for label, arrays_of_node in by_node.items():
        part = _node_part(graph, label, arrays_of_node, differences)
        if part is not None:
            parts[label] = part
    if differences and strict:
        raise _error_of(f"the state does not fit graph {graph.label!r}", differences)
    if differences and not any(part.n_loaded for part in parts.values()):
        raise _error_of(f"nothing of the state fits graph {graph.label!r}", differences)
    for label, part in parts.items():
        if part.values and not part.n_loaded:
            continue
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
        elif STEP in by_node[label]:
            differences.append(
                _Difference(f"the optimizer state of node {label!r} is left out, so it starts from scratch")
            )
    graph.seed = counts.pop("seed", graph.seed)
    graph.progress = {name.removeprefix(PROGRESS): count for name, count in counts.items()}
    if differences:
        text = "; ".join(difference.problem for difference in differences)
        warnings.warn(printable(f"left out of graph {graph.label!r}: {text}."), UserWarning, stacklevel=user_level())


def _error_of(whole: str, differences: list[_Difference]) -> StateError:
    """Return one error for all differences, or the error of a single one."""
    if len(differences) == 1:
        problem, available, hint = differences[0]
        return StateError(problem, available=available, hint=hint)
    available = "; ".join(dict.fromkeys(difference.available for difference in differences if difference.available))
    return StateError(
        f"{whole}: {'; '.join(difference.problem for difference in differences)}", available=available, hint=_HINT
    )


def _not_a_count(name: str, array: np.ndarray) -> str:
    """Return why an array is not a count or seed; `""` if it is one."""
    if array.shape != () or array.dtype.kind not in "iu":
        return f"{name} in the state must be one integer, got {array.dtype}{list(array.shape)}"
    if int(array) < 0 and name != "seed":
        return f"{name} in the state must be at least 0, got {int(array)}"
    return ""


def _unlike(name: str, array: np.ndarray, current: np.ndarray) -> _Difference:
    return _Difference(
        f"{name} is {array.dtype}{list(array.shape)} in the state and {current.dtype}{list(current.shape)} in the graph"
    )


def _node_part(
    graph: HasState, label: str, arrays: Mapping[str, np.ndarray], differences: list[_Difference]
) -> _NodePart | None:
    """Return the fitting arrays of a node, and add its differences; None if it has no values to load into."""
    current = values_of(graph, label)
    if not current and label in unknown_nodes(graph):
        if arrays:
            differences.append(
                _Difference(
                    f"node {label!r} is not built, because it depends on an estimator that is not fitted: "
                    f"{', '.join(graph.shapes.unfitted)}",
                    hint="put the fitted estimator into the graph first: states and configurations do not contain it",
                )
            )
        return None
    backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
    n_before = len(differences)
    arrays = plain_state(backend, model, current, arrays)
    values = {name: array for name, array in arrays.items() if not name.startswith((SLOTS, STEP))}
    # Where the model takes another shape, its values are compared as if it had those that are given.
    differing = {
        name: TensorSpec(array.shape, array.dtype.name)
        for name, array in values.items()
        if name in current and array.dtype == current[name].dtype and array.shape != current[name].shape
    }
    loading = backend.capability(LoadableShapes) if differing else None
    if loading is not None:
        current = {**current, **{name: values[name] for name in loading.loadable_shapes(model, differing)}}
    missing, unknown = sorted(set(current) - set(values)), sorted(set(values) - set(current))
    if missing or unknown:
        problems = [f"it lacks {', '.join(missing)}"] if missing else []
        problems += [f"the node has no {', '.join(unknown)}"] if unknown else []
        differences.append(_Difference(f"the state of node {label!r} does not fit: {'; '.join(problems)}"))
    fitting: dict[str, np.ndarray] = {}
    for name, array in values.items():
        if name in current and array.shape == current[name].shape and array.dtype == current[name].dtype:
            fitting[name] = array
        elif name in current:
            differences.append(_unlike(f"{label}/{name}", array, current[name]))
    # Slots of named optimizers have the shape of their parameter; other optimizers may have any shape and dtype.
    optimizer = {name: array for name, array in arrays.items() if name not in values}
    slots = {name.removeprefix(SLOTS) for name in optimizer if name.startswith(SLOTS)}
    if optimizer and STEP not in optimizer:
        differences.append(_Difference(f"the state of node {label!r} has {', '.join(sorted(optimizer))} but no {STEP}"))
    else:
        named: set[str] = set()
        for rule in OPTIMIZERS.values():
            named.update(rule.slots({key: setting.default for key, setting in rule.settings.items()}))
        for name, array in optimizer.items():
            slot, _, parameter = name.removeprefix(SLOTS).partition("/")
            value = current.get(f"parameters/{parameter}")
            if name == STEP:
                if problem := _not_a_count(f"{label}/{name}", array):
                    differences.append(_Difference(problem))
            elif value is None:
                problem = f"the state of node {label!r} does not fit: it has {name}"
                differences.append(_Difference(problem, ", ".join(current)))
            elif array.dtype.kind not in "biufc" and not is_float(array.dtype):
                problem = f"{label}/{name} in the state must have a numeric dtype, got {array.dtype}"
                differences.append(_Difference(problem))
            elif slot in named and array.shape != value.shape:
                differences.append(_unlike(f"{label}/{name}", array, value))
    # Missing slots of a named optimizer for a parameter; slots of another optimizer are ignored.
    spec = getattr(graph.nodes[label], "optimizer", None) or graph.optimizer
    if spec is not None and spec.own is None:
        kept = OPTIMIZERS[spec.name].slots(spec.settings)
        parameters = {slot.partition("/")[2] for slot in slots if slot.partition("/")[0] in kept}
        parameters = {name for name in parameters if f"parameters/{name}" in current}
        lacking = [f"{SLOTS}{slot}/{name}" for name in parameters for slot in kept if f"{slot}/{name}" not in slots]
        if lacking:
            differences.append(_Difference(f"the state of node {label!r} lacks {', '.join(sorted(lacking))}"))
    all_values = fitting if len(fitting) == len(current) else {**current, **fitting}
    return _NodePart(all_values, optimizer if len(differences) == n_before else {}, len(fitting))


# -- State mapping: a state with the names and the order of axes of one framework, as that of a graph of another -------


_PARAMETERS, _BUFFERS = VALUES
HINT = "map the names: names={'IN THE STATE': 'IN THE MODEL'}, with None to skip an array"


class StateMapping:
    """Convert names and axes of a state to those of a graph, for nodes whose models are written differently.

    Names follow `ModelGraph.load_weights`. In a state, they follow `NODE/parameters/` and `NODE/buffers/`; in a
    model, they are those of its framework. Both have the prefix `NODE.` if several nodes have weights.

    Args:
        graph: The graph that the state is for.
        labels: Labels of the nodes that are mapped; others keep their names.
        names: The name in the model for each name in the state, where they differ; None drops an array.
        change: Function of the name in the model and an array of the state; it returns the array with the axes in the
            model's order. The state of an optimizer is changed in the same way, so it may only reorder values.

    Raises:
        StateError: `names` or `change` cannot be used.
    """

    def __init__(
        self, graph: HasState, labels: Sequence[str], names: Names = None, change: Change | None = None
    ) -> None:
        check_functions(names, change)
        self._names, self._change = names, change
        with_values = [label for label in models_of(graph) if values_of(graph, label)]
        self._labels = [label for label in with_values if label in labels]
        self._has_prefix = len(with_values) > 1
        self._own: dict[str, np.ndarray] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        for label in self._labels:
            values = values_of(graph, label, copy=True)
            named = named_values(graph, label, values, with_values)
            self._keys.update(named)
            self._own.update({name: values[key] for name, (_, key) in named.items()})

    def mapped(self, saved: Mapping[str, Any], *, is_part: bool = False) -> dict[str, Any]:
        """Return the state with the names and axes of the graph; the optimizer's state follows the parameters.

        Buffers that are missing in the state keep the model's values, because frameworks have different buffers.

        Args:
            saved: The state, or another mapping with its names; entries of unmapped nodes are kept.
            is_part: Whether it may lack nodes and parameters, as averages of weights do.

        Raises:
            StateError: it does not fit; the message has all differences.
        """
        places: dict[str, str] = {}  # the keys of the values of the mapped nodes in the state, by their plain names
        for label in self._labels:
            begins = tuple(f"{label}/{kind}" for kind in VALUES)
            in_state = (name for name, array in saved.items() if isinstance(array, np.ndarray))
            keys = [name.removeprefix(f"{label}/") for name in in_state if name.startswith(begins)]
            prefix = f"{label}." if self._has_prefix else ""
            places.update({f"{prefix}{name}": f"{label}/{key}" for name, key in plain_names(keys).items()})
        there = {place.partition("/")[0] for place in places.values()} if is_part else {*self._labels}
        arrays = {name: array for name, array in self._own.items() if self._keys[name][0] in there}
        theirs = {name: saved[place] for name, place in places.items()}
        names = self._names
        if is_part and isinstance(names, Mapping):
            names = {name: names[name] for name in theirs if name in names}
        found = match(theirs, arrays, names, self._change)
        found.missing = [name for name in found.missing if not is_part and self._keys[name][1].startswith(_PARAMETERS)]
        whole = f"the state does not fit {', '.join(f'node {label!r}' for label in self._labels)}"
        check_shared(found, self._keys, whole)
        check_axes(found, whole)
        if problems := problems_of(found):
            raise StateError(f"{whole}: {problems}", available=", ".join(self._own), hint=HINT)
        goes_to = {places[source]: name for name, source in renamed(theirs, arrays, names).items()}
        result = {name: arrays[name] for name in arrays if self._keys[name][1].startswith(_BUFFERS)} | found.arrays
        state = {"/".join(self._keys[name]): array for name, array in result.items()}
        values = set(places.values())
        for place, array in saved.items():
            label, _, rest = place.partition("/")
            slot, _, parameter = rest.removeprefix(SLOTS).partition("/")
            is_slot = label in self._labels and rest.startswith(SLOTS)
            parameter = f"{label}/{_PARAMETERS}{parameter}" if is_slot else ""
            if parameter in goes_to and isinstance(array, np.ndarray):
                name = goes_to[parameter]
                label, key = self._keys[name]
                place_here = f"{label}/{SLOTS}{slot}/{key.removeprefix(_PARAMETERS)}"
                state[place_here] = self._slot(array, name, saved[parameter])
            elif not values & {place, parameter}:  # those that are there were left out
                state[place] = array
        return state

    def _slot(self, array: np.ndarray, name: str, parameter: np.ndarray) -> np.ndarray:
        """Return a slot as its parameter is changed; one of another shape has no axes in common with it."""
        if array.shape != parameter.shape:
            return array
        if self._change is not None:
            # Refuse a change that does more than put values in another order: an optimizer's state would be
            # wrong.
            places = np.arange(np.prod(parameter.shape, dtype=np.int64), dtype=np.float64).reshape(parameter.shape)
            changed = np.asarray(self._change(name, places.copy()))
            if not np.array_equal(np.sort(changed, axis=None), places.reshape(-1)):
                raise StateError(
                    f"change={shown(self._change)} changes the values of {name!r}, not only their order, so "
                    "the state of its optimizer would be wrong",
                    hint="load only the weights with load_weights, and train from scratch",
                )
            array = np.asarray(self._change(name, array))
        is_cast = array.dtype == parameter.dtype
        return array.astype(self._own[name].dtype, copy=False) if is_cast else array


def mapped(graph: HasState, state: Any, names: Names, change: Change | None) -> Any:
    """Return a state as that of a graph with all nodes mapped; unchanged without a mapping.

    Raises:
        StateError: see `StateMapping`.
    """
    if names is None and change is None:
        return state
    mapping = StateMapping(graph, list(graph.nodes), names, change)
    if not isinstance(state, Mapping):
        return state
    return mapping.mapped({str(name): np.asarray(value) for name, value in state.items()})
