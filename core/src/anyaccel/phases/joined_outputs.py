"""Joined outputs: what a node gave for all batches as one array, also where each batch has a length of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyaccel.errors import PhaseError


def differ(arrays: Sequence[np.ndarray]) -> bool:
    """Whether the samples of batches differ in shape."""
    return len({array.shape[1:] for array in arrays}) > 1


def joined_outputs(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The outputs of all batches, [n, *shape]; where batches differ in length, NaN behind the shorter ones.

    Args:
        name: of the output, for messages.
        arrays: of each batch.

    Raises:
        PhaseError: batches differ in length, and NaN cannot be told in their dtype.
    """
    if not differ(arrays):
        return np.concatenate(arrays)
    shapes = [array.shape[1:] for array in arrays]
    if arrays[0].dtype.kind != "f" or len({len(shape) for shape in shapes}) > 1:
        other = next(shape for shape in shapes if shape != shapes[0])
        raise PhaseError(
            f"the output {name!r} is {arrays[0].dtype}{list(shapes[0])} per sample in one batch and "
            f"{list(other)} in another, as batches are padded to lengths of their own",
            cause="floating outputs are joined with NaN behind the shorter ones",
            hint="leave it out with outputs=[...], or pad all to one length: pad={'COLUMN': Pad(..., length=...)}",
        )
    longest = tuple(max(extents) for extents in zip(*shapes, strict=True))
    joined = np.full((sum(map(len, arrays)), *longest), np.nan, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
        start += len(array)
    return joined
