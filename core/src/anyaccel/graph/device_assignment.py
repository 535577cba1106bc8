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
from anyaccel.graph.nodes import LAYOUT_SETTINGS, ModelNode, Node, refuse_settings
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
            AnyaccelError: a node cannot be computed in its precision; see `with_precision`.
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
        labels = [label for label in self.shapes.order if label in active]
        models = [node for label in labels if isinstance(node := self.nodes[label], ModelNode)]
        chosen = self._by_policy(self.request.policy, models) if self.request.policy else {}
        assigned = {node.label: self._model(node, chosen.get(node.label)) for node in models}
        _check_shared(models, assigned)
        for label in reversed(labels):
            if label not in assigned:
                around = [*topology.consumers(label, self.nodes), *topology.parents(self.nodes[label], self.nodes)]
                neighbours = [assigned[other] for other in around if other in assigned]
                framework = self.shapes.frameworks[label]
                same = [other for other in neighbours if other.framework == framework]
                if not neighbours:
                    wanted, reason = precedence(None, self.request.accelerator)
                    assigned[label] = self._settled(
                        label, self._on_one_device(wanted, reason, framework), reason, wanted.spec
                    )
                else:
                    near = (same or neighbours)[0]
                    assigned[label] = self._on(
                        near.device, label, reason="neighbour", requested=near.node, pinned=near.pinned
                    )
        return {label: with_precision(self.nodes[label], assigned[label], self.request) for label in labels}

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

    def _model(self, node: ModelNode, chosen: Device | None) -> Assignment:
        framework = self.shapes.frameworks[node.label]
        asked, reason = precedence(node.accelerator, self.request.accelerator)
        requested = f"{DEFAULT_DEVICE}={asked.spec}" if reason == "environment" else asked.spec
        wanted = self._on_one_device(asked, reason, framework)
        if chosen is not None and reason != "node":
            wanted, reason, requested = Accelerator(chosen), "policy", self.request.policy or ""
        specs = self.shapes.backends[node.label].parameters(node.model).values()
        settled = self._settled(node.label, wanted, reason, requested)
        return replace(
            settled,
            frozen=node.frozen,
            parameters=sum(math.prod(spec.shape) for spec in specs),
            nbytes=sum(spec.nbytes for spec in specs),
            rejected=tuple(self._rejected(node, reason, settled, wanted.device.kind, chosen is not None)),
        )

    def _on_one_device(self, wanted: Accelerator, reason: str, framework: str) -> Accelerator:
        if self.request.devices and reason != "node":
            return wanted.at(self.request.devices[0])
        return wanted.on_one_device(framework, known=self.registry)

    def _rejected(
        self, node: ModelNode, decider: str, settled: Assignment, kind: str, is_chosen: bool
    ) -> Iterator[Rejection]:
        """Yield the devices that a node might have had, and why it has another one.

        `decider` is the level before a fallback, `kind` is the kind of the requested device.
        """
        environment = os.environ.get(DEFAULT_DEVICE, "").strip()
        asked = {"node": node.accelerator, "phase": self.request.accelerator}
        requests = {level: accelerator.spec for level, accelerator in asked.items() if accelerator is not None}
        if is_chosen:
            requests["policy"] = str(self.request.policy)
        if environment:
            requests["environment"] = environment
        if settled.reason == "fallback":
            why = f"no installed plugin runs {settled.framework} on {kind}"
            yield Rejection(decider, requests[decider], why)
        accelerator = asked.get(decider) or (Accelerator(environment) if decider == "environment" else None)
        if accelerator is not None and not USUAL.fullmatch(accelerator.spec):  # not one device alone
            every = sorted({backend.framework for backend in self.shapes.backends.values()})
            frameworks = every if decider == "phase" else [settled.framework]
            written = Accelerator(accelerator.spec)  # this one may have its device by now
            candidates = written.refused(
                frameworks, self.registry, of_all=decider != "phase", strict=self.request.strict
            )
            for candidate, why in candidates[:_MOST]:
                yield Rejection(decider, candidate, why)
        if decider in LEVELS:
            for level in LEVELS[LEVELS.index(decider) + 1 :]:
                if level in requests:
                    yield Rejection(level, requests[level], f"{_FIRST[decider]} comes first")

    def _settled(self, label: str, wanted: Accelerator, reason: str, requested: str) -> Assignment:
        """Return the assignment for a request, or on the CPU where that is allowed."""
        framework = self.shapes.frameworks[label]
        if (
            reason in ("phase", "environment")
            and not self.request.strict
            and not self.registry.serves(framework, wanted.device.kind)
        ):
            wanted, reason = Accelerator("cpu"), "fallback"
        try:
            self.registry.serving(framework, wanted.device, vendor=wanted.vendor)
        except (FrameworkError, DeviceUnavailableError) as error:
            chosen = f" (the policy {requested!r} chose it)" if reason == "policy" else ""
            problem = f"node {label!r}: {error.problem}{chosen}"
            raise type(error)(problem, available=error.available, hint=error.hint) from None
        return self._on(wanted.device, label, reason=reason, requested=requested, pinned=wanted.pin_memory)

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


