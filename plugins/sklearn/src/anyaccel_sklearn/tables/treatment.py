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

    __slots__ = ("_lookups",)  # made of the attributes, and not among those that are saved

    _lookups: dict[str, list[dict[Any, int]]]

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
        self.imputer: Any = None
        self.scaler: Any = None
        self.one_hot_encoder: Any = None
        self.target_encoder: Any = None
        self.ordinal_encoder: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it takes."""
        return (*self.numbers, *self.dates, *self.one_hot, *self.encoded, *self.codes)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """For each column of codes, how many there are; code 0 stands for missing and unseen ones."""
        known = [] if self.ordinal_encoder is None else self.ordinal_encoder.categories_
        return tuple(1 + sum(value == value for value in values.tolist()) for values in known)  # NaN is missing

    def fit_table(self, table: Any, rows: np.ndarray) -> np.ndarray:
        """Learn from the rows to train on, and transform all; encodings of these rows come from other folds."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

        values, gap_columns = self._numbers(table)
        is_gap = np.isnan(values[rows]).any(axis=0)
        self.gaps = [place for place in gap_columns if is_gap[place]]
        if values.shape[1]:
            self.imputer = SimpleImputer(strategy="median").fit(values[rows])
        texts = self._categories(table)
        crossed = None
        if self.encoded:
            crossed = self._fit_encoder(texts["encoded"][rows])
        if self.one_hot:
            self.one_hot_encoder = OneHotEncoder(handle_unknown="ignore").fit(texts["one_hot"][rows])
        if self.codes:
            known = np.where(_is_none(texts["codes"]), np.nan, texts["codes"])[rows]  # NaN sorts last, no code
            self.ordinal_encoder = OrdinalEncoder().fit(known)
        self.target = None
        places = self._places(texts)
        filled = self._filled(values, places["encoded"])
        if crossed is not None:
            filled[rows, values.shape[1] :] = crossed
        if filled.shape[1]:
            self.scaler = StandardScaler().fit(filled[rows])
        output = self._matrix(values, filled, places)
        self.width = output.shape[1]
        return output

    def transform_table(self, table: Any) -> np.ndarray:
        """The matrix of another table; warns of what was not there in training, and counts it."""
        values, gap_columns = self._numbers(table)
        texts = self._categories(table)
        places = self._places(texts)
        output = self._matrix(values, self._filled(values, places["encoded"]), places)
        self._warn_of_news(values, gap_columns, texts, places)
        return output

    # -- parts of the matrix -------------------------------------------------------------------------------------------

    def _numbers(self, table: Any) -> tuple[np.ndarray, dict[int, str]]:
        """Numbers and parts of dates side by side, and the places that tell of a gap, with their columns."""
        parts, place = [np.empty((len(table), 0))], 0
        places: dict[int, str] = {}
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

    def _encoders(self) -> dict[str, tuple[list[str], Any]]:
        return {
            "one_hot": (self.one_hot, self.one_hot_encoder),
            "encoded": (self.encoded, self.target_encoder),
            "codes": (self.codes, self.ordinal_encoder),
        }

    def _categories(self, table: Any) -> dict[str, np.ndarray]:
        """The values of the columns of categories, object arrays [n, columns], for each kind of encoder."""
        made = {}
        for part, (names, _) in self._encoders().items():
            made[part] = np.empty((len(table), len(names)), dtype=object)
            for column, name in enumerate(names):
                made[part][:, column] = categories(self._column(table, name))
        return made

    def _places(self, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The places of values among the categories that were fitted, int64 [n, columns]; -1 for unseen ones.

        The encoders do the same, in a millisecond for a single row.
        """
        try:
            lookups = self._lookups
        except AttributeError:
            lookups = self._lookups = {
                part: [
                    {None if value != value else value: place for place, value in enumerate(known.tolist())}
                    for known in ([] if encoder is None else encoder.categories_)
                ]
                for part, (_, encoder) in self._encoders().items()
            }
        places = {}
        for part, values in texts.items():
            places[part] = np.empty(values.shape, dtype=np.int64)
            for column, lookup in enumerate(lookups[part]):
                places[part][:, column] = [lookup.get(value, -1) for value in values[:, column].tolist()]
        return places

    def _fit_encoder(self, values: np.ndarray) -> np.ndarray:
        """Fit means of the target for each category, and return those of each row that come from other folds."""
        import sklearn
        from sklearn.model_selection import KFold, StratifiedKFold
        from sklearn.preprocessing import TargetEncoder

        target = np.asarray(self.target)
        counts = np.unique(target, return_counts=True)[1]
        is_number = target.dtype.kind == "f"
        kind = "continuous" if is_number else "binary" if len(counts) == 2 else "multiclass"
        folds = min(_FOLDS, len(target) if is_number else int(counts.max()))
        if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
            drawn = {"cv": folds, "random_state": self.seed}
        else:  # which takes the same folds as an object, and will not take the seed
            drawn = {"cv": (KFold if is_number else StratifiedKFold)(folds, shuffle=True, random_state=self.seed)}
        self.target_encoder = TargetEncoder(target_type=kind, **drawn)
        with warnings.catch_warnings():  # a rare class is not in each of the folds: it is then no part of their means
            warnings.simplefilter("ignore")
            return np.asarray(self.target_encoder.fit_transform(values, target))

    def _filled(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Numbers with medians in their gaps, and beside them the means of the target of some categories."""
        filled = values if self.imputer is None else np.where(np.isnan(values), self.imputer.statistics_, values)
        if not self.encoded:
            return filled
        means, overall = self.target_encoder.encodings_, np.atleast_1d(self.target_encoder.target_mean_)
        encoded = np.empty((len(values), len(means)))
        for column, known in enumerate(means):  # for several classes each column has as many means
            place = places[:, column // len(overall)]
            encoded[:, column] = np.where(place < 0, overall[column % len(overall)], known[place])
        return np.concatenate([filled, encoded], axis=1)

    def _matrix(self, values: np.ndarray, filled: np.ndarray, places: dict[str, np.ndarray]) -> np.ndarray:
        parts: list[np.ndarray] = []
        if self.scaler is not None:
            parts.append(np.clip((filled - self.scaler.mean_) / self.scaler.scale_, -CLIP, CLIP))
        if self.gaps:
            parts.append(np.isnan(values[:, self.gaps]))
        if self.one_hot:
            parts += [
                place[:, None] == np.arange(len(known))
                for place, known in zip(places["one_hot"].T, self.one_hot_encoder.categories_, strict=True)
            ]
        if self.codes:
            is_known = (places["codes"] >= 0) & (places["codes"] < np.array(self.cardinalities) - 1)
            parts.append(np.where(is_known, places["codes"] + 1, 0))
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)

    # -- what was not there in training --------------------------------------------------------------------------------

    def _warn_of_news(
        self,
        values: np.ndarray,
        gap_columns: dict[int, str],
        texts: dict[str, np.ndarray],
        places: dict[str, np.ndarray],
    ) -> None:
        news, unseen = [], []
        is_gap = np.isnan(values)
        if is_gap.any():
            filled = [place for place in gap_columns if place not in self.gaps and is_gap[:, place].any()]
            counts = [f"{gap_columns[place]!r} in {int(is_gap[:, place].sum())}" for place in filled]
            if counts:
                news.append(f"no value where there always was one in training, and get the median: {listed(counts)}")
        for part, (names, _) in self._encoders().items():
            for name, column, place in zip(names, texts[part].T, places[part].T, strict=True):
                new = column[place < 0].tolist()
                if new:
                    unseen.append(f"{name!r} in {len(new)} ({listed(map(repr, list(dict.fromkeys(new))[:3]))})")
        if unseen:
            news.append(f"categories that were not in training, which count as none of them: {listed(unseen)}")
        if news:
            warnings.warn(f"of {len(values)} rows some have {'; and '.join(news)}", TableWarning, user_level())


def _is_none(values: np.ndarray) -> np.ndarray:
    return np.array([value is None for value in values.reshape(-1)], dtype=bool).reshape(values.shape)
