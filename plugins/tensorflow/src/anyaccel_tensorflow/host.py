"""Tensors from arrays of the host, and rows of resident columns, under the explicit device policy too."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.errors import MoveError
from anyaccel_tensorflow import starting
from anyaccel_tensorflow.alone import by_itself
from anyaccel_tensorflow.faults import first_line, telling


def owned(array: np.ndarray, name: str) -> tf.Tensor:
    """A tensor on a CPU with the values of a NumPy array of any strides and byte order; owns its memory.

    Raises:
        MoveError: TensorFlow lacks the dtype.
    """
    starting.begin()
    native = array.astype(array.dtype.newbyteorder("="), copy=True, order="C")
    try:
        if array.dtype.kind in "SUO":
            raise TypeError("only numbers and booleans can be on a device")
        with telling(f"an array of {array.nbytes} bytes on {name}"), tf.device(name):
            return tf.constant(native)
    except (TypeError, ValueError) as error:
        raise MoveError(
            f"TensorFlow has no dtype for NumPy's {array.dtype}",
            there=first_line(error),
            remedy="convert the array first, such as with array.astype('float32')",
        ) from None


def cut(column: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """`column[start:stop]`, on its device."""
    return by_itself(_sliced, column, tf.constant(start, tf.int64), tf.constant(stop, tf.int64))


def gathered(column: tf.Tensor, order: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """`column[order[start:stop]]`, on its device."""
    return by_itself(_gathered, column, order, tf.constant(start, tf.int64), tf.constant(stop, tf.int64))


def _sliced(column: Any, start: Any, stop: Any) -> Any:
    return column[start:stop]


def _gathered(column: Any, order: Any, start: Any, stop: Any) -> Any:
    return tf.gather(column, order[start:stop])
