"""SavedRows: some columns of rows as results store them in a folder; and rows and values in their original units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import array_of
from anyaccel.data.feature_set import FeatureSet, FeatureSetView
from anyaccel.data.joined_columns import join
from anyaccel.data.roles import Names, WithRoles, no_column
from anyaccel.data.row_filters import column_values
from anyaccel.data.rows import Rows
from anyaccel.data.transforms import FittedTransform, Transforms, read_transforms, relevant_transforms
from anyaccel.errors import AnyaccelError, ConfigError, SplitError, TransformError

_ROLE = b"anyaccel.role"
_KEYS = {"feature_set", "n_rows", "table", "original", "is_transformed", "transforms", "largest"}
_HINT = "pass the folder that save() wrote"


class SavedRows(Rows):
    """The rows of loaded results: targets and tags; features only if predictions are compared with them.

    `inverse` and `undo_transforms` do the same as those of the FeatureSet. It has no splits and cannot be used for
    training.

    Attributes:
        is_transformed: Whether the feature set had transforms, of these columns or of others.
    """

    def __init__(self, label: str, table: Any, n_rows: int) -> None:
        roles = {field.name: (field.metadata or {}).get(_ROLE, b"tag").decode() for field in table.schema}
        WithRoles.__init__(self, label, roles)  # of Rows, it would ask for a feature
        self._schema, self._table, self._n_rows = table.schema, table, n_rows
        self._transforms = Transforms()
        self._error: TransformError | None = None
        self._original: SavedRows | None = None
        self._largest: Mapping[str, int] = {}
        self.is_transformed = False

    def __repr__(self) -> str:
        return f"SavedRows({self.label!r}, {self._n_rows:,} rows of {', '.join(self.columns) or 'no columns'})"

    def __len__(self) -> int:
        return self._n_rows

    @property
    def transforms(self) -> tuple[FittedTransform, ...]:
        """The transforms of these columns that could be read, the oldest first."""
        return self._transforms.fitted

    def largest(self, columns: Sequence[str]) -> int | None:
        """The largest number in columns of integers over the whole feature set; None of other columns."""
        sizes = [self._largest.get(name) for name in columns]
        return max((number for number in sizes if number is not None), default=None) if None not in sizes else None

    def column(self, name: str) -> Any:
        if name not in self._roles:
            error = no_column(self.label, name, self.columns)
            raise type(error)(
                error.problem, available=error.available, hint="results do not store features; use the data"
            )
        return self._table.column(name)

    def array(self, name: str) -> np.ndarray:
        column = self.column(name)
        return array_of(self._schema.field(name), column)

    def to_arrow(self) -> Any:
        return self._table

    def check_transforms(self) -> None:
        """Check that all transforms could be saved and read.

        Raises:
            TransformError: one could not.
        """
        if self._error is not None:
            raise self._error

    def inverse(self, values: Any, columns: Names) -> np.ndarray:
        """Convert values of transformed columns to their original units; see `FeatureSet.inverse`.

        Raises:
            TransformError: a transform has no inverse, or could not be saved or read.
        """
        self.check_transforms()
        return self._transforms.inverse(self, values, columns)

    def undo_transforms(self) -> SavedRows:
        """Return the same rows before their transforms; these rows themselves if there were none."""
        return self if self._original is None else self._original

    def view(self) -> NoReturn:
        """Raise a SplitError, because there is no view.

        Raises:
            SplitError: always.
        """
        raise self._no_view()

    def select(self, features: Names = None, target: Names = None, tags: Names = None) -> NoReturn:
        """Raise a SplitError, because there is no view.

        Raises:
            SplitError: always.
        """
        raise self._no_view()

    def _no_view(self) -> SplitError:
        problem = f"the rows of loaded results of {self.label!r} cannot be selected"
        return SplitError(problem, hint="use the FeatureSet, or to_arrow()")

    @classmethod
    def read(cls, parts: Any, arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> SavedRows:
        """Rebuild the object from the output of `saved_rows`. A transform that cannot be read is an error of `inverse`
        only.

        Args:
            parts: Plain data.
            arrays: Arrays by name.
            allow: Classes of transforms that may be named in addition to those known here.

        Raises:
            ConfigError: malformed.
        """
        if not isinstance(parts, Mapping) or set(parts) != _KEYS:
            raise ConfigError(f"{shown(parts)} are not saved rows", hint=_HINT)
        try:
            label, n_rows = str(parts["feature_set"]), int(parts["n_rows"])
            rows = cls(label, _table(arrays, parts["table"]), n_rows)
            rows._original = (
                None if parts["original"] is None else cls(label, _table(arrays, parts["original"]), n_rows)
            )
            rows.is_transformed = bool(parts["is_transformed"])
            rows._largest = {str(name): int(value) for name, value in parts["largest"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise ConfigError(f"saved rows are malformed: {type(error).__name__}: {error}", hint=_HINT) from error
        try:
            rows._transforms = read_transforms(parts["transforms"], arrays, allow)
        except AnyaccelError as error:
            problem = f"the transforms of {label!r} cannot be undone in loaded results"
            hint = "undo them with the data: data.inverse(values, columns)"
            if "pip install" in error.hint:
                hint = error.hint
            elif "allow=" in error.hint:
                hint = f"name the class if you trust it: load(folder, allow=[MyTransform]); or {hint}"
            rows._error = TransformError(problem, cause=error.problem, available=error.available, hint=hint)
        return rows


def saved_rows(
    rows: Rows, original: Rows, compared: Iterable[str], arrays: dict[str, np.ndarray], prefix: str
) -> dict[str, Any]:
    """Return rows as plain data: their targets, tags and compared columns; `arrays` receives the contents, under
    `prefix`.

    Args:
        rows: Rows of a feature set, or a view of them.
        original: The same rows before their transforms.
        compared: Names of more columns that predictions are compared with.
        arrays: Mapping that receives the arrays.
        prefix: Prefix of the names in `arrays`.
    """
    base, compared = rows.base, list(compared)
    if isinstance(base, SavedRows):
        base.check_transforms()
    kept, transforms = _kept(rows, compared), getattr(base, "transforms", ())
    relevant = relevant_transforms(transforms, [*rows.targets, *compared])[::-1]
    before = None if original is rows else _chosen(original, _kept(original, compared))
    paths = [f"{prefix}/{name}" for name in ("table", "original", "transforms")]
    return {
        "feature_set": rows.label,
        "n_rows": len(rows),
        "table": _stored(_chosen(rows, kept), arrays, paths[0]),
        "original": None if before is None else _stored(before, arrays, paths[1]),
        "is_transformed": bool(getattr(base, "is_transformed", transforms)),
        "transforms": [transform.get_config(arrays, f"{paths[2]}/{i}") for i, transform in enumerate(relevant)],
        "largest": {name: largest for name in kept if (largest := _largest(base, name)) is not None},
    }


def _kept(rows: Rows, compared: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*rows.targets, *rows.tags, *(name for name in compared if name in rows.columns)]))


def _chosen(rows: Rows, names: Sequence[str]) -> Any:
    """Return some columns of rows as an Arrow table; no other column is read."""
    return pa.table(
        [rows.column(name) for name in names], schema=pa.schema([rows.schema.field(name) for name in names])
    )


def _largest(base: Rows, name: str) -> int | None:
    """Return the largest number of an integer column over the whole feature set, which gives the number of classes."""
    if isinstance(base, SavedRows):
        return base.largest([name])
    if base.role(name) == "tag" or np.dtype(base.spec(name).dtype).kind not in "iu":
        return None
    numbers = base.array(name)
    return int(numbers.max()) if numbers.size else None


def _stored(table: Any, arrays: dict[str, np.ndarray], path: str) -> str:
    """Return a table as the bytes of Arrow's stream, which has every type and the roles of columns."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrays[path] = np.frombuffer(sink.getvalue(), dtype=np.uint8)
    return path


