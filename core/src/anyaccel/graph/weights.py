"""Copy parameters and buffers between models by name, also between frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.backend import ComputingBackend
from anyaccel.call_hints import call_hints
from anyaccel.errors import StateError
from anyaccel.graph.weight_loading import Change, has_unknown_axes, is_float, transposing
from anyaccel.registry import registry


@call_hints
def copy_weights(
    source: Any, target: Any, *, names: Mapping[str, str] | None = None, change: Change | None = None
) -> tuple[str, ...]:
    """Copy parameters and buffers from a built model into another one, on its device. The frameworks may differ.

    `SequentialMLP` and `SequentialCNN` have the same names and shapes in every framework. For other models, `names` and
    `change` map the source to the target:

        copy_weights(torch_net, keras_net, names={"layers.0.kernel": "0.weight", "layers.0.bias": "0.bias"},
                     change=lambda name, array: array.T if name.endswith("kernel") else array)

    Args:
        source: The model to copy from.
        target: The model to copy into; floating values are cast to its dtypes.
        names: The source's name for a name of the target, where they differ.
        change: Function of the target's name and the source's array; it returns the array to copy. Required for an
            array whose names end with different words (weight, kernel) and whose axes are equal, because the order of
            the axes may differ.

    Returns:
        The names of the target.

    Raises:
        StateError: names or shapes do not match; nothing is written.
        NoBackendError: no installed plugin runs a model's framework.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
        >>> teacher, student = aa.SequentialMLP([1], n_layers=1), aa.SequentialMLP([1], n_layers=1)
        >>> graph = aa.ModelGraph([aa.ModelNode("teacher", teacher, data), aa.ModelNode("student", student, data)])
        >>> sorted(aa.copy_weights(graph.build()["teacher"].model, graph["student"].model))
        ['layers.0.bias', 'layers.0.weight']
    """
    names = arguments.mapping(StateError, "copy_weights: ", "names", names, "{'TARGET': 'SOURCE'}")
    if change is not None and not callable(change):
        raise StateError(f"change={shown(change)} is not a function", hint="write change=lambda name, array: array")
    source_arrays, target_arrays = _backend(source).state(source), _backend(target).state(target)
    # The source's name for each name of the target; every name of both must be used.
    available = list(source_arrays)
    wanted = list(target_arrays)
    unknown = sorted(set(names) - set(map(_short, wanted)))
    if unknown:
        raise StateError(
            f"{type(target).__name__} has no {', '.join(unknown)}",
            available=", ".join(map(_short, wanted)),
            hint="map names={TARGET: SOURCE}",
        )
    source_names = {}
    for name in wanted:
        part, short = name.split("/", 1)
        source_names[name] = f"{part}/{names.get(short, short)}"
    missing = sorted(_short(name) for name, other in source_names.items() if other not in available)
    unused = sorted(_short(name) for name in set(available) - set(source_names.values()))
    if missing or unused:
        raise StateError(
            f"{type(source).__name__} does not fit {type(target).__name__}: "
            + "; ".join(
                [f"it has no values for {', '.join(missing)}"] * bool(missing)
                + [f"{', '.join(unused)} would be left over"] * bool(unused)
            ),
            available=", ".join(map(_short, available)),
            hint="map names={TARGET: SOURCE}",
        )
    ends = {name: (_short(source_names[name]), _short(name)) for name in wanted} if change is None else {}
    unclear = [
        ours for name, (theirs, ours) in ends.items() if has_unknown_axes(theirs, ours, target_arrays[name].shape)
    ]
    if unclear:
        raise StateError(
            f"the order of the axes of {', '.join(unclear)} is not known, because the source has another "
            "name for it, and its shape is the same in another order",
            hint=f"specify the order: {transposing(unclear[0])}; or, if the order is the "
            "same, pass change=lambda name, array: array",
        )
    values = {
        name: _converted(_short(name), source_arrays[source_names[name]], array, change)
        for name, array in target_arrays.items()
    }
    _backend(target).load_state(target, values)
    return tuple(map(_short, target_arrays))


def _backend(model: Any) -> ComputingBackend:
    if isinstance(model, np.generic):  # NumPy owns it, and its backend takes only modules
        raise StateError(f"{shown(model)} has no weights", hint="pass two built models")
    return registry().computing(registry().owner(model))


def _short(name: str) -> str:
    return name.split("/", 1)[1]


def _converted(name: str, array: np.ndarray, target: np.ndarray, change: Change | None) -> np.ndarray:
    value = array if change is None else np.asarray(change(name, array))
    floating = is_float(value.dtype) and is_float(target.dtype)
    if value.shape != target.shape or not (floating or value.dtype == target.dtype):
        raise StateError(
            f"{name} is {target.dtype}{list(target.shape)} in the target and would become "
            f"{value.dtype}{list(value.shape)}",
            hint="pass change=lambda name, array: ... to transpose or convert it",
        )
    return value.astype(target.dtype)
