"""In memory: what is data rather than a source of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.rows import Rows
from anyaccel.data.streaming.base import Source
from anyaccel.data.streaming.iterable_source import IterableSource
from anyaccel.data.streaming.map_source import MapSource
from anyaccel.data.streaming.not_a_source import instead_of
from anyaccel.data.streaming.to_numpy import is_tensor
from anyaccel.errors import SourceError

_COLUMNS = (pa.Array, pa.ChunkedArray)


def as_source(label: str, given: Any, like: Rows) -> Source | FeatureSet | None:
    """A source of what a user gave as the data of a phase; None for what a phase takes anyway.

    Loaders, `tf.data`, functions and other iterables become `IterableSource`; map-style data sets `MapSource`; a data set of
    Hugging Face, which is an Arrow table inside, a feature set. Features and targets are those of `like`, by name or by
    position in its order; tags are left out.

    Args:
        label: of the feature set that it stands for.
        given: what was given: a source is returned as it is; text, rows, and mappings of either, or of what can be a
            source, are no source.
        like: the rows that the graph is wired to.

    Raises:
        SourceError: data in memory, which a feature set is to be made of first; or an iterable that never ends.
        ColumnError: a data set of Hugging Face without these columns.
    """
    if isinstance(given, Source):
        return given
    if given is None or isinstance(given, (str, Rows)) or (isinstance(given, Mapping) and not _holds_arrays(given)):
        return None
    if has_table(given):
        return FeatureSet.from_arrow(label, given, like.features, like.targets)
    remedy = instead_of(given)
    if remedy:
        raise SourceError(f"a {type(given).__name__} was given as the data of {label!r}", hint=remedy)
    if not hasattr(given, "__iter__") and not callable(given):
        return _items(label, given, like)
    return IterableSource(label, given, features=like.features, targets=like.targets)


def _items(label: str, given: Any, like: Rows) -> MapSource | None:
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return MapSource(label, given, features=like.features, targets=like.targets)
    return None


def _holds_arrays(given: Mapping[Any, Any]) -> bool:
    """Whether a mapping has columns rather than data for feature sets."""
    return any(is_tensor(value) or isinstance(value, _COLUMNS) or _is_numbers(value) for value in given.values())


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (int, float))
