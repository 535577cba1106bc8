"""Gathering: rows of an array by number into memory that is there already."""

from __future__ import annotations

import numpy as np


def gather(array: np.ndarray, indices: np.ndarray, out: np.ndarray) -> np.ndarray:
    """`out[...] = array[indices]` along the first axis, and `out`; other threads run meanwhile.

    Into C-contiguous memory of the same dtype without any memory besides.

    Args:
        array: [n, *shape].
        indices: integers [k] of 0 to n - 1, which is not looked at: another number gives the first or the last row.
        out: [k, *shape], writable; of another dtype, the numbers are cast.
    """
    if array.dtype == out.dtype and array.flags.c_contiguous and out.flags.c_contiguous and len(array):
        return np.take(array, indices, axis=0, out=out, mode="clip")  # checking them would gather twice
    out[...] = array[indices]
    return out
