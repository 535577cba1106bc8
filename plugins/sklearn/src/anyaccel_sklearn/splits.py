"""Splits by strata, which are split in equal proportions, and by groups, which stay together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_numeric
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.data.rows import Rows
from anyaccel.data.splitting.random_split import rounded_counts
from anyaccel.errors import ColumnError, SplitError


@dataclass(frozen=True)
class GroupKeys:
    """Groups of rows with the same values in some columns.

    Attributes:
        codes: Group number of each row, int64 [n], from 0; rows with the same number have the same values.
        columns: Name of each column, its distinct values, and the index of the value for each code, int64 [len(self)].
    """

    codes: np.ndarray
    columns: tuple[tuple[str, Any, np.ndarray], ...]

    def __len__(self) -> int:
        return len(self.columns[0][2])

    def shown(self, code: int) -> str:
        """Return the values of a code for a message: `label=3, who='x'`."""
        return ", ".join(f"{name}={_shown(values[int(which[code])])}" for name, values, which in self.columns)


def group_keys(rows: Rows, by: Names, argument: str) -> GroupKeys:
    """Group rows by one or several columns, of any role and any type with scalar values.

    Args:
        rows: Rows with these columns.
        by: Name of the column, or several.
        argument: Argument with the names, for messages.
    """
    names = names_of(by)
    if not names:
        raise SplitError(f"{argument} of {rows.label!r} names no column", hint=f"name one, or leave {argument} out")
    encoded = [_encoded(rows, name, argument) for name in names]
    codes = np.zeros(len(rows), np.int64)
    for column_codes, values in encoded:
        # Renumbered after each column, so that the product stays small.
        codes = np.unique(codes * len(values) + column_codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # Numbered by first row, so that neither the order of the names nor that of the values matters.
    first = np.unique(codes, return_index=True)[1]
    turn = np.argsort(first)
    codes, first = np.argsort(turn)[codes], first[turn]
    columns = [(name, values, column_codes[first]) for name, (column_codes, values) in zip(names, encoded, strict=True)]
    return GroupKeys(codes, tuple(columns))


def _encoded(rows: Rows, name: str, argument: str) -> tuple[np.ndarray, Any]:
    """Return a code for each row, int64 [n], and the values by code."""
    rows.role(name)
    column = rows.column(name)
    _check_values(name, column.is_null().to_numpy(), argument)
    if not is_numeric(column.type):
        if pa.types.is_dictionary(column.type):
            decoded = column.cast(column.type.value_type)
        elif isinstance(column.type, pa.BaseExtensionType):
            decoded = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        else:
            decoded = column
        array = contiguous(decoded)
        try:
            encoded = array.dictionary_encode()
        except pa.ArrowNotImplementedError as error:
            raise _not_scalar(name, f"values of type {array.type}", argument) from error
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    if rows.spec(name).shape:
        raise _not_scalar(name, f"samples of shape {list(rows.spec(name).shape)}", argument)
    array = rows.array(name)
    _check_values(name, np.asarray(array != array), argument)
    values, codes = np.unique(array, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), values


def _check_values(name: str, missing: np.ndarray, argument: str) -> None:
    if missing.any():
        raise ColumnError(
            f"{argument} cannot use column {name!r}, which has no value in {int(missing.sum())} of {len(missing)} "
            f"rows, the first in row {int(missing.argmax())}",
            cause="a null or NaN does not assign the row to a group",
            hint="fill these places, or leave the rows out with filter() first",
        )


def _not_scalar(name: str, found: str, argument: str) -> ColumnError:
    return ColumnError(
        f"{argument} cannot use column {name!r}: it has {found}",
        cause="strata and groups must be scalars: numbers, text, dates and similar types",
        hint="add a column with one scalar per row, such as the name of a class",
    )


def _shown(value: Any) -> str:
    if not isinstance(value, pa.Scalar):
        return repr(value.item())
    try:
        return repr(value.as_py())
    except ValueError:  # nanoseconds, which Python's own times do not support
        return str(pa.array([value]).cast(pa.string())[0])


# -- splits ------------------------------------------------------------------------------------------------------------

_DENOMINATOR = 10**6
_MANY = 20  # strata; a continuous column has more than this


class SplitConstraints:
    """The constraints of a split: `stratify_by` and `group_by` of a FeatureSet.

    Separate formulas: scikit-learn's splitters draw from other random streams, so splits would differ from those of
    0.1. They also create two parts instead of several, without adjusting groups to the ratios.

    Args:
        rows: Rows to split.
        stratify_by, group_by: Names of columns, or None.

    Raises:
        SplitError, ColumnError: A column does not exist, has nulls or NaN, or is not scalar.
    """

    def __init__(self, rows: Rows, stratify_by: Names = None, group_by: Names = None) -> None:
        self._strata = None if stratify_by is None else group_keys(rows, stratify_by, "stratify_by")
        self._groups = None if group_by is None else group_keys(rows, group_by, "group_by")

    def cut(self, label: str, order: np.ndarray, shares: Mapping[str, Fraction]) -> dict[str, np.ndarray]:
        """Return the positions of each split, in the order of `order`.

        Each stratum is split by the fractions; groups are assigned in the order of their first rows.

        Args:
            label: Label of the feature set.
            order: Positions of the rows, int64 [n].
            shares: Fractions of the splits, adding up to 1.

        Raises:
            SplitError: A stratum is too small, there are too few groups, or a group is in two strata.
        """
        least = Fraction(1, _DENOMINATOR)  # 0.1 is meant as 1/10, not as the nearest float
        meant = {name: max(share.limit_denominator(_DENOMINATOR), least) for name, share in shares.items()}
        shares = {name: share / sum(meant.values()) for name, share in meant.items()}
        counts = np.array([list(rounded_counts(label, len(order), shares).values())])
        stratum_of_row = np.zeros_like(order)
        if self._strata is not None:
            sizes, stratum_of_row = np.bincount(self._strata.codes), self._strata.codes[order]
            _check_sizes(label, "rows", sizes, shares, self._strata)
            counts = apportion(sizes.tolist(), list(shares.values()), counts[0].tolist())
        if self._groups is None:
            split_of_row = split_strata(stratum_of_row, counts)
        else:
            if self._strata is not None:
                # Check that all rows of a group are in one stratum
                strata = self._strata
                pairs = np.unique(self._groups.codes * len(strata) + strata.codes)
                group_of_pair = pairs // len(strata)
                crossing = np.flatnonzero(group_of_pair[1:] == group_of_pair[:-1])
                if len(crossing):
                    one, other = (int(pair) % len(strata) for pair in pairs[crossing[0] : crossing[0] + 2])
                    raise SplitError(
                        f"group {self._groups.shown(int(group_of_pair[crossing[0]]))} of {label!r} has rows of two "
                        "strata",
                        cause=f"{strata.shown(one)} and {strata.shown(other)}",
                        hint="stratify by a value that is the same in all rows of a group, or split by groups alone",
                    )
            first = np.unique(self._groups.codes[order], return_index=True)[1]
            _check_sizes(label, "groups", np.bincount(stratum_of_row[first]), shares, self._strata)
            split_of_row = split_groups(stratum_of_row, self._groups.codes[order], counts)
        return {split: order[split_of_row == number] for number, split in enumerate(shares)}

    def check_together(self, label: str, positions: Mapping[str, np.ndarray]) -> None:
        """Check that no group has rows in two splits; a group may have rows in no split.

        Args:
            label: Label of the feature set.
            positions: Positions of each split, int [k] into its rows.

        Raises:
            SplitError: A group has rows in two splits; the message names it.
        """
        groups = self._groups
        if groups is None:
            return
        names, codes_by_split = list(positions), [groups.codes[rows] for rows in positions.values()]
        codes = np.concatenate(codes_by_split)
        splits = np.repeat(np.arange(len(names)), [len(split_codes) for split_codes in codes_by_split])
        pairs, counts = np.unique(codes * len(names) + splits, return_counts=True)
        group_of_pair = pairs // len(names)
        crossing = group_of_pair[1:][group_of_pair[1:] == group_of_pair[:-1]]
        if len(crossing):
            inside = group_of_pair == crossing[0]
            rows_by_split = zip(counts[inside].tolist(), (pairs[inside] % len(names)).tolist(), strict=True)
            raise SplitError(
                f"group {groups.shown(int(crossing[0]))} of {label!r} crosses splits",
                cause=", ".join(f"{count} of its rows in {names[split]!r}" for count, split in rows_by_split),
                hint="put all rows of a group into one split; use split_random(group_by=...)",
            )


def split_groups(strata: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the split of each row, int64 [n], equal for all rows of a group, with about `counts` rows by stratum.

    Args:
        strata: Stratum of each row, int [n], the same for all rows of a group.
        groups: Group of each row, int [n], 0 to groups - 1; groups are assigned in the order of their first rows.
        counts: Rows by stratum and split, int [strata, splits]; a stratum has at least as many groups as splits.
    """
    first, sizes = np.unique(groups, return_index=True)[1], np.bincount(groups)
    turn = np.argsort(first)
    turn = turn[np.argsort(strata[first[turn]], kind="stable")]
    ends = np.cumsum(np.bincount(strata[first]))
    split_of_group = np.empty(len(sizes), np.int64)
    for members, wanted in zip(np.split(turn, ends[:-1]), counts.tolist(), strict=True):
        split_of_group[members] = assign_groups(sizes[members], wanted)
    return np.asarray(split_of_group[groups])


