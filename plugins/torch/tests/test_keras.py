"""Keras models that run on torch: trained as Keras's users expect, and what they hold by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.segment import LossTerm, Operation, ParameterGroup, TensorSpec
from anyaccel_torch.backend import TorchBackend

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode puts no folder on the path

from keras_nets import CPU, Data, Make, built, drop, everything, keras, layers, same

# -- training --------------------------------------------------------------------------------------------------------


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.BatchNorm1d(8, eps=1e-3, momentum=0.01), nn.Linear(8, 1))


def copied(backend: TorchBackend) -> tuple[nn.Sequential, Any]:
    """A module of torch and a Keras model with the same values."""
    module = plain()
    parts = [layers.Dense(8, "tanh"), layers.BatchNormalization(momentum=0.99, epsilon=1e-3), layers.Dense(1)]
    model = built(backend, keras.Sequential(parts))
    state = backend.state(model)
    for there, here in (("layers.0", module[0]), ("layers.2", module[3])):
        state[f"parameters/{there}.kernel"] = here.weight.detach().numpy().T
        state[f"parameters/{there}.bias"] = here.bias.detach().numpy()
    backend.load_state(model, state)
    return module, model


def test_it_trains_like_the_same_module_of_torch(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """20 steps of Adam from the same values: the same losses, and the same outputs in evaluation afterwards."""
    x, y, order = data
    module, model = copied(backend)
    found = []
    for each in (module, model):
        program = backend.build(segment_of(each, optimizer=aa.Optimizer("adam", lr=0.01)))
        losses = [program.train_steps([x, y], [order, order], 0, 4, 6) for _ in range(5)]
        program.close()
        (outputs,), _ = backend.build(segment_of(each, groups=())).forward([x, y])
        found.append((torch.cat(losses), outputs))
    assert found[0][0].shape == (20, 1) and found[0][0][-1] < found[0][0][0]
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    # Keras takes the biased variance of a batch into its moving one, torch the unbiased: over batches of 6 they differ
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # NumPy's, of Keras
def test_a_graph_trains_it_and_the_user_keeps_the_model() -> None:
    x = np.random.default_rng(0).standard_normal((64, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    model = everything()
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("adam", lr=0.05))
    experiment = aa.Experiment("e", graph, progress="none")
    losses = [aa.AppliedLoss("mse", on="net")]
    results = experiment.run_phase(aa.TrainPhase("train", data=source, losses=losses, sampler=16, n_epochs=10))
    assert results.loss[-1] < results.loss[0]
    assert model.layers[1].moving_mean.value.abs().max() > 0.01
    seen = experiment.run_phase(aa.EvalPhase("look", data=source, outputs=["net"])).prediction("net")
    np.testing.assert_allclose(seen, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1] * 2, epochs=1, verbose=0)


def test_a_frozen_node_is_in_evaluation_mode_and_stays_as_it_is(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    x, y, order = data
    frozen = built(backend, everything())
    last = built(backend, keras.Sequential([layers.Dense(1)]), TensorSpec((1,), "float32"))
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
    assert same(backend.state(frozen), before)
    program.close()
    assert all(one.value.requires_grad for one in frozen.trainable_variables)


def test_a_layer_that_the_user_froze_is_not_trained(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = built(backend, everything())
    names = list(backend.parameters(model))
    model.layers[1].trainable = False
    before = backend.state(model)
    program = backend.build(segment_of(model))
    program.train_steps([x, y], [order, order], 0, 3, 8)
    program.close()
    changed = {name for name, value in backend.state(model).items() if not np.array_equal(value, before[name])}
    assert changed == {f"parameters/layers.{i}.{name}" for i in (0, 4) for name in ("kernel", "bias")}
    assert list(backend.parameters(model)) == names


@pytest.mark.parametrize("alone", [True, False], ids=["a model", "a layer in a module"])
def test_losses_that_a_model_adds_enter_the_gradients(
    backend: TorchBackend, segment_of: Make, data: Data, alone: bool
) -> None:
    """Those of this call, and no older ones; the loss that is told is without them."""
    x, y, _ = data

    def gradients(weight: float | None) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        regularizer = None if weight is None else keras.regularizers.L2(weight)
        layer = layers.Dense(1, kernel_regularizer=regularizer, activity_regularizer=regularizer)
        model = built(backend, keras.Sequential([layer]) if alone else nn.Sequential(layer, nn.Identity()))
        program, found = backend.build(segment_of(model)), []
        for _ in range(2):
            _, losses, pullback = program.forward_pullback([x, y])
            pullback([None])
            found.append(layer.kernel.value.grad)
            program.zero_grad()
        return found, losses["l"][0], layer.kernel.value.detach()

    (without, _), loss, kernel = gradients(None)
    found, told, _ = gradients(0.5)
    expected = without + 2 * 0.5 * kernel + 2 * 0.5 * x.T @ (x @ kernel) / len(x)  # Keras takes a mean over the batch
    assert loss == told
    for gradient in found:
        torch.testing.assert_close(gradient, expected)


# -- Keras layers inside a module of torch ---------------------------------------------------------------------------


class Mixed(nn.Module):
    """A module as torch's users write it, with Keras layers in it."""

    def __init__(self, told: bool | None = None) -> None:
        super().__init__()
        self.body = keras.Sequential([layers.Dense(4), *drop()])
        self.norm = layers.BatchNormalization()
        self.head = nn.Linear(4, 1)
        self.told = told

    def forward(self, x: Any) -> Any:
        x = self.body(x) if self.told is None else self.body(x, training=self.told)
        return self.head(self.norm(x))


