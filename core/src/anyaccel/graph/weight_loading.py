"""Load and save weights: the models of a graph, and files of named arrays that other tools read and write."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.arguments import shown
from anyaccel.errors import ENVIRONMENT_ERRORS, StateError
from anyaccel.graph import topology, weight_files
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.state_dict import HasState, models_of, values_of
from anyaccel.printable import printable
from anyaccel.user_level import user_level

_MAP = "map names={'IN THE FILE': 'IN THE MODEL'}, or load the matching parts with strict=False"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """The result of `load_weights`: loaded and missing names. Names are the model's names unless stated otherwise.

    Attributes:
        loaded: Names that received values.
        missing_keys: Names that the file does not have; they keep their values.
        unexpected_keys: Names in the file that the model does not have.
        mismatched_keys: Names whose arrays differ in shape or dtype, and how; they keep their values.
        cast: Names whose values were converted, with both dtypes.
    """

    loaded: tuple[str, ...]
    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()
    mismatched_keys: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)


def save(graph: HasState, path: Any, node: str | Node | None) -> tuple[str, ...]:
    """Write parameters and buffers of a graph's models; see `ModelGraph.save_weights`. Returns the names."""
    file = weight_files.checked_path(path)
    values = _values(graph, node)
    labels = list(values)
    arrays: dict[str, np.ndarray] = {}
    for label in labels:
        named = named_values(graph, label, values[label], labels)
        arrays.update({name: values[label][key] for name, (_, key) in named.items()})
    files = [graph.shapes.backends[label].capability(WeightFiles) for label in labels]
    formats = {"" if file is None else file.safetensors_format for file in files}
    weight_files.write(file, arrays, formats.pop() if len(formats) == 1 else "")
    return tuple(arrays)


def load(
    graph: HasState, weights: Any, node: str | Node | None, names: Names, change: Change | None, strict: bool
) -> LoadedWeights:
    """Load weights into a graph's models, all or nothing; see `ModelGraph.load_weights`."""
    check_functions(names, change)
    values = _values(graph, node)
    labels = list(values)
    keys = {name: key for label in labels for name, key in named_values(graph, label, values[label], labels).items()}
    theirs = weight_files.read(weights)
    arrays = {name: values[label][key] for name, (label, key) in keys.items()}
    # A file that was written while a model was wrapped has names with those of the wrapper.
    plainly_named: dict[str, np.ndarray] = {}
    for name, array in theirs.items():
        plain = name
        for label in labels if name not in arrays and not (isinstance(names, Mapping) and name in names) else ():
            prefix = f"{label}." if len(labels) > 1 else ""
            files = graph.shapes.backends[label].capability(WeightFiles)
            if files is not None and name.startswith(prefix):
                model = getattr(graph.nodes[label], "model", None)
                plain = prefix + files.plain_name(model, name.removeprefix(prefix))
        plainly_named[plain if plain in arrays and plain not in theirs else name] = array
    matched = match(plainly_named, arrays, names, change)
    whole = f"{_told(weights)} does not fit {', '.join(f'node {label!r}' for label in labels)}"
    check_shared(matched, keys, whole)
    check_axes(matched, whole)
    if strict and (matched.missing or matched.unexpected or matched.mismatched or matched.narrowed):
        raise StateError(f"{whole}: {problems_of(matched)}", hint=_hint(matched, theirs, arrays))
    if not matched.arrays:
        raise StateError(f"{whole}: nothing matches; {problems_of(matched)}", hint=_hint(matched, theirs, arrays))
    for label in labels:
        new = {keys[name][1]: array for name, array in matched.arrays.items() if keys[name][0] == label}
        if new:
            graph.shapes.backends[label].load_state(getattr(graph.nodes[label], "model", None), values[label] | new)
    if problems := problems_of(matched):
        warnings.warn(
            printable(f"{_told(weights)} was loaded partially: {problems}."), UserWarning, stacklevel=user_level()
        )
    return LoadedWeights(
        loaded=tuple(matched.arrays),
        missing_keys=tuple(matched.missing),
        unexpected_keys=tuple(matched.unexpected),
        mismatched_keys=matched.mismatched,
        cast=matched.cast,
    )


