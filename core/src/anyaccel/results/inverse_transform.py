"""Predictions and data in their original units: the transforms of the data undone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data import FeatureSet, FeatureSetView, Rows, SavedRows
from anyaccel.data.joined_columns import join
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.data.row_filters import column_values
from anyaccel.errors import TransformError
from anyaccel.results.records import Compared


def original(name: str, values: np.ndarray, rows: Mapping[str, Rows], compared: Mapping[str, Compared]) -> np.ndarray:
    """Predictions in the original units of the columns they are compared with.

    Args:
        name: name of the predictions.
        values: [n, *shape].
        rows: the data the predictions were made from, by feature set.
        compared: feature set and columns that predictions are compared with, by name of the predictions.

    Returns:
        a new array; `values` itself if no transform applies to the columns.

    Raises:
        TransformError: it is unknown what the predictions are compared with, or a transform has no inverse.
    """
    label, columns = compared.get(name, ("", ()))
    if label in rows:
        source = rows[label].base
        return source.inverse(values, columns) if isinstance(source, (FeatureSet, SavedRows)) else values
    if not any(_is_transformed(table.base) for table in rows.values()):
        return values
    raise TransformError(
        f"the transforms cannot be undone for predictions of {name!r}: no loss, metric or target says which columns "
        "they stand for",
        hint=f"name the columns: feature_set.inverse(results.prediction({name!r}), columns=[...])",
    )


def _is_transformed(base: Rows) -> bool:
    return base.is_transformed if isinstance(base, SavedRows) else bool(getattr(base, "transforms", ()))


def original_values(rows: Rows, columns: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Values of columns before all transforms: the stored originals if there are any, else the inverse transform.

    Args:
        rows: the data.
        columns: current names of the columns.
        values: [n, ...], the current values of the columns, joined.

    Raises:
        TransformError: a transform has no inverse.
    """
    source, whole = rows.base, original_rows(rows)
    if whole is rows or not isinstance(source, (FeatureSet, SavedRows)):
        return values
    if not set(columns) <= set(whole.columns):
        return source.inverse(values, columns)
    arrays = [column_values(whole, name) for name in columns]
    return arrays[0] if len(arrays) == 1 else join(arrays)


def original_rows(rows: Rows) -> Rows:
    """The same rows before their transforms; a view keeps its selection of targets and tags."""
    source = rows.base
    if isinstance(source, SavedRows):
        return source.undo_transforms()
    if not isinstance(source, FeatureSet) or not source.transforms:
        return rows
    whole = source.undo_transforms()
    if not isinstance(rows, FeatureSetView):
        return whole
    new = [name for name in whole.columns if name in rows.columns or name not in source.columns]
    return FeatureSetView(whole, rows.name, rows.rows, list(dict.fromkeys([*whole.features, *new])))


def prediction_table(arrays: Mapping[str, np.ndarray]) -> Any:
    """An Arrow table of predictions ([n, *shape] by name). Samples of a single value, such as [n, 1], become [n]."""
    arrays = {name: array.reshape(len(array)) if _single(array.shape[1:]) else array for name, array in arrays.items()}
    texts = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    numbers = [name for name in arrays if name not in texts]
    if not numbers:
        return pa.table({name: tag_column(name, array) for name, array in arrays.items()})
    table = FeatureSet.from_dict("predictions", arrays, numbers, (), texts).to_arrow()
    return table.select(list(arrays))


def plain_column(rows: Rows, name: str) -> Any:
    """A column as an Arrow chunked array; samples of shape [1], [1, 1], ... become plain values."""
    column = rows.column(name)
    if not isinstance(column.type, pa.FixedShapeTensorType) or not _single(column.type.shape):
        return column
    return pa.chunked_array([chunk.storage.flatten() for chunk in column.chunks], column.type.value_type)


def _single(shape: Sequence[int]) -> bool:
    """Whether samples of this shape hold a single value in at least one axis."""
    return bool(shape) and math.prod(shape) == 1
