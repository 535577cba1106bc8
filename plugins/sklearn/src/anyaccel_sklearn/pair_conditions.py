"""Conditions between an anchor row and a candidate row, as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.roles import listed
from anyaccel.data.rows import Rows
from anyaccel.errors import ConfigError, SamplerError
from anyaccel_sklearn.column_codes import (
    ComparedColumn,
    encoded,
    find_column,
    hashable,
    python_values,
    single_values,
)

MaskFunction = Callable[[Any, np.ndarray], Any]
"""Function from an anchor's value and an array of candidates' values to a bool mask of the candidates."""


@constructor_hints
@dataclass(frozen=True, slots=True)
class PairCondition(ABC):
    """A condition on a column of any role: Same, Different, Within, Beyond or Where.

    Rows with a missing value (null or NaN) meet none of the first four, neither as anchor nor as candidate.
    """

    kind: ClassVar[str]
    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            name = type(self).__name__
            problem = f"{name} needs the name of a column, got {shown(self.column)}"
            raise SamplerError(problem, hint=f"write {name}('COLUMN')")

    @abstractmethod
    def read(self, rows: Mapping[str, Rows]) -> ComparedColumn:
        """Return the values to compare, from rows by label of their feature set.

        Raises:
            ColumnError: No feature set has the column.
            SamplerError: Several feature sets have it, or its values cannot be compared like this.
        """

    @abstractmethod
    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return which rows match which anchors: bool [k, n] for the numbers of `k` rows."""

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict that `condition_from_config` reads.

        Raises:
            ConfigError: The condition is a function.
        """
        return {"condition": self.kind, **{name: getattr(self, name) for name in field_names(self)}}


@dataclass(frozen=True, slots=True)
class _Equality(PairCondition):
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.column!r})"

    def read(self, rows: Mapping[str, Rows]) -> ComparedColumn:
        """Return a code for each different value."""
        return encoded(*find_column(self, self.column, rows))


@constructor_hints
@dataclass(frozen=True, slots=True, repr=False)
class Same(_Equality):
    """The candidate has the anchor's value."""

    kind = "same"

    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return which values are equal."""
        return np.asarray(compared.values[anchors, None] == compared.values[None])


@constructor_hints
@dataclass(frozen=True, slots=True, repr=False)
class Different(_Equality):
    """The candidate has another value than the anchor."""

    kind = "different"

    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return which values are unequal."""
        return np.asarray(compared.values[anchors, None] != compared.values[None])


