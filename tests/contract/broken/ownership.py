"""Wrong backends: arrays that the backend may keep, staging buffers and asynchronous copies."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.numpy_backend import NumpyBackend, SimArray
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_array import bare

from .faults import fault

CPU = Device("cpu")


@fault("exchange", "test_from_host_owned_puts_the_tensor_on_the_device")
class FromHostOwnedStaysOnTheHost(NumpyBackend):
    def from_host_owned(self, array, device):
        return super().from_host_owned(array, CPU)


@fault("exchange", "test_from_host_owned_keeps_values[transposed]")
class FromHostOwnedIgnoresStrides(NumpyBackend):
    def from_host_owned(self, array, device):
        return super().from_host_owned(array.ravel("K").reshape(array.shape), device)


@fault("exchange", "test_from_host_owned_keeps_values[read-only]")
class FromHostOwnedRefusesReadOnlyArrays(NumpyBackend):
    def from_host_owned(self, array, device):
        if not array.flags.writeable:
            raise MoveError("a read-only array")
        return super().from_host_owned(array, device)


@fault("exchange", "test_from_host_owned_keeps_values[over memory that is not NumPy's]")
class FromHostOwnedRefusesForeignMemory(NumpyBackend):
    def from_host_owned(self, array, device):
        if array.flags.writeable and not (array.base is None or isinstance(array.base, np.ndarray)):
            raise TypeError("who frees it?")
        return super().from_host_owned(array, device)


@fault("exchange", "test_from_host_owned_tensors_keep_their_values")
class FromHostOwnedReusesMemory(NumpyBackend):
    window = None

    def from_host_owned(self, array, device):
        if device == CPU or array.shape != (64, 64):
            return super().from_host_owned(array, device)
        if self.window is None:
            self.window = super().from_host_owned(array, device)
        bare(self.window)[...] = array
        return self.window


@fault("exchange", "test_from_host_owned_refuses_unsupported_dtypes")
class FromHostOwnedTakesObjects(NumpyBackend):
    def from_host_owned(self, array, device):
        return array if array.dtype.hasobject else super().from_host_owned(array, device)


@fault("exchange", "test_staging_buffers_have_the_requested_shape_and_dtype[(6,)-int32]")
class StagingBuffersAreFloats(NumpyBackend):
    def staging_buffer(self, shape, dtype, device):
        return np.empty(shape, "float32")


@fault("exchange", "test_staging_buffers_have_the_requested_shape_and_dtype[(4, 2, 2)-uint8]")
class StagingBuffersInFortranOrder(NumpyBackend):
    def staging_buffer(self, shape, dtype, device):
        return np.empty(shape, dtype, order="F")


@fault("exchange", "test_staging_buffers_do_not_share_memory")
class OneStagingBuffer(NumpyBackend):
    def __init__(self):
        self.made = {}

    def staging_buffer(self, shape, dtype, device):
        return self.made.setdefault((shape, dtype), np.empty(shape, dtype))


@fault("exchange", "test_copy_async_delivers_the_values")
class CopyAsyncStaysOnTheCpu(NumpyBackend):
    def copy_async(self, array, device):
        return super().copy_async(array, CPU)


@fault("exchange", "test_copy_async_delivers_the_values")
class WaitDoesNothing(NumpyBackend):
    def copy_async(self, array, device):
        return replace(super().copy_async(array, device), wait=lambda: None)


@fault("exchange", "test_copy_async_copies_part_of_a_buffer[slice(0, 5, None)]")
class CopyAsyncCopiesTheWholeBuffer(NumpyBackend):
    def staging_buffer(self, shape, dtype, device):
        return np.empty(shape, dtype)

    def copy_async(self, array, device):
        return super().copy_async(array if array.base is None else array.base, device)


@fault("exchange", "test_a_staging_buffer_is_reusable_once_read[False]")
class SourceReusableDoesNothing(NumpyBackend):
    def copy_async(self, array, device):
        return replace(super().copy_async(array, device), source_reusable=lambda: None)


@fault("exchange", "test_a_staging_buffer_is_reusable_once_read[True]")
class CopyAsyncAliasesTheBuffer(NumpyBackend):
    def copy_async(self, array, device):
        if device == CPU or array.dtype.kind not in "biuf":
            return super().copy_async(array, device)
        alias = array.view(SimArray)
        alias.on = handle(device)
        return AsyncCopy(alias)


@fault("exchange", "test_several_copies_can_be_in_flight")
class OnlyTheLastCopyArrives(NumpyBackend):
    last = None

    def copy_async(self, array, device):
        self.last = sent = super().copy_async(array, device)
        return replace(sent, wait=lambda: sent.wait() if self.last is sent else None)


@fault("exchange", "test_copy_async_works_from_another_thread")
class CopyAsyncNeedsTheMainThread(NumpyBackend):
    def copy_async(self, array, device):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("there is no current stream in this thread")
        return super().copy_async(array, device)


@fault("exchange", "test_copy_async_refuses_unsupported_dtypes")
class CopyAsyncRefusesLate(NumpyBackend):
    def copy_async(self, array, device):
        return (
            AsyncCopy(None, lambda: super().copy_async(array, device))
            if array.dtype.hasobject
            else super().copy_async(array, device)
        )
