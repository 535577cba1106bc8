"""Wrong backends: facts, tensors and scopes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel.numpy_backend import NumpyBackend, SimArray
from anyaccel.numpy_backend.array_creation import scoped
from anyaccel.numpy_backend.transfers import moved

from .faults import SECOND, fault

CPU = Device("cpu")

# -- facts -------------------------------------------------------------------------------------------------------------


@fault("backend", "test_making_it_imports_no_framework")
class ImportsAtOnce(NumpyBackend):
    import_roots = ("numpy", "anyaccel", "colorsys")

    def __init__(self):
        import colorsys  # noqa: F401  # stands for a framework


@fault("backend", "test_facts_are_well_formed")
class EnvironmentIsNotATuple(NumpyBackend):
    environment = "CUDA_VISIBLE_DEVICES"


@fault("backend", "test_facts_are_well_formed")
class FrameworkInCapitals(NumpyBackend):
    framework = "NumPy"


@fault("backend", "test_facts_are_well_formed")
class KindIsAnAlias(NumpyBackend):
    kinds = ("cpu", "sim", "cuda")


@fault("backend", "test_capabilities_are_what_they_are_entered_as")
class SettingsThatAreNone(NumpyBackend):
    capabilities = {**NumpyBackend.capabilities, HasSettings: lambda backend: backend}


@fault("backend", "test_devices_are_of_its_kinds")
class DeviceOfAnotherKind(NumpyBackend):
    kinds = ("sim",)


@fault("backend", "test_devices_are_listed_once")
class ListsTwice(NumpyBackend):
    def devices(self):
        return [*super().devices(), CPU]


@fault("backend", "test_devices_are_stable")
class ListsInAnyOrder(NumpyBackend):
    turn = 0

    def devices(self):
        self.turn += 1
        return list(super().devices())[:: 1 if self.turn % 2 else -1]


@fault("backend", "test_device_strings_are_distinct_texts")
class CallsAllDevicesSim(NumpyBackend):
    def device_string(self, device):
        return device.kind


@fault("backend", "test_device_info_is_well_formed")
class VendorInCapitals(NumpyBackend):
    def device_info(self, device):
        return replace(super().device_info(device), vendor="NVIDIA")


@fault("backend", "test_identities_are_distinct")
class OneIdentityForAll(NumpyBackend):
    def device_info(self, device):
        return replace(super().device_info(device), identity="0000:00:1e.0")


@fault("backend", "test_unavailable_reason_is_text_for_an_absent_device")
class UnavailableReasonRaises(NumpyBackend):
    def unavailable_reason(self, device):
        raise DeviceUnavailableError(f"{device} is not here")


@fault("backend", "test_it_is_hashable_and_equal_to_itself")
class IsNotHashable(NumpyBackend):
    def __eq__(self, other):
        return isinstance(other, NumpyBackend)


# -- tensors -----------------------------------------------------------------------------------------------------------


@fault("backend", "test_device_of_an_object_without_tensors_is_none")
class EverythingIsOnTheCpu(NumpyBackend):
    def device_of(self, obj):
        return super().device_of(obj) or CPU


@fault("backend", "test_device_of_a_tensor")
class ForgetsSmallTensors(NumpyBackend):
    def device_of(self, obj):
        small = np.shape(obj) == (2, 3) and np.asarray(obj).min() < 0
        return CPU if small else super().device_of(obj)


@fault("backend", "test_move_keeps_the_dtype[int8]")
class MoveWidens(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return super().move(moved.astype("int16"), device) if moved.dtype == np.int8 and device == SECOND else moved


@fault("backend", "test_move_keeps_the_dtype[int8]")
class MoveWidensEverywhere(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return super().move(moved.astype("int16"), device) if moved.dtype == np.int8 else moved


@fault("backend", "test_move_keeps_values")
class MoveLosesValues(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return abs(moved) if isinstance(tensor, SimArray) and tensor.device != device else moved


@fault("backend", "test_move_puts_the_tensor_on_the_device")
class MoveBetweenDevicesStays(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        return tensor if isinstance(tensor, SimArray) else super().move(tensor, device)

    def from_dlpack(self, foreign, device):
        return moved(foreign, device) if self.owns(foreign) else super().from_dlpack(foreign, device)


@fault("backend", "test_move_to_the_same_device_returns_the_same_object")
class MoveAlwaysCopies(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        moved = super().move(tensor, device)
        return moved.copy() if moved is tensor else moved


@fault("backend", "test_pinned_does_not_change_the_result")
class PinsTowardsTheCpu(NumpyBackend):
    def move(self, tensor, device, *, pinned=False):
        if pinned and device == CPU:
            raise RuntimeError("cannot pin")
        return super().move(tensor, device)


@fault("backend", "test_place_returns_what_to_use")
class PlaceReturnsNothing(NumpyBackend):
    def place(self, obj, device):
        placed = super().place(obj, device)
        return None if isinstance(obj, np.ndarray) else placed


@fault("backend", "test_place_places_nested_containers")
class PlaceIgnoresContainers(NumpyBackend):
    def place(self, obj, device):
        return obj if isinstance(obj, dict) else super().place(obj, device)


@fault("backend", "test_place_twice_changes_nothing")
class PlaceInitializesAgain(NumpyBackend):
    def place(self, obj, device):
        return obj * 0 if isinstance(obj, SimArray) and obj.device == device else super().place(obj, device)


@fault("backend", "test_place_moves_between_devices")
class PlaceOnlyOnce(NumpyBackend):
    def place(self, obj, device):
        return obj if isinstance(obj, SimArray) else super().place(obj, device)


@fault("backend", "test_synchronize_waits_for_every_device")
class CannotWaitForTheCpu(NumpyBackend):
    def synchronize(self, device):
        if device == CPU:
            raise RuntimeError("no stream")


@fault("backend", "test_it_owns_its_tensors")
class OwnsModelsOnly(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and np.shape(obj) != (2, 3)


@fault("backend", "test_it_owns_nothing_foreign[dict]")
class OwnsEveryDict(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) or isinstance(obj, dict)


# -- scope -------------------------------------------------------------------------------------------------------------


@fault("backend", "test_scope_sets_the_device_of_new_tensors")
class ScopeDoesNothing(NumpyBackend):
    @contextmanager
    def scope(self, device):
        yield


@fault("backend", "test_scope_works_on_a_second_device")
class ScopeKnowsOneDevice(NumpyBackend):
    def scope(self, device):
        return super().scope(Device(device.kind, 0))


@fault("backend", "test_scope_restores_the_default_device")
class ScopeNeverEnds(NumpyBackend):
    @contextmanager
    def scope(self, device):
        self.left_open = [*getattr(self, "left_open", []), scoped(device)]
        self.left_open[-1].__enter__()
        yield


@fault("backend", "test_scope_restores_the_default_device_after_an_error")
class ScopeSurvivesErrors(NumpyBackend):
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
class ScopeEndsOnTheCpu(NumpyBackend):
    @contextmanager
    def scope(self, device):
        with scoped(device):
            yield
        self.left_open = [*getattr(self, "left_open", []), scoped(CPU)]
        self.left_open[-1].__enter__()


@fault("backend", "test_a_registry_finds_it_by_its_tensors")
class NamesAnotherModuleAsItsRoot(NumpyBackend):
    import_roots = ("a_module_of_nobody",)
