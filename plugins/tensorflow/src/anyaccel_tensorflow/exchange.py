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
from anyaccel_tensorflow.placement import TensorFlowPlacement
from anyaccel_tensorflow.tree_utils import is_tensor


class TensorFlowExchange(TensorFlowPlacement, Exchange):
    """Through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """As `Exchange.from_host`; any strides and byte order, and read-only arrays. Texts are refused."""
        from anyaccel_tensorflow.host_transfer import owned

        return self.move(owned(array, "/CPU:0"), device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `Exchange.take`; on the CPU the array's own memory, which TensorFlow keeps, where dense and aligned."""
        from anyaccel_tensorflow.host_transfer import given

        if not is_own(array) or not is_aligned(array):
            return self.from_host(array, device)
        return self.move(given(array, "/CPU:0"), device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """As `Exchange.buffer`; TensorFlow page-locks nothing that others may write to."""
        return aligned_empty(shape, dtype)

    def to_host(self, tensor: Any) -> np.ndarray:
        """As `Exchange.to_host`; shares memory with a tensor on the CPU, and is then read-only."""
        import tensorflow as tf

        if not is_tensor(tensor) or tensor.dtype in (tf.string, tf.resource, tf.variant):
            what = f"a tensor of {tensor.dtype.name}" if is_tensor(tensor) else f"a {type(tensor).__name__}"
            raise MoveError(
                f"NumPy cannot hold {what}",
                available="dense tensors of numbers and booleans can be read",
                hint="convert it first: tf.sparse.to_dense(x), ragged.to_tensor(), variable.value()",
            )
        found: np.ndarray = np.asarray(tensor)
        return found

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """As `Exchange.adopt`; what TensorFlow cannot use in place, as it is strided or not aligned, is copied."""
        from anyaccel_tensorflow.dlpack import taken

        if is_tensor(foreign):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        try:
            found = taken(foreign)
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"TensorFlow cannot take over a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                available=first_line(error),
                hint="give a plain array without gradients, or go through host memory with from_host",
            ) from error
        return self.move(found, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """As `Exchange.rows`."""
        from anyaccel_tensorflow.host_transfer import cut, gathered

        return cut(column, start, stop) if order is None else gathered(column, order, start, stop)

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """As `Exchange.scalars`; reads one by one, which waits once only, as devices work in order."""
        return np.array([float(np.asarray(value)) for value in values], dtype=np.float64)
