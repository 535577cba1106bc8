"""Precision on TensorFlow, beside Keras's own dtype policies and loops by hand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import CapabilityError
from anyaccel.precision import ComputesPrecision
from anyaccel_tensorflow import SequentialMLP, TensorFlowBackend

N, BATCH = 96, 16
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 6)).astype("float32")
Y = RANDOM.integers(0, 3, N)
SETTINGS: dict[str, Any] = {"losses": [aa.AppliedLoss("cross_entropy", on="net")], "sampler": aa.SimpleSampler(BATCH)}


def data(x: np.ndarray = X) -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": x, "y": Y}, ["x"], ["y"])


def graph(model: Any, rows: aa.FeatureSet | None = None, **node: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, (rows or data()).reference(), **node)], "adam")


def layers(policy: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="relu", dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.Dense(3, dtype=policy),
        ]
    )


def train(network: aa.ModelGraph, rows: aa.FeatureSet, **settings: Any) -> aa.TrainResults:
    return network.run(aa.TrainPhase("train", data=rows, **{**SETTINGS, "epochs": 3, **settings}))


@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_layers_of_keras_follow_its_dtype_policy(compile_: str) -> None:
    """Losses are those of a model made with `mixed_bfloat16`, trained by a loop with a GradientTape."""
    model = layers()
    results = train(graph(model), data(), precision="bf16-mixed", compile=compile_)
    other, optimizer, losses = layers("mixed_bfloat16"), keras.optimizers.Adam(1e-3, epsilon=1e-8), []
    for _ in range(3):
        epoch = []
        for start in range(0, N, BATCH):
            with tf.GradientTape() as tape:
                logits = tf.cast(other(X[start : start + BATCH], training=True), tf.float32)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(Y[start : start + BATCH], logits)
                loss = tf.reduce_mean(each)
            variables = other.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            epoch.append(float(loss))
        losses.append(np.mean(epoch))
    np.testing.assert_allclose(results.loss, losses, rtol=2e-3)
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_infinite_gradients_are_skipped(compile_: str) -> None:
    x = X.copy()
    x[[20, 37]] = 1e6
    rows = data(x)
    network = graph(SequentialMLP((3,), n_layers=2, hidden_dim=16), rows)
    scale = aa.LossScale(initial=2.0**10, growth_interval=3)
    results = train(
        network, rows, precision="fp16-mixed", loss_scale=scale, compile=compile_, on_nan="ignore", epochs=4
    )
    told = [event.message for event in results.events if event.kind == "precision"]
    assert [message.split(" because")[0] for message in told] == ["2 of 6 steps were skipped"] * 4
    assert told[-1].endswith("losses are now scaled by 64")
    assert network.optimizer_states["net"].step == 4 * 4
    assert all(np.isfinite(value).all() for value in network.state().values())


class Seen(keras.layers.Layer):
    """Notes the dtypes that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(3)
        self.notes: tuple[str, ...] = ()

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        super().build(shape)

    def call(self, x: Any) -> Any:
        y = self.inner(x)
        SEEN.setdefault(id(self), set()).add((x.dtype.name, y.dtype.name))
        return y


SEEN: dict[int, set[tuple[str, str]]] = {}


def test_a_node_kept_in_float32_sees_float32() -> None:
    rows, narrow, kept = data(), Seen(), Seen()
    nodes = [
        aa.ModelNode("narrow", narrow, rows.reference()),
        aa.ModelNode("net", kept, rows.reference(), precision="float32"),
    ]
    losses = [aa.AppliedLoss("cross_entropy", on=label, label=label) for label in ("narrow", "net")]
    network = aa.ModelGraph(nodes, "adam")
    aa.Experiment("e", network).plan(aa.TrainPhase("plan", data=rows, losses=losses))  # shapes are inferred
    SEEN.clear()
    train(network, rows, losses=losses, precision="bf16-mixed", epochs=1)
    assert {id(narrow): {("bfloat16", "bfloat16")}, id(kept): {("float32", "float32")}} == SEEN


def test_other_precisions_of_layers_are_refused() -> None:
    with pytest.raises(
        CapabilityError, match="its layers compute in float64 only if they are created with dtype='float64'"
    ):
        train(graph(layers()), data(), precision="float64")


class Plain(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((6, 3)))

    def __call__(self, x: Any) -> Any:
        return x @ self.w


def test_variables_of_modules_keep_their_dtype() -> None:
    with pytest.raises(CapabilityError, match="the variables of a Plain keep their dtype"):
        train(graph(Plain()), data(), precision="bf16-mixed")


def test_tf32_is_a_setting_of_the_phase() -> None:
    seen: list[bool] = []
    enabled = tf.config.experimental.tensor_float_32_execution_enabled

    class Watches(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            seen.append(enabled())

    before = enabled()
    network = graph(SequentialMLP((3,), n_layers=1))
    train(network, data(), matmul_precision=not before, callbacks=[Watches()], epochs=1)
    assert seen == [not before] and enabled() == before


@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_a_model_that_is_computed_again_gives_the_same_numbers(compile_: str) -> None:
    losses = []
    for remat in (None, "blocks"):
        model = layers()
        losses.append(train(graph(model, remat=remat), data(), compile=compile_).loss)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_products_in_tf32_by_default_are_said() -> None:
    backend = TensorFlowBackend()
    assert "TensorFlow multiplies float32 in TF32 on gpu:0 by default" in backend.required(
        ComputesPrecision
    ).float32_note(None, aa.Device("gpu"))
    assert backend.required(ComputesPrecision).float32_note(None, aa.Device("cpu")) == ""
    with backend.required(ComputesPrecision).matmul_precision(False):
        assert backend.required(ComputesPrecision).float32_note(None, aa.Device("gpu")) == ""
