"""Data: feature sets on Arrow, their splits and references, samplers, and a data set to begin with."""

from __future__ import annotations

from anyaccel.data.digits import digits
from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.reference import Reference, joined_array, joined_spec
from anyaccel.data.rows import Rows
from anyaccel.data.sampler import SimpleSampler
from anyaccel.data.view import FeatureSetView

__all__ = [
    "FeatureSet",
    "FeatureSetView",
    "Reference",
    "Rows",
    "SimpleSampler",
    "digits",
    "joined_array",
    "joined_spec",
]
