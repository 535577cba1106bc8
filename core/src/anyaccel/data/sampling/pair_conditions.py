"""Relations: conditions between an anchor row and a candidate, as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.roles import listed
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.column_codes import Compared, coded, column_of, key_of, objects, single
from anyaccel.errors import ConfigError, SamplerError

Judge = Callable[[Any, np.ndarray], Any]
"""From an anchor's value and the values of candidates to a mask of these, bool."""


@dataclass(frozen=True, slots=True)
class PairCondition(ABC):
    """A condition on a column of any role: Same, Different, Within, Beyond or Where.

    A missing value (null or NaN) fulfils none of the first four, nor does an anchor without a value.
    """

    kind: ClassVar[str]
    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise SamplerError(f"{type(self).__name__} of {self.column!r}", available="it takes the name of a column")

    @abstractmethod
    def read(self, rows: Mapping[str, Rows]) -> Compared:
        """What is compared in some rows.

        Raises:
            ColumnError: no feature set has the column.
            SamplerError: several have it, or it cannot be compared so.
        """

    @abstractmethod
    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """Which rows fit which anchors: bool [k, n] for the numbers of `k` rows."""

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `relation_from_config` reads back.

        Raises:
            ConfigError: the relation is a function.
        """
        return {"relation": self.kind, **{name: getattr(self, name) for name in names_of_settings(self)}}


@dataclass(frozen=True, slots=True)
class Same(PairCondition):
    """The candidate has the anchor's value."""

    kind = "same"

    def __repr__(self) -> str:
        return f"Same({self.column!r})"

    def read(self, rows: Mapping[str, Rows]) -> Compared:
        """A number for each different value."""
        return coded(*column_of(self, self.column, rows))

    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """Equal values."""
        return np.asarray(compared.values[anchors, None] == compared.values[None])


@dataclass(frozen=True, slots=True)
class Different(PairCondition):
    """The candidate has another value than the anchor."""

    kind = "different"

    def __repr__(self) -> str:
        return f"Different({self.column!r})"

    def read(self, rows: Mapping[str, Rows]) -> Compared:
        """A number for each different value."""
        return coded(*column_of(self, self.column, rows))

    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """Unequal values."""
        return np.asarray(compared.values[anchors, None] != compared.values[None])