def assign_groups(sizes: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Return the split of each group, int64 [groups], so that the splits have about `wanted` rows.

    Each group in turn goes to the split that lacks most rows. Then single groups are moved, and pairs of groups
    exchanged between two splits, while that reduces the sum of squared differences. Every split with `wanted` rows
    keeps at least one group.

    Args:
        sizes: Rows of each group, int [groups]; at least as many groups as splits.
        wanted: Rows of each split, adding up to those of all groups.
    """
    lacking, empty = list(wanted), [split for split, count in enumerate(wanted) if count]
    splits = np.zeros(len(sizes), np.int64)
    for group, size in enumerate(sizes.tolist()):
        choices = empty if len(sizes) - group <= len(empty) else range(len(wanted))
        splits[group] = split = max(choices, key=lambda choice: lacking[choice])
        lacking[split] -= size
        empty = [other for other in empty if other != split]
    excess = np.bincount(splits, weights=sizes, minlength=len(wanted)).astype(np.int64) - np.asarray(wanted)
    while (swap := _best_swap(sizes, splits, excess, wanted)) is not None:
        giver, taker, large, small = swap
        for source, target, size in ((giver, taker, large), (taker, giver, small)):
            if size:
                group = int(np.flatnonzero((splits == source) & (sizes == size))[-1])
                splits[group] = target
                excess[source] -= size
                excess[target] += size
    return splits


def _best_swap(
    sizes: np.ndarray, splits: np.ndarray, excess: np.ndarray, wanted: Sequence[int]
) -> tuple[int, int, int, int] | None:
    """Return giver, taker, size of the group that moves, and of the group that moves in exchange (0: none)."""
    best_gain, best = 0, None
    held = [np.unique(sizes[splits == split]) for split in range(len(wanted))]
    has_one = [int((splits == split).sum()) < 2 and count > 0 for split, count in enumerate(wanted)]
    for giver, taker in permutations(range(len(wanted)), 2):
        back = held[taker] if has_one[giver] else np.concatenate([[0], held[taker]])
        gap = int(excess[giver] - excess[taker])
        if gap <= 0 or not len(held[giver]) or not len(back):
            continue
        large = np.repeat(held[giver], 2)
        near = np.searchsorted(back, held[giver] - gap / 2)
        small = back[np.clip(np.stack([near - 1, near], axis=1).reshape(-1), 0, len(back) - 1)]
        gain = (large - small) * (gap - (large - small))
        if int(gain.max()) > best_gain:
            index = int(gain.argmax())
            best_gain, best = int(gain[index]), (giver, taker, int(large[index]), int(small[index]))
    return best


def _check_sizes(
    label: str, what: str, sizes: np.ndarray, shares: Mapping[str, Fraction], strata: GroupKeys | None
) -> None:
    """Check that every stratum has enough rows (or groups) for all splits to get one."""
    smallest = int(sizes.argmin())
    if sizes[smallest] >= len(shares):
        return
    if strata is not None and len(sizes) >= _MANY and sizes.sum() < len(sizes) * max(2, len(shares)):
        names = [name for name, _, _ in strata.columns]
        raise SplitError(
            f"{label!r} cannot be stratified by {listed(names)}: {len(sizes)} different values in {int(sizes.sum())} "
            "rows",
            cause="every stratum needs a row for each split",
            hint="stratify by bins of the values, such as a tag with pandas.qcut(values, 10, labels=False)",
        )
    stratum = "" if strata is None else f"stratum {strata.shown(smallest)} of "
    others = "" if strata is None else f"; strata too small: {int((sizes < len(shares)).sum())} of {len(sizes)}"
    raise SplitError(
        f"{stratum}{label!r} cannot be cut into {len(shares)} splits",
        cause=f"{what}: {int(sizes[smallest])}; splits: {listed(shares)}{others}",
        hint="leave its rows out, with filter() or pandas: table[table[COLUMN] != VALUE], or join it with another "
        "stratum"
        if stratum
        else "use fewer splits, or give rows of more groups",
    )


def apportion(sizes: Sequence[int], shares: Sequence[Fraction], totals: Sequence[int]) -> np.ndarray:
    """Return the rows by stratum and split, int64 [strata, splits].

    Each is a stratum's size times a split's fraction, rounded up or down, and so is each sum over all strata. Remaining
    rows after rounding go to the splits that earlier strata have rounded down most. The sums are `totals` if any such
    rounding reaches them.

    Args:
        sizes: Rows of each stratum.
        shares: Fractions of the splits, adding up to 1.
        totals: Rows of each split, its fraction of all rows rounded up or down, adding up to all rows.
    """
    ideal = [[share * size for share in shares] for size in sizes]
    base = np.array([[math.floor(count) for count in row] for row in ideal], dtype=np.int64)
    fractional = np.array([[count.denominator != 1 for count in row] for row in ideal], dtype=bool)
    rounded_up = np.zeros(base.shape, dtype=bool)
    owed = [Fraction(0)] * base.shape[1]
    for stratum, size in enumerate(sizes):
        owed = [due + count - math.floor(count) for due, count in zip(owed, ideal[stratum], strict=True)]
        by_need = sorted(np.flatnonzero(fractional[stratum]).tolist(), key=lambda split: -owed[split])
        for split in by_need[: size - int(base[stratum].sum())]:
            rounded_up[stratum, split] = True
            owed[split] -= 1
    assigned, n = base.sum(axis=0), sum(sizes)
    low = np.array([math.floor(share * n) for share in shares]) - assigned
    high = np.array([math.ceil(share * n) for share in shares]) - assigned
    for bound in (high, low, np.asarray(totals) - assigned):
        # It ends: each shift brings one split nearer to its bound, and shares that add up to 1 leave a place for it.
        while _shift(rounded_up, fractional, rounded_up.sum(axis=0) > bound, rounded_up.sum(axis=0) < bound):
            pass
    return np.asarray(base + rounded_up)


def split_strata(strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the split of each row, int64 [n]: the first rows of a stratum go into the first split, and so on.

    Args:
        strata: Stratum of each row, int [n].
        counts: Rows by stratum and split, int [strata, splits].
    """
    split_of_row = np.empty(len(strata), np.int64)
    splits = np.tile(np.arange(counts.shape[1]), len(counts))
    split_of_row[np.argsort(strata, kind="stable")] = np.repeat(splits, counts.reshape(-1))
    return split_of_row


def _shift(rounded_up: np.ndarray, fractional: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
    """Take one row from a split of `starts` and add one to a split of `ends`, by way of others if necessary."""
    if not starts.any() or not ends.any():
        return False
    free = fractional & ~rounded_up
    path = _path((rounded_up.T.astype(np.int64) @ free.astype(np.int64)) > 0, starts, ends)
    for giver, taker in pairwise(path):
        stratum = int(np.flatnonzero(rounded_up[:, giver] & fractional[:, taker] & ~rounded_up[:, taker])[0])
        rounded_up[stratum, giver], rounded_up[stratum, taker] = False, True
    return bool(path)


def _path(steps: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """Return the shortest path along `steps` (bool [from, to]) from a start to an end; empty if there is no path."""
    paths = [[int(start)] for start in np.flatnonzero(starts)]
    seen = set(np.flatnonzero(starts).tolist())
    for path in paths:  # grows during the loop: breadth first
        if ends[path[-1]]:
            return path
        new = [split for split in np.flatnonzero(steps[path[-1]]).tolist() if split not in seen]
        seen.update(new)
        paths += [[*path, split] for split in new]
    return []
