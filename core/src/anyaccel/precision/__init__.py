"""Precision: in which dtypes nodes are computed, how losses are scaled, and what the backward pass computes again.

Stands on errors and devices alone. A backend declares what it can by `ComputesPrecision`, a program whose losses are
scaled has `ScalesLosses`; which node is computed how is decided in `graph/precision_assignment.py`.
"""

from anyaccel.precision.capability import ComputesPrecision, ScalesLosses
from anyaccel.precision.loss_scale import LARGEST_SCALE, LossScale, LossScaleState
from anyaccel.precision.policy import PRECISIONS, NodePrecision, SegmentPrecision, checked_precision

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
