"""The kit over the reference backend: on the CPU, and on two simulated devices, with and without 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import ArrayProgram
from anyaccel.errors import MoveError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.testing import suite

from .broken.in_place_models import CopyingBackend, mutating_model
from .subjects import CpuSubject, SimulatedSubject


class Writing(CpuSubject):
    """The same with copies of inputs for models that write to them."""

    cls = CopyingBackend

    @pytest.fixture
    def mutating_model(self):
        return mutating_model


class Narrow(SimulatedSubject):
    """The same on simulated devices that lack float64, as some real ones do."""

    float64 = False


def narrow(array):
    """The array, if it has no dtype of 64 bits for each number; None is no array."""
    if array is not None and np.dtype(array.dtype).name in ("float64", "int64", "uint64", "complex128"):
        raise MoveError(f"{array.dtype} is switched off", hint="cast it first")
    return array


class NarrowProgram(ArrayProgram):
    """Refuses whatever has 64 bits."""

    def forward(self, inputs):
        return super().forward([narrow(value) for value in inputs])

    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback([narrow(value) for value in inputs], scale)
        return outputs, losses, lambda given: pullback([c if c is None else narrow(c) for c in given])

    def train_steps(self, columns, orders, start, n_steps, batch_size, *more):
        return super().train_steps(
            list(map(narrow, columns)), list(map(narrow, orders)), start, n_steps, batch_size, *more
        )


class ThirtyTwo(NumpyBackend):
    """As a framework that computes in 32 bits only, wherever it is."""

    index_dtype = "int32"

    def from_host(self, array, device, *, pinned=False):
        return super().from_host(narrow(np.asarray(array)), device)

    def from_dlpack(self, foreign, device):
        return narrow(super().from_dlpack(foreign, device))

    def move(self, tensor, device, *, pinned=False):
        return super().move(narrow(tensor), device)

    def build(self, segment):
        assert not any(spec.dtype.endswith("64") and spec.dtype != "complex64" for spec, _ in segment.inputs.values())
        return NarrowProgram(segment, NumpyOps())


class WithoutWide(Narrow):
    """The same in a framework without 64 bits for a number."""

    cls = ThirtyTwo


globals().update(
    suite(CpuSubject, "OnCpu")
    | suite(Writing, "Writing")
    | suite(SimulatedSubject, "Simulated")
    | suite(Narrow, "Narrow")
    | suite(WithoutWide, "WithoutWide")
)
