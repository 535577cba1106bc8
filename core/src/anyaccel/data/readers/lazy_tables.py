"""Lazy tables: frames that are not computed yet, and Arrow data sets in folders; only chosen columns are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyaccel.data.roles import RoleNames, assign_roles
from anyaccel.errors import DataError


def computed(label: str, source: Any, given: RoleNames) -> Any:
    """The chosen columns of a lazy table in memory; anything else as it is.

    Lazy are frames with `collect_schema` and `collect`, as those of Polars, and data sets with `schema` and `to_table`,
    as those of Arrow.

    Raises:
        ColumnError: names that are not columns.
        DataError: it cannot be computed.
    """
    read = _reader(source)
    if read is None:
        return source
    names, columns = read
    chosen = list(names() if all(role is None for role in given) else assign_roles(label, list(names()), given))
    try:
        return columns(chosen)
    except Exception as error:
        raise DataError(
            f"the {type(source).__name__} of {label!r} cannot be computed: {type(error).__name__}: {error}",
            hint="see the error above this one; compute it yourself to find the cause",
        ) from error


def _reader(source: Any) -> tuple[Callable[[], Sequence[str]], Callable[[list[str]], Any]] | None:
    """How to get the names of columns, and some columns in memory; None for what is no lazy table."""
    if isinstance(source, type):
        return None
    if callable(getattr(source, "collect_schema", None)) and callable(getattr(source, "collect", None)):
        if hasattr(source, "__arrow_c_stream__"):  # in memory already
            return None
        return lambda: source.collect_schema().names(), lambda names: source.select(names).collect()
    if all(hasattr(source, name) for name in ("schema", "to_table", "scanner", "get_fragments")):
        return lambda: source.schema.names, lambda names: source.to_table(columns=names)
    return None
