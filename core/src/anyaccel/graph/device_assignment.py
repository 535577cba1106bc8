"""Device assignment: the device and backend of every node, by one rule of precedence.

This is the only place that looks up the backend of a framework on a kind of device; everything after uses the
assignments.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.arguments import shown
from anyaccel.backend import ComputingBackend
from anyaccel.device import USUAL, Device
from anyaccel.errors import (
    CapabilityError,
    DeviceParseError,
    DeviceUnavailableError,
    FrameworkError,
    GraphError,
    MissingDistributionError,
    PhaseError,
    PluginError,
)
from anyaccel.graph import topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import LAYOUT_SETTINGS, ModelNode, Node, layout_of, refuse_settings
from anyaccel.graph.plan import Plan
from anyaccel.graph.plan_entries import LEVELS, Assignment, Rejection
from anyaccel.graph.shape_inference import Shapes
from anyaccel.precision import ComputesPrecision, LossScale, NodePrecision, SegmentPrecision
from anyaccel.registry import Registry
from anyaccel.segment import Segment
from anyaccel.suggestions import kind_hint

DEFAULT_DEVICE = "ANYACCEL_DEVICE"
"""Environment variable: the accelerator of nodes for which neither they nor the phase ask for one."""
_OFTEN_ABSENT = {"gpu", "cuda", "rocm", "mps", "tpu", "xpu"}
"""Kinds that one names for many machines, of which some have none: their nodes fall back to the CPU with a warning."""
_FIRST = {"node": "the node's own accelerator", "policy": "the placement policy", "phase": "the phase's accelerator"}
_MOST = 12  # candidates of one request that are shown


@dataclass(frozen=True, slots=True)
class PolicyNode:
    """A node as a placement policy sees it. `devices` are those that its framework can use, best first."""

    label: str
    framework: str
    nbytes: int
    devices: tuple[Device, ...]


def precedence(own: Accelerator | None, phase: Accelerator | None) -> tuple[Accelerator, str]:
    """Return the accelerator by the rule, and who decided: a node's own, the phase's, ANYACCEL_DEVICE, then the CPU."""
    if own is not None:
        return own, "node"
    if phase is not None:
        return phase, "phase"
    if (default := accelerator_of_environment()) is not None:
        return default, "environment"
    return Accelerator("cpu"), "default"


def accelerator_of_environment() -> Accelerator | None:
    """Return the accelerator that ANYACCEL_DEVICE names; None where it is not set.

    Raises:
        DeviceParseError: it names no device.
    """
    text = os.environ.get(DEFAULT_DEVICE, "").strip()
    try:
        return Accelerator(text) if text else None
    except DeviceParseError as error:
        problem = f"the environment variable {DEFAULT_DEVICE}={shown(text)}: {error.problem}"
        otherwise = f"set {DEFAULT_DEVICE}=cpu or {DEFAULT_DEVICE}=gpu:0"
        hint = error.hint if isinstance(error, MissingDistributionError) else otherwise
        raise type(error)(problem, available=error.available, hint=hint) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAssigner:
    """Assign devices and precisions to the nodes of a graph, as a phase requests them."""

    nodes: Mapping[str, Node]
    shapes: Shapes
    registry: Registry
    request: Request

    def assign(self, active: Container[str]) -> dict[str, Assignment]:
        """Return the assignment of every active node, in topological order.

        Raises:
            DeviceUnavailableError: a device is not on this machine.
            FrameworkError: no plugin runs a framework on the device asked for.
            GraphError: one model would be on two devices.
            PluginError: no plugin offers the policy, or it returns something else than devices of nodes.
            AnyaccelError: a node cannot be computed in its precision, see `with_precision`, or not be placed as its
                layout defines.
        """
        if self.request.accelerator is not None:
            self._check_on_this_machine(self.request.accelerator)
        elif (default := accelerator_of_environment()) is not None and not default.is_request:
            # A kind of ANYACCEL_DEVICE that no machine has would be the CPU, with a warning that looks like any
            # other.
            kind = default.device.kind
            kinds = {kind for framework in self.registry.frameworks for kind in self.registry.kinds(framework)}
            if kind not in kinds | _OFTEN_ABSENT:
                raise DeviceUnavailableError(
                    f"the environment variable {DEFAULT_DEVICE} requests {kind!r}, which no installed plugin supports",
                    available=", ".join(sorted(kinds)),
                    hint=kind_hint(kind, kinds, f"set {DEFAULT_DEVICE}=cpu, or unset it"),
                )
        nodes, shapes, request = self.nodes, self.shapes, self.request
        labels = list(filter(active.__contains__, shapes.order))
        models = []
        for label in labels:
            node = nodes[label]
            if isinstance(node, ModelNode):
                models.append(node)
        chosen = self._by_policy(request.policy, models) if request.policy else {}
        placed: dict[str, Assignment] = {}
        first: dict[int, ModelNode] = {}
        for node in models:
            placed[node.label] = self._placed(node.label, node, chosen.get(node.label))
            other = first.setdefault(id(node.model), node)
            if other is not node:
                self._check_shared(other, node, placed)
        for label in reversed(labels):
            if label not in placed:
                around = [*topology.consumers(label, nodes), *topology.parents(nodes[label], nodes)]
                neighbours = [placed[other] for other in around if other in placed]
                same = [other for other in neighbours if other.framework == shapes.frameworks[label]]
                if not neighbours:
                    placed[label] = self._placed(label)
                else:
                    near = (same or neighbours)[0]
                    placed[label] = self._on(
                        near.device, label, reason="neighbour", requested=near.node, pinned=near.pinned
                    )
        assigned: dict[str, Assignment] = {}
        for label in labels:
            node = nodes[label]
            computed = with_precision(node, placed[label], request)
            assigned[label] = layout_of(node).assign(node, computed, request, self.registry, shapes)
        return assigned

    def _check_on_this_machine(self, accelerator: Accelerator) -> None:
        registry, device, used = self.registry, accelerator.device, set(self.shapes.frameworks.values())

        def is_here(framework: str) -> bool:
            is_served = registry.serves(framework, device.kind)
            return is_served and device in registry.ask(registry.find(framework, device.kind), "devices")

        # The frameworks in use first: others are loaded, and may be imported, to list their devices.
        if any(map(is_here, used)) or any(map(is_here, registry.frameworks)):
            return
        serving = [framework for framework in registry.frameworks if registry.serves(framework, device.kind)]
        devices = {device for _, device in registry.devices()}
        asked = [framework for framework in serving if framework in used] or serving
        reasons = {registry.unavailable_reason(framework, device) for framework in asked} - {""}
        reasons |= set() if serving else {f"no installed plugin runs a framework on {device.kind!r}"}
        otherwise = "use one of these; `anyaccel devices` lists devices and `anyaccel plugins` the installed plugins"
        raise DeviceUnavailableError(
            f"{accelerator.spec!r} is not on this machine" + (f" ({'; '.join(sorted(reasons))})" if reasons else ""),
            available=", ".join(map(str, sorted(devices))),
            hint=otherwise if serving else kind_hint(device.kind, {device.kind for device in devices}, otherwise),
        )

    def _placed(self, label: str, node: ModelNode | None = None, chosen: Device | None = None) -> Assignment:
        """Return the assignment of a model, or of a node without neighbours, to what is requested for it, or to the CPU
        where that is allowed; with the other devices that the node might have had, and why it has none of them.

        Args:
            label: Label of the node.
            node: The node, if it has a model.
            chosen: The device that the placement policy chose.
        """
        request, framework = self.request, self.shapes.frameworks[label]
        own = None if node is None else node.accelerator
        written, level = precedence(own, request.accelerator)  # as it was requested, and at which level
        requested = f"{DEFAULT_DEVICE}={written.spec}" if level == "environment" else written.spec
        if request.devices and level != "node":
            wanted = written.at(request.devices[0])
        else:
            wanted = written.on_one_device(framework, known=self.registry)
        if chosen is not None and level != "node":
            wanted, level, requested = Accelerator(chosen), "policy", request.policy or ""
        kind, reason = wanted.device.kind, level
        if level in ("phase", "environment") and not request.strict and not self.registry.serves(framework, kind):
            wanted, reason = Accelerator("cpu"), "fallback"
        try:
            self.registry.serving(framework, wanted.device, vendor=wanted.vendor)
        except (FrameworkError, DeviceUnavailableError) as error:
            by_policy = f" (the policy {requested!r} chose it)" if reason == "policy" else ""
            problem = f"node {label!r}: {error.problem}{by_policy}"
            raise type(error)(problem, available=error.available, hint=error.hint) from None
        placed = self._on(wanted.device, label, reason=reason, requested=requested, pinned=wanted.pin_memory)
        if node is None:
            return placed
        requests = {}  # by level
        if own is not None:
            requests["node"] = own.spec
        if request.accelerator is not None:
            requests["phase"] = request.accelerator.spec
        if chosen is not None:
            requests["policy"] = str(request.policy)
        if environment := os.environ.get(DEFAULT_DEVICE, "").strip():
            requests["environment"] = environment
        rejected = []
        if reason == "fallback":
            rejected.append(Rejection(level, requests[level], f"no installed plugin runs {framework} on {kind}"))
        if level not in ("policy", "default") and not USUAL.fullmatch(written.spec):  # not one device alone
            every = sorted({backend.framework for backend in self.shapes.backends.values()})
            candidates = Accelerator(written.spec).refused(  # the object may have its device by now
                every if level == "phase" else [framework],
                self.registry,
                of_all=level != "phase",
                strict=request.strict,
            )
            rejected += [Rejection(level, candidate, why) for candidate, why in candidates[:_MOST]]
        for later in LEVELS[LEVELS.index(level) + 1 :] if level in LEVELS else ():
            if later in requests:
                rejected.append(Rejection(later, requests[later], f"{_FIRST[level]} comes first"))
        sharding = ""  # of a training: what the node says, else the phase
        if request.training and node.kind.fixed:
            refuse_settings(node, "sharding")
        elif request.training:
            sharding = node.sharding or request.sharding or ""
        parameters = nbytes = 0
        for spec in self.shapes.backends[label].parameters(node.model).values():
            parameters += math.prod(spec.shape)
            nbytes += spec.nbytes
        return replace(
            placed,
            sharding=sharding,
            sharding_reason=("node" if node.sharding else "phase") if sharding else "",
            frozen=node.frozen,
            parameters=parameters,
            nbytes=nbytes,
            rejected=tuple(rejected),
        )

    def _on(self, device: Device, label: str, *, reason: str, requested: str, pinned: bool) -> Assignment:
        """Return the assignment of a node to a device that its framework supports."""
        framework = self.shapes.frameworks[label]
        backend = self.registry.computing(framework, device.kind)
        return Assignment(
            node=label,
            framework=framework,
            device=device,
            native_name=self.registry.ask(backend, "device_string", device),
            backend=backend,
            native_device=self.registry.ask(backend, "native_device", device, required=True),
            reason=reason,
            requested=requested,
            pinned=pinned,
        )

    def _check_shared(self, other: ModelNode, node: ModelNode, assigned: Mapping[str, Assignment]) -> None:
        """Check that two nodes that share a model agree on everything that belongs to the model."""
        pair = f"nodes {other.label!r} and {node.label!r} share one model"
        one, two = assigned[other.label], assigned[node.label]
        if one.device != two.device:
            raise GraphError(
                f"{pair} but request two devices, {one.device} and {two.device}",
                hint="set the same accelerator on both",
            )
        if any(getattr(other, name) != getattr(node, name) for name in ("frozen", "frozen_mode", "modes", "optimizer")):
            raise GraphError(
                f"{pair} but differ in frozen, its mode, modes or optimizer",
                hint="use the same mode, modes and optimizer for both, and freeze both or neither",
            )
        if any(getattr(other, name) != getattr(node, name) for name in LAYOUT_SETTINGS):
            *names, last = LAYOUT_SETTINGS
            raise GraphError(
                f"{pair} but differ in {', '.join(names)} or {last}", hint="use the same values for both nodes"
            )
        if (one.sharding or "none") != (two.sharding or "none"):
            raise GraphError(
                f"phase {self.request.phase!r}: nodes {other.label!r} and {node.label!r} share a model, but its "
                f"parameters are {one.sharding or 'none'!r} in one and {two.sharding or 'none'!r} in the other",
                hint="use the same sharding for both nodes",
            )

    def _by_policy(self, policy: str, models: Iterable[ModelNode]) -> dict[str, Device]:
        nodes = tuple(
            PolicyNode(
                node.label,
                self.shapes.frameworks[node.label],
                sum(spec.nbytes for spec in self.shapes.backends[node.label].parameters(node.model).values()),
                tuple(device for _, device in self.registry.devices(self.shapes.frameworks[node.label])),
            )
            for node in models
        )
        self.registry.load()
        policies = self.registry.policies
        if policy not in policies:
            raise PluginError(
                f"no plugin has the placement policy {policy!r}",
                available=", ".join(sorted(policies)),
                hint="install a plugin that has it, or leave policy= out",
            )
        plugin, function = policies[policy]
        whose, hint = f"the policy {policy!r} of plugin {plugin}", f"update {plugin.source}, or leave policy= out"
        try:
            devices = function(nodes=nodes)
        except Exception as error:
            error.add_note(f"raised in {whose}")
            raise
        if not isinstance(devices, Mapping):
            raise PluginError(f"{whose} must return devices by label, got {type(devices).__name__}", hint=hint)
        unknown = set(devices) - {node.label for node in nodes}
        if unknown:
            raise PluginError(
                f"{whose} places {', '.join(sorted(map(str, unknown)))}, which is not a node of this phase",
                available=", ".join(node.label for node in nodes),
                hint=hint,
            )
        try:
            return {label: Device.parse(device) for label, device in devices.items()}
        except DeviceParseError as error:
            raise PluginError(f"{whose} returns an invalid device: {error.problem}", hint=hint) from None


# -- Precision assignment: in which precision each node is computed, by one rule: the node's own, else the phase's -----


_NARROW = ("float16", "bfloat16")


def with_precision(node: Node, assignment: Assignment, request: Request) -> Assignment:
    """Return the assignment of a node with its precision and its recomputed parts.

    Raises:
        CapabilityError: the framework, the model or the device cannot do it.
        GraphError: the model does not support it, because it is not computed by a framework.
        PhaseError: the phase has a custom step.
    """
    if not isinstance(node, ModelNode):
        return assignment
    if node.kind.fixed:
        refuse_settings(node, "precision", "remat")
        return assignment
    if request.custom_step and (node.precision or node.remat):
        raise PhaseError(
            f"phase {request.phase!r} has a custom step, but node {node.label!r} has "
            + ("a precision" if node.precision else "remat"),
            hint="remove it from the node, and set it in the step",
        )
    name, reason = (node.precision, "node") if node.precision else (request.precision, "phase")
    if not name and not node.remat:
        return assignment
    backend, framework, device = assignment.backend, assignment.framework, assignment.device
    computes = backend.capability(ComputesPrecision)
    if name:
        problem = f"node {node.label!r} cannot be computed with precision={name!r} on {device}"
        precisions = () if computes is None else computes.precisions
        if computes is None or name not in precisions:
            raise CapabilityError(
                f"{problem}: the plugin of {framework} does not support it",
                available=", ".join(map(repr, precisions)),
                hint=f"write precision={precisions[0]!r}" if precisions else "leave precision out",
            )
        why_not = computes.precision_reason(node.model, name, device)
        if why_not:
            others = [
                precision
                for precision in precisions
                if precision != name and not computes.precision_reason(node.model, precision, device)
            ]
            raise CapabilityError(
                f"{problem}: {why_not}",
                available=", ".join(map(repr, others)),
                hint=f"use another one for the node: ModelNode({node.label!r}, ..., precision={others[0]!r})"
                if others
                else "leave precision out",
            )
        dtype = backend.dtype_of(node.model)
        if NodePrecision(name).is_mixed and dtype in _NARROW:
            raise CapabilityError(
                f"{problem}: its parameters are {dtype}, and mixed precision updates parameters in float32",
                hint="convert the model to float32, or leave precision out to compute in its own dtype",
            )
        assignment = replace(assignment, precision=name, precision_reason=reason)
    if node.remat:
        problem = f"node {node.label!r} has remat={node.remat!r}"
        if computes is None:
            raise CapabilityError(
                f"{problem}, but the plugin of {framework} does not support recomputation", hint="leave remat out"
            )
        blocks = tuple(computes.remat_blocks(node.model, node.remat))
        if not blocks:
            raise CapabilityError(
                f"{problem}, but {framework} finds no such parts in a {type(node.model).__name__}",
                available="parts of a list or sequence of layers, or those whose names a pattern matches",
                hint="leave remat out, or use the framework's function in the model",
            )
        assignment = replace(assignment, recomputed=blocks)
    return assignment


def segment_precision(
    labels: Iterable[str], assigned: Mapping[str, Assignment], nodes: Mapping[str, Node], request: Request
) -> SegmentPrecision | None:
    """Return the precisions of the operations of a segment for a backend; None if all equal those of their models.

    Args:
        labels: Labels of the nodes of the segment.
        assigned: Assignments of all nodes: in a training, one that is computed in float16 scales all losses.
        nodes: The nodes by label.
        request: The request, with the loss scale.

    Raises:
        CapabilityError: a framework of the graph cannot scale losses, and all gradients belong to scaled losses.
    """
    precisions, recomputed = [], []
    for label in labels:
        assignment = assigned[label]
        if assignment.precision:
            precisions.append((label, NodePrecision(assignment.precision)))
        if assignment.recomputed:
            recomputed.append((label, str(getattr(nodes[label], "remat", ""))))
    scaled = ""  # the first node that needs a loss scale
    for label, assignment in assigned.items() if request.training else ():
        if not scaled and assignment.precision and NodePrecision(assignment.precision).scales_losses:
            scaled = label
    for assignment in assigned.values() if scaled else ():
        computes = assignment.backend.capability(ComputesPrecision)
        if computes is None or "fp16-mixed" not in computes.precisions:
            raise CapabilityError(
                f"node {scaled!r} is trained in fp16-mixed, which scales all losses, but "
                f"the plugin of {assignment.framework}, which computes node {assignment.node!r}, cannot scale them",
                hint="write precision='bf16-mixed', which needs no loss scale",
            )
    if not (precisions or recomputed or scaled):
        return None
    return SegmentPrecision(tuple(precisions), tuple(recomputed), request.loss_scale if scaled else None)


def without_remat(segment: Segment) -> Segment:
    """Return a segment of which nothing is recomputed in the backward pass."""
    precision = segment.precision
    return segment if precision is None else replace(segment, precision=replace(precision, recomputed=()))


def matmul_precisions(request: Request, assigned: Mapping[str, Assignment]) -> list[tuple[ComputesPrecision, Any]]:
    """Return each backend of a graph with the setting for matrix multiplications that a phase gives it, if any.

    Raises:
        PhaseError: a setting that no framework of the graph has, or for a framework that is not in it.
    """
    requested = request.matmul_precision
    if requested is None:
        return []
    backends = {
        assignment.framework: assignment.backend.capability(ComputesPrecision) for assignment in assigned.values()
    }
    allowed = {name: () if computes is None else computes.matmul_precisions for name, computes in backends.items()}
    by_framework = (
        dict(requested)
        if isinstance(requested, Mapping)
        else {name: requested for name in allowed if _has(allowed[name], requested)}
    )
    available = "; ".join(f"{name}: {', '.join(map(repr, values))}" for name, values in allowed.items() if values)
    for name, value in by_framework.items() or [("", requested)]:
        if name not in allowed or not _has(allowed[name], value):
            setting = {name: value} if isinstance(requested, Mapping) else requested
            raise PhaseError(
                f"phase {request.phase!r}: no framework of the graph has matmul_precision={shown(setting)}",
                available=available,
                hint="use one of these, or a dict of them by framework",
            )
    return [
        (computes, by_framework[name])
        for name, computes in backends.items()
        if name in by_framework and computes is not None
    ]


def float32_notes(request: Request, assigned: Mapping[str, Assignment], nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield how defaults of the frameworks change float32 in a phase without a matrix multiplication precision."""
    found = []
    for label, assignment in assigned.items() if request.matmul_precision is None else ():
        model, computes = getattr(nodes[label], "model", None), assignment.backend.capability(ComputesPrecision)
        narrow = bool(assignment.precision) and NodePrecision(assignment.precision).dtype != "float32"
        if model is not None and not narrow and computes is not None:
            found.append(computes.float32_note(model, assignment.device))
    yield from filter(None, dict.fromkeys(found))


