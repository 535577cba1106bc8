"""A warning, once, of a cross entropy over outputs that are probabilities already."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from anyaccel import AppliedLoss, EvalPhase, FeatureSet, Loss, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend.module import Module

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(20, 3)).astype("float32")
CHANCES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
MESSAGE = r"loss 'net' on node 'net': cross_entropy takes logits.*Hint: remove the softmax from the end of the model"


class Same(Module):
    """Gives what it gets."""

    def apply(self, values, inputs, *, train, key):
        return VjpResult(inputs, lambda cotangents: ({}, cotangents))


def evaluated(x, y, loss="cross_entropy", **settings):
    data = FeatureSet.from_dict("d", {"x": x, "y": y}, ["x"], ["y"])
    graph = ModelGraph([ModelNode("net", Same(), data.reference())])
    return graph.run(EvalPhase(data="all", losses=AppliedLoss(loss, on="net"), **settings), progress="none")


def classes(*shape):
    return RNG.integers(0, 3, shape)


def test_outputs_that_sum_to_one_are_warned_of_and_computed_all_the_same():
    y = classes(20)
    with pytest.warns(UserWarning, match=MESSAGE):
        loss = evaluated(CHANCES, y).loss
    again = np.exp(CHANCES) / np.exp(CHANCES).sum(-1, keepdims=True)
    assert loss == pytest.approx(float(np.mean([-np.log(again[i, y[i]]) for i in range(20)])), rel=1e-5)


@pytest.mark.parametrize("axis", [1, -1])
def test_the_axis_of_the_classes_is_that_of_the_loss(axis):
    x = np.moveaxis(np.broadcast_to(CHANCES[:, None], (20, 4, 3)), -1, axis)
    with pytest.warns(UserWarning, match=MESSAGE):
        evaluated(np.ascontiguousarray(x), classes(20, 4), Loss("cross_entropy", class_axis=axis))


@pytest.mark.parametrize(
    ("x", "y", "loss"),
    [
        (LOGITS, classes(20), "cross_entropy"),
        (np.log(CHANCES), classes(20), "cross_entropy"),
        (CHANCES * 1.01, classes(20), "cross_entropy"),
        (CHANCES, CHANCES, "mse"),
    ],
    ids=["logits", "log probabilities", "another sum", "another loss"],
)
def test_nothing_else_is_warned_of(x, y, loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(x, y, loss)


def test_a_training_is_warned_once_where_its_validation_has_the_outputs():
    class Softmax(Module):
        def apply(self, values, inputs, *, train, key):
            powers = np.exp(inputs[0])
            out = powers / powers.sum(-1, keepdims=True)

            def pullback(cotangents):
                return {}, (out * (cotangents[0] - (cotangents[0] * out).sum(-1, keepdims=True)),)

            return VjpResult((out,), pullback)

    data = FeatureSet.from_dict("d", {"x": LOGITS, "y": classes(20)}, ["x"], ["y"])
    nodes = [ModelNode("body", SequentialMLP(3), data.reference()), ModelNode("net", Softmax(), "body")]
    check = EvalPhase(data="all", metrics=["accuracy"])
    phase = TrainPhase(data="all", losses=AppliedLoss("cross_entropy", on="net"), epochs=3, validation=check)
    with pytest.warns(UserWarning, match="cross_entropy takes logits") as caught:
        ModelGraph(nodes, "adam").run(phase, progress="none")
    assert len([each for each in caught if "takes logits" in str(each.message)]) == 1
    assert caught[0].filename == __file__