def _check_shared(models: Iterable[ModelNode], assigned: Mapping[str, Assignment]) -> None:
    """Check that nodes that share a model agree on everything that belongs to the model."""
    first: dict[int, ModelNode] = {}
    for node in models:
        other = first.setdefault(id(node.model), node)
        if other is node:
            continue
        pair = f"nodes {other.label!r} and {node.label!r} share one model"
        devices = assigned[other.label].device, assigned[node.label].device
        if devices[0] != devices[1]:
            raise GraphError(
                f"{pair} but request two devices, {devices[0]} and {devices[1]}",
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
    if name:
        _check_precision(node, assignment, name)
        assignment = replace(assignment, precision=name, precision_reason=reason)
    return replace(assignment, recomputed=_recomputed(node, assignment)) if node.remat else assignment


def _check_precision(node: ModelNode, assignment: Assignment, name: str) -> None:
    backend, framework, device = assignment.backend, assignment.framework, assignment.device
    problem = f"node {node.label!r} cannot be computed with precision={name!r} on {device}"
    computes = backend.capability(ComputesPrecision)
    precisions = () if computes is None else computes.precisions
    if computes is None or name not in precisions:
        raise CapabilityError(
            f"{problem}: the plugin of {framework} does not support it",
            available=", ".join(map(repr, precisions)),
            hint=f"write precision={precisions[0]!r}" if precisions else "leave precision out",
        )
    reason = computes.precision_reason(node.model, name, device)
    if reason:
        others = [
            precision
            for precision in precisions
            if precision != name and not computes.precision_reason(node.model, precision, device)
        ]
        raise CapabilityError(
            f"{problem}: {reason}",
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


def _recomputed(node: ModelNode, assignment: Assignment) -> tuple[str, ...]:
    backend, remat = assignment.backend, str(node.remat)
    problem = f"node {node.label!r} has remat={remat!r}"
    computes = backend.capability(ComputesPrecision)
    if computes is None:
        raise CapabilityError(
            f"{problem}, but the plugin of {assignment.framework} does not support recomputation",
            hint="leave remat out",
        )
    blocks = tuple(computes.remat_blocks(node.model, remat))
    if not blocks:
        raise CapabilityError(
            f"{problem}, but {assignment.framework} finds no such parts in a {type(node.model).__name__}",
            available="parts of a list or sequence of layers, or those whose names a pattern matches",
            hint="leave remat out, or use the framework's function in the model",
        )
    return blocks


def segment_precision(
    labels: Iterable[str], assigned: Mapping[str, Assignment], nodes: Mapping[str, Node], loss_scale: LossScale | None
) -> SegmentPrecision | None:
    """Return the precisions of the operations of a segment for a backend; None if all equal those of their models."""
    precisions, recomputed = [], []
    for label in labels:
        assignment = assigned[label]
        if assignment.precision:
            precisions.append((label, NodePrecision(assignment.precision)))
        if assignment.recomputed:
            recomputed.append((label, str(getattr(nodes[label], "remat", ""))))
    if not (precisions or recomputed or loss_scale):
        return None
    return SegmentPrecision(tuple(precisions), tuple(recomputed), loss_scale)


def loss_scale_of(assigned: Mapping[str, Assignment], request: Request) -> LossScale | None:
    """Return the loss scale of a training if one of its nodes is computed in float16; otherwise None.

    Raises:
        CapabilityError: a framework of the graph cannot scale losses, and all gradients belong to scaled losses.
    """
    narrow = [
        label
        for label, assignment in assigned.items()
        if assignment.precision and NodePrecision(assignment.precision).scales_losses
    ]
    if not narrow:
        return None
    for assignment in assigned.values():
        computes = assignment.backend.capability(ComputesPrecision)
        if computes is None or "fp16-mixed" not in computes.precisions:
            raise CapabilityError(
                f"node {narrow[0]!r} is trained in fp16-mixed, which scales all losses, but "
                f"the plugin of {assignment.framework}, which computes node {assignment.node!r}, cannot scale them",
                hint="write precision='bf16-mixed', which needs no loss scale",
            )
    return request.loss_scale


def matmul_precisions(
    phase: str, requested: Any, assigned: Mapping[str, Assignment]
) -> list[tuple[ComputesPrecision, Any]]:
    """Return each backend of a graph with the setting for matrix multiplications that a phase gives it.

    Raises:
        PhaseError: a setting that no framework of the graph has, or for a framework that is not in it.
    """
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
                f"phase {phase!r}: no framework of the graph has matmul_precision={shown(setting)}",
                available=available,
                hint="use one of these, or a dict of them by framework",
            )
    return [
        (computes, by_framework[name])
        for name, computes in backends.items()
        if name in by_framework and computes is not None
    ]


def float32_notes(assigned: Mapping[str, Assignment], nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield how defaults of the frameworks change float32 in a phase without a matrix multiplication precision."""
    found = []
    for label, assignment in assigned.items():
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
