"""Outputs that exist only in training, in graphs of NumPy modules."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss, EvalPhase, Experiment, ModelGraph, ModelNode, SimpleSampler, TrainPhase
from anyaccel.adapter import VjpResult
from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.numpy_backend import Module
from anyaccel.segment import TensorSpec
from anyaccel.specs import Optimizer


class TwoHeads(Module):
    """`x * main`, and in training also `x * aux`."""

    def __init__(self):
        super().__init__()
        self.parameters.update(main=np.ones(3, "float32"), aux=np.ones(3, "float32"))

    def apply(self, values, inputs, *, train, key):
        x, names = inputs[0], ("main", "aux") if train else ("main",)

        def pullback(cotangents):
            given = dict(zip(names, cotangents, strict=True))
            gradients = {name: (x * c).sum(0) for name, c in given.items()}
            return gradients, (sum(c * values[name] for name, c in given.items()),)

        return VjpResult(tuple(x * values[name] for name in names), pullback)


@pytest.fixture
def source() -> FeatureSet:
    x = np.random.default_rng(0).standard_normal((16, 3)).astype("float32")
    source = FeatureSet.from_dict("data", {"x": x, "y": 2 * x}, ["x"], ["y"])
    source.split_random({"train": 0.5, "val": 0.5})
    return source


def graph(source: FeatureSet, **settings) -> ModelGraph:
    return ModelGraph([ModelNode("net", TwoHeads(), source.reference(), **settings)], Optimizer("sgd", lr=0.1))


LOSSES = [
    AppliedLoss("mse", on="net", inputs=["outputs.main", "targets"]),
    AppliedLoss("mse", on="net", inputs=["outputs.aux", "targets"], weight=0.5, label="aux"),
]


def phase(losses, **settings) -> TrainPhase:
    return TrainPhase("train", data="train", losses=losses, sampler=SimpleSampler(4), **settings)


def test_named_outputs_of_training_are_trained_as_by_hand(source):
    net = graph(source, outputs=["main", "aux"])
    result = Experiment("test", net, progress="none").run_phase(phase(LOSSES, epochs=2, validation="val"))
    weights = {"main": np.ones(3, "float32"), "aux": np.ones(3, "float32")}
    rows = source.split("train")
    x, y = rows.array("x"), rows.array("y")
    for _ in range(2):
        for start in (0, 4):
            xs, ys = x[start : start + 4], y[start : start + 4]
            for name, factor in (("main", 1.0), ("aux", 0.5)):
                gradient = (2 * (xs * weights[name] - ys) * xs).mean(0) / 3
                weights[name] = weights[name] - 0.1 * factor * gradient
    for name, weight in weights.items():
        np.testing.assert_allclose(net["net"].model.parameters[name], weight, rtol=1e-5)
    rows = source.split("val")
    expected = np.mean((rows.array("x") * weights["main"] - rows.array("y")) ** 2)
    np.testing.assert_allclose(result.figure("val_loss")[-1], expected, rtol=1e-5)
    values = Experiment("test", net, progress="none").run_phase(EvalPhase("eval", data="val", losses=LOSSES))
    assert list(values.losses) == ["net"]


def test_outputs_of_training_without_names_are_refused(source):
    with pytest.raises(PhaseError, match=r"returns 2 outputs .* in training, but 1 output .* in evaluation") as caught:
        Experiment("test", graph(source), progress="none").run_phase(phase([AppliedLoss("mse", on="net")]))
    assert "ModelNode('net', ..., outputs=['out0', 'out1'])" in caught.value.hint


def test_shapes_know_what_exists_only_in_training(source):
    shapes = graph(source, outputs=["main", "aux"]).shapes
    assert shapes.outputs["net"] == ("net.main",)
    assert shapes.training_only == {"net": ("net.aux",)}
    assert shapes.specs["net.aux"] == TensorSpec((3,), "float32")
