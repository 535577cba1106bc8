"""What became of the columns of a table that `fit` has treated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyaccel.data.roles import listed, no_column
from anyaccel.html import guarded, page, row, table
from anyaccel.printable import printable


@dataclass(frozen=True)
class TableColumn:
    """A column of the table that a model was fitted to.

    Attributes:
        name: of the column.
        kind: `"number"`, `"category"`, `"text"`, `"date"`, `"dropped"` or `"target"`.
        treatment: what is made of it, in words.
        n_missing: rows to train on in which it has no value.
        n_categories: different values that are known of it; None for one that is not taken as categories.
        n_features: numbers that it became; a code of a category counts as one.
    """

    name: str
    kind: str
    treatment: str
    n_missing: int = 0
    n_categories: int | None = None
    n_features: int = 0


_HEAD = ("name", "kind", "treatment", "missing", "categories", "features")


class TableColumns(Sequence[TableColumn]):
    """The columns of a table, in its order; by position or by name. Prints as a table."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[TableColumn]:
        return iter(self._columns)

    def __getitem__(self, key: int | slice | str) -> TableColumn:  # type: ignore[override]
        """The column at a position, or of a name.

        Raises:
            ColumnError: there is no column of this name.
        """
        if not isinstance(key, str):
            return self._columns[key]  # type: ignore[return-value]
        for column in self._columns:
            if column.name == key:
                return column
        raise no_column("columns", key, [column.name for column in self._columns])

    def __repr__(self) -> str:
        lines = [_HEAD, *map(_cells, self._columns)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(_HEAD))]
        texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return printable("\n".join(text.rstrip() for text in texts))

    def _repr_html_(self) -> str:
        rows = [row(_cells(column)) for column in self._columns]
        return guarded(self, lambda: page("Columns", listed([f"{len(rows)}"]), table(_HEAD, rows, lambda line: line)))


def _cells(column: TableColumn) -> tuple[str, ...]:
    categories = "" if column.n_categories is None else f"{column.n_categories:,}"
    missing = f"{column.n_missing:,}" if column.n_missing else ""
    return (column.name, column.kind, column.treatment, missing, categories, str(column.n_features or ""))
