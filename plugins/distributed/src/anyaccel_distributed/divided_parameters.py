"""Sharding of a TrainPhase: the parameters that are sharded over replicas, the checks, and the notes in the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anyaccel.backend import ComputingBackend
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph import Plan, Resolution
from anyaccel.graph.plan_entries import layouts
from anyaccel.phases.settings import PhaseSettings
from anyaccel.segment import Operation
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_distributed.meeting_point import launched
from anyaccel_distributed.sharding import ShardParameters

_LEAVE_OUT = "leave sharding out, so that each replica has all parameters"


def divided_nodes(plan: Plan) -> dict[str, str]:
    """Return the nodes whose parameters are to be sharded, each with how; empty for all but a TrainPhase."""
    return {
        assignment.node: assignment.sharding
        for assignment in plan.assignments
        if assignment.sharding not in ("", "none")
    }


def whole_nodes(plan: Plan) -> tuple[str, ...]:
    """Return the nodes whose parameters each replica stores whole; empty if nothing is sharded."""
    divided = divided_nodes(plan)
    return tuple(assignment.node for assignment in plan.assignments if divided and assignment.node not in divided)


def is_sharded(phase: PhaseSettings, plan: Plan) -> bool:
    """Return whether trained parameters of a phase are sharded; False in a process that trains alone."""
    if not divided_nodes(plan):
        return False
    return phase.replicas != 1 and launched() is not None


def divides(plan: Plan) -> bool:
    """Return whether trained parameters of a phase are sharded over several devices of this process."""
    return bool(divided_nodes(plan)) and bool(plan.replicas)


def offloads(plan: Plan) -> bool:
    """Return whether sharded values are stored in host memory."""
    return "full offload" in divided_nodes(plan).values()


def check_sharding(phase: PhaseSettings, resolution: Resolution) -> None:
    """Check that the trained parameters of a phase can be sharded over its replicas.

    Raises:
        CapabilityError: the backend has no sharding, or none of single nodes.
        PhaseError: a part of the graph or the phase cannot be sharded.
    """
    if divides(resolution.plan):
        _check_divisible(phase, resolution)
    if not is_sharded(phase, resolution.plan):
        return
    for backend in resolution.backends:
        shards = backend.capability(ShardParameters)
        if shards is None:
            raise CapabilityError(
                f"{_who(phase, resolution)}, but {backend.framework} cannot shard parameters over replicas",
                cause="its plugin lacks the capability 'shard_parameters'",
                hint=_LEAVE_OUT,
            )
        _check_single_nodes(phase, resolution, backend, able=shards.shards_nodes)
    reason = next(_reasons(phase, resolution), None)
    if reason is not None:
        raise PhaseError(f"{_who(phase, resolution)}, but {reason}", hint=_LEAVE_OUT)


def _who(phase: PhaseSettings, resolution: Resolution) -> str:
    """Return the phase, or the first node that asks for it."""
    asking = [assignment for assignment in resolution.plan.assignments if assignment.sharding not in ("", "none")]
    by_node = next((assignment for assignment in asking if assignment.sharding_reason == "node"), None)
    if by_node is None or any(assignment.sharding_reason == "phase" for assignment in asking):
        return f"phase {phase.label!r} has sharding"
    return f"phase {phase.label!r}: node {by_node.node!r} has sharding={by_node.sharding!r}"


def _check_single_nodes(phase: PhaseSettings, resolution: Resolution, backend: ComputingBackend, *, able: bool) -> None:
    """Check for sharding of single nodes: an older plugin shards all nodes or none."""
    whole = [op.label for op in _trained(resolution) if op.label in whole_nodes(resolution.plan)]
    if whole and not able:
        raise CapabilityError(
            f"{_who(phase, resolution)}, but node {whole[0]!r} has sharding='none', and the plugin "
            f"of {backend.framework} can only shard all nodes or none",
            hint="use the sharding of the phase for all nodes, or update the plugin",
        )


def _check_divisible(phase: PhaseSettings, resolution: Resolution) -> None:
    """Check that trained parameters can be sharded over devices of this process; `check_replicable` has passed."""
    (segment,), (backend,) = resolution.segments, resolution.backends
    replicas, shards = backend.required(DeviceReplicas), backend.capability(ShardParameters)
    whole = whole_nodes(resolution.plan)
    more = {"whole": whole} if whole and replicas.divides_nodes else {}
    reason, hint = replicas.undividable_reason(segment, **more), _LEAVE_OUT
    offload = offloads(resolution.plan)
    more = {"whole": whole} if whole and shards is not None and shards.shards_nodes else {}
    if shards is not None and not shards.unshardable_reason(segment, offload=offload, **more):
        hint = f"start processes, anyaccel run --replicas {len(resolution.plan.replicas)} SCRIPT, or leave sharding out"
    if phase.deterministic:
        reason, hint = "deterministic=True sums whole gradients", "leave deterministic or sharding out"
    elif offload:
        reason = "offload needs the processes of a launcher"
    if reason:
        devices = ", ".join(map(str, resolution.plan.replicas))
        raise PhaseError(f"{_who(phase, resolution)} over {devices}, but {reason}", hint=hint)
    _check_single_nodes(phase, resolution, backend, able=replicas.divides_nodes)


def _reasons(phase: PhaseSettings, resolution: Resolution) -> Iterator[str]:
    nodes, whole = divided_nodes(resolution.plan), whole_nodes(resolution.plan)
    if len(resolution.segments) > 1:
        yield f"its graph is computed in {len(resolution.segments)} segments, of several frameworks"
    whole_steps = all(backend.required(ShardParameters).global_batches for backend in resolution.backends)
    if phase.compile == "steps" and not whole_steps:
        yield "compile='steps': steps of replicas are not compiled"
    mapped = list(layouts(resolution.plan.assignments))
    if mapped:
        yield f"node {mapped[0]!r} has a device_map"
    if len(set(nodes.values())) > 1:
        by_way = {way: node for node, way in reversed(nodes.items())}
        yield (
            f"node {by_way['full']!r} stores its shards on the device, but node {by_way['full offload']!r} in host "
            "memory"
        )
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        shards, more = backend.required(ShardParameters), {"whole": whole} if whole else {}
        if reason := shards.unshardable_reason(segment, offload=offloads(resolution.plan), **more):
            yield reason


def _trained(resolution: Resolution) -> Iterator[Operation]:
    """Yield the operations with models that are in training mode."""
    for segment in resolution.segments:
        yield from (op for op in segment.operations if op.model is not None and op.trainable)


def sharding_notes(phase: PhaseSettings, resolution: Resolution) -> tuple[str, ...]:
    """Return notes for the plan about sharding; empty if nothing is sharded."""
    plan = resolution.plan
    nodes = divided_nodes(plan)
    if not nodes:
        asked = phase.sharding is not None
        return (f"sharding={phase.sharding!r} has no effect: all nodes have sharding='none'",) if asked else ()
    place = launched()
    if not divides(plan) and (place is None or phase.replicas == 1):
        way = next(iter(nodes.values()))
        return (f"sharding={way!r} has no effect: this process trains alone",)
    kept = [repr(op.label) for op in _trained(resolution) if op.label not in nodes]
    wholes = [f"parameters of {', '.join(kept)} are whole in each replica"] if kept else []
    if divides(plan):
        every = ", ".join(repr(op.label) for op in _trained(resolution) if op.label in nodes)
        where = f"{len(plan.replicas)} devices"
        return (f"parameters and optimizer state of {every} are sharded over {where}", *wholes)
    size = place.size if place is not None else 1
    return (*_notes(resolution, nodes, size, "; they stay in host memory" if offloads(plan) else ""), *wholes)


def _notes(resolution: Resolution, nodes: Iterable[str], size: int, where: str) -> Iterator[str]:
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        shards = backend.capability(ShardParameters)
        if shards is None:
            continue
        for operation in segment.operations:
            if operation.model is None or operation.label not in nodes:
                continue
            if operation.trainable or shards.global_batches:  # one program over all divides what is frozen, too
                blocks = shards.sharded_blocks(operation.model)
                gathered = f"gathered by block ({', '.join(blocks)})" if blocks else "gathered together"
                yield (
                    f"parameters and optimizer state of {operation.label!r} are sharded over {size} "
                    f"replicas and {gathered}{where}"
                )
            elif resolution.plan[operation.label].sharding_reason == "node":
                yield f"node {operation.label!r} is frozen: its parameters are whole in each replica"
