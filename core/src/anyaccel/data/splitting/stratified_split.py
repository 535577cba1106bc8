"""Strata: how many rows of each stratum go into each split, so that strata and whole keep the ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np


def apportion(sizes: Sequence[int], shares: Sequence[Fraction], totals: Sequence[int]) -> np.ndarray:
    """Rows by stratum and split, int64 [strata, splits].

    Each is a stratum's size times a split's share, rounded up or down, and so is each sum over all strata. What
    rounding leaves over goes where most is owed from the strata before. The sums are `totals` wherever any such
    rounding gives them.

    Args:
        sizes: rows of each stratum.
        shares: of the splits, adding up to 1.
        totals: rows of each split, each its share of all rows rounded up or down, adding up to all rows.
    """
    ideal = [[share * size for share in shares] for size in sizes]
    base = np.array([[math.floor(one) for one in row] for row in ideal], dtype=np.int64)
    open_ = np.array([[one.denominator != 1 for one in row] for row in ideal], dtype=bool)
    extra = _handed_out(sizes, ideal, base, open_)
    given, n = base.sum(axis=0), sum(sizes)
    low = np.array([math.floor(share * n) for share in shares]) - given
    high = np.array([math.ceil(share * n) for share in shares]) - given
    _settle(extra, open_, low, high, np.asarray(totals) - given)
    return np.asarray(base + extra)


def spread(within: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The split of each row, int64 [n]: the first rows of a stratum go into the first split, and so on.

    Args:
        within: stratum of each row, int [n].
        counts: rows by stratum and split, int [strata, splits].
    """
    parts = np.empty(len(within), np.int64)
    splits = np.tile(np.arange(counts.shape[1]), len(counts))
    parts[np.argsort(within, kind="stable")] = np.repeat(splits, counts.reshape(-1))
    return parts


def _handed_out(
    sizes: Sequence[int], ideal: Sequence[Sequence[Fraction]], base: np.ndarray, open_: np.ndarray
) -> np.ndarray:
    """Which counts are rounded up, bool [strata, splits], so that every stratum has all its rows."""
    extra = np.zeros(base.shape, dtype=bool)
    owed = [Fraction(0)] * base.shape[1]
    for stratum, size in enumerate(sizes):
        owed = [due + one - math.floor(one) for due, one in zip(owed, ideal[stratum], strict=True)]
        by_need = sorted(np.flatnonzero(open_[stratum]).tolist(), key=lambda split: -owed[split])
        for split in by_need[: size - int(base[stratum].sum())]:
            extra[stratum, split] = True
            owed[split] -= 1
    return extra


def _settle(extra: np.ndarray, open_: np.ndarray, low: np.ndarray, high: np.ndarray, wanted: np.ndarray) -> None:
    """Exchange what is rounded up until each split has `low` to `high` of it, and `wanted` where that can be had.

    The bounds can always be met: the unrounded shares meet them, and a table with whole sums that can be rounded at
    all can be rounded so.
    """
    while _shift(extra, open_, extra.sum(axis=0) > high, extra.sum(axis=0) < high):
        pass
    while _shift(extra, open_, extra.sum(axis=0) > low, extra.sum(axis=0) < low):
        pass
    while _shift(extra, open_, extra.sum(axis=0) > wanted, extra.sum(axis=0) < wanted):
        pass


def _shift(extra: np.ndarray, open_: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
    """Take one row from a split of `starts` and give one to a split of `ends`, by way of others if need be."""
    if not starts.any() or not ends.any():
        return False
    free = open_ & ~extra
    path = _path((extra.T.astype(np.int64) @ free.astype(np.int64)) > 0, starts, ends)
    for giver, taker in pairwise(path):
        stratum = int(np.flatnonzero(extra[:, giver] & open_[:, taker] & ~extra[:, taker])[0])
        extra[stratum, giver], extra[stratum, taker] = False, True
    return bool(path)


def _path(steps: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """The shortest way along `steps` (bool [from, to]) from a start to an end, empty if there is none."""
    ways = [[int(start)] for start in np.flatnonzero(starts)]
    seen = set(np.flatnonzero(starts).tolist())
    for way in ways:  # grows while it is walked: breadth first
        if ends[way[-1]]:
            return way
        new = [split for split in np.flatnonzero(steps[way[-1]]).tolist() if split not in seen]
        seen.update(new)
        ways += [[*way, split] for split in new]
    return []
