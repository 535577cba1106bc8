"""Sharding of a TrainPhase: what is divided among replicas, what cannot be, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Iterator

from anyaccel.adapter.device_replicas import DeviceReplicas
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph import Plan, Resolution
from anyaccel.phases.phase import Phase
from anyaccel.phases.train_phase import TrainPhase
from anyaccel.replicas import ShardParameters, launched


def is_sharded(phase: Phase) -> bool:
    """Whether the parameters that a phase trains are divided; not in a process that trains on its own."""
    if not isinstance(phase, TrainPhase) or phase.sharding is None:
        return False
    return phase.replicas != 1 and launched() is not None


def divides(phase: Phase, plan: Plan) -> bool:
    """Whether the parameters that a phase trains are divided among several devices of this process."""
    return isinstance(phase, TrainPhase) and phase.sharding is not None and bool(plan.replicas)


def offloads(phase: Phase) -> bool:
    """Whether what is divided rests in host memory."""
    return isinstance(phase, TrainPhase) and phase.sharding == "full offload"


def check_sharding(phase: Phase, resolution: Resolution) -> None:
    """Check that what a phase trains can be divided among its replicas.

    Raises:
        CapabilityError: the backend has no sharding.
        PhaseError: the graph or the phase has something that cannot be divided.
    """
    if divides(phase, resolution.plan):
        _check_divisible(phase, resolution)
    if not is_sharded(phase):
        return
    hint = "leave sharding out: then each replica keeps all parameters"
    for backend in resolution.backends:
        if not isinstance(backend, ShardParameters):
            raise CapabilityError(
                f"phase {phase.label!r} has sharding, and {backend.framework} cannot divide parameters among replicas",
                available="frameworks whose plugin has the capability 'shard_parameters'",
                hint=hint,
            )
    reason = next(_reasons(phase, resolution), None)
    if reason is not None:
        raise PhaseError(f"phase {phase.label!r} has sharding, and {reason}", hint=hint)


def _check_divisible(phase: Phase, resolution: Resolution) -> None:
    """Check that what a phase trains can be divided among devices of this process; `check_replicable` has passed."""
    (segment,), (backend,) = resolution.segments, resolution.backends
    assert isinstance(backend, DeviceReplicas)
    reason = backend.undividable_reason(segment)
    hint = "leave sharding out: then each replica keeps all parameters"
    if isinstance(backend, ShardParameters):
        hint = f"start processes, anyaccel run --replicas {len(resolution.plan.replicas)} SCRIPT, or leave sharding out"
    if isinstance(phase, TrainPhase) and phase.deterministic:
        reason, hint = "deterministic=True adds whole gradients", "leave deterministic or sharding out"
    elif offloads(phase):
        reason = "offload is for the processes of a launcher"
    if reason:
        replicas = ", ".join(map(str, resolution.plan.replicas))
        raise PhaseError(f"phase {phase.label!r} has sharding over {replicas}, and {reason}", hint=hint)


def _reasons(phase: Phase, resolution: Resolution) -> Iterator[str]:
    if len(resolution.segments) > 1:
        yield f"its graph is computed in {len(resolution.segments)} segments, of several frameworks"
    if phase.compile == "steps":
        yield "compile='steps': steps of replicas are not compiled"
    divided = [each.node for each in resolution.plan.assignments if each.offload is not None]
    if divided:
        yield f"node {divided[0]!r} has a device_map"
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        assert isinstance(backend, ShardParameters)
        if reason := backend.unshardable_reason(segment, offload=offloads(phase)):
            yield reason


def sharding_notes(phase: Phase, resolution: Resolution) -> tuple[str, ...]:
    """What the plan says of sharding; nothing without it."""
    if not isinstance(phase, TrainPhase) or phase.sharding is None:
        return ()
    if divides(phase, resolution.plan):
        nodes = [op.label for segment in resolution.segments for op in segment.operations if op.model and op.trainable]
        every = ", ".join(map(repr, nodes))
        return (f"parameters and optimizer state of {every} are divided among {len(resolution.plan.replicas)} devices",)
    place = launched()
    if place is None or phase.replicas == 1:
        return (f"sharding={phase.sharding!r} divides nothing here: this process trains on its own",)
    return tuple(_notes(resolution, place.size, "; they rest in host memory" if offloads(phase) else ""))


def _notes(resolution: Resolution, size: int, where: str) -> Iterator[str]:
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        if not isinstance(backend, ShardParameters):
            continue
        for operation in segment.operations:
            if operation.model is not None and operation.trainable:
                blocks = backend.sharded_blocks(operation.model)
                gathered = f"gathered by block ({', '.join(blocks)})" if blocks else "gathered as one"
                yield (
                    f"parameters and optimizer state of {operation.label!r} are divided among {size} replicas, and "
                    f"{gathered}{where}"
                )
