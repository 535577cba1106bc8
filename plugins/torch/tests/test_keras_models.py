"""Keras models that run on torch: built from a seed, called, placed, and the recipes that go with them."""

from __future__ import annotations

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
from anyaccel.errors import MoveError, ShapeError, SpecError, StateError
from anyaccel.segment import Operation, Segment, TensorSpec
from anyaccel_torch import shape_inference
from anyaccel_torch.backend import TorchBackend

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode puts no folder on the path

from keras_nets import CPU, Data, Make, Net, X, built, drop, everything, keras, layers, same


def mixed() -> Any:
    """A module of torch with Keras layers in it."""
    return nn.Sequential(keras.Sequential([layers.Dense(4), *drop()]), layers.BatchNormalization(), nn.Linear(4, 1))


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [everything, Net, mixed])
def test_names_say_where_a_value_is_and_nothing_of_what_was_made_before(
    backend: TorchBackend, make: Callable[[], Any]
) -> None:
    one, two = (built(backend, make(), seed=seed) for seed in (1, 2))
    state = backend.state(one)
    assert not same(state, backend.state(two))
    backend.load_state(two, state)
    assert same(backend.state(two), state)
    assert not any(word in name for name in state for word in ("_torch_params", "sequential", "dense", "variable"))


def test_names_of_a_model_with_attributes(backend: TorchBackend) -> None:
    dense = [f"{path}.{name}" for path in ("first", "hidden.0", "named.last") for name in ("bias", "kernel")]
    model = built(backend, Net())
    assert sorted(backend.parameters(model)) == dense
    assert set(backend.state(model)) == {f"parameters/{name}" for name in dense} | {
        f"buffers/hidden.{i}.seed_generator.state" for i in (1, 2)
    }


def test_an_unbuilt_model_has_no_state(backend: TorchBackend) -> None:
    for ask in (backend.parameters, backend.state):
        with pytest.raises(StateError, match=r"Sequential has no parameters yet.*build the graph that contains it"):
            ask(everything())


# -- building --------------------------------------------------------------------------------------------------------


class Attending(keras.Model):
    """Makes layers, and draws their seeds, while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = layers.MultiHeadAttention(1, 2), layers.Dense(1)

    def call(self, x: Any) -> Any:
        x = keras.ops.expand_dims(x, -1)
        return self.last(keras.ops.squeeze(self.attention(x, x), -1))


@pytest.mark.parametrize("make", [everything, Net, mixed, Attending])
def test_weights_follow_from_the_seed_and_nothing_else_changes(backend: TorchBackend, make: Callable[[], Any]) -> None:
    found = []
    for seed in (5, 5, 6):
        keras.utils.set_random_seed(seed * len(found))  # what the user does with Keras's generators does not matter
        model = make()
        before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
        built(backend, model, seed=seed)
        assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[2])
        assert np.array_equal(np.random.get_state()[1], before[1])
        found.append({k: v for k, v in backend.state(model).items() if k.endswith("kernel")})
    assert found[0] and same(found[0], found[1])
    assert all(not np.array_equal(value, found[2][name]) for name, value in found[0].items())


def test_a_seed_of_the_users_own_and_weights_that_are_there_stay(backend: TorchBackend) -> None:
    found = []
    for seed in (1, 2):
        initializer = keras.initializers.GlorotUniform(seed=9)
        ready = keras.Sequential([keras.Input((3,)), layers.Dense(3, kernel_initializer=initializer)])
        before = backend.state(ready)
        whole = built(backend, keras.Sequential([ready, layers.Dense(2, kernel_initializer=initializer)]), seed=seed)
        assert same(backend.state(ready), before)
        found.append(backend.state(whole)["parameters/layers.1.kernel"])
    assert np.array_equal(*found)


def test_several_inputs_and_outputs_by_name(backend: TorchBackend) -> None:
    """Inputs in the order of the model's `inputs`, outputs in that of its dict."""
    wide, narrow = keras.Input((3,), name="b"), keras.Input((2,), name="a")
    outputs = {"p": layers.Dense(1)(wide), "q": layers.Concatenate()([wide, narrow])}
    model = keras.Model({"b": wide, "a": narrow}, outputs)
    given = [TensorSpec(tuple(one.shape[1:]), "float32") for one in model.inputs]
    assert given == [TensorSpec((2,), "float32"), X]
    assert backend.infer(model, given, 0) == (TensorSpec((1,), "float32"), TensorSpec((5,), "float32"))
    operation = Operation("m", model, ("a", "b"), ("p", "q"), CPU)
    names = {"a": (given[0], CPU), "b": (given[1], CPU)}
    a, b = torch.rand(4, 2), torch.rand(4, 3)
    dense = next(layer for layer in model.layers if isinstance(layer, layers.Dense))
    (p, q), _ = backend.build(Segment("s", (operation,), names, ("p", "q"))).forward([a, b])
    assert torch.equal(q, torch.cat([b, a], 1))
    torch.testing.assert_close(p, (b @ dense.kernel.value + dense.bias.value).detach())
    assert backend.mutates_inputs(model, given) is False
    with pytest.raises(ShapeError, match="Functional does not accept"):
        backend.infer(model, given[:1], 0)


