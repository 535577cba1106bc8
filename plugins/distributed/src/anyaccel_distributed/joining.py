"""Joining: the replicas of a framework that can be joined only before it starts."""

from __future__ import annotations

from anyaccel.errors import CapabilityError
from anyaccel.launched import Launched, launched
from anyaccel.registry import registry
from anyaccel_distributed.group import Replicate


def join(framework: str) -> Launched | None:
    """Join the other processes of a launcher, at the top of a script: before anything else uses the framework.

    JAX needs this, as its devices are fixed when it starts. torch is joined by the first phase, or here.

    Args:
        framework: such as `"jax"`.

    Returns:
        which process this one is; None, and nothing is done, where no launcher has started several.

    Raises:
        FrameworkError: no plugin runs it, it has already started, or the others cannot be joined.
        CapabilityError: its backend has no replicas in several processes.
        ConfigError: as of `launched`.
    """
    replicate, place = registry().find(framework).capability(Replicate), launched()
    if replicate is None:
        raise CapabilityError(
            f"{framework} has no replicas in several processes here",
            cause="its plugin lacks the capability 'replicate'",
            hint="train on several devices of one process, TrainPhase(replicas=2), or leave join out",
        )
    if place is not None:
        place.export()
        replicate.replica_group(place.rank, place.size)
    return place
