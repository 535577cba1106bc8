"""Fixtures for tests of programs: the NumPy backend, finite differences, and short ways to build segments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.numpy_backend import Module, NumpyBackend
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

CPU = Device("cpu")


@pytest.fixture
def backend():
    return NumpyBackend()


@pytest.fixture
def draw():
    """Repeatable float64 numbers of a shape."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.normal(size=shape)


def slopes_of(function: Callable[[], float], array: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of `function()` with respect to each element of `array`, which is changed in place."""
    slopes = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = function()
        array[index] = kept - step
        below = function()
        array[index] = kept
        slopes[index] = (above - below) / (2 * step)
    return slopes


@pytest.fixture(scope="session")
def slopes():
    return slopes_of


def specs_of(inputs) -> list[TensorSpec]:
    return [TensorSpec(tuple(x.shape[1:]), x.dtype.name) for x in inputs]


@pytest.fixture
def built(backend):
    """A module built for some inputs, on a device."""

    def build(module: Module, *inputs, seed=0, device=CPU):
        backend.infer(module, specs_of(inputs), seed)
        return backend.place(module, device)

    return build


def operation(label, model, inputs, device=CPU, **settings) -> Operation:
    outputs = settings.pop("outputs", (label,))
    return Operation(label, model, tuple(inputs.split()), outputs, device, **settings)


def term(name, inputs, device=CPU, **settings) -> LossTerm:
    names = tuple(inputs.split())
    spec = name if isinstance(name, Loss) else Loss(name)
    return LossTerm(settings.pop("label", names[0]), names[0], spec, names, device, **settings)


def segment_of(columns, operations, losses=(), optimizer="sgd", **settings) -> Segment:
    """A segment over named columns; every trainable node is in one group `"main"` unless `groups` says otherwise."""
    spec = optimizer if isinstance(optimizer, Optimizer) else Optimizer(optimizer, lr=0.1)
    nodes = tuple(op.label for op in operations if op.trainable and op.model is not None)
    groups = settings.pop("groups", (ParameterGroup("main", spec, nodes),))
    inputs = {
        name: (spec, getattr(array, "device", CPU))
        for (name, array), spec in zip(columns.items(), specs_of(columns.values()), strict=True)
    }
    inputs = {name: (spec, where if isinstance(where, Device) else CPU) for name, (spec, where) in inputs.items()}
    return Segment("test", tuple(operations), inputs, settings.pop("outputs", ()), tuple(losses), groups, **settings)


@pytest.fixture
def node():
    """`node(label, model, "inputs apart by spaces", device, ...)` is an Operation."""
    return operation


@pytest.fixture
def loss():
    """`loss(name, "outputs targets", device, ...)` is a LossTerm."""
    return term


@pytest.fixture
def segment():
    """`segment(columns, operations, losses, optimizer, ...)` is a Segment."""
    return segment_of
