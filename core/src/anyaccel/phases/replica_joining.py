"""Replica joining: whether the replicas of a launcher train a phase together, and what they are told of each other."""

from __future__ import annotations
from anyaccel.phases.settings import PhaseSettings

from typing import Any

from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.graph import ModelGraph, Resolution
from anyaccel.phases.global_batches import GlobalBatches
from anyaccel.phases.replica_checks import (
    check_apart,
    check_fixed_order,
    check_shareable,
    check_weights,
    may_compute_together,
)
from anyaccel.phases.replicated_training import ReplicatedTraining
from anyaccel.phases.sharding import is_sharded, offloads, whole_nodes
from anyaccel.replicas import Launched, ReplicaGroup, Replicate, ShardParameters, is_main_process, launched


def replicated_training(phase: PhaseSettings, resolution: Resolution, graph: ModelGraph) -> ReplicatedTraining | None:
    """Join the replicas of a phase; None if it is trained by this process alone.

    Raises:
        PhaseError: it has something that replicas cannot share yet.
        CapabilityError: a backend has no replicas.
        ConfigError: the launcher's variables contradict each other.
        FrameworkError: the replicas cannot be joined.
    """
    if phase.replicas == 1:
        return None
    place = launched()
    if place is None:
        return None
    if phase.replicas not in (None, place.size):
        raise PhaseError(
            f"phase {phase.label!r} has replicas={phase.replicas}, and this is one of {place.size} processes",
            cause=f"{place.size} replicas",
            hint=f"start the script as anyaccel run --replicas {phase.replicas} SCRIPT, or leave replicas out",
        )
    if not phase.trains:
        able = [backend for backend in resolution.backends if isinstance(backend, Replicate)]
        groups = {backend.framework: _joined(backend, place) for backend in able}
        return ReplicatedTraining(phase.label, place, groups) if groups else None  # whole in each process then
    divided = is_sharded(phase, resolution.plan)
    given = divided and any(isinstance(each, ShardParameters) and each.global_batches for each in resolution.backends)
    allowed = not divided and may_compute_together(phase, resolution)
    coupled = check_shareable(phase, resolution, phase.learners(graph), together=given or allowed)
    backends = {backend.framework: backend for backend in resolution.backends}
    for framework, backend in backends.items():
        if not isinstance(backend, Replicate):
            raise CapabilityError(
                f"phase {phase.label!r} is trained by {place.size} replicas, and {framework} has none here",
                cause="its plugin lacks the capability 'replicate'",
                hint="write replicas=1 to train the whole model in each process on its own",
            )
    groups = {name: _joined(backend, place) for name, backend in backends.items()}
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
        global_batches=GlobalBatches(given=given, allowed=allowed, needed=coupled),
        sync_batchnorm=phase.sync_batchnorm,
        fixed_order=phase.deterministic,
        accumulate=phase.accumulate,
    )


def is_first(phase: PhaseSettings) -> bool:
    """Whether this process shows and writes what a phase does: the first replica, or one that trains on its own."""
    return (phase.trains and phase.replicas == 1) or is_main_process()


def _joined(backend: Any, place: Launched) -> ReplicaGroup:
    place.export()
    group: ReplicaGroup = backend.replica_group(place.rank, place.size)
    return group
