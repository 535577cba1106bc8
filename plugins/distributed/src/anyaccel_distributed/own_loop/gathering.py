"""Gathering: join the results for the rows of all batches and processes into one structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.errors import DataError

Part = tuple[Any, int | None]
"""Result for a batch in one process, with arrays instead of tensors; and how many rows count, None for all."""
Concatenated = Callable[[Sequence[np.ndarray]], Any]


def merged(parts: Sequence[Part], concatenated: Concatenated, pad: float | None) -> Any:
    """Join parts into one structure with the rows of all.

    Args:
        parts: Parts in the order of their rows.
        concatenated: Function that joins arrays into the result for a tensor.
        pad: Padding value for tensors whose other axes differ; None returns a list of one tensor for each row.

    Raises:
        DataError: The structures differ, or a tensor has no rows.
    """
    counted = [part for part in parts if part[1] != 0] or parts[:1]
    values = [value for value, _ in counted]
    first = values[0] if values else None
    if isinstance(first, Mapping):
        _check_alike(values, Mapping, [tuple(value) if isinstance(value, Mapping) else None for value in values])
        named = {name: merged([(v[name], n) for v, n in counted], concatenated, pad) for name in first}
        return named if type(first) is dict else type(first)(named)  # type: ignore[call-arg]
    if isinstance(first, list) and all(_is_list_of_rows(value, rows) for value, rows in counted):
        return [item for value, _ in counted for item in value]
    if isinstance(first, (list, tuple)):
        _check_alike(
            values, (list, tuple), [len(value) if isinstance(value, (list, tuple)) else None for value in values]
        )
        items = [merged([(v[i], n) for v, n in counted], concatenated, pad) for i in range(len(first))]
        return first._make(items) if hasattr(first, "_make") else type(first)(items)
    if isinstance(first, np.ndarray):
        _check_alike(values, np.ndarray, [value.ndim if isinstance(value, np.ndarray) else None for value in values])
        if counted[0][0].ndim == 0:
            return [array.item() for array, _ in counted]
        for array, rows in counted:
            if rows and len(array) != rows:
                raise DataError(
                    f"gather() received a tensor of shape {list(array.shape)} for a batch of {rows} rows",
                    hint="gather only values with one row per row of the batch; sum other values: loop.reduce(x, "
                    "'sum')",
                )
        arrays = [array if rows is None else array[:rows] for array, rows in counted]
        sizes = {array.shape[1:] for array in arrays}
        if len(sizes) == 1:
            return concatenated(arrays)
        if pad is None:
            return [concatenated([row]) for array in arrays for row in array]
        widest = np.max([array.shape[1:] for array in arrays], axis=0)
        return concatenated([_padded(array, widest, pad) for array in arrays])
    if all(value is None for value in values):
        return None
    return values


def _is_list_of_rows(value: Any, rows: int | None) -> bool:
    """Return whether a list has an item for each row, rather than tensors with one row each."""
    if not isinstance(value, list):
        return False
    if any(isinstance(item, np.ndarray) and item.ndim and item.shape[0] == len(value) for item in value):
        return False
    if rows is None or len(value) == rows:
        return True
    if value and not any(isinstance(item, (np.ndarray, Mapping, list, tuple)) for item in value):
        raise DataError(
            f"gather() received a list of {len(value)} items for a batch of {rows} rows",
            hint="pass one item per row of the batch, or gather the list after the loop over the loader",
        )
    return False


def _check_alike(values: Sequence[Any], kind: Any, marks: Sequence[Any]) -> None:
    if any(mark != marks[0] for mark in marks) or not all(isinstance(value, kind) for value in values):
        raise DataError(
            "gather() received batches with different structures",
            available=", ".join(sorted({_described(value) for value in values})),
            hint="pass the same containers, with the same names, for each batch and in each process",
        )


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}"
    if isinstance(value, np.ndarray):
        return f"a tensor of {value.ndim} dimensions"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__


def _padded(array: np.ndarray, widest: Sequence[int], pad: float) -> np.ndarray:
    missing = [(0, 0), *((0, int(wide) - size) for wide, size in zip(widest, array.shape[1:], strict=True))]
    return np.pad(array, missing, constant_values=pad)
