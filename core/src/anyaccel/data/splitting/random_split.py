"""The rows of each split, from ratios and a seed or from conditions."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, SupportsIndex, cast

import numpy as np

from anyaccel import rng
from anyaccel.arguments import is_integer, shown
from anyaccel.data.roles import Names, listed
from anyaccel.data.row_filters import positions_where
from anyaccel.data.rows import Rows
from anyaccel.data.splitting.group_keys import GroupKeys, group_keys
from anyaccel.data.splitting.group_split import check_nested, check_together, split_groups
from anyaccel.errors import SplitError

_TOLERANCE = 1e-6
_DENOMINATOR = 10**6
_MANY = 20  # strata; fewer do not come from a continuous column


def split_at_random(
    rows: Rows, name: str, ratios: Mapping[str, float], *, seed: int, stratify_by: Names, group_by: Names
) -> dict[str, np.ndarray]:
    """Positions in rows called `name` for each split, int64; see `FeatureSet.split_random`."""
    strata = None if stratify_by is None else group_keys(rows, stratify_by, "stratify_by")
    groups = None if group_by is None else group_keys(rows, group_by, "group_by")
    if rows.indices is not None:
        _check_distinct(rows.label, name, rows.indices)
    return random_positions(rows.label, name, len(rows), ratios, seed=seed, strata=strata, groups=groups)


def random_positions(
    label: str,
    name: str,
    n: int,
    ratios: Mapping[str, float],
    *,
    seed: int,
    strata: GroupKeys | None = None,
    groups: GroupKeys | None = None,
) -> dict[str, np.ndarray]:
    """Positions for each split of the `n` rows called `name`: int64, disjoint, and together all of `range(n)`.

    The rows are put into the order of `rng.permutation(rng.key(seed, "split", name), n)` and cut in the order of
    `ratios`; counts are rounded by largest remainder, the earlier split first among equal ones. With strata each of
    them is cut so; groups are assigned in the order in which they come first. The rows of a split stay in that order.
    """
    shares = _checked_shares(label, ratios)
    counts = _counts(label, n, shares) if strata is None and groups is None else {}
    order = rng.permutation(rng.key(_checked_seed(label, seed), "split", name), n)
    if counts:
        return dict(zip(counts, np.split(order, np.cumsum(list(counts.values()))[:-1]), strict=True))
    split_of_row = _constrained(label, order, _simplest(shares), strata, groups)
    return {split: order[split_of_row == number] for number, split in enumerate(shares)}


def split_by_condition(
    rows: Rows, conditions: Mapping[str, Mapping[str, Any]], *, group_by: Names = None
) -> dict[str, np.ndarray]:
    """Positions in rows for each split, int64, ascending; see `FeatureSet.split_by_condition`."""
    positions = _conditional_positions(rows, conditions)
    if group_by is not None:
        check_together(rows.label, group_keys(rows, group_by, "group_by"), positions)
    return positions


def _conditional_positions(rows: Rows, conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Positions of the rows that meet the conditions of each split; no row meets those of two."""
    if not isinstance(conditions, Mapping) or not conditions:
        raise SplitError(
            f"the conditions for splits of {rows.label!r} must be a mapping by split, got {conditions!r}",
            hint="write {'train': {'column': value}, 'test': {'column': [value, value]}}",
        )
    positions = {name: positions_where(rows, f"split {name!r}", own) for name, own in conditions.items()}
    for first, second in combinations(positions, 2):
        both = np.intersect1d(positions[first], positions[second], assume_unique=True)
        if len(both):
            numbers = both if rows.indices is None else rows.indices[both]
            raise SplitError(
                f"splits {first!r} and {second!r} of {rows.label!r} overlap",
                cause=f"{len(both)} rows meet the conditions of both: {listed(numbers.tolist())}",
                hint="narrow the conditions until no row meets two of them",
            )
    return positions


def _check_distinct(label: str, name: str, indices: np.ndarray) -> None:
    """Check that no row is twice in a view that is cut at random: its copies would get into several splits."""
    rows, counts = np.unique(indices, return_counts=True)
    repeated = rows[counts > 1].tolist()
    if repeated:
        raise SplitError(
            f"{name!r} of {label!r} has rows more than once and cannot be cut at random",
            cause=f"rows {listed(repeated)}, whose copies would get into several splits",
            hint="take each row once: take(np.unique(positions)); draw with repetition inside a split",
        )


def _checked_seed(label: str, seed: object) -> int:
    """The seed as a plain int, because NumPy's integers would give another stream."""
    if not is_integer(seed):
        raise SplitError(f"the seed of a split of {label!r} must be an integer, got {shown(seed)}", hint="write seed=0")
    return operator.index(cast(SupportsIndex, seed))


