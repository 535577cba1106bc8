"""Choose the source for the data that a user passed to a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.ragged_columns import Pad, padding_of
from anyaccel.data.readers.hf_datasets import computes_rows, has_table
from anyaccel.data.rows import Rows
from anyaccel.data.streaming.base import Source
from anyaccel.data.streaming.iterable_source import IterableSource
from anyaccel.data.streaming.map_source import MapSource
from anyaccel.data.streaming.source_errors import data_hint
from anyaccel.data.streaming.to_numpy import is_tensor
from anyaccel.errors import SourceError

_ARROW = (pa.Array, pa.ChunkedArray)


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
    if given is None or isinstance(given, (str, Rows)) or (isinstance(given, Mapping) and not _holds_arrays(given)):
        return None
    target, left_out = (like.targets, ()) if with_target else ((), like.targets)
    if has_table(given) and not computes_rows(given):
        features, pads = _without_masks(like)
        return FeatureSet.from_arrow(label, given, features, target, pad=pads)
    hint = "" if computes_rows(given) else data_hint(given)
    if hint:
        raise SourceError(f"a {type(given).__name__} cannot be the data of {label!r}", hint=hint)
    if (hasattr(given, "__iter__") or callable(given)) and not computes_rows(given):
        pads = {name: replace(pad, mask=None) for name, pad in pads_of(like).items()}
        pads = {name: pad for name, pad in pads.items() if name in (*like.features, *target)}
        stream = IterableSource(label, given, features=like.features, target=target, pad=pads)
        stream.left_out = left_out
        return stream
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        features, pads = _without_masks(like)
        pads = {name: pad for name, pad in pads.items() if name in (*features, *target)}
        source = MapSource(label, given, features=features, target=target, pad=pads)
        source.left_out = left_out
        return source
    return None


def pads_of(rows: Rows) -> dict[str, Pad]:
    """Return the padding of some rows' columns, by name."""
    padded = {name: padding_of(rows.schema.field(name)) for name in rows.features + rows.targets}
    return {name: padding.as_pad() for name, padding in padded.items() if padding is not None}


def _without_masks(rows: Rows) -> tuple[tuple[str, ...], dict[str, Pad]]:
    """Return the features of some rows without the masks that padding created, and their padding."""
    pads = pads_of(rows)
    masks = {pad.mask for pad in pads.values()}
    features = tuple(name for name in rows.features if name not in masks)
    return features, {name: pad for name, pad in pads.items() if name not in masks}


def _holds_arrays(columns: Mapping[Any, Any]) -> bool:
    """Whether the values of a mapping are columns rather than data for feature sets."""
    return any(is_tensor(value) or isinstance(value, _ARROW) or _is_numbers(value) for value in columns.values())


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (int, float))
