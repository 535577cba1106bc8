"""Treatment of the columns of a table by `fit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyaccel.data.roles import listed, no_column
from anyaccel.html import guarded, page, row, table
from anyaccel.printable import printable
from anyaccel.results.formatting import text_table


@dataclass(frozen=True)
class TableColumn:
    """A column of the table that a model was fitted to.

    Attributes:
        name: Name of the column.
        kind: `"number"`, `"category"`, `"text"`, `"date"`, `"dropped"` or `"target"`.
        treatment: Description of the features that were built from it.
        n_missing: Number of training rows without a value.
        n_categories: Number of known different values; None for a column that is not treated as categories.
        n_features: Number of features that it became; a category code counts as one.
    """

    name: str
    kind: str
    treatment: str
    n_missing: int = 0
    n_categories: int | None = None
    n_features: int = 0


_HEAD = ("name", "kind", "treatment", "missing", "categories", "features")


class TableColumns(Sequence[TableColumn]):
    """The columns of a table in order, accessible by position or name. Prints as a table."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[TableColumn]:
        return iter(self._columns)

    def __getitem__(self, key: int | slice | str) -> TableColumn:  # type: ignore[override]
        """Return the column at a position or with a name.

        Raises:
            ColumnError: No column has this name.
        """
        if not isinstance(key, str):
            return self._columns[key]  # type: ignore[return-value]
        for column in self._columns:
            if column.name == key:
                return column
        raise no_column("columns", key, [column.name for column in self._columns])

    def __repr__(self) -> str:
        return printable(text_table(_HEAD, map(_cells, self._columns)))

    def _repr_html_(self) -> str:
        rows = [row(_cells(column)) for column in self._columns]
        return guarded(self, lambda: page("Columns", listed([f"{len(rows)}"]), table(_HEAD, rows, lambda line: line)))


def _cells(column: TableColumn) -> tuple[str, ...]:
    categories = "" if column.n_categories is None else f"{column.n_categories:,}"
    missing = f"{column.n_missing:,}" if column.n_missing else ""
    return (column.name, column.kind, column.treatment, missing, categories, str(column.n_features or ""))
