"""Settings of phases and nodes for what several replicas share."""

from __future__ import annotations

from anyaccel.graph.nodes import one_of
from anyaccel.phases.settings import Setting, choice, flag, integer, optional

SHARDING = ("full", "full offload")

REPLICAS = Setting(optional(integer(1)))
EVALUATING_REPLICAS = Setting(optional(integer(1, 2)))
FLAG = Setting(flag)
PHASE_SHARDING = Setting(optional(choice(*SHARDING)))


def node_sharding(where: str, sharding: object) -> str:
    """Check the argument `sharding` of a ModelNode."""
    return one_of(where, "sharding", sharding, (*SHARDING, "none"))
