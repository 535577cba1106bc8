"""What must hold among nodes: unique labels, known upstreams, no cycle; and the order that follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import GraphError
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node
from anyaccel.suggestions import did_you_mean

_RESERVED = "progress"  # a graph's state has an entry of this name beside those of its nodes


def by_label(nodes: Iterable[Node]) -> dict[str, Node]:
    """Nodes by label.

    Raises:
        GraphError: something is no node, or a label is taken twice, reserved, or that of a feature set.
    """
    found: dict[str, Node] = {}
    for node in _listed(nodes):
        check_node(node)
        if node.label in found:
            raise GraphError(
                f"two nodes are called {node.label!r}", available=", ".join(found), hint="give each its own label"
            )
        found[node.label] = node
    for label in feature_sets(found.values()):
        if label in found:
            raise GraphError(f"{label!r} names a node and a feature set", hint="rename one of them")
    return found


def check_node(node: Any) -> None:
    """Make sure that something is a node, of a label that a node may have.

    Raises:
        GraphError: it is not.
    """
    if not isinstance(node, (ModelNode, ConcatNode)):
        raise GraphError(f"a {type(node).__name__} is no node", hint="wrap it: ModelNode('LABEL', model, upstream_ref)")
    if node.label == _RESERVED:
        raise GraphError(
            f"no node can be called {_RESERVED!r}",
            available="the state of a graph has an entry of this name",
            hint="choose another label",
        )


def _listed(nodes: Iterable[Node]) -> list[Node]:
    try:
        return list(nodes)
    except TypeError:
        raise GraphError(f"nodes are given as a list, not as a {type(nodes).__name__}", hint="write [node]") from None


def feature_sets(nodes: Iterable[Node]) -> dict[str, FeatureSet]:
    """The feature sets that nodes refer to, by label.

    Raises:
        GraphError: two different ones have the same label.
    """
    found: dict[str, FeatureSet] = {}
    for node in nodes:
        for upstream in node.upstreams:
            if isinstance(upstream, Reference):
                seen = found.setdefault(upstream.feature_set.label, upstream.feature_set)
                if seen is not upstream.feature_set:
                    raise GraphError(f"two feature sets are called {seen.label!r}", hint="give each its own label")
    return found


def parents(node: Node, nodes: Mapping[str, Node]) -> list[str]:
    """Labels of the nodes that feed a node.

    Raises:
        GraphError: an upstream that is no node.
    """
    found = []
    for upstream in node.upstreams:
        if isinstance(upstream, str):
            label = upstream.partition(".")[0]
            if label not in nodes:
                raise unknown_node(
                    f"node {node.label!r} takes its input from {upstream!r}, which is no node", label, nodes
                )
            found.append(label)
    return found


def unknown_node(asked: str, label: object, nodes: Iterable[str]) -> GraphError:
    """The error for a node that is not in the graph, with the closest label."""
    names = list(nodes)
    return GraphError(
        asked,
        available=", ".join(names) or "no node",
        hint=did_you_mean(label, names, "use one of these labels"),
    )


def labels_in(given: Iterable[Any], nodes: Mapping[str, Node]) -> list[str]:
    """The labels among what was given, labels or lists of labels; all of the graph's if nothing was given.

    Raises:
        GraphError: something else, or a list that is empty.
    """
    found: list[str] = []
    for one in (parts := list(given)):
        several = [one] if isinstance(one, str) or not isinstance(one, Iterable) else list(one)
        if not several or not all(isinstance(label, str) for label in several):
            raise GraphError(
                f"{one!r} names no node" if not several else f"{one!r} is no label of a node",
                available=", ".join(nodes),
                hint="give labels, freeze('NODE', 'NODE'), or nothing for all nodes",
            )
        found += several
    return found if parts else list(nodes)


def topological(nodes: Mapping[str, Node]) -> list[str]:
    """Labels in an order in which every node comes after what feeds it; as given where that leaves a choice.

    Raises:
        GraphError: there is a cycle; the message walks it.
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
                raise _cycle([*trail][[*trail].index(left[0]) :])
            else:
                parent = left.pop(0)
                if parent not in done:
                    trail[parent] = parents(nodes[parent], nodes)
    return list(done)


def _cycle(walk: list[str]) -> GraphError:
    return GraphError(
        f"the graph has a cycle: {' -> '.join([*walk, walk[0]])}",
        hint="let one of these nodes take its input from elsewhere",
    )


def ancestors(wanted: Iterable[str], nodes: Mapping[str, Node]) -> set[str]:
    """The labels wanted, and of every node that they depend on."""
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        label = todo.pop()
        if label not in found:
            found.add(label)
            todo.extend(parents(nodes[label], nodes))
    return found


def consumers(label: str, nodes: Mapping[str, Node]) -> list[str]:
    """Labels of the nodes that a node feeds."""
    return [other for other, node in nodes.items() if label in parents(node, nodes)]


def tails(nodes: Mapping[str, Node]) -> list[str]:
    """Labels of the nodes that feed no other."""
    feeding = {label for node in nodes.values() for label in parents(node, nodes)}
    return [label for label in nodes if label not in feeding]


def references(label: str, nodes: Mapping[str, Node]) -> list[Reference]:
    """The references to data that a node depends on, directly or through others, each once."""
    needed = ancestors([label], nodes)
    feeding = (upstream for other, node in nodes.items() if other in needed for upstream in node.upstreams)
    return list(dict.fromkeys(upstream for upstream in feeding if isinstance(upstream, Reference)))
