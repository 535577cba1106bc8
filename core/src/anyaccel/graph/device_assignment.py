"""The one rule of precedence, and the device of every node by it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from anyaccel.accelerator import Accelerator
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError, FrameworkError, GraphError, PluginError
from anyaccel.graph import topology
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.plan import Assignment
from anyaccel.graph.shape_inference import Shapes
from anyaccel.registry import Registry


@dataclass(frozen=True, slots=True)
class PolicyNode:
    """What a placement policy is told of a node. `devices` are those it can be computed on, best first."""

    label: str
    framework: str
    nbytes: int
    devices: tuple[Device, ...]


def precedence(own: Accelerator | None, phase: Accelerator | None) -> tuple[Accelerator, str]:
    """The rule: a node's own accelerator, else the phase's, else the CPU. Gives it and who decided."""
    if own is not None:
        return own, "node"
    if phase is not None:
        return phase, "phase"
    return Accelerator("cpu"), "default"


def assign(
    nodes: Mapping[str, Node],
    active: Iterable[str],
    shapes: Shapes,
    found: Registry,
    *,
    accelerator: Accelerator | None,
    strict: bool,
    policy: str | None,
) -> dict[str, Assignment]:
    """The assignment of every active node, in topological order.

    Raises:
        DeviceUnavailableError: a device that is not on this machine.
        FrameworkError: a framework that is not served where it is asked to be.
        GraphError: one model is asked to be on two devices.
        PluginError: a policy that nobody offers, or that answers with something else than devices of nodes.
    """
    if accelerator is not None:
        _on_this_machine(accelerator, set(shapes.frameworks.values()), found)
    labels = [label for label in shapes.order if label in set(active)]
    models = [node for label in labels if isinstance(node := nodes[label], ModelNode)]
    chosen = _by_policy(policy, models, shapes, found) if policy else {}
    done: dict[str, Assignment] = {}
    for node in models:
        done[node.label] = _model(
            node, shapes.frameworks[node.label], found, accelerator, strict, chosen.get(node.label), policy
        )
    _agree(models, done)
    for label in reversed(labels):
        if label not in done:
            done[label] = _concat(label, nodes, done, shapes.frameworks[label], found, accelerator, strict)
    return {label: done[label] for label in labels}


def _on_this_machine(accelerator: Accelerator, frameworks: Container[str], found: Registry) -> None:
    """Make sure that somebody has the device. Those of the graph are asked first: to list devices, others may have to
    be imported."""
    serving = [backend for backend in found.backends if accelerator.device.kind in backend.kinds]
    serving.sort(key=lambda backend: backend.framework not in frameworks)
    if any(accelerator.device in backend.devices() for backend in serving):
        return
    there = {device for backend in found.backends for device in backend.devices()}
    reason = "; ".join(sorted(filter(None, {backend.unavailable_reason(accelerator.device) for backend in serving})))
    raise DeviceUnavailableError(
        f"{accelerator.spec!r} is not on this machine" + (f" ({reason})" if reason else ""),
        available=", ".join(map(str, sorted(there))),
        hint="use one of these; `anyaccel devices` lists them, `anyaccel plugins` says who could serve more",
    )


def _model(
    node: ModelNode,
    framework: str,
    found: Registry,
    phase: Accelerator | None,
    strict: bool,
    chosen: Device | None,
    policy: str | None,
) -> Assignment:
    wanted, reason = precedence(node.accelerator, phase)
    written = wanted.spec
    if chosen is not None and reason != "node":
        wanted, reason, written = Accelerator(chosen), "policy", policy or ""
    wanted, reason, native = _settled(node.label, framework, wanted, reason, strict, found)
    specs = found.computing(framework).parameters(node.model).values()
    return Assignment(
        node.label,
        framework,
        wanted.device,
        native,
        reason,
        written,
        wanted.pin_memory,
        node.frozen,
        sum(math.prod(spec.shape) for spec in specs),
        sum(spec.nbytes for spec in specs),
    )


def _concat(
    label: str,
    nodes: Mapping[str, Node],
    done: Mapping[str, Assignment],
    framework: str,
    found: Registry,
    phase: Accelerator | None,
    strict: bool,
) -> Assignment:
    near = [done[o] for o in [*topology.consumers(label, nodes), *topology.parents(nodes[label], nodes)] if o in done]
    near = [one for one in near if one.framework == framework] or near
    if near:
        first = near[0]
        return Assignment(label, framework, first.device, first.native, "neighbour", first.node, first.pinned)
    asked, reason = precedence(None, phase)
    wanted, reason, native = _settled(label, framework, asked, reason, strict, found)
    return Assignment(label, framework, wanted.device, native, reason, asked.spec, wanted.pin_memory)


def _settled(
    label: str, framework: str, wanted: Accelerator, reason: str, strict: bool, found: Registry
) -> tuple[Accelerator, str, str]:
    """Where a node goes in the end, by whom, and the device in the framework's own name."""
    if reason == "phase" and not strict and not found.serves(framework, wanted.device.kind):
        wanted, reason = Accelerator("cpu"), "fallback"
    try:
        backend = found.serving(framework, wanted.device, vendor=wanted.vendor)
    except (FrameworkError, DeviceUnavailableError) as error:
        raise type(error)(f"node {label!r}: {error.problem}", available=error.available, hint=error.hint) from None
    return wanted, reason, backend.device_string(wanted.device)


def _agree(models: Iterable[ModelNode], done: Mapping[str, Assignment]) -> None:
    first: dict[int, ModelNode] = {}
    for node in models:
        other = first.setdefault(id(node.model), node)
        here, there = done[node.label].device, done[other.label].device
        if here != there:
            raise GraphError(
                f"nodes {other.label!r} and {node.label!r} share one model and are asked to be on {there} and {here}",
                hint="give both the same accelerator",
            )
        if other.frozen != node.frozen or other.optimizer != node.optimizer:
            raise GraphError(
                f"nodes {other.label!r} and {node.label!r} share one model, and differ in being frozen or in optimizer",
                hint="freeze both or none, and give both the same optimizer",
            )


def _by_policy(policy: str, models: Iterable[ModelNode], shapes: Shapes, found: Registry) -> dict[str, Device]:
    told = []
    for node in models:
        framework = shapes.frameworks[node.label]
        usable = [d for backend in found.backends if backend.framework == framework for d in backend.devices()]
        nbytes = sum(spec.nbytes for spec in found.computing(framework).parameters(node.model).values())
        told.append(PolicyNode(node.label, framework, nbytes, tuple(usable)))
    answer = found.policy(policy)(nodes=tuple(told))
    if not isinstance(answer, Mapping):
        raise PluginError(
            f"policy {policy!r} gave {type(answer).__name__}, not devices by label",
            hint="update the plugin that offers it, or leave policy= out",
        )
    strange = set(answer) - {one.label for one in told}
    if strange:
        raise PluginError(
            f"policy {policy!r} places {', '.join(sorted(map(str, strange)))}, which is no node of this phase",
            available=", ".join(one.label for one in told),
            hint="update the plugin that offers it, or leave policy= out",
        )
    return {label: Device.parse(device) for label, device in answer.items()}
