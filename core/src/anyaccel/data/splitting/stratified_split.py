"""How many rows of each stratum go into each split, so that strata and splits keep the ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np


def apportion(sizes: Sequence[int], shares: Sequence[Fraction], totals: Sequence[int]) -> np.ndarray:
    """Rows by stratum and split, int64 [strata, splits].

    Each is a stratum's size times a split's share, rounded up or down, and so is each sum over all strata. Rows left
    over by rounding go to the splits to which the strata before owe most. The sums are `totals` whenever some such
    rounding gives them.

    Args:
        sizes: rows of each stratum.
        shares: of the splits, adding up to 1.
        totals: rows of each split, each its share of all rows rounded up or down, adding up to all rows.
    """
    ideal = [[share * size for share in shares] for size in sizes]
    base = np.array([[math.floor(count) for count in row] for row in ideal], dtype=np.int64)
    fractional = np.array([[count.denominator != 1 for count in row] for row in ideal], dtype=bool)
    rounded_up = _round_up(sizes, ideal, base, fractional)
    given, n = base.sum(axis=0), sum(sizes)
    low = np.array([math.floor(share * n) for share in shares]) - given
    high = np.array([math.ceil(share * n) for share in shares]) - given
    _settle(rounded_up, fractional, low, high, np.asarray(totals) - given)
    return np.asarray(base + rounded_up)


def split_strata(strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The split of each row, int64 [n]: the first rows of a stratum go into the first split, and so on.

    Args:
        strata: stratum of each row, int [n].
        counts: rows by stratum and split, int [strata, splits].
    """
    split_of_row = np.empty(len(strata), np.int64)
    splits = np.tile(np.arange(counts.shape[1]), len(counts))
    split_of_row[np.argsort(strata, kind="stable")] = np.repeat(splits, counts.reshape(-1))
    return split_of_row


def _round_up(
    sizes: Sequence[int], ideal: Sequence[Sequence[Fraction]], base: np.ndarray, fractional: np.ndarray
) -> np.ndarray:
    """Which counts are rounded up, bool [strata, splits], so that every stratum has all its rows."""
    rounded_up = np.zeros(base.shape, dtype=bool)
    owed = [Fraction(0)] * base.shape[1]
    for stratum, size in enumerate(sizes):
        owed = [due + count - math.floor(count) for due, count in zip(owed, ideal[stratum], strict=True)]
        by_need = sorted(np.flatnonzero(fractional[stratum]).tolist(), key=lambda split: -owed[split])
        for split in by_need[: size - int(base[stratum].sum())]:
            rounded_up[stratum, split] = True
            owed[split] -= 1
    return rounded_up


def _settle(
    rounded_up: np.ndarray, fractional: np.ndarray, low: np.ndarray, high: np.ndarray, wanted: np.ndarray
) -> None:
    """Exchange counts rounded up until each split has `low` to `high` of them, and `wanted` if possible.

    The bounds can always be met: the unrounded shares meet them, and a table with whole sums that can be rounded at
    all can be rounded so.
    """
    for bound in (high, low, wanted):
        while _shift(rounded_up, fractional, rounded_up.sum(axis=0) > bound, rounded_up.sum(axis=0) < bound):
            pass


def _shift(rounded_up: np.ndarray, fractional: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
    """Take one row from a split of `starts` and give one to a split of `ends`, by way of others if necessary."""
    if not starts.any() or not ends.any():
        return False
    free = fractional & ~rounded_up
    path = _path((rounded_up.T.astype(np.int64) @ free.astype(np.int64)) > 0, starts, ends)
    for giver, taker in pairwise(path):
        stratum = int(np.flatnonzero(rounded_up[:, giver] & fractional[:, taker] & ~rounded_up[:, taker])[0])
        rounded_up[stratum, giver], rounded_up[stratum, taker] = False, True
    return bool(path)


def _path(steps: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """The shortest path along `steps` (bool [from, to]) from a start to an end, empty if there is none."""
    paths = [[int(start)] for start in np.flatnonzero(starts)]
    seen = set(np.flatnonzero(starts).tolist())
    for path in paths:  # grows during the loop: breadth first
        if ends[path[-1]]:
            return path
        new = [split for split in np.flatnonzero(steps[path[-1]]).tolist() if split not in seen]
        seen.update(new)
        paths += [[*path, split] for split in new]
    return []
