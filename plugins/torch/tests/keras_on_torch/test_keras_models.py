"""Keras models that run on torch: built from a seed, called, placed, with losses and optimizers."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import MoveError, ShapeError, StateError
from anyaccel.segment import Operation, Segment, TensorSpec
from anyaccel_torch import module_traits
from anyaccel_torch.backend import TorchBackend

from .models import (
    CPU,
    ON_CPU,
    Data,
    Make,
    Net,
    X,
    dropout_layers,
    equal_states,
    initialized,
    keras,
    layers,
    mixed_model,
)


def mixed() -> Any:
    """A module of torch with Keras layers in it."""
    return nn.Sequential(
        keras.Sequential([layers.Dense(4), *dropout_layers()]), layers.BatchNormalization(), nn.Linear(4, 1)
    )


pytestmark = ON_CPU


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mixed_model, Net, mixed])
def test_names_are_paths_independent_of_earlier_models(backend: TorchBackend, make: Callable[[], Any]) -> None:
    first, second = (initialized(backend, make(), seed=seed) for seed in (1, 2))
    state = backend.state(first)
    assert not equal_states(state, backend.state(second))
    backend.load_state(second, state)
    assert equal_states(backend.state(second), state)
    assert not any(word in name for name in state for word in ("_torch_params", "sequential", "dense", "variable"))


def test_names_of_a_model_with_attributes(backend: TorchBackend) -> None:
    dense = [f"{path}.{name}" for path in ("first", "hidden.0", "named.last") for name in ("bias", "kernel")]
    model = initialized(backend, Net())
    assert sorted(backend.parameters(model)) == dense
    assert set(backend.state(model)) == {f"parameters/{name}" for name in dense} | {
        f"buffers/hidden.{i}.seed_generator.state" for i in (1, 2)
    }


def test_state_of_an_unbuilt_model_raises_state_error(backend: TorchBackend) -> None:
    for ask in (backend.parameters, backend.state):
        with pytest.raises(StateError, match=r"Sequential has no parameters yet.*build the graph that contains it"):
            ask(mixed_model())


# -- building --------------------------------------------------------------------------------------------------------


class Attending(keras.Model):
    """Creates layers, and draws their seeds, while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = layers.MultiHeadAttention(1, 2), layers.Dense(1)

    def call(self, x: Any) -> Any:
        x = keras.ops.expand_dims(x, -1)
        return self.last(keras.ops.squeeze(self.attention(x, x), -1))


@pytest.mark.parametrize("make", [mixed_model, Net, mixed, Attending])
def test_weights_follow_from_the_seed_and_generators_are_restored(
    backend: TorchBackend, make: Callable[[], Any]
) -> None:
    result = []
    for seed in (5, 5, 6):
        keras.utils.set_random_seed(seed * len(result))  # what the user does with Keras's generators does not matter
        model = make()
        before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
        initialized(backend, model, seed=seed)
        assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[2])
        assert np.array_equal(np.random.get_state()[1], before[1])
        result.append({k: v for k, v in backend.state(model).items() if k.endswith("kernel")})
    assert result[0] and equal_states(result[0], result[1])
    assert all(not np.array_equal(value, result[2][name]) for name, value in result[0].items())


def test_user_seeds_and_existing_weights_are_kept(backend: TorchBackend) -> None:
    result = []
    for seed in (1, 2):
        initializer = keras.initializers.GlorotUniform(seed=9)
        ready = keras.Sequential([keras.Input((3,)), layers.Dense(3, kernel_initializer=initializer)])
        before = backend.state(ready)
        whole = initialized(
            backend, keras.Sequential([ready, layers.Dense(2, kernel_initializer=initializer)]), seed=seed
        )
        assert equal_states(backend.state(ready), before)
        result.append(backend.state(whole)["parameters/layers.1.kernel"])
    assert np.array_equal(*result)


