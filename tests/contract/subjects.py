"""Subjects over NumPy: on the CPU, and on two simulated devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend, simulate
from anyaccel_devtools.numpy_subject import NumpySubject


class CpuSubject(NumpySubject):
    """NumPy on the CPU."""

    cls = NumpyBackend

    @pytest.fixture
    def backend(self) -> Iterator[NumpyBackend]:
        yield self.cls()


class SimulatedSubject(CpuSubject):
    """NumPy on two simulated devices."""

    float64 = True

    @pytest.fixture
    def backend(self) -> Iterator[NumpyBackend]:
        with simulate(2, float64=self.float64):
            yield self.cls()

    @pytest.fixture
    def device(self, backend) -> Device:
        return Device("sim", 0)

    @pytest.fixture
    def second_device(self, backend) -> Device:
        return Device("sim", 1)
