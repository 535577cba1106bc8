"""What plans say that `remat` saves, beside counts by hand and what the eager tape of TensorFlow keeps alive."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anyaccel as aa
from anyaccel_tensorflow import SequentialMLP

ROWS, WIDTH = 16, 12
X = np.random.default_rng(0).normal(size=(3 * ROWS, WIDTH)).astype("float32")


def planned(*models: Any, remat: str | None = "blocks", x: np.ndarray = X, **settings: Any) -> aa.Plan:
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x.reshape(len(x), -1)[:, :1]}, ["x"], ["y"])
    nodes = [aa.ModelNode("n0", models[0], data.reference(), remat=remat)]
    nodes += [aa.ModelNode(f"n{i}", model, f"n{i - 1}", remat=remat) for i, model in enumerate(models) if i]
    losses = [aa.AppliedLoss("mse", on=nodes[-1].label)]
    phase = aa.TrainPhase("t", data="all", losses=losses, **{"batch_size": ROWS, **settings})
    return aa.Experiment("e", aa.ModelGraph(nodes, "adam"), progress="none").plan(phase)


def test_activations_are_those_of_a_count_by_hand() -> None:
    mlp = SequentialMLP((1,), n_layers=3, hidden_dim=8, activation="tanh")
    (activations,) = planned(mlp).activations
    assert (activations.node, activations.rows, activations.gap) == ("n0", ROWS, "")
    assert activations.without_remat == 4 * ROWS * (8 + 8 + 1)  # tanh twice, of which the next layer reads; the output
    assert activations.kept == 4 * ROWS * 1


def test_what_has_the_same_memory_counts_once() -> None:
    layers = keras.layers
    net = keras.Sequential(
        [layers.Reshape((3, 4)), layers.Dense(5, activation="tanh"), layers.Flatten(), layers.Dense(1)]
    )
    (activations,) = planned(net).activations
    assert activations.without_remat == 4 * ROWS * (3 * 5 + 1)


def test_an_architecture_of_keras_keeps_what_its_tape_keeps() -> None:
    """Beside the tensors of an eager GradientTape that are alive when the forward pass is over."""

    def model() -> Any:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8, 8, 3))
        x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
        for _ in range(2):
            y = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
            x = keras.layers.Add()([x, keras.layers.Activation("tanh")(y)])
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(x)))

    images = np.random.default_rng(0).normal(size=(3 * ROWS, 8, 8, 3)).astype("float32")
    (activations,) = planned(model(), x=images).activations
    own = ROWS * 8 * 8 * 4 * 4  # of a convolution of 4 channels in float32
    # of each block its input and the result of tanh; what goes into the pooling is not read again, but its shape
    assert activations.without_remat == 2 * 2 * own + ROWS * (4 + 1) * 4
    assert activations.kept == ROWS * 4


def test_each_node_of_a_chain_has_its_own_figure_in_any_precision() -> None:
    def norm() -> Any:
        layers = keras.layers
        return keras.Sequential([layers.Dense(16), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(4)])

    for precision in (None, "bf16-mixed"):
        mlp = SequentialMLP((1,), n_layers=3)
        first, second = planned(norm(), mlp, precision=precision).activations
        assert (first.node, second.node) == ("n0", "n1")
        assert (first.kept, second.kept) == (ROWS * 4 * 4, ROWS * 4)
        assert first.saved > ROWS * 16 * 2 and second.saved > ROWS * 16 * 2  # type: ignore[operator]


def test_a_loop_keeps_lists_whose_size_is_not_known() -> None:
    net = keras.Sequential([keras.layers.Reshape((4, 3)), keras.layers.GRU(5), keras.layers.Dense(1)])
    (activations,) = planned(net).activations
    assert activations.kept is None and "but its size is unknown before it is computed" in activations.gap


def test_nothing_is_shown_without_remat_and_values_stay() -> None:
    net = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    net.build((None, WIDTH))
    before = [np.array(value) for value in net.get_weights()]
    assert planned(net, remat=None).activations == ()
    assert planned(net).activations[0].kept == ROWS * 4
    assert all(map(np.array_equal, before, net.get_weights()))


def test_measured_steps_have_activations() -> None:
    class Watch(aa.Callback):
        def after_loading(self, run: Any) -> None:
            self.stats = run.measure_step()

    watch = Watch()
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("n0", SequentialMLP((1,)), data.reference())], "adam")
    losses = [aa.AppliedLoss("mse", on="n0")]
    graph.run(aa.TrainPhase("t", data="all", losses=losses, batch_size=ROWS, callbacks=[watch]))
    assert watch.stats.nodes[0].activations == pytest.approx(ROWS * (16 + 1) * 4)
    assert "does not count operations" in watch.stats.not_covered["flops_per_step"]