@dataclass(frozen=True, slots=True)
class _Distance(PairCondition):
    distance: float

    def __post_init__(self) -> None:
        super(_Distance, self).__post_init__()
        where = f"{type(self).__name__}({self.column!r}): "
        wanted = "a number of 0 or more"
        distance = arguments.number(SamplerError, where, "distance", self.distance, lambda it: it >= 0, wanted, 0.5)
        object.__setattr__(self, "distance", float(distance))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.column!r}, {self.distance:g})"

    def read(self, rows: Mapping[str, Rows]) -> ComparedColumn:
        """Return the numbers as float64."""
        source, name = find_column(self, self.column, rows)
        if not is_numeric(source.schema.field(name).type):
            raise SamplerError(
                f"{self} compares numbers, but {name!r} is {source.schema.field(name).type}",
                hint=f"use Same({name!r}), Different({name!r}), or Where({name!r}, function)",
            )
        column = source.column(name)
        numbers = (column.to_numpy() if column.null_count else single_values(source, name)).astype(np.float64)
        return ComparedColumn(numbers, np.isnan(numbers))

    def window(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest number within the distance of each value."""
        return values - self.distance, values + self.distance

    def _near(self, values: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        least, greatest = self.window(values[anchors, None])
        return np.logical_and(values[None] >= least, values[None] <= greatest)


@constructor_hints
@dataclass(frozen=True, slots=True, repr=False)
class Within(_Distance):
    """The candidate's number differs from the anchor's by at most `distance`."""

    kind = "within"

    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return which values are near."""
        return self._near(compared.values, anchors)


@constructor_hints
@dataclass(frozen=True, slots=True, repr=False)
class Beyond(_Distance):
    """The candidate's number differs from the anchor's by more than `distance`."""

    kind = "beyond"

    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return which values are not near."""
        return ~self._near(compared.values, anchors)


@constructor_hints
@dataclass(frozen=True, slots=True)
class Where(PairCondition):
    """A function selects the matching candidates, each by its value alone.

    Args:
        column: Column whose values are compared.
        function: Function of an anchor's value and an array of the candidates' distinct values, which returns a bool
            mask of these. Tags that are not numeric are passed as object arrays.
    """

    kind = "where"
    function: MaskFunction

    def __post_init__(self) -> None:
        super(Where, self).__post_init__()
        if not callable(self.function):
            raise SamplerError(
                f"Where({self.column!r}, {self.function!r}) has no function",
                hint=f"write Where({self.column!r}, lambda anchor, candidates: candidates > anchor)",
            )

    def __repr__(self) -> str:
        return f"Where({self.column!r}, {getattr(self.function, '__name__', 'function')})"

    def read(self, rows: Mapping[str, Rows]) -> ComparedColumn:
        """Return a code for each distinct value, and these values; no value counts as missing."""
        source, name = find_column(self, self.column, rows)
        is_number = is_numeric(source.schema.field(name).type)
        values = single_values(source, name) if is_number else python_values(source.column(name))
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(hashable(value), len(places)) for value in values.tolist()], dtype=np.int64)
        first = np.unique(codes, return_index=True)[1]
        return ComparedColumn(codes, np.zeros(len(codes), dtype=bool), values[first])

    def mask(self, compared: ComparedColumn, anchors: np.ndarray) -> np.ndarray:
        """Return the masks of the function, called once for each distinct anchor."""
        codes, candidates = compared.values, compared.distinct
        assert candidates is not None
        chosen, back = np.unique(codes[anchors], return_inverse=True)
        table = np.stack([self._called(candidates[code], candidates) for code in chosen])
        return np.take(table[back.reshape(-1)], codes, axis=1)

    def _called(self, anchor: Any, candidates: np.ndarray) -> np.ndarray:
        mask = np.asarray(self.function(anchor, candidates))
        if mask.shape != candidates.shape or mask.dtype != bool:
            raise SamplerError(
                f"the function of {self} returned {mask.dtype}{list(mask.shape)}, not a mask of the candidates",
                cause=f"there are {len(candidates)} candidates; a mask must be bool{list(candidates.shape)}",
                hint="compare the array of candidates with the anchor",
            )
        return mask

    def get_config(self) -> dict[str, Any]:
        """Raise an error, because a function has no configuration.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{self} is a function and has no configuration", hint="use Same, Different, Within, Beyond")


Conditions = PairCondition | Iterable[PairCondition]


def conditions_of(argument: str, value: Any) -> tuple[PairCondition, ...]:
    """Return one condition or several as a tuple."""
    several = (value,) if isinstance(value, PairCondition) else value
    conditions = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (several,)
    for condition in conditions:
        if not isinstance(condition, PairCondition):
            raise SamplerError(
                f"{argument}={condition!r} is not a condition between two rows",
                available=listed(_CLASS_NAMES),
                hint=f"write {argument}=Same('COLUMN')",
            )
    if not conditions:
        raise SamplerError(f"{argument} has no condition", hint=f"write {argument}=Same('COLUMN')")
    return conditions


def field_names(value: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass or of an instance."""
    return tuple(field.name for field in fields(value))


def condition_from_config(config: Any) -> PairCondition:
    """Rebuild a condition from the output of `get_config`."""
    kind = config.get("condition") if isinstance(config, Mapping) else None
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None or set(config) != {"condition", *field_names(cls)}:
        raise ConfigError(
            f"{shown(config)} is not the configuration of a condition",
            available="; ".join(f"{name}: {', '.join(field_names(condition))}" for name, condition in _CLASSES.items()),
            hint="pass the dict from get_config()",
        )
    condition: PairCondition = cls(**{key: value for key, value in config.items() if key != "condition"})
    return condition


_CLASSES: dict[str, Any] = {cls.kind: cls for cls in (Same, Different, Within, Beyond)}
_CLASS_NAMES = ("Same", "Different", "Within", "Beyond", "Where")
