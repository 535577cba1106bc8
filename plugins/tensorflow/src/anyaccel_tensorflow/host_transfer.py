"""Tensors from arrays of the host, and rows of resident columns, under the explicit device policy too."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.error_translation import first_line, telling
from anyaccel_tensorflow.tf_functions import by_itself
from anyaccel_tensorflow.tree_utils import parsed

# What NumPy and every TensorFlow since 2.18 exchange by DLPack.
_SPOKEN = frozenset(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))


def owned(array: np.ndarray, name: str) -> tf.Tensor:
    """A tensor on a CPU with the values of a NumPy array of any strides and byte order; owns its memory.

    Raises:
        MoveError: TensorFlow lacks the dtype.
    """
    if array.dtype.kind not in "biufcV":  # TensorFlow would take texts, and keep them
        raise _lacking(array, "only numbers and booleans can be on a device")
    native = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(native, array)
    return given(native, name)


def given(array: np.ndarray, name: str) -> tf.Tensor:
    """A tensor on a CPU in the memory of a dense and aligned array of NumPy's own, which it keeps.

    A copy where it cannot go by DLPack: without numbers, of a dtype that NumPy or TensorFlow does not tell, or to
    another CPU than the first.

    Raises:
        MoveError: TensorFlow lacks the dtype.
    """
    runtime_config.begin()
    if parsed(name) == ("CPU", 0) and array.dtype in _SPOKEN and array.size:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    try:
        with telling(f"an array of {array.nbytes} bytes on {name}"), tf.device(name):
            return tf.constant(array)
    except (TypeError, ValueError) as error:
        raise _lacking(array, first_line(error)) from None


def _lacking(array: np.ndarray, words: str) -> MoveError:
    return MoveError(
        f"TensorFlow has no dtype for NumPy's {array.dtype}",
        available=words,
        hint="convert the array first, such as with array.astype('float32')",
    )


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
