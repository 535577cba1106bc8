"""Phase groups: which processes and devices compute a phase together, or what in it they cannot share."""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.adapter.losses import weight_inputs
from anyaccel.data import Sampler
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph import Assignment, DeviceMemory, NodeActivations, Plan, Resolution
from anyaccel.graph.device_assignment import accelerator_of_environment
from anyaccel.launched import Launched
from anyaccel.phases.accumulation import check_accumulation
from anyaccel.phases.loading.epoch_plan import EpochPlan, TrainingEpochs
from anyaccel.phases.loading.host_columns import one_shape
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.process_groups import ProcessGroups
from anyaccel.phases.settings import PhaseSettings, Samplers
from anyaccel.registry import Registry, registry
from anyaccel_distributed.batch_shards import FIXED_SHARDS
from anyaccel_distributed.devices import (
    DeviceGroup,
    check_replicable,
    devices_of_kind,
    devices_of_process,
    replica_notes,
    requested_of_process,
)
from anyaccel_distributed.divided_parameters import (
    check_sharding,
    divided_nodes,
    is_sharded,
    offloads,
    sharding_notes,
    whole_nodes,
)
from anyaccel_distributed.group import ReplicaGroup, Replicate
from anyaccel_distributed.meeting_point import launched
from anyaccel_distributed.replica_checks import SHARES, WITHOUT_REPLICAS
from anyaccel_distributed.replicated_training import ReplicatedTraining
from anyaccel_distributed.row_shares import GlobalBatches, check_shares
from anyaccel_distributed.sharding import ShardParameters


