"""Tests of the contract of `Exchange`: arrays from and to the host, DLPack, rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Backend, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel_devtools.testing.backend_tests import DTYPES
from anyaccel_devtools.testing.harness import Array
from anyaccel_devtools.testing.ownership_tests import OwnershipTests
from anyaccel_devtools.testing.transfer_tests import TransferTests

SHAPES = ((), (1,), (5,), (2, 3), (3, 1, 2), (0,), (0, 4), (4, 0, 2))
ROWS = np.arange(24, dtype="float32").reshape(8, 3)
LAYOUTS: Mapping[str, Callable[[Array], Array]] = {
    "transposed": lambda a: a.T,
    "every second row": lambda a: a[::2],
    "reversed": lambda a: a[::-1],
    "a column": lambda a: a[:, 1],
    "broadcast": lambda a: np.broadcast_to(a[:1], (4, 3)),
    "in Fortran order": np.asfortranarray,
    "a scalar": lambda a: a[2, 1:2].reshape(()),
    "no rows": lambda a: a[:0],
    "no columns": lambda a: a[:, :0],
}


def sample_values(shape: tuple[int, ...], dtype: str) -> Array:
    """Return small numbers of a shape and dtype."""
    count = int(np.prod(shape))
    return (np.arange(count) % 100 if dtype != "bool" else np.arange(count) % 3 == 0).astype(dtype).reshape(shape)


class DLPackOnly:
    """An array with nothing but the DLPack protocol, like that of another framework."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **settings: Any) -> Any:
        return self._array.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class ExchangeTests(OwnershipTests, TransferTests):
    """Everything that `Exchange` promises. Arrays are read with `to_host`, which is under test as well."""

    capability = "exchange"

    def from_host_or_skip(self, exchange: Exchange, array: Array, device: Device) -> Any:
        """Return the array on the device, or a skip where the framework or the device lacks the dtype."""
        try:
            return exchange.from_host(array, device)
        except MoveError:
            pytest.skip(f"{array.dtype} is not supported on {device}")

    def order(self, exchange: Exchange, rows: list[int], device: Device) -> Any:
        """Return row numbers in the backend's index dtype, on the device."""
        return exchange.from_host(np.array(rows, exchange.index_dtype), device)

    # -- from and to the host --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_arrays_survive_the_round_trip(self, exchange: Exchange, device: Device, shape: tuple[int, ...]) -> None:
        """Shape and values are kept, including those of scalars and of arrays without elements."""
        array = sample_values(shape, "float32")
        back = exchange.to_host(exchange.from_host(array, device))
        assert isinstance(back, np.ndarray)
        assert back.shape == shape
        np.testing.assert_array_equal(back, array)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes_are_kept(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """The dtype survives the round trip; an unsupported one raises MoveError."""
        array = sample_values((2, 3), dtype)
        back = exchange.to_host(self.from_host_or_skip(exchange, array, device))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)

    @pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, -0.0, 1e-45, 16777217.0])
    def test_every_value_is_kept(self, exchange: Exchange, device: Device, number: float) -> None:
        """Non-finite, subnormal and negative zero values are kept bit for bit."""
        array = np.array([number], "float32")
        back = exchange.to_host(exchange.from_host(array, device))
        assert back.tobytes() == array.tobytes()

    def test_from_host_puts_the_tensor_on_the_device(self, backend: Backend, exchange: Exchange) -> None:
        """`device_of` gives the device that was asked for, pinned or not."""
        for device in backend.devices():
            assert backend.device_of(exchange.from_host(ROWS, device)) == device
            assert backend.device_of(exchange.from_host(ROWS, device, pinned=True)) == device

    def test_pinned_does_not_change_the_result(self, backend: Backend, exchange: Exchange) -> None:
        """Pinned or not, values are the same."""
        for device in backend.devices():
            np.testing.assert_array_equal(exchange.to_host(exchange.from_host(ROWS, device, pinned=True)), ROWS)

    @pytest.mark.parametrize("pinned", [False, True])
    def test_from_host_owns_its_memory(self, exchange: Exchange, device: Device, pinned: bool) -> None:
        """The array may be changed at once without changing the tensor."""
        array = np.ones((64, 64), "float32")
        tensor = exchange.from_host(array, device, pinned=pinned)
        array[:] = 7
        np.testing.assert_array_equal(exchange.to_host(tensor), np.ones((64, 64)))

    @pytest.mark.parametrize("layout", [*LAYOUTS, "in the other byte order"])
    def test_from_host_takes_any_layout(self, exchange: Exchange, device: Device, layout: str) -> None:
        """Strides and byte order do not matter."""
        array = LAYOUTS[layout](ROWS) if layout in LAYOUTS else ROWS.astype(">f4")
        np.testing.assert_array_equal(exchange.to_host(exchange.from_host(array, device)), array)

    def test_from_host_takes_read_only_arrays(self, exchange: Exchange, device: Device) -> None:
        """A read-only array is taken without a warning."""
        array = ROWS.copy()
        array.flags.writeable = False
        np.testing.assert_array_equal(exchange.to_host(exchange.from_host(array, device)), ROWS)

    @pytest.mark.parametrize(
        "unsupported",
        [np.array([object()]), np.array(["text"]), np.array([(1,)], [("a", "i4")])],
        ids=["object", "text", "structured"],
    )
    def test_an_unsupported_dtype_raises_move_error(
        self, exchange: Exchange, device: Device, unsupported: Array
    ) -> None:
        """It raises MoveError, not the framework's own exception."""
        with pytest.raises(MoveError):
            exchange.from_host(unsupported, device)

    def test_scalars_are_read_together_in_order(self, exchange: Exchange, device: Device) -> None:
        """Scalars are returned as one float64 array, in the order given."""
        values = [3.5, -1.0, 0.25, 1e10]
        actual = exchange.scalars([exchange.from_host(np.array(v, "float32"), device) for v in values])
        assert actual.dtype == np.float64
        assert actual.shape == (4,)
        np.testing.assert_array_equal(actual, values)

    def test_no_scalars_are_an_empty_array(self, exchange: Exchange) -> None:
        """No scalars give shape (0,)."""
        assert exchange.scalars([]).shape == (0,)

    # -- from other frameworks -------------------------------------------------------------------------------------

    def test_from_dlpack_takes_values_from_another_framework(self, backend: Backend, exchange: Exchange) -> None:
        """A foreign array (NumPy's here) becomes a tensor of this framework with the same values."""
        for device in backend.devices():
            tensor = exchange.from_dlpack(ROWS.copy(), device)
            assert backend.owns(tensor)
            assert backend.device_of(tensor) == device
            np.testing.assert_array_equal(exchange.to_host(tensor), ROWS)

    def test_from_dlpack_takes_any_dlpack_object(self, backend: Backend, exchange: Exchange, device: Device) -> None:
        """The DLPack protocol suffices; the object does not have to be a NumPy array."""
        tensor = exchange.from_dlpack(DLPackOnly(ROWS.copy()), device)
        assert backend.owns(tensor)
        np.testing.assert_array_equal(exchange.to_host(tensor), ROWS)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_from_dlpack_takes_any_layout(self, exchange: Exchange, device: Device, layout: str) -> None:
        """Values, shape and dtype are kept for any strides."""
        array = LAYOUTS[layout](ROWS.copy())
        actual = exchange.to_host(exchange.from_dlpack(array, device))
        assert (actual.shape, actual.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(actual, array)

    def test_from_dlpack_takes_read_only_arrays(self, exchange: Exchange, device: Device) -> None:
        """A read-only array is taken without a warning, and stays read-only."""
        array = ROWS.copy()
        array.flags.writeable = False
        np.testing.assert_array_equal(exchange.to_host(exchange.from_dlpack(array, device)), ROWS)
        assert not array.flags.writeable

    def test_from_dlpack_does_not_change_the_source(self, backend: Backend, exchange: Exchange) -> None:
        """Using the tensor changes neither the foreign array's values nor its writability."""
        for device in backend.devices():
            array = ROWS.copy()
            tensor = exchange.from_dlpack(array, device)
            exchange.gather_rows(tensor, 0, 2, self.order(exchange, [1, 0], device))
            backend.place([tensor], device)
            exchange.to_host(backend.move(tensor, device))
            np.testing.assert_array_equal(array, ROWS)
            assert array.flags.writeable

    def test_from_dlpack_takes_its_own_tensors(self, backend: Backend, exchange: Exchange, device: Device) -> None:
        """A tensor of this framework is moved to the device, or refused with MoveError."""
        rows = exchange.from_host(ROWS, device)
        for target in backend.devices():
            try:
                tensor = exchange.from_dlpack(rows, target)
            except MoveError:
                pytest.skip("its own tensors are refused")
            assert backend.device_of(tensor) == target
            np.testing.assert_array_equal(exchange.to_host(tensor), ROWS)

    @pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
    def test_from_dlpack_keeps_the_dtype(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """The dtype is kept; an unsupported one raises MoveError."""
        array = sample_values((4,), dtype)
        try:
            tensor = exchange.from_dlpack(array, device)
        except MoveError:
            pytest.skip(f"{dtype} is not supported on {device}")
        assert exchange.to_host(tensor).dtype == array.dtype

    def test_from_dlpack_refuses_what_is_no_tensor(self, exchange: Exchange, device: Device) -> None:
        """An object without DLPack raises MoveError."""
        with pytest.raises(MoveError):
            exchange.from_dlpack(object(), device)

    def test_a_device_in_host_memory_exports_its_tensors(self, backend: Backend, exchange: Exchange) -> None:
        """`np.from_dlpack` reads tensors on a device whose `memory_space` is "host", as other frameworks do then."""
        for device in backend.devices():
            if backend.device_info(device).memory_space == "host":
                np.testing.assert_array_equal(np.from_dlpack(exchange.from_host(ROWS, device)), ROWS)

    # -- rows ------------------------------------------------------------------------------------------------------

    def test_index_dtype_is_a_dtype_of_the_backend(self, backend: Backend, exchange: Exchange) -> None:
        """It is int64 or int32, and every device supports it."""
        assert exchange.index_dtype in ("int64", "int32")
        for device in backend.devices():
            back = exchange.to_host(self.order(exchange, [1, 0], device))
            assert back.dtype.name == exchange.index_dtype
            np.testing.assert_array_equal(back, [1, 0])

    @pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 3), (3, 7), (6, 8), (2, 2), (6, 20)])
    def test_gather_rows_without_an_order_is_a_slice(
        self, exchange: Exchange, device: Device, start: int, stop: int
    ) -> None:
        """`column[start:stop]`, shorter at the end like any slice."""
        actual = exchange.gather_rows(exchange.from_host(ROWS, device), start, stop)
        np.testing.assert_array_equal(exchange.to_host(actual), ROWS[start:stop])

    @pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 3), (3, 7), (6, 8), (2, 2), (6, 20)])
    def test_gather_rows_with_an_order_gathers(self, exchange: Exchange, device: Device, start: int, stop: int) -> None:
        """It returns `column[order[start:stop]]`; rows may be repeated or omitted."""
        order = [5, 0, 7, 7, 2, 1, 6, 3]
        actual = exchange.gather_rows(
            exchange.from_host(ROWS, device), start, stop, self.order(exchange, order, device)
        )
        np.testing.assert_array_equal(exchange.to_host(actual), ROWS[order[start:stop]])

    @pytest.mark.parametrize("shape", [(8,), (8, 2, 2), (8, 0)], ids=str)
    def test_gather_rows_uses_the_first_axis(self, exchange: Exchange, device: Device, shape: tuple[int, ...]) -> None:
        """Rows may have any shape."""
        array = sample_values(shape, "float32")
        column = exchange.from_host(array, device)
        np.testing.assert_array_equal(exchange.to_host(exchange.gather_rows(column, 1, 4)), array[1:4])
        actual = exchange.gather_rows(column, 0, 2, self.order(exchange, [3, 1], device))
        np.testing.assert_array_equal(exchange.to_host(actual), array[[3, 1]])

    def test_gather_rows_stays_on_the_device(self, backend: Backend, exchange: Exchange) -> None:
        """A batch is on the device of its column."""
        for device in backend.devices():
            column, order = exchange.from_host(ROWS, device), self.order(exchange, [1, 0], device)
            assert backend.device_of(exchange.gather_rows(column, 0, 2)) == device
            assert backend.device_of(exchange.gather_rows(column, 0, 2, order)) == device

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gather_rows_keeps_the_dtype(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """A batch has the dtype of its column."""
        array = sample_values((4, 2), dtype)
        column, order = self.from_host_or_skip(exchange, array, device), self.order(exchange, [1, 0], device)
        for actual, rows in (
            (exchange.gather_rows(column, 0, 2, order), [1, 0]),
            (exchange.gather_rows(column, 1, 3), [1, 2]),
        ):
            assert exchange.to_host(actual).dtype == array.dtype
            np.testing.assert_array_equal(exchange.to_host(actual), array[rows])
