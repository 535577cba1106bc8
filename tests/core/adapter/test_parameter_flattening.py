"""Small models as one vector per dtype, and back."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import update_rule
from anyaccel.adapter.segment_functions import MAX_SIZE, plan_flattening
from anyaccel.specs import Optimizer

ADAM = update_rule(Optimizer("adam"))


class Ops:
    xp = np


def model(*dtypes, size=6):
    """Arrays of these dtypes by name, of different shapes and values."""
    shapes = [(2, size // 2), (size,), (1, 1, size)]
    return {f"w{i}": np.arange(size, dtype=dtype).reshape(shapes[i]) + i for i, dtype in enumerate(dtypes)}


def slots(arrays, factor=10, dtype=None):
    return {
        name: {slot: (array * factor * i).astype(dtype or array.dtype) for i, slot in enumerate("mv", 1)}
        for name, array in arrays.items()
    }


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_equal(actual[key], value)
        else:
            assert actual[key].dtype == value.dtype
            np.testing.assert_array_equal(actual[key], value)


def plan(parameters, rules=None, kept=None):
    rules = rules or dict.fromkeys(parameters, ADAM)
    kept = kept or {owner: slots(arrays) for owner, arrays in parameters.items()}
    return plan_flattening(Ops(), rules, parameters, kept), kept


def test_arrays_become_a_vector_for_each_dtype_and_come_back():
    parameters = {"a": model("f4", "f8", "f4"), "b": model("f8", "f8")}
    flattening, kept = plan(parameters)
    vectors = flattening.flatten(parameters)
    assert {owner: {k: v.shape for k, v in named.items()} for owner, named in vectors.items()} == {
        "a": {"float32": (12,), "float64": (6,)},
        "b": {"float64": (12,)},
    }
    np.testing.assert_array_equal(vectors["a"]["float32"], [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7])
    assert_equal(flattening.unflatten(vectors), parameters)
    flat_slots = flattening.flatten(kept)
    np.testing.assert_array_equal(flat_slots["b"]["float64"]["v"], 20 * vectors["b"]["float64"])
    assert_equal(flattening.unflatten(flat_slots), kept)


def test_gradients_are_laid_out_in_the_order_of_the_parameters():
    parameters = {"a": model("f4", "f4")}
    flattening, _ = plan(parameters)
    reordered = {"a": dict(reversed(parameters["a"].items()))}
    assert_equal(flattening.flatten(reordered), flattening.flatten(parameters))


def test_models_without_slots_are_flattened_too():
    parameters = {"a": model("f4", "f4")}
    kept = {"a": {name: {} for name in parameters["a"]}}
    flattening, _ = plan(parameters, {"a": update_rule(Optimizer("sgd"))}, kept)
    assert flattening.flatten(kept) == {"a": {"float32": {}}}
    assert flattening.unflatten(flattening.flatten(kept)) == kept


def whole_parameter_rule():
    """Updates each parameter by itself, but not elementwise."""
    rule = update_rule(Optimizer("adam"))
    rule.elementwise = False
    return rule


@pytest.mark.parametrize(
    ("reason", "arrays", "change"),
    [
        ("one array only", model("f4"), {}),
        ("each array has a dtype of its own", model("f4", "f8"), {}),
        ("too large", model("f4", "f4", size=MAX_SIZE), {}),
        ("the rule is not elementwise", model("f4", "f4"), {"rules": {"a": whole_parameter_rule()}}),
        ("slots of another dtype", model("f4", "f4"), {"kept": {"a": slots(model("f4", "f4"), dtype="f8")}}),
    ],
)
def test_other_models_stay_as_they_are(reason, arrays, change):
    flattening, kept = plan({"a": arrays}, **change)
    assert flattening.flatten({"a": arrays})["a"] is arrays, reason
    assert flattening.unflatten({"a": arrays})["a"] is arrays
    assert flattening.flatten(kept)["a"] is flattening.unflatten(kept)["a"] is kept["a"]
