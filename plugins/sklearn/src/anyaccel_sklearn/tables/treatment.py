"""TableTreatment: the features that `preprocess="auto"` builds from table columns, with scikit-learn's transformers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
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
    in_zone,
    nulls_if_empty,
    numbers,
    other_family,
    times_of_day,
)
from anyaccel_sklearn.transforms.table_transform import TableTransform

FEW = 40
"""Maximum number of one-hot encoded categories; more are encoded by the target, or as codes for a model that embeds."""
MANY_ROWS = 20
"""Training rows per category, on average, from which an embedding is learned; with fewer it memorizes single rows."""
CLIP = 5.0
"""Scaled numbers beyond this many standard deviations are cut."""
_FOLDS = 5
_INTERVALS, _FEWEST_INTERVALS, _ROWS_OF_INTERVAL = 32, 4, 500
_MOST_PLACES, _MOST_CELLS = 1024, 2**28  # features from intervals: in a row, and in the whole table, 1 GiB
_LARGEST = 1e150  # beyond, no variance is a finite number


class TableTreatment(TableTransform):
    """The numbers, dates and categories of a table as one matrix.

    It holds scaled numbers, target encodings, places of numbers in their quantile intervals, gap indicators, one column
    for each category, and last the category codes for a model that embeds them (0: missing or unknown).

    The place in an interval is 0 below it, 1 above it, and rises linearly inside ("piecewise linear encoding",
    Gorishniy et al. 2022). A network fits steps and peaks with these that it hardly finds from one number.

    Args:
        numbers: Names of number columns.
        dates: Parts to extract from date columns, by name.
        one_hot: Names of columns that are one-hot encoded.
        encoded: Names of columns whose categories become means of the target, cross-fitted in training.
        codes: Names of columns whose categories become codes.
        by_interval: Whether numbers and dates also become their places in quantile intervals.
        families: Family of the values of each column.
        columns: Treatment of each column of the table.
        target: Target of the training rows [n], for encodings; classes as integers, or numbers.
        seed: Seed of the folds of the encodings.
    """

    __slots__ = ("_lookups",)  # built from the attributes, and not saved with them

    _lookups: dict[str, list[dict[Any, int]]]
    zones: Mapping[str, str] = MappingProxyType({})
    """Time zone of each date column in the training, `""` for none; earlier versions saved none of them."""

    def __init__(
        self,
        *,
        numbers: Sequence[str],
        dates: dict[str, tuple[str, ...]],
        one_hot: Sequence[str],
        encoded: Sequence[str],
        codes: Sequence[str],
        by_interval: bool,
        families: dict[str, str],
        columns: Sequence[TableColumn],
        target: np.ndarray | None,
        seed: int,
    ) -> None:
        self.numbers, self.dates = list(numbers), dict(dates)
        self.one_hot, self.encoded, self.codes = list(one_hot), list(encoded), list(codes)
        self.families = dict(families)
        self.columns = list(columns)
        self.target, self.seed, self.by_interval = target, seed, by_interval
        self.interval_of = np.empty(0, dtype=np.int64)
        self.low, self.high = np.empty(0), np.empty(0)
        self.imputer: Any = None
        self.scaler: Any = None
        self.one_hot_encoder: Any = None
        self.target_encoder: Any = None
        self.ordinal_encoder: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its input columns."""
        return (*self.numbers, *self.dates, *self.one_hot, *self.encoded, *self.codes)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each code column; code 0 means missing or unknown."""
        categories = [] if self.ordinal_encoder is None else self.ordinal_encoder.categories_
        return tuple(1 + sum(value == value for value in values.tolist()) for values in categories)  # NaN is missing

    def fit_table(self, table: Any, rows: np.ndarray) -> np.ndarray:
        """Fit to the training rows, and transform all rows; encodings of training rows come from other folds."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

        values, gap_columns = self._numbers(table)
        is_huge = (np.abs(values[rows]) > _LARGEST).any(axis=0)
        if is_huge.any():
            place = int(is_huge.argmax())
            name, largest = gap_columns[place], np.nanmax(np.abs(values[rows, place]))
            raise ColumnError(
                f"column {name!r} has numbers up to {largest:.3g}, whose square is infinite",
                hint=f"take their logarithm, or leave the column out: drop=[{name!r}]",
            )
        is_gap = np.isnan(values[rows]).any(axis=0)
        self.gaps = [place for place in gap_columns if is_gap[place]]
        if values.shape[1]:
            self.imputer = SimpleImputer(strategy="median").fit(values[rows])
        if self.by_interval and values.shape[1]:
            self._fit_intervals(values, rows, gap_columns)
        texts = self._categories(table)
        crossed = None
        if self.encoded:
            crossed = self._fit_encoder(texts["encoded"][rows])
        if self.one_hot:
            self.one_hot_encoder = OneHotEncoder(handle_unknown="ignore").fit(texts["one_hot"][rows])
        if self.codes:
            coded = np.where(_is_none(texts["codes"]), np.nan, texts["codes"])[rows]  # NaN sorts last, no code
            self.ordinal_encoder = OrdinalEncoder().fit(coded)
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
        """Return the matrix of another table; count values that were not in training, and warn of them."""
        values, gap_columns = self._numbers(table)
        texts = self._categories(table)
        places = self._places(texts)
        output = self._matrix(values, self._filled(values, places["encoded"]), places)
        news, unseen = [], []
        is_gap = np.isnan(values)
        if is_gap.any():
            filled = [place for place in gap_columns if place not in self.gaps and is_gap[:, place].any()]
            counts = [f"{gap_columns[place]!r} in {int(is_gap[:, place].sum())}" for place in filled]
            if counts:
                news.append(f"missing values, although training had none; they get the median: {listed(counts)}")
        for part, (names, _) in self._encoders().items():
            for name, column, place in zip(names, texts[part].T, places[part].T, strict=True):
                new = column[place < 0].tolist()
                if new:
                    unseen.append(f"{name!r} in {len(new)} ({listed(map(repr, list(dict.fromkeys(new))[:3]))})")
        if unseen:
            news.append(f"categories that were not in training; they are treated as unknown: {listed(unseen)}")
        if news:
            warnings.warn(f"some of {len(values)} rows have {'; and '.join(news)}", TableWarning, user_level())
        return output

    # -- parts of the matrix -------------------------------------------------------------------------------------------

    def _numbers(self, table: Any) -> tuple[np.ndarray, dict[int, str]]:
        """Return numbers and date parts side by side, and the positions of gap indicators with their columns."""
        parts, place = [np.empty((len(table), 0))], 0
        places: dict[int, str] = {}
        for name in self.numbers:
            part = numbers(name, self._column(table, name))
            is_infinite = np.isinf(part).any(axis=1)
            if is_infinite.any():
                raise ColumnError(
                    f"column {name!r} is infinite in {int(is_infinite.sum()):,} of {len(table):,} rows, the first in "
                    f"row {int(is_infinite.argmax())}",
                    hint="replace them with missing values (pandas: table.replace([float('inf'), float('-inf')], "
                    "float('nan')))",
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

    def _fit_intervals(self, values: np.ndarray, rows: np.ndarray, first_places: dict[int, str]) -> None:
        """Cut each number at quantiles of its training rows.

        Short tables have fewer intervals, for enough rows in each; wide and long tables, for their memory.
        """
        n_rows, n_numbers = values.shape
        n_intervals = min(_INTERVALS, len(rows) // _ROWS_OF_INTERVAL)
        n_intervals = min(n_intervals, _MOST_PLACES // n_numbers, _MOST_CELLS // (n_rows * n_numbers))
        if n_intervals < _FEWEST_INTERVALS:
            return
        interval_of, low, high, counts, name = [], [], [], Counter[str](), ""
        for place, column in enumerate(values[rows].T):
            name = first_places.get(place, name)
            present = column[~np.isnan(column)]
            edges = np.unique(np.quantile(present, np.linspace(0, 1, n_intervals + 1)))
            if len(edges) > 2 and len(np.unique(present)) > 2:  # two values are told apart by the number itself
                interval_of += [place] * (len(edges) - 1)
                low.append(edges[:-1])
                high.append(edges[1:])
                counts[name] += len(edges) - 1
        if not interval_of:
            return
        self.interval_of, self.low, self.high = np.array(interval_of), np.concatenate(low), np.concatenate(high)
        self.columns = [
            replace(
                column,
                treatment=f"{column.treatment}, {counts[column.name]} quantile intervals",
                n_features=column.n_features + counts[column.name],
            )
            if counts[column.name]
            else column
            for column in self.columns
        ]

    def _column(self, table: Any, name: str) -> Any:
        """Return a column in its family of the training; dates as timestamps."""
        column, expected = decoded(table.column(name)), self.families[name]
        column = column if expected == NUMBER else nulls_if_empty(column)
        family = family_of(name, column.type)
        made = column
        if expected == DATE and family in (DATE, TEXT, EMPTY):
            made = dates(column)
        elif expected == NUMBER and family == TEXT:
            made = times_of_day(column)
        is_read = expected in (DATE, NUMBER) and family == TEXT
        if made is None or not (family in (expected, EMPTY) or {family, expected} == {NUMBER, BOOL} or is_read):
            raise other_family(name, column, expected)
        return in_zone(name, made, self.zones[name]) if name in self.zones and family != EMPTY else made

    def _encoders(self) -> dict[str, tuple[list[str], Any]]:
        return {
            "one_hot": (self.one_hot, self.one_hot_encoder),
            "encoded": (self.encoded, self.target_encoder),
            "codes": (self.codes, self.ordinal_encoder),
        }

    def _categories(self, table: Any) -> dict[str, np.ndarray]:
        """Return the values of category columns, object arrays [n, columns], for each kind of encoder."""
        made = {}
        for part, (names, _) in self._encoders().items():
            made[part] = np.empty((len(table), len(names)), dtype=object)
            for column, name in enumerate(names):
                made[part][:, column] = categories(self._column(table, name))
        return made

    def _places(self, texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the indices of values among the fitted categories, int64 [n, columns]; -1 for unknown values.

        The encoders return the same, but take a millisecond for a single row.
        """
        try:
            lookups = self._lookups
        except AttributeError:
            lookups = self._lookups = {
                part: [
                    {None if value != value else value: place for place, value in enumerate(values.tolist())}
                    for values in ([] if encoder is None else encoder.categories_)
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
        else:  # an object for the same folds, since the encoder will not accept the seed
            drawn = {"cv": (KFold if is_number else StratifiedKFold)(folds, shuffle=True, random_state=self.seed)}
        self.target_encoder = TargetEncoder(target_type=kind, **drawn)
        with warnings.catch_warnings():  # a rare class is not in every fold, so its means leave it out
            warnings.simplefilter("ignore")
            return np.asarray(self.target_encoder.fit_transform(values, target))

    def _filled(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return numbers with medians in their gaps, and next to them the target means of some categories."""
        filled = values if self.imputer is None else np.where(np.isnan(values), self.imputer.statistics_, values)
        if not self.encoded:
            return filled
        means, overall = self.target_encoder.encodings_, np.atleast_1d(self.target_encoder.target_mean_)
        encoded = np.empty((len(values), len(means)))
        for column, column_means in enumerate(means):  # for several classes each column has as many means
            place = places[:, column // len(overall)]
            encoded[:, column] = np.where(place < 0, overall[column % len(overall)], column_means[place])
        return np.concatenate([filled, encoded], axis=1)

    def _matrix(self, values: np.ndarray, filled: np.ndarray, places: dict[str, np.ndarray]) -> np.ndarray:
        parts: list[np.ndarray] = []
        if self.scaler is not None:
            parts.append(np.clip((filled - self.scaler.mean_) / self.scaler.scale_, -CLIP, CLIP))
        if len(self.interval_of):
            parts.append(np.clip((filled[:, self.interval_of] - self.low) / (self.high - self.low), 0.0, 1.0))
        if self.gaps:
            parts.append(np.isnan(values[:, self.gaps]))
        if self.one_hot:
            parts += [
                place[:, None] == np.arange(len(column_values))
                for place, column_values in zip(places["one_hot"].T, self.one_hot_encoder.categories_, strict=True)
            ]
        if self.codes:
            is_known = (places["codes"] >= 0) & (places["codes"] < np.array(self.cardinalities) - 1)
            parts.append(np.where(is_known, places["codes"] + 1, 0))
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def _is_none(values: np.ndarray) -> np.ndarray:
    return np.array([value is None for value in values.reshape(-1)], dtype=bool).reshape(values.shape)
