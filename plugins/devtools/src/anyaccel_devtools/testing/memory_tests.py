"""Tests of the contract of `Memory`: the reported memory of a device, and the released memory."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import pytest

from anyaccel.backend import Backend, Memory, MemoryInfo
from anyaccel.host_memory import host_memory
from anyaccel_devtools.testing.harness import Harness
from anyaccel_devtools.testing.subject import Subject

VALUES = np.arange(1000, dtype="float32")


class MemoryTests(Subject):
    """Everything that `Memory` promises."""

    capability = "memory"

    @pytest.fixture
    def memory(self, backend: Backend) -> Memory:
        """Return the memory capability of the backend."""
        return backend.required(Memory)

    def test_memory_values_are_counts_of_bytes(self, backend: Backend, memory: Memory) -> None:
        """Every value is an int of at least zero, on every device."""
        for device in backend.devices():
            info = memory.memory(device)
            values = (info.total, info.free, info.used, info.peak)
            assert all(isinstance(value, int) and value >= 0 for value in values), info

    def test_used_and_free_memory_fit_into_the_total(self, backend: Backend, memory: Memory) -> None:
        """Neither used nor free memory exceeds the total; 0 means that the framework does not report it."""
        for device in backend.devices():
            info = memory.memory(device)
            assert not info.total or max(info.used, info.free) <= info.total, info

    def test_the_peak_is_at_least_what_is_used(self, backend: Backend, memory: Memory) -> None:
        """The peak is at least the current use, if both are known."""
        for device in backend.devices():
            info = memory.memory(device)
            assert not info.peak or info.used <= info.peak, info

    def test_total_is_that_of_device_info(self, backend: Backend, memory: Memory) -> None:
        """If both report a total, it is the same."""
        for device in backend.devices():
            totals = {memory.memory(device).total, backend.device_info(device).total_memory} - {0}
            assert len(totals) <= 1

    def test_the_cpu_reports_the_memory_limit_of_the_process(self, backend: Backend, memory: Memory) -> None:
        """The CPU's total respects the control group of the process, even if the machine has more."""
        limit = host_memory().total
        for device in backend.devices():
            assert device.kind != "cpu" or not limit or memory.memory(device).total <= limit

    def test_share_returns_a_description(self, backend: Backend, memory: Memory) -> None:
        """`share` returns "" or a reason why it cannot limit memory, and does not raise, even if called twice."""
        with mock.patch.dict(os.environ):  # a backend may set variables for its framework
            answers = [memory.share(device, 0.5) for device in [*backend.devices()] * 2]
        assert all(isinstance(answer, str) for answer in answers), answers

    def test_share_does_nothing_on_the_cpu(self, backend: Backend, memory: Memory) -> None:
        """Host memory is shared by nature: there is nothing to limit and no reason to give."""
        cpus = [device for device in backend.devices() if device.kind == "cpu"]
        with mock.patch.dict(os.environ):
            assert [memory.share(device, 0.5) for device in cpus] == [""] * len(cpus)

    def test_release_memory_keeps_live_tensors(self, harness: Harness, memory: Memory) -> None:
        """Only cached memory is freed, nothing that is in use."""
        for device in harness.backend.devices():
            kept = harness.on_device(device).put(VALUES)
            memory.release_memory(device)
            np.testing.assert_array_equal(harness.to_numpy(kept), VALUES)

    def test_release_memory_may_be_called_twice(self, backend: Backend, memory: Memory) -> None:
        """A second call has nothing to free and leaves the device usable."""
        for device in backend.devices():
            memory.release_memory(device)
            memory.release_memory(device)
            assert isinstance(memory.memory(device), MemoryInfo)
