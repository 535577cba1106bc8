"""SequentialMLP: the recipe's weights and names, built when its shapes are known."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from anyaccel.errors import RecipeError, ShapeError
from anyaccel.models import MLPRecipe
from anyaccel.segment import TensorSpec
from anyaccel_torch import SequentialMLP
from anyaccel_torch.backend import TorchBackend


def built(shapes: Any = ((3,),), seed: int = 5, **settings: Any) -> SequentialMLP:
    model = SequentialMLP(**settings)
    model.build(shapes, seed)
    return model


def test_weights_are_those_of_the_recipe() -> None:
    model = built(n_layers=3, hidden_dim=4)
    wanted = MLPRecipe(n_layers=3, hidden_dim=4).weights([(3,)], 5)
    found = dict(model.named_parameters())
    assert list(found) == list(wanted) == [f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias")]
    assert all(torch.equal(found[name].detach(), torch.from_numpy(value)) for name, value in wanted.items())


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "identity"])
def test_it_computes_what_plain_layers_compute(activation: str) -> None:
    model = built(n_layers=3, activation=activation)
    act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "identity": nn.Identity()}[activation]
    plain = nn.Sequential(model.layers[0], act, model.layers[1], act, model.layers[2])
    x = torch.randn(5, 3)
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (1, 1), ()])
def test_output_shape(shape: tuple[int, ...]) -> None:
    assert built(output_shape=shape)(torch.zeros(5, 3)).shape == (5, *shape)
    assert built(output_shape=shape)(torch.zeros(0, 3)).shape == (0, *shape)


def test_several_inputs_are_flattened_and_joined() -> None:
    model = built(((2, 2), (3,), ()))
    assert model.layers[0].in_features == 8
    assert model(torch.zeros(5, 2, 2), torch.zeros(5, 3), torch.zeros(5)).shape == (5, 1)


def test_the_first_batch_builds_it_with_seed_0() -> None:
    model = SequentialMLP()
    assert list(model.parameters()) == []
    model(torch.zeros(5, 3))
    assert torch.equal(model.layers[0].weight, built(seed=0).layers[0].weight)


def test_building_draws_no_random_number_and_a_second_time_changes_nothing() -> None:
    before = torch.get_rng_state()
    model = built()
    assert torch.equal(torch.get_rng_state(), before)
    weight = model.layers[0].weight
    model.build([(3,)], seed=99)
    assert model.layers[0].weight is weight


def test_building_again_for_other_shapes_is_an_error() -> None:
    with pytest.raises(ShapeError, match=r"inputs of shapes \[4\]\. There is: it is built for \[3\]\. To do: feed it"):
        built().build([(4,)], 0)


def test_dropout_only_while_training() -> None:
    model = built(dropout=0.5, hidden_dim=64)
    x = torch.ones(4, 3)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_modes_dtype_copies_and_configuration() -> None:
    model = SequentialMLP((2, 2), 3, 4, "tanh", 0.1, "float64").eval()
    model.build([(3,)], 1)
    assert not model.layers[0].training and model.layers[0].weight.dtype == torch.float64
    again = SequentialMLP(**model.get_config())
    assert again.get_config() == model.get_config() and model.get_config()["output_shape"] == [2, 2]
    again.build([(3,)], 1)
    again.load_state_dict(model.state_dict())
    x = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_settings_out_of_range() -> None:
    with pytest.raises(RecipeError, match="n_layers=0 is not a positive int"):
        SequentialMLP(n_layers=0)


def test_a_configuration_may_name_it(backend: TorchBackend) -> None:
    assert dict(backend.models()) == {"SequentialMLP": SequentialMLP}
    assert backend.owns(SequentialMLP())
    assert backend.infer(SequentialMLP((2,)), [TensorSpec((3,), "float32")], 5) == (TensorSpec((2,), "float32"),)
