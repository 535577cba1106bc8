"""Data: feature sets on Arrow with their splits, transforms and references; samplers; and sources that stream.

A `FeatureSet` holds named columns with roles; a `Sampler` orders its rows; a `Source` reads rows that are not in
memory; `joined_array` and `loadable_array` read several columns as one tensor. Stands on pyarrow, NumPy and the kernel;
knows nothing of graphs or phases.
"""

from __future__ import annotations

from anyaccel.data.arrow_columns import Pad, Padding, RaggedColumn
from anyaccel.data.data_schema import DataSchema
from anyaccel.data.datasets import digits
from anyaccel.data.feature_set import FeatureSet, FeatureSetView, Reference
from anyaccel.data.joined_columns import joined_array, joined_changes, joined_spec, loadable_array
from anyaccel.data.rows import Rows
from anyaccel.data.samplers import EpochOrders, Sampler, SimpleSampler, sampler_from_config
from anyaccel.data.saved_rows import SavedRows, saved_rows
from anyaccel.data.streaming.base import BatchSource, Source
from anyaccel.data.streaming.dataloader_workers import suggested_num_workers
from anyaccel.data.streaming.infer_source import as_source
from anyaccel.data.streaming.iterable_source import IterableSource
from anyaccel.data.streaming.map_source import MapSource
from anyaccel.data.streaming.parquet_stream import ParquetStream
from anyaccel.data.transforms import FittedTransform
from anyaccel.distributions import moved_names

__all__ = [
    "BatchSource",
    "DataSchema",
    "EpochOrders",
    "FeatureSet",
    "FeatureSetView",
    "FittedTransform",
    "IterableSource",
    "MapSource",
    "Pad",
    "Padding",
    "ParquetStream",
    "RaggedColumn",
    "Reference",
    "Rows",
    "Sampler",
    "SavedRows",
    "SimpleSampler",
    "Source",
    "as_source",
    "digits",
    "joined_array",
    "joined_changes",
    "joined_spec",
    "loadable_array",
    "sampler_from_config",
    "saved_rows",
    "suggested_num_workers",
]

__getattr__ = moved_names(__name__, "Beyond Different PairCondition PairSampler Same TripletSampler Where Within")