class ReplicaGroups(ProcessGroups):
    """Phases are shared by the processes of a launcher, and trained on several devices of a process."""

    def devices(
        self,
        phase: PhaseSettings,
        accelerator: Accelerator | None,
        frameworks: Callable[[], Sequence[str]],
        known: Registry | None = None,
    ) -> tuple[Device, ...]:
        """A TrainPhase gets as many devices of the kind as it has `replicas`.

        In the processes of a launcher, each gets one; where a kind is asked for, that of its place on the machine.
        """
        trains = phase.trains
        wanted = phase.replicas if trains else 1
        is_here = known is None or known.is_of_this_machine
        alone = (trains and wanted == 1) or not is_here
        place = None if alone else launched()
        asked = (accelerator_of_environment() or Accelerator("cpu")) if accelerator is None else accelerator
        if not asked.is_request:
            if place is not None:
                by_kind = phase.chooses_device or ":" not in asked.spec
                return (
                    devices_of_process(f"phase {phase.label!r}", asked.device.kind, place, frameworks(), known)
                    if by_kind
                    else ()
                )
            several = trains and wanted not in (None, 1)
            return devices_of_kind(phase, asked.device, wanted or 1, frameworks(), known) if several else ()
        if place is None:
            return super().devices(phase, accelerator, frameworks, known)
        there = asked.requested_devices(frameworks(), known, strict=phase.strict)
        return (requested_of_process(asked, there, place),)

    def changes(self, phase: PhaseSettings, devices: Sequence[Device]) -> dict[str, Any]:
        """Return a sampler whose batches have the rows of all."""
        place = None if phase.replicas == 1 else launched()
        n_replicas = max(1, len(devices)) if place is None else place.size
        return {"sampler": _of_all(phase.sampler, n_replicas), "per_replica": False}

    def check(self, phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> None:
        check_replicable(phase, resolution, learners)
        check_sharding(phase, resolution)

    def check_epochs(self, phase: PhaseSettings, plan: Plan, epochs: EpochPlan) -> None:
        if isinstance(epochs, TrainingEpochs):
            check_shares(phase.label, epochs.batches, len(plan.replicas))

    def notes(self, phase: PhaseSettings, resolution: Resolution, batch_size: int | None) -> tuple[str, ...]:
        return (*replica_notes(phase, resolution.plan, batch_size), *sharding_notes(phase, resolution))

    def plan_of_one(self, phase: PhaseSettings, plan: Plan, devices: Sequence[Device]) -> Plan:
        """Return the plan without figures that depend on the number of replicas."""
        place = launched() if phase.replicas != 1 else None
        number = len(devices) or (1 if place is None else place.size)
        if number < 2 or not phase.trains:
            return plan
        where = f", on {', '.join(map(str, devices))}" if devices else ""
        note = f"this is the plan of one of {number} replicas{where}; each takes part of a batch"
        names: tuple[str, ...] = _SHARED
        why = f"each of {number} replicas takes part of a batch"
        if divided_nodes(plan):
            names, why = _DIVIDED, f"trained parameters are sharded over {number} replicas"
        memory = tuple(_without(device_memory, names, why) for device_memory in plan.memory)
        shared = f"each of {number} replicas takes part of a batch"
        activations = tuple(
            NodeActivations(node=activations.node, rows=None, gap=shared) for activations in plan.activations
        )
        return replace(plan, memory=memory, activations=activations, notes=(*plan.notes, note))

    def group(self, phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> ProcessGroup:
        return process_group(phase, resolution, learners)

    def join(self, framework: str) -> None:
        join(framework)


PROCESS_GROUPS = ReplicaGroups()
_SHARED = ("batches", "activations")
_DIVIDED = ("parameters", "gradients", "optimizer", *_SHARED)


def _without(memory: DeviceMemory, names: Sequence[str], why: str) -> DeviceMemory:
    changes = dict.fromkeys(names)
    return replace(memory, **changes, gaps={**memory.gaps, **dict.fromkeys(names, why)})  # type: ignore[arg-type]


def _of_all(samplers: Samplers, n_replicas: int) -> Samplers:
    """Return samplers with batches `n_replicas` times as large: the given ones count the rows of each replica."""
    if isinstance(samplers, Mapping):
        return {name: _larger(sampler, n_replicas) for name, sampler in samplers.items()}
    return _larger(samplers, n_replicas)


def _larger(sampler: Sampler, times: int) -> Sampler:
    larger = copy.copy(sampler)
    object.__setattr__(larger, "batch_size", times * sampler.batch_size)  # samplers are frozen
    return larger


def process_group(phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> ProcessGroup:
    """Join the replicas of a phase; a group of one if this process computes it alone.

    Raises:
        PhaseError: it has something that replicas cannot share yet.
        CapabilityError: a backend has no replicas.
        ConfigError: the launcher's variables contradict each other.
        FrameworkError: the replicas cannot be joined.
    """
    place = launched() if phase.replicas != 1 else None
    if place is None:
        several = resolution.plan.replicas or phase.deterministic
        return DeviceGroup(resolution.plan, deterministic=phase.deterministic) if several else SingleProcess()
    if phase.replicas not in (None, place.size):
        raise PhaseError(
            f"phase {phase.label!r} has replicas={phase.replicas}, but this is one of {place.size} processes",
            cause=f"{place.size} replicas",
            hint=f"start the script as anyaccel run --replicas {phase.replicas} SCRIPT, or leave replicas out",
        )
    if not phase.trains:
        able = {backend.framework: backend.capability(Replicate) for backend in resolution.backends}
        groups = {name: _joined(replicate, place) for name, replicate in able.items() if replicate is not None}
        return ReplicatedTraining(phase.label, place, groups) if groups else SingleProcess()  # whole in each process
    divided = is_sharded(phase, resolution.plan)
    divides = divided and any(backend.required(ShardParameters).global_batches for backend in resolution.backends)
    allowed = not divided and may_compute_together(phase, resolution)
    coupled = check_shareable(phase, resolution, learners, together=divides or allowed)
    backends = {backend.framework: backend for backend in resolution.backends}
    for framework, backend in backends.items():
        if backend.capability(Replicate) is None:
            raise CapabilityError(
                f"phase {phase.label!r} is trained by {place.size} replicas, but {framework} does not support "
                "replicas here",
                cause="its plugin lacks the capability 'replicate'",
                hint="set replicas=1 to train the whole model separately in each process",
            )
    groups = {name: _joined(backend.required(Replicate), place) for name, backend in backends.items()}
    if not phase.deterministic:  # there, each replica has all rows, and their weights
        check_weights(phase, resolution, groups)
    check_fixed_order(phase, place.size, groups)
    check_apart(phase.label, resolution.plan, next(iter(groups.values())).gather)
    return ReplicatedTraining(
        phase.label,
        place,
        groups,
        sharded=divided,
        offload=offloads(resolution.plan),
        whole=whole_nodes(resolution.plan),
        global_batches=GlobalBatches(given=divides, allowed=allowed, needed=coupled),
        sync_batchnorm=phase.sync_batchnorm,
        fixed_order=phase.deterministic,
        accumulate=phase.accumulate,
    )


def _joined(replicate: Replicate, place: Launched) -> ReplicaGroup:
    place.export()
    return replicate.replica_group(place.rank, place.size)


def may_compute_together(phase: PhaseSettings, resolution: Resolution) -> bool:
    """Whether replicas with whole parameters may compute each step by one program, to the extent that the phase decides
    it.
    """
    (backend, *others) = resolution.backends
    replicate = None if others else backend.capability(Replicate)
    able = replicate is not None and replicate.computes_together
    in_memory = not phase.deterministic and phase.residency != "streamed"
    return able and in_memory and one_shape(resolution.plan.columns)


def check_shareable(
    phase: PhaseSettings, resolution: Resolution, learners: Sequence[str], *, together: bool = False
) -> bool:
    """Check that a step over all rows of a batch can be computed from parts of them.

    Args:
        phase, resolution: Phase and resolution of the training.
        learners: Estimators that learn in the phase.
        together: Whether one program may compute a step over the rows of all replicas.

    Returns:
        Whether layers mix the rows of a batch, and need such a program.

    Raises:
        PhaseError: something in it needs the whole batch.
    """
    may_sync, together = together, together and phase.sync_batchnorm
    reason = next(_unshareable(phase, resolution, learners, together=together), None)
    if reason is not None:
        can_sync = reason in _coupled_rows(resolution) and (may_sync or not _coupled_rows(resolution, synced=True))
        raise PhaseError(
            f"phase {phase.label!r} cannot be trained by several replicas: {reason}",
            hint="set sync_batchnorm=True to normalize over the rows of all replicas, or replicas=1 to train the "
            "whole model separately in each process"
            if can_sync
            else "set replicas=1 to train the whole model separately in each process",
        )
    check_accumulation(phase.label, phase.losses, doing=SHARES, left_out=WITHOUT_REPLICAS)
    return bool(_coupled_rows(resolution, synced=phase.sync_batchnorm))


def _unshareable(
    phase: PhaseSettings, resolution: Resolution, learners: Sequence[str], *, together: bool
) -> Iterator[str]:
    """Yield reasons why a phase cannot be split."""
    if phase.step is not None:
        yield "it has a custom step"
    if phase.deterministic and divided_nodes(resolution.plan):
        yield "deterministic=True sums whole gradients, but sharding splits them"
    if learners:
        yield f"the estimator {learners[0]!r} learns from each batch"
    if phase.sync_batchnorm and phase.accumulate > 1:
        yield (
            "it accumulates batches and normalizes over each of them, but replicas split a whole step, not its batches"
        )
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        replicate = backend.capability(Replicate)
        for operation in segment.operations:
            if replicate is None or not operation.trainable or operation.model is None:
                continue
            if why := replicate.unshareable_reason(operation.model):
                yield f"node {operation.label!r} {why}"
    if not together:
        yield from _coupled_rows(resolution, synced=phase.sync_batchnorm)


def _coupled_rows(resolution: Resolution, *, synced: bool = False) -> list[str]:
    """Return what mixes the rows of a batch; with `synced`, what cannot do so over all replicas."""
    layers = []
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for operation in segment.operations:
            if not operation.trainable or operation.model is None:
                continue
            why = backend.batch_coupling(operation.model)
            replicate = backend.capability(Replicate) if why and synced else None
            if replicate is not None:
                why = replicate.unsynchronizable(operation.model)
            if why:
                layers.append(f"{why} in node {operation.label!r} mixes the rows of a batch")
    return layers


def check_apart(label: str, plan: Plan, gather: Callable[[Any], list[Any]]) -> None:
    """Check that no two replicas train on one device; on a CPU they do.

    Args:
        label: Label of the phase.
        plan: Plan of this replica.
        gather: Function that returns the plain values of all replicas, by rank.

    Raises:
        PhaseError: two do.
    """
    host = socket.gethostname()
    in_use = [
        [_identity(assignment, host), str(assignment.device), assignment.node, assignment.reason == "node"]
        for assignment in plan.assignments
        if assignment.parameters and not assignment.frozen and assignment.device.kind != "cpu"
    ]
    users: dict[str, list[tuple[int, str, str, bool]]] = {}
    for rank, devices in enumerate(gather(in_use)):
        for key, device, node, by_node in devices:
            users.setdefault(key, []).append((rank, device, node, by_node))
    shared = next((every for every in users.values() if len({rank for rank, *_ in every}) > 1), None)
    if shared is None:
        return
    where = ", ".join(f"node {node!r} on {device} in replica {rank}" for rank, device, node, _ in shared)
    kind = shared[0][1].partition(":")[0]
    raise PhaseError(
        f"phase {label!r} cannot be trained by several replicas: they would train on one device: {where}",
        cause=f"accelerator={kind!r} on the phase assigns a separate device to each process of a machine",
        hint="leave the accelerator of the node out, so that it follows the phase"
        if any(by_node for *_, by_node in shared)
        else "request the kind without a number, and start one process per device on each machine",
    )


def _identity(assignment: Assignment, host: str) -> str:
    """Return the identity of a device: that of its vendor, or its name on this machine."""
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
                f"phase {phase.label!r}: the loss {weighted!r} weights rows or positions, but "
                f"replicas of {backend.framework} cannot sum these weights",
                hint="set deterministic=True, which needs no such sums, or replicas=1 to train the "
                "whole model separately in each process",
            )


def check_fixed_order(phase: PhaseSettings, size: int, groups: Mapping[str, ReplicaGroup]) -> None:
    """Check that this number of replicas can sum gradients in an order that does not depend on the number.

    Raises:
        PhaseError: there are too many.
        CapabilityError: a backend does not support it.
    """
    if not phase.deterministic:
        return
    if size > FIXED_SHARDS:
        raise PhaseError(
            f"phase {phase.label!r} has deterministic=True, but is trained by {size} replicas",
            cause=f"each batch is split into {FIXED_SHARDS} shards, so at most {FIXED_SHARDS} replicas are possible",
            hint=f"start {FIXED_SHARDS} processes, or leave deterministic out",
        )
    unable = next((name for name, group in groups.items() if not group.gathers_tensors), None)
    if unable is not None:
        raise CapabilityError(
            f"phase {phase.label!r} has deterministic=True, but replicas of {unable} sum gradients "
            "in a different order",
            hint="leave deterministic out, or update the plugin",
        )


# -- Joining: the replicas of a framework that can be joined only before it starts -------------------------------------


def join(framework: str) -> Launched | None:
    """Join the other processes of a launcher, at the top of a script: before anything else uses the framework.

    JAX needs this, because its devices are fixed when it starts. torch is joined by the first phase, or here.

    Args:
        framework: A framework such as `"jax"`.

    Returns:
        The place of this process; None, and nothing is done, if no launcher has started several.

    Raises:
        FrameworkError: no plugin runs it, it has already started, or the others cannot be joined.
        CapabilityError: its backend has no replicas in several processes.
        ConfigError: see `launched`.
    """
    replicate, place = registry().find(framework).capability(Replicate), launched()
    if replicate is None:
        raise CapabilityError(
            f"{framework} does not support replicas in several processes here",
            cause="its plugin lacks the capability 'replicate'",
            hint="train on several devices of one process, TrainPhase(replicas=2), or leave join out",
        )
    if place is not None:
        place.export()
        replicate.replica_group(place.rank, place.size)
    return place
