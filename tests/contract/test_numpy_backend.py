"""The kit over the NumPy backend: on the CPU, and on two simulated devices, with and without 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import ArrayProgram
from anyaccel.errors import MoveError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel_devtools.testing import suite
from anyaccel_devtools.testing.batch_axis_tests import BatchAxisTests
from anyaccel_devtools.testing.custom_step_tests import CustomStepTests
from anyaccel_devtools.testing.keyword_tests import KeywordTests
from anyaccel_devtools.testing.weight_file_tests import WeightFileTests

from .broken.batch_axes import BatchAxisBackend, RunningTotal
from .broken.custom_steps import CustomStepBackend, train_step
from .broken.in_place_models import CopyingBackend, mutating_model
from .broken.keyword_models import Difference, KeywordBackend
from .broken.weight_files import ArchiveBackend
from .subjects import CpuSubject, SimulatedSubject


class MutatingSubject(CpuSubject):
    """On the CPU, with a model that writes to its input."""

    cls = CopyingBackend

    @pytest.fixture
    def mutating_model(self):
        return mutating_model


class NoFloat64Subject(SimulatedSubject):
    """On simulated devices without float64."""

    float64 = False


def refuse_64_bits(array):
    """The array or None; a 64-bit dtype raises MoveError."""
    if array is not None and np.dtype(array.dtype).name in ("float64", "int64", "uint64", "complex128"):
        raise MoveError(f"{array.dtype} is switched off", hint="cast it first")
    return array


class Program32(ArrayProgram):
    """Refuses 64-bit values."""

    def forward(self, inputs):
        return super().forward([refuse_64_bits(value) for value in inputs])

    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback([refuse_64_bits(value) for value in inputs], scale)
        return outputs, losses, lambda given: pullback([c if c is None else refuse_64_bits(c) for c in given])

    def train_steps(self, columns, orders, start, n_steps, batch_size, *more):
        return super().train_steps(
            list(map(refuse_64_bits, columns)), list(map(refuse_64_bits, orders)), start, n_steps, batch_size, *more
        )


class Backend32(NumpyBackend):
    """Like a framework without 64-bit dtypes on any device."""

    index_dtype = "int32"

    def from_host(self, array, device, *, pinned=False):
        return super().from_host(refuse_64_bits(np.asarray(array)), device)

    def from_dlpack(self, foreign, device):
        return refuse_64_bits(super().from_dlpack(foreign, device))

    def move(self, tensor, device, *, pinned=False):
        return super().move(refuse_64_bits(tensor), device)

    def build(self, segment):
        assert not any(spec.dtype.endswith("64") and spec.dtype != "complex64" for spec, _ in segment.inputs.values())
        return Program32(segment, NumpyOps())


class No64BitSubject(NoFloat64Subject):
    """In a framework without 64-bit dtypes."""

    cls = Backend32


class TestBatchAxis(CpuSubject, BatchAxisTests):
    """A backend over NumPy that turns the axis of the batch."""

    cls = BatchAxisBackend

    @pytest.fixture
    def time_first_model(self):
        return RunningTotal


class TestCustomSteps(CpuSubject, CustomStepTests):
    """A backend over NumPy with training steps of the user's own."""

    cls = CustomStepBackend

    @pytest.fixture
    def custom_step(self):
        return train_step


class TestWeightFiles(CpuSubject, WeightFileTests):
    """A backend over NumPy with files of its own."""

    cls = ArchiveBackend


class TestKeywords(CpuSubject, KeywordTests):
    """A backend over NumPy that calls by keyword."""

    cls = KeywordBackend

    @pytest.fixture
    def keyword_model(self):
        return Difference


globals().update(
    suite(CpuSubject, "OnCpu")
    | suite(MutatingSubject, "Mutating")
    | suite(SimulatedSubject, "Simulated")
    | suite(NoFloat64Subject, "NoFloat64")
    | suite(No64BitSubject, "No64Bit")
)
