"""Data: feature sets on Arrow, their splits and references, samplers, and a data set to begin with."""

from __future__ import annotations

from anyaccel.data.digits import digits
from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.reference import Reference, joined_array, joined_changes, joined_spec
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.relations import Beyond, Different, Relation, Same, Where, Within
from anyaccel.data.sampling.sampler import Draws, Sampler, SimpleSampler
from anyaccel.data.sampling.tuples import PairSampler, TripletSampler, sampler_from_config
from anyaccel.data.transforming.fitted import FittedTransform
from anyaccel.data.view import FeatureSetView

__all__ = [
    "Beyond",
    "Different",
    "Draws",
    "FeatureSet",
    "FeatureSetView",
    "FittedTransform",
    "PairSampler",
    "Reference",
    "Relation",
    "Rows",
    "Same",
    "Sampler",
    "SimpleSampler",
    "TripletSampler",
    "Where",
    "Within",
    "digits",
    "joined_array",
    "joined_changes",
    "joined_spec",
    "sampler_from_config",
]
