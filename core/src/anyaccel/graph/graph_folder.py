"""Graph folders: what `ModelGraph.save` writes, and what `ModelGraph.load` reads of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import arguments, saved_folder
from anyaccel.data import FeatureSet
from anyaccel.errors import ConfigError
from anyaccel.graph import data_config, framework_versions, graph_config, serialization
from anyaccel.graph.nodes import checked_optimizer
from anyaccel.graph.state_dict import HasState
from anyaccel.specs import Optimizer

_PART = "graph"


@dataclass(frozen=True, kw_only=True)
class SavedGraph:
    """The parts of a graph, of which it is made again.

    Attributes:
        config: as `ModelGraph.from_config` takes it.
        feature_sets: its data: those that were given, and the others without rows.
        optimizer: in place of that in `config`, which has none then; None for that in `config`.
        classes: that `config` may name.
        arrays: its state by name.
    """

    config: Any
    feature_sets: list[FeatureSet]
    optimizer: Optimizer | None
    classes: tuple[type, ...]
    arrays: dict[str, np.ndarray]


def saved_config(graph: HasState) -> dict[str, Any]:
    """The configuration of a graph in which a framework's own optimizer is named, not written.

    Raises:
        ConfigError: the optimizer of a node is a framework's own.
    """
    return graph_config.config(graph, serialization.optimizer_entry(graph.optimizer))


def checked_extra(extra: Any) -> dict[str, Any]:
    """Further parts of the manifest, by name.

    Raises:
        ConfigError: not a mapping by names, or one is called as the graph's own part.
    """
    parts = arguments.mapping(ConfigError, "", "extra", extra)
    if _PART in parts:
        raise ConfigError("extra has a part 'graph', which is the graph itself", hint="choose another name")
    return parts


def write(folder: Any, graph: HasState, state: Mapping[str, np.ndarray], extra: Mapping[str, Any]) -> None:
    """Write a graph in its state into a folder, with further parts of the manifest; see `ModelGraph.save`."""
    versions = framework_versions.versions_of(graph.shapes.backends.values())
    saved_folder.write(folder, {**extra, _PART: saved_config(graph)}, state, versions=versions)


def read(folder: Any, feature_sets: Iterable[Any], optimizer: Any, allow: Iterable[type]) -> SavedGraph:
    """What `write` wrote, with an optimizer and data in place of those in the folder; see `ModelGraph.load`."""
    manifest, arrays = saved_folder.read(folder, _PART)
    own, classes = checked_optimizer(optimizer, "the loaded graph"), serialization.checked_classes(allow)
    config = serialization.without_optimizer(manifest[_PART]) if own else manifest[_PART]
    sets = data_config.with_schemas(config, arrays, serialization.by_label(feature_sets), classes)
    return SavedGraph(config=config, feature_sets=sets, optimizer=own, classes=classes, arrays=arrays)
