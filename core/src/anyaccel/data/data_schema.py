"""DataSchema: the columns and transforms of a feature set, without rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import pyarrow as pa

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import is_numeric, to_arrow
from anyaccel.data.feature_set import FeatureSet, FeatureSetView
from anyaccel.data.ragged_columns import Pad, Padding, padding_of
from anyaccel.data.readers.dataframes import table_from_dict
from anyaccel.data.roles import RoleNames, stamp
from anyaccel.data.transforms import Transforms
from anyaccel.errors import ConfigError, SplitError

_LARGEST_ROW = 2**24  # elements of what a column of lists has per entry


class DataSchema(FeatureSet):
    """The columns, roles and transforms of a feature set, without its rows; a loaded graph is connected to it.

    `new.transform_like(schema)` applies its transforms to new rows, as fitted. It has no rows and no splits.
    """

    @classmethod
    def of(cls, label: str, columns: Mapping[str, Mapping[str, Any]], transforms: Transforms | None = None) -> Self:
        """Return a schema of columns by name, each with `role`, and `dtype` and `shape` unless it is a tag.

        Raises:
            ConfigError: not such columns.
        """
        try:
            empty = [_empty(name, column) for name, column in columns.items()]
            fields, arrays = zip(*empty, strict=True)
            table = pa.table(list(arrays), schema=pa.schema(fields))
            schema = cls(label, stamp(table, {name: column["role"] for name, column in columns.items()}))
        except (KeyError, TypeError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
            raise ConfigError(f"{shown(columns)} are not the columns of {label!r}: {error}") from error
        schema._transforms = transforms or Transforms()
        return schema

    def _check_rows(self) -> None:
        """Accept a feature set without rows."""

    def __repr__(self) -> str:
        return f"DataSchema({self.label!r}, {len(self.features)} features, without rows)"

    def split(self, name: str) -> FeatureSetView:
        """Raise a SplitError, because there are no splits.

        Raises:
            SplitError: always.
        """
        raise SplitError(
            f"{self.label!r} has no split {name!r}: the graph was loaded without its data",
            hint=f"pass rows: data=new.transform_like(graph.feature_sets[{self.label!r}])"
            if self.transforms
            else "pass rows: data=new, a FeatureSet or a view",
        )


def column_config(feature_set: FeatureSet, name: str) -> dict[str, Any]:
    """Return a column as plain data, as `DataSchema.of` takes it."""
    role, field = feature_set.role(name), feature_set.schema.field(name)
    padding = padding_of(field)
    if role == "tag" or not (padding or is_numeric(field.type)):
        return {"role": role}
    spec = feature_set.spec(name)
    padded = {"padding": asdict(padding)} if padding else {}
    return {"role": role, "dtype": spec.dtype, "shape": list(spec.shape), **padded}


def _empty(name: str, saved: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an Arrow field and a column of it without rows."""
    if not isinstance(saved["role"], str):
        raise TypeError(f"the role of {name!r} is not text")
    if "dtype" not in saved:
        return pa.field(name, pa.null()), pa.chunked_array([pa.array([], pa.null())])
    dtype, shape = np.dtype(saved["dtype"]), tuple(saved["shape"])
    if "padding" not in saved:
        column = pa.chunked_array([to_arrow(np.zeros((0, *shape), dtype=dtype))])
        return pa.field(name, column.type), column
    if not shape or math.prod(shape[1:]) > _LARGEST_ROW:
        raise ValueError(f"{name!r} has rows of shape {shape}")
    row = [np.zeros((1, *shape[1:]), dtype=dtype)]  # as short as can be: the shape may be of somebody else's file
    table = table_from_dict(name, {name: row}, RoleNames(name, (), ()), {name: Pad(0)}).slice(0, 0)
    return Padding(**saved["padding"]).stamped(table.schema.field(name)), table.column(name)
