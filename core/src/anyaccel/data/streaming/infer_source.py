"""Choose the source for the data that a user passed to a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from anyaccel.data.arrow_columns import pads_of
from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.readers.hf_datasets import computes_rows, has_table
from anyaccel.data.rows import Rows
from anyaccel.data.streaming.base import Source
from anyaccel.data.streaming.iterable_source import IterableSource
from anyaccel.data.streaming.map_source import MapSource
from anyaccel.data.streaming.source_errors import data_hint
from anyaccel.data.streaming.to_numpy import is_tensor
from anyaccel.errors import SourceError


def as_source(label: str, given: Any, like: Rows, *, with_target: bool = True) -> Source | FeatureSet | None:
    """Return a source for the data of a phase; None for data that is not a source.

    Loaders, `tf.data`, functions and other iterables become an `IterableSource`, map-style data sets a `MapSource`. A
    Hugging Face data set, which holds an Arrow table, becomes a feature set, unless it computes its rows. Features and
    targets follow `like`, by name or by position; tags are left out.

    Args:
        label: Label of the feature set.
        given: The data: a source is returned unchanged; text, rows, and mappings of these or of sources return None.
        like: The rows that the graph is connected to.
        with_target: Whether targets are read; otherwise they are optional, and left out.

    Raises:
        SourceError: data in memory, which must be converted to a feature set first; or an iterable that never ends.
        ColumnError: a Hugging Face data set without these columns.
    """
    if isinstance(given, Source):
        return given
    if given is None or isinstance(given, (str, Rows)):
        return None
    if isinstance(given, Mapping) and not any(map(_is_column, given.values())):  # data for feature sets
        return None
    target, left_out = (like.targets, ()) if with_target else ((), like.targets)
    # A table and a data set have no columns for the masks, which are made of them again.
    all_pads = pads_of(like.schema)
    masks = {pad.mask for pad in all_pads.values()}
    pads = {name: pad for name, pad in all_pads.items() if name in (*like.features, *target)}
    features = tuple(name for name in like.features if name not in masks)
    row_pads = {name: pad for name, pad in pads.items() if name not in masks}
    if has_table(given) and not computes_rows(given):
        return FeatureSet.from_arrow(label, given, features, target, pad=row_pads)
    hint = "" if computes_rows(given) else data_hint(given)
    if hint:
        raise SourceError(f"a {type(given).__name__} cannot be the data of {label!r}", hint=hint)
    if (hasattr(given, "__iter__") or callable(given)) and not computes_rows(given):
        pads = {name: replace(pad, mask=None) for name, pad in pads.items()}
        stream = IterableSource(label, given, features=like.features, target=target, pad=pads)
        stream.left_out = left_out
        return stream
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        source = MapSource(label, given, features=features, target=target, pad=row_pads)
        source.left_out = left_out
        return source
    return None


def _is_column(value: Any) -> bool:
    is_numbers = isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (int, float))
    return is_numbers or is_tensor(value) or isinstance(value, (pa.Array, pa.ChunkedArray))
