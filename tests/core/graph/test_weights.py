"""Copying weights by name within one framework; tests of pairs of frameworks are with the plugins."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel
from anyaccel import errors
from anyaccel.registry import registry
from anyaccel.segment import TensorSpec


def mlp(seed, hidden=4, dtype="float32", out=2, layers=2):
    """A built MLP of the reference."""
    made = anyaccel.SequentialMLP((out,), layers, hidden, dtype=dtype)
    registry().computing("numpy").infer(made, [TensorSpec((3,), dtype)], seed)
    return made


def same(one, other):
    """Whether two models have the same parameters."""
    return all(np.array_equal(one.parameters[name], other.parameters[name]) for name in one.parameters)


def test_weights_are_copied_by_name():
    one, other = mlp(1), mlp(2)
    assert not same(one, other)
    names = anyaccel.copy_weights(one, other)
    assert names == ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    assert same(one, other)
    one.parameters["layers.0.bias"] = one.parameters["layers.0.bias"] + 1
    assert not same(one, other), "they are copies"


def test_floating_values_take_the_dtype_of_the_target():
    one, other = mlp(1), mlp(2, dtype="float64")
    anyaccel.copy_weights(one, other)
    assert other.parameters["layers.0.weight"].dtype == np.float64
    assert same(one, other)


def test_names_and_arrays_can_be_mapped():
    one, other = mlp(1, 3, out=3), mlp(2, 3, out=3)
    crossed = {"layers.0.weight": "layers.1.weight", "layers.1.weight": "layers.0.weight"}
    anyaccel.copy_weights(one, other, names=crossed, change=lambda name, a: a.T if name.endswith("weight") else a)
    assert np.array_equal(other.parameters["layers.0.weight"], one.parameters["layers.1.weight"].T)
    assert np.array_equal(other.parameters["layers.0.bias"], one.parameters["layers.0.bias"])


def test_names_that_do_not_match_are_an_error_and_nothing_is_written():
    one, other = mlp(1), mlp(2)
    before = {name: np.array(array) for name, array in other.parameters.items()}
    with pytest.raises(errors.StateError) as caught:
        anyaccel.copy_weights(one, other, names={"layers.0.bias": "bias"})
    assert str(caught.value) == (
        "SequentialMLP does not fit SequentialMLP: it has no values for layers.0.bias; layers.0.bias would be left "
        "over. "
        "Available: layers.0.weight, layers.0.bias, layers.1.weight, layers.1.bias. Hint: map "
        "names={TARGET: SOURCE}."
    )
    assert all(np.array_equal(before[name], other.parameters[name]) for name in before)


def test_unused_source_arrays_are_an_error():
    with pytest.raises(errors.StateError) as caught:
        anyaccel.copy_weights(mlp(1, layers=3), mlp(2))
    assert "does not fit SequentialMLP: layers.2.bias, layers.2.weight would be left over" in str(caught.value)


def test_unknown_target_names_are_an_error():
    with pytest.raises(errors.StateError) as caught:
        anyaccel.copy_weights(mlp(1), mlp(2), names={"dense.kernel": "layers.0.weight"})
    assert str(caught.value).startswith("SequentialMLP has no dense.kernel. Available: layers.0.weight, ")


def test_shapes_that_do_not_match_are_an_error_and_nothing_is_written():
    one, other = mlp(1, 4), mlp(2, 5)
    before = {name: np.array(array) for name, array in other.parameters.items()}
    with pytest.raises(errors.StateError) as caught:
        anyaccel.copy_weights(one, other)
    assert str(caught.value) == (
        "layers.0.weight is float32[5, 3] in the target and would become float32[4, 3]. Hint: pass change=lambda "
        "name, array: ... to transpose or convert it."
    )
    assert all(np.array_equal(before[name], other.parameters[name]) for name in before)


def test_an_object_that_is_not_a_model_is_refused():
    with pytest.raises(errors.NoBackendError):
        anyaccel.copy_weights(object(), mlp(1))
