"""TensorFlowOps: what arrays hold, and gradients through values that are not floating."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import GraphError
from anyaccel_tensorflow.ops import TensorFlowOps


@pytest.mark.parametrize(
    ("dtype", "kind", "itemsize"),
    [
        (tf.bfloat16, "floating", 2),
        (tf.float64, "floating", 8),
        (tf.complex64, "complex", 8),
        (tf.uint8, "integer", 1),
        (tf.int64, "integer", 8),
        (tf.bool, "boolean", 1),
    ],
)
def test_the_kind_of_a_tensor(dtype: Any, kind: str, itemsize: int) -> None:
    ops, tensor = TensorFlowOps.__new__(TensorFlowOps), tf.zeros(2, dtype)
    assert (ops.kind(tensor), ops.itemsize(tensor)) == (kind, itemsize)


class Rotate(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.imag = tf.Variable(tf.fill((4, 3), 0.3)), tf.Variable(tf.fill((4, 3), 0.1))

    def __call__(self, x: Any) -> Any:
        return tf.complex(x @ self.real, x @ self.imag)


class Magnitude(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.fill((3, 3), 0.5))

    def __call__(self, x: Any) -> Any:
        return tf.abs(x) @ self.scale


class Both(tf.Module):
    """The two in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Rotate(), Magnitude()

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("compile_steps", ["off", "steps"])
def test_gradients_flow_through_a_complex_value_between_nodes(compile_steps: str) -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(16, 4)).astype("float32"), "y": rng.normal(size=(16, 3)).astype("float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])

    def losses(*models: Any) -> Any:
        nodes = [aa.ModelNode("a", models[0], data.reference())]
        nodes += [aa.ModelNode("b", model, "a") for model in models[1:]]
        phase = aa.TrainPhase(
            "train",
            data=data,
            losses=[aa.AppliedLoss("mse", on=nodes[-1].label)],
            sampler=8,
            n_epochs=4,
            compile=compile_steps,
        )
        experiment = aa.Experiment("e", aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)), progress="none")
        return experiment.run_phase(phase).loss

    np.testing.assert_allclose(losses(Rotate(), Magnitude()), losses(Both()), rtol=1e-5)


class Turn(tf.Module):
    """A complex parameter beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.scale = tf.Variable(tf.ones(4, tf.complex64)), tf.Variable(tf.ones(4))

    def __call__(self, x: Any) -> Any:
        return tf.abs(self.phase) * self.scale * x


def test_a_complex_parameter_is_refused_and_not_left_as_it_is() -> None:
    columns = {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 4), "float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("a", Turn(), data.reference())], "sgd")
    experiment = aa.Experiment("e", graph, progress="none")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="a")], sampler=8)
    with pytest.raises(GraphError, match=r"the parameter 'phase' of node 'a' is complex \(<dtype: 'complex64'>\)"):
        experiment.run_phase(phase)
    assert experiment.run_phase(aa.EvalPhase("eval", data="all")).prediction("a").shape == (8, 4)
