"""Tensors from and to host memory, and from other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.backend import Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, is_aligned, is_own
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.object_location import is_tensor
from anyaccel_tensorflow.placement import TensorFlowPlacement


class TensorFlowExchange(TensorFlowPlacement, Exchange):
    """Through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Any strides and byte order, and read-only arrays. Strings are refused."""
        from anyaccel_tensorflow.host_transfer import copy_to_cpu

        return self.move(copy_to_cpu(array), device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor; on the CPU it is the array's own memory, if that is dense and aligned."""
        from anyaccel_tensorflow.host_transfer import adopt_on_cpu

        if not is_own(array) or not is_aligned(array):
            return self.from_host(array, device)
        return self.move(adopt_on_cpu(array), device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate plain memory: TensorFlow page-locks no memory that other code may write to."""
        return aligned_empty(shape, dtype)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return an array, which shares memory with a tensor on the CPU and is then read-only."""
        import tensorflow as tf

        if not is_tensor(tensor) or tensor.dtype in (tf.string, tf.resource, tf.variant):
            kind = f"tensor of dtype {tensor.dtype.name}" if is_tensor(tensor) else type(tensor).__name__
            raise MoveError(
                f"NumPy cannot hold a {kind}",
                available="dense tensors of numbers and booleans",
                hint="convert it first: tf.sparse.to_dense(x), ragged.to_tensor(), variable.value()",
            )
        array: np.ndarray = np.asarray(tensor)
        return array

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Import a tensor; memory that TensorFlow cannot use in place (strided or unaligned) is copied."""
        from anyaccel_tensorflow.dlpack import from_foreign

        if is_tensor(foreign):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        try:
            tensor = from_foreign(foreign)
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"TensorFlow cannot import a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                cause=first_line(error),
                hint="pass a plain array without gradients, or go through host memory with from_host",
            ) from error
        return self.move(tensor, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        from anyaccel_tensorflow import host_transfer

        if order is None:
            return host_transfer.slice_rows(column, start, stop)
        return host_transfer.gather_rows(column, order, start, stop)

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Read one by one, which waits only once, as devices work in order."""
        return np.array([float(np.asarray(value)) for value in values], dtype=np.float64)
