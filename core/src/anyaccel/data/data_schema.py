"""DataSchema: the columns and transforms of a feature set, without rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pyarrow as pa

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import empty_column, field_config
from anyaccel.data.feature_set import FeatureSet, FeatureSetView
from anyaccel.data.roles import stamp
from anyaccel.data.transforms import Transforms
from anyaccel.errors import ConfigError, SplitError


class DataSchema(FeatureSet):
    """The columns, roles and transforms of a feature set, without its rows; a loaded graph is connected to it.

    `new.transform_like(schema)` applies its transforms to new rows, as fitted. It has no rows and no splits.
    """

    _needs_rows = False

    @classmethod
    def of(cls, label: str, columns: Mapping[str, Mapping[str, Any]], transforms: Transforms | None = None) -> Self:
        """Return a schema of columns by name, each with `role`, and `dtype` and `shape` unless it is a tag.

        Raises:
            ConfigError: not such columns.
        """
        try:
            for name, column in columns.items():
                if not isinstance(column["role"], str):
                    raise TypeError(f"the role of {name!r} is not text")
            fields, arrays = zip(*(empty_column(name, column) for name, column in columns.items()), strict=True)
            table = pa.table(list(arrays), schema=pa.schema(fields))
            schema = cls(label, stamp(table, {name: column["role"] for name, column in columns.items()}))
        except (KeyError, TypeError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
            raise ConfigError(f"{shown(columns)} are not the columns of {label!r}: {error}") from error
        schema._transforms = transforms or Transforms()
        return schema

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
    role = feature_set.role(name)
    return {"role": role, **({} if role == "tag" else field_config(feature_set.schema.field(name)))}