def _told(weights: Any) -> str:
    return f"a dict of {len(weights)} arrays" if isinstance(weights, Mapping) else repr(str(weights))


def check_functions(names: Any, change: Any) -> None:
    """Check `names` and `change` of a load of weights or of a state.

    Raises:
        StateError: `names` is neither a mapping nor a function, or `change` is not a function.
    """
    if names is not None and not isinstance(names, Mapping) and not callable(names):
        raise StateError(
            f"names={shown(names)} is neither a dict nor a function", hint="write names={'IN THE FILE': 'IN THE MODEL'}"
        )
    if change is not None and not callable(change):
        raise StateError(f"change={shown(change)} is not a function", hint="write change=lambda name, array: array")


def _values(graph: HasState, node: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the values of the nodes whose models are meant: one node, or all that have weights.

    Of the nodes that share a model, it has the first.
    """
    if node is not None:
        label = topology.label_of(node, graph.nodes, graph.label)
        values = values_of(graph, label) if isinstance(graph.nodes[label], ModelNode) else {}
        if values:
            return {label: values}
    by_label = {label: values for label in models_of(graph) if (values := values_of(graph, label))}
    if node is not None:
        hint = "name a node whose model is trained by gradients" if by_label else _fit_first(graph)
        raise StateError(f"node {label!r} has no weights", available=", ".join(by_label), hint=hint)
    if not by_label:
        raise StateError(f"graph {graph.label!r} has no weights", hint=_fit_first(graph))
    return by_label


def _fit_first(graph: HasState) -> str:
    waiting = ", ".join(graph.shapes.unfitted)
    return f"fit {waiting} first, because its models depend on it" if waiting else "use a model with parameters"


def named_values(
    graph: HasState, label: str, values: Mapping[str, np.ndarray], labels: list[str]
) -> dict[str, tuple[str, str]]:
    """Return node and name in its state by each name of a value: the framework's, after the label if nodes are
    several.
    """
    backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
    files = backend.capability(WeightFiles)
    named = plain_names(values) if files is None else files.weight_names(model)
    prefix = f"{label}." if len(labels) > 1 else ""
    return {f"{prefix}{name}": (label, key) for name, key in named.items()}


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the names in the state of one model, by those without `parameters/` and `buffers/` if these are still
    unique.
    """
    whole = list(keys)
    short = [key.partition("/")[2] for key in whole]
    return dict(zip(short if len(set(short)) == len(short) else whole, whole, strict=True))


def check_shared(found: Match, keys: Mapping[str, tuple[str, str]], whole: str) -> None:
    """Check that values that a model has under several names are equal; one of the names is sufficient.

    Raises:
        StateError: they differ.
    """
    first: dict[tuple[str, str], str] = {}
    for name, array in found.arrays.items():
        other = first.setdefault(keys[name], name)
        if other != name and not np.array_equal(array, found.arrays[other], equal_nan=array.dtype.kind == "f"):
            problem = f"{whole}: {other} and {name} are one value in the model, but differ in the file"
            raise StateError(problem, hint="leave one of them out: names=lambda name: None if name == '...' else name")
    found.missing = [name for name in found.missing if keys[name] not in first]
    reported: dict[tuple[str, str], str] = {}
    for name in found.missing:
        reported.setdefault(keys[name], name)
    found.missing = list(reported.values())


def check_axes(found: Match, whole: str) -> None:
    """Refuse arrays whose axes are, or may be, in another order than the model's: values would be at wrong places.

    Raises:
        StateError: there are such arrays.
    """
    if found.transposed:
        problem = "; ".join(f"{name} is {found.mismatched[name]}" for name in found.transposed)
        name, order = next(iter(found.transposed.items()))
        raise StateError(
            f"{whole}: some arrays match only with their axes in another order, so square arrays "
            f"would be loaded in the wrong order: {problem}",
            hint=f"reorder the axes as in the model: {transposing(name, order)}",
        )
    if found.ambiguous:
        raise StateError(
            f"{whole}: the order of the axes of {', '.join(found.ambiguous)} is not known, because the file has "
            "another name for it, and its shape is the same in another order",
            hint=f"specify the order: {transposing(found.ambiguous[0])}; or, if the order is "
            "the same, pass change=lambda name, array: array",
        )


def problems_of(found: Match) -> str:
    """Return all that does not fit, as text; `""` if everything does."""
    parts = [f"missing: {', '.join(found.missing)}"] if found.missing else []
    parts += [f"unexpected: {', '.join(found.unexpected)}"] if found.unexpected else []
    parts += [f"{name} is {how}" for name, how in found.mismatched.items()]
    parts += [f"{name} is rounded from {found.cast[name]}" for name in found.narrowed]
    return "; ".join(parts)


def _hint(found: Match, theirs: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> str:
    """Return what to do, from the kind of the difference: names that differ by a prefix, or only dtypes."""
    if found.missing and found.unexpected:
        for name in found.unexpected:
            prefix = next((name.removesuffix(key) for key in own if name.endswith(f".{key}")), "")
            if prefix and any(key.removeprefix(prefix) in own for key in theirs if key.startswith(prefix)):
                return f"names=lambda name: name.removeprefix({prefix!r})"
        for name in found.missing:
            prefix = next((name.removesuffix(key) for key in theirs if name.endswith(f".{key}")), "")
            if prefix:
                return f"names=lambda name: {prefix!r} + name"
    if found.narrowed and not (found.missing or found.unexpected or found.mismatched):
        return "use strict=False to allow rounding"
    return _MAP


# -- Weight matching: which arrays of a file go where in a model, and all that does not fit ----------------------------


Names = Mapping[str, str | None] | Callable[[str], str | None] | None
"""Names in a file to names in a model; None leaves out."""
Change = Callable[[str, np.ndarray], np.ndarray]
_MAX_PERMUTED = 6  # axes, of which all orders are tried


@dataclass(kw_only=True)
class Match:
    """Arrays of a file for the names of a model.

    Attributes:
        arrays: Matching arrays, by name in the model, in the model's dtypes.
        missing: Names in the model that the file does not have.
        unexpected: Names in the file that the model does not have.
        mismatched: Names in the model, and how the file's array differs in shape or dtype.
        cast: Names in the model, with both dtypes.
        transposed: Mismatched names that would fit with their axes in another order, and the order.
        ambiguous: Names in the model whose arrays may have another order of axes, which their shape does not show.
        narrowed: Cast names whose values were rounded to a narrower dtype.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ambiguous: list[str] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)


def match(
    theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray], names: Names, change: Change | None
) -> Match:
    """Find the array of a file for each name of a model.

    Args:
        theirs: Arrays of the file.
        ours: Arrays of the model, by all of their names.
        names: The names in the model for names in the file, where they differ.
        change: Function of the name in the model and the file's array; it returns the array to load.

    Raises:
        StateError: `names` or `change` cannot be used.
    """
    result = Match()
    sources = renamed(theirs, ours, names)
    result.unexpected = [name for target, name in sources.items() if target not in ours]
    for target, name in sources.items():
        if target in ours:
            _take(result, target, name, theirs[name], ours[target], change)
    result.missing = [name for name in ours if name not in sources]
    return result


def renamed(theirs: Mapping[str, np.ndarray], ours: Mapping[str, Any], names: Names) -> dict[str, str]:
    """Return the name in the file for each name in the model, or for one that the model should have."""
    if isinstance(names, Mapping):
        unknown = [shown(name) for name in names if name not in theirs]
        if unknown:
            reversed_too = all(name in ours and value in theirs for name, value in names.items())
            raise StateError(
                f"names={shown(dict(names))}: the file has no {', '.join(unknown)}",
                available=", ".join(theirs),
                hint="swap them: " * reversed_too + "names={'IN THE FILE': 'IN THE MODEL'}",
            )
    sources: dict[str, str] = {}
    for name in theirs:
        target = _called("names", names, name) if callable(names) else (names or {}).get(name, name)
        if target is None:
            continue
        if not isinstance(target, str):
            raise StateError(
                f"names returns {shown(target)} for {name!r}", hint="return text, or None to leave the array out"
            )
        if target in sources:
            problem = f"names returns {target!r} for {sources[target]!r} and for {name!r}"
            raise StateError(problem, hint="map each array of the file to a different name")
        sources[target] = name
    return sources


def _called(argument: str, function: Callable[..., Any], name: str, *further: Any) -> Any:
    """Return the result of a user's function; its failure names the array."""
    try:
        return function(name, *further)
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {argument}={shown(function)} for {name!r}")
        raise
    except Exception as error:
        problem = f"{argument}={shown(function)} failed for {name!r}: {type(error).__name__}: {error}"
        example = "lambda name, array: array" if further else "lambda name: name"
        raise StateError(problem, hint=f"pass a function such as {example}") from error


def _take(result: Match, target: str, name: str, loaded: np.ndarray, own: np.ndarray, change: Change | None) -> None:
    """Add an array of the file to the matches or, with the reason, to the differences."""
    array = loaded if change is None else np.asarray(_called("change", change, target, loaded))
    if array.shape != own.shape:
        result.mismatched[target] = f"{_described(array)} in the file and {_described(own)} in the model"
        if change is None and sorted(array.shape) == sorted(own.shape) and array.ndim <= _MAX_PERMUTED:
            orders = permutations(range(array.ndim))
            fits = (order for order in orders if tuple(array.shape[axis] for axis in order) == own.shape)
            result.transposed[target] = next(fits)
        return
    if array.dtype != own.dtype:
        # Every value must keep its meaning: integers exactly, floats but for rounding.
        are_floats, lost = is_float(array.dtype) and is_float(own.dtype), np.empty(0)
        is_safe, kinds = np.can_cast(array.dtype, own.dtype, "safe"), {array.dtype.kind, own.dtype.kind}
        if are_floats and not is_safe:
            with np.errstate(over="ignore"):
                lost = array[np.isfinite(array) & ~np.isfinite(array.astype(own.dtype))]
        if len(lost) or not (are_floats or (is_safe and (len(kinds) == 1 or kinds == {"i", "u"}))):
            holds = (
                f", and {len(lost):,} of its values, such as {lost[0]}, would be infinite there" if len(lost) else ""
            )
            result.mismatched[target] = f"{_described(array)} in the file and {_described(own)} in the model{holds}"
            return
        result.cast[target] = f"{array.dtype} to {own.dtype}"
        if not is_safe:
            result.narrowed.append(target)
    if change is None and has_unknown_axes(name, target, array.shape):
        result.ambiguous.append(target)
    result.arrays[target] = array.astype(own.dtype, copy=False)


def _described(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def has_unknown_axes(source: str, target: str, shape: tuple[int, ...]) -> bool:
    """Whether an array may have its axes in another order in the target: its names end with other words, as they do in
    frameworks with another order (weight, kernel), and its shape would be the same.
    """
    lengths = [length for length in shape if length > 1]
    return source.rpartition(".")[2] != target.rpartition(".")[2] and len(set(lengths)) < len(lengths)


def transposing(name: str, order: tuple[int, ...] = (1, 0)) -> str:
    """Return the argument that reorders the axes of arrays with this last part of their names, as code."""
    moved = "array.T" if order == (1, 0) else f"array.transpose{order}"
    word, n_axes = name.rpartition(".")[2], len(order)
    return f"change=lambda name, array: {moved} if name.endswith({word!r}) and array.ndim == {n_axes} else array"


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating, of NumPy or of those that it lacks (bfloat16, float8)."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))
