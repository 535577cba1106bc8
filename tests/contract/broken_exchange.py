"""Wrong backends: exchange with the host, and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from broken import fault

from anyaccel.backend import MemoryInfo
from anyaccel.device import Device
from anyaccel.reference import ReferenceBackend, SimArray
from anyaccel.reference.arrays import bare, put
from anyaccel.reference.creation import handle

CPU = Device("cpu")

# -- exchange ----------------------------------------------------------------------------------------------------------


@fault("exchange", "test_from_host_owns_its_memory[False]")
class FromHostAliases(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        if device == CPU or array.dtype.hasobject or array.dtype.kind in "UV":
            return super().from_host(array, device)
        alias = array.view(SimArray)
        alias.on = handle(device)
        return alias


@fault("exchange", "test_dtypes_are_kept[int64]")
class FromHostNarrows(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(array.astype("int32") if array.dtype == np.int64 else array, device)


@fault("exchange", "test_arrays_come_back_as_they_went[()]")
class FromHostAddsAnAxis(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(np.atleast_1d(array), device)


@fault("exchange", "test_every_number_is_kept[1e-45]")
class FlushesToZero(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        small = array.dtype == np.float32 and array.size == 1 and abs(array) < 1e-38
        return super().from_host(np.zeros_like(array) if small else array, device)


@fault("exchange", "test_from_host_lands")
class PinnedStaysOnTheHost(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(array, CPU if pinned else device)


@fault("exchange", "test_pinned_is_only_a_wish")
class PinnedIsNotWaitedFor(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        return super().from_host(np.zeros_like(array) if pinned else array, device)


@fault("exchange", "test_from_host_takes_any_layout[every second row]")
class IgnoresStrides(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.ndim == 2 and array.base is not None and not array.flags.c_contiguous:
            array = np.resize(array.base, array.shape)
        return super().from_host(array, device)


@fault("exchange", "test_from_host_takes_read_only_arrays")
class WritesToItsSource(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.ndim == 2 and array.flags.owndata:
            array.flat[0] = array.flat[0]
        return super().from_host(array, device)


@fault("exchange", "test_a_dtype_that_is_lacking_is_a_named_error[lacking0]")
class FrameworksOwnError(ReferenceBackend):
    def from_host(self, array, device, *, pinned=False):
        if array.dtype.kind in "OUV":
            raise TypeError("unsupported dtype")
        return super().from_host(array, device)


@fault("exchange", "test_scalars_come_together_and_in_order")
class ScalarsInFloat32(ReferenceBackend):
    def scalars(self, values):
        return super().scalars(values).astype("float32")


@fault("exchange", "test_no_scalars_are_an_empty_array")
class ScalarsNeedOne(ReferenceBackend):
    def scalars(self, values):
        return np.stack([np.float64(self.to_host(value)) for value in values])


@fault("exchange", "test_adopt_takes_values_from_another_framework")
class AdoptsOntoTheCpu(ReferenceBackend):
    def adopt(self, foreign, device):
        return super().adopt(foreign, CPU)


@fault("exchange", "test_adopt_keeps_the_dtype[float64]")
class AdoptsInFloat32(ReferenceBackend):
    def adopt(self, foreign, device):
        return super().adopt(foreign.astype("float32") if isinstance(foreign, np.ndarray) else foreign, device)


@fault("exchange", "test_adopt_refuses_what_is_no_tensor")
class AdoptsAnything(ReferenceBackend):
    def adopt(self, foreign, device):
        return super().adopt(foreign, device) if isinstance(foreign, np.ndarray) else foreign


@fault("exchange", "test_rows_without_an_order_are_a_slice[3-7]")
class OneRowTooMany(ReferenceBackend):
    def rows(self, column, start, stop, order=None):
        return super().rows(column, start, stop + 1 if order is None else stop, order)


@fault("exchange", "test_rows_with_an_order_are_gathered[3-7]")
class RowsIgnoreTheOrder(ReferenceBackend):
    def rows(self, column, start, stop, order=None):
        return super().rows(column, start, stop)


@fault("exchange", "test_rows_stay_on_the_device")
class GathersOnTheHost(ReferenceBackend):
    def rows(self, column, start, stop, order=None):
        return np.array(np.asarray(super().rows(column, start, stop, order)))


@fault("exchange", "test_rows_are_of_the_first_axis[(8, 2, 2)]")
class RowsOfTheLastAxis(ReferenceBackend):
    def rows(self, column, start, stop, order=None):
        return column[..., start:stop] if np.ndim(column) == 3 else super().rows(column, start, stop, order)


@fault("exchange", "test_rows_keep_the_dtype")
class RowsAreFloats(ReferenceBackend):
    def rows(self, column, start, stop, order=None):
        found = super().rows(column, start, stop, order)
        return put(bare(found).astype("float32"), column.on) if found.dtype == np.int32 else found


# -- memory ------------------------------------------------------------------------------------------------------------


@fault("memory", "test_figures_are_counts_of_bytes")
class MemoryInGigabytes(ReferenceBackend):
    def memory(self, device):
        info = super().memory(device)
        return MemoryInfo(*(figure / 2**30 for figure in (info.total, info.free, info.used, info.peak)))

    def device_info(self, device):
        return replace(super().device_info(device), total_memory=0)


@fault("memory", "test_figures_fit_together")
class MoreFreeThanThereIs(ReferenceBackend):
    def memory(self, device):
        info = super().memory(device)
        return replace(info, free=info.total * 2)


@fault("memory", "test_the_peak_is_at_least_what_is_used")
class PeakOfAnotherTime(ReferenceBackend):
    def memory(self, device):
        return replace(super().memory(device), used=2, peak=1)


@fault("memory", "test_total_is_that_of_device_info")
class TwoTotals(ReferenceBackend):
    def memory(self, device):
        info = super().memory(device)
        return replace(info, total=info.total + 1)

    def device_info(self, device):
        return replace(super().device_info(device), total_memory=17)


@fault("memory", "test_release_keeps_tensors")
class ReleasesWhatIsInUse(ReferenceBackend):
    last = None

    def move(self, tensor, device, *, pinned=False):
        self.last = super().move(tensor, device)
        return self.last

    def release_memory(self, device):
        if isinstance(self.last, SimArray):
            bare(self.last)[...] = 0


@fault("memory", "test_release_may_be_called_twice")
class ReleasesOnce(ReferenceBackend):
    released = False

    def release_memory(self, device):
        if self.released:
            raise RuntimeError("double free")
        self.released = True
