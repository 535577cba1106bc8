"""Graph configuration: what a graph consists of as plain data, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel import arguments
from anyaccel.errors import ConfigError
from anyaccel.graph import data_config, serialization, topology
from anyaccel.graph.state_dict import HasState


def config(graph: HasState, optimizer: dict[str, Any] | None) -> dict[str, Any]:
    """The configuration of a graph, with that of its optimizer."""
    nodes = serialization.node_configs(graph.nodes.values())
    data, _ = data_config.data_configs(graph.nodes.values())
    return {"label": graph.label, "seed": graph.seed, "optimizer": optimizer, "nodes": nodes, "data": data}


def read(
    given: Mapping[str, Any], feature_sets: Iterable[Any], models: Mapping[str, Any] | None, allow: Iterable[type]
) -> dict[str, Any]:
    """The arguments of the graph of a configuration; see `ModelGraph.from_config`."""
    plain = serialization.checked(given, {"label", "seed", "optimizer", "nodes", "data"}, {"nodes"}, "a graph")
    sets = serialization.by_label(feature_sets)
    own = arguments.mapping(ConfigError, "", "models", models, "{'NODE': model}")
    classes = serialization.checked_classes(allow)
    nodes = serialization.read_nodes(serialization.entries(plain, "nodes", "a graph"), sets, own, classes)
    optimizer, label = serialization.read_optimizer(plain.get("optimizer")), plain.get("label", "graph")
    labelled = topology.by_label(nodes)
    for name in own:
        topology.label_of(name, labelled, label)
    data_config.check_transforms(plain.get("data"), sets, nodes)
    return {"nodes": nodes, "optimizer": optimizer, "label": label, "seed": plain.get("seed", 0)}
