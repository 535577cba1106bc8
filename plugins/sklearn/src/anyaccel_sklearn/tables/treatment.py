"""TableTreatment: what `preprocess="auto"` makes of the columns of a table, by transformers of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.data.roles import listed
from anyaccel.errors import ColumnError, TableWarning
from anyaccel.fitting.table_columns import TableColumn
from anyaccel.user_level import user_level
from anyaccel_sklearn.tables.arrow_values import (
    BOOL,
    DATE,
    EMPTY,
    NUMBER,
    TEXT,
    categories,
    date_numbers,
    dates,
    decoded,
    family_of,
    numbers,
    other_family,
)
from anyaccel_sklearn.transforms.table_transform import TableTransform

FEW = 40
"""So many categories become a column each; more are encoded by the target, or as codes for a model that embeds."""
CLIP = 5.0
"""Scaled numbers beyond this many standard deviations are cut."""
_FOLDS = 5


class TableTreatment(TableTransform):
    """Numbers, dates and categories of a table as one matrix: scaled numbers, target encodings, indicators of gaps,
    one column for each category, and at last codes of categories for a model that embeds them (0: missing or unseen).

    Args:
        numbers: names of columns of numbers.
        dates: parts that are taken of columns of dates, by name.
        one_hot: names of columns of which each category becomes a column.
        encoded: names of columns whose categories become means of the target, cross-fitted where it is trained.
        codes: names of columns whose categories become codes.
        families: of the values, by column.
        columns: what became of each column of the table.
        target: of the rows to train on [n], for encodings; classes as integers, or numbers.
        seed: of the folds of the encodings.
    """

    def __init__(
        self,
        *,
        numbers: Sequence[str],
        dates: dict[str, tuple[str, ...]],
        one_hot: Sequence[str],
        encoded: Sequence[str],
        codes: Sequence[str],
        families: dict[str, str],
        columns: Sequence[TableColumn],
        target: np.ndarray | None,
        seed: int,
    ) -> None:
        self.numbers, self.dates = list(numbers), dict(dates)
        self.one_hot, self.encoded, self.codes = list(one_hot), list(encoded), list(codes)
        self.families = dict(families)
        self.columns = list(columns)
        self.target, self.seed = target, seed
        self.imputer = self.scaler = self.one_hot_encoder = self.target_encoder = self.ordinal_encoder = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it takes."""
        return (*self.numbers, *self.dates, *self.one_hot, *self.encoded, *self.codes)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """For each column of codes, how many there are; code 0 stands for missing and unseen ones."""
        known = self._known(self.ordinal_encoder)
        return tuple(1 + sum(value == value for value in values.tolist()) for values in known)  # NaN is missing

    @property
    def n_numbers(self) -> int:
        """Columns of the matrix before the codes."""
        return self.width - len(self.codes)

    def fit_table(self, table: Any, rows: np.ndarray) -> np.ndarray:
        """Learn from the rows to train on, and transform all; encodings of these rows come from other folds."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

        values, gap_columns = self._numbers(table)
        is_gap = np.isnan(values[rows]).any(axis=0)
        self.gaps = [place for place in gap_columns if is_gap[place]]
        if values.shape[1]:
            self.imputer = SimpleImputer(strategy="median").fit(values[rows])
        texts = {part: self._categories(table, names) for part, names in self._categorical().items()}
        encoded = self._fit_encodings(texts["encoded"], rows)
        filled = self._filled(values, encoded)
        if filled.shape[1]:
            self.scaler = StandardScaler().fit(filled[rows])
        if self.one_hot:
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
            self.one_hot_encoder = encoder.fit(texts["one_hot"][rows])
        if self.codes:
            unseen = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "encoded_missing_value": -1}
            self.ordinal_encoder = OrdinalEncoder(**unseen).fit(_nan_for_none(texts["codes"][rows]))
        self.target = None
        output = self._matrix(values, filled, texts)
        self.width = output.shape[1]
        return output

    def transform_table(self, table: Any) -> np.ndarray:
        """The matrix of another table; warns of what was not there in training, and counts it."""
        values, gap_columns = self._numbers(table)
        texts = {part: self._categories(table, names) for part, names in self._categorical().items()}
        encoded = self.target_encoder.transform(texts["encoded"]) if self.encoded else np.empty((len(table), 0))
        output = self._matrix(values, self._filled(values, encoded), texts)
        self._warn_of_news(values, gap_columns, texts)
        return output

    def _categorical(self) -> dict[str, list[str]]:
        return {"one_hot": self.one_hot, "encoded": self.encoded, "codes": self.codes}

    # -- parts of the matrix -------------------------------------------------------------------------------------------

    def _numbers(self, table: Any) -> tuple[np.ndarray, dict[int, str]]:
        """Numbers and parts of dates side by side, and the places that tell of a gap, with their columns."""
        parts, places, place = [np.empty((len(table), 0))], {}, 0
        for name in self.numbers:
            part = numbers(name, self._column(table, name))
            is_infinite = np.isinf(part).any(axis=1)
            if is_infinite.any():
                raise ColumnError(
                    f"column {name!r} is infinite in {int(is_infinite.sum())} rows, the first in row "
                    f"{int(is_infinite.argmax())}",
                    hint=f"leave such places empty (pandas: table[{name!r}].replace([inf, -inf], None))",
                )
            places |= dict.fromkeys(range(place, place + part.shape[1]), name)
            parts.append(part)
            place += part.shape[1]
        for name, taken in self.dates.items():
            part = date_numbers(self._column(table, name), taken)
            places[place] = name
            parts.append(part)
            place += part.shape[1]
        return np.concatenate(parts, axis=1), places

    def _column(self, table: Any, name: str) -> Any:
        """A column in the family that it had in training; dates as timestamps."""
        column, expected = decoded(table.column(name)), self.families[name]
        family = family_of(name, column.type)
        made = column
        if expected == DATE and family in (DATE, TEXT, EMPTY):
            made = dates(column)
        is_like = family in (expected, EMPTY) or {family, expected} == {NUMBER, BOOL} or expected == DATE == family
        if made is None or not (is_like or (expected == DATE and family == TEXT)):
            raise other_family(name, column, expected)
        return made

    def _categories(self, table: Any, names: Sequence[str]) -> np.ndarray:
        values = np.empty((len(table), len(names)), dtype=object)
        for place, name in enumerate(names):
            values[:, place] = categories(self._column(table, name))
        return values

    def _fit_encodings(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Means of the target for each category: cross-fitted in the rows to train on, of all these rows elsewhere."""
        if not self.encoded:
            return np.empty((len(values), 0))
        from sklearn.preprocessing import TargetEncoder

        target = np.asarray(self.target)
        counts = np.unique(target, return_counts=True)[1]
        is_number = target.dtype.kind == "f"
        kind = "continuous" if is_number else "binary" if len(counts) == 2 else "multiclass"
        folds = min(_FOLDS, len(target) if is_number else int(counts.max()))
        self.target_encoder = TargetEncoder(target_type=kind, cv=folds, random_state=self.seed)
        with warnings.catch_warnings():  # a rare class is not in each of the folds: it is then no part of their means
            warnings.simplefilter("ignore")
            crossed = self.target_encoder.fit_transform(values[rows], target)
        encoded = np.asarray(self.target_encoder.transform(values))
        encoded[rows] = crossed
        return encoded

    def _filled(self, values: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        filled = values if self.imputer is None else self.imputer.transform(values)
        return np.concatenate([filled, encoded], axis=1) if encoded.shape[1] else filled

    def _matrix(self, values: np.ndarray, filled: np.ndarray, texts: dict[str, np.ndarray]) -> np.ndarray:
        parts: list[np.ndarray] = []
        if self.scaler is not None:
            parts.append(np.clip(self.scaler.transform(filled), -CLIP, CLIP))
        if self.gaps:
            parts.append(np.isnan(values[:, self.gaps]))
        if self.one_hot:
            parts.append(self.one_hot_encoder.transform(texts["one_hot"]))
        if self.codes:
            parts.append(self.ordinal_encoder.transform(_nan_for_none(texts["codes"])) + 1)
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)

    # -- what was not there in training --------------------------------------------------------------------------------

    def _warn_of_news(self, values: np.ndarray, gap_columns: dict[int, str], texts: dict[str, np.ndarray]) -> None:
        news = []
        is_gap = np.isnan(values)
        if is_gap.any():
            filled = [place for place in gap_columns if place not in self.gaps and is_gap[:, place].any()]
            counts = [f"{gap_columns[place]!r} in {int(is_gap[:, place].sum())} rows" for place in filled]
            news += (
                [f"no value, which was never so in training, and the median instead: {listed(counts)}"]
                if counts
                else []
            )
        unseen = [
            *self._unseen(self.one_hot, self.one_hot_encoder, texts["one_hot"]),
            *self._unseen(self.encoded, self.target_encoder, texts["encoded"]),
            *self._unseen(self.codes, self.ordinal_encoder, texts["codes"]),
        ]
        news += [f"categories that were not in training, which count as none: {listed(unseen)}"] if unseen else []
        if news:
            warnings.warn(f"{len(values)} rows to predict for have {'; and '.join(news)}", TableWarning, user_level())

    def _unseen(self, names: Sequence[str], encoder: Any, values: np.ndarray) -> list[str]:
        texts = []
        for name, known, column in zip(names, self._known(encoder), values.T, strict=True):
            seen = {None if value != value else value for value in known}
            new = [value for value in column.tolist() if value not in seen]
            if new:
                shown = listed(map(repr, list(dict.fromkeys(new))[:3]))
                texts.append(f"{name!r} in {len(new)} rows ({shown})")
        return texts

    @staticmethod
    def _known(encoder: Any) -> Sequence[np.ndarray]:
        return () if encoder is None else encoder.categories_


def _nan_for_none(values: np.ndarray) -> np.ndarray:
    """A copy with NaN in place of None, which is what OrdinalEncoder takes for missing."""
    return np.where(np.equal(values, None), np.nan, values)
