"""Weight loading and saving: the models of a graph and files of named arrays that other tools read and write."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.graph import topology, weight_files
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.state_dict import HasState, models_of, values_of
from anyaccel.graph.weight_matching import Change, Match, Names, match, transposing
from anyaccel.printable import printable
from anyaccel.user_level import user_level

_MAP = "map names={'IN THE FILE': 'IN THE MODEL'}, or load what fits with strict=False"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """What `load_weights` has loaded, and what it has not; names are those of the model if nothing else is said.

    Attributes:
        loaded: names that got values.
        missing_keys: names that the file has nothing for; they keep their values.
        unexpected_keys: names in the file that the model does not have.
        mismatched_keys: names whose arrays differ in shape or dtype, and how; they keep their values.
        cast: names whose values were converted, and from which dtype to which other.
    """

    loaded: tuple[str, ...]
    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()
    mismatched_keys: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)


def save(graph: HasState, path: Any, node: str | Node | None) -> tuple[str, ...]:
    """Write parameters and buffers of a graph's models; see `ModelGraph.save_weights`. Returns the names."""
    file = weight_files.checked_path(path)
    labels = _labels(graph, node)
    arrays: dict[str, np.ndarray] = {}
    for label in labels:
        values = values_of(graph, label)
        arrays.update({name: values[key] for name, (_, key) in named_values(graph, label, values, labels).items()})
    files = [graph.shapes.backends[label].capability(WeightFiles) for label in labels]
    formats = {"" if each is None else each.safetensors_format for each in files}
    weight_files.write(file, arrays, formats.pop() if len(formats) == 1 else "")
    return tuple(arrays)


def load(
    graph: HasState, given: Any, node: str | Node | None, names: Names, change: Change | None, strict: bool
) -> LoadedWeights:
    """Load weights into a graph's models, all or nothing; see `ModelGraph.load_weights`."""
    check_functions(names, change)
    labels = _labels(graph, node)
    values = {label: values_of(graph, label) for label in labels}
    keys = {name: key for label in labels for name, key in named_values(graph, label, values[label], labels).items()}
    theirs = weight_files.read(given)
    own = {name: values[label][key] for name, (label, key) in keys.items()}
    found = match(_plainly_named(graph, labels, theirs, own, names), own, names, change)
    whole = f"{_told(given)} does not fit {', '.join(f'node {label!r}' for label in labels)}"
    check_shared(found, keys, whole)
    check_axes(found, whole)
    if strict and (found.missing or found.unexpected or found.mismatched or found.narrowed):
        raise StateError(f"{whole}: {problems_of(found)}", hint=_hint(found, theirs, own))
    if not found.arrays:
        raise StateError(f"{whole}: nothing of it fits; {problems_of(found)}", hint=_hint(found, theirs, own))
    for label in labels:
        new = {keys[name][1]: array for name, array in found.arrays.items() if keys[name][0] == label}
        if new:
            graph.shapes.backends[label].load_state(getattr(graph.nodes[label], "model", None), values[label] | new)
    if problems := problems_of(found):
        warnings.warn(
            printable(f"{_told(given)} was loaded in part: {problems}."), UserWarning, stacklevel=user_level()
        )
    return _loaded(found)


def _plainly_named(
    graph: HasState, labels: list[str], theirs: Mapping[str, np.ndarray], own: Mapping[str, Any], names: Names
) -> dict[str, np.ndarray]:
    """The arrays of a file that was written while a model was wrapped, by the names that they have without it."""
    renamed: dict[str, np.ndarray] = {}
    for name, array in theirs.items():
        plain = name
        for label in labels if name not in own and not (isinstance(names, Mapping) and name in names) else ():
            backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
            prefix = f"{label}." if len(labels) > 1 else ""
            files = backend.capability(WeightFiles)
            if files is not None and name.startswith(prefix):
                plain = prefix + files.plain_name(model, name.removeprefix(prefix))
        renamed[plain if plain in own and plain not in theirs else name] = array
    return renamed


def _loaded(found: Match) -> LoadedWeights:
    return LoadedWeights(
        loaded=tuple(found.arrays),
        missing_keys=tuple(found.missing),
        unexpected_keys=tuple(found.unexpected),
        mismatched_keys=found.mismatched,
        cast=found.cast,
    )


