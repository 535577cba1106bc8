"""A model that writes to its input, and a NumPy backend that gives such models copies."""

from __future__ import annotations

import numpy as np

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.numpy_backend import Dense, Module, NumpyBackend, Sequential
from anyaccel.numpy_backend.ops import NumpyOps


class HalveInPlace(Module):
    """Halves its input in place, which modules of the NumPy backend may not do."""

    def apply(self, values, inputs, *, train, key):
        (x,) = inputs
        np.multiply(x, x.dtype.type(0.5), out=x)
        return VjpResult((x,), lambda cotangents: ({}, (cotangents[0] * 0.5,)))


def mutating_model():
    """A model [4] to [3] that changes its input."""
    return Sequential(HalveInPlace(), Dense(3))


class CopyingOps(NumpyOps):
    """Gives models copies of their inputs."""

    def vjp(self, model, parameters, buffers, inputs, train, key, **keywords):
        return super().vjp(model, parameters, buffers, tuple(x.copy() for x in inputs), train, key, **keywords)


class CopyingBackend(NumpyBackend):
    """Reports which models write to their inputs, and copies inputs for them."""

    def mutates_inputs(self, model, inputs):
        return isinstance(model, Sequential) and any(isinstance(layer, HalveInPlace) for layer in model.layers)

    def build(self, segment):
        return ArrayProgram(segment, CopyingOps())
