"""Mappings of arrays, data frames and Arrow objects as an Arrow table whose columns carry their roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import shaped_table
from anyaccel.data.readers.array_conversion import read_column
from anyaccel.data.readers.hf_datasets import are_splits, arrow_table, has_table
from anyaccel.data.readers.plain_layout import plain_table
from anyaccel.data.roles import (
    RoleNames,
    assign_roles,
    check_rest,
    checked_pads,
    chosen_roles,
    listed,
    names_of,
    open_roles,
    stamp,
)
from anyaccel.errors import ColumnError, DataError

_ARROW = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
_CONVERTERS = ("collect", "to_arrow_table", "to_frame")  # of lazy frames, connections and series


def table_from_dict(label: str, data: Mapping[str, Any], names: RoleNames, pad: Any = None) -> Any:
    """Return a table from array-likes by name; each column that has a role is copied once. `pad` is as users give
    it.
    """
    if not isinstance(data, Mapping):
        raise DataError(
            f"the data of {label!r} must be a mapping of column names to arrays, got a {type(data).__name__}",
            hint="write {'name': array, ...}, or use from_pandas, from_arrow or from_parquet",
        )
    names_of([name for name in data if isinstance(name, str)])  # refuses what no file can hold
    roles = assign_roles(label, list(data), names)
    check_order_of_rows(label, {name: data[name] for name in roles})
    pads = checked_pads(label, pad, roles)
    columns: dict[str, Any] = {}
    errors: dict[str, ColumnError] = {}  # of columns wrongly covered by `...`, which are reported together
    for name, role in roles.items():
        try:
            columns[name] = read_column(name, data[name], role, may_differ=name in pads)
        except ColumnError as error:
            if role not in open_roles(names) or name in pads:
                raise
            errors[name] = error
    check_rest(label, roles, errors)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ColumnError(
            f"the columns of {label!r} differ in length",
            cause=listed(f"{name}: {length}" for name, length in lengths.items()),
            hint="use one entry per row in every column",
        )
    return shaped_table(stamp(pa.table(columns), roles), pads)


def check_order_of_rows(label: str, columns: Mapping[str, Any]) -> None:
    """Check that series with the same index do not have it in another order: rows are taken by position.

    Args:
        label: Label of the feature set, for messages.
        columns: Columns by name; those that are no series of pandas are not checked.

    Raises:
        ColumnError: Two series have the same index in another order.
    """
    indexed = {name: it.index for name, it in columns.items() if hasattr(it, "iloc") and hasattr(it, "index")}
    first = next(iter(indexed), "")
    for name, index in indexed.items():
        other = indexed[first]
        if index is other or len(index) != len(other) or index.equals(other):
            continue
        if not len(index.symmetric_difference(other, sort=False)):
            raise ColumnError(
                f"the columns {first!r} and {name!r} of {label!r} have the same index in another order",
                cause="rows are read by position, not by index",
                hint=f"reorder one of them, {name!r}: b.loc[a.index]; or, to use positions, "
                f"pass {name!r}: b.to_numpy()",
            )


def table_from_frame(label: str, df: Any, names: RoleNames, pad: Any = None) -> Any:
    """Return a table from a data frame of any library.

    pandas: each column that has a role is copied once, and the index is left out. A frame with the Arrow PyCapsule
    interface (Polars, DuckDB's relations) is read as by `table_from_arrow`; a frame with only the dataframe interchange
    protocol is copied.
    """
    df = computed(label, df, names)
    if hasattr(df, "iloc") and hasattr(df, "columns"):
        roles = assign_roles(label, list(df.columns), names)
        return table_from_dict(label, {name: df[name] for name in roles}, names, pad)
    is_series = hasattr(df, "to_frame") and not hasattr(df, "columns")
    if isinstance(df, _ARROW) or (hasattr(df, "__arrow_c_stream__") and not is_series):
        return table_from_arrow(label, df, names, pad)
    if hasattr(df, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        column_names = list(df.__dataframe__(allow_copy=True).column_names())
        roles = assign_roles(label, column_names, names)
        try:
            table = from_dataframe(df.__dataframe__(allow_copy=True).select_columns_by_name(list(roles)))
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            raise DataError(
                f"the {type(df).__name__} of {label!r} cannot be read through its __dataframe__ method: {error}",
                hint="convert it to a pyarrow.Table or a pandas DataFrame yourself",
            ) from error
        chosen_roles(label, table.schema, names)
        pads = checked_pads(label, pad, roles)
        # The memory may still be that of the frame, whose owner may write to it.
        return shaped_table(stamp(plain_table(table.take(pa.array(np.arange(len(table))))), roles), pads)
    converters = [name for name in _CONVERTERS if callable(getattr(df, name, None))]
    raise DataError(
        f"the data of {label!r} is a {type(df).__name__}, not a data frame",
        available="pandas and Polars data frames, DuckDB relations, and objects with "
        "__arrow_c_stream__ or __dataframe__",
        hint="use from_arrow, which keeps its splits"
        if are_splits(df)
        else "use from_arrow, which reads its table"
        if has_table(df)
        else f"call {converters[0]}() on it first"
        + (", or to_frame().T where it is a row" if converters[0] == "to_frame" else "")
        if converters
        else "use from_dict for arrays by name",
    )


def table_from_arrow(label: str, table: Any, names: RoleNames, pad: Any = None) -> Any:
    """Return a table on the memory of an Arrow table, or of an object that exports one through Arrow's C interface.

    Text and bytes laid out as views, and run-end encoded columns, are rewritten in the plain layout, because Arrow
    cannot gather them.
    """
    if not isinstance(table, pa.Table):
        table = _imported(label, computed(label, table, names))
    roles = chosen_roles(label, table.schema, names)
    pads = checked_pads(label, pad, roles)
    try:
        chosen = stamp(table, roles)
        chosen.validate()
        return shaped_table(plain_table(chosen), pads)
    except (pa.ArrowException, KeyError) as error:  # KeyError: pyarrow 15, of types that it does not know
        raise DataError(
            f"the Arrow table of {label!r} is not valid: {error}",
            hint="create the table again from its source, or update pyarrow",
        ) from error


@dataclass(frozen=True)
class _Stream:
    """Exports a bare capsule of an Arrow stream."""

    capsule: Any

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.capsule


def _imported(label: str, source: Any) -> Any:
    if type(source).__name__ == "PyCapsule":
        source = _Stream(source)
    if has_table(source):
        return arrow_table(label, source)
    exports_arrow = hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    if hasattr(source, "iloc") or not (exports_arrow or isinstance(source, _ARROW)):
        raise DataError(
            f"the data of {label!r} is a {type(source).__name__}, not an Arrow table",
            available="tables, record batches, readers of them, and objects with __arrow_c_stream__",
            hint="pass a pyarrow.Table, or use from_dict or from_pandas",
        )
    try:
        if isinstance(source, pa.RecordBatchReader):
            return source.read_all()
        return pa.Table.from_batches([source]) if isinstance(source, pa.RecordBatch) else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError, OSError) as error:
        raise DataError(
            f"the {type(source).__name__} of {label!r} cannot be imported by Arrow: {error}",
            cause=f"pyarrow {pa.__version__}",
            hint="update pyarrow, or convert the data to a pyarrow.Table first",
        ) from error


# -- lazy tables: frames that are not computed yet, and Arrow data sets in folders; only chosen columns are read -------


def computed(label: str, source: Any, role_names: RoleNames) -> Any:
    """Return the chosen columns of a lazy table in memory; anything else unchanged.

    Lazy tables are frames with `collect_schema` and `collect`, such as those of Polars, and data sets with `schema` and
    `to_table`, such as those of Arrow.

    Raises:
        ColumnError: names that are not columns.
        DataError: it cannot be computed.
    """
    is_frame = callable(getattr(source, "collect_schema", None)) and callable(getattr(source, "collect", None))
    is_set = not is_frame and all(hasattr(source, name) for name in ("schema", "to_table", "scanner", "get_fragments"))
    in_memory = not (is_frame or is_set) or (is_frame and hasattr(source, "__arrow_c_stream__"))
    if in_memory or isinstance(source, type):
        return source
    names = list(source.collect_schema().names() if is_frame else source.schema.names)
    chosen = names if all(role is None for role in role_names) else list(assign_roles(label, names, role_names))
    try:
        return source.select(chosen).collect() if is_frame else source.to_table(columns=chosen)
    except Exception as error:
        raise DataError(
            f"the {type(source).__name__} of {label!r} cannot be computed: {type(error).__name__}: {error}",
            hint="see the error above this one; compute it yourself to find the cause",
        ) from error
