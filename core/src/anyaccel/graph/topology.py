"""Topology: checks of labels, upstreams and cycles, and the order and neighbours of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import GraphError
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, Upstream
from anyaccel.suggestions import did_you_mean

_RESERVED = {
    "progress": "is reserved for the state of a graph",
    "transforms": "is reserved for the state of a graph",
    "outputs": "is reserved: in the inputs of a loss it means the outputs of the loss's node",
    "targets": "is reserved: in the inputs of a loss and in metrics it means the targets of the data",
}


def by_label(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return nodes by label.

    Raises:
        GraphError: an object that is not a node, or a label that is duplicate, reserved, or that of a feature set.
    """
    labelled: dict[str, Node] = {}
    if not isinstance(nodes, Iterable):
        raise GraphError(f"nodes must be a list, got {type(nodes).__name__}", hint="write [node]")
    for node in nodes:
        check_node(node)
        if node.label in labelled:
            raise GraphError(
                f"two nodes are called {node.label!r}", available=", ".join(labelled), hint="give each a unique label"
            )
        labelled[node.label] = node
    for label in feature_sets(labelled.values()):
        if label in labelled:
            raise GraphError(f"{label!r} names a node and a feature set", hint="rename one of them")
        if label == "outputs":
            problem = "'outputs' is the label of a feature set, and 'outputs.NAME' is an output in the inputs of a loss"
            raise GraphError(problem, hint="give the feature set another label")
    return labelled


def check_node(node: Any) -> None:
    """Check that an object is a node with a label that a node may have.

    Raises:
        GraphError: it is not.
    """
    if not isinstance(node, (ModelNode, ConcatNode)):
        raise GraphError(
            f"nodes must be ModelNode or ConcatNode, got {type(node).__name__}",
            hint="wrap it: ModelNode('LABEL', model, upstream_ref)",
        )
    if node.label in _RESERVED:
        raise GraphError(f"the label {node.label!r} {_RESERVED[node.label]}", hint="choose another label")


def feature_sets(nodes: Iterable[Node]) -> dict[str, FeatureSet]:
    """The feature sets that nodes refer to, by label.

    Raises:
        GraphError: two different ones have the same label.
    """
    labelled: dict[str, FeatureSet] = {}
    for node in nodes:
        for upstream in node.upstreams:
            if isinstance(upstream, Reference):
                first = labelled.setdefault(upstream.feature_set.label, upstream.feature_set)
                if first is not upstream.feature_set:
                    raise GraphError(f"two feature sets are called {first.label!r}", hint="give each a unique label")
    return labelled


def parents(node: Node, nodes: Mapping[str, Node]) -> list[str]:
    """Return labels of the nodes that feed a node.

    Raises:
        GraphError: an upstream that is not a node.
    """
    labels = []
    for upstream in node.upstreams:
        if isinstance(upstream, str):
            label, _, part = upstream.partition(".")
            if label not in nodes:
                problem = f"node {node.label!r} takes its input from {upstream!r}, which is not a node"
                if part and not part[0].isdigit():
                    otherwise = f"use one of these labels; for a column of a FeatureSet, pass data.reference({part!r})"
                    raise unknown_node(problem, label, nodes, otherwise=otherwise)
                raise unknown_node(problem, label, nodes)
            labels.append(label)
    return labels


def upstream_nodes(labels: Iterable[str], nodes: Mapping[str, Node]) -> list[str]:
    """Return labels of the nodes whose outputs these nodes take, each once."""
    found: dict[str, None] = {}
    for label in labels:
        found.update(dict.fromkeys(parents(nodes[label], nodes)))
    return list(found)


def unknown_node(
    problem: str, label: object, nodes: Iterable[str], otherwise: str = "use one of these labels"
) -> GraphError:
    """Create the error for a label that no node has; its hint suggests the closest one, or is `otherwise`."""
    labels = list(nodes)
    hint = did_you_mean(label, labels, otherwise)
    return GraphError(problem, available=", ".join(labels), hint=hint)