def _told(given: Any) -> str:
    return f"a dict of {len(given)} arrays" if isinstance(given, Mapping) else repr(str(given))


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


def _labels(graph: HasState, node: Any) -> list[str]:
    """The nodes whose models are meant: one, or all that have weights, of those that share a model the first."""
    labels = [label for label in models_of(graph) if values_of(graph, label)]
    if node is None:
        if not labels:
            raise StateError(f"graph {graph.label!r} has no weights", hint=_fit_first(graph))
        return labels
    label = topology.label_of(node, graph.nodes, graph.label)
    if label not in labels and not (isinstance(graph.nodes[label], ModelNode) and values_of(graph, label)):
        hint = "name a node whose model is trained by gradients" if labels else _fit_first(graph)
        raise StateError(f"node {label!r} has no weights", available=", ".join(labels), hint=hint)
    return [label]


def _fit_first(graph: HasState) -> str:
    waiting = ", ".join(graph.shapes.unfitted)
    return f"fit {waiting} first, on which its models depend" if waiting else "give it a model that has parameters"


def named_values(
    graph: HasState, label: str, values: Mapping[str, np.ndarray], labels: list[str]
) -> dict[str, tuple[str, str]]:
    """Node and name in its state, by each name of a value: the framework's, after the label where nodes are several."""
    backend, model = graph.shapes.backends[label], getattr(graph.nodes[label], "model", None)
    files = backend.capability(WeightFiles)
    named = plain_names(values) if files is None else files.weight_names(model)
    prefix = f"{label}." if len(labels) > 1 else ""
    return {f"{prefix}{name}": (label, key) for name, key in named.items()}


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """The names in the state of one model, by those without `parameters/` and `buffers/` if these are still unique."""
    whole = list(keys)
    short = [key.partition("/")[2] for key in whole]
    return dict(zip(short if len(set(short)) == len(short) else whole, whole, strict=True))


def check_shared(found: Match, keys: Mapping[str, tuple[str, str]], whole: str) -> None:
    """Values that a model has under several names come once or more often, but equal; those of one name suffice.

    Raises:
        StateError: they differ.
    """
    first: dict[tuple[str, str], str] = {}
    for name, array in found.arrays.items():
        other = first.setdefault(keys[name], name)
        if not np.array_equal(array, found.arrays[other], equal_nan=array.dtype.kind == "f"):
            problem = f"{whole}: {other} and {name} are one value in the model, and differ in the file"
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
            f"{whole}: arrays would fit with their axes in another order, and square ones among the others would be "
            f"loaded in the wrong one: {problem}",
            hint=f"bring the axes into the model's order: {transposing(name, order)}",
        )
    if found.ambiguous:
        raise StateError(
            f"{whole}: the order of the axes of {', '.join(found.ambiguous)} is not known, because the file has "
            "another name for it, and its shape is the same in another order",
            hint=f"say what the order is: {transposing(found.ambiguous[0])}; or, where it is that of the "
            "model, change=lambda name, array: array",
        )


def problems_of(found: Match) -> str:
    """All that does not fit, as text; `""` if everything does."""
    parts = [f"missing: {', '.join(found.missing)}"] if found.missing else []
    parts += [f"unexpected: {', '.join(found.unexpected)}"] if found.unexpected else []
    parts += [f"{name} is {how}" for name, how in found.mismatched.items()]
    parts += [f"{name} is rounded from {found.cast[name]}" for name in found.narrowed]
    return "; ".join(parts)


def _hint(found: Match, theirs: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> str:
    """What to do, from what is wrong: names that differ by a prefix, or dtypes alone."""
    if found.missing and found.unexpected:
        for name in found.unexpected:
            prefix = next((name.removesuffix(each) for each in own if name.endswith(f".{each}")), "")
            if prefix and any(each.removeprefix(prefix) in own for each in theirs if each.startswith(prefix)):
                return f"names=lambda name: name.removeprefix({prefix!r})"
        for name in found.missing:
            prefix = next((name.removesuffix(each) for each in theirs if name.endswith(f".{each}")), "")
            if prefix:
                return f"names=lambda name: {prefix!r} + name"
    if found.narrowed and not (found.missing or found.unexpected or found.mismatched):
        return "let them be rounded with strict=False"
    return _MAP
