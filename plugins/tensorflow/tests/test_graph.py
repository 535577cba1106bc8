"""Graphs of TensorFlow models, end to end."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import GraphError, ShapeError
from anyaccel_tensorflow import SequentialCNN, SequentialMLP

layers = keras.layers


def net(outputs: int = 3) -> Any:
    """Everything that has state: weights, running means, dropout."""
    parts = [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3), layers.Dense(outputs)]
    return keras.Sequential(parts)


def data(rows: int = 50) -> aa.FeatureSet:
    x = np.random.default_rng(0).standard_normal((rows, 6))
    columns = {"x": x, "y": x[:, :1] * 2, "kind": (x[:, 0] > 0).astype(np.int64)}
    source = aa.FeatureSet.from_dict("data", columns, ["x"], ["y", "kind"])
    source.split_random({"train": 0.8, "val": 0.2})
    return source


def graph(source: aa.FeatureSet, model: Any, optimizer: Any = None) -> aa.ModelGraph:
    node = aa.ModelNode("net", model, source.reference(target=["kind"]))
    return aa.ModelGraph([node], optimizer or aa.Optimizer("adam", lr=1e-2))


def training(epochs: int = 2, loss: Any = "cross_entropy", **settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(8, shuffle=True, seed=2)
    losses = [aa.AppliedLoss(loss, on="net")]
    return aa.TrainPhase.from_split("train", split="train", sampler=sampler, losses=losses, epochs=epochs, **settings)


def run(made: aa.ModelGraph, *phases: Any) -> Any:
    return [aa.Experiment("test", made, progress="none").run_phase(phase) for phase in phases][-1]


def test_a_run_continued_from_its_state_equals_one_that_never_stopped() -> None:
    """Dropout, batch statistics, Adam's moments, a schedule and the order of batches all continue."""
    optimizer = aa.Optimizer("adamw", lr=1e-2, schedule=aa.Schedule("cosine", steps=40), clip_norm=0.5)
    source = data()
    whole = graph(source, net(), optimizer)
    expected = run(whole, training(4))
    half = graph(source, net(), optimizer)
    run(half, training(2))
    other = graph(source, net(), optimizer)
    results = run(other.load_state(half.state()), training(2))
    np.testing.assert_array_equal(results.loss, expected.loss[2:])
    for name, array in whole.state().items():
        if not name.endswith("seed_generator.state"):  # drawn by Keras when the layer is created, and never used
            np.testing.assert_array_equal(other.state()[name], array, err_msg=name)


def test_a_schedule_of_keras_is_a_function_of_the_step() -> None:
    own = keras.optimizers.schedules.CosineDecay(1.0, 40, alpha=0.1)
    same = aa.Schedule("cosine", steps=40, final=0.1)
    keras.utils.set_random_seed(0)
    nets = [net(), net()]
    source = data()
    graphs = [
        graph(source, each, aa.Optimizer("adam", lr=0.05, schedule=schedule))
        for each, schedule in zip(nets, (own, same), strict=True)
    ]
    losses = [run(made, training(4)).loss for made in graphs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert aa.Schedule(own).factor(13) == pytest.approx(same.factor(13), rel=1e-6)


def test_phases_on_two_devices_go_on_with_the_same_state() -> None:
    source = data()
    whole, moved = graph(source, net()), graph(source, net())
    run(whole, training(2), training(2))
    run(moved, training(2, accelerator="cpu:1"), training(2, accelerator="cpu:2"))
    assert aa.device_of(moved["net"].model) == aa.Device("cpu", 2)
    for name, array in whole.state().items():
        if not name.endswith("seed_generator.state"):
            np.testing.assert_allclose(moved.state()[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_phase_leaves_the_random_state_of_tensorflow_alone() -> None:
    tf.random.set_seed(5)
    expected = [float(tf.random.uniform([])) for _ in range(2)]
    tf.random.set_seed(5)
    first = float(tf.random.uniform([]))
    made = graph(data(), SequentialMLP((3,), dropout=0.5))
    run(made, training(1))
    assert [first, float(tf.random.uniform([]))] == expected
    tf.random.set_seed(None)


def test_validation_and_evaluation_use_the_values_of_now() -> None:
    source, model = data(), net()
    made = graph(source, model)
    judged = aa.EvalPhase("val", data="val", losses=[aa.AppliedLoss("cross_entropy", on="net")], outputs=["net"])
    results = run(made, training(5, validation=judged))
    result = run(made, judged)
    assert len(results.loss) == 5
    np.testing.assert_allclose(result.loss, results.figure("val_loss")[-1], rtol=1e-5)
    assert result.prediction("net").shape == (10, 3)


def test_images_channels_first_and_last() -> None:
    draw = np.random.default_rng(0)
    images = draw.standard_normal((40, 1, 6, 6)).astype("float32")
    columns = {"x": images, "z": images.transpose(0, 2, 3, 1).copy(), "y": images.mean((1, 2, 3))[:, None]}
    source = aa.FeatureSet.from_dict("images", columns, ["x", "z"], ["y"])
    own = SequentialCNN((1,), (4,))
    theirs = keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(1)])
    for model, column in ((own, "x"), (theirs, "z")):
        node = aa.ModelNode("net", model, source.reference([column]))
        made = aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01))
        phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=10)
        result = run(made, phase)
        assert result.loss[-1] < result.loss[0]