@pytest.mark.parametrize("takes", ["a list", "two arguments", "any number"])
def test_a_model_of_its_own_takes_inputs_as_it_wants(backend: TorchBackend, takes: str) -> None:
    class Listing(keras.Model):
        def call(self, inputs: Any, training: bool = False) -> Any:
            return inputs[0] - inputs[1]

    class Two(keras.Model):
        def call(self, one: Any, two: Any) -> Any:
            return one - two

    class Any_(keras.Model):
        def call(self, *inputs: Any) -> Any:
            return inputs[0] - inputs[1]

    model = {"a list": Listing, "two arguments": Two, "any number": Any_}[takes]()
    assert backend.infer(model, [X, X], 0) == (X,)


def test_words_of_keras_without_its_frame(backend: TorchBackend) -> None:
    model = built(backend, Net())
    with pytest.raises(ShapeError) as caught:
        backend.infer(model, [TensorSpec((5,), "float32")], 0)
    told = str(caught.value)
    assert "expected axis -1 of input shape to have value 3" in told and "correct the sizes" in told
    assert "Exception encountered" not in told and "\x1b" not in told


def test_dtype_and_layout(backend: TorchBackend) -> None:
    double = keras.Sequential([layers.Flatten(), layers.Dense(2, dtype="float64")])
    assert backend.dtype_of(double) == "float32" and backend.dtype_of(everything()) == "float32"
    assert backend.dtype_of(keras.Sequential([layers.Dense(2, dtype="float64")])) == "float64"
    assert backend.dtype_of(built(backend, mixed())) == "float32"
    images = [layers.Activation("relu"), layers.Conv2D(2, 2), layers.GlobalAveragePooling2D()]
    assert backend.data_format(keras.Sequential(images[:2])) == ("channels_last", "channels_last")
    assert backend.data_format(keras.Sequential(images)) == ("channels_last", "")
    assert backend.data_format(everything()) == ("", "") == backend.data_format(Net())


def test_large_models_are_run_as_they_are(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy without values cannot be had of Keras."""
    model = built(backend, everything())
    before, copies = backend.state(model), []
    monkeypatch.setattr(shape_inference, "LARGE_BYTES", 1)
    monkeypatch.setattr("copy.deepcopy", lambda *given: copies.append(given))
    assert backend.infer(model, [X], 0) == (TensorSpec((1,), "float32"),)
    assert copies == [] and same(backend.state(model), before)


# -- devices ---------------------------------------------------------------------------------------------------------


def test_where_keras_makes_its_own_tensors_does_not_matter(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    """Keras moves inputs to its own device, which is CUDA where there is one: a program says where before it calls."""
    x, y, order = data
    model = built(backend, everything())
    program = backend.build(segment_of(model, loss=keras.losses.MeanSquaredError()))
    with keras.device("meta"):
        losses = program.train_steps([x, y], [order, order], 0, 3, 8)
    assert backend.device_of(model) == CPU and losses.isfinite().all()


def test_a_move_that_keras_would_not_follow_is_refused(backend: TorchBackend) -> None:
    """To `meta`, where torch would make new parameters, of which Keras's variables would not know."""
    model = built(backend, everything())
    before = backend.state(model)
    with pytest.raises(MoveError, match=r"Sequential cannot be moved to meta.*inside keras.device"):
        backend.place(model, Device("meta"))
    assert same(backend.state(model), before) and {p.device.type for p in model.parameters()} == {"cpu"}
    assert backend.place(model, CPU) is model


# -- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [keras.losses.BinaryCrossentropy(), keras.losses.BinaryCrossentropy, keras.losses.binary_crossentropy],
    ids=["object", "class", "function"],
)
def test_losses_of_keras_take_targets_first(backend: TorchBackend, segment_of: Make, data: Data, own: Any) -> None:
    x, _, order = data
    y = (x.sum(1, keepdim=True) > 0).float() * 0.8 + 0.1
    assert backend.unsupported_reason(aa.Loss(own)) == ""
    model = built(backend, keras.Sequential([layers.Dense(1, "sigmoid")]))
    with torch.no_grad():
        p = model(x)
    expected = torch.nn.functional.binary_cross_entropy(p, y)
    program = backend.build(segment_of(model, loss=own))
    _, losses = program.forward([x, y])
    torch.testing.assert_close(losses["l"][0] / losses["l"][1], expected, rtol=1e-4, atol=1e-5)
    table = program.train_steps([x, y], [order, order], 0, 3, 8)
    assert table.isfinite().all()


def test_optimizers_of_keras_are_refused(backend: TorchBackend) -> None:
    model = built(backend, everything())
    columns = {"x": np.zeros((8, 3), "float32"), "y": np.zeros((8, 1), "float32")}
    source = aa.FeatureSet.from_dict("d", columns, ["x"], ["y"])
    recipe = aa.Optimizer(keras.optimizers.Adam)
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], recipe)
    phase = aa.TrainPhase("train", data=source, losses=[aa.AppliedLoss("mse", on="net")], sampler=8)
    with pytest.raises(SpecError, match=r"Adam comes from keras.*torch\.optim has most"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert "optimizers change" not in backend.unsupported_reason(aa.Optimizer(type("Odd", (), {})))


def test_plain_modules_need_no_keras() -> None:
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
