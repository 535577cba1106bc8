"""Precision: in which dtypes nodes are computed, how losses are scaled, and what the backward pass computes again.

Stands on errors and devices alone. A backend declares what it can by `ComputesPrecision`, a program whose losses are
scaled has `ScalesLosses`; which node is computed how is decided in `graph/device_assignment.py`.
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
