"""Defaults of ArrayOps: a subclass with the abstract methods only can train."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import ArrayOps, ArrayProgram, VjpResult, loss_function
from anyaccel.errors import SpecError
from anyaccel.specs import Loss


class Line:
    """A model of no framework: y = slope * x."""

    def __init__(self):
        self.slope = np.array([2.0])


class MinimalOps(ArrayOps):
    """Only the abstract methods."""

    xp = np

    def parameters(self, model):
        return {"slope": model.slope}

    def buffers(self, model):
        return {}

    def write(self, model, parameters, buffers):
        model.slope = parameters["slope"]

    def vjp(self, model, parameters, buffers, inputs, train, key):
        (x,), slope = inputs, parameters["slope"]
        return VjpResult((x * slope,), lambda c: ({"slope": np.sum(c[0] * x, axis=0)}, [c[0] * slope]))

    def move(self, array, device):
        return array

    def gather_rows(self, column, start, stop, order):
        return column[start:stop]


def test_minimal_ops_can_train(segment, node, loss):
    columns, model = {"x": np.array([[1.0], [2.0]]), "y": np.array([[3.0], [6.0]])}, Line()
    program = ArrayProgram(
        segment(columns, [node("n", model, "x")], [loss("mse", "n y")], outputs=("n",)), MinimalOps()
    )
    means = program.train_steps(tuple(columns.values()), [None, None], 0, 1, 2)
    assert means.tolist() == [[2.5]]
    program.close()
    assert model.slope.tolist() == [2.0 + 0.1 * 5]
    assert program.forward(tuple(columns.values()))[0][0].tolist() == [[2.5], [5.0]]


def test_minimal_ops_support_class_indices(loss):
    result = loss_function(MinimalOps(), loss("cross_entropy", "n y"))((np.zeros((2, 4)), np.array([0, 3])))
    assert float(result.sum) == pytest.approx(2 * np.log(4))


def test_custom_losses_are_refused_by_default(loss):
    with pytest.raises(SpecError) as caught:
        loss_function(MinimalOps(), loss(Loss(max), "n y"))
    assert str(caught.value) == ("the loss 'max' is not a named one. Hint: use a named loss with this framework.")
