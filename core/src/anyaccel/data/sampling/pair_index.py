"""Partners: which rows an anchor may be drawn together with, found once and drawn from in every epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anyaccel import rng
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.column_codes import Compared
from anyaccel.data.sampling.pair_conditions import Beyond, Different, PairCondition, Same, Within
from anyaccel.errors import SamplerError

_CELLS = 2**22  # of a mask of anchors by candidates that is held at once
_KINDS = 2048  # different combinations of values for which every pair of them is kept


class Partners(ABC):
    """The partners of each row: the rows that fulfil some relations, but for the row itself.

    Attributes:
        counts: how many each row has, int64 [n].
    """

    counts: np.ndarray

    @abstractmethod
    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """For each of `anchors` its partner number `places`, int64 [k]; each place is below the anchor's count."""

    def drawn(self, key: int, anchors: np.ndarray) -> np.ndarray:
        """A partner for each of `anchors`, uniformly: int64 [k]. All of them must have one."""
        words, counts = rng.bits(key, len(anchors)) >> np.uint64(32), self.counts[anchors].astype(np.uint64)
        return self.at(anchors, ((words * counts) >> np.uint64(32)).astype(np.int64))


def partners_of(relations: Sequence[PairCondition], rows: Mapping[str, Rows], what: str) -> Partners:
    """The partners by some relations, all of which must hold.

    Raises:
        SamplerError: no row has one; names the relations, and how many rows have one by each alone.
        ColumnError: a column that is not there.
    """
    n = len(next(iter(rows.values())))
    compared = [one.read(rows) for one in relations]
    found = _partners(relations, compared, n)
    if not found.counts.any():
        alone = [
            int(np.count_nonzero(_partners([one], [its], n).counts))
            for one, its in zip(relations, compared, strict=True)
        ]
        shares = ", ".join(f"{one}: {count}" for one, count in zip(relations, alone, strict=True))
        raise SamplerError(
            f"no row of {', '.join(map(repr, rows))} has a {what} by {' and '.join(map(str, relations))}",
            available=f"{n} rows; of these have one by {shares}",
            hint="loosen a condition, or take other rows",
        )
    return found


def _partners(relations: Sequence[PairCondition], compared: Sequence[Compared], n: int) -> Partners:
    """By ranges of a sorted order, which takes no more than sorting; where relations are no ranges, by kinds of rows,
    and by masks where there are too many of these."""
    eligible = np.flatnonzero(~np.any([its.missing for its in compared], axis=0))
    pairs = [(one, its.at(eligible)) for one, its in zip(relations, compared, strict=True)]
    windows = [pair for pair in pairs if isinstance(pair[0], (Different, Within, Beyond))]
    same = [its for one, its in pairs if isinstance(one, Same)]
    if len(same) + len(windows) == len(pairs) and len(windows) <= 1:
        return _Ranges(n, eligible, same, *(windows[0] if windows else (None, None)))
    kinds = _numbered([its.values for _, its in pairs], len(eligible))
    return (_Kinds if kinds.max(initial=0) < _KINDS else _Masks)(n, eligible, pairs, kinds)


class _Ranges(Partners):
    """Rows sorted so that the candidates of each are a range, or a range but for another one inside it."""

    def __init__(
        self, n: int, eligible: np.ndarray, same: Sequence[Compared], window: PairCondition | None, its: Compared | None
    ) -> None:
        group = _numbered([one.values for one in same], len(eligible))
        rank, least, beyond = _ranked(window, its, len(eligible))
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
        own = self._place[anchors]
        if self._inside:  # all of the range but the anchor
            found = self._low[own] + places
            return np.asarray(self._rows[found + (found >= own)])
        found = self._first[own] + places
        low, high = self._low[own], self._high[own]
        return np.asarray(self._rows[found + np.where(found >= low, high - low, 0)])


