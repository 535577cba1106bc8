"""ExchangeTests: the promises of a backend that takes and gives arrays of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Backend, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.testing.backend_tests import DTYPES
from anyaccel.testing.harness import Array
from anyaccel.testing.ownership_tests import GivingTests

SHAPES = ((), (1,), (5,), (2, 3), (3, 1, 2), (0,), (0, 4), (4, 0, 2))
ROWS = np.arange(24, dtype="float32").reshape(8, 3)
LAYOUTS: Mapping[str, Callable[[Array], Array]] = {
    "transposed": lambda a: a.T,
    "every second row": lambda a: a[::2],
    "backwards": lambda a: a[::-1],
    "a column": lambda a: a[:, 1],
    "one row four times": lambda a: np.broadcast_to(a[:1], (4, 3)),
    "in Fortran's order": np.asfortranarray,
    "a scalar": lambda a: a[2, 1:2].reshape(()),
    "no rows": lambda a: a[:0],
    "no columns": lambda a: a[:, :0],
}


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """Distinct small numbers of a shape and dtype."""
    count = int(np.prod(shape))
    return (np.arange(count) % 100 if dtype != "bool" else np.arange(count) % 3 == 0).astype(dtype).reshape(shape)


class Speaker:
    """An array that only speaks DLPack, as those of another framework."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **settings: Any) -> Any:
        return self._array.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.anyaccel_capability("exchange")
