"""Precision assignment: in which precision each node is computed, by one rule: the node's own, else the phase's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph.nodes import ModelNode, Node, refuse_settings
from anyaccel.graph.plan_entries import Assignment
from anyaccel.graph.resolution import Request
from anyaccel.precision import ComputesPrecision, NodePrecision, SegmentPrecision

_NARROW = ("float16", "bfloat16")


def with_precision(node: Node, assignment: Assignment, request: Request) -> Assignment:
    """The assignment of a node with its precision, and what is computed again in its backward pass.

    Raises:
        CapabilityError: the framework, the model or the device cannot do it.
        GraphError: it is asked of a model that is computed as it is.
        PhaseError: the phase has a step of the user's own.
    """
    if not isinstance(node, ModelNode):
        return assignment
    if node.kind.fixed:
        refuse_settings(node, "precision", "remat")
        return assignment
    if request.custom_step and (node.precision or node.remat):
        raise PhaseError(
            f"phase {request.phase!r} has a step of its own, and node {node.label!r} has "
            + ("a precision" if node.precision else "remat"),
            hint="leave it out of the node, and say in the step how the model is computed",
        )
    name, reason = (node.precision, "node") if node.precision else (request.precision, "phase")
    if name:
        _check_precision(node, assignment, name)
        assignment = replace(assignment, precision=name, precision_reason=reason)
    return replace(assignment, recomputed=_recomputed(node, assignment)) if node.remat else assignment


def _check_precision(node: ModelNode, assignment: Assignment, name: str) -> None:
    backend, framework, device = assignment.backend, assignment.framework, assignment.device
    problem = f"node {node.label!r} cannot be computed with precision={name!r} on {device}"
    computes = backend.capability(ComputesPrecision)
    known = () if computes is None else computes.precisions
    if computes is None or name not in known:
        raise CapabilityError(
            f"{problem}: the plugin of {framework} does not support it",
            available=", ".join(map(repr, known)),
            hint=f"write precision={known[0]!r}" if known else "leave precision out",
        )
    reason = computes.precision_reason(node.model, name, device)
    if reason:
        others = [each for each in known if each != name and not computes.precision_reason(node.model, each, device)]
        raise CapabilityError(
            f"{problem}: {reason}",
            available=", ".join(map(repr, others)),
            hint=f"give the node another one, ModelNode({node.label!r}, ..., precision={others[0]!r})"
            if others
            else "leave precision out",
        )
    dtype = backend.dtype_of(node.model)
    if NodePrecision(name).is_mixed and dtype in _NARROW:
        raise CapabilityError(
            f"{problem}: its parameters are {dtype}, and mixed precision updates parameters in float32",
            hint="convert the model to float32, or leave precision out: it computes in its own dtype",
        )


def _recomputed(node: ModelNode, assignment: Assignment) -> tuple[str, ...]:
    backend, remat = assignment.backend, str(node.remat)
    problem = f"node {node.label!r} has remat={remat!r}"
    computes = backend.capability(ComputesPrecision)
    if computes is None:
        raise CapabilityError(
            f"{problem}, and the plugin of {assignment.framework} computes nothing again", hint="leave remat out"
        )
    blocks = tuple(computes.remat_blocks(node.model, remat))
    if not blocks:
        raise CapabilityError(
            f"{problem}, and {assignment.framework} finds no such parts in a {type(node.model).__name__}",
            available="parts of a list or sequence of layers, or those whose names a pattern matches",
            hint="leave remat out, or use the framework's own function in the model",
        )
    return blocks


def segment_precision(
    labels: Iterable[str], assigned: Mapping[str, Assignment], nodes: Mapping[str, Node], request: Request
) -> SegmentPrecision | None:
    """What a backend is told of the operations of a segment; None where all are as their models are."""
    own = [assigned[label] for label in labels]
    precisions = tuple((each.node, NodePrecision(each.precision)) for each in own if each.precision)
    recomputed = tuple((each.node, str(getattr(nodes[each.node], "remat", ""))) for each in own if each.recomputed)
    scaled = request.training and any(
        NodePrecision(each.precision).scales_losses for each in assigned.values() if each.precision
    )
    if not (precisions or recomputed or scaled):
        return None
    return SegmentPrecision(precisions, recomputed, request.loss_scale if scaled else None)


def check_loss_scale(assigned: Mapping[str, Assignment]) -> None:
    """Where one node is computed in float16, the gradients of all are of scaled losses.

    Raises:
        CapabilityError: another framework of the graph cannot scale losses.
    """
    narrow = next((a for a in assigned.values() if a.precision and NodePrecision(a.precision).scales_losses), None)
    for each in assigned.values() if narrow is not None else ():
        computes = each.backend.capability(ComputesPrecision)
        if computes is None or "fp16-mixed" not in computes.precisions:
            raise CapabilityError(
                f"node {narrow.node if narrow else ''!r} is trained in fp16-mixed, which scales all losses, and the "
                f"plugin of {each.framework}, which computes node {each.node!r}, cannot",
                hint="write precision='bf16-mixed', which needs no loss scale",
            )


def matmul_precisions(
    phase: str, given: Any, assigned: Mapping[str, Assignment]
) -> list[tuple[ComputesPrecision, Any]]:
    """Each backend of a graph with the setting for matrix products that a phase gives it.

    Raises:
        PhaseError: a setting that no framework of the graph has, or for a framework that is not in it.
    """
    if given is None:
        return []
    backends = {each.framework: each.backend.capability(ComputesPrecision) for each in assigned.values()}
    known = {name: () if computes is None else computes.matmul_precisions for name, computes in backends.items()}
    by_framework = (
        dict(given) if isinstance(given, Mapping) else {name: given for name in known if _has(known[name], given)}
    )
    available = "; ".join(f"{name}: {', '.join(map(repr, values))}" for name, values in known.items() if values)
    for name, value in by_framework.items() or [("", given)]:
        if name not in known or not _has(known[name], value):
            setting = {name: value} if isinstance(given, Mapping) else given
            raise PhaseError(
                f"phase {phase!r}: no framework of the graph has matmul_precision={shown(setting)}",
                available=available,
                hint="use one of these, or a dict of them by framework",
            )
    return [
        (computes, by_framework[name])
        for name, computes in backends.items()
        if name in by_framework and computes is not None
    ]


def float32_notes(given: Any, assigned: Mapping[str, Assignment], nodes: Mapping[str, Node]) -> Iterator[str]:
    """What defaults of the frameworks make of float32, where a phase has no setting for its matrix products."""
    found = []
    for label, each in assigned.items():
        model, computes = getattr(nodes[label], "model", None), each.backend.capability(ComputesPrecision)
        narrow = bool(each.precision) and NodePrecision(each.precision).dtype != "float32"
        if given is None and model is not None and not narrow and computes is not None:
            found.append(computes.float32_note(model, each.device))
    yield from filter(None, dict.fromkeys(found))


def _has(values: Iterable[Any], value: Any) -> bool:
    """Whether a value is among some, where True is not 1."""
    return any(type(each) is type(value) and each == value for each in values)
