"""Offload assignment: where the blocks of a node's model are that has a device map, as its backend plans it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from anyaccel.arguments import shown
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, CapabilityError, DeviceParseError, GraphError
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.plan_entries import Assignment
from anyaccel.graph.resolution import Request
from anyaccel.graph.shape_inference import Shapes
from anyaccel.host_memory import host_memory
from anyaccel.planner import OffloadModels, OffloadRequest
from anyaccel.planner.capability import TIERS
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec

_ROWS = 2  # of the call that shows in which order blocks compute
_EXAMPLE = "{'embed': 'gpu:0', 'layers': 'cpu'}"


def with_offload(node: Node, assignment: Assignment, request: Request, known: Registry, shapes: Shapes) -> Assignment:
    """The assignment of a node that has a device map, with the places of its model's blocks.

    Raises:
        AnyaccelError: the framework or the phase cannot do it, the map does not fit the model, or nothing fits.
    """
    assert isinstance(node, ModelNode)
    problem = f"node {node.label!r} has a device_map"
    if node.kind.fixed or assignment.backend.capability(OffloadModels) is None:
        what = f"is {node.kind.fixed or f'computed by {assignment.framework}'}"
        raise CapabilityError(
            f"{problem}, and {what}, which cannot divide models or let weights rest elsewhere",
            cause="its plugin lacks the capability 'offload'",
            hint="leave device_map, max_memory and offload out",
        )
    for name in ("precision", "remat"):
        if getattr(node, name) or (name == "precision" and request.precision):
            raise CapabilityError(
                f"{problem} and {name}, which do not work together",
                hint=f"leave {name} out, and convert the model or write it so before it is given to the node",
            )
    if len(request.devices) > 1:
        raise CapabilityError(
            f"{problem}, and phase {request.phase!r} trains replicas on {len(request.devices)} devices",
            hint="ask for one device, and name the others in max_memory",
        )
    wanted = _wanted(node, assignment, request, known, shapes)
    try:
        plan = assignment.backend.required(OffloadModels).plan_offload(node.model, assignment.device, wanted)
    except AnyaccelError as error:
        raise type(error)(
            f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint
        ) from error
    if all(block.device != assignment.device for block in plan.blocks):
        there = str(plan.blocks[0].device)
        raise GraphError(
            f"node {node.label!r} is on {assignment.device}, and its device_map has no block there",
            cause=", ".join(dict.fromkeys(str(block.device) for block in plan.blocks)),
            hint=f"write ModelNode(..., accelerator={there!r})",
        )
    return replace(assignment, offload=plan)


def _wanted(
    node: ModelNode, assignment: Assignment, request: Request, known: Registry, shapes: Shapes
) -> OffloadRequest:
    where, kind = f"node {node.label!r}: ", assignment.device.kind
    planned = isinstance(node.device_map, str)
    entries: Any = {} if planned else node.device_map
    limits = node.max_memory
    made = None if planned else {name: _text_of(where, "device_map", value, kind) for name, value in entries.items()}
    given = None if limits is None else {_text_of(where, "max_memory", k, kind): size for k, size in limits.items()}
    places = [*(given or ()), *(made or {}).values(), str(assignment.device)]
    devices = {text: Device.parse(text) for text in places if text not in TIERS}
    for device in devices.values():
        known.serving(assignment.framework, device)
    return OffloadRequest(
        device_map=made,
        max_memory=given,
        offload=node.offload,
        training=request.training and not node.frozen,
        free=_free(assignment, known, devices.values()),
        inputs=[TensorSpec((_ROWS, *spec.shape), spec.dtype) for spec in shapes.wanted(node.label)],
        arguments=shapes.arguments.get(node.label, ()),
        requires_order=False,
    )


def _text_of(where: str, name: str, given: Any, kind: str) -> str:
    """A device as text, or the name of a tier; a number is the index of a device of the node's kind."""
    if given in TIERS:
        return str(given)
    try:
        return str(Device(kind, given) if isinstance(given, int) else Device.parse(given))
    except DeviceParseError as error:
        raise GraphError(
            f"{where}{name} has {shown(given)}, which is no device", hint=f"write {name}={_EXAMPLE}"
        ) from error


def _free(assignment: Assignment, known: Registry, devices: Iterable[Device]) -> dict[str, int | None]:
    """Bytes that are free on each device and in host memory, where weights may take half."""
    framework = assignment.framework
    host = host_memory()[1] // 2 if known.is_of_this_machine else known.free_memory(framework, Device("cpu"))
    return {**{str(device): known.free_memory(framework, device) for device in devices}, "cpu": host, "disk": None}
