"""Wrong backends: arrays that are given away, and those that are sent ahead."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
from broken import fault

from anyaccel.backend import Sent
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.numpy_backend import ReferenceBackend, SimArray
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_array import bare

CPU = Device("cpu")


@fault("exchange", "test_take_lands")
class TakesOnTheHost(ReferenceBackend):
    def take(self, array, device):
        return super().take(array, CPU)


@fault("exchange", "test_take_keeps_values[transposed]")
class TakesMemoryAsItLies(ReferenceBackend):
    def take(self, array, device):
        return super().take(array.ravel("K").reshape(array.shape), device)


@fault("exchange", "test_take_keeps_values[read-only]")
class TakesOnlyWhatItMayWriteTo(ReferenceBackend):
    def take(self, array, device):
        if not array.flags.writeable:
            raise MoveError("a read-only array")
        return super().take(array, device)


@fault("exchange", "test_take_keeps_values[of memory that is not NumPy's]")
class TakesNumPysMemoryOnly(ReferenceBackend):
    def take(self, array, device):
        if array.flags.writeable and not (array.base is None or isinstance(array.base, np.ndarray)):
            raise TypeError("who frees it?")
        return super().take(array, device)


@fault("exchange", "test_what_was_taken_stays")
class OneWindowForAll(ReferenceBackend):
    window = None

    def take(self, array, device):
        if device == CPU or array.shape != (64, 64):
            return super().take(array, device)
        if self.window is None:
            self.window = super().take(array, device)
        bare(self.window)[...] = array
        return self.window


@fault("exchange", "test_take_refuses_what_it_lacks")
class TakesObjects(ReferenceBackend):
    def take(self, array, device):
        return array if array.dtype.hasobject else super().take(array, device)


@fault("exchange", "test_buffers_are_as_asked[(6,)-int32]")
class BuffersOfFloats(ReferenceBackend):
    def buffer(self, shape, dtype, device):
        return np.empty(shape, "float32")


@fault("exchange", "test_buffers_are_as_asked[(4, 2, 2)-uint8]")
class BuffersInFortransOrder(ReferenceBackend):
    def buffer(self, shape, dtype, device):
        return np.empty(shape, dtype, order="F")


@fault("exchange", "test_buffers_are_apart")
class OneBuffer(ReferenceBackend):
    def __init__(self):
        self.made = {}

    def buffer(self, shape, dtype, device):
        return self.made.setdefault((shape, dtype), np.empty(shape, dtype))


@fault("exchange", "test_what_is_sent_arrives")
class ArrivesElsewhere(ReferenceBackend):
    def send(self, array, device):
        return super().send(array, CPU)


@fault("exchange", "test_what_is_sent_arrives")
class NeverArrives(ReferenceBackend):
    def send(self, array, device):
        return replace(super().send(array, device), arrive=lambda: None)


@fault("exchange", "test_a_part_of_a_buffer_is_sent[slice(0, 5, None)]")
class SendsTheWholeBuffer(ReferenceBackend):
    def buffer(self, shape, dtype, device):
        return np.empty(shape, dtype)

    def send(self, array, device):
        return super().send(array if array.base is None else array.base, device)


@fault("exchange", "test_a_buffer_is_free_once_it_was_read[False]")
class NeverReads(ReferenceBackend):
    def send(self, array, device):
        return replace(super().send(array, device), read=lambda: None)


@fault("exchange", "test_a_buffer_is_free_once_it_was_read[True]")
class SendsTheBufferItself(ReferenceBackend):
    def send(self, array, device):
        if device == CPU or array.dtype.kind not in "biuf":
            return super().send(array, device)
        alias = array.view(SimArray)
        alias.on = handle(device)
        return Sent(alias)


@fault("exchange", "test_several_are_on_their_way")
class OnlyTheLastArrives(ReferenceBackend):
    last = None

    def send(self, array, device):
        self.last = sent = super().send(array, device)
        return replace(sent, arrive=lambda: sent.arrive() if self.last is sent else None)


@fault("exchange", "test_another_thread_sends")
class SendsInTheMainThread(ReferenceBackend):
    def send(self, array, device):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("there is no current stream in this thread")
        return super().send(array, device)


@fault("exchange", "test_sent_arrays_are_refused_where_dtypes_are_lacking")
class RefusesLate(ReferenceBackend):
    def send(self, array, device):
        return Sent(None, lambda: super().send(array, device)) if array.dtype.hasobject else super().send(array, device)
