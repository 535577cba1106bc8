"""Outer contexts: the caller's contexts around a phase, such as `torch.autocast`, are left, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from anyaccel.adapter.outer_contexts import OuterContexts, left_contexts
from anyaccel.backend import Backend
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.nodes import ModelNode
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import registry


def leave_contexts(graph: ModelGraph) -> AbstractContextManager[Mapping[Backend, OuterContexts]]:
    """`left_contexts` of all backends of the frameworks of a graph."""
    nodes = [node for node in graph.nodes.values() if isinstance(node, ModelNode)]
    frameworks = dict.fromkeys(
        name for node in nodes for name in ([node.framework] if node.framework else registry().owners(node.model))
    )
    return left_contexts(backend for backend in registry().backends_in_use if backend.framework in frameworks)


def check_precision(phase: PhaseSettings, plan: Plan, left: Mapping[Backend, OuterContexts]) -> None:
    """Refuse a phase inside a context that says in which precision is computed, unless it states its own.

    Raises:
        PhaseError: it has a node without a precision on a device of such a context.
    """
    for assignment in plan.assignments:
        contexts = left.get(assignment.backend)
        context, precision = ("", "") if contexts is None else contexts.casts.get(assignment.device.kind, ("", ""))
        if not context or assignment.precision:
            continue
        if phase.step is not None:
            hint = f"run the phase outside of it, and enter it in the step: `with {context}:`"
        else:
            hint = f"run the phase outside of it; {type(phase).__name__}(..., precision={precision!r}) computes so"
        raise PhaseError(
            f"phase {phase.label!r} runs inside {context}, and node {assignment.node!r} on {assignment.device}; that "
            "context keeps weights of the first step until it ends, and casts losses too",
            hint=hint,
        )
