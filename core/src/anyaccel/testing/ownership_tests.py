"""GivingTests: the promises of a backend about arrays that are given away, and of those that are sent ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.backend import AsyncCopy, Backend, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.testing.harness import Array
from anyaccel.testing.subject import Subject

ROWS = np.arange(24, dtype="float32").reshape(8, 3)
GIVEN: Mapping[str, Callable[[], Array]] = {
    "as it is": lambda: ROWS.copy(),
    "a part of another": lambda: np.vstack([ROWS, ROWS])[3:11],
    "transposed": lambda: ROWS.copy().T,
    "every second row": lambda: np.repeat(ROWS, 2, axis=0)[::2],
    "of the other byte order": lambda: ROWS.astype(">f4"),
    "a scalar": lambda: np.array(2.5, "float32"),
    "without rows": lambda: ROWS[:0].copy(),
    "of memory that is not NumPy's": lambda: np.frombuffer(bytearray(ROWS.tobytes()), "float32"),
    "read-only": lambda: np.frombuffer(ROWS.tobytes(), "float32"),
}
BUFFERS = (((6, 3), "float32"), ((6,), "int32"), ((4, 2, 2), "uint8"), ((3, 0), "float32"), ((), "float32"))


def arrived(sent: AsyncCopy) -> Any:
    """The tensor once it may be used."""
    sent.wait()
    return sent.tensor


@pytest.mark.anyaccel_capability("exchange")
class GivingTests(Subject):
    """Every promise of `take`, `buffer` and `send`."""

    @pytest.fixture
    def exchange(self, backend: Backend) -> Iterator[Exchange]:
        """The backend, by the name of the capability."""
        yield cast("Exchange", backend)

    def filled(self, exchange: Exchange, values: Array, device: Device) -> Array:
        """A buffer with these values."""
        buffer = exchange.staging_buffer(values.shape, values.dtype.name, device)
        buffer[...] = values
        return buffer

    # -- given away ------------------------------------------------------------------------------------------------

    def test_take_lands(self, backend: Backend, exchange: Exchange) -> None:
        """What is taken is a tensor of the backend's on the device, on every one."""
        for device in backend.devices():
            tensor = exchange.from_host_owned(ROWS.copy(), device)
            assert backend.owns(tensor)
            assert backend.device_of(tensor) == device

    @pytest.mark.parametrize("how", GIVEN)
    def test_take_keeps_values(self, backend: Backend, exchange: Exchange, how: str) -> None:
        """However an array lies in memory and whose it is, its shape, dtype and values arrive, on every device."""
        for device in backend.devices():
            found = exchange.to_host(exchange.from_host_owned(GIVEN[how](), device))
            wanted = GIVEN[how]()
            assert (found.shape, found.dtype.newbyteorder("=")) == (wanted.shape, wanted.dtype.newbyteorder("="))
            np.testing.assert_array_equal(found, wanted)

    def test_what_was_taken_stays(self, backend: Backend, exchange: Exchange) -> None:
        """A tensor keeps its values when the next array is taken, and when nobody else has the array any more."""
        for device in backend.devices():
            tensors = [exchange.from_host_owned(np.full((64, 64), i, "float32"), device) for i in range(4)]
            for i, tensor in enumerate(tensors):
                np.testing.assert_array_equal(exchange.to_host(tensor), np.full((64, 64), i))

    def test_take_refuses_what_it_lacks(self, exchange: Exchange, device: Device) -> None:
        """What no framework holds raises MoveError, though it was given away."""
        with pytest.raises(MoveError):
            exchange.from_host_owned(np.array([object()]), device)

    # -- sent ahead ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("shape", "dtype"), BUFFERS, ids=str)
    def test_buffers_are_as_asked(
        self, backend: Backend, exchange: Exchange, shape: tuple[int, ...], dtype: str
    ) -> None:
        """A buffer is a writable array in C's order, of the shape and dtype that were asked for."""
        for device in backend.devices():
            buffer = exchange.staging_buffer(shape, dtype, device)
            assert isinstance(buffer, np.ndarray)
            assert (buffer.shape, buffer.dtype.name) == (shape, dtype)
            assert buffer.flags.writeable and buffer.flags.c_contiguous

    def test_buffers_are_apart(self, exchange: Exchange, device: Device) -> None:
        """Each is memory of its own."""
        one, other = (exchange.staging_buffer((16, 3), "float32", device) for _ in range(2))
        assert not np.shares_memory(one, other)

    def test_what_is_sent_arrives(self, backend: Backend, exchange: Exchange) -> None:
        """Once it has arrived it is a tensor with the values of the array, on every device."""
        for device in backend.devices():
            tensor = arrived(exchange.copy_async(self.filled(exchange, ROWS, device), device))
            assert backend.device_of(tensor) == device
            np.testing.assert_array_equal(exchange.to_host(tensor), ROWS)

    @pytest.mark.parametrize("part", [slice(0, 5), slice(2, 8), slice(0, 0)], ids=str)
    def test_a_part_of_a_buffer_is_sent(self, exchange: Exchange, device: Device, part: slice) -> None:
        """A part of one is sent alone, as the last block of an epoch is."""
        tensor = arrived(exchange.copy_async(self.filled(exchange, ROWS, device)[part], device))
        np.testing.assert_array_equal(exchange.to_host(tensor), ROWS[part])

    @pytest.mark.parametrize("arrives_first", [False, True])
    def test_a_buffer_is_free_once_it_was_read(self, backend: Backend, exchange: Exchange, arrives_first: bool) -> None:
        """The tensor does not follow what is written to the buffer then; `read` may be called again."""
        for device in backend.devices():
            buffer = self.filled(exchange, np.ones((64, 64), "float32"), device)
            sent = exchange.copy_async(buffer, device)
            if arrives_first:
                sent.wait()
            sent.source_reusable()
            buffer[...] = 7
            sent.source_reusable()
            tensor = sent.tensor if arrives_first else arrived(sent)
            np.testing.assert_array_equal(exchange.to_host(tensor), np.ones((64, 64)))

    def test_several_are_on_their_way(self, exchange: Exchange, device: Device) -> None:
        """One is sent before the last has arrived, and they arrive in any order."""
        sent = [exchange.copy_async(self.filled(exchange, ROWS + i, device), device) for i in range(4)]
        for i in (2, 0, 3, 1):
            np.testing.assert_array_equal(exchange.to_host(arrived(sent[i])), ROWS + i)

    def test_another_thread_sends(self, backend: Backend, exchange: Exchange) -> None:
        """A thread of its own fills two buffers in turn and sends them, while another computes."""
        blocks = [ROWS + 10 * i for i in range(6)]
        for device in backend.devices():
            buffers = [exchange.staging_buffer(ROWS.shape, "float32", device) for _ in range(2)]
            with ThreadPoolExecutor(1) as thread:
                under_way = [thread.submit(self._send_into, exchange, buffers, blocks, i, device) for i in range(6)]
                found = [exchange.to_host(arrived(one.result())) for one in under_way]
            np.testing.assert_array_equal(found, blocks)

    def _send_into(
        self, exchange: Exchange, buffers: list[Array], blocks: list[Array], i: int, device: Device
    ) -> AsyncCopy:
        buffer = buffers[i % len(buffers)]
        buffer[...] = blocks[i]
        sent = exchange.copy_async(buffer, device)
        sent.source_reusable()
        return sent

    def test_sent_arrays_are_refused_where_dtypes_are_lacking(self, exchange: Exchange, device: Device) -> None:
        """What no framework holds raises MoveError when it is sent, not when it has arrived."""
        with pytest.raises(MoveError):
            exchange.copy_async(np.array([object()]), device)
