"""Splits: how many rows each gets, and which, from ratios and a seed."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from anyaccel import rng
from anyaccel.errors import SplitError

_TOLERANCE = 1e-6


def cut(label: str, name: str, n: int, ratios: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Positions for each split of the `n` rows called `name`: int64, disjoint, and together all of `range(n)`.

    The rows are put into the order of `rng.permutation(rng.key(seed, "split", name), n)` and cut in the order of
    `ratios`; their numbers are rounded by largest remainder, the earlier split first among equal ones.

    Raises:
        SplitError: ratios that are no numbers or do not add up, an empty split, or a seed that is no integer.
    """
    counts = _counts(label, n, _checked(label, ratios))
    order = rng.permutation(rng.key(checked_seed(label, seed), "split", name), n)
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(order, ends[:-1]), strict=True))


def checked_seed(label: str, seed: object) -> int:
    """The seed as a plain int, because NumPy's integers would name another stream.

    Raises:
        SplitError: it is no integer.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise SplitError(f"the seed of a split of {label!r} is {seed!r}", there="seeds are integers")
    return operator.index(seed)


def _checked(label: str, ratios: Mapping[str, float]) -> dict[str, Fraction]:
    if not isinstance(ratios, Mapping) or not ratios:
        raise SplitError(
            f"the ratios of a split of {label!r} are {ratios!r}", remedy="write {'train': 0.8, 'test': 0.2}"
        )
    for name, ratio in ratios.items():
        if isinstance(ratio, bool) or not hasattr(ratio, "__float__") or not _is_positive(float(ratio)):
            raise SplitError(
                f"split {name!r} of {label!r} has the ratio {ratio!r}",
                there="ratios are positive numbers that add up to 1",
                remedy="write {'train': 0.8, 'test': 0.2}",
            )
    exact = {name: Fraction(float(ratio)) for name, ratio in ratios.items()}
    total = sum(exact.values(), Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        raise SplitError(
            f"the ratios of a split of {label!r} add up to {float(total):g}, not to 1",
            there=", ".join(f"{name}: {float(ratio):g}" for name, ratio in exact.items()),
            remedy="change them, or add a split for the remaining rows" if total < 1 else "make them smaller",
        )
    return {name: ratio / total for name, ratio in exact.items()}


def _is_positive(ratio: float) -> bool:
    return math.isfinite(ratio) and ratio > 0


def _counts(label: str, n: int, ratios: Mapping[str, Fraction]) -> dict[str, int]:
    counts = {name: math.floor(ratio * n) for name, ratio in ratios.items()}
    by_remainder = sorted(ratios, key=lambda name: counts[name] - ratios[name] * n)
    for name in by_remainder[: n - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0:
            raise SplitError(
                f"split {name!r} of {label!r} would be empty",
                there=f"{n} rows, of which {float(ratios[name]):g} is less than one",
                remedy="make its ratio larger or leave it out",
            )
    return counts