def _has(values: Iterable[Any], value: Any) -> bool:
    """Whether a value is among some, where True is not 1."""
    return any(type(candidate) is type(value) and candidate == value for candidate in values)


# -- Resolution: what a phase asks of a graph, and what `resolve` makes of it: a plan, and what carries it out ---------


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a phase to a graph.

    Attributes:
        phase: Label of the phase.
        strict: Whether a node that cannot run on the phase's device is an error; otherwise it runs on the CPU.
        policy: Name of the placement policy, if any.
        wants: Labels of the nodes whose outputs are kept.
        streams: Streams of each feature set's sampler, by the feature set's label.
        learners: Labels of the estimators that learn on the host.
        precision: Precision of nodes without their own; None for that of their models.
        sharding: Sharding of the parameters of nodes without their own setting over replicas; None for none.
        loss_scale: Factor on the losses if a node is computed in float16.
        matmul_precision: Matrix multiplication precision in the words of the frameworks: a value for all, or by
            framework; None for none.
        custom_step: Whether steps are custom steps, which may use every node; then losses belong to the validation.
        devices: Devices of the replicas that this process trains; the nodes are on the first. Empty if the accelerator
            names the device.
    """

    phase: str
    accelerator: Accelerator | None = None
    losses: tuple[AppliedLoss, ...] = ()
    training: bool = False
    wants: tuple[str, ...] = ()
    strict: bool = False
    policy: str | None = None
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: tuple[str, ...] = ()
    custom_step: bool = False
    devices: tuple[Device, ...] = ()
    precision: str | None = None
    sharding: str | None = None
    loss_scale: LossScale = field(default_factory=LossScale)
    matmul_precision: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A plan, and the objects to carry it out.

    Attributes:
        segments: Segments in topological order.
        backends: Backend of each segment.
        live: Names of the values through which gradients flow: outputs of trained nodes, and values that depend on
            them.
        shapes: Shapes of the whole graph.
        matmul_precisions: Backends, each with its setting for the precision of matrix multiplications in the phase.
        step_columns: Names of columns by the names that a custom step finds them under.
    """

    plan: Plan
    segments: tuple[Segment, ...]
    backends: tuple[ComputingBackend, ...]
    live: frozenset[str]
    shapes: Shapes
    step_columns: Mapping[str, str] = field(default_factory=dict)
    matmul_precisions: Sequence[tuple[ComputesPrecision, Any]] = ()
