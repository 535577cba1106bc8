"""Hints for data that is passed instead of a source of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anyaccel.data.readers.hf_datasets import computes_rows, has_table
from anyaccel.data.rows import Rows
from anyaccel.data.streaming.to_numpy import is_tensor


def data_hint(data: Any) -> str:
    """Return what to write if data, or a file name, was passed instead of a source of batches; otherwise `""`."""
    if isinstance(data, (str, bytes, os.PathLike)):
        return "read the file with FeatureSet.from_parquet, or with ParquetStream if it is larger than memory"
    if isinstance(data, Rows):
        return "pass it to the phase directly"
    if isinstance(data, Mapping):
        return "write FeatureSet.from_dict(label, arrays, features=[...]); choose one of several data sets"
    if hasattr(data, "iloc"):
        return "write FeatureSet.from_pandas(label, df, features=[...])"
    if computes_rows(data):
        return "write MapSource(label, dataset, features=[...])"
    if isinstance(data, (pa.Table, pa.RecordBatch)) or has_table(data):
        return "write FeatureSet.from_arrow(label, data, features=[...])"
    if is_tensor(data):
        return "write FeatureSet.from_dict(label, {'x': array}, features=['x'])"
    is_frame = any(hasattr(data, name) for name in ("__dataframe__", "__arrow_c_stream__", "collect_schema"))
    return "write FeatureSet.from_pandas(label, df, features=[...])" if is_frame else ""
