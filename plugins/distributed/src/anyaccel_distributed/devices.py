"""Replica devices: the devices of this process that compute a phase, and the limits of several replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anyaccel.accelerator import Accelerator
from anyaccel.backend import ComputingBackend, Program
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, ConfigError, PhaseError
from anyaccel.graph import Plan, Resolution
from anyaccel.graph.plan_entries import layouts
from anyaccel.launched import Launched
from anyaccel.phases.accumulation import check_accumulation
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.process_group import SingleProcess
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry
from anyaccel.segment import Segment
from anyaccel_distributed.batch_shards import FIXED_SHARDS
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_distributed.divided_parameters import divides, whole_nodes
from anyaccel_distributed.replica_checks import SHARES, WITHOUT_REPLICAS, replica_checks
from anyaccel_distributed.replicated_program import build_replicated


def requested_of_process(asked: Accelerator, found: Sequence[Device], place: Launched) -> Device:
    """Return the device of one process: a request for several devices is one for each."""
    rank = place.rank if place.local_rank is None else place.local_rank
    size = place.local_size or place.size
    if len(found) not in (1, size):
        problem = (
            f"the request {asked.spec!r} is for {len(found)} devices, one for each replica, but this is one of {size}"
        )
        hint = f"start the script as anyaccel run --replicas {len(found)} SCRIPT"
        raise ConfigError(f"{problem} process{'es' if size > 1 else ''}", hint=hint)
    return found[rank % len(found)]


def _listed(kind: str, frameworks: Sequence[str], known: Registry | None) -> list[Device]:
    """Return the devices of a kind that all frameworks support, in order."""
    listed = [[device for _, device in (known or registry()).devices(name)] for name in frameworks]
    common = [device for device in listed[0] if all(device in devices for devices in listed[1:])] if listed else []
    return [device for device in sorted(common) if device.kind == kind]


def devices_of_process(
    who: str, kind: str, place: Launched, frameworks: Sequence[str], known: Registry | None
) -> tuple[Device, ...]:
    """Return the device of one of several processes on a machine; empty if there is nothing to choose from.

    A launcher may show each process its own device alone.
    """
    found = [] if kind == "cpu" else _listed(kind, frameworks, known)
    if len(found) < 2:
        return tuple(found)
    index = place.rank % len(found) if place.local_rank is None else place.local_rank
    if index >= len(found):
        raise PhaseError(
            f"{who} requests {kind!r}, but this is process {index} on this machine, counted from 0",
            available=f"{', '.join(map(str, found))}, one for each",
            hint=f"start {len(found)} processes on each machine; if each sees only its own devices, "
            f"name one: accelerator={str(found[0])!r}",
        )
    return (found[index],)


def devices_of_kind(
    phase: PhaseSettings, first: Device, wanted: int, frameworks: Sequence[str], known: Registry | None
) -> tuple[Device, ...]:
    """Return the requested number of devices of a kind that all frameworks support."""
    devices = [device for device in _listed(first.kind, frameworks, known) if device.index >= first.index]
    if len(devices) < wanted:
        raise PhaseError(
            f"phase {phase.label!r} has replicas={wanted}, but this process has fewer devices for them",
            available=", ".join(map(str, devices)),
            hint=f"start as many processes, anyaccel run --replicas {wanted} SCRIPT, or write replicas=1",
        )
    return tuple(devices[:wanted])


class DeviceGroup(SingleProcess):
    """One process whose programs have replicas on several devices, or split each batch into shards in a fixed order.

    Args:
        plan: Plan with its devices and its sharding.
        deterministic: Whether the sums of a step have a fixed order.
    """

    def __init__(self, plan: Plan, *, deterministic: bool) -> None:
        self._plan, self._deterministic = plan, deterministic
        self.keeps_snapshots = not divides(plan)  # parameters are, for want of room

    def build(self, segment: Segment, backend: ComputingBackend) -> Program:
        return build_replicated(
            backend,
            segment,
            self._plan.replicas or (segment.operations[0].device,),
            deterministic=self._deterministic,
            divided=divides(self._plan),
            whole=whole_nodes(self._plan),
        )

    def loop_extensions(self, run: Run, pipeline: Pipeline) -> tuple[Sequence[LoopExtension], Sequence[LoopExtension]]:
        return (), replica_checks(run.phase, pipeline, self)


def check_replicable(phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> None:
    """Check that the devices of a plan can train replicas, if it has several, or that sums can have a fixed order.

    Raises:
        PhaseError: the phase has something that replicas cannot share.
        CapabilityError: the backend has no replicas on several devices.
    """
    if not (resolution.plan.replicas or phase.deterministic):
        return
    replicas = resolution.plan.replicas
    doing = f"train replicas on {', '.join(map(str, replicas))}" if replicas else "be deterministic=True"
    reason = next(_unshareable(phase, resolution, learners), None)
    if reason is not None:
        raise PhaseError(f"phase {phase.label!r} cannot {doing}: {reason[0]}", hint=reason[1])
    backend = resolution.backends[0]
    if backend.capability(DeviceReplicas) is None:
        raise CapabilityError(
            f"phase {phase.label!r} cannot {doing}: the plugin of {backend.framework} has no replicas in one process",
            cause="it lacks the capability 'device_replicas'",
            hint=f"update the plugin, or {_one_device(resolution.plan)}",
        )
    check_accumulation(phase.label, phase.losses, doing=SHARES, left_out=WITHOUT_REPLICAS)


_APART = {
    "node": "requests a separate device,",
    "policy": "is placed by the policy on",
    "fallback": "has a framework that does not run there, and falls back to",
}
"""Why a node is not on the devices of the phase, by the reason of its assignment."""


def _one_device(plan: Plan) -> str:
    """Return what to write if a phase cannot have replicas."""
    if not plan.replicas:
        return "leave deterministic out"
    return f"leave replicas out, and request one device: accelerator={str(plan.replicas[0])!r}"


def _unshareable(phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield why a phase cannot be split, and what to do."""
    plan, one_device = resolution.plan, _one_device(resolution.plan)
    if phase.step is not None:
        yield "it has a custom step", one_device
    divided = list(layouts(plan.assignments))
    if divided:
        yield f"node {divided[0]!r} has a device_map", f"leave it out, or {one_device}"
    if learners:
        yield f"the estimator {learners[0]!r} learns from each batch", f"freeze it, or {one_device}"
    for assignment in plan.assignments:
        if plan.replicas and assignment.reason in _APART:
            yield (
                f"node {assignment.node!r} {_APART[assignment.reason]} {assignment.device}",
                f"leave its accelerator out to follow the phase, or {one_device}",
            )
    if len(resolution.segments) > 1:
        frameworks = ", ".join(dict.fromkeys(backend.framework for backend in resolution.backends))
        yield (
            f"it is computed in {len(resolution.segments)} segments, of {frameworks}",
            f"use one framework for all nodes, or {one_device}",
        )
    if phase.deterministic and len(plan.replicas) > FIXED_SHARDS:
        yield (
            f"deterministic=True splits each batch into {FIXED_SHARDS} shards, so at most {FIXED_SHARDS} replicas are "
            "possible",
            f"request {FIXED_SHARDS} devices, or leave deterministic out",
        )
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for operation in segment.operations:
            if operation.trainable and operation.model is not None and (why := backend.batch_coupling(operation.model)):
                hint = f"freeze it, graph.freeze({operation.label!r}), use layers without it, or {one_device}"
                yield f"{why} in node {operation.label!r} mixes the rows of a batch", hint


def replica_notes(phase: PhaseSettings, plan: Plan, batch_size: int | None) -> tuple[str, ...]:
    """Return notes for a plan about its replicas: who decided, and the number of rows of each."""
    replicas = plan.replicas
    if not replicas:
        return ()
    assignment = plan.assignments[0]
    who = {"phase": f"the phase requests {assignment.requested!r}", "environment": f"{assignment.requested!r} is set"}
    why = who.get(assignment.reason, f"the phase has replicas={len(replicas)}")
    if phase.replicas is not None and assignment.reason != "default":
        why = f"{why} and replicas={phase.replicas}"
    shares = "part of the rows of every batch"
    if batch_size is not None:
        low, high = batch_size // len(replicas), -(-batch_size // len(replicas))
        shares = f"{low if low == high else f'{low} or {high}'} of the {batch_size} rows of a batch"
    return (f"{len(replicas)} replicas on {', '.join(map(str, replicas))}, each with {shares}: {why}",)