def _numbered(columns: Sequence[np.ndarray], n: int) -> np.ndarray:
    """A number for each different combination of values, int64 [n]."""
    found = np.zeros(n, dtype=np.int64)
    for values in columns:
        codes = np.unique(values, return_inverse=True)[1].reshape(-1)
        found = np.unique(found * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)[1].reshape(-1)
    return found.astype(np.int64)


def _ranked(window: PairCondition | None, its: Compared | None, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's rank by value, the least rank that is near it, and the first rank beyond."""
    if its is None:
        zeros = np.zeros(n, dtype=np.int64)
        return zeros, zeros, zeros + 1
    values, rank = np.unique(its.values, return_inverse=True)
    rank = rank.reshape(-1)
    if not isinstance(window, (Within, Beyond)):
        return rank, rank, rank + 1
    least, greatest = window.window(its.values)
    return rank, np.searchsorted(values, least), np.searchsorted(values, greatest, side="right")


class _Kinds(Partners):
    """Rows of equal values are of one kind: only kinds are compared, each with each, and counted by their rows."""

    def __init__(
        self, n: int, eligible: np.ndarray, pairs: Sequence[tuple[PairCondition, Compared]], kinds: np.ndarray
    ) -> None:
        found, first, sizes = np.unique(kinds, return_index=True, return_counts=True)
        fits = np.ones((len(found), len(found)), dtype=bool)
        for relation, its in pairs if len(found) else ():
            fits &= relation.mask(its.at(first), np.arange(len(found)))
        self._rows = eligible[np.argsort(kinds, kind="stable")]
        self._begins, self._sizes = np.cumsum(sizes) - sizes, sizes
        self._ends = np.cumsum(fits * sizes, axis=1)  # of each kind's rows, among the candidates of a kind
        self._itself = fits.diagonal()
        self._kind, self._place = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self._kind[eligible] = kinds
        self._place[self._rows] = np.arange(len(eligible))
        self.counts = np.zeros(n, dtype=np.int64)
        self.counts[eligible] = self._ends[kinds, -1] - self._itself[kinds] if len(found) else 0

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        kinds = self._kind[anchors]
        own = self._place[anchors] - self._begins[kinds] + self._ends[kinds, kinds] - self._sizes[kinds]
        wanted = places + (self._itself[kinds] & (places >= own))
        chosen = np.empty(len(anchors), dtype=np.int64)
        for kind in np.unique(kinds):
            its = kinds == kind
            chosen[its] = np.searchsorted(self._ends[kind], wanted[its], side="right")
        inside = wanted - (self._ends[kinds, chosen] - self._sizes[chosen])
        return np.asarray(self._rows[self._begins[chosen] + inside])


class _Masks(Partners):
    """Every anchor against every candidate, some anchors at a time; nothing of it is kept but the counts."""

    def __init__(
        self, n: int, eligible: np.ndarray, pairs: Sequence[tuple[PairCondition, Compared]], kinds: np.ndarray
    ) -> None:
        self._eligible = eligible
        self._pairs = pairs
        self._place = np.zeros(n, dtype=np.int64)
        self._place[eligible] = np.arange(len(eligible))
        self.counts = np.zeros(n, dtype=np.int64)
        for some, mask in self._masks(eligible):
            self.counts[eligible[some]] = mask.sum(axis=1)

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        found = np.empty(len(anchors), dtype=np.int64)
        for some, mask in self._masks(anchors):
            begins = np.concatenate([[0], np.cumsum(mask.sum(axis=1))[:-1]])
            found[some] = self._eligible[np.nonzero(mask)[1][begins + places[some]]]
        return found

    def _masks(self, anchors: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Some of the anchors, and bool [k, candidates] of their partners."""
        size = max(1, _CELLS // max(1, len(self._eligible)))
        for start in range(0, len(anchors), size):
            own = self._place[anchors[start : start + size]]
            mask = np.ones((len(own), len(self._eligible)), dtype=bool)
            for relation, its in self._pairs:
                mask &= relation.mask(its, own)
            mask[np.arange(len(own)), own] = False
            yield slice(start, start + size), mask
