"""Keras models that run on torch: training, and what they hold by name."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.distributions import check_library
from anyaccel.errors import CompileWarning, PhaseError, PluginError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, TensorSpec
from anyaccel.specs import Optimizer
from anyaccel_torch.backend import TorchBackend

from .models import CPU, ON_CPU, Data, Make, dropout_layers, equal_states, initialized, keras, layers, mixed_model

pytestmark = ON_CPU


# -- training --------------------------------------------------------------------------------------------------------


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.BatchNorm1d(8, eps=1e-3, momentum=0.01), nn.Linear(8, 1))


def copied(backend: TorchBackend) -> tuple[nn.Sequential, Any]:
    """A module of torch and a Keras model with the same values."""
    module = plain()
    parts = [layers.Dense(8, "tanh"), layers.BatchNormalization(momentum=0.99, epsilon=1e-3), layers.Dense(1)]
    model = initialized(backend, keras.Sequential(parts))
    state = backend.state(model)
    for there, here in (("layers.0", module[0]), ("layers.2", module[3])):
        state[f"parameters/{there}.kernel"] = here.weight.detach().numpy().T
        state[f"parameters/{there}.bias"] = here.bias.detach().numpy()
    backend.load_state(model, state)
    return module, model


def test_keras_model_trains_like_an_equal_torch_module(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """20 steps of Adam from the same values: the same losses, and the same outputs in evaluation afterwards."""
    x, y, order = data
    module, model = copied(backend)
    result = []
    for each in (module, model):
        program = backend.build(segment_of(each, optimizer=aa.Optimizer("adam", lr=0.01)))
        losses = [program.train_steps([x, y], [order, order], 0, 4, 6) for _ in range(5)]
        program.close()
        (outputs,), _ = backend.build(segment_of(each, groups=())).forward([x, y])
        result.append((torch.cat(losses), outputs))
    assert result[0][0].shape == (20, 1) and result[0][0][-1] < result[0][0][0]
    torch.testing.assert_close(result[1][0], result[0][0], rtol=1e-5, atol=1e-5)
    # Keras takes the biased variance of a batch into its moving one, torch the unbiased: over batches of 6 they differ
    torch.testing.assert_close(result[1][1], result[0][1], rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # NumPy's, of Keras
def test_graph_trains_the_users_keras_model() -> None:
    x = np.random.default_rng(0).standard_normal((64, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    model = mixed_model()
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("adam", lr=0.05))
    experiment = aa.Experiment("e", graph, progress="none")
    losses = [aa.AppliedLoss("mse", on="net")]
    results = experiment.run_phase(aa.TrainPhase("train", data=source, losses=losses, batch_size=16, epochs=10))
    assert results.loss[-1] < results.loss[0]
    assert model.layers[1].moving_mean.value.abs().max() > 0.01
    seen = experiment.run_phase(aa.EvalPhase("look", data=source, outputs=["net"])).prediction("net")
    np.testing.assert_allclose(seen, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1] * 2, epochs=1, verbose=0)


def test_frozen_node_is_in_evaluation_mode_and_unchanged(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    frozen = initialized(backend, mixed_model())
    last = initialized(backend, keras.Sequential([layers.Dense(1)]), TensorSpec((1,), "float32"))
    before = backend.state(frozen)
    operations = (
        Operation("a", frozen, ("x",), ("a",), CPU, trainable=False),
        Operation("b", last, ("a",), ("b",), CPU),
    )
    terms = (LossTerm("l", "b", aa.Loss("mse"), ("b", "y"), CPU),)
    groups = (ParameterGroup("g", aa.Optimizer("sgd", lr=0.1), ("b",)),)
    program = backend.build(segment_of(None, operations=operations, outputs=("a",), losses=terms, groups=groups))
    outputs = [program.forward_pullback([x, y])[0][0] for _ in range(2)]
    assert torch.equal(*outputs) and torch.equal(outputs[0], frozen(x, training=False))
    program.zero_grad()
    program.train_steps([x, y], [order, order], 0, 3, 8)
    assert equal_states(backend.state(frozen), before)
    program.close()
    assert all(a.value.requires_grad for a in frozen.trainable_variables)


def test_frozen_layer_is_not_trained(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = initialized(backend, mixed_model())
    names = list(backend.parameters(model))
    model.layers[1].trainable = False
    before = backend.state(model)
    program = backend.build(segment_of(model))
    program.train_steps([x, y], [order, order], 0, 3, 8)
    program.close()
    changed = {name for name, value in backend.state(model).items() if not np.array_equal(value, before[name])}
    assert changed == {f"parameters/layers.{i}.{name}" for i in (0, 4) for name in ("kernel", "bias")}
    assert list(backend.parameters(model)) == names


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables", "ignore:__array__ implementation")
def test_a_layer_that_some_batches_leave_out_has_the_count_of_steps_of_all(backend: TorchBackend) -> None:
    """Beside the same optimizer of Keras in a loop by hand: its `iterations` count all steps."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(32, 3)).astype("float32"), draw.normal(size=(32, 1)).astype("float32")
    x[:, 0] = np.repeat([1, -1, -1, 1, -1, 1, -1, 1], 4)

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = layers.Dense(1), layers.Dense(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.right(x) + (self.left(x) if float(x[0, 0]) > 0 else 0.0)

    def optimizer() -> Any:
        return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7))

    model, expected = Sometimes(), Sometimes()
    for each in (model, expected):
        each(torch.tensor(x))
    for there, here in ((expected.left, model.left), (expected.right, model.right)):
        there.set_weights(here.get_weights())
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer())
    loss = aa.AppliedLoss("mse", on="net")
    graph.run(aa.TrainPhase("t", data="all", losses=loss, sampler=aa.SimpleSampler(4), compile="off"), progress="none")
    by_hand, variables = optimizer(), [v for each in (expected.left, expected.right) for v in each.trainable_variables]
    by_hand.build(variables)
    for start in range(0, 32, 4):
        expected.zero_grad()
        rows, targets = torch.tensor(x[start : start + 4]), torch.tensor(y[start : start + 4])
        nn.functional.mse_loss(expected(rows), targets).backward()
        by_hand.apply_gradients([(variable.value.grad, variable) for variable in variables])
    for there, here in ((expected.left, model.left), (expected.right, model.right)):
        for value, wanted in zip(here.get_weights(), there.get_weights(), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alone", [True, False], ids=["a model", "a layer in a module"])
def test_added_losses_contribute_to_gradients(backend: TorchBackend, segment_of: Make, data: Data, alone: bool) -> None:
    """Those of this call only; the reported loss is without them."""
    x, y, _ = data

    def gradients(weight: float | None) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        regularizer = None if weight is None else keras.regularizers.L2(weight)
        layer = layers.Dense(1, kernel_regularizer=regularizer, activity_regularizer=regularizer)
        model = initialized(backend, keras.Sequential([layer]) if alone else nn.Sequential(layer, nn.Identity()))
        program, result = backend.build(segment_of(model)), []
        for _ in range(2):
            _, losses, pullback = program.forward_pullback([x, y])
            pullback([None])
            result.append(layer.kernel.value.grad)
            program.zero_grad()
        return result, losses["l"][0], layer.kernel.value.detach()

    (without, _), loss, kernel = gradients(None)
    result, training_argument, _ = gradients(0.5)
    expected = without + 2 * 0.5 * kernel + 2 * 0.5 * x.T @ (x @ kernel) / len(x)  # Keras takes a mean over the batch
    assert loss == training_argument
    for gradient in result:
        torch.testing.assert_close(gradient, expected)


def test_a_head_without_a_loss_gets_no_gradient_beside_added_losses(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    """A gradient of zeros would let weight decay shrink it."""
    x, y, order = data
    entry = keras.Input((3,))
    used, unused = layers.Dense(1, kernel_regularizer="l2"), layers.Dense(1)
    model = initialized(backend, keras.Model(entry, [used(entry), unused(entry)]))
    before = [layer.kernel.value.detach().clone() for layer in (used, unused)]
    program = backend.build(
        segment_of(
            model,
            operations=(Operation("a", model, ("x",), ("a", "b"), CPU),),
            optimizer=Optimizer("adamw", lr=0.1, weight_decay=0.5),
        )
    )
    program.train_steps([x, y], [order, order], 0, 3, 8)
    program.close()
    assert not torch.equal(used.kernel.value, before[0])
    assert torch.equal(unused.kernel.value, before[1])


# -- Keras layers inside a module of torch ---------------------------------------------------------------------------


class Mixed(nn.Module):
    """A torch module with Keras layers in it."""

    def __init__(self, training_argument: bool | None = None) -> None:
        super().__init__()
        self.body = keras.Sequential([layers.Dense(4), *dropout_layers()])
        self.norm = layers.BatchNormalization()
        self.head = nn.Linear(4, 1)
        self.told = training_argument

    def forward(self, x: Any) -> Any:
        x = self.body(x) if self.told is None else self.body(x, training=self.told)
        return self.head(self.norm(x))


def test_keras_layers_inside_a_module_train(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """By the module's mode: dropout and moving statistics act in training only."""
    x, y, order = data
    model = initialized(backend, Mixed())
    before = backend.state(model)
    assert {"parameters/body.layers.0.kernel", "parameters/head.weight", "buffers/norm.moving_mean"} <= set(before)
    program = backend.build(segment_of(model))
    a, second = (program.forward_pullback([x, y])[0][0] for _ in range(2))
    assert not torch.equal(a, second)
    program.zero_grad()
    program.train_steps([x, y], [order, order], 0, 3, 8)
    after = backend.state(model)
    still = {name for name, value in after.items() if np.array_equal(value, before[name])}
    assert still == {"buffers/body.layers.1.seed_generator.state"}  # Keras uses those with a seed only
    a, second = (program.forward([x, y])[0][0] for _ in range(2))
    assert torch.equal(a, second) and equal_states(backend.state(model), after)
    program.close()


def test_training_argument_of_the_module_takes_precedence(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    program = backend.build(segment_of(initialized(backend, Mixed(training_argument=False))))
    a, second = (program.forward_pullback([x, y])[0][0] for _ in range(2))
    assert torch.equal(a, second)


def test_torch_modules_inside_keras_layers_train(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """torch does not see modules in a Keras list; names, snapshots and modes include them."""
    x, y, order = data
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    model = initialized(backend, keras.Sequential([layers.TorchModuleWrapper(inner), layers.Dense(1)]))
    start = backend.state(model)
    assert {"parameters/layers.0.module.0.weight", "buffers/layers.0.module.1.running_mean"} <= set(start)
    assert inner[1].num_batches_tracked == 0 and not inner.training
    program = backend.build(segment_of(model))
    snapshot = program.snapshot()
    program.train_steps([x, y], [order, order], 0, 3, 8)
    assert inner[1].num_batches_tracked == 3 and inner.training
    program.restore(snapshot)
    assert equal_states(backend.state(model), start)
    program.close()
    assert not inner.training


# -- state -----------------------------------------------------------------------------------------------------------


def test_snapshot_includes_keras_states(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = initialized(backend, mixed_model())
    program = backend.build(segment_of(model, optimizer=aa.Optimizer("adam")))
    program.seed(1)
    program.train_steps([x, y], [order, order], 0, 1, 8)
    snapshot, kept = program.snapshot(), backend.state(model)
    first = program.train_steps([x, y], [order, order], 0, 3, 8)
    program.restore(snapshot)
    assert equal_states(backend.state(model), kept)
    assert torch.equal(program.train_steps([x, y], [order, order], 0, 3, 8), first)


def test_close_restores_the_seeds(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """Like torch's own random state; learned moving statistics are kept."""
    x, y, order = data
    model, seed = initialized(backend, mixed_model()), "buffers/layers.3.seed_generator.state"
    before = backend.state(model)
    program = backend.build(segment_of(model))
    program.seed(2**64 - 1)
    program.train_steps([x, y], [order, order], 0, 2, 8)
    assert not np.array_equal(backend.state(model)[seed], before[seed])
    program.close()
    changed = {name for name, value in backend.state(model).items() if not np.array_equal(value, before[name])}
    assert seed in before.keys() - changed
    assert {"buffers/layers.1.moving_mean", "buffers/layers.1.moving_variance"} <= changed


def test_variables_of_one_path_get_distinct_names(backend: TorchBackend) -> None:
    """Keras shows torch one parameter per path, and users may give a path twice; here all are kept."""

    class Twice(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers.Dense(2, name="same"), layers.Dense(2, name="same")

        def call(self, x: Any) -> Any:
            return self.one(x) + self.two(x)

    model = initialized(backend, Twice())
    assert sorted(backend.parameters(model)) == ["one.bias", "one.kernel", "two.bias", "two.kernel"]


# -- what Keras's own loop does beside -------------------------------------------------------------------------------


def trained_in_graph(model: Any, batch: int = 8, **settings: Any) -> None:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("sgd", lr=0.1))
    sampler = aa.SimpleSampler(batch, shuffle=False)
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], sampler=sampler, **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)


class CustomStep(keras.Sequential):
    def train_step(self, *given: Any) -> Any:
        return super().train_step(*given)


def test_what_only_kerass_own_loop_does_is_refused(backend: TorchBackend) -> None:
    for make in (lambda: CustomStep([layers.Dense(1)]), lambda: nn.Sequential(CustomStep([layers.Dense(1)]))):
        with pytest.raises(PhaseError, match="'net' cannot be trained: CustomStep overrides train_step"):
            trained_in_graph(make())


def test_constraints_hold_inside_a_torch_module_and_keep_steps_from_being_compiled(backend: TorchBackend) -> None:
    dense = initialized(backend, layers.Dense(4, kernel_constraint="unit_norm", kernel_initializer="ones"))
    model = nn.Sequential(dense, nn.Linear(4, 1))
    trained_in_graph(model, compile="auto")
    torch.testing.assert_close(dense.kernel.value.norm(dim=0), torch.ones(4), rtol=1e-4, atol=1e-4)
    with pytest.warns(CompileWarning, match=r"cannot be compiled: .*Hint: .*without constraints of Keras"):
        trained_in_graph(model, compile="steps")


def test_losses_that_a_model_adds_keep_their_scale_in_accumulated_batches() -> None:
    decay, result = keras.regularizers.L2(0.1), []
    for batch, accumulate in ((8, 1), (4, 2)):
        dense = layers.Dense(4, kernel_regularizer=decay, activity_regularizer=decay, kernel_initializer="ones")
        model = keras.Sequential([dense, layers.Dense(1, kernel_initializer="ones")])
        trained_in_graph(model, batch, accumulate=accumulate)
        result.append([variable.value.detach().clone() for variable in model.variables])
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_spectral_normalization_trains_as_fit_does() -> None:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(keras.Sequential([layers.SpectralNormalization(layers.Dense(4)), layers.Dense(1)]))
        models[-1].build((None, 3))
    own, given = models
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.fit(x, x[:, :1], batch_size=8, epochs=1, shuffle=False, verbose=0)
    trained_in_graph(given)
    for one, other in zip(own.variables, given.variables, strict=True):
        torch.testing.assert_close(one.value, other.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alone", [True, False], ids=["a model", "a layer in a module"])
def test_an_older_keras_is_refused(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Before 3.14, activity regularizers are sums over a batch, and accumulated batches give other gradients."""
    kind = type("Fresh", (keras.Sequential,), {})  # ownership of a known class is not decided again
    model = kind([layers.Dense(1)]) if alone else nn.Sequential(layers.Dense(1))
    pair = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "3.13.2")
        check_library.cache_clear()
        text = r'keras 3\.13\.2 is too old: anyaccel-torch needs 3\.14 or later.*pip install "keras>=3\.14"'
        with pytest.raises(PluginError, match=text):
            aa.fit(model, pair, loss="mse", epochs=1, progress="none")
    check_library.cache_clear()
    assert aa.fit(model, pair, loss="mse", epochs=1, progress="none").results.loss.size
