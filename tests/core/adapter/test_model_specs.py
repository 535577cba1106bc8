"""CNNSpec: shapes, names and initial values that every framework takes from it, and what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from anyaccel import rng
from anyaccel.adapter.model_specs import CNNSpec
from anyaccel.errors import ConfigError, ShapeError, SpecError

IMAGE = (1, 8, 9)
GOLDEN = {
    "convs.0.weight": -0.2783804032593294,
    "convs.0.bias": 0.0972663918334582,
    "head.weight": 0.5661713200160743,
    "head.bias": -0.37366637557488847,
}


def test_a_spec_is_read_back_from_its_configuration():
    spec = CNNSpec([2, 3], [4], 5, 1, "tanh", 0.5, "float64")
    config = json.loads(json.dumps(spec.get_config()))
    assert CNNSpec.from_config(config) == spec
    assert config == {
        "output_shape": [2, 3], "channels": [4], "kernel_size": 5, "pool": 1, "activation": "tanh", "dropout": 0.5,
        "dtype": "float64",
    }  # fmt: skip


def test_a_number_is_one_axis_and_one_convolution():
    assert CNNSpec(10, 4) == CNNSpec((10,), (4,))


def test_shapes_after_each_convolution_are_rounded_down():
    assert CNNSpec().shapes([IMAGE]) == [(1, 8, 9), (8, 4, 4), (16, 2, 2)]
    assert CNNSpec(pool=3).shapes([(3, 11, 9)]) == [(3, 11, 9), (8, 3, 3), (16, 1, 1)]
    assert CNNSpec(pool=1, channels=(2,)).shapes([IMAGE]) == [IMAGE, (2, 8, 9)]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_padding_keeps_height_and_width(size):
    assert 8 + 2 * CNNSpec(kernel_size=size).padding - size + 1 == 8


def test_names_and_shapes_of_the_parameters():
    weights = CNNSpec((2, 5), (4, 6), 5).weights([IMAGE], 0)
    assert {name: value.shape for name, value in weights.items()} == {
        "convs.0.weight": (4, 1, 5, 5), "convs.0.bias": (4,),
        "convs.1.weight": (6, 4, 5, 5), "convs.1.bias": (6,),
        "head.weight": (10, 24), "head.bias": (10,),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_are_uniform_by_fan_in_and_keyed_by_name(dtype):
    weights = CNNSpec(channels=(4, 6), dtype=dtype).weights([(2, 8, 8)], seed=11)
    fan_in = {"convs.0": 18, "convs.1": 36, "head": 24}
    for name, value in weights.items():
        bound = 1 / math.sqrt(fan_in[name.rpartition(".")[0]])
        assert value.dtype == dtype
        np.testing.assert_array_equal(value, rng.uniform(rng.key(11, name), value.shape, -bound, bound).astype(dtype))
        assert np.abs(value).max() <= bound


def test_initial_values_golden():
    """The same in every framework and for ever: a saved result can be made again."""
    weights = CNNSpec(channels=(2,), dtype="float64").weights([(1, 2, 2)], seed=11)
    found = {name: float(value.ravel()[0]) for name, value in weights.items()}
    assert found == GOLDEN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_shape": (2, 0)}, "SequentialCNN: output_shape[1]=0 is not a positive int."),
        ({"channels": (4, "8")}, "SequentialCNN: channels[1]='8' is not a positive int."),
        (
            {"channels": ()},
            "SequentialCNN: channels=() is empty. Hint: give a number for each convolution.",
        ),
        (
            {"channels": (1,) * 10_001},
            "SequentialCNN is too large: 10001 layers of 3; at most 10000 layers of 16777216.",
        ),
        (
            {"channels": (2**25,)},
            "SequentialCNN is too large: 1 layers of 33554432; at most 10000 layers of 16777216.",
        ),
        (
            {"kernel_size": 2**30 + 1},
            "SequentialCNN is too large: 2 layers of 1073741825; at most 10000 layers of 16777216.",
        ),
        ({"kernel_size": 4}, "SequentialCNN: kernel_size=4 is not odd."),
        ({"kernel_size": 3.0}, "SequentialCNN: kernel_size=3.0 is not a positive int."),
        ({"pool": 0}, "SequentialCNN: pool=0 is not a positive int."),
        ({"pool": True}, "SequentialCNN: pool=True is not a positive int."),
        ({"activation": "swish"}, "SequentialCNN has no activation 'swish'. Available: relu, tanh, sigmoid, identity."),
        ({"dropout": float("nan")}, "SequentialCNN: dropout=nan is not in [0, 1)."),
        ({"dtype": "float16"}, "SequentialCNN: dtype='float16' is not float32 or float64."),
    ],
)
def test_bad_settings_raise_with_the_value(arguments, message):
    with pytest.raises(SpecError) as caught:
        CNNSpec(**arguments)
    assert str(caught.value).startswith(message)
    assert caught.value.hint


def test_a_configuration_with_unknown_keys_is_an_error():
    with pytest.raises(
        ConfigError, match=r"SequentialCNN has no setting depth, width\. Available: output_shape, chann"
    ):
        CNNSpec.from_config({"width": 3, "depth": 1, "pool": 2})


@pytest.mark.parametrize(
    ("inputs", "given"),
    [
        ([], "no input"),
        ([(8, 8)], "[8, 8]"),
        ([(1, 8, 8), (3,)], "[1, 8, 8] and [3]"),
        ([(0, 8, 8)], "[0, 8, 8]"),
    ],
)
def test_inputs_that_are_no_images_are_refused(inputs, given):
    with pytest.raises(ShapeError) as caught:
        CNNSpec().weights(inputs, 0)
    assert str(caught.value) == (
        f"SequentialCNN takes one input [channels, height, width] per sample, got {given}. "
        "Hint: store images channels first; a single channel also needs an axis, [1, height, width]."
    )


def test_pooling_that_leaves_nothing_is_an_error():
    with pytest.raises(ShapeError) as caught:
        CNNSpec(channels=(4, 4, 4)).shapes([(1, 28, 7)])
    assert str(caught.value) == (
        "SequentialCNN: 3 poolings by 2 leave nothing of an image of shape [1, 28, 7]. "
        "Hint: use fewer convolutions, larger images, or pool=1."
    )