def test_functional_model_takes_and_gives_several_values(backend: TorchBackend) -> None:
    """Inputs in the order of the model's `inputs`, outputs in that of its dict."""
    wide, narrow = keras.Input((3,), name="b"), keras.Input((2,), name="a")
    outputs = {"p": layers.Dense(1)(wide), "q": layers.Concatenate()([wide, narrow])}
    model = keras.Model({"b": wide, "a": narrow}, outputs)
    specs = [TensorSpec(tuple(first.shape[1:]), "float32") for first in model.inputs]
    assert specs == [TensorSpec((2,), "float32"), X]
    assert backend.infer(model, specs, 0) == (TensorSpec((1,), "float32"), TensorSpec((5,), "float32"))
    operation = Operation("m", model, ("a", "b"), ("p", "q"), CPU)
    names = {"a": (specs[0], CPU), "b": (specs[1], CPU)}
    a, b = torch.rand(4, 2), torch.rand(4, 3)
    dense = next(layer for layer in model.layers if isinstance(layer, layers.Dense))
    (p, q), _ = backend.build(Segment("s", (operation,), names, ("p", "q"))).forward([a, b])
    assert torch.equal(q, torch.cat([b, a], 1))
    torch.testing.assert_close(p, (b @ dense.kernel.value + dense.bias.value).detach())
    assert backend.mutates_inputs(model, specs) is False
    with pytest.raises(ShapeError, match="Functional does not accept"):
        backend.infer(model, specs[:1], 0)


@pytest.mark.parametrize("takes", ["a list", "two arguments", "any number"])
def test_subclassed_model_takes_inputs_as_its_call_declares(backend: TorchBackend, takes: str) -> None:
    class Listing(keras.Model):
        def call(self, inputs: Any, training: bool = False) -> Any:
            return inputs[0] - inputs[1]

    class Two(keras.Model):
        def call(self, first: Any, second: Any) -> Any:
            return first - second

    class Any_(keras.Model):
        def call(self, *inputs: Any) -> Any:
            return inputs[0] - inputs[1]

    model = {"a list": Listing, "two arguments": Two, "any number": Any_}[takes]()
    assert backend.infer(model, [X, X], 0) == (X,)


def test_errors_of_keras_lose_their_frame(backend: TorchBackend) -> None:
    model = initialized(backend, Net())
    with pytest.raises(ShapeError) as caught:
        backend.infer(model, [TensorSpec((5,), "float32")], 0)
    message = str(caught.value)
    assert "expected axis -1 of input shape to have value 3" in message and "correct the sizes" in message
    assert "Exception encountered" not in message and "\x1b" not in message


def test_dtype_and_data_format_are_known(backend: TorchBackend) -> None:
    double = keras.Sequential([layers.Flatten(), layers.Dense(2, dtype="float64")])
    assert backend.dtype_of(double) == "float32" and backend.dtype_of(mixed_model()) == "float32"
    assert backend.dtype_of(keras.Sequential([layers.Dense(2, dtype="float64")])) == "float64"
    assert backend.dtype_of(initialized(backend, mixed())) == "float32"
    images = [layers.Activation("relu"), layers.Conv2D(2, 2), layers.GlobalAveragePooling2D()]
    assert backend.data_format(keras.Sequential(images[:2])) == ("channels_last", "channels_last")
    assert backend.data_format(keras.Sequential(images)) == ("channels_last", "")
    assert backend.data_format(mixed_model()) == ("", "") == backend.data_format(Net())


