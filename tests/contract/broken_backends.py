"""Wrong backends: facts, placement, exchange and memory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from broken import SECOND, fault

from anyaccel.backend import MemoryInfo
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel.reference import ReferenceBackend, SimArray
from anyaccel.reference.arrays import bare, put
from anyaccel.reference.creation import handle, scoped

CPU = Device("cpu")

# -- facts -------------------------------------------------------------------------------------------------------------


@fault("backend", "test_making_it_imports_no_framework")
class ImportsAtOnce(ReferenceBackend):
    roots = ("numpy", "anyaccel", "colorsys")

    def __init__(self):
        import colorsys  # noqa: F401  # stands for a framework


@fault("backend", "test_facts_are_well_formed")
class ShoutsItsName(ReferenceBackend):
    framework = "NumPy"


@fault("backend", "test_facts_are_well_formed")
class SaysCuda(ReferenceBackend):
    kinds = ("cpu", "sim", "cuda")


@fault("backend", "test_devices_are_of_its_kinds")
class HidesAKind(ReferenceBackend):
    kinds = ("sim",)


@fault("backend", "test_devices_are_listed_once")
class ListsTwice(ReferenceBackend):
    def devices(self):
        return [*super().devices(), CPU]


@fault("backend", "test_devices_are_stable")
class ListsInAnyOrder(ReferenceBackend):
    turn = 0

    def devices(self):
        self.turn += 1
        return list(super().devices())[:: 1 if self.turn % 2 else -1]


@fault("backend", "test_device_strings_are_distinct_texts")
class CallsAllDevicesSim(ReferenceBackend):
    def device_string(self, device):
        return device.kind


@fault("backend", "test_device_info_is_well_formed")
class VendorInCapitals(ReferenceBackend):
    def device_info(self, device):
        return replace(super().device_info(device), vendor="NVIDIA")


@fault("backend", "test_identities_are_distinct")
class OneIdentityForAll(ReferenceBackend):
    def device_info(self, device):
        return replace(super().device_info(device), identity="0000:00:1e.0")


@fault("backend", "test_why_not_answers_for_an_absent_device")
class WhyNotRaises(ReferenceBackend):
    def why_not(self, device):
        raise DeviceUnavailableError(f"{device} is not here")


@fault("backend", "test_it_is_one_object_among_others")
class CannotBeLookedUp(ReferenceBackend):
    def __eq__(self, other):
        return isinstance(other, ReferenceBackend)


# -- tensors -----------------------------------------------------------------------------------------------------------


@fault("backend", "test_device_of_what_holds_no_tensor")
class EverythingIsOnTheCpu(ReferenceBackend):
    def device_of(self, obj):
        return super().device_of(obj) or CPU


@fault("backend", "test_device_of_a_tensor")
class ForgetsSmallTensors(ReferenceBackend):
    def device_of(self, obj):
        small = np.shape(obj) == (2, 3) and np.asarray(obj).min() < 0
        return CPU if small else super().device_of(obj)


@fault("backend", "test_move_keeps_the_dtype[int8]")
class MoveWidens(ReferenceBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return super().move(moved.astype("int16"), device) if moved.dtype == np.int8 and device == SECOND else moved


@fault("backend", "test_move_keeps_values")
class MoveLosesValues(ReferenceBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return abs(moved) if isinstance(tensor, SimArray) and tensor.device != device else moved


@fault("backend", "test_move_lands")
class MoveBetweenDevicesStays(ReferenceBackend):
    def move(self, tensor, device, *, pinned=False):
        return tensor if isinstance(tensor, SimArray) else super().move(tensor, device)


@fault("backend", "test_move_to_where_it_is_gives_the_same_object")
class MoveAlwaysCopies(ReferenceBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return moved.copy() if moved is tensor else moved


@fault("backend", "test_pinned_is_only_a_wish")
class PinsTowardsTheCpu(ReferenceBackend):
    def move(self, tensor, device, *, pinned=False):
        if pinned and device == CPU:
            raise RuntimeError("cannot pin")
        return super().move(tensor, device)


@fault("backend", "test_place_returns_what_to_use")
class PlaceReturnsNothing(ReferenceBackend):
    def place(self, obj, device):
        placed = super().place(obj, device)
        return None if isinstance(obj, np.ndarray) else placed


@fault("backend", "test_place_goes_through_a_tree")
class PlaceLeavesTrees(ReferenceBackend):
    def place(self, obj, device):
        return obj if isinstance(obj, dict) else super().place(obj, device)


@fault("backend", "test_place_twice_changes_nothing")
class PlaceInitialisesAgain(ReferenceBackend):
    def place(self, obj, device):
        return obj * 0 if isinstance(obj, SimArray) and obj.device == device else super().place(obj, device)


@fault("backend", "test_place_moves_between_devices")
class PlaceOnlyOnce(ReferenceBackend):
    def place(self, obj, device):
        return obj if isinstance(obj, SimArray) else super().place(obj, device)


@fault("backend", "test_synchronize_returns")
class CannotWaitForTheCpu(ReferenceBackend):
    def synchronize(self, device):
        if device == CPU:
            raise RuntimeError("no stream")


@fault("backend", "test_it_owns_its_tensors")
class OwnsModelsOnly(ReferenceBackend):
    def owns(self, obj):
        return super().owns(obj) and np.shape(obj) != (2, 3)


@fault("backend", "test_it_owns_nothing_foreign[{'a': 1}]")
class OwnsEveryDict(ReferenceBackend):
    def owns(self, obj):
        return super().owns(obj) or isinstance(obj, dict)


# -- scope -------------------------------------------------------------------------------------------------------------


@fault("backend", "test_scope_decides_where_new_tensors_land")
class ScopeDoesNothing(ReferenceBackend):
    @contextmanager
    def scope(self, device):
        yield


@fault("backend", "test_scope_decides_for_every_device")
class ScopeKnowsOneDevice(ReferenceBackend):
    def scope(self, device):
        return super().scope(Device(device.kind, 0))


@fault("backend", "test_scope_ends")
class ScopeNeverEnds(ReferenceBackend):
    @contextmanager
    def scope(self, device):
        self.left_open = [*getattr(self, "left_open", []), scoped(device)]
        self.left_open[-1].__enter__()
        yield


@fault("backend", "test_scope_ends_after_an_error")
class ScopeSurvivesErrors(ReferenceBackend):
    @contextmanager
    def scope(self, device):
        opened = scoped(device)
        opened.__enter__()
        try:
            yield
        except ArithmeticError:
            self.left_open = [*getattr(self, "left_open", []), opened]
            raise
        opened.__exit__(None, None, None)


@fault("backend", "test_scopes_nest")
class ScopeEndsOnTheCpu(ReferenceBackend):
    @contextmanager
    def scope(self, device):
        with scoped(device):
            yield
        self.left_open = [*getattr(self, "left_open", []), scoped(CPU)]
        self.left_open[-1].__enter__()


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
