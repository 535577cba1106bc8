"""Data configuration: columns and transforms of the feature sets that a graph was built on, without their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import DataSchema, FeatureSet, Reference
from anyaccel.data.data_schema import column_config
from anyaccel.data.transforms import read_transforms, relevant_transforms
from anyaccel.errors import ConfigError, StateError
from anyaccel.graph import topology
from anyaccel.graph.nodes import Node

PREFIX = "transforms/"
_COMPARED = ("class", "columns", "results", "shapes", "result_shapes", "state", "fillers")
_HINT = "pass the dict from get_config()"
_SAME = "pass data with the same transforms: new.transform_like(data), or let ModelGraph.load(folder) restore them"


def data_configs(nodes: Iterable[Node]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return, for each feature set of a graph, its columns and the transforms that the graph uses, and their arrays."""
    nodes, configs, arrays = list(nodes), {}, dict[str, np.ndarray]()
    for label, feature_set in topology.feature_sets(nodes).items():
        # The transforms of the columns that nodes take, and of the targets, the oldest first.
        names: dict[str, None] = {}
        for node in nodes:
            for upstream in node.upstreams:
                if isinstance(upstream, Reference) and upstream.feature_set is feature_set:
                    names.update(dict.fromkeys((*upstream.features, *upstream.targets)))
        relevant = relevant_transforms(feature_set.transforms, [*names, *feature_set.targets])[::-1]
        configs[label] = {
            "columns": {name: column_config(feature_set, name) for name in feature_set.columns},
            "transforms": [
                transform.get_config(arrays, f"{PREFIX}{label}/{number}") for number, transform in enumerate(relevant)
            ],
        }
    return configs, arrays


def check_transforms(written: Any, feature_sets: Mapping[str, FeatureSet], nodes: Iterable[Node]) -> None:
    """Check that data given for a configuration have the transforms that it knows of; arrays aside.

    Raises:
        ConfigError: they do not, or the configuration is malformed.
    """
    current, _ = data_configs(nodes)
    for label, config in (written if isinstance(written, Mapping) else {}).items():
        if label not in current or isinstance(feature_sets.get(label), DataSchema):
            continue
        expected, own = _listed(label, config), current[label]["transforms"]
        matter = [[[config.get(key) for key in _COMPARED] for config in configs] for configs in (expected, own)]
        if matter[0] != matter[1]:
            raise ConfigError(
                f"the data of the graph have other transforms than the given {label!r}",
                cause=f"the graph: {_shown(expected)}; given: {_shown(own)}",
                hint=_SAME,
            )


def check_arrays(state: Mapping[str, np.ndarray], nodes: Iterable[Node]) -> None:
    """Check that the arrays of transforms in a state equal those of the transforms of a graph's data.

    Raises:
        StateError: they differ; names the transforms.
    """
    saved = {name: array for name, array in state.items() if name.startswith(PREFIX)}
    configs, current = data_configs(nodes)
    different = {name for name in {*saved, *current} if not _equal(saved.get(name), current.get(name))}
    if not different:
        return
    labels = sorted({name.removeprefix(PREFIX).partition("/")[0] for name in different})
    own = {label: _shown(configs[label]["transforms"]) for label in labels if label in configs}
    lacking = sorted(name.removeprefix(PREFIX) for name in different if name not in current)
    raise StateError(
        f"the data of this graph have other transforms than the data of the state: {', '.join(labels)}",
        cause="; ".join(
            [f"transforms of {label!r} here: {names}" for label, names in own.items()]
            + [f"the state has {', '.join(lacking[:5])}" * bool(lacking)]
            + ["the state has no transforms" * (not saved)]
        ).strip("; "),
        hint="build the graph on data with the same transforms: new.transform_like(data); "
        "ModelGraph.load(folder) restores them",
    )


def _equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    if first is None or second is None:
        return False
    is_float = first.dtype.kind == "f"
    return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=is_float)


def with_schemas(
    config: Any, arrays: Mapping[str, np.ndarray], feature_sets: Mapping[str, FeatureSet], allow: Iterable[type] = ()
) -> list[FeatureSet]:
    """Return the given feature sets, and those that a graph's configuration has in addition, without rows.

    Raises:
        ConfigError: malformed, or a transform that cannot be read.
        TransformError: the library of a transform is not installed.
    """
    data = config.get("data") if isinstance(config, Mapping) else None
    read = dict(feature_sets)
    for label, entry in (data if isinstance(data, Mapping) else {}).items():
        if label not in read:
            transforms = read_transforms(_listed(label, entry), arrays, allow)
            columns = entry.get("columns")
            if not isinstance(columns, Mapping) or not all(isinstance(it, Mapping) for it in columns.values()):
                raise ConfigError(f"{shown(columns)} are not the columns of the data {label!r}", hint=_HINT)
            read[label] = DataSchema.of(label, columns, transforms)
    return list(read.values())


def _listed(label: str, entry: Any) -> list[Mapping[str, Any]]:
    transforms = entry.get("transforms") if isinstance(entry, Mapping) else None
    if not isinstance(transforms, list) or not all(isinstance(entry, Mapping) for entry in transforms):
        raise ConfigError(f"{shown(entry)} is not the configuration of the data {label!r}", hint=_HINT)
    return transforms


def _shown(configs: Iterable[Mapping[str, Any]]) -> str:
    shown_configs = (f"{config.get('class')} on {', '.join(config.get('columns', ()))}" for config in configs)
    return "; ".join(shown_configs) or "no transforms"
