"""Resident share: which columns stay on their devices where not all of them fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anyaccel.phases.loading.loader_factory import ColumnBytes, Place, bytes_of_block
from anyaccel.phases.loading.streaming import BLOCKS

_WORTHWHILE = 4
"""How many times the bytes of its row numbers a resident column must save."""


def resident_share(columns: Sequence[ColumnBytes], room: Mapping[Place, float], block_bytes: float) -> frozenset[str]:
    """Names of the columns to keep: of each place the largest that fit beside the blocks of the others.

    Row numbers of resident columns are streamed, so that columns of few bytes a row are not worth it.

    Args:
        columns: all of a phase.
        room: bytes that may be taken; places without a limit are left out.
        block_bytes: of one block of streamed rows.
    """
    kept: list[ColumnBytes] = []
    left = {place: nbytes - BLOCKS * block_bytes for place, nbytes in room.items()}
    for column in sorted(columns, key=lambda each: -each.nbytes):
        if column.place not in left:
            kept.append(column)
        elif column.nbytes <= left[column.place]:
            left[column.place] -= column.nbytes
            kept.append(column)
    saved: dict[tuple[Place, object], float] = {}
    for column in kept:
        key = (column.place, column.stream)
        saved[key] = saved.get(key, 0) + column.row_bytes
    worth = [each for each in kept if saved[each.place, each.stream] >= _WORTHWHILE * each.index_bytes]
    return frozenset(name for each in worth for name in each.names)


def block_bytes_beside(free: Mapping[Place, int]) -> float:
    """Bytes of a block of streamed rows where so much is free."""
    return bytes_of_block(free.values())
