"""Keras on JAX: trained in a graph, and by Keras's own `fit`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import GraphError, PhaseError, ShapeError, SpecError
from anyaccel.segment import TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax import JaxBackend
from anyaccel_jax.losses import scalar_loss

Train = Callable[..., tuple[Any, np.ndarray]]
IN = [TensorSpec((3,), "float32")]


def net(keras: ModuleType, *layers: Any) -> Any:
    first = keras.layers.Dense(5, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(3))
    model = keras.Sequential([first, *layers, keras.layers.Dense(1, kernel_initializer="zeros")])
    model.build((None, 3))
    return model


def values(model: Any) -> list[np.ndarray]:
    return [np.array(variable.value) for variable in model.variables if "seed" not in variable.path]


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_a_keras_model_is_trained_in_place_as_fit_does(
    train: Train, data: tuple[np.ndarray, ...], keras: ModuleType, decay: float
) -> None:
    """Also with a regularizer, whose loss enters the gradients but not the reported loss."""

    def made() -> Any:
        dense = keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(decay), kernel_initializer="ones")
        return net(keras, keras.layers.BatchNormalization(momentum=0.9), dense)

    given, own = made(), made()
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.fit(data[0], data[1], batch_size=8, epochs=3, shuffle=False, verbose=0)
    model, losses = train(given)
    assert model is given and losses[-1] < losses[0]
    for actual, expected in zip(values(given), values(own), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_variables_go_by_the_attributes_that_lead_to_them(backend: JaxBackend, keras: ModuleType) -> None:
    class Net(keras.Model):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = keras.layers.Dense(2), [keras.layers.Dense(1), keras.layers.Dropout(0.1)]
            self.same = self.first

        def call(self, x: Any, training: bool = False) -> Any:
            for layer in self.rest:
                x = layer(self.first(x))
            return x

    model = net(keras, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    assert list(backend.state(model)) == [
        *("parameters/layers.0.kernel", "parameters/layers.0.bias"),
        *("parameters/layers.1.gamma", "parameters/layers.1.beta"),
        *("parameters/layers.3.kernel", "parameters/layers.3.bias"),
        *("buffers/layers.1.moving_mean", "buffers/layers.1.moving_variance"),
        "buffers/layers.2.seed_generator.state",
    ]
    own = Net()
    assert backend.dtype_of(own) == "float32" and not own.built
    with pytest.raises(ShapeError, match=r"Net does not accept float32\[3\] per sample.*incompatible"):
        backend.infer(own, IN, 0)
    own = Net()
    own.rest.pop(0)
    assert backend.infer(own, IN, 0) == (TensorSpec((2,), "float32"),)
    assert list(backend.state(own)) == [
        *("parameters/first.kernel", "parameters/first.bias", "buffers/rest.0.seed_generator.state")
    ]


def test_an_unbuilt_model_is_built_from_the_seed(backend: JaxBackend, keras: ModuleType) -> None:
    import random

    def made(**settings: Any) -> Any:
        return keras.Sequential([keras.layers.Dense(4, **settings), keras.layers.Dense(1)])

    state, built = random.getstate(), []
    for seed in (1, 1, 2):
        model = made()
        assert backend.infer(model, IN, seed) == (TensorSpec((1,), "float32"),)
        built.append(values(model)[0])
    assert (built[0] == built[1]).all() and (built[0] != built[2]).any()
    random.setstate(state)
    fixed = [made(kernel_initializer=keras.initializers.GlorotUniform(7)) for _ in range(2)]
    for seed, model in enumerate(fixed):
        backend.infer(model, IN, seed)
    assert (values(fixed[0])[0] == values(fixed[1])[0]).all(), "a seed of the user's stays"


def test_building_does_not_change_pythons_generator(backend: JaxBackend, keras: ModuleType) -> None:
    import random

    model = keras.Sequential([keras.layers.Dense(4)])
    random.seed(5)
    expected = random.random()
    random.seed(5)
    backend.infer(model, IN, 0)
    assert random.random() == expected


def test_dropout_follows_the_seed_and_leaves_its_generator(train: Train, keras: ModuleType) -> None:
    result = []
    for seed in (1, 1, 2):
        model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="ones")])
        model.build((None, 3))
        (seeds,) = (variable for variable in model.variables if "seed" in variable.path)
        before = np.array(seeds.value)
        result.append(train(model, seed=seed)[1])
        np.testing.assert_array_equal(seeds.value, before)
    assert (result[0] == result[1]).all() and (result[0] != result[2]).any()


def test_frozen_layers_are_not_trained(train: Train, keras: ModuleType) -> None:
    model = net(keras)
    model.layers[0].trainable = False
    before = values(model)
    train(model)
    after = values(model)
    assert (after[0] == before[0]).all() and (after[2] != before[2]).any()


def test_models_of_several_inputs(backend: JaxBackend, keras: ModuleType) -> None:
    first, second = keras.Input((3,)), keras.Input((2,))
    functional = keras.Model([first, second], keras.layers.Dense(1)(keras.layers.Concatenate()([first, second])))

    class Listed(keras.Model):  # type: ignore[name-defined,misc]
        def call(self, inputs: Any) -> Any:
            return jnp.concatenate(inputs, axis=1)

    class Spread(keras.Model):  # type: ignore[name-defined,misc]
        def call(self, x: Any, y: Any, training: bool = False) -> Any:
            return jnp.concatenate([x, y], axis=1)

    given = [TensorSpec((3,), "float32"), TensorSpec((2,), "float32")]
    assert backend.infer(functional, given, 0) == (TensorSpec((1,), "float32"),)
    for model in (Listed(), Spread()):
        assert backend.infer(model, given, 0) == (TensorSpec((5,), "float32"),)


def test_layouts(backend: JaxBackend, keras: ModuleType) -> None:
    conv = keras.layers.Conv2D(4, 3)
    last = ("channels_last", "channels_last")
    assert backend.data_format(conv) == last
    assert backend.data_format(keras.Sequential([keras.layers.ReLU(), conv, keras.layers.MaxPool2D()])) == last
    assert backend.data_format(keras.Sequential([conv, keras.layers.Flatten()])) == ("channels_last", ""), "no image"
    assert backend.data_format(keras.Sequential([conv, keras.layers.GlobalMaxPool2D()])) == ("channels_last", "")
    assert backend.data_format(keras.layers.Conv2D(4, 3, data_format="channels_first")) == ("channels_first",) * 2
    assert backend.data_format(keras.layers.Dense(2)) == ("", "")


def test_keras_losses_are_taken(train: Train, keras: ModuleType, backend: JaxBackend) -> None:
    """Keras takes targets first; the order matters for this one."""
    expected = train(net(keras), loss="mse")[1]
    for loss in (keras.losses.MeanSquaredError(), keras.losses.MeanSquaredError, keras.losses.mean_squared_error):
        np.testing.assert_allclose(train(net(keras), loss=loss)[1], expected, rtol=1e-5)
    uneven = keras.losses.MeanAbsolutePercentageError()
    result = train(net(keras), aa.Optimizer("sgd", lr=1e-9), loss=uneven, epochs=1)[1]
    assert result[0] == pytest.approx(100.0, rel=1e-3), "outputs are zeros: all of each target is missed"


@pytest.mark.parametrize("name", ["MeanSquaredError", "Huber", "mean_absolute_error"])
def test_elementwise_losses_of_keras_do_not_broadcast(train: Train, keras: ModuleType, name: str) -> None:
    wide = keras.Sequential([keras.layers.Dense(3)])
    message = r"outputs of shape \[8, 3\] and targets of shape \[8, 1\].*both must have the same shape"
    with pytest.raises(ShapeError, match=message):
        train(wide, loss=getattr(keras.losses, name))


def test_a_last_axis_of_one_may_be_missing_as_in_keras(keras: ModuleType) -> None:
    outputs, targets = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([1.0, 0.0, 0.0])
    for first, second in ((outputs, targets), (outputs[:, 0], targets[:, None])):
        assert float(scalar_loss(Loss(keras.losses.MeanSquaredError())).own(first, second)) == pytest.approx(20 / 3)


def test_a_keras_loss_with_wrong_settings_raises(backend: JaxBackend, keras: ModuleType, segment_of: Any) -> None:
    from dataclasses import replace

    segment = segment_of(net(keras))
    (term,) = segment.losses
    loss = Loss(keras.losses.Huber, loss_kwargs={"nothing": 1})
    with pytest.raises(SpecError, match=r"cannot create the loss 'Huber'.*nothing.*loss_kwargs"):
        backend.build(replace(segment, losses=(replace(term, loss=loss),)))


def test_keras_on_another_framework_is_refused(
    backend: JaxBackend, keras: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Loss(keras.losses.MeanSquaredError())
    assert (
        backend.unsupported_reason(loss)
        == ""
        == backend.unsupported_reason(Loss(lambda y, t: 0))
        == backend.unsupported_reason(Optimizer("adam"))
    )
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert backend.unsupported_reason(loss) == "Keras runs on torch, not on JAX"


def test_a_graph_of_keras_and_ours(data: tuple[np.ndarray, ...], keras: ModuleType) -> None:
    from anyaccel_jax import SequentialMLP

    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    nodes = [
        aa.ModelNode("body", keras.layers.Dense(4), source.reference()),
        aa.ModelNode("head", SequentialMLP(), "body"),
    ]
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="head")], epochs=5)
    results = aa.Experiment("e", aa.ModelGraph(nodes, "adam"), progress="none").run_phase(phase)
    assert results.loss[-1] < results.loss[0] and len(results.plan.crossings) == 0


def left_out(keras: ModuleType) -> list[tuple[Any, str]]:
    """Models of which something would be left out, and what."""

    class CustomStep(keras.Sequential):  # type: ignore[name-defined,misc]
        def train_step(self, *given: Any) -> Any:
            return super().train_step(*given)

    class CustomLoss(keras.Sequential):  # type: ignore[name-defined,misc]
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            return super().compute_loss(*given, **named)

    return [
        (CustomStep([keras.layers.Dense(1)]), r"CustomStep overrides train_step, which would not be called"),
        (CustomLoss([keras.layers.Dense(1)]), r"CustomLoss overrides compute_loss, which would not be called"),
    ]


@pytest.mark.parametrize("number", range(2))
def test_what_only_kerass_own_loop_does_is_refused_in_training_only(
    data: tuple[np.ndarray, ...], keras: ModuleType, number: int
) -> None:
    model, message = left_out(keras)[number]
    model.build((None, 3))
    before = values(model)
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    experiment = aa.Experiment("e", aa.ModelGraph([aa.ModelNode("net", model, source.reference())], "sgd"))
    with pytest.raises(PhaseError, match=f"node 'net' cannot be trained: {message}.*Hint: leave it out"):
        experiment.run_phase(aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")]))
    for actual, expected in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(actual, expected)
    seen = experiment.run_phase(aa.EvalPhase("look", data=source, outputs=["net"])).prediction("net")
    np.testing.assert_allclose(seen, model.predict(data[0], verbose=0), rtol=1e-5)


def test_spectral_normalization_trains_as_fit_does(
    train: Train, data: tuple[np.ndarray, ...], keras: ModuleType
) -> None:
    def made() -> Any:
        inner = keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(5))
        keras.utils.set_random_seed(1)
        return net(keras, keras.layers.SpectralNormalization(inner))

    given, own = made(), made()
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.fit(data[0], data[1], batch_size=8, epochs=3, shuffle=False, verbose=0)
    train(given)
    for actual, expected in zip(values(given), values(own), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_losses_that_a_model_adds_keep_their_scale_in_accumulated_batches(
    data: tuple[np.ndarray, ...], keras: ModuleType
) -> None:
    def trained(batch_size: int, accumulate: int) -> list[np.ndarray]:
        decay = keras.regularizers.L2(0.1)
        dense = keras.layers.Dense(4, kernel_regularizer=decay, activity_regularizer=decay, kernel_initializer="ones")
        model = net(keras, dense)
        source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("sgd", lr=0.1))
        phase = aa.TrainPhase(
            "t",
            data=source,
            losses=[aa.AppliedLoss("mse", on="net")],
            sampler=aa.SimpleSampler(batch_size),
            accumulate=accumulate,
        )
        aa.Experiment("e", graph, progress="none").run_phase(phase)
        return values(model)

    for actual, expected in zip(trained(4, 2), trained(8, 1), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_in_a_callback_a_model_has_the_values_of_now(train: Train, keras: ModuleType) -> None:
    model, seen = net(keras), []

    class Looking(aa.Callback):
        def step_end(self, run: Any) -> None:
            seen.append(np.array(run.model("net").layers[-1].kernel.value))

        def epoch_end(self, run: Any) -> None:
            held = np.array(model.layers[-1].kernel.value)
            np.testing.assert_array_equal(held, run.graph.state()["net/parameters/layers.1.kernel"])
            epochs.append(held)
            with pytest.raises(GraphError, match="has no node 'nobody'"):
                run.model("nobody")

    epochs: list[np.ndarray] = []
    train(model, callbacks=[Looking()])
    assert len(seen) == 9 and len(epochs) == 3
    assert all((one != other).any() for one, other in pairwise(seen))
    np.testing.assert_array_equal(seen[2::3], epochs)


def test_inference_leaves_plain_attributes_as_they_were(backend: JaxBackend, keras: ModuleType) -> None:
    class Recording(keras.Model):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.count, self.seen = keras.layers.Dense(2), 0, []

        def call(self, x: Any) -> Any:
            self.count += 1
            self.seen.append(1)
            self.center = jnp.mean(x)
            return self.dense(x)

    model = Recording()
    model(np.zeros((2, 3), "float32"))
    del model.center
    before = model.count
    wrapped = backend.wrap(model)
    in_training = [output.spec for output in backend.infer_training(wrapped, IN)]
    for specs in (backend.infer(wrapped, IN, 0), in_training):
        assert tuple(specs) == (TensorSpec((2,), "float32"),)
        assert (model.count, len(model.seen), hasattr(model, "center")) == (before, before, False)


def test_only_a_batch_normalization_that_trains_couples_a_batch(backend: JaxBackend, keras: ModuleType) -> None:
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), norm])
    assert backend.batch_coupling(model) == "BatchNormalization"
    norm.trainable = False
    assert backend.batch_coupling(model) == ""
    assert backend.batch_coupling(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])) == ""


def frozen_and_trained(kept: Any, taught: Any, *, takes_part: bool) -> None:
    columns = {"x": np.ones((8, 3), "float32"), "y": np.ones((8, 1), "float32")}
    reference = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"]).reference()
    nodes = [aa.ModelNode("kept", kept, reference), aa.ModelNode("net", taught, "kept" if takes_part else reference)]
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], compile="off")
    aa.Experiment("e", aa.ModelGraph(nodes, "sgd").freeze("kept"), progress="none").run_phase(phase)


@pytest.mark.parametrize("takes_part", [True, False])
@pytest.mark.parametrize("library", ["keras", "nnx"])
def test_a_frozen_node_does_not_share_a_layer_with_one_that_is_trained(
    library: str, takes_part: bool, keras: ModuleType
) -> None:
    if library == "keras":
        shared = keras.layers.Dense(3)
        models = keras.Sequential([shared]), keras.Sequential([shared, keras.layers.Dense(1)])
    else:
        nnx = pytest.importorskip("flax.nnx")
        shared, rngs = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Rngs(1)
        models = nnx.Sequential(shared), nnx.Sequential(shared, nnx.Linear(3, 1, rngs=rngs))
    with pytest.raises(GraphError, match=r"share the parameter 'layers\.0\..*', and 'kept' is frozen\. Hint: freeze"):
        frozen_and_trained(*models, takes_part=takes_part)
