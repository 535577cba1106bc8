"""Tables: what a feature set is made from, as an Arrow table whose columns carry their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anyaccel.data.readers.array_conversion import number_column, tag_column
from anyaccel.data.readers.hf_datasets import has_table, table_of
from anyaccel.data.readers.list_columns import with_shapes
from anyaccel.data.roles import NamesOrRest, assign_roles, check_rest, chosen_roles, listed, open_roles, stamp
from anyaccel.errors import ColumnError, DataError

_ARROW = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
_WAYS = ("collect", "to_arrow_table", "to_frame")  # how others make a table of a lazy frame, a connection, a series
_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}


def table_from_dict(
    label: str, data: Mapping[str, Any], features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest
) -> Any:
    """A table from array-likes by name; each column that has a role is copied once.

    Raises:
        DataError: `data` is no mapping.
        ColumnError: roles or columns that cannot be, or columns of unequal length.
    """
    if not isinstance(data, Mapping):
        raise DataError(
            f"the data of {label!r} is a {type(data).__name__}",
            available="from_dict takes a mapping of column names to arrays",
            hint="write {'name': array, ...}, or use from_pandas, from_arrow or from_parquet",
        )
    roles = assign_roles(label, list(data), features, targets, tags)
    columns = _made(label, data, roles, open_roles(features, targets))
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ColumnError(
            f"the columns of {label!r} differ in length",
            available=listed(f"{name}: {length}" for name, length in lengths.items()),
            hint="give every column one entry per sample",
        )
    return stamp(pa.table(columns), roles)


def _made(label: str, data: Mapping[str, Any], roles: Mapping[str, str], open_: Sequence[str]) -> dict[str, Any]:
    """Arrow columns by name; all that `...` wrongly stands for are named together."""
    columns: dict[str, Any] = {}
    wrong: dict[str, ColumnError] = {}
    for name, role in roles.items():
        try:
            columns[name] = tag_column(name, data[name]) if role == "tag" else number_column(name, data[name])
        except ColumnError as error:
            if role not in open_:
                raise
            wrong[name] = error
    check_rest(label, roles, wrong)
    return columns


def table_from_frame(label: str, df: Any, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest) -> Any:
    """A table from a data frame of whatever library.

    pandas: each column that has a role is copied once, and the index is left out. What has the Arrow PyCapsule
    interface (Polars, DuckDB's relations) is taken as `table_from_arrow` does; what has only the dataframe interchange
    protocol is copied.

    Raises:
        DataError: `df` is no data frame, or cannot hand its data over.
        ColumnError: roles or columns that cannot be.
    """
    if hasattr(df, "iloc") and hasattr(df, "columns"):
        roles = assign_roles(label, list(df.columns), features, targets, tags)
        return table_from_dict(label, {name: df[name] for name in roles}, features, targets, tags)
    is_series = hasattr(df, "to_frame") and not hasattr(df, "columns")
    if isinstance(df, _ARROW) or (hasattr(df, "__arrow_c_stream__") and not is_series):
        return table_from_arrow(label, df, features or (), targets, tags)
    if hasattr(df, "__dataframe__"):
        return _interchanged(label, df, features or (), targets, tags)
    ways = [way for way in _WAYS if callable(getattr(df, way, None))]
    raise DataError(
        f"the data of {label!r} is a {type(df).__name__}, not a data frame",
        available="from_pandas takes pandas and Polars data frames, DuckDB relations, and what has __arrow_c_stream__ or "
        "__dataframe__",
        hint=f"call {ways[0]}() on it first" if ways else "use from_dict for arrays by name",
    )


def table_from_arrow(label: str, table: Any, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest) -> Any:
    """A table on the memory of an Arrow table (or of whatever hands one over through Arrow's C interface).

    Text and bytes that are laid out as views, and runs of equal values, are written anew in the plain layout, because
    Arrow cannot gather them.

    Raises:
        DataError: not a table, or one that cannot be handed over or whose buffers do not fit its schema.
        ColumnError: roles that cannot be.
    """
    if not isinstance(table, pa.Table):
        table = _imported(label, table)
    roles = chosen_roles(label, table.schema, features, targets, tags)
    try:
        chosen = stamp(table, roles)
        chosen.validate()
        return with_shapes(_without_views(chosen), roles)
    except (pa.ArrowException, KeyError) as error:  # KeyError is what pyarrow 15 says to types that it does not know
        raise DataError(
            f"the Arrow table of {label!r} is not valid: {error}",
            hint="make the table anew from its source, or update pyarrow",
        ) from error


@dataclass(frozen=True)
class _Stream:
    """A bare capsule of a stream, dressed as an object that offers it."""

    capsule: Any

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.capsule


def _imported(label: str, source: Any) -> Any:
    if type(source).__name__ == "PyCapsule":
        source = _Stream(source)
    if has_table(source):
        return table_of(label, source)
    is_offered = hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    if hasattr(source, "iloc") or not (is_offered or isinstance(source, _ARROW)):
        raise DataError(
            f"the data of {label!r} is a {type(source).__name__}, not an Arrow table",
            available="from_arrow takes tables, record batches, readers of them, and what has __arrow_c_stream__",
            hint="give a pyarrow.Table, or use from_dict or from_pandas",
        )
    try:
        if isinstance(source, pa.RecordBatchReader):
            return source.read_all()
        return pa.Table.from_batches([source]) if isinstance(source, pa.RecordBatch) else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError, OSError) as error:
        raise DataError(
            f"the {type(source).__name__} of {label!r} cannot be handed over to Arrow: {error}",
            available=f"pyarrow {pa.__version__}",
            hint="update pyarrow, or convert the data to a pyarrow.Table yourself",
        ) from error


def _interchanged(label: str, df: Any, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest) -> Any:
    from pyarrow.interchange import from_dataframe

    names = list(df.__dataframe__(allow_copy=True).column_names())
    roles = assign_roles(label, names, features, targets, tags)
    try:
        table = from_dataframe(df.__dataframe__(allow_copy=True).select_columns_by_name(list(roles)))
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"the {type(df).__name__} of {label!r} cannot be handed over by its __dataframe__: {error}",
            hint="convert it to a pyarrow.Table or a pandas DataFrame yourself",
        ) from error
    chosen_roles(label, table.schema, features, targets, tags)
    # The memory may still be that of the frame, whose owner writes it.
    return with_shapes(stamp(_without_views(table.take(pa.array(np.arange(len(table))))), roles), roles)


def _without_views(table: Any) -> Any:
    for index, one in enumerate(table.schema):
        if "_view" in str(one.type) or _is_runs(one.type):
            column = pa.chunked_array([_plain(chunk) for chunk in table.column(index).chunks], _plain_type(one.type))
            table = table.set_column(index, one.with_type(column.type), column)
    return table


def _is_runs(kind: Any) -> bool:
    return str(kind).startswith("run_end_encoded")


def _plain(array: Any) -> Any:
    if _is_runs(array.type):
        return _plain(pc.run_end_decode(array))
    kind = _plain_type(array.type)
    if not pa.types.is_dictionary(kind):
        return _cast(array, kind)
    values = _cast(array.dictionary, kind.value_type)
    return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)


def _cast(array: Any, kind: Any) -> Any:
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # pyarrow 16 and 17 know views and cast none
        return pa.array(array.to_pylist(), kind)


def _plain_type(kind: Any) -> Any:
    """The type with text and bytes in their plain layout; pyarrow 14 knows no views and no function to ask for them."""
    if _is_runs(kind):
        return _plain_type(kind.value_type)
    if str(kind) in _VIEWS:
        return _VIEWS[str(kind)]
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_plain_type(one.type)) for one in kind])
    return kind