def test_large_keras_models_are_run_on_values(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras models cannot be copied without values."""
    model = initialized(backend, mixed_model())
    before, copies = backend.state(model), []
    monkeypatch.setattr(module_traits, "LARGE_BYTES", 1)
    monkeypatch.setattr("copy.deepcopy", lambda *specs: copies.append(specs))
    assert backend.infer(model, [X], 0) == (TensorSpec((1,), "float32"),)
    assert copies == [] and equal_states(backend.state(model), before)


# -- devices ---------------------------------------------------------------------------------------------------------


def test_keras_device_scope_does_not_matter(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """Keras moves inputs to its own device, CUDA if there is one, unless a device scope says otherwise."""
    x, y, order = data
    model = initialized(backend, mixed_model())
    program = backend.build(segment_of(model, loss=keras.losses.MeanSquaredError()))
    with keras.device("meta"):
        losses = program.train_steps([x, y], [order, order], 0, 3, 8)
    assert backend.device_of(model) == CPU and losses.isfinite().all()


def test_move_to_meta_raises_move_error(backend: TorchBackend) -> None:
    """On a move to `meta`, torch creates new parameters, which Keras's variables would not see."""
    model = initialized(backend, mixed_model())
    before = backend.state(model)
    with pytest.raises(MoveError, match=r"Sequential cannot be moved to meta.*inside keras.device"):
        backend.place(model, Device("meta"))
    assert equal_states(backend.state(model), before) and {p.device.type for p in model.parameters()} == {"cpu"}
    assert backend.place(model, CPU) is model


# -- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [keras.losses.BinaryCrossentropy(), keras.losses.BinaryCrossentropy, keras.losses.binary_crossentropy],
    ids=["object", "class", "function"],
)
def test_keras_losses_train(backend: TorchBackend, segment_of: Make, data: Data, own: Any) -> None:
    x, _, order = data
    y = (x.sum(1, keepdim=True) > 0).float() * 0.8 + 0.1
    assert backend.unsupported_reason(aa.Loss(own)) == ""
    model = initialized(backend, keras.Sequential([layers.Dense(1, "sigmoid")]))
    with torch.no_grad():
        p = model(x)
    expected = torch.nn.functional.binary_cross_entropy(p, y)
    program = backend.build(segment_of(model, loss=own))
    _, losses = program.forward([x, y])
    torch.testing.assert_close(losses["l"][0] / losses["l"][1], expected, rtol=1e-4, atol=1e-5)
    table = program.train_steps([x, y], [order, order], 0, 3, 8)
    assert table.isfinite().all()


@pytest.mark.parametrize("name", ["AdamW", "Nadam", "Adafactor", "Lamb"])
def test_a_keras_optimizer_goes_on_from_a_saved_state(name: str, tmp_path: Any) -> None:
    """With a group of its own, on plain modules too, whose state another graph takes."""
    torch.manual_seed(0)
    begun = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])

    def graph() -> Any:
        spec = aa.Optimizer(getattr(keras.optimizers, name), lr=0.01, groups={"*bias": {"lr": 0.001}})
        return aa.ModelGraph([aa.ModelNode("net", copy.deepcopy(begun), source.reference())], spec)

    def train(trained: Any, epochs: int) -> Any:
        losses = [aa.AppliedLoss("mse", on="net")]
        trained.run(aa.TrainPhase("t", data="all", losses=losses, batch_size=8, epochs=epochs), progress="none")
        return trained

    whole, first, second = train(graph(), 4), train(graph(), 2), graph()
    second.load_state(first.state())
    train(second, 2)
    state = second.state()
    assert any("/optimizer/shared" in name for name in state)
    for key, value in whole.state().items():
        np.testing.assert_allclose(state[key], value, rtol=1e-6, atol=1e-7, err_msg=key)


def test_plain_modules_do_not_import_keras() -> None:
    code = """
import sys, torch
from anyaccel.segment import TensorSpec
from anyaccel_torch.backend import TorchBackend
backend, model = TorchBackend(), torch.nn.Linear(3, 1)
backend.infer(model, [TensorSpec((3,), "float32")], 0)
backend.load_state(model, backend.state(model))
assert "keras" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- what a step takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mixed_model, mixed])
def test_a_plan_says_that_steps_of_layers_are_not_measured(make: Callable[[], Any]) -> None:
    """A copy of a layer has values, so that none is made."""
    columns = {"x": np.ones((8, *X.shape), X.dtype), "y": np.ones((8, 1), np.float32)}
    rows = aa.FeatureSet.from_dict("d", columns, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", make(), rows.reference())], "sgd")
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    plan = aa.Experiment(graph, progress="none").plan(phase)
    (gap,) = [text for text in plan.not_covered if text.startswith("activations")]
    assert "layers of Keras copy their values too" in gap and plan.memory[0].parameters


REPLICATED = """
import keras
import numpy as np
import anyaccel as aa

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
net = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")
aa.Experiment(graph).run_phase(aa.TrainPhase("train", data=data, losses=[aa.AppliedLoss("mse", on="net")]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ANYACCEL_TEST_FULL"), reason="two processes that import Keras")
def test_seeds_of_dropout_are_no_buffers_that_replicas_computed_from_their_rows(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REPLICATED)
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", "2", "script.py"]
    environment = {**os.environ, "PYTHONWARNINGS": "error::UserWarning"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
