"""Replica checks: what in a phase several replicas cannot share, and what their backends cannot do."""

from __future__ import annotations
from anyaccel.phases.settings import PhaseSettings

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyaccel.adapter.batch_shards import FIXED_SHARDS
from anyaccel.adapter.loss_weights import weight_inputs
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph import Assignment, Plan, Resolution
from anyaccel.phases.accumulation import check_accumulation
from anyaccel.phases.sharding import divided_nodes
from anyaccel.registry import registry
from anyaccel.replicas import ReplicaGroup, Replicate


def may_compute_together(phase: PhaseSettings, resolution: Resolution) -> bool:
    """Whether replicas with whole parameters may compute each step by one program, as far as the phase decides it."""
    (backend, *others) = resolution.backends
    able = not others and isinstance(backend, Replicate) and backend.computes_together
    ragged = any(column.ragged for column in resolution.plan.columns)
    return able and not phase.deterministic and phase.residency != "streamed" and not ragged


def check_shareable(
    phase: PhaseSettings, resolution: Resolution, learners: Sequence[str], *, together: bool = False
) -> bool:
    """Check that a step over all rows of a batch can be computed from shares of them.

    Args:
        phase, resolution: what is trained.
        learners: estimators that learn in the phase.
        together: whether one program may compute a step over the rows of all replicas.

    Returns:
        whether layers mix the rows of a batch, and need such a program.

    Raises:
        PhaseError: something in it takes the whole batch.
    """
    may_sync, together = together, together and phase.sync_batchnorm
    reason = next(_unshareable(phase, resolution, learners, together=together), None)
    if reason is not None:
        can_sync = reason in _coupled_rows(resolution) and (may_sync or not _coupled_rows(resolution, synced=True))
        raise PhaseError(
            f"phase {phase.label!r} cannot be trained by several replicas: {reason}",
            hint="write sync_batchnorm=True to normalize by the rows of all; or replicas=1 to train the whole of it in "
            "each process on its own"
            if can_sync
            else "write replicas=1 to train the whole of it in each process on its own",
        )
    check_accumulation(phase.label, phase.losses, replicated=True)
    return bool(_coupled_rows(resolution, synced=phase.sync_batchnorm))


def _unshareable(
    phase: PhaseSettings, resolution: Resolution, learners: Sequence[str], *, together: bool
) -> Iterator[str]:
    """What keeps a phase from being shared, in words."""
    if phase.step is not None:
        yield "its step is your own"
    if phase.deterministic and divided_nodes(resolution.plan):
        yield "deterministic=True adds whole gradients, and sharding divides them"
    if learners:
        yield f"the estimator {learners[0]!r} learns from each batch"
    if phase.sync_batchnorm and phase.accumulate > 1:
        yield "it accumulates batches, and normalizes over each: replicas share a step, not its batches"
    yield from _unshareable_models(resolution)
    if not together:
        yield from _coupled_rows(resolution, synced=phase.sync_batchnorm)


def _unshareable_models(resolution: Resolution) -> Iterator[str]:
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for operation in segment.operations:
            if not (operation.trainable and operation.model is not None and isinstance(backend, Replicate)):
                continue
            if why := backend.unshareable_reason(operation.model):
                yield f"node {operation.label!r} {why}"


def _coupled_rows(resolution: Resolution, *, synced: bool = False) -> list[str]:
    """What mixes the rows of a batch, in words; with `synced`, what cannot do so over all replicas."""
    found = []
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for operation in segment.operations:
            if not operation.trainable or operation.model is None:
                continue
            why = backend.batch_coupling(operation.model)
            if why and synced and isinstance(backend, Replicate):
                why = backend.unsynchronizable(operation.model)
            if why:
                found.append(f"{why} in node {operation.label!r} mixes the rows of a batch")
    return found


def check_apart(label: str, plan: Plan, gather: Callable[[Any], list[Any]]) -> None:
    """Check that no two replicas train on one device; on a CPU they do.

    Args:
        label: of the phase.
        plan: of this replica.
        gather: gives the plain values that all replicas give, by rank.

    Raises:
        PhaseError: two do.
    """
    host = socket.gethostname()
    own = [
        [_identity(each, host), str(each.device), each.node, each.reason == "node"]
        for each in plan.assignments
        if each.parameters and not each.frozen and each.device.kind != "cpu"
    ]
    users: dict[str, list[tuple[int, str, str, bool]]] = {}
    for rank, devices in enumerate(gather(own)):
        for key, device, node, by_node in devices:
            users.setdefault(key, []).append((rank, device, node, by_node))
    shared = next((every for every in users.values() if len({rank for rank, *_ in every}) > 1), None)
    if shared is None:
        return
    where = ", ".join(f"node {node!r} on {device} in replica {rank}" for rank, device, node, _ in shared)
    kind = shared[0][1].partition(":")[0]
    raise PhaseError(
        f"phase {label!r} cannot be trained by several replicas: they would train on one device: {where}",
        cause=f"accelerator={kind!r} of the phase gives each process of a machine a device of its own",
        hint="leave the accelerator of the node out: then it goes with the phase"
        if any(by_node for *_, by_node in shared)
        else "ask for the kind without a number, and start as many processes on a machine as it has of these devices",
    )


def _identity(assignment: Assignment, host: str) -> str:
    """What tells a device from all others: that of its vendor, or its name on this machine."""
    info = registry().ask(assignment.backend, "device_info", assignment.device)
    return info.identity or f"{host} {assignment.device}"


def check_weights(phase: PhaseSettings, resolution: Resolution, groups: Mapping[str, ReplicaGroup]) -> None:
    """Check that the replicas can add up the weights of the losses.

    Raises:
        CapabilityError: they cannot.
    """
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        weighted = next((term.label for term in segment.losses if weight_inputs(term)), None)
        if weighted is not None and not groups[backend.framework].weighs_losses:
            raise CapabilityError(
                f"phase {phase.label!r}: the loss {weighted!r} weighs rows or positions, and replicas of "
                f"{backend.framework} cannot add up these weights",
                hint="write deterministic=True, which needs no such sums; or replicas=1 to train the whole model in "
                "each process on its own",
            )


def check_fixed_order(phase: PhaseSettings, size: int, groups: Mapping[str, ReplicaGroup]) -> None:
    """Check that so many replicas can add up gradients in an order that does not depend on their number.

    Raises:
        PhaseError: there are too many.
        CapabilityError: a backend cannot.
    """
    if not phase.deterministic:
        return
    if size > FIXED_SHARDS:
        raise PhaseError(
            f"phase {phase.label!r} has deterministic=True, and is trained by {size} replicas",
            cause=f"each batch is cut into {FIXED_SHARDS} shards, for at most as many replicas",
            hint=f"start {FIXED_SHARDS} processes, or leave deterministic out",
        )
    unable = next((name for name, group in groups.items() if not group.gathers_tensors), None)
    if unable is not None:
        raise CapabilityError(
            f"phase {phase.label!r} has deterministic=True, and replicas of {unable} add up gradients in an order of "
            "their own",
            hint="leave deterministic out, or update the plugin",
        )
