"""Precision: the dtypes of nodes, the scaling of losses, and recomputation in the backward pass.

Stands on errors and devices alone. A backend declares its abilities with `ComputesPrecision`, and a program with scaled
losses has `ScalesLosses`; `graph/device_assignment.py` chooses the precision of each node.
"""

from anyaccel.precision.policy import (
    LARGEST_SCALE,
    PRECISIONS,
    ComputesPrecision,
    LossScale,
    LossScaleState,
    NodePrecision,
    ScalesLosses,
    SegmentPrecision,
    checked_precision,
)

__all__ = [
    "LARGEST_SCALE",
    "PRECISIONS",
    "ComputesPrecision",
    "LossScale",
    "LossScaleState",
    "NodePrecision",
    "ScalesLosses",
    "SegmentPrecision",
    "checked_precision",
]