def labels_in(wanted: Iterable[Any], nodes: Mapping[str, Node]) -> list[str]:
    """Return the labels of `wanted`, which has labels or lists of labels; every label if it is empty.

    Raises:
        GraphError: an object that is not a label, or an empty list.
    """
    labels: list[str] = []
    for item in (items := list(wanted)):
        several = [item] if isinstance(item, str) or not isinstance(item, Iterable) else list(item)
        if not several or not all(isinstance(label, str) for label in several):
            raise GraphError(
                f"{item!r} is not the label of a node",
                available=", ".join(nodes),
                hint="pass labels, freeze('NODE', 'NODE'), or nothing for all nodes",
            )
        labels += several
    return labels if items else list(nodes)


def topological(nodes: Mapping[str, Node]) -> list[str]:
    """Return labels in topological order: every node comes after those that feed it, otherwise in the order given.

    Raises:
        GraphError: there is a cycle; the message shows it.
    """
    done: dict[str, None] = {}
    for start in nodes:
        trail = {start: parents(nodes[start], nodes)} if start not in done else {}
        while trail:
            label, left = next(reversed(trail.items()))
            if not left:
                done[label] = None
                del trail[label]
            elif left[0] in trail:
                walk = [*trail][[*trail].index(left[0]) :]
                raise GraphError(
                    f"the graph has a cycle: {' -> '.join([*walk, walk[0]])}",
                    hint="remove one of these connections",
                )
            else:
                parent = left.pop(0)
                if parent not in done:
                    trail[parent] = parents(nodes[parent], nodes)
    return list(done)


def ancestors(wanted: Iterable[str], nodes: Mapping[str, Node]) -> set[str]:
    """Return labels of these nodes and of every node that they depend on."""
    reached: set[str] = set()
    todo = list(wanted)
    while todo:
        label = todo.pop()
        if label not in reached:
            reached.add(label)
            todo.extend(parents(nodes[label], nodes))
    return reached


def consumers(label: str, nodes: Mapping[str, Node]) -> list[str]:
    """Return labels of the nodes that a node feeds."""
    return [other for other, node in nodes.items() if label in parents(node, nodes)]


def references(label: str, nodes: Mapping[str, Node]) -> list[Reference]:
    """Return the references to data that a node depends on, directly or indirectly, each once."""
    feeding: dict[Reference, None] = {}
    needed = ancestors([label], nodes)
    for other, node in nodes.items():
        for upstream in node.upstreams if other in needed else ():
            if isinstance(upstream, Reference):
                feeding[upstream] = None
    return list(feeding)


def label_of(node: Any, nodes: Mapping[str, Node], graph: str) -> str:
    """Return the label of a node of a graph, from either.

    Raises:
        GraphError: it is not a node of the graph of this label.
    """
    if isinstance(node, (ModelNode, ConcatNode)) and nodes.get(node.label) is not node:
        raise GraphError(
            f"{node!r} is not a node of graph {graph!r}",
            available=", ".join(nodes),
            hint="name the node of this graph first, then the new one: replace_node('LABEL', node)",
        )
    label = getattr(node, "label", node)
    if not isinstance(label, str) or label not in nodes:
        raise unknown_node(f"graph {graph!r} has no node {label!r}", label, nodes)
    return label


def replaced(label: str, new: Node, nodes: Mapping[str, Node]) -> list[Node]:
    """Return nodes with one replaced by another, which feeds the consumers of the old one; rewires the nodes.

    Raises:
        GraphError: the new one is not a node.
    """
    check_node(new)
    for node in nodes.values():
        upstreams: list[Upstream] = []
        for upstream in node.upstreams:
            if isinstance(upstream, str):
                feeding, dot, output = upstream.partition(".")
                upstreams.append(f"{new.label if feeding == label else feeding}{dot}{output}")
            else:
                upstreams.append(upstream)
        node.upstreams = tuple(upstreams)
    return [new if name == label else node for name, node in nodes.items()]


@contextmanager
def upstreams_kept(nodes: Mapping[str, Node]) -> Iterator[None]:
    """Give nodes that are rewired the upstreams that they had, if the block fails."""
    upstreams = {name: node.upstreams for name, node in nodes.items()}
    try:
        yield
    except BaseException:
        for name, node in nodes.items():
            node.upstreams = upstreams[name]
        raise
