"""Sharding assignment: whose parameters replicas divide, by one rule: what the node says, else the phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anyaccel.errors import GraphError
from anyaccel.estimators import Estimator
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.plan_entries import Assignment
from anyaccel.graph.resolution import Request


def with_sharding(node: Node, assignment: Assignment, request: Request) -> Assignment:
    """The assignment of a node of a training with what is asked of its parameters.

    Raises:
        GraphError: it is asked of an estimator.
    """
    if not isinstance(node, ModelNode):
        return assignment
    if isinstance(node.model, Estimator):
        if node.sharding is not None:
            raise GraphError(
                f"node {node.label!r} has sharding={node.sharding!r}, and is an estimator", hint="leave sharding out"
            )
        return assignment
    name, reason = (node.sharding, "node") if node.sharding else (request.sharding, "phase")
    return replace(assignment, sharding=name, sharding_reason=reason) if name else assignment


def check_shared_models(phase: str, nodes: Mapping[str, Node], assigned: Mapping[str, Assignment]) -> None:
    """Check that nodes which share a model agree about its parameters.

    Raises:
        GraphError: they do not.
    """
    first: dict[int, Assignment] = {}
    for label, each in assigned.items():
        node = nodes[label]
        other = first.setdefault(id(node.model), each) if isinstance(node, ModelNode) else each
        if _kept(other) != _kept(each):
            raise GraphError(
                f"phase {phase!r}: nodes {other.node!r} and {label!r} share a model, and its parameters are to be "
                f"{_kept(other)!r} in one and {_kept(each)!r} in the other",
                hint="give both nodes the same sharding",
            )


def _kept(assignment: Assignment) -> str:
    return assignment.sharding or "none"
