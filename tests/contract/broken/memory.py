"""Wrong backends: memory reports, limits and release."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.backend import MemoryInfo
from anyaccel.device import Device
from anyaccel.numpy_backend import SimArray
from anyaccel.numpy_backend.capabilities import NumpyMemory
from anyaccel.numpy_backend.sim_array import bare

from .faults import fault, having

CPU = Device("cpu")


class Gigabytes(NumpyMemory):
    def memory(self, device):
        info = super().memory(device)
        return MemoryInfo(*(value / 2**30 for value in (info.total, info.free, info.used, info.peak)))


@fault("memory", "test_memory_values_are_counts_of_bytes")
class MemoryInGigabytes(having(Gigabytes)):
    def device_info(self, device):
        return replace(super().device_info(device), total_memory=0)


@fault("memory", "test_used_and_free_memory_fit_into_the_total")
class MoreFreeThanTotal(NumpyMemory):
    def memory(self, device):
        info = super().memory(device)
        return replace(info, free=info.total * 2)


@fault("memory", "test_the_peak_is_at_least_what_is_used")
class PeakBelowUsed(NumpyMemory):
    def memory(self, device):
        return replace(super().memory(device), used=2, peak=1)


class OneMore(NumpyMemory):
    def memory(self, device):
        info = super().memory(device)
        return replace(info, total=info.total + 1)


@fault("memory", "test_total_is_that_of_device_info")
class TwoTotals(having(OneMore)):
    def device_info(self, device):
        return replace(super().device_info(device), total_memory=17)


class WithoutLimit(NumpyMemory):
    def memory(self, device):
        info = super().memory(device)
        return replace(info, total=2**62) if device == CPU else info


@fault("memory", "test_the_cpu_reports_the_memory_limit_of_the_process")
class IgnoresTheMemoryLimit(having(WithoutLimit)):
    def device_info(self, device):
        return replace(super().device_info(device), total_memory=0)


class FreesTheLast(NumpyMemory):
    def release_memory(self, device):
        if isinstance(self.backend.last, SimArray):
            bare(self.backend.last)[...] = 0


@fault("memory", "test_release_memory_keeps_live_tensors")
class FreesLiveTensors(having(FreesTheLast)):
    last = None

    def move(self, tensor, device, *, pinned=False):
        self.last = super().move(tensor, device)
        return self.last


@fault("memory", "test_release_memory_may_be_called_twice")
class FreesOnce(NumpyMemory):
    released = False

    def release_memory(self, device):
        if self.released:
            raise RuntimeError("double free")
        self.released = True


@fault("memory", "test_share_returns_a_description")
class ShareReturnsNone(NumpyMemory):
    def share(self, device, fraction):
        return "" if device == CPU else None


@fault("memory", "test_share_returns_a_description")
class SharesOnlyOnce(NumpyMemory):
    shared = False

    def share(self, device, fraction):
        if self.shared and device != CPU:
            raise RuntimeError("initialised already")
        self.shared = True
        return ""


@fault("memory", "test_share_does_nothing_on_the_cpu")
class RefusesToShareTheCpu(NumpyMemory):
    def share(self, device, fraction):
        return f"{device} is used already"
