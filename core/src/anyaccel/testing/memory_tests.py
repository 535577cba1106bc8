"""MemoryTests: the promises of a backend that says how full its devices are."""

from __future__ import annotations

import os
from typing import cast
from unittest import mock

import numpy as np
import pytest

from anyaccel.backend import Backend, Memory
from anyaccel.host_memory import host_memory
from anyaccel.testing.harness import Bench
from anyaccel.testing.subject import Subject

VALUES = np.arange(1000, dtype="float32")


@pytest.mark.anyaccel_capability("memory")
class MemoryTests(Subject):
    """Every promise of `Memory`."""

    @pytest.fixture
    def memory(self, backend: Backend) -> Memory:
        """The backend, by the name of the capability."""
        return cast("Memory", backend)

    def test_figures_are_counts_of_bytes(self, backend: Backend, memory: Memory) -> None:
        """Every figure is an int of at least zero, on every device."""
        for device in backend.devices():
            info = memory.memory(device)
            figures = (info.total, info.free, info.used, info.peak)
            assert all(isinstance(figure, int) and figure >= 0 for figure in figures), info

    def test_figures_fit_together(self, backend: Backend, memory: Memory) -> None:
        """No more is used or free than there is; 0 is for what the framework does not say."""
        for device in backend.devices():
            info = memory.memory(device)
            assert not info.total or max(info.used, info.free) <= info.total, info

    def test_the_peak_is_at_least_what_is_used(self, backend: Backend, memory: Memory) -> None:
        """The most that was used at once is no less than what is used now, where either is known."""
        for device in backend.devices():
            info = memory.memory(device)
            assert not info.peak or info.used <= info.peak, info

    def test_total_is_that_of_device_info(self, backend: Backend, memory: Memory) -> None:
        """Where both name a total, it is the same."""
        for device in backend.devices():
            totals = {memory.memory(device).total, backend.device_info(device).total_memory} - {0}
            assert len(totals) <= 1

    def test_the_cpu_has_what_the_process_may_have(self, backend: Backend, memory: Memory) -> None:
        """No more than the control groups of the process leave it, though the machine has more."""
        most = host_memory().total
        for device in backend.devices():
            assert device.kind != "cpu" or not most or memory.memory(device).total <= most

    def test_share_answers_in_words(self, backend: Backend, memory: Memory) -> None:
        """Asked to leave memory to others, it answers with nothing or a reason, and does not raise, asked twice too."""
        with mock.patch.dict(os.environ):  # where a framework's settings may be
            answers = [memory.share(device, 0.5) for device in [*backend.devices()] * 2]
        assert all(isinstance(answer, str) for answer in answers), answers

    def test_the_cpu_is_shared_already(self, backend: Backend, memory: Memory) -> None:
        """Nobody has all the memory of the host, so nothing speaks against sharing it."""
        there = [device for device in backend.devices() if device.kind == "cpu"]
        with mock.patch.dict(os.environ):
            assert [memory.share(device, 0.5) for device in there] == [""] * len(there)

    def test_release_keeps_tensors(self, bench: Bench, memory: Memory) -> None:
        """Giving back cached memory takes nothing that is in use."""
        for device in bench.backend.devices():
            kept = bench.on(device).put(VALUES)
            memory.release_memory(device)
            np.testing.assert_array_equal(bench.read(kept), VALUES)

    def test_release_may_be_called_twice(self, backend: Backend, memory: Memory) -> None:
        """With nothing to give back, nothing happens."""
        for device in backend.devices():
            memory.release_memory(device)
            memory.release_memory(device)
