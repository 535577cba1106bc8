"""Wrong backends that turn the axis of the batch: on the way in, on the way out, and in cotangents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.numpy_backend import Module, NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps

from .faults import fault


class RunningTotal(Module):
    """The kit's time_first_model."""

    def apply(self, values, inputs, *, train, key):
        return VjpResult((np.cumsum(inputs[0], axis=0),), lambda cotangents: ({}, (reversed_total(cotangents[0]),)))


def reversed_total(cotangent):
    return np.cumsum(cotangent[::-1], axis=0)[::-1]


class BatchAxisOps(NumpyOps):
    """Turns inputs and outputs of RunningTotal, and leaves other modules as they are."""

    def vjp(self, model, parameters, buffers, inputs, train, key, layout=None):
        if layout is None:
            return super().vjp(model, parameters, buffers, inputs, train, key)
        _, bound = layout.bind([self.given(value) for value in inputs], np.moveaxis)
        applied = super().vjp(model, parameters, buffers, (bound["x"],), train, key)
        return VjpResult(
            tuple(map(self.returned, applied.outputs)), lambda cotangents: self.pulled(applied.pullback, cotangents)
        )

    def given(self, value):
        """An input, before it is turned."""
        return value

    def returned(self, value):
        """An output of the model, batch first."""
        return np.moveaxis(value, 1, 0)

    def pulled(self, pullback, cotangents):
        """Cotangents of parameters and inputs."""
        parameters, (x,) = pullback([np.moveaxis(cotangents[0], 0, 1)])
        return parameters, (np.moveaxis(x, 1, 0),)


class BatchAxisBackend(NumpyBackend):
    """A right backend for models with the batch on the second axis."""

    calls_by_keyword = True
    moves_batch_axis = True
    ops = BatchAxisOps
    batch_axis = 1

    def build(self, segment):
        return ArrayProgram(segment, self.ops())

    def infer_outputs(self, model, inputs, arguments, seed):
        outputs = super().infer_outputs(model, inputs, arguments, seed)
        is_turned = isinstance(model, RunningTotal)
        return tuple(replace(output, batch_axis=self.batch_axis) for output in outputs) if is_turned else outputs


@fault("compute", "test_the_axis_of_the_batch_is_found")
class EveryBatchIsFirst(BatchAxisBackend):
    batch_axis = 0


@fault("compute", "test_inputs_and_outputs_are_turned")
class NothingIsTurned(BatchAxisBackend):
    class ops(BatchAxisOps):
        def given(self, value):
            return np.moveaxis(value, 1, 0)

        def returned(self, value):
            return value


@fault("compute", "test_inputs_and_outputs_are_turned")
class OutputsAreNotTurnedBack(BatchAxisBackend):
    class ops(BatchAxisOps):
        def returned(self, value):
            return value


@fault("compute", "test_cotangents_are_turned_too")
class CotangentsStayTurned(BatchAxisBackend):
    class ops(BatchAxisOps):
        def pulled(self, pullback, cotangents):
            parameters, (x,) = pullback([np.moveaxis(cotangents[0], 0, 1)])
            return parameters, (x,)