def test_inputs_that_a_node_does_not_accept_name_the_node() -> None:
    wrong = keras.Sequential([keras.Input((5,)), layers.Dense(2)])
    with pytest.raises(ShapeError, match=r"node 'net' does not accept float32\[6\]"):
        graph(data(), wrong).build()


def test_a_chain_of_keras_and_builtin_models_trains_as_one() -> None:
    class Scale(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = tf.Variable(tf.ones(8))

        @tf.function
        def __call__(self, x: Any) -> Any:
            return x * self.by

    source, scale = data(), Scale()
    made = aa.ModelGraph(
        [
            aa.ModelNode("first", layers.Dense(8, "tanh"), source.reference(target=["kind"])),
            aa.ModelNode("scale", scale, "first"),
            aa.ModelNode("net", SequentialMLP((3,)), "scale"),
        ],
        aa.Optimizer("adam", lr=1e-2),
    )
    results = run(made, training(10))
    assert len(results.plan.parts) == 1
    assert results.loss[-1] < results.loss[0]
    assert (scale.by.numpy() != 1).all()


def test_torch_and_tensorflow_train_end_to_end() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyaccel_torch")
    source = data()
    encoder, head = torch.nn.Linear(6, 8), keras.Sequential([layers.Activation("tanh"), layers.Dense(3)])
    before = encoder.weight.detach().clone()
    made = aa.ModelGraph(
        [
            aa.ModelNode("encoder", encoder, source.reference(target=["kind"])),
            aa.ModelNode("net", head, "encoder"),
        ],
        aa.Optimizer("adam", lr=2e-2, clip_norm=1.0),
    )
    results = run(made, training(10))
    assert results.loss[-1] < 0.9 * results.loss[0]
    assert not torch.equal(encoder.weight, before)


class Recording:
    """What a call does to plain attributes; the traced tensors would be unusable later."""

    def record(self, x: Any) -> None:
        self.count += 1
        self.seen.append(1)
        self.center = tf.reduce_mean(x)


class RecordingModule(tf.Module, Recording):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.count, self.seen = tf.Variable(tf.ones([6, 3], tf.float64)), 0, []

    def __call__(self, x: Any) -> Any:
        self.record(x)
        return x @ self.weight


class RecordingLayer(keras.Model, Recording):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(dtype="float64")
        self.dense, self.count, self.seen = layers.Dense(3, dtype="float64"), 0, []
        self.build((None, 6))

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        self.record(x)
        return self.dense(x)


@pytest.mark.parametrize("make", [RecordingModule, RecordingLayer])
def test_inference_leaves_plain_attributes_as_they_were(make: Any) -> None:
    model = make()
    graph(data(), model).build()
    assert (model.count, list(model.seen), hasattr(model, "center")) == (0, [], False)


@pytest.mark.parametrize("takes_part", [True, False])
def test_a_frozen_node_does_not_share_a_layer_with_one_that_is_trained(takes_part: bool) -> None:
    shared, reference = layers.Dense(6), data().reference(target=["kind"])
    kept, taught = keras.Sequential([shared]), keras.Sequential([shared, layers.Dense(3)])
    nodes = [aa.ModelNode("kept", kept, reference), aa.ModelNode("net", taught, "kept" if takes_part else reference)]
    with pytest.raises(
        GraphError, match=r"share the parameter 'layers\.0\.kernel', and 'kept' is frozen\. Hint: freeze"
    ):
        run(aa.ModelGraph(nodes, "sgd").freeze("kept"), training())
