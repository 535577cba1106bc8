"""Splits in which the rows of a group stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from anyaccel.data.splitting.group_keys import GroupKeys
from anyaccel.errors import SplitError


def split_groups(strata: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The split of each row, int64 [n], the same for all rows of a group, with about `counts` rows by stratum.

    Args:
        strata: stratum of each row, int [n], the same for all rows of a group.
        groups: group of each row, int [n], 0 to groups - 1; groups are assigned in the order of their first rows.
        counts: rows by stratum and split, int [strata, splits]; a stratum has at least as many groups as splits.
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
    """The split of each group, int64 [groups], so that the splits have about `wanted` rows.

    Each group in turn goes to the split that lacks most; then single groups are moved, and pairs of groups exchanged
    between two splits, as long as that reduces the sum of squared differences. Every split with `wanted` rows keeps at
    least one group.

    Args:
        sizes: rows of each group, int [groups]; at least as many groups as splits.
        wanted: rows of each split, adding up to those of all groups.
    """
    splits = _first_assignment(sizes, wanted)
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


def _first_assignment(sizes: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    lacking, empty = list(wanted), [split for split, count in enumerate(wanted) if count]
    splits = np.zeros(len(sizes), np.int64)
    for group, size in enumerate(sizes.tolist()):
        choices = empty if len(sizes) - group <= len(empty) else range(len(wanted))
        splits[group] = split = max(choices, key=lambda choice: lacking[choice])
        lacking[split] -= size
        empty = [other for other in empty if other != split]
    return splits


def _best_swap(
    sizes: np.ndarray, splits: np.ndarray, excess: np.ndarray, wanted: Sequence[int]
) -> tuple[int, int, int, int] | None:
    """Giver, taker, size of the group that moves, and of the group that moves back (0: none)."""
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


def check_together(label: str, groups: GroupKeys, positions: Mapping[str, np.ndarray]) -> None:
    """Check that no group has rows in two splits; a group may have rows in none.

    Args:
        label: of the feature set.
        groups: of its rows.
        positions: of each split, int [k] into `groups.codes`.
    """
    names, codes_by_split = list(positions), [groups.codes[rows] for rows in positions.values()]
    codes = np.concatenate(codes_by_split)
    splits = np.repeat(np.arange(len(names)), [len(own) for own in codes_by_split])
    pairs, counts = np.unique(codes * len(names) + splits, return_counts=True)
    group_of_pair = pairs // len(names)
    crossing = group_of_pair[1:][group_of_pair[1:] == group_of_pair[:-1]]
    if len(crossing):
        inside = group_of_pair == crossing[0]
        rows_by_split = zip(counts[inside].tolist(), (pairs[inside] % len(names)).tolist(), strict=True)
        raise SplitError(
            f"group {groups.shown(int(crossing[0]))} of {label!r} crosses splits",
            cause=", ".join(f"{count} of its rows in {names[split]!r}" for count, split in rows_by_split),
            hint="put all rows of a group into one split; split_random(group_by=...) does",
        )


def check_nested(label: str, groups: GroupKeys, strata: GroupKeys) -> None:
    """Check that all rows of a group are in one stratum."""
    pairs = np.unique(groups.codes * len(strata) + strata.codes)
    group_of_pair = pairs // len(strata)
    crossing = np.flatnonzero(group_of_pair[1:] == group_of_pair[:-1])
    if len(crossing):
        first, second = (int(pair) % len(strata) for pair in pairs[crossing[0] : crossing[0] + 2])
        raise SplitError(
            f"group {groups.shown(int(group_of_pair[crossing[0]]))} of {label!r} has rows of two strata",
            cause=f"{strata.shown(first)} and {strata.shown(second)}",
            hint="stratify by what is the same in all rows of a group, or leave stratify_by or group_by out",
        )
