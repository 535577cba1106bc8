"""A model that writes to its input, and a backend over NumPy that guards what others own against it."""

from __future__ import annotations

import numpy as np

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.numpy_backend import Dense, Module, NumpyBackend, Sequential
from anyaccel.numpy_backend.ops import NumpyOps


class Halved(Module):
    """Halves its input in place, which modules of the reference backend may not do."""

    def apply(self, values, inputs, *, train, key):
        (x,) = inputs
        np.multiply(x, x.dtype.type(0.5), out=x)
        return VjpResult((x,), lambda cotangents: ({}, (cotangents[0] * 0.5,)))


def writing_model():
    """[4] to [3], and the input is not what it was."""
    return Sequential(Halved(), Dense(3))


class GuardedOps(NumpyOps):
    """Models get copies."""

    def vjp(self, model, parameters, buffers, inputs, train, key):
        return super().vjp(model, parameters, buffers, tuple(x.copy() for x in inputs), train, key)


class Guarded(NumpyBackend):
    """Knows which models write, and lets them."""

    def mutates_inputs(self, model, inputs):
        return isinstance(model, Sequential) and any(isinstance(layer, Halved) for layer in model.layers)

    def build(self, segment):
        return ArrayProgram(segment, GuardedOps())
