"""Plans of models of JAX and TensorFlow for a GPU that is not here: parameters with buffers, and what is not told."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa

X = np.ones((64, 6), "float32")


def jax_model():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.first, self.norm = nnx.Linear(6, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
            self.last = nnx.Linear(16, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(self.norm(self.first(x)))

    return Net()


def tensorflow_model():
    tf = pytest.importorskip("tensorflow")

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(tf.ones((6, 1)))
            self.mean = tf.Variable(tf.zeros((6,)), trainable=False)

        def __call__(self, x):
            return (x - self.mean) @ self.weight

    return Net()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (jax_model, "XLA compiles a step for gpu:0 only on a machine that has it"),
        (tensorflow_model, "does not report the memory of a step"),
    ],
)
def test_parameters_and_buffers_are_covered_and_activations_say_why_not(make, reason):
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", make(), data.reference())], "adam")
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, accelerator="gpu", batch_size=16)
    plan = aa.Experiment(graph).plan(phase, "1x A100-80GB")
    (memory,) = plan.memory
    state = {name: array for name, array in graph.state().items() if "parameters/" in name or "buffers/" in name}
    trained = sum(array.nbytes for name, array in state.items() if "parameters/" in name)
    assert memory.parameters == sum(array.nbytes for array in state.values()) > trained
    assert memory.gradients == trained and memory.optimizer == 2 * trained
    assert list(memory.gaps) == ["activations"] and reason in memory.gaps["activations"]
    assert plan.fits is None and memory.batches == 64 * 7 * 4 + 64 * memory_of_an_index(plan)


def memory_of_an_index(plan):
    return np.dtype(plan["net"].backend.index_dtype).itemsize
