"""Units: predictions and the data that they belong to, as they were before the transforms of these data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data import FeatureSet, FeatureSetView, Rows
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.data.row_filters import column_values
from anyaccel.data.transforms.fitted_transform import join
from anyaccel.errors import TransformError
from anyaccel.phases.evaluation import Compared


def original(name: str, values: np.ndarray, rows: Mapping[str, Rows], compared: Mapping[str, Compared]) -> np.ndarray:
    """Predictions in the units of the columns that they are compared with, before all transforms of these.

    Args:
        name: of the predictions.
        values: [n, *shape].
        rows: the data that they were made of, by feature set.
        compared: feature set and columns by name of predictions.

    Returns:
        a new array; the same one where no transform concerns the columns.

    Raises:
        TransformError: nothing is known that they are compared with, or a transform has no way back.
    """
    label, columns = compared.get(name, ("", ()))
    if label in rows:
        source = _source(rows[label])
        return source.inverse(values, columns) if isinstance(source, FeatureSet) else values
    if not any(getattr(_source(one), "transforms", ()) for one in rows.values()):
        return values
    raise TransformError(
        f"predictions of {name!r} cannot be brought back: it is not clear which columns they stand for",
        available="data with transforms, and no loss, metric or targets that this node is compared with",
        hint=f"say so: feature_set.inverse(results.prediction({name!r}), columns=[...])",
    )


def original_values(rows: Rows, columns: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Values of columns as they were before all transforms: those that the data keep, else what the way back gives.

    Args:
        rows: whose they are.
        columns: their names as they are now.
        values: [n, ...], the columns joined as they are now.

    Raises:
        TransformError: a transform has no way back.
    """
    source, whole = _source(rows), original_rows(rows)
    if whole is rows or not isinstance(source, FeatureSet):
        return values
    if not set(columns) <= set(whole.columns):
        return source.inverse(values, columns)
    found = [column_values(whole, name) for name in columns]
    return found[0] if len(found) == 1 else join(found)


def original_rows(rows: Rows) -> Rows:
    """The same rows without their transforms, and without the targets and tags that a view leaves out."""
    source = _source(rows)
    if not isinstance(source, FeatureSet) or not source.transforms:
        return rows
    whole = source.undo_transforms()
    if not isinstance(rows, FeatureSetView):
        return whole
    new = [name for name in whole.columns if name in rows.columns or name not in source.columns]
    return FeatureSetView(whole, rows.name, rows.rows, list(dict.fromkeys([*whole.features, *new])))


def prediction_table(arrays: Mapping[str, np.ndarray]) -> Any:
    """An Arrow table of predictions, [n, *shape] by name: features where they are numbers, else tags.

    Samples that are one value each, [n, 1] say, become [n].
    """
    arrays = {name: array.reshape(len(array)) if _single(array.shape[1:]) else array for name, array in arrays.items()}
    texts = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    numbers = [name for name in arrays if name not in texts]
    if not numbers:
        return pa.table({name: tag_column(name, array) for name, array in arrays.items()})
    table = FeatureSet.from_dict("predictions", arrays, numbers, (), texts).to_arrow()
    return table.select(list(arrays))


def plain_column(rows: Rows, name: str) -> Any:
    """A column as an Arrow chunked array; samples that are one value each, with axes, become that value."""
    column = rows.column(name)
    if not isinstance(column.type, pa.FixedShapeTensorType) or not _single(column.type.shape):
        return column
    return pa.chunked_array([chunk.storage.flatten() for chunk in column.chunks], column.type.value_type)


def _single(shape: Sequence[int]) -> bool:
    """Whether a sample of this shape has axes and one value."""
    return bool(shape) and math.prod(shape) == 1


def _source(rows: Rows) -> Rows:
    return rows.feature_set if isinstance(rows, FeatureSetView) else rows
