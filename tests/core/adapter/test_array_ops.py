"""What a framework gets from the adapter without writing it: a backend whose ArrayOps is as small as it may be."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import ArrayOps, ArrayProgram, VjpResult, loss_function
from anyaccel.errors import SpecError
from anyaccel.specs import Loss


class Line:
    """A model that is no class of anybody's: y = slope * x."""

    def __init__(self):
        self.slope = np.array([2.0])


class LeastOps(ArrayOps):
    """The abstract methods and no more."""

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


def test_the_least_that_can_be_written_trains(segment, node, loss):
    columns, model = {"x": np.array([[1.0], [2.0]]), "y": np.array([[3.0], [6.0]])}, Line()
    program = ArrayProgram(segment(columns, [node("n", model, "x")], [loss("mse", "n y")], outputs=("n",)), LeastOps())
    means = program.train_steps(tuple(columns.values()), [None, None], 0, 1, 2)
    assert means.tolist() == [[2.5]]
    program.close()
    assert model.slope.tolist() == [2.0 + 0.1 * 5]
    assert program.forward(tuple(columns.values()))[0][0].tolist() == [[2.5], [5.0]]


def test_class_indices_need_nothing_more(loss):
    judged = loss_function(LeastOps(), loss("cross_entropy", "n y"))((np.zeros((2, 4)), np.array([0, 3])))
    assert float(judged.sum) == pytest.approx(2 * np.log(4))


def test_losses_of_ones_own_are_refused_until_a_framework_takes_them(loss):
    with pytest.raises(SpecError) as caught:
        loss_function(LeastOps(), loss(Loss(max), "n y"))
    assert str(caught.value) == ("the loss 'max' is not a named one. Hint: use a named loss with this framework.")
