"""Device maps of nodes: their settings, the plan of a node's backend, and placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anyaccel.arguments import check, is_integer, shown
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, CapabilityError, DeviceParseError, GraphError
from anyaccel.graph.device_assignment import Request
from anyaccel.graph.nodes import Layout, ModelNode
from anyaccel.graph.plan_entries import Assignment
from anyaccel.graph.shape_inference import Shapes
from anyaccel.host_memory import host_memory
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec
from anyaccel_offload.planner import OffloadModels, OffloadPlan, OffloadRequest, memory_size
from anyaccel_offload.planner.capability import TIERS

_ROWS = 2  # of the call that determines the order of blocks
_OFFLOADS = ("no", *TIERS)
_EXAMPLE = "{'embed': 'gpu:0', 'layers': 'cpu'}"


class DeviceMaps(Layout):
    """A layout with blocks of a model on several devices, or with weights in host memory or files."""

    def settings(self, where: str, device_map: Any, max_memory: Any, offload: Any) -> tuple[Any, Any, Any]:
        """Check the settings; a map is planned if only `max_memory` or `offload` is set."""
        check(GraphError, where, "offload", offload, _OFFLOADS.__contains__, "'no', 'cpu' or 'disk'", "'cpu'")
        limits = None if max_memory is None else _limits(where, max_memory)
        if device_map is None and (limits is not None or offload != "no"):
            device_map = "auto"
        if isinstance(device_map, Mapping):
            if limits is not None or offload != "no":
                name = "max_memory" if limits is not None else "offload"
                raise GraphError(
                    f"{where}device_map is a mapping, but {name} is for planned maps",
                    hint=f"leave {name} out, or write device_map='auto'",
                )
            fits = lambda it: it and all(isinstance(key, str) for key in it)  # noqa: E731
            check(GraphError, where, "device_map", device_map, fits, "a dict of names of parts and devices", _EXAMPLE)
            return (
                {name: _place(where, f"device_map[{name!r}]", value) for name, value in device_map.items()},
                None,
                offload,
            )
        check(GraphError, where, "device_map", device_map, (None, "auto").__contains__, "a mapping or 'auto'", "'auto'")
        return device_map, limits, offload

    def assign(
        self, node: ModelNode, assignment: Assignment, request: Request, registry: Registry, shapes: Shapes
    ) -> Assignment:
        """Assign the blocks according to the plan of the node's backend."""
        problem = f"node {node.label!r} has a device_map"
        backend = None if node.kind.fixed else assignment.backend.capability(OffloadModels)
        if backend is None:
            what = f"is {node.kind.fixed or f'computed by {assignment.framework}'}"
            raise CapabilityError(
                f"{problem}, but {what}, which cannot split models or offload weights",
                cause="its plugin lacks the capability 'offload'",
                hint="leave device_map, max_memory and offload out",
            )
        for name in ("precision", "remat"):
            if getattr(node, name) or (name == "precision" and request.precision):
                raise CapabilityError(
                    f"{problem} and {name}, which cannot be combined",
                    hint=f"leave {name} out, and convert the model before you pass it to the node",
                )
        if len(request.devices) > 1:
            raise CapabilityError(
                f"{problem}, but phase {request.phase!r} trains replicas on {len(request.devices)} devices",
                hint="request one device, and name the others in max_memory",
            )
        where, kind = f"node {node.label!r}: ", assignment.device.kind
        planned = isinstance(node.device_map, str)
        entries: Any = {} if planned else node.device_map
        limits = node.max_memory
        device_map = (
            None if planned else {name: _text_of(where, "device_map", value, kind) for name, value in entries.items()}
        )
        max_memory = (
            None
            if limits is None
            else {_text_of(where, "max_memory", name, kind): size for name, size in limits.items()}
        )
        places = [*(max_memory or ()), *(device_map or {}).values(), str(assignment.device)]
        devices = {text: Device.parse(text) for text in places if text not in TIERS}
        for device in devices.values():
            registry.serving(assignment.framework, device)
        framework = assignment.framework
        host = host_memory()[1] // 2 if registry.is_of_this_machine else registry.free_memory(framework, Device("cpu"))
        wanted = OffloadRequest(
            device_map=device_map,
            max_memory=max_memory,
            offload=node.offload,
            training=request.training and not node.frozen,
            free={
                **{str(device): registry.free_memory(framework, device) for device in devices.values()},
                "cpu": host,
                "disk": None,
            },
            inputs=[TensorSpec((_ROWS, *spec.shape), spec.dtype) for spec in shapes.wanted(node.label)],
            arguments=shapes.arguments.get(node.label, ()),
            requires_order=False,
        )
        try:
            plan = backend.plan_offload(node.model, assignment.device, wanted)
        except AnyaccelError as error:
            raise type(error)(
                f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint
            ) from error
        if all(block.device != assignment.device for block in plan.blocks):
            there = str(plan.blocks[0].device)
            raise GraphError(
                f"node {node.label!r} is on {assignment.device}, but its device_map has no block there",
                cause=", ".join(dict.fromkeys(str(block.device) for block in plan.blocks)),
                hint=f"write ModelNode(..., accelerator={there!r})",
            )
        return replace(assignment, offload=plan)

    def read(self, plain: Any) -> OffloadPlan:
        """Rebuild the plan from the output of its `to_dict`."""
        return OffloadPlan.from_dict(plain)

    def place(self, node: ModelNode, backend: Any, device: Device, plan: OffloadPlan | None) -> Any:
        """Place a model; after a phase, it is an ordinary one again."""
        capability = backend.capability(OffloadModels)
        if capability is None:
            return backend.place(node.model, device)
        if plan is None:
            return backend.place(capability.end_offload(node.model), device)
        return capability.offload(node.model, device, plan)


DEVICE_MAPS = DeviceMaps()
"""The layout of nodes with a device map, for core."""


def _limits(where: str, max_memory: Any) -> dict[str | int, int]:
    fits = lambda it: isinstance(it, Mapping) and bool(it)  # noqa: E731
    example = "{'gpu:0': '20GiB', 'cpu': '60GiB'}"
    check(GraphError, where, "max_memory", max_memory, fits, "bytes for each device", example)
    return {
        _place(where, "max_memory", name): memory_size(GraphError, where, f"max_memory[{name!r}]", size)
        for name, size in max_memory.items()
    }


def _place(where: str, name: str, value: Any) -> str | int:
    """Return a device as text or as its index, or a tier."""
    fits = lambda it: isinstance(it, str | Device) or (is_integer(it) and it >= 0)  # noqa: E731
    check(GraphError, where, name, value, fits, "a device, 'cpu' or 'disk'", "'gpu:0'")
    return int(value) if is_integer(value) or str(value).isdecimal() else str(value)


def _text_of(where: str, name: str, value: Any, kind: str) -> str:
    """Return a device as text, or the name of a tier; a number is the index of a device of the node's kind."""
    if value in TIERS:
        return str(value)
    try:
        return str(Device(kind, value) if isinstance(value, int) else Device.parse(value))
    except DeviceParseError as error:
        raise GraphError(
            f"{where}{name} has {shown(value)}, which is not a device", hint=f"write {name}={_EXAMPLE}"
        ) from error
