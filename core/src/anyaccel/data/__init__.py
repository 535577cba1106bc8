"""Data: feature sets on Arrow, their splits and references, samplers, and a data set to begin with."""

from __future__ import annotations

from anyaccel.data.digits import digits
from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.reference import Reference, joined_array, joined_changes, joined_spec, loadable_array
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.relations import Beyond, Different, Relation, Same, Where, Within
from anyaccel.data.sampling.sampler import Draws, Sampler, SimpleSampler
from anyaccel.data.sampling.tuples import PairSampler, TripletSampler, sampler_from_config
from anyaccel.data.sources.batches import Batches
from anyaccel.data.sources.items import Items
from anyaccel.data.sources.parquet_stream import ParquetStream
from anyaccel.data.sources.recognizing import as_source
from anyaccel.data.sources.source import BatchSource, Source
from anyaccel.data.sources.workers import advised_workers
from anyaccel.data.transforming.fitted import FittedTransform
from anyaccel.data.view import FeatureSetView

__all__ = [
    "BatchSource",
    "Batches",
    "Beyond",
    "Different",
    "Draws",
    "FeatureSet",
    "FeatureSetView",
    "FittedTransform",
    "Items",
    "PairSampler",
    "ParquetStream",
    "Reference",
    "Relation",
    "Rows",
    "Same",
    "Sampler",
    "SimpleSampler",
    "Source",
    "TripletSampler",
    "Where",
    "Within",
    "advised_workers",
    "as_source",
    "digits",
    "joined_array",
    "joined_changes",
    "joined_spec",
    "loadable_array",
    "sampler_from_config",
]
