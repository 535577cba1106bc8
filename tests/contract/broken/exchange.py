"""Wrong backends: exchange with the host and with other frameworks, and gathering of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.numpy_backend import NumpyBackend, SimArray
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_array import bare, put

from .faults import fault

CPU = Device("cpu")


@fault("exchange", "test_from_host_owns_its_memory[False]")
class FromHostAliases(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        if device == CPU or array.dtype.hasobject or array.dtype.kind in "UV":
            return super().from_host(array, device)
        alias = array.view(SimArray)
        alias.on = handle(device)
        return alias


@fault("exchange", "test_dtypes_are_kept[int64]")
class FromHostNarrows(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(array.astype("int32") if array.dtype == np.int64 else array, device)


@fault("exchange", "test_arrays_survive_the_round_trip[()]")
class FromHostAddsAnAxis(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(np.atleast_1d(array), device)


@fault("exchange", "test_every_value_is_kept[1e-45]")
class FlushesSubnormalsToZero(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        small = array.dtype == np.float32 and array.size == 1 and abs(array) < 1e-38
        return super().from_host(np.zeros_like(array) if small else array, device)


@fault("exchange", "test_from_host_puts_the_tensor_on_the_device")
class PinnedStaysOnTheHost(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(array, CPU if pinned else device)


@fault("exchange", "test_pinned_does_not_change_the_result")
class PinnedIsNotWaitedFor(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(np.zeros_like(array) if pinned else array, device)


@fault("exchange", "test_from_host_takes_any_layout[every second row]")
class IgnoresStrides(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.ndim == 2 and array.base is not None and not array.flags.c_contiguous:
            array = np.resize(array.base, array.shape)
        return super().from_host(array, device)


@fault("exchange", "test_from_host_takes_read_only_arrays")
class WritesToItsSource(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.ndim == 2 and array.flags.owndata:
            array.flat[0] = array.flat[0]
        return super().from_host(array, device)


@fault("exchange", "test_an_unsupported_dtype_raises_move_error[object]")
class FrameworksOwnError(NumpyBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.dtype.kind in "OUV":
            raise TypeError("unsupported dtype")
        return super().from_host(array, device)


@fault("exchange", "test_scalars_are_read_together_in_order")
class ScalarsInFloat32(NumpyBackend):
    def scalars(self, values):
        return super().scalars(values).astype("float32")


@fault("exchange", "test_no_scalars_are_an_empty_array")
class ScalarsNeedOne(NumpyBackend):
    def scalars(self, values):
        return np.stack([np.float64(self.to_host(value)) for value in values])


@fault("exchange", "test_from_dlpack_takes_values_from_another_framework")
class FromDlpackStaysOnTheCpu(NumpyBackend):
    def from_dlpack(self, foreign, device):
        return super().from_dlpack(foreign, CPU)


@fault("exchange", "test_from_dlpack_keeps_the_dtype[float64]")
class FromDlpackNarrows(NumpyBackend):
    def from_dlpack(self, foreign, device):
        return super().from_dlpack(foreign.astype("float32") if isinstance(foreign, np.ndarray) else foreign, device)


@fault("exchange", "test_from_dlpack_refuses_what_is_no_tensor")
class FromDlpackTakesAnything(NumpyBackend):
    def from_dlpack(self, foreign, device):
        return super().from_dlpack(foreign, device) if isinstance(foreign, np.ndarray) else foreign


@fault("exchange", "test_from_dlpack_takes_any_dlpack_object")
class FromDlpackTakesOnlyNumPy(NumpyBackend):
    def from_dlpack(self, foreign, device):
        if not isinstance(foreign, np.ndarray):
            raise MoveError("this is no array of NumPy's")
        return super().from_dlpack(foreign, device)


@fault("exchange", "test_from_dlpack_takes_any_layout[transposed]")
class FromDlpackIgnoresStrides(NumpyBackend):
    def from_dlpack(self, foreign, device):
        strided = isinstance(foreign, np.ndarray) and not foreign.flags.c_contiguous
        return super().from_dlpack(foreign.ravel("K").reshape(foreign.shape) if strided else foreign, device)


@fault("exchange", "test_from_dlpack_takes_any_layout[reversed]")
class FromDlpackRefusesNegativeStrides(NumpyBackend):
    def from_dlpack(self, foreign, device):
        if isinstance(foreign, np.ndarray) and any(stride < 0 for stride in foreign.strides):
            raise MoveError("strides must not be negative")
        return super().from_dlpack(foreign, device)


@fault("exchange", "test_from_dlpack_takes_any_layout[no columns]")
class FromDlpackLosesEmptyShapes(NumpyBackend):
    def from_dlpack(self, foreign, device):
        tensor = super().from_dlpack(foreign, device)
        return super().from_dlpack(np.zeros(0, tensor.dtype), device) if tensor.size == 0 else tensor


@fault("exchange", "test_from_dlpack_takes_read_only_arrays")
class FromDlpackRefusesReadOnlyArrays(NumpyBackend):
    def from_dlpack(self, foreign, device):
        if isinstance(foreign, np.ndarray) and not foreign.flags.writeable and foreign.shape == (8, 3):
            raise BufferError("cannot export a read-only array")
        return super().from_dlpack(foreign, device)


@fault("exchange", "test_from_dlpack_does_not_change_the_source")
class FromDlpackMakesTheSourceReadOnly(NumpyBackend):
    def from_dlpack(self, foreign, device):
        tensor = super().from_dlpack(foreign, device)
        if isinstance(foreign, np.ndarray) and not isinstance(foreign, SimArray):
            foreign.flags.writeable = False
        return tensor


@fault("exchange", "test_from_dlpack_takes_its_own_tensors")
class FromDlpackDoesNotMoveItsOwn(NumpyBackend):
    def from_dlpack(self, foreign, device):
        return foreign if isinstance(foreign, SimArray) else super().from_dlpack(foreign, device)


@fault("exchange", "test_a_device_in_host_memory_exports_its_tensors")
class PromisesHostMemoryWithoutDlpack(NumpyBackend):
    def device_info(self, device):
        return replace(super().device_info(device), memory_space="host")


@fault("exchange", "test_index_dtype_is_a_dtype_of_the_backend")
class IndicesOf16Bits(NumpyBackend):
    index_dtype = "int16"


@fault("exchange", "test_index_dtype_is_a_dtype_of_the_backend")
class NarrowIndicesAreWidened(NumpyBackend):
    index_dtype = "int32"

    def from_host(self, array, device, *, pinned=False):
        indices = array.dtype == np.int32 and array.ndim == 1
        return super().from_host(array.astype("int64") if indices else array, device)


@fault("exchange", "test_gather_rows_with_an_order_gathers[3-7]")
class NarrowOrdersAreReadAsWide(NumpyBackend):
    index_dtype = "int32"

    def gather_rows(self, column, start, stop, order=None):
        return super().gather_rows(
            column, start, stop, order if order is None else order[: len(order) // 2 * 2].view("int64")
        )


@fault("exchange", "test_gather_rows_without_an_order_is_a_slice[3-7]")
class OneRowTooMany(NumpyBackend):
    def gather_rows(self, column, start, stop, order=None):
        return super().gather_rows(column, start, stop + 1 if order is None else stop, order)


@fault("exchange", "test_gather_rows_with_an_order_gathers[3-7]")
class RowsIgnoreTheOrder(NumpyBackend):
    def gather_rows(self, column, start, stop, order=None):
        return super().gather_rows(column, start, stop)


@fault("exchange", "test_gather_rows_stays_on_the_device")
class GathersOnTheHost(NumpyBackend):
    def gather_rows(self, column, start, stop, order=None):
        return np.array(np.asarray(super().gather_rows(column, start, stop, order)))


@fault("exchange", "test_gather_rows_uses_the_first_axis[(8, 2, 2)]")
class RowsOfTheLastAxis(NumpyBackend):
    def gather_rows(self, column, start, stop, order=None):
        return column[..., start:stop] if np.ndim(column) == 3 else super().gather_rows(column, start, stop, order)


@fault("exchange", "test_gather_rows_keeps_the_dtype[int32]")
class RowsAreFloats(NumpyBackend):
    def gather_rows(self, column, start, stop, order=None):
        result = super().gather_rows(column, start, stop, order)
        return put(bare(result).astype("float32"), column.on) if result.dtype == np.int32 else result