def _checked_shares(label: str, ratios: Mapping[str, float]) -> dict[str, Fraction]:
    if not isinstance(ratios, Mapping) or not ratios:
        raise SplitError(
            f"the ratios of a split of {label!r} must be a mapping by name, got {ratios!r}",
            hint="write {'train': 0.8, 'test': 0.2}",
        )
    for name, ratio in ratios.items():
        if not _is_positive(ratio):
            raise SplitError(
                f"the ratio of split {name!r} of {label!r} must be a positive number, got {ratio!r}",
                cause="ratios add up to 1",
                hint="write {'train': 0.8, 'test': 0.2}",
            )
    exact = {name: Fraction(float(ratio)) for name, ratio in ratios.items()}
    total = sum(exact.values(), Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        raise SplitError(
            f"the ratios of a split of {label!r} add up to {float(total):g}, not to 1",
            cause=", ".join(f"{name}: {float(ratio):g}" for name, ratio in exact.items()),
            hint="change them, or add a split for the remaining rows" if total < 1 else "make them smaller",
        )
    return {name: ratio / total for name, ratio in exact.items()}


def _simplest(shares: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """The fractions that were meant (0.1 is 1/10, which no float is), adding up to 1."""
    least = Fraction(1, _DENOMINATOR)
    meant = {name: max(share.limit_denominator(_DENOMINATOR), least) for name, share in shares.items()}
    return {name: share / sum(meant.values()) for name, share in meant.items()}


def _constrained(
    label: str, order: np.ndarray, shares: Mapping[str, Fraction], strata: GroupKeys | None, groups: GroupKeys | None
) -> np.ndarray:
    """The number of the split of each row, int64 [n], in the order of `order`."""
    counts = np.array([list(_counts(label, len(order), shares).values())])
    stratum_of_row = np.zeros_like(order)
    if strata is not None:
        sizes, stratum_of_row = np.bincount(strata.codes), strata.codes[order]
        _check_sizes(label, "rows", sizes, shares, strata)
        counts = apportion(sizes.tolist(), list(shares.values()), counts[0].tolist())
    if groups is None:
        return split_strata(stratum_of_row, counts)
    if strata is not None:
        check_nested(label, groups, strata)
    first = np.unique(groups.codes[order], return_index=True)[1]
    _check_sizes(label, "groups", np.bincount(stratum_of_row[first]), shares, strata)
    return split_groups(stratum_of_row, groups.codes[order], counts)


def _check_sizes(
    label: str, what: str, sizes: np.ndarray, shares: Mapping[str, Fraction], strata: GroupKeys | None
) -> None:
    """Check that every stratum has enough rows (or groups) for all splits to get one."""
    smallest = int(sizes.argmin())
    if sizes[smallest] >= len(shares):
        return
    if strata is not None and len(sizes) >= _MANY and sizes.sum() < len(sizes) * max(2, len(shares)):
        raise _continuous(label, sizes, strata)
    stratum = "" if strata is None else f"stratum {strata.shown(smallest)} of "
    others = "" if strata is None else f"; strata too small: {int((sizes < len(shares)).sum())} of {len(sizes)}"
    raise SplitError(
        f"{stratum}{label!r} cannot be cut into {len(shares)} splits",
        cause=f"{what}: {int(sizes[smallest])}; splits: {listed(shares)}{others}",
        hint="leave its rows out with filter(), or join it with another stratum" if stratum else "make fewer splits",
    )


def _continuous(label: str, sizes: np.ndarray, strata: GroupKeys) -> SplitError:
    names = [name for name, _, _ in strata.columns]
    return SplitError(
        f"{label!r} cannot be stratified by {listed(names)}: {len(sizes)} different values in {int(sizes.sum())} rows",
        cause="every stratum needs a row for each split",
        hint="stratify by bins of it, such as a tag with pandas.qcut(values, 10, labels=False)",
    )


def _is_positive(ratio: Any) -> bool:
    if isinstance(ratio, bool) or not hasattr(ratio, "__float__") or getattr(ratio, "ndim", None):
        return False
    return math.isfinite(float(ratio)) and float(ratio) > 0


def _counts(label: str, n: int, ratios: Mapping[str, Fraction]) -> dict[str, int]:
    counts = {name: math.floor(ratio * n) for name, ratio in ratios.items()}
    by_remainder = sorted(ratios, key=lambda name: counts[name] - ratios[name] * n)
    for name in by_remainder[: n - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0:
            raise SplitError(
                f"split {name!r} of {label!r} would be empty",
                cause=f"{n} rows, of which {float(ratios[name]):g} is less than one",
                hint="make its ratio larger or leave it out",
            )
    return counts


# -- how many rows of each stratum go into each split, so that strata and splits keep the ratios -----------------------


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
