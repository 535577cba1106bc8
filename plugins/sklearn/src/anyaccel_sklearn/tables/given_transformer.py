"""GivenTransformer: a custom transformer in scikit-learn's style for the columns of a table."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.roles import listed
from anyaccel.errors import ENVIRONMENT_ERRORS, TableWarning, TransformError
from anyaccel.fitting.table_columns import TableColumn
from anyaccel.install_hints import install_line
from anyaccel.user_level import user_level
from anyaccel_sklearn.tables.arrow_values import (
    BOOL,
    DATE,
    EMPTY,
    NUMBER,
    TEXT,
    decoded,
    family_of,
    nulls_if_empty,
    other_family,
)
from anyaccel_sklearn.transforms.sklearn_calls import check_transform
from anyaccel_sklearn.transforms.table_transform import TableTransform

_LARGE = 1e6  # larger numbers are not scaled, but for example seconds since 1970
_KINDS = {NUMBER: "number", BOOL: "category", TEXT: "category", DATE: "date", EMPTY: "dropped"}


class GivenTransformer(TableTransform):
    """A ColumnTransformer, a Pipeline or another transformer, which receives a data frame with the columns by name.

    Missing text, categories and booleans are NaN in the frame, as in `pandas.read_csv`.

    Args:
        transformer: Transformer; a copy of it is fitted.
        table: Arrow table of the features in the training rows.
        target: Target of the training rows, for transformers that use it, or None.
    """

    cardinalities: tuple[int, ...] = ()

    def __init__(self, transformer: Any, table: Any, target: np.ndarray | None) -> None:
        check_transform(transformer)
        self.transformer = copy.deepcopy(transformer)
        self.names = tuple(table.column_names)
        self.families = {name: family_of(name, decoded(table.column(name)).type) for name in self.names}
        self.n_missing = {name: _missing(table.column(name)) for name in self.names}
        self.target = target
        self.parts = {name: type(transformer).__name__ for name in self.names}

    @property
    def columns(self) -> list[TableColumn]:
        """Treatment of each column of the table."""
        return [
            TableColumn(name, _KINDS[self.families[name]], self.parts[name], self.n_missing[name])
            for name in self.names
        ]

    def fit_table(self, table: Any, rows: np.ndarray) -> np.ndarray:
        """Fit to the training rows, and transform all rows; training rows use `fit_transform`, which may cross-fit.

        Raises:
            TransformError: The transformer fails, returns other rows, or leaves gaps.
        """
        vectorizer = _vectorizer_of_a_table(self.transformer)
        if vectorizer:
            raise TransformError(
                f"{vectorizer} of preprocess= receives a data frame, and reads the names of its columns, not its rows",
                hint=f"give it one column, by its name without a list: make_column_transformer(({vectorizer}(), "
                "'COLUMN'))",
            )
        frame = self._frame(table)
        train = frame.iloc[rows]
        what = f"preprocess={type(self.transformer).__name__}(...)"
        try:
            fitted = getattr(self.transformer, "fit_transform", None)
            if fitted is None:
                self.transformer.fit(train, self.target)
                output = _dense(self.transformer.transform(frame))
            else:
                crossed = _dense(fitted(train, self.target))
                output = _dense(self.transformer.transform(frame))
                if crossed.shape == (len(rows), *output.shape[1:]):
                    output[rows] = crossed
        except ENVIRONMENT_ERRORS:
            raise
        except Exception as error:
            raise TransformError(
                f"{what} cannot be fitted: {type(error).__name__}: {error}",
                cause=f"it receives a data frame with the columns {listed(self.names)}",
                hint=_fill_hint(error)
                or "name its columns: make_column_transformer((StandardScaler(), ['COLUMN']), ...)",
            ) from error
        self.target = None
        self.width = output.shape[1] if output.ndim == 2 else 0
        self._name_parts()
        numbers = self._checked(output, len(frame))
        if np.abs(numbers[rows]).max() > _LARGE:
            warnings.warn(
                f"{what} returns numbers up to {np.abs(numbers[rows]).max():.3g}, but networks train badly "
                "with large numbers; put StandardScaler() last: make_pipeline(TRANSFORMER, StandardScaler())",
                TableWarning,
                user_level(),
            )
        return numbers

    def transform_table(self, table: Any) -> np.ndarray:
        """Transform another table: float32 [n, k].

        Raises:
            ColumnError: A column holds other values than in training.
            TransformError: The transformer fails, or leaves gaps.
        """
        frame = self._frame(table)
        try:
            output = _dense(self.transformer.transform(frame))
        except ENVIRONMENT_ERRORS:
            raise
        except Exception as error:
            raise TransformError(
                f"preprocess={type(self.transformer).__name__}(...) cannot be applied: {type(error).__name__}: {error}",
                cause=f"it receives a data frame with the columns {listed(self.names)}",
                hint=_fill_hint(error)
                or "fit it to accept such values, for example OneHotEncoder(handle_unknown='ignore')",
            ) from error
        return self._checked(output, len(frame))

    def _frame(self, table: Any) -> Any:
        try:
            import pandas as pd
        except ImportError as error:
            problem = "preprocess= with a transformer needs pandas, which is not installed"
            raise TransformError(problem, hint=install_line("pandas")) from error
        columns = {}
        for name in self.names:
            column, expected = table.column(name), self.families[name]
            column = column if expected == NUMBER else nulls_if_empty(column)
            family = family_of(name, column.type)
            is_like = family in (expected, EMPTY) or {family, expected} == {NUMBER, BOOL}
            if not is_like and expected != EMPTY:
                raise other_family(name, decoded(column), expected)
            if pa.types.is_decimal(column.type):
                column = column.cast(pa.float64())
            values = column.to_pandas()
            if values.dtype == object:
                values = values.where(values.notna(), np.nan)  # SimpleImputer does not treat None as a gap
            columns[name] = values
        return pd.DataFrame(columns)

    def _checked(self, output: np.ndarray, n_rows: int) -> np.ndarray:
        what = f"preprocess={type(self.transformer).__name__}(...)"
        if output.ndim == 2 and not output.shape[1]:
            raise TransformError(
                f"{what} leaves no column of {listed(self.names)}",
                hint="name columns in it, or keep the others: ColumnTransformer(..., remainder='passthrough')",
            )
        if output.ndim != 2 or len(output) != n_rows or output.shape[1] != self.width:
            raise TransformError(
                f"{what} returns an array of shape {list(output.shape)} for {n_rows} rows",
                cause="it must return one row of numbers for each row",
                hint="use a transformer that keeps all rows",
            )
        try:
            numbers = output.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise TransformError(
                f"{what} does not return numbers: {error}",
                hint="encode text and dates in it, for example with OneHotEncoder() in a ColumnTransformer",
            ) from error
        broken = ~np.isfinite(numbers).all(axis=1)
        if broken.any():
            raise TransformError(
                f"{what} returns NaN or infinity in {int(broken.sum())} of {n_rows} rows, "
                f"the first in row {int(broken.argmax())}, so losses would be NaN",
                hint="put SimpleImputer() last: make_pipeline(TRANSFORMER, SimpleImputer())",
            )
        return numbers

    def _name_parts(self) -> None:
        """Find the transformer of a ColumnTransformer for each column, and replace column selectors by names."""
        from sklearn.compose import ColumnTransformer

        for kind, names in getattr(self.transformer, "kind_to_columns_", {}).items():  # of skrub
            self.parts |= dict.fromkeys(names, f"{type(self.transformer).__name__}: {kind}")
        if not isinstance(self.transformer, ColumnTransformer):
            return
        chosen = self.transformer.transformers_
        self.parts = dict.fromkeys(self.names, "left out")
        for name, part, columns in chosen:
            for column in _names(columns, self.names):
                kind = part if isinstance(part, str) else type(part).__name__
                self.parts[column] = "left out" if kind == "drop" else f"{name}: {kind}"
        by_name = {name: columns for name, _, columns in chosen}
        parts = self.transformer.transformers
        self.transformer.transformers = [(name, part, by_name.get(name, columns)) for name, part, columns in parts]


def _vectorizer_of_a_table(transformer: Any) -> str:
    """Return the class of a text vectorizer that receives a data frame instead of one column, or an empty text."""
    if hasattr(transformer, "build_analyzer"):
        return type(transformer).__name__
    parts = [part for _, part in getattr(transformer, "steps", ())[:1]]
    parts += [part for _, part in getattr(transformer, "transformer_list", ())]
    parts += [
        part
        for _, part, columns in getattr(transformer, "transformers", ())
        if not isinstance(columns, (str, int, np.integer))
    ]
    return next(filter(None, map(_vectorizer_of_a_table, parts)), "")


def _fill_hint(error: Exception) -> str:
    """Return the hint for an error that missing values caused, or an empty text."""
    is_missing = re.search(r"\bnan\b|missing values", str(error), re.IGNORECASE)
    return "fill in missing values first: table.fillna({'COLUMN': ''})" if is_missing else ""


def _names(columns: Any, names: Sequence[str]) -> list[str]:
    """Return the column names that a ColumnTransformer selected by names, positions, a slice or a mask."""
    if isinstance(columns, str):
        return [columns]
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):  # both ends belong to a slice of names
            start = names.index(columns.start) if columns.start is not None else 0
            stop = names.index(columns.stop) + 1 if columns.stop is not None else None
            return list(names[start : stop : columns.step])
        return list(names[columns])
    chosen = list(getattr(columns, "data", columns))  # a list that warned when it was read, before scikit-learn 1.7
    if chosen and all(isinstance(item, (bool, np.bool_)) for item in chosen):
        return [name for name, taken in zip(names, chosen, strict=True) if taken]
    return [item if isinstance(item, str) else names[item] for item in chosen]


def _dense(output: Any) -> np.ndarray:
    if hasattr(output, "toarray"):
        output = output.toarray()
    return np.array(output.to_numpy() if hasattr(output, "to_numpy") else output)


def _missing(column: Any) -> int:
    return int(column.is_null(nan_is_null=True).cast(pa.uint8()).to_numpy().sum()) if len(column) else 0
