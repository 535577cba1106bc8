"""Tests of `Exchange.from_host_owned`, `staging_buffer` and `copy_async`: who may use an array's memory when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.backend import AsyncCopy, Backend, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel_devtools.testing.harness import Array
from anyaccel_devtools.testing.subject import Subject

ROWS = np.arange(24, dtype="float32").reshape(8, 3)
OWNED: Mapping[str, Callable[[], Array]] = {
    "contiguous": lambda: ROWS.copy(),
    "a slice of another array": lambda: np.vstack([ROWS, ROWS])[3:11],
    "transposed": lambda: ROWS.copy().T,
    "every second row": lambda: np.repeat(ROWS, 2, axis=0)[::2],
    "in the other byte order": lambda: ROWS.astype(">f4"),
    "a scalar": lambda: np.array(2.5, "float32"),
    "without rows": lambda: ROWS[:0].copy(),
    "over memory that is not NumPy's": lambda: np.frombuffer(bytearray(ROWS.tobytes()), "float32"),
    "read-only": lambda: np.frombuffer(ROWS.tobytes(), "float32"),
}
BUFFERS = (((6, 3), "float32"), ((6,), "int32"), ((4, 2, 2), "uint8"), ((3, 0), "float32"), ((), "float32"))


def finished(copy: AsyncCopy) -> Any:
    """The tensor of a copy, once the copy is done."""
    copy.wait()
    return copy.tensor


class OwnershipTests(Subject):
    """Everything that `from_host_owned`, `staging_buffer` and `copy_async` promise."""

    capability = "exchange"

    @pytest.fixture
    def exchange(self, backend: Backend) -> Exchange:
        """Return the backend, typed as `Exchange`."""
        return cast("Exchange", backend)

    def filled_buffer(self, exchange: Exchange, values: Array, device: Device) -> Array:
        """Return a staging buffer with these values."""
        buffer = exchange.staging_buffer(values.shape, values.dtype.name, device)
        buffer[...] = values
        return buffer

    # -- arrays that the backend may keep --------------------------------------------------------------------------

    def test_from_host_owned_puts_the_tensor_on_the_device(self, backend: Backend, exchange: Exchange) -> None:
        """The result is a tensor of the backend, on every device."""
        for device in backend.devices():
            tensor = exchange.from_host_owned(ROWS.copy(), device)
            assert backend.owns(tensor)
            assert backend.device_of(tensor) == device

    @pytest.mark.parametrize("how", OWNED)
    def test_from_host_owned_keeps_values(self, backend: Backend, exchange: Exchange, how: str) -> None:
        """Shape, dtype and values are kept for any strides and any owner of the memory."""
        for device in backend.devices():
            actual = exchange.to_host(exchange.from_host_owned(OWNED[how](), device))
            expected = OWNED[how]()
            assert (actual.shape, actual.dtype.newbyteorder("=")) == (expected.shape, expected.dtype.newbyteorder("="))
            np.testing.assert_array_equal(actual, expected)

    def test_from_host_owned_tensors_keep_their_values(self, backend: Backend, exchange: Exchange) -> None:
        """A tensor keeps its values when the next array is taken and when its own array is no longer referenced."""
        for device in backend.devices():
            tensors = [exchange.from_host_owned(np.full((64, 64), i, "float32"), device) for i in range(4)]
            for i, tensor in enumerate(tensors):
                np.testing.assert_array_equal(exchange.to_host(tensor), np.full((64, 64), i))

    def test_from_host_owned_refuses_unsupported_dtypes(self, exchange: Exchange, device: Device) -> None:
        """An unsupported dtype raises MoveError."""
        with pytest.raises(MoveError):
            exchange.from_host_owned(np.array([object()]), device)

    # -- asynchronous copies ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("shape", "dtype"), BUFFERS, ids=str)
    def test_staging_buffers_have_the_requested_shape_and_dtype(
        self, backend: Backend, exchange: Exchange, shape: tuple[int, ...], dtype: str
    ) -> None:
        """A buffer is a writable, C-contiguous array of the requested shape and dtype."""
        for device in backend.devices():
            buffer = exchange.staging_buffer(shape, dtype, device)
            assert isinstance(buffer, np.ndarray)
            assert (buffer.shape, buffer.dtype.name) == (shape, dtype)
            assert buffer.flags.writeable and buffer.flags.c_contiguous

    def test_staging_buffers_do_not_share_memory(self, exchange: Exchange, device: Device) -> None:
        """Each buffer has separate memory."""
        first, second = (exchange.staging_buffer((16, 3), "float32", device) for _ in range(2))
        assert not np.shares_memory(first, second)

    def test_copy_async_delivers_the_values(self, backend: Backend, exchange: Exchange) -> None:
        """After `wait`, the tensor has the values of the array, on every device."""
        for device in backend.devices():
            tensor = finished(exchange.copy_async(self.filled_buffer(exchange, ROWS, device), device))
            assert backend.device_of(tensor) == device
            np.testing.assert_array_equal(exchange.to_host(tensor), ROWS)

    @pytest.mark.parametrize("part", [slice(0, 5), slice(2, 8), slice(0, 0)], ids=str)
    def test_copy_async_copies_part_of_a_buffer(self, exchange: Exchange, device: Device, part: slice) -> None:
        """A part of a buffer can be copied, as at the end of an epoch."""
        tensor = finished(exchange.copy_async(self.filled_buffer(exchange, ROWS, device)[part], device))
        np.testing.assert_array_equal(exchange.to_host(tensor), ROWS[part])

    @pytest.mark.parametrize("wait_first", [False, True])
    def test_a_staging_buffer_is_reusable_once_read(
        self, backend: Backend, exchange: Exchange, wait_first: bool
    ) -> None:
        """After `source_reusable`, writing to the buffer does not change the tensor; it may be called again."""
        for device in backend.devices():
            buffer = self.filled_buffer(exchange, np.ones((64, 64), "float32"), device)
            copy = exchange.copy_async(buffer, device)
            if wait_first:
                copy.wait()
            copy.source_reusable()
            buffer[...] = 7
            copy.source_reusable()
            tensor = copy.tensor if wait_first else finished(copy)
            np.testing.assert_array_equal(exchange.to_host(tensor), np.ones((64, 64)))

    def test_several_copies_can_be_in_flight(self, exchange: Exchange, device: Device) -> None:
        """Copies can start before others end, and be waited for in any order."""
        copy = [exchange.copy_async(self.filled_buffer(exchange, ROWS + i, device), device) for i in range(4)]
        for i in (2, 0, 3, 1):
            np.testing.assert_array_equal(exchange.to_host(finished(copy[i])), ROWS + i)

    def test_copy_async_works_from_another_thread(self, backend: Backend, exchange: Exchange) -> None:
        """A background thread fills two buffers in turn and starts copies that this thread waits for."""
        blocks = [ROWS + 10 * i for i in range(6)]
        for device in backend.devices():
            buffers = [exchange.staging_buffer(ROWS.shape, "float32", device) for _ in range(2)]
            with ThreadPoolExecutor(1) as thread:
                futures = [thread.submit(self._copy_block, exchange, buffers, blocks, i, device) for i in range(6)]
                actual = [exchange.to_host(finished(future.result())) for future in futures]
            np.testing.assert_array_equal(actual, blocks)

    def _copy_block(
        self, exchange: Exchange, buffers: list[Array], blocks: list[Array], i: int, device: Device
    ) -> AsyncCopy:
        buffer = buffers[i % len(buffers)]
        buffer[...] = blocks[i]
        copy = exchange.copy_async(buffer, device)
        copy.source_reusable()
        return copy

    def test_copy_async_refuses_unsupported_dtypes(self, exchange: Exchange, device: Device) -> None:
        """An unsupported dtype raises MoveError at the call, not at `wait`."""
        with pytest.raises(MoveError):
            exchange.copy_async(np.array([object()]), device)
