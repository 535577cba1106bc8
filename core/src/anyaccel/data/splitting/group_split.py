"""Groups: rows that stay together in one split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from anyaccel.data.splitting.group_keys import Keys
from anyaccel.errors import SplitError


def deal(within: np.ndarray, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The split of each row, int64 [n], the same for all rows of a group, with about `counts` rows by stratum.

    Args:
        within: stratum of each row, int [n], the same for all rows of a group.
        members: group of each row, int [n], 0 to groups - 1; a group comes in turn where its first row is.
        counts: rows by stratum and split, int [strata, splits]; a stratum has as many groups as splits, or more.
    """
    first, sizes = np.unique(members, return_index=True)[1], np.bincount(members)
    turn = np.argsort(first)
    turn = turn[np.argsort(within[first[turn]], kind="stable")]
    ends = np.cumsum(np.bincount(within[first]))
    parts = np.empty(len(sizes), np.int64)
    for groups, wanted in zip(np.split(turn, ends[:-1]), counts.tolist(), strict=True):
        parts[groups] = allot(sizes[groups], wanted)
    return np.asarray(parts[members])


def allot(sizes: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """The split of each group, int64 [groups], so that the splits have about `wanted` rows.

    Each group in turn goes to the split that lacks most; then single groups are moved, and pairs of groups exchanged
    between two splits, as long as that brings the splits nearer (in the sum of squares). No split that wants rows
    stays without a group.

    Args:
        sizes: rows of each group, int [groups]; at least as many groups as splits.
        wanted: rows of each split, adding up to those of all groups.
    """
    parts = _dealt(sizes, wanted)
    off = np.bincount(parts, weights=sizes, minlength=len(wanted)).astype(np.int64) - np.asarray(wanted)
    while (swap := _best_swap(sizes, parts, off, wanted)) is not None:
        giver, taker, large, small = swap
        for source, target, size in ((giver, taker, large), (taker, giver, small)):
            if size:
                group = int(np.flatnonzero((parts == source) & (sizes == size))[-1])
                parts[group] = target
                off[source] -= size
                off[target] += size
    return parts


def _dealt(sizes: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    lacking, empty = list(wanted), [split for split, count in enumerate(wanted) if count]
    parts = np.zeros(len(sizes), np.int64)
    for group, size in enumerate(sizes.tolist()):
        choices = empty if len(sizes) - group <= len(empty) else range(len(wanted))
        parts[group] = split = max(choices, key=lambda one: lacking[one])
        lacking[split] -= size
        empty = [other for other in empty if other != split]
    return parts


def _best_swap(
    sizes: np.ndarray, parts: np.ndarray, off: np.ndarray, wanted: Sequence[int]
) -> tuple[int, int, int, int] | None:
    """Giver, taker, the size of the group that moves, and of the one that comes back for it (0: none does)."""
    best, found = 0, None
    held = [np.unique(sizes[parts == split]) for split in range(len(wanted))]
    alone = [int((parts == split).sum()) < 2 and count > 0 for split, count in enumerate(wanted)]
    for giver, taker in permutations(range(len(wanted)), 2):
        back = held[taker] if alone[giver] else np.concatenate([[0], held[taker]])
        gap = int(off[giver] - off[taker])
        if gap <= 0 or not len(held[giver]) or not len(back):
            continue
        large = np.repeat(held[giver], 2)
        near = np.searchsorted(back, held[giver] - gap / 2)
        small = back[np.clip(np.stack([near - 1, near], axis=1).reshape(-1), 0, len(back) - 1)]
        gain = (large - small) * (gap - (large - small))
        if int(gain.max()) > best:
            first = int(gain.argmax())
            best, found = int(gain[first]), (giver, taker, int(large[first]), int(small[first]))
    return found


def check_together(label: str, groups: Keys, positions: Mapping[str, np.ndarray]) -> None:
    """Make sure that no group has rows in two splits; a group may have rows in none.

    Args:
        label: of the feature set.
        groups: of its rows.
        positions: of each split, int [k] into `groups.codes`.

    Raises:
        SplitError: a group has; the message names the first such group and the splits.
    """
    names, sides = list(positions), [groups.codes[rows] for rows in positions.values()]
    codes = np.concatenate(sides)
    parts = np.repeat(np.arange(len(names)), [len(side) for side in sides])
    pairs, counts = np.unique(codes * len(names) + parts, return_counts=True)
    owners = pairs // len(names)
    crossing = owners[1:][owners[1:] == owners[:-1]]
    if len(crossing):
        inside = owners == crossing[0]
        there = zip(counts[inside].tolist(), (pairs[inside] % len(names)).tolist(), strict=True)
        raise SplitError(
            f"group {groups.shown(int(crossing[0]))} of {label!r} crosses splits",
            available=", ".join(f"{count} of its rows in {names[split]!r}" for count, split in there),
            hint="put all rows of a group into one split; split_random(group_by=...) does",
        )


def check_nested(label: str, groups: Keys, strata: Keys) -> None:
    """Make sure that all rows of a group are in one stratum.

    Raises:
        SplitError: they are not; the message names the first such group and two of its strata.
    """
    pairs = np.unique(groups.codes * len(strata) + strata.codes)
    owners = pairs // len(strata)
    crossing = np.flatnonzero(owners[1:] == owners[:-1])
    if len(crossing):
        one, other = (int(pair) % len(strata) for pair in pairs[crossing[0] : crossing[0] + 2])
        raise SplitError(
            f"group {groups.shown(int(owners[crossing[0]]))} of {label!r} has rows of two strata",
            available=f"{strata.shown(one)} and {strata.shown(other)}",
            hint="stratify by what is the same in all rows of a group, or leave stratify_by or group_by out",
        )
