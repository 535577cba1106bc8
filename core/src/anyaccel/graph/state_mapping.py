"""State mapping: a state with the names and the order of axes of one framework, as that of a graph of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.graph.state_dict import SLOTS, VALUES, HasState, models_of, values_of
from anyaccel.graph.weight_loading import (
    check_axes,
    check_functions,
    check_shared,
    named_values,
    plain_names,
    problems_of,
)
from anyaccel.graph.weight_matching import Change, Match, Names, match, renamed

_PARAMETERS, _BUFFERS = VALUES
HINT = "say which are the same: names={'IN THE STATE': 'IN THE MODEL'}, None for what is not needed"


class StateMapping:
    """How names and axes of a state become those of a graph, for nodes whose models are written in another way.

    Names are those of `ModelGraph.load_weights`: of a state, what comes after `NODE/parameters/` and `NODE/buffers/`;
    of a model, those of its framework; both with `NODE.` before them where several nodes have weights.

    Args:
        graph: whose nodes the state is for.
        labels: of the nodes that are mapped; others keep their names.
        names: the name in the model for each in the state, where they differ; None leaves an array out.
        change: called with the name in the model and an array of the state, gives the array in the model's order of
            axes. The state of an optimizer is changed in the same way, so that it may only put values in another order.

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
            values = values_of(graph, label)
            named = named_values(graph, label, values, with_values)
            self._keys.update(named)
            self._own.update({name: values[key] for name, (_, key) in named.items()})

    def mapped(self, given: Mapping[str, Any], *, is_part: bool = False) -> dict[str, Any]:
        """The state with the names and axes of the graph; the optimizer's state goes with the parameters.

        Buffers that the state has nothing for keep the model's values: what frameworks keep beside parameters differs.

        Args:
            given: the state, or another mapping with its names; what is not of the nodes that are mapped is kept.
            is_part: whether it may lack nodes and parameters, as averages of weights do.

        Raises:
            StateError: it does not fit; the message has all differences.
        """
        places = self._places(given)
        there = {place.partition("/")[0] for place in places.values()} if is_part else {*self._labels}
        own = {name: array for name, array in self._own.items() if self._keys[name][0] in there}
        theirs = {name: given[place] for name, place in places.items()}
        names = self._name_of if is_part else self._names
        found = match(theirs, own, names, self._change)
        found.missing = [name for name in found.missing if not is_part and self._keys[name][1].startswith(_PARAMETERS)]
        self._check(found)
        goes_to = {places[source]: name for name, source in renamed(theirs, own, names).items()}
        result = {name: own[name] for name in own if self._keys[name][1].startswith(_BUFFERS)} | found.arrays
        state = {"/".join(self._keys[name]): array for name, array in result.items()}
        values = set(places.values())
        for place, array in given.items():
            parameter = self._parameter(place)
            if parameter in goes_to and isinstance(array, np.ndarray):
                name = goes_to[parameter]
                state[self._slot_place(place, name)] = self._slot(array, name, given[parameter])
            elif not values & {place, parameter}:  # those that are there were left out
                state[place] = array
        return state

    def _places(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Where the values of the mapped nodes are in a state, by their names without what comes before."""
        places = {}
        for label in self._labels:
            begins = tuple(f"{label}/{each}" for each in VALUES)
            arrays = (name for name, array in given.items() if isinstance(array, np.ndarray))
            keys = [name.removeprefix(f"{label}/") for name in arrays if name.startswith(begins)]
            prefix = f"{label}." if self._has_prefix else ""
            places.update({f"{prefix}{name}": f"{label}/{key}" for name, key in plain_names(keys).items()})
        return places

    def _name_of(self, name: str) -> str | None:
        if callable(self._names):
            return self._names(name)
        return (self._names or {}).get(name, name)

    def _parameter(self, place: str) -> str:
        """Where the parameter is that a slot of an optimizer belongs to; `""` for what is no slot of these nodes."""
        label, _, rest = place.partition("/")
        if label not in self._labels or not rest.startswith(SLOTS):
            return ""
        return f"{label}/{_PARAMETERS}{rest.removeprefix(SLOTS).partition('/')[2]}"

    def _slot_place(self, place: str, name: str) -> str:
        """Where a slot goes whose parameter has this name in the model."""
        label, key = self._keys[name]
        slot = place.partition("/")[2].removeprefix(SLOTS).partition("/")[0]
        return f"{label}/{SLOTS}{slot}/{key.removeprefix(_PARAMETERS)}"

    def _check(self, found: Match) -> None:
        whole = f"the state does not fit {', '.join(f'node {label!r}' for label in self._labels)}"
        check_shared(found, self._keys, whole)
        check_axes(found, whole)
        if problems := problems_of(found):
            raise StateError(f"{whole}: {problems}", available=", ".join(self._own), hint=HINT)

    def _slot(self, array: np.ndarray, name: str, parameter: np.ndarray) -> np.ndarray:
        """A slot as its parameter is changed; one of another shape has no axes in common with it."""
        if array.shape != parameter.shape:
            return array
        if self._change is not None:
            self._check_order(name, parameter.shape)
            array = np.asarray(self._change(name, array))
        is_cast = array.dtype == parameter.dtype
        return array.astype(self._own[name].dtype, copy=False) if is_cast else array

    def _check_order(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a change that does more than put values in another order: an optimizer's state would be wrong."""
        assert self._change is not None
        places = np.arange(np.prod(shape, dtype=np.int64), dtype=np.float64).reshape(shape)
        changed = np.asarray(self._change(name, places.copy()))
        if not np.array_equal(np.sort(changed, axis=None), places.reshape(-1)):
            raise StateError(
                f"change={shown(self._change)} changes the values of {name!r}, not only their order, so that the "
                "state of its optimizer would be wrong",
                hint="load the weights alone, with load_weights, and train anew",
            )


def mapped(graph: HasState, given: Any, names: Names, change: Change | None) -> Any:
    """A state as that of a graph, all of whose nodes are mapped; as it is if nothing says how.

    Raises:
        StateError: as of StateMapping.
    """
    if names is None and change is None:
        return given
    mapping = StateMapping(graph, list(graph.nodes), names, change)
    if not isinstance(given, Mapping):
        return given
    return mapping.mapped({str(name): np.asarray(value) for name, value in given.items()})