def test_keras_layers_inside_a_module_train(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """Told by the module's own mode: dropout drops, and the statistics move; in evaluation neither."""
    x, y, order = data
    model = built(backend, Mixed())
    before = backend.state(model)
    assert {"parameters/body.layers.0.kernel", "parameters/head.weight", "buffers/norm.moving_mean"} <= set(before)
    program = backend.build(segment_of(model))
    one, two = (program.forward_pullback([x, y])[0][0] for _ in range(2))
    assert not torch.equal(one, two)
    program.zero_grad()
    program.train_steps([x, y], [order, order], 0, 3, 8)
    after = backend.state(model)
    still = {name for name, value in after.items() if np.array_equal(value, before[name])}
    assert still == {"buffers/body.layers.1.seed_generator.state"}  # Keras uses those with a seed only
    one, two = (program.forward([x, y])[0][0] for _ in range(2))
    assert torch.equal(one, two) and same(backend.state(model), after)
    program.close()


def test_what_a_module_tells_its_layers_goes_first(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    program = backend.build(segment_of(built(backend, Mixed(told=False))))
    one, two = (program.forward_pullback([x, y])[0][0] for _ in range(2))
    assert torch.equal(one, two)


def test_modules_of_torch_inside_keras_layers(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """Torch sees nothing of what is in a list of Keras's; names, snapshots and modes have it all the same."""
    x, y, order = data
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    model = built(backend, keras.Sequential([layers.TorchModuleWrapper(inner), layers.Dense(1)]))
    start = backend.state(model)
    assert {"parameters/layers.0.module.0.weight", "buffers/layers.0.module.1.running_mean"} <= set(start)
    assert inner[1].num_batches_tracked == 0 and not inner.training
    program = backend.build(segment_of(model))
    snapshot = program.snapshot()
    program.train_steps([x, y], [order, order], 0, 3, 8)
    assert inner[1].num_batches_tracked == 3 and inner.training
    program.restore(snapshot)
    assert same(backend.state(model), start)
    program.close()
    assert not inner.training


# -- state -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_has_what_keras_keeps_as_parameters(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = built(backend, everything())
    program = backend.build(segment_of(model, optimizer=aa.Optimizer("adam")))
    program.seed(1)
    program.train_steps([x, y], [order, order], 0, 1, 8)
    snapshot, kept = program.snapshot(), backend.state(model)
    first = program.train_steps([x, y], [order, order], 0, 3, 8)
    program.restore(snapshot)
    assert same(backend.state(model), kept)
    assert torch.equal(program.train_steps([x, y], [order, order], 0, 3, 8), first)


def test_release_gives_back_the_seeds(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """As torch's own random state; the moving statistics stay as they were learned."""
    x, y, order = data
    model, seed = built(backend, everything()), "buffers/layers.3.seed_generator.state"
    before = backend.state(model)
    program = backend.build(segment_of(model))
    program.seed(2**64 - 1)
    program.train_steps([x, y], [order, order], 0, 2, 8)
    assert not np.array_equal(backend.state(model)[seed], before[seed])
    program.close()
    changed = {name for name, value in backend.state(model).items() if not np.array_equal(value, before[name])}
    assert seed in before.keys() - changed
    assert {"buffers/layers.1.moving_mean", "buffers/layers.1.moving_variance"} <= changed


def test_two_values_of_one_path_have_two_names(backend: TorchBackend) -> None:
    """Keras shows torch one parameter for each path of names, which users may give twice; here all are kept."""

    class Twice(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers.Dense(2, name="same"), layers.Dense(2, name="same")

        def call(self, x: Any) -> Any:
            return self.one(x) + self.two(x)

    model = built(backend, Twice())
    assert sorted(backend.parameters(model)) == ["one.bias", "one.kernel", "two.bias", "two.kernel"]
