"""Tensors from NumPy arrays, and rows of resident columns, under the explicit device policy too."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.error_translation import first_line, translate_errors
from anyaccel_tensorflow.tf_functions import run_alone

# What NumPy and every TensorFlow since 2.18 exchange by DLPack.
_DLPACK_DTYPES = frozenset(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))


def copy_to_cpu(array: np.ndarray) -> tf.Tensor:
    """Return a tensor on the first CPU with a copy of the values of an array of any strides and byte order.

    Raises:
        MoveError: TensorFlow lacks the dtype.
    """
    if array.dtype.kind not in "biufcV":  # TensorFlow would accept strings, and keep them on the host
        raise _no_dtype(array, "devices can store only numbers and booleans")
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return adopt_on_cpu(copy)


def adopt_on_cpu(array: np.ndarray) -> tf.Tensor:
    """Return a tensor on the first CPU in the memory of a dense and aligned array, which the tensor keeps alive.

    A copy where DLPack cannot describe the array: where it is empty, or of a dtype that NumPy or TensorFlow does not
    exchange.

    Raises:
        MoveError: TensorFlow lacks the dtype.
    """
    runtime_config.allow_memory_growth()
    if array.dtype in _DLPACK_DTYPES and array.size:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    try:
        with translate_errors(f"an array of {array.nbytes} bytes on the CPU"), tf.device("/CPU:0"):
            return tf.constant(array)
    except (TypeError, ValueError) as error:
        raise _no_dtype(array, first_line(error)) from None


def _no_dtype(array: np.ndarray, reason: str) -> MoveError:
    hint = "convert the array first, for example with array.astype('float32')"
    return MoveError(f"TensorFlow has no dtype for NumPy's {array.dtype}", cause=reason, hint=hint)


def slice_rows(column: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Return `column[start:stop]`, on its device."""
    return run_alone(_slice, column, tf.constant(start, tf.int64), tf.constant(stop, tf.int64))


def gather_rows(column: tf.Tensor, order: tf.Tensor, start: int, stop: int) -> tf.Tensor:
    """Return `column[order[start:stop]]`, on its device."""
    return run_alone(_gather, column, order, tf.constant(start, tf.int64), tf.constant(stop, tf.int64))


def _slice(column: Any, start: Any, stop: Any) -> Any:
    return column[start:stop]


def _gather(column: Any, order: Any, start: Any, stop: Any) -> Any:
    return tf.gather(column, order[start:stop])