@dataclass(frozen=True, slots=True)
class _Distance(PairCondition):
    distance: float

    def __post_init__(self) -> None:
        super(_Distance, self).__post_init__()
        given: Any = self.distance
        if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not given >= 0:
            raise SamplerError(
                f"{type(self).__name__}({self.column!r}, {given!r}) has no distance", hint="give a number from 0"
            )
        object.__setattr__(self, "distance", float(given))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.column!r}, {self.distance:g})"

    def read(self, rows: Mapping[str, Rows]) -> Compared:
        """The numbers, float64."""
        its, name = column_of(self, self.column, rows)
        if not is_numeric(its.schema.field(name).type):
            raise SamplerError(
                f"{self} compares numbers, and {name!r} is {its.schema.field(name).type}",
                hint=f"use Same({name!r}), Different({name!r}), or Where({name!r}, function)",
            )
        column = its.column(name)
        numbers = (column.to_numpy() if column.null_count else single(its, name)).astype(np.float64)
        return Compared(numbers, np.isnan(numbers))

    def window(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest number that is near, for each value."""
        return values - self.distance, values + self.distance

    def _near(self, values: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        least, greatest = self.window(values[anchors, None])
        return np.logical_and(values[None] >= least, values[None] <= greatest)


@dataclass(frozen=True, slots=True, repr=False)
class Within(_Distance):
    """The candidate's number differs from the anchor's by at most `distance`."""

    kind = "within"

    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """Near values."""
        return self._near(compared.values, anchors)


@dataclass(frozen=True, slots=True, repr=False)
class Beyond(_Distance):
    """The candidate's number differs from the anchor's by more than `distance`."""

    kind = "beyond"

    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """Values that are not near."""
        return ~self._near(compared.values, anchors)


@dataclass(frozen=True, slots=True)
class Where(PairCondition):
    """A function says which candidates fit, each by its value alone.

    Args:
        column: whose values.
        function: is called with an anchor's value and an array of candidates' values, each different one once, and
            gives a mask of these. Tags that are no numbers come in object arrays.
    """

    kind = "where"
    function: Judge

    def __post_init__(self) -> None:
        super(Where, self).__post_init__()
        if not callable(self.function):
            raise SamplerError(
                f"Where({self.column!r}, {self.function!r}) has no function",
                hint=f"write Where({self.column!r}, lambda anchor, candidates: candidates > anchor)",
            )

    def __repr__(self) -> str:
        return f"Where({self.column!r}, {getattr(self.function, '__name__', 'function')})"

    def read(self, rows: Mapping[str, Rows]) -> Compared:
        """A number for each different value, and these values; none is called missing."""
        its, name = column_of(self, self.column, rows)
        values = single(its, name) if is_numeric(its.schema.field(name).type) else objects(its.column(name))
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(key_of(value), len(places)) for value in values.tolist()], dtype=np.int64)
        first = np.unique(codes, return_index=True)[1]
        return Compared(codes, np.zeros(len(codes), dtype=bool), values[first])

    def mask(self, compared: Compared, anchors: np.ndarray) -> np.ndarray:
        """What the function says, asked once for each different anchor."""
        codes, candidates = compared.values, compared.distinct
        assert candidates is not None
        chosen, back = np.unique(codes[anchors], return_inverse=True)
        table = np.stack([self._judged(candidates[code], candidates) for code in chosen])
        return np.take(table[back.reshape(-1)], codes, axis=1)

    def _judged(self, anchor: Any, candidates: np.ndarray) -> np.ndarray:
        mask = np.asarray(self.function(anchor, candidates))
        if mask.shape != candidates.shape or mask.dtype != bool:
            raise SamplerError(
                f"the function of {self} gave {mask.dtype}{list(mask.shape)}",
                available=f"{len(candidates)} candidates' values; a mask is bool{list(candidates.shape)}",
                hint="compare the array of candidates with the anchor",
            )
        return mask

    def get_config(self) -> dict[str, Any]:
        """Nothing names a function.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self} is a function and has no configuration", hint="use Same, Different, Within, Beyond")


Relations = PairCondition | Iterable[PairCondition]


def relations_of(what: str, given: Any) -> tuple[PairCondition, ...]:
    """Conditions as a tuple; one alone is one.

    Raises:
        SamplerError: none, or something else.
    """
    several = (given,) if isinstance(given, PairCondition) else given
    found = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (several,)
    for one in found:
        if not isinstance(one, PairCondition):
            raise SamplerError(
                f"{what}={one!r} is no condition between two rows",
                available=listed(_KINDS_BY_CLASS),
                hint=f"write {what}=Same('COLUMN')",
            )
    if not found:
        raise SamplerError(f"{what} has no condition", hint=f"write {what}=Same('COLUMN')")
    return found


def names_of_settings(value: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass or one of its objects."""
    return tuple(one.name for one in fields(value))


def relation_from_config(config: Any) -> PairCondition:
    """Read what `get_config` of a relation wrote.

    Raises:
        ConfigError: not such a configuration.
    """
    kind = config.get("relation") if isinstance(config, Mapping) else None
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or set(config) != {"relation", *names_of_settings(cls)}:
        raise ConfigError(
            f"{config!r} is not the configuration of a condition",
            available="; ".join(f"{name}: {', '.join(names_of_settings(one))}" for name, one in _KINDS.items()),
        )
    made: PairCondition = cls(**{key: value for key, value in config.items() if key != "relation"})
    return made


_KINDS: dict[str, Any] = {one.kind: one for one in (Same, Different, Within, Beyond)}
_KINDS_BY_CLASS = ("Same", "Different", "Within", "Beyond", "Where")
