"""Errors of sources, with their source, batch and column, and hints for data that is passed instead of a source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anyaccel.data.readers.hf_datasets import computes_rows, has_table
from anyaccel.data.rows import Rows
from anyaccel.data.streaming.to_numpy import is_tensor
from anyaccel.errors import AnyaccelError, SourceError

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """A batch of a source, for messages."""

    label: str
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of source {self.label!r} in epoch {self.epoch} (both counted from 0)"


@contextmanager
def error_context(position: object) -> Iterator[None]:
    """Turn errors of anyaccel into a SourceError with the place in the source."""
    try:
        yield
    except SourceError:
        raise
    except AnyaccelError as error:
        raise SourceError(f"{position}: {error.problem}", available=error.available, hint=error.hint) from error


def failed(
    what: str, error: Exception, hint: str = "see the error above this one, raised by the source"
) -> SourceError:
    """Create the error for the user's code that raised `error`; `what` is the action that failed."""
    # The last line of its text: those of worker processes begin with a traceback as text.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1].removeprefix(f"{type(error).__name__}: ") if lines else ""
    shown = f": {text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}" if lines else ""
    return SourceError(f"{what}: {type(error).__name__}{shown}", hint=hint)


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