class ExchangeTests(GivingTests):
    """Every promise of `Exchange`. Arrays are compared with `to_host`, which is itself under test here."""

    def taken(self, exchange: Exchange, array: Array, device: Device) -> Any:
        """The array on the device, or a skip where the framework or the device lacks the dtype."""
        try:
            return exchange.from_host(array, device)
        except MoveError:
            pytest.skip(f"no {array.dtype} here")

    def order(self, exchange: Exchange, rows: list[int], device: Device) -> Any:
        """Numbers of rows as the backend takes them."""
        return exchange.from_host(np.array(rows, exchange.index_dtype), device)

    # -- from and to the host --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_arrays_come_back_as_they_went(self, exchange: Exchange, device: Device, shape: tuple[int, ...]) -> None:
        """Shape and values survive the way there and back, for scalars and for arrays without elements too."""
        array = numbers(shape, "float32")
        back = exchange.to_host(exchange.from_host(array, device))
        assert isinstance(back, np.ndarray)
        assert back.shape == shape
        np.testing.assert_array_equal(back, array)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes_are_kept(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """A dtype survives the way there and back; one that is lacking raises MoveError."""
        array = numbers((2, 3), dtype)
        back = exchange.to_host(self.taken(exchange, array, device))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)

    @pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, -0.0, 1e-45, 16777217.0])
    def test_every_number_is_kept(self, exchange: Exchange, device: Device, number: float) -> None:
        """Numbers that are not finite, subnormal or negative zero survive, to the bit."""
        array = np.array([number], "float32")
        back = exchange.to_host(exchange.from_host(array, device))
        assert back.tobytes() == array.tobytes()

    def test_from_host_lands(self, backend: Backend, exchange: Exchange) -> None:
        """A tensor that was made on a device is there, pinned or not."""
        for device in backend.devices():
            assert backend.device_of(exchange.from_host(ROWS, device)) == device
            assert backend.device_of(exchange.from_host(ROWS, device, pinned=True)) == device

    def test_pinned_is_only_a_wish(self, backend: Backend, exchange: Exchange) -> None:
        """Values are the same by either way."""
        for device in backend.devices():
            np.testing.assert_array_equal(exchange.to_host(exchange.from_host(ROWS, device, pinned=True)), ROWS)

    @pytest.mark.parametrize("pinned", [False, True])
    def test_from_host_owns_its_memory(self, exchange: Exchange, device: Device, pinned: bool) -> None:
        """The array may be changed at once: the tensor does not follow it."""
        array = np.ones((64, 64), "float32")
        tensor = exchange.from_host(array, device, pinned=pinned)
        array[:] = 7
        np.testing.assert_array_equal(exchange.to_host(tensor), np.ones((64, 64)))

    @pytest.mark.parametrize("layout", [*LAYOUTS, "of the other byte order"])
    def test_from_host_takes_any_layout(self, exchange: Exchange, device: Device, layout: str) -> None:
        """However an array lies in memory, its values arrive."""
        array = LAYOUTS[layout](ROWS) if layout in LAYOUTS else ROWS.astype(">f4")
        np.testing.assert_array_equal(exchange.to_host(exchange.from_host(array, device)), array)

    def test_from_host_takes_read_only_arrays(self, exchange: Exchange, device: Device) -> None:
        """An array that may not be written to arrives, without a warning, and stays as it is."""
        array = ROWS.copy()
        array.flags.writeable = False
        np.testing.assert_array_equal(exchange.to_host(exchange.from_host(array, device)), ROWS)

    @pytest.mark.parametrize("lacking", [np.array([object()]), np.array(["text"]), np.array([(1,)], [("a", "i4")])])
    def test_a_dtype_that_is_lacking_is_a_named_error(self, exchange: Exchange, device: Device, lacking: Array) -> None:
        """What no framework holds raises MoveError, not whatever the framework says."""
        with pytest.raises(MoveError):
            exchange.from_host(lacking, device)

    def test_scalars_come_together_and_in_order(self, exchange: Exchange, device: Device) -> None:
        """Many scalars come as float64 in the order in which they were given."""
        values = [3.5, -1.0, 0.25, 1e10]
        found = exchange.scalars([exchange.from_host(np.array(v, "float32"), device) for v in values])
        assert found.dtype == np.float64
        assert found.shape == (4,)
        np.testing.assert_array_equal(found, values)

    def test_no_scalars_are_an_empty_array(self, exchange: Exchange) -> None:
        """None at all is an answer, too."""
        assert exchange.scalars([]).shape == (0,)

    # -- from other frameworks -------------------------------------------------------------------------------------

    def test_adopt_takes_values_from_another_framework(self, backend: Backend, exchange: Exchange) -> None:
        """An array of another framework (NumPy here), by DLPack, is a tensor of this one with the same values."""
        for device in backend.devices():
            adopted = exchange.from_dlpack(ROWS.copy(), device)
            assert backend.owns(adopted)
            assert backend.device_of(adopted) == device
            np.testing.assert_array_equal(exchange.to_host(adopted), ROWS)

    def test_adopt_takes_what_speaks_dlpack(self, backend: Backend, exchange: Exchange, device: Device) -> None:
        """The other framework may be any: its array has DLPack, and need not be one of NumPy's."""
        adopted = exchange.from_dlpack(Speaker(ROWS.copy()), device)
        assert backend.owns(adopted)
        np.testing.assert_array_equal(exchange.to_host(adopted), ROWS)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_adopt_takes_any_layout(self, exchange: Exchange, device: Device, layout: str) -> None:
        """However a foreign array lies in memory, it is adopted with its values, shape and dtype."""
        array = LAYOUTS[layout](ROWS.copy())
        found = exchange.to_host(exchange.from_dlpack(array, device))
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(found, array)

    def test_adopt_takes_read_only_arrays(self, exchange: Exchange, device: Device) -> None:
        """An array that may not be written to is adopted, without a warning, and stays so."""
        array = ROWS.copy()
        array.flags.writeable = False
        np.testing.assert_array_equal(exchange.to_host(exchange.from_dlpack(array, device)), ROWS)
        assert not array.flags.writeable

    def test_adopt_leaves_the_source_as_it_is(self, backend: Backend, exchange: Exchange) -> None:
        """Whatever is done with what was adopted, the foreign array keeps its values, and can still be written to."""
        for device in backend.devices():
            array = ROWS.copy()
            adopted = exchange.from_dlpack(array, device)
            exchange.gather_rows(adopted, 0, 2, self.order(exchange, [1, 0], device))
            backend.place([adopted], device)
            exchange.to_host(backend.move(adopted, device))
            np.testing.assert_array_equal(array, ROWS)
            assert array.flags.writeable

    def test_adopt_takes_its_own(self, backend: Backend, exchange: Exchange, device: Device) -> None:
        """A tensor that is this framework's already is taken to where it is wanted, or refused as no foreign one."""
        own = exchange.from_host(ROWS, device)
        for wanted in backend.devices():
            try:
                adopted = exchange.from_dlpack(own, wanted)
            except MoveError:
                pytest.skip("its own tensors are refused")
            assert backend.device_of(adopted) == wanted
            np.testing.assert_array_equal(exchange.to_host(adopted), ROWS)

    @pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
    def test_adopt_keeps_the_dtype(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """What is adopted has the dtype it had; one that is lacking raises MoveError."""
        array = numbers((4,), dtype)
        try:
            adopted = exchange.from_dlpack(array, device)
        except MoveError:
            pytest.skip(f"no {dtype} here")
        assert exchange.to_host(adopted).dtype == array.dtype

    def test_adopt_refuses_what_is_no_tensor(self, exchange: Exchange, device: Device) -> None:
        """What cannot be taken over raises MoveError."""
        with pytest.raises(MoveError):
            exchange.from_dlpack(object(), device)

    # -- rows ------------------------------------------------------------------------------------------------------

    def test_index_dtype_is_a_dtype_of_the_backend(self, backend: Backend, exchange: Exchange) -> None:
        """It is one of two words, and every device takes arrays of it."""
        assert exchange.index_dtype in ("int64", "int32")
        for device in backend.devices():
            back = exchange.to_host(self.order(exchange, [1, 0], device))
            assert back.dtype.name == exchange.index_dtype
            np.testing.assert_array_equal(back, [1, 0])

    @pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 3), (3, 7), (6, 8), (2, 2), (6, 20)])
    def test_rows_without_an_order_are_a_slice(self, exchange: Exchange, device: Device, start: int, stop: int) -> None:
        """`column[start:stop]`, shorter at the end as slices are."""
        found = exchange.gather_rows(exchange.from_host(ROWS, device), start, stop)
        np.testing.assert_array_equal(exchange.to_host(found), ROWS[start:stop])

    @pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 3), (3, 7), (6, 8), (2, 2), (6, 20)])
    def test_rows_with_an_order_are_gathered(self, exchange: Exchange, device: Device, start: int, stop: int) -> None:
        """`column[order[start:stop]]`, with rows that come twice or never."""
        order = [5, 0, 7, 7, 2, 1, 6, 3]
        found = exchange.gather_rows(exchange.from_host(ROWS, device), start, stop, self.order(exchange, order, device))
        np.testing.assert_array_equal(exchange.to_host(found), ROWS[order[start:stop]])

    @pytest.mark.parametrize("shape", [(8,), (8, 2, 2), (8, 0)], ids=str)
    def test_rows_are_of_the_first_axis(self, exchange: Exchange, device: Device, shape: tuple[int, ...]) -> None:
        """Whatever the shape of a row."""
        array = numbers(shape, "float32")
        column = exchange.from_host(array, device)
        np.testing.assert_array_equal(exchange.to_host(exchange.gather_rows(column, 1, 4)), array[1:4])
        found = exchange.gather_rows(column, 0, 2, self.order(exchange, [3, 1], device))
        np.testing.assert_array_equal(exchange.to_host(found), array[[3, 1]])

    def test_rows_stay_on_the_device(self, backend: Backend, exchange: Exchange) -> None:
        """A batch is where its column is."""
        for device in backend.devices():
            column, order = exchange.from_host(ROWS, device), self.order(exchange, [1, 0], device)
            assert backend.device_of(exchange.gather_rows(column, 0, 2)) == device
            assert backend.device_of(exchange.gather_rows(column, 0, 2, order)) == device

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_keep_the_dtype(self, exchange: Exchange, device: Device, dtype: str) -> None:
        """A batch has the dtype of its column."""
        array = numbers((4, 2), dtype)
        column, order = self.taken(exchange, array, device), self.order(exchange, [1, 0], device)
        for found, rows in (
            (exchange.gather_rows(column, 0, 2, order), [1, 0]),
            (exchange.gather_rows(column, 1, 3), [1, 2]),
        ):
            assert exchange.to_host(found).dtype == array.dtype
            np.testing.assert_array_equal(exchange.to_host(found), array[rows])
