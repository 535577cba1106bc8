"""Models larger than a device: which device computes each block, and where its weights are stored.

Offers `plan_blocks` with its inputs and results, and the capability `OffloadModels` of backends. Tools of frameworks
are in `anyaccel_offload.torch` and `anyaccel_offload.jax`. Importing this imports no framework.
"""

from anyaccel_offload.planner import (
    Block,
    BlockPlan,
    DeviceShare,
    DeviceSpec,
    Edge,
    OffloadModels,
    OffloadPlan,
    OffloadRequest,
    OffloadTier,
    PlacedBlock,
    memory_size,
    plan_blocks,
)

__all__ = [
    "Block",
    "BlockPlan",
    "DeviceShare",
    "DeviceSpec",
    "Edge",
    "OffloadModels",
    "OffloadPlan",
    "OffloadRequest",
    "OffloadTier",
    "PlacedBlock",
    "memory_size",
    "plan_blocks",
]
