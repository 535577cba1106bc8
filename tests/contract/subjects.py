"""Subjects over NumPy: on the CPU, and on two simulated devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anyaccel.device import Device
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, NumpyBackend, Sequential, simulate, zeros
from anyaccel.testing import Subject


def tied_model():
    """A model that calls one layer twice."""
    tied = Dense(4)
    return Sequential(tied, Activation("tanh"), tied, Dense(3))


class CpuSubject(Subject):
    """NumPy on the CPU."""

    cls = NumpyBackend

    @pytest.fixture
    def backend(self) -> Iterator[NumpyBackend]:
        yield self.cls()

    @pytest.fixture
    def new_tensor(self):
        return lambda: zeros((3,))

    @pytest.fixture
    def buffered_model(self):
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))

    @pytest.fixture
    def tied_model(self):
        return tied_model

    @pytest.fixture
    def parameter_free_model(self):
        return lambda: Activation("tanh")


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
