"""Arrays from and to host memory, and from other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, is_aligned, is_dense, is_own
from anyaccel_jax.error_translation import first_line, translate_errors
from anyaccel_jax.host_transfer import check_dtype, copy_on_host
from anyaccel_jax.placement import JaxPlacement


class JaxExchange(JaxPlacement, Exchange):
    """Through NumPy and DLPack."""

    index_dtype = "int32"  # JAX has no int64 unless the user enables it

    def loaded_dtype(self, dtype: str) -> str:
        """Integers of 64 bits are loaded in 32 while JAX has no others."""
        import jax

        return str(jax.dtypes.canonicalize_dtype(dtype)) if "int" in dtype else dtype

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Copy an array with any strides and byte order."""
        check_dtype(array.dtype)
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            return self._put(copy_on_host(array), device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor; on the CPU it is the array's own memory, if that is dense and aligned."""
        if not is_own(array) or (device.kind == "cpu" and not is_aligned(array)):
            return self.from_host(array, device)
        return self._put(array, device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """JAX has no page-locked memory."""
        return aligned_empty(shape, dtype)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Start a copy; computations on the device wait for it.

        On the CPU the copy is made immediately: JAX would compute from the buffer itself.
        """
        if device.kind == "cpu" or not is_dense(array):
            return AsyncCopy(self.from_host(array, device))
        tensor = self._put(array, device)
        return AsyncCopy(tensor, source_reusable=tensor.block_until_ready)

    def _put(self, array: np.ndarray, device: Device) -> Any:
        import jax

        check_dtype(array.dtype)
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            return jax.device_put(array, self.jax_device(device))

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return a read-only array; on the CPU it is the array's own memory."""
        try:
            with translate_errors(f"the computation of an array of {tensor.nbytes} bytes"):
                return np.asarray(tensor)
        except TypeError as error:
            raise MoveError(
                f"NumPy cannot hold an array of dtype {tensor.dtype}",
                cause=first_line(error),
                hint="convert it first, for example with jax.random.key_data(keys)",
            ) from error

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Strided, read-only and unaligned memory is copied."""
        import jax

        if isinstance(foreign, jax.Array):
            return self.move(foreign, device)
        if isinstance(foreign, (np.generic, np.ndarray)) and not _is_exportable(foreign):
            return self.from_host(np.asarray(foreign), device)
        if isinstance(foreign, np.ndarray):
            check_dtype(foreign.dtype)
        try:
            if not hasattr(foreign, "__dlpack__"):
                raise TypeError("it has no __dlpack__")
            array = jax.dlpack.from_dlpack(_without_gaps(foreign))
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"JAX cannot import a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                cause=first_line(error),
                hint="pass a plain array without gradients, or go through host memory with from_host",
            ) from error
        _check_kept_dtype(array, foreign)
        return array if array.device is self.jax_device(device) else self.move(array, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Gather rows, compiled once for each number of rows."""
        from anyaccel_jax.ops import gather_rows, slice_rows

        limit = len(column if order is None else order)
        start, stop = min(start, limit), min(stop, limit)
        begin, size = np.int32(start), max(stop - start, 0)
        with translate_errors(f"rows {start} to {stop} of a column of shape {list(column.shape)}"):
            return slice_rows(column, begin, size) if order is None else gather_rows(column, order, begin, size)

    def is_ready(self, tensor: Any) -> bool:
        return bool(tensor.is_ready())

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """All transfers are started before the first is waited for."""
        import jax

        with translate_errors("the losses of training steps"):
            return np.array([float(value) for value in jax.device_get(list(values))], dtype=np.float64)


def _is_exportable(array: Any) -> bool:
    """Whether a NumPy array can be passed by DLPack: neither read-only nor of a dtype that DLPack lacks."""
    return bool(isinstance(array, np.ndarray) and array.flags.writeable and array.dtype.isnative) and (
        array.dtype.kind in "biufc"
    )


def _without_gaps(foreign: Any) -> Any:
    """Return the tensor, or a copy without gaps if it reports some: JAX imports no others."""
    strides, shape = getattr(foreign, "strides", None), getattr(foreign, "shape", ())
    if isinstance(foreign, np.ndarray):
        return foreign if foreign.flags.c_contiguous or foreign.flags.f_contiguous else foreign.copy()
    if callable(getattr(foreign, "stride", None)):
        strides = foreign.stride()
    if strides is None or not hasattr(foreign, "contiguous"):
        return foreign
    return foreign if has_no_gaps(tuple(shape), tuple(strides)) else foreign.contiguous()


def has_no_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements of an array lie side by side, in any order of its axes."""
    extent = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != extent:
                return False
            extent *= size
    return True


def _check_kept_dtype(array: Any, foreign: Any) -> None:
    dtype = getattr(foreign, "dtype", None)
    if dtype is None or dtype == array.dtype:  # NumPy's dtype
        return
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    if name != array.dtype.name:
        check_dtype(name)
        raise MoveError(f"JAX would convert {name} to {array.dtype}", cause="moves keep dtypes")