def _table(arrays: Mapping[str, np.ndarray], path: str) -> Any:
    with pa.ipc.open_stream(pa.py_buffer(arrays[path].tobytes())) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


# -- original units: rows and values before the transforms of their feature set ----------------------------------------


def is_transformed(rows: Rows) -> bool:
    """Whether the feature set of some rows has or had transforms."""
    base = rows.base
    return base.is_transformed if isinstance(base, SavedRows) else bool(getattr(base, "transforms", ()))


def inverse_values(rows: Rows, columns: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Convert values [n, *shape] of columns, such as predictions, to the units before all transforms.

    Raises:
        TransformError: a transform has no inverse.
    """
    source = rows.base
    return source.inverse(values, columns) if isinstance(source, (FeatureSet, SavedRows)) else values


def original_values(rows: Rows, columns: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Return values of columns before all transforms: the stored originals if available, otherwise the inverse
    transform.

    Args:
        rows: The data.
        columns: Current names of the columns.
        values: [n, ...], the current values of the columns, joined.

    Raises:
        TransformError: a transform has no inverse.
    """
    whole = original_rows(rows)
    if whole is rows:
        return values
    if not set(columns) <= set(whole.columns):
        return inverse_values(rows, columns, values)
    arrays = [column_values(whole, name) for name in columns]
    return arrays[0] if len(arrays) == 1 else join(arrays)


def original_rows(rows: Rows) -> Rows:
    """Return the same rows before their transforms; a view keeps its selection of targets and tags."""
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
