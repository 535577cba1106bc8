"""Specs of losses and models: names, every message, configurations."""

from __future__ import annotations

import math

import pytest

from anyaccel import AppliedLoss, Loss
from anyaccel.adapter.model_specs import MLPSpec
from anyaccel.errors import AnyaccelError, ConfigError, SpecError
from anyaccel.segment import TensorSpec


@pytest.mark.parametrize(
    ("written", "name"),
    [("mse", "mse"), ("MSE", "mse"), ("l2", "mse"), ("mean_squared_error", "mse"), ("l1", "mae"),
     ("ce", "cross_entropy"), ("mean_absolute_error", "mae"), ("bce", "binary_cross_entropy"),
     ("cross_entropy", "cross_entropy")],
)  # fmt: skip
def test_losses_by_any_of_their_names(written, name):
    assert Loss(written).name == name
    assert Loss(written) == Loss(name)
    assert hash(Loss(written)) == hash(Loss(name))
    assert Loss.from_config(Loss(written).get_config()) == Loss(written)


def custom_loss(outputs, targets):
    return 0.0


class CustomLoss:
    def __init__(self, **kwargs):
        self.kwargs = kwargs

    def __call__(self, outputs, targets):
        return 0.0


@pytest.mark.parametrize(
    ("given", "name"), [(custom_loss, "custom_loss"), (CustomLoss, "CustomLoss"), (CustomLoss(), "CustomLoss")]
)
def test_a_frameworks_custom_loss(given, name):
    assert (Loss(given).name, Loss(given).own) == (name, given)
    with pytest.raises(ConfigError, match=f"loss '{name}' belongs to a framework"):
        Loss(given).get_config()


def test_a_class_takes_arguments():
    assert Loss(CustomLoss, loss_kwargs={"reduction": "sum"}).kwargs == {"reduction": "sum"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"loss": "hinge"},
            "no loss is called 'hinge'. Available: mse, mae, cross_entropy, binary_cross_entropy. Hint: use",
        ),
        (
            {"loss": "cross_entropi"},
            "no loss is called 'cross_entropi'. Available: mse, mae, cross_entropy, binary_cross_entropy. "
            "Hint: did you mean 'cross_entropy'?",
        ),
        *(
            (
                {"loss": name},
                f"no loss is called {name!r}. Available: mse, mae, cross_entropy, binary_cross_entropy. "
                "Hint: write 'cross_entropy', which takes logits",
            )
            for name in ("categorical_crossentropy", "sparse_categorical_crossentropy")
        ),
        (
            {"loss": "binary_crossentropy"},
            "no loss is called 'binary_crossentropy'. Available: mse, mae, cross_entropy, binary_cross_entropy. "
            "Hint: did you mean 'binary_cross_entropy'?",
        ),
        ({"loss": "mse", "loss_kwargs": {"a": 1, "b": 2}}, "loss 'mse' takes no arguments, got a, b"),
        ({"loss": custom_loss, "loss_kwargs": {"a": 1}}, "loss 'custom_loss' takes no arguments, got a"),
        ({"loss": 3}, "3 is not a loss. Available: mse,"),
    ],
)
def test_every_message_of_a_loss(arguments, message):
    with pytest.raises(SpecError) as caught:
        Loss(**arguments)
    assert str(caught.value).startswith(message)


def test_an_applied_loss_has_defaults_and_a_label():
    applied = AppliedLoss("mse", on="head")
    assert applied == AppliedLoss(Loss("l2"), "head", ["outputs", "targets"], 1, "head")
    assert (applied.inputs, applied.weight, applied.label) == (("outputs", "targets"), 1.0, "head")


def test_an_applied_loss_round_trips_through_its_configuration():
    applied = AppliedLoss("ce", on="head", inputs=["outputs.a", "data.label"], weight=0.25, label="class")
    assert AppliedLoss.from_config(applied.get_config()) == applied


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"inputs": "outputs"},
            "loss on 'head': inputs='outputs' is not a list of names. Hint: write inputs=['outputs', 'targets']",
        ),
        ({"inputs": []}, "loss on 'head': inputs=[] is not a list of names"),
        ({"weight": -1}, "loss on 'head': weight=-1 is not a finite number of at least 0"),
        ({"weight": math.nan}, "loss on 'head': weight=nan is not a finite number of at least 0"),
        ({"weight": math.inf}, "loss on 'head': weight=inf is not a finite number of at least 0"),
        ({"weight": "1"}, "loss on 'head': weight='1' is not a finite number of at least 0"),
    ],
)
def test_every_message_of_an_applied_loss(arguments, message):
    with pytest.raises(SpecError) as caught:
        AppliedLoss("mse", "head", **arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("wrong", [None, "mse", 3, {2: "mse"}])
@pytest.mark.parametrize("cls", [Loss, AppliedLoss])
def test_an_object_that_is_not_a_configuration_is_refused(cls, wrong):
    with pytest.raises(ConfigError, match="is not the configuration of"):
        cls.from_config(wrong)


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [(Loss, {"loss": "mse", "x": 1}), (AppliedLoss, {"on": "a"}), (AppliedLoss, {"on": "a", "x": 1})],
)
def test_unknown_and_missing_keys_are_refused(cls, wrong):
    with pytest.raises(AnyaccelError):
        cls.from_config(wrong)


# -- specifications ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        (TensorSpec((), "float32"), 4),
        (TensorSpec((3, 2), "float64"), 48),
        (TensorSpec((5,), "bool"), 5),
        (TensorSpec((5,), "uint8"), 5),
        (TensorSpec((0, 4), "int64"), 0),
        (TensorSpec((3,), "bfloat16"), 6),
        (TensorSpec((3,), "complex64"), 24),
        (TensorSpec((3,), "float8_e4m3fn"), 3),
    ],
)
def test_bytes_of_one_sample(spec, nbytes):
    assert spec.nbytes == nbytes


def test_a_spec_prints_as_dtype_and_shape():
    assert str(TensorSpec((3, 2), "float32")) == "float32[3, 2]"
    assert {TensorSpec((3,), "int8"), TensorSpec((3,), "int8")} == {TensorSpec((3,), "int8")}


# -- the model that every framework has --------------------------------------------------------------------------------


def test_an_mlp_spec_round_trips_through_its_configuration():
    recipe = MLPSpec(output_shape=[2, 3], n_layers=3, activation="tanh", dropout=0.5, dtype="float64")
    assert MLPSpec.from_config(recipe.get_config()) == recipe
    assert recipe.sizes([(4,), (2, 2)]) == [(8, 16), (16, 16), (16, 6)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layers": 0}, "SequentialMLP: n_layers=0 is not a positive int"),
        ({"hidden_dim": True}, "SequentialMLP: hidden_dim=True is not a positive int"),
        ({"output_shape": (2, 0)}, "SequentialMLP: output_shape[1]=0 is not a positive int"),
        ({"activation": "swish"}, "SequentialMLP has no activation 'swish'. Available: relu, tanh, sigmoid, identity"),
        ({"dropout": 1}, "SequentialMLP: dropout=1 is not in [0, 1)"),
        ({"dtype": "float16"}, "SequentialMLP: dtype='float16' is not float32 or float64"),
    ],
)
def test_every_message_of_an_mlp_spec(arguments, message):
    with pytest.raises(SpecError) as caught:
        MLPSpec(**arguments)
    assert str(caught.value).startswith(message)


def test_an_mlp_configuration_with_an_unknown_key_is_refused():
    with pytest.raises(ConfigError, match=r"SequentialMLP has no setting width\. Available: output_shape, n_layers"):
        MLPSpec.from_config({"width": 3})
