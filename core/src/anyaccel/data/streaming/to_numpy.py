"""The value of a column in a batch, from any framework, as an array in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.backend import Exchange
from anyaccel.data.arrow_columns import KINDS, WIDEST, contiguous, empty_axis, is_readable, ragged, to_numpy
from anyaccel.data.readers.array_conversion import number_column, tag_column
from anyaccel.errors import ColumnError, MoveError
from anyaccel.registry import registry

_ARROW = (pa.Array, pa.ChunkedArray)


def number_array(name: str, value: Any) -> np.ndarray:
    """Return a feature or target as an array [rows, *shape] in its own dtype; copied only if necessary.

    Args:
        name: Name of the column, for messages.
        value: A NumPy array, a tensor of a framework whose plugin is installed, Arrow, lists of numbers or of tensors,
            pandas, or an object with `__array__` or `__dlpack__`.
    """
    array = as_numpy(name, value)
    if array is None or not _is_plain(array):
        array = to_numpy(name, contiguous(number_column(name, value if array is None else array)))
    if 0 in array.shape[1:]:
        raise empty_axis(name, array.shape[1:])
    return array


def tag_array(name: str, value: Any) -> np.ndarray:
    """Return a tag as an array [rows, ...]: numbers like `number_array`, everything else like NumPy reads it from
    Arrow.
    """
    try:
        array = as_numpy(name, value)
    except MoveError:  # a tensor of text, which a framework gives to NumPy as objects
        array = np.asarray(value)
    if array is not None and _is_plain(array):
        return array
    return column_array(name, tag_column(name, value if array is None else array))


def column_array(name: str, column: Any) -> np.ndarray:
    """Return a chunked Arrow column as an array: without a copy if it is numeric and complete, otherwise as NumPy reads
    it.
    """
    return to_numpy(name, contiguous(column)) if is_readable(column) else np.asarray(column.to_numpy())


def as_numpy(name: str, value: Any) -> np.ndarray | None:
    """Return an array or tensor as a NumPy array, on the same memory if possible; None for everything else."""
    if isinstance(value, np.ndarray):
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if isinstance(value, (list, tuple)):
        # Tensors in a list as one array; None for a list of anything else.
        if not value or isinstance(value[0], np.ndarray) or not is_tensor(value[0]):
            return None
        arrays = [array for array in all_as_numpy(name, value) if array is not None]
        if len(arrays) < len(value) or len({array.shape for array in arrays}) > 1:
            raise ragged(name)
        return np.stack(arrays)
    if isinstance(value, _ARROW) or hasattr(value, "iloc"):
        return None
    backend = _backend_of(value)
    if backend is not None:
        return np.asarray(backend.to_host(value))
    # What no plugin owns, by NumPy's protocol or DLPack.
    if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return None
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        cls = type(value)
        raise ColumnError(
            f"column {name!r} is a {cls.__module__}.{cls.__qualname__} that NumPy cannot read: {error}",
            hint=f"install the plugin of {cls.__module__.partition('.')[0]}, or yield NumPy arrays",
        ) from error


def all_as_numpy(name: str, values: Sequence[Any]) -> list[np.ndarray | None]:
    """Convert values with `as_numpy`; their owner is looked up once if all have the same class."""
    is_uniform = len({type(value) for value in values}) == 1
    if is_uniform and is_tensor(values[0]) and not isinstance(values[0], np.ndarray):
        backend = _backend_of(values[0])
        if backend is not None:
            return [np.asarray(backend.to_host(value)) for value in values]
    return [as_numpy(name, value) for value in values]


def is_tensor(value: Any) -> bool:
    """Whether a value is an array or tensor of any framework, by the attributes that all of them have."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_plain(array: np.ndarray) -> bool:
    dtype = array.dtype
    return array.ndim > 0 and dtype.kind in KINDS and dtype.itemsize <= WIDEST and dtype.isnative


def _backend_of(value: Any) -> Exchange | None:
    for framework in registry().owners(value):
        backend = registry().find(framework)
        if isinstance(backend, Exchange):
            return backend
    return None
