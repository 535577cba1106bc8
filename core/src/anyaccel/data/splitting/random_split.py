"""The rows of each split, from ratios and a seed or from conditions."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.arguments import is_integer, shown
from anyaccel.data.roles import Names, listed
from anyaccel.data.row_filters import positions_where
from anyaccel.data.rows import Rows
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import SplitError

_TOLERANCE = 1e-6


def split_at_random(
    rows: Rows, name: str, ratios: Mapping[str, float], *, seed: int, stratify_by: Names, group_by: Names
) -> dict[str, np.ndarray]:
    """Return positions for each split in the `n` rows called `name`; see `FeatureSet.split_random`.

    They are int64, disjoint, and together all of `range(n)`. The rows are put into the order of
    `rng.permutation(rng.key(seed, "split", name), n)` and cut in the order of `ratios`; counts are rounded by largest
    remainder, the earlier split first among equal ones. The rows of a split stay in that order.
    """
    label, keys = rows.label, None
    if stratify_by is not None or group_by is not None:
        setting = "FeatureSet.group_by" if stratify_by is None else "FeatureSet.stratify_by"
        keys = load(SETTINGS, setting)(rows, stratify_by, group_by)
    if rows.indices is not None:
        numbers, times = np.unique(rows.indices, return_counts=True)
        repeated = numbers[times > 1].tolist()
        if repeated:
            raise SplitError(
                f"{name!r} of {label!r} contains rows more than once and cannot be split at random",
                cause=f"rows {listed(repeated)} would be copied into several splits",
                hint="select each row once: take(np.unique(positions)); draw with repetition inside a split",
            )
    shares = _checked_shares(label, ratios)
    if not is_integer(seed):
        raise SplitError(f"the seed of a split of {label!r} must be an integer, got {shown(seed)}", hint="write seed=0")
    # NumPy's integers would give another stream.
    order = rng.permutation(rng.key(operator.index(seed), "split", name), len(rows))
    if keys is not None:
        splits: dict[str, np.ndarray] = keys.cut(label, order, shares)
        return splits
    counts = rounded_counts(label, len(order), shares)
    return dict(zip(counts, np.split(order, np.cumsum(list(counts.values()))[:-1]), strict=True))


def split_by_condition(
    rows: Rows, conditions: Mapping[str, Mapping[str, Any]], *, group_by: Names = None
) -> dict[str, np.ndarray]:
    """Return positions in rows for each split, int64, ascending; see `FeatureSet.split_by_condition`."""
    if not isinstance(conditions, Mapping) or not conditions:
        raise SplitError(
            f"the conditions for splits of {rows.label!r} must be a mapping by split, got {conditions!r}",
            hint="write {'train': {'column': value}, 'test': {'column': [value, value]}}",
        )
    positions = {name: positions_where(rows, f"split {name!r}", condition) for name, condition in conditions.items()}
    for first, second in combinations(positions, 2):
        both = np.intersect1d(positions[first], positions[second], assume_unique=True)
        if len(both):
            numbers = both if rows.indices is None else rows.indices[both]
            raise SplitError(
                f"splits {first!r} and {second!r} of {rows.label!r} overlap",
                cause=f"{len(both)} rows meet the conditions of both: {listed(numbers.tolist())}",
                hint="narrow the conditions until no row meets two of them",
            )
    check_groups(rows, group_by, positions)
    return positions


def check_groups(rows: Rows, group_by: Names, positions: Mapping[str, np.ndarray]) -> None:
    """Check that rows with the same values of some columns are not in two splits; None for no columns."""
    if group_by is not None:
        load(SETTINGS, "FeatureSet.group_by")(rows, group_by=group_by).check_together(rows.label, positions)


def _checked_shares(label: str, ratios: Mapping[str, float]) -> dict[str, Fraction]:
    if not isinstance(ratios, Mapping) or not ratios:
        raise SplitError(
            f"the ratios of a split of {label!r} must be a mapping by name, got {ratios!r}",
            hint="write {'train': 0.8, 'test': 0.2}",
        )
    for name, ratio in ratios.items():
        is_number = not isinstance(ratio, bool) and hasattr(ratio, "__float__") and not getattr(ratio, "ndim", None)
        if not (is_number and math.isfinite(float(ratio)) and float(ratio) > 0):
            raise SplitError(
                f"the ratio of split {name!r} of {label!r} must be a positive number, got {ratio!r}",
                cause="ratios must add up to 1",
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


def rounded_counts(label: str, n: int, ratios: Mapping[str, Fraction]) -> dict[str, int]:
    """Return the number of rows of each split out of `n`, rounded by largest remainder.

    Raises:
        SplitError: a split would be empty.
    """
    counts = {name: math.floor(ratio * n) for name, ratio in ratios.items()}
    by_remainder = sorted(ratios, key=lambda name: counts[name] - ratios[name] * n)
    for name in by_remainder[: n - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0:
            raise SplitError(
                f"split {name!r} of {label!r} would be empty",
                cause=f"{float(ratios[name]):g} of {n} rows is less than one row",
                hint="increase its ratio or leave it out",
            )
    return counts
