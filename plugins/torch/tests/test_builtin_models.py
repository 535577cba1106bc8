"""SequentialMLP and SequentialCNN: the weights and names of their specs, lazy building, and equality with NumPy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anyaccel.adapter.model_specs import CNNSpec, MLPSpec
from anyaccel.backend import Compute
from anyaccel.device import Device
from anyaccel.errors import ShapeError, SpecError, StateError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch import SequentialCNN, SequentialMLP
from anyaccel_torch.backend import TorchBackend


def built_mlp(shapes: Any = ((3,),), seed: int = 5, **settings: Any) -> SequentialMLP:
    model = SequentialMLP(**settings)
    model.build(shapes, seed)
    return model


def test_weights_equal_the_spec() -> None:
    model = built_mlp(n_layers=3, hidden_dim=4)
    expected_weights = MLPSpec(n_layers=3, hidden_dim=4).weights([(3,)], 5)
    result = dict(model.named_parameters())
    assert (
        list(result)
        == list(expected_weights)
        == [f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias")]
    )
    assert all(torch.equal(result[name].detach(), torch.from_numpy(value)) for name, value in expected_weights.items())


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "identity"])
def test_output_equals_that_of_plain_layers(activation: str) -> None:
    model = built_mlp(n_layers=3, activation=activation)
    act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "identity": nn.Identity()}[activation]
    plain = nn.Sequential(model.layers[0], act, model.layers[1], act, model.layers[2])
    x = torch.randn(5, 3)
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (1, 1), ()])
def test_output_has_the_requested_shape(shape: tuple[int, ...]) -> None:
    assert built_mlp(output_shape=shape)(torch.zeros(5, 3)).shape == (5, *shape)
    assert built_mlp(output_shape=shape)(torch.zeros(0, 3)).shape == (0, *shape)


def test_several_inputs_are_flattened_and_concatenated() -> None:
    model = built_mlp(((2, 2), (3,), ()))
    assert model.layers[0].in_features == 8
    assert model(torch.zeros(5, 2, 2), torch.zeros(5, 3), torch.zeros(5)).shape == (5, 1)


def test_first_batch_builds_the_model_with_seed_0() -> None:
    model = SequentialMLP()
    assert list(model.parameters()) == []
    model(torch.zeros(5, 3))
    assert torch.equal(model.layers[0].weight, built_mlp(seed=0).layers[0].weight)


def test_building_draws_no_random_numbers_and_is_idempotent() -> None:
    before = torch.get_rng_state()
    model = built_mlp()
    assert torch.equal(torch.get_rng_state(), before)
    weight = model.layers[0].weight
    model.build([(3,)], seed=99)
    assert model.layers[0].weight is weight


def test_building_for_other_shapes_raises_shape_error() -> None:
    with pytest.raises(ShapeError, match=r"inputs of shapes \[4\]; it is built for \[3\]\. Hint: pass inputs"):
        built_mlp().build([(4,)], 0)


def test_dropout_acts_in_training_mode_only() -> None:
    model = built_mlp(dropout=0.5, hidden_dim=64)
    x = torch.ones(4, 3)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_modes_dtype_copies_and_configuration_are_kept() -> None:
    model = SequentialMLP((2, 2), 3, 4, "tanh", 0.1, "float64").eval()
    model.build([(3,)], 1)
    assert not model.layers[0].training and model.layers[0].weight.dtype == torch.float64
    again = SequentialMLP(**model.get_config())
    assert again.get_config() == model.get_config() and model.get_config()["output_shape"] == [2, 2]
    again.build([(3,)], 1)
    again.load_state_dict(model.state_dict())
    x = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_settings_out_of_range_raise_spec_error() -> None:
    with pytest.raises(SpecError, match="n_layers=0 is not a positive int"):
        SequentialMLP(n_layers=0)


def test_graph_configuration_names_the_builtin_model(backend: TorchBackend) -> None:
    assert [*backend.models()] == ["SequentialMLP", "SequentialCNN", "TabularMLP"]
    assert backend.owns(SequentialMLP())
    assert backend.infer(SequentialMLP((2,)), [TensorSpec((3,), "float32")], 5) == (TensorSpec((2,), "float32"),)


# -- SequentialCNN -----------------------------------------------------------------------------------------------------

CPU = Device("cpu")
IMAGE = (1, 8, 8)


def cnn(shape: tuple[int, ...] = IMAGE, seed: int = 5, **settings: Any) -> SequentialCNN:
    model = SequentialCNN(**settings)
    model.build([shape], seed)
    return model


def test_cnn_weights_equal_the_spec() -> None:
    result = dict(cnn(channels=(4, 6), kernel_size=5).named_parameters())
    expected_weights = CNNSpec(channels=(4, 6), kernel_size=5).weights([IMAGE], 5)
    assert list(result) == list(expected_weights) == list(cnn(channels=(4, 6)).state_dict())
    assert all(torch.equal(result[name].detach(), torch.from_numpy(value)) for name, value in expected_weights.items())


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "identity"])
@pytest.mark.parametrize("pool", [1, 3])
def test_cnn_output_equals_that_of_plain_layers(activation: str, pool: int) -> None:
    model = cnn((2, 11, 9), activation=activation, pool=pool, output_shape=(2, 3))
    act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "identity": nn.Identity()}[activation]
    first, second = model.convs
    shrink = nn.MaxPool2d(pool)
    plain = nn.Sequential(first, act, shrink, second, act, shrink, nn.Flatten(), model.head, nn.Unflatten(1, (2, 3)))
    x = torch.randn(5, 2, 11, 9)
    assert torch.equal(model(x), plain(x))
    assert model(x[:0]).shape == (0, 2, 3)


def test_the_first_batch_builds_a_cnn_with_seed_0_and_no_random_number() -> None:
    model, before = SequentialCNN().eval(), torch.get_rng_state()
    assert list(model.parameters()) == [] and not model.is_built
    model(torch.zeros(5, *IMAGE))
    assert torch.equal(model.convs[1].weight, cnn(seed=0).convs[1].weight)
    assert model.is_built and not model.head.training
    assert torch.equal(torch.get_rng_state(), before)


def test_built_cnn_takes_other_image_sizes_only_if_its_weights_fit() -> None:
    model = cnn()
    weight = model.head.weight
    model.build([(1, 9, 11)], seed=99)
    assert model.head.weight is weight
    with pytest.raises(ShapeError, match=r"inputs of shapes \[1, 16, 8\]; it is built for \[1, 8, 8\]\. Hint"):
        model.build([(1, 16, 8)], 0)


def test_cnn_refuses_inputs_that_are_not_images(backend: TorchBackend) -> None:
    with pytest.raises(ShapeError, match=r"takes one input \[channels, height, width\] per sample, got \[64\]"):
        backend.infer(SequentialCNN(), [TensorSpec((64,), "float32")], 0)
    with pytest.raises(ShapeError, match=r"2 poolings by 2 leave nothing of an image of shape \[1, 3, 3\]"):
        SequentialCNN()(torch.zeros(2, 1, 3, 3))
    with pytest.raises(SpecError, match="kernel_size=2 is not odd"):
        SequentialCNN(kernel_size=2)


def test_cnn_dropout_is_before_the_head_in_training_only() -> None:
    model, x = cnn(dropout=0.5), torch.ones(4, *IMAGE)
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.train()(x)
    model.eval()(x)
    assert (seen[0] == 0).sum() > (seen[1] == 0).sum()
    assert torch.equal(model(x), model(x))


def test_cnn_inside_another_module_is_built_by_the_backend(backend: TorchBackend) -> None:
    model = nn.Sequential(SequentialCNN((3,), dtype="float64"), nn.Linear(3, 2, dtype=torch.float64))
    assert backend.dtype_of(SequentialCNN(dtype="float64")) == "float64"
    with pytest.raises(StateError, match="Sequential has no parameters yet"):
        backend.state(model)
    assert backend.infer(model, [TensorSpec(IMAGE, "float64")], 5) == (TensorSpec((2,), "float64"),)
    assert "parameters/0.convs.0.weight" in backend.state(model)
    again = SequentialCNN(**model[0].get_config())
    assert again.get_config() == model[0].get_config()
    x = torch.randn(2, *IMAGE, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(model)(x), model(x))


# -- as in NumPy -------------------------------------------------------------------------------------------------------


def images(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(40, 2, 9, 8)).astype(dtype), draw.normal(size=(40, 3)).astype(dtype)


def trained(backend: Compute, settings: dict[str, Any]) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """The model of a backend after 50 steps of Adam with seed 7, the losses, and its state."""
    x, y = images(settings["dtype"])
    model = backend.models()["SequentialCNN"](**settings)
    specs = [TensorSpec(column.shape[1:], column.dtype.name) for column in (x, y)]
    backend.infer(model, specs[:1], 7)
    segment = Segment(
        "s",
        (Operation("n", model, ("x",), ("n",), CPU),),
        {"x": (specs[0], CPU), "y": (specs[1], CPU)},
        ("n",),
        (LossTerm("l", "n", Loss("mse"), ("n", "y"), CPU),),
        (ParameterGroup("g", Optimizer("adam", lr=1e-3), ("n",)),),
    )
    program = backend.build(segment)
    order = np.concatenate([np.random.default_rng(i).permutation(40) for i in range(10)])
    columns = [backend.from_host(column, CPU) for column in (x, y)]
    losses = program.train_steps(columns, [backend.from_host(order, CPU)] * 2, 0, 50, 8)
    program.close()
    return model, backend.to_host(losses), backend.state(model)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("float64", 1e-8)])
def test_fifty_adam_steps_equal_those_of_numpy(
    dtype: str, within: float, activation: str, backend: TorchBackend
) -> None:
    settings = {"output_shape": (3,), "channels": (4, 6), "activation": activation, "dtype": dtype}
    _, losses, state = trained(backend, settings)
    _, expected, expected_weights = trained(NumpyBackend(), settings)
    np.testing.assert_allclose(losses, expected, rtol=within)
    assert losses[-1] < losses[0]
    assert list(state) == list(expected_weights)
    for name, value in expected_weights.items():
        assert state[name].dtype == value.dtype == dtype
        assert np.abs(state[name] - value).max() <= within * np.abs(value).max(), name


def test_state_loads_from_torch_to_numpy_and_back(backend: TorchBackend) -> None:
    settings = {"output_shape": (3,), "channels": (4, 6), "dtype": "float64"}
    numpy, x = NumpyBackend(), images("float64")[0]
    model, _, state = trained(backend, settings)
    fresh = numpy.models()["SequentialCNN"](**model.get_config())
    numpy.infer(fresh, [TensorSpec(x.shape[1:], "float64")], 0)
    numpy.load_state(fresh, state)
    np.testing.assert_allclose(fresh(x), model(torch.from_numpy(x)).detach().numpy(), rtol=1e-10, atol=1e-12)
    back = cnn(x.shape[1:], seed=0, **fresh.get_config())
    backend.load_state(back, numpy.state(fresh))
    assert all(
        torch.equal(torch_model, numpy_model)
        for torch_model, numpy_model in zip(back.parameters(), model.parameters(), strict=True)
    )
