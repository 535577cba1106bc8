"""PairSampler and TripletSampler: draw rows together, with conditions between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from anyaccel import rng
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.rows import Rows
from anyaccel.data.samplers import EpochOrders, Sampler, check_settings, integer
from anyaccel.errors import ConfigError, SamplerError
from anyaccel_sklearn.column_codes import ComparedColumn
from anyaccel_sklearn.pair_conditions import (
    Beyond,
    Conditions,
    Different,
    PairCondition,
    Same,
    Within,
    condition_from_config,
    conditions_of,
    field_names,
)


@constructor_hints
class _ConditionSampler(Sampler):
    """Samplers by conditions, with their configurations.

    The settings named in `conditions` hold conditions; those in `optional` may hold none.
    """

    __slots__ = ()

    kind: ClassVar[str]
    conditions: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict that `from_config` reads.

        Raises:
            ConfigError: A condition is a function.
        """
        settings = {name: getattr(self, name) for name in field_names(self)}
        settings.update({name: [condition.get_config() for condition in settings[name]] for name in self.conditions})
        return {"type": self.kind, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild the sampler from the output of `get_config`.

        Raises:
            ConfigError: It is not such a configuration.
            SamplerError: A setting is invalid.
        """
        fields, needed = field_names(cls), {"batch_size", *cls.conditions} - {*cls.optional}
        settings = dict(config) if isinstance(config, Mapping) else {}
        if settings.pop("type", None) != cls.kind or set(settings) - set(fields) or not needed <= set(settings):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a {cls.kind} sampler",
                available=f"keys: type, {', '.join(fields)}",
                hint="pass the dict from get_config()",
            )
        for name in set(cls.conditions) & set(settings):
            if not isinstance(settings[name], (list, tuple)):
                problem = f"{name} of a {cls.kind} sampler must be a list of conditions, got {shown(settings[name])}"
                raise ConfigError(problem, hint="pass the dict from get_config()")
            settings[name] = [condition_from_config(config) for config in settings[name]]
        return cls(**{name: value for name, value in settings.items() if value or name not in cls.optional})


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class PairSampler(_ConditionSampler):
    """Pairs of an anchor and a partner that meet conditions; streams `anchor` and `pair`.

    In an epoch, each row with a partner is the anchor of `per_anchor` pairs; rows without partners are never anchors.
    Partners are drawn uniformly and independently among all matching rows, again in each epoch. A row is never its own
    partner. If a view holds a row twice, the two copies may be partners.

    >>> import anyaccel as aa, numpy as np
    >>> table = {"x": np.arange(6.0), "who": np.array([0, 0, 1, 1, 2, 2])}
    >>> data = aa.FeatureSet.from_dict("people", table, ["x"], tags=["who"])
    >>> sampler = aa.PairSampler(batch_size=3, match=aa.Same("who"), seed=0)
    >>> anchors, partners = sampler.epoch_orders({"people": data}).orders(0)
    >>> anchors, partners
    (array([0, 1, 2, 3, 4, 5]), array([1, 0, 3, 2, 5, 4]))

    Args:
        batch_size: Pairs per batch, at least 1.
        match: Condition between the two rows of a pair, or several that must all hold: Same, Different, Within, Beyond,
            Where.
        unlike: Conditions of a second kind of pairs, for losses that distinguish both kinds by their columns. Each row
            with such a partner is the anchor of `unlike_per_anchor` of them. None draws no such pairs.
        per_anchor: Matching pairs of each anchor.
        unlike_per_anchor: Pairs of the second kind of each anchor.
        shuffle: Whether to shuffle the pairs in every epoch; otherwise they are in the order of their anchors' rows,
            matching pairs first.
        drop_last: Whether to leave out the last batch if it is not full.
        seed: Seed of partners and orders; the same on every machine and backend.

    Raises:
        SamplerError: A setting has the wrong type or is out of range.
    """

    kind: ClassVar[str] = "pair"
    conditions: ClassVar[tuple[str, ...]] = ("match", "unlike")
    optional: ClassVar[tuple[str, ...]] = ("unlike",)
    streams: ClassVar[tuple[str, ...]] = ("anchor", "pair")

    batch_size: int
    match: tuple[PairCondition, ...]
    unlike: tuple[PairCondition, ...]
    per_anchor: int
    unlike_per_anchor: int
    shuffle: bool
    drop_last: bool
    seed: int

    def __init__(
        self,
        batch_size: int,
        match: Conditions,
        unlike: Conditions | None = None,
        *,
        per_anchor: int = 1,
        unlike_per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _set(self, batch_size=batch_size, match=conditions_of("match", match), per_anchor=per_anchor)
        _set(self, unlike=() if unlike is None else conditions_of("unlike", unlike))
        _set(self, unlike_per_anchor=unlike_per_anchor, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor", "unlike_per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the partners of every row.

        Raises:
            SamplerError: No row has a partner, or none of the second kind.
            ColumnError: A condition names a column that does not exist.
        """
        kinds = [(pair_index(self.match, rows, "partner"), self.per_anchor)]
        if self.unlike:
            kinds.append((pair_index(self.unlike, rows, "partner"), self.unlike_per_anchor))
        anchors = [np.repeat(np.flatnonzero(index.counts), times) for index, times in kinds]
        in_place = np.argsort(np.concatenate(anchors), kind="stable")
        first = np.concatenate(anchors)[in_place]

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = [rng.key(self.seed, "pairs", i, integer("epoch", epoch)) for i in range(len(kinds))]
            partners = [index.draw(key, anchor) for (index, _), key, anchor in zip(kinds, keys, anchors, strict=True)]
            return first, np.concatenate(partners)[in_place]

        return EpochOrders(len(first), orders)


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class TripletSampler(_ConditionSampler):
    """An anchor, a matching row and a row that does not match; streams `anchor`, `positive` and `negative`.

    In an epoch, each row with both is the anchor of `per_anchor` triplets; other rows are never anchors. Both are drawn
    uniformly among all rows that meet the conditions, again in each epoch. A row is never its own partner.

    Args:
        batch_size: Triplets per batch, at least 1.
        positive: Condition between anchor and positive, or several that must all hold: Same, Different, Within, Beyond,
            Where.
        negative: Condition between anchor and negative, or several.
        per_anchor: Triplets of each anchor.
        shuffle: Whether to shuffle the triplets in every epoch; otherwise they are in the order of their anchors' rows.
        drop_last: Whether to leave out the last batch if it is not full.
        seed: Seed of partners and orders; the same on every machine and backend.

    Raises:
        SamplerError: A setting has the wrong type or is out of range.
    """

    kind: ClassVar[str] = "triplet"
    conditions: ClassVar[tuple[str, ...]] = ("positive", "negative")
    streams: ClassVar[tuple[str, ...]] = ("anchor", "positive", "negative")

    batch_size: int
    positive: tuple[PairCondition, ...]
    negative: tuple[PairCondition, ...]
    per_anchor: int
    shuffle: bool
    drop_last: bool
    seed: int

    def __init__(
        self,
        batch_size: int,
        positive: Conditions,
        negative: Conditions,
        *,
        per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _set(self, batch_size=batch_size, positive=conditions_of("positive", positive), per_anchor=per_anchor)
        _set(self, negative=conditions_of("negative", negative))
        _set(self, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the positives and negatives of every row.

        Raises:
            SamplerError: No row has both.
            ColumnError: A condition names a column that does not exist.
        """
        positive = pair_index(self.positive, rows, "positive")
        negative = pair_index(self.negative, rows, "negative")
        both = np.flatnonzero((positive.counts > 0) & (negative.counts > 0))
        if not len(both):
            counts = [int(np.count_nonzero(index.counts)) for index in (positive, negative)]
            raise SamplerError(
                f"no row of {', '.join(map(repr, rows))} has both a positive and a negative",
                cause=f"{len(positive.counts)} rows; {counts[0]} have a positive, {counts[1]} a negative",
                hint="relax a condition, or use other rows",
            )
        anchors = np.repeat(both, self.per_anchor)

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = (rng.key(self.seed, "triplets", stream, integer("epoch", epoch)) for stream in self.streams[1:])
            partners = (index.draw(key, anchors) for index, key in zip((positive, negative), keys, strict=True))
            return anchors, *partners

        return EpochOrders(len(anchors), orders)


def _set(sampler: Sampler, **settings: Any) -> None:
    for name, value in settings.items():
        object.__setattr__(sampler, name, value)


# -- possible partners of each anchor, computed once and drawn from in every epoch -------------------------------------


_CELLS = 2**22  # of a mask of anchors by candidates that is in memory
_KINDS = 2048  # distinct combinations of values for which all pairs are stored


class PairIndex(ABC):
    """The partners of each row: the rows that meet some conditions, except the row itself.

    Attributes:
        counts: Number of partners of each row, int64 [n].
    """

    counts: np.ndarray

    @abstractmethod
    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return partner number `places` of each of `anchors`, int64 [k]; each number is below the anchor's count."""

    def draw(self, key: int, anchors: np.ndarray) -> np.ndarray:
        """Return a random partner for each of `anchors`, drawn uniformly: int64 [k]. All of them must have one."""
        words, counts = rng.bits(key, len(anchors)) >> np.uint64(32), self.counts[anchors].astype(np.uint64)
        return self.at(anchors, ((words * counts) >> np.uint64(32)).astype(np.int64))


def pair_index(conditions: Sequence[PairCondition], rows: Mapping[str, Rows], partner: str) -> PairIndex:
    """Return the partners by conditions that must all hold; messages call them `partner`."""
    n = len(next(iter(rows.values())))
    compared = [condition.read(rows) for condition in conditions]
    index = _built(conditions, compared, n)
    if not index.counts.any():
        pairs = zip(conditions, compared, strict=True)
        alone = ((condition, _built([condition], [column], n).counts) for condition, column in pairs)
        shares = ", ".join(f"{condition}: {int(np.count_nonzero(counts))}" for condition, counts in alone)
        raise SamplerError(
            f"no row of {', '.join(map(repr, rows))} has a {partner} by {' and '.join(map(str, conditions))}",
            cause=f"{n} rows; rows with one by {shares}",
            hint="relax a condition, or use other rows",
        )
    return index


def _built(conditions: Sequence[PairCondition], compared: Sequence[ComparedColumn], n: int) -> PairIndex:
    """Build an index by ranges of a sorted order, which costs no more than sorting.

    If the conditions are not ranges, build it by distinct values, or by masks if there are too many values.
    """
    eligible = np.flatnonzero(~np.any([column.missing for column in compared], axis=0))
    pairs = [(condition, column.at(eligible)) for condition, column in zip(conditions, compared, strict=True)]
    windows = [pair for pair in pairs if isinstance(pair[0], (Different, Within, Beyond))]
    same = [column for condition, column in pairs if isinstance(condition, Same)]
    if len(same) + len(windows) == len(pairs) and len(windows) <= 1:
        return _RangeIndex(n, eligible, same, *(windows[0] if windows else (None, None)))
    kinds = _numbered([column.values for _, column in pairs], len(eligible))
    return (_ValueIndex if kinds.max(initial=0) < _KINDS else _MaskIndex)(n, eligible, pairs, kinds)


class _RangeIndex(PairIndex):
    """Rows in an order that makes the candidates of each row a range, or a range without another one inside it."""

    def __init__(
        self,
        n: int,
        eligible: np.ndarray,
        same: Sequence[ComparedColumn],
        window: PairCondition | None,
        compared: ComparedColumn | None,
    ) -> None:
        group = _numbered([column.values for column in same], len(eligible))
        rank, least, beyond = _ranked(window, compared, len(eligible))
        width = int(beyond.max(initial=0)) + 1
        line = group * width + rank
        order = np.argsort(line, kind="stable")
        line = line[order]
        self._rows = eligible[order]
        self._place = np.zeros(n, dtype=np.int64)
        self._place[self._rows] = np.arange(len(order))
        self._first, self._stop = (np.searchsorted(line, (group[order] + i) * width) for i in (0, 1))
        self._low = np.searchsorted(line, group[order] * width + least[order])
        self._high = np.searchsorted(line, group[order] * width + beyond[order])
        self._inside = not isinstance(window, (Different, Beyond))
        near = self._high - self._low
        self.counts = np.zeros(n, dtype=np.int64)
        self.counts[self._rows] = near - 1 if self._inside else self._stop - self._first - near

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        place = self._place[anchors]
        if self._inside:  # the range without the anchor
            position = self._low[place] + places
            return np.asarray(self._rows[position + (position >= place)])
        position = self._first[place] + places
        low, high = self._low[place], self._high[place]
        return np.asarray(self._rows[position + np.where(position >= low, high - low, 0)])


def _numbered(columns: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return a number for each distinct combination of values, int64 [n]."""
    numbers = np.zeros(n, dtype=np.int64)
    for values in columns:
        codes = np.unique(values, return_inverse=True)[1].reshape(-1)
        numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)[1].reshape(-1)
    return numbers.astype(np.int64)


def _ranked(
    window: PairCondition | None, compared: ComparedColumn | None, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's rank by value, the lowest rank that is near it, and the first rank beyond."""
    if compared is None:
        zeros = np.zeros(n, dtype=np.int64)
        return zeros, zeros, zeros + 1
    values, rank = np.unique(compared.values, return_inverse=True)
    rank = rank.reshape(-1)
    if not isinstance(window, (Within, Beyond)):
        return rank, rank, rank + 1
    least, greatest = window.window(compared.values)
    return rank, np.searchsorted(values, least), np.searchsorted(values, greatest, side="right")


class _ValueIndex(PairIndex):
    """Partners by kinds of rows, which have equal values: only kinds are compared, weighted by their rows."""

    def __init__(
        self, n: int, eligible: np.ndarray, pairs: Sequence[tuple[PairCondition, ComparedColumn]], kinds: np.ndarray
    ) -> None:
        distinct, first, sizes = np.unique(kinds, return_index=True, return_counts=True)
        fits = np.ones((len(distinct), len(distinct)), dtype=bool)
        if len(distinct):
            for condition, column in pairs:
                fits &= condition.mask(column.at(first), np.arange(len(distinct)))
        self._rows = eligible[np.argsort(kinds, kind="stable")]
        self._begins, self._sizes = np.cumsum(sizes) - sizes, sizes
        self._ends = np.cumsum(fits * sizes, axis=1)  # of each kind's rows, among the candidates of a kind
        self._fits_itself = fits.diagonal()
        self._kind, self._place = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self._kind[eligible] = kinds
        self._place[self._rows] = np.arange(len(eligible))
        self.counts = np.zeros(n, dtype=np.int64)
        self.counts[eligible] = self._ends[kinds, -1] - self._fits_itself[kinds] if len(distinct) else 0

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        kinds = self._kind[anchors]
        place_itself = self._place[anchors] - self._begins[kinds] + self._ends[kinds, kinds] - self._sizes[kinds]
        wanted = places + (self._fits_itself[kinds] & (places >= place_itself))
        chosen = np.empty(len(anchors), dtype=np.int64)
        for kind in np.unique(kinds):
            of_kind = kinds == kind
            chosen[of_kind] = np.searchsorted(self._ends[kind], wanted[of_kind], side="right")
        inside = wanted - (self._ends[kinds, chosen] - self._sizes[chosen])
        return np.asarray(self._rows[self._begins[chosen] + inside])


class _MaskIndex(PairIndex):
    """Every anchor compared with every candidate, in chunks of anchors; only the counts are stored."""

    def __init__(
        self, n: int, eligible: np.ndarray, pairs: Sequence[tuple[PairCondition, ComparedColumn]], kinds: np.ndarray
    ) -> None:
        self._eligible = eligible
        self._pairs = pairs
        self._place = np.zeros(n, dtype=np.int64)
        self._place[eligible] = np.arange(len(eligible))
        self.counts = np.zeros(n, dtype=np.int64)
        for chunk, mask in self._masks(eligible):
            self.counts[eligible[chunk]] = mask.sum(axis=1)

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        partners = np.empty(len(anchors), dtype=np.int64)
        for chunk, mask in self._masks(anchors):
            begins = np.concatenate([[0], np.cumsum(mask.sum(axis=1))[:-1]])
            partners[chunk] = self._eligible[np.nonzero(mask)[1][begins + places[chunk]]]
        return partners

    def _masks(self, anchors: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield chunks of the anchors, and bool [k, candidates] of their partners."""
        size = max(1, _CELLS // max(1, len(self._eligible)))
        for start in range(0, len(anchors), size):
            positions = self._place[anchors[start : start + size]]
            mask = np.ones((len(positions), len(self._eligible)), dtype=bool)
            for condition, column in self._pairs:
                mask &= condition.mask(column, positions)
            mask[np.arange(len(positions)), positions] = False
            yield slice(start, start + size), mask
