"""The planner: which device computes each block of a model that is larger than a device.

It names no framework; times and sizes are numbers. Depends on the kernel's errors, HTML and arguments.
"""

from anyaccel_offload.planner.capability import OffloadModels, OffloadPlan, OffloadRequest, PlacedBlock
from anyaccel_offload.planner.planning import BlockPlan, DeviceShare, plan_blocks
from anyaccel_offload.planner.values import Block, DeviceSpec, Edge, OffloadTier, memory_size

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
