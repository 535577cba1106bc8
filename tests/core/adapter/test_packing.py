"""Packing: small models as vectors, and back."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import PerParameterRule, parameter_flattening, update_rule
from anyaccel.specs import Optimizer

ADAM = update_rule(Optimizer("adam"))


class Ops:
    xp = np


def model(*dtypes, size=6):
    """Arrays of these dtypes by name, with other shapes and other values each."""
    shapes = [(2, size // 2), (size,), (1, 1, size)]
    return {f"w{i}": np.arange(size, dtype=one).reshape(shapes[i]) + i for i, one in enumerate(dtypes)}


def slots(arrays, factor=10, dtype=None):
    return {name: {k: (one * factor * i).astype(dtype or one.dtype) for i, k in enumerate("mv", 1)}
            for name, one in arrays.items()}  # fmt: skip


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for key, one in wanted.items():
        if isinstance(one, dict):
            same(found[key], one)
        else:
            assert found[key].dtype == one.dtype
            np.testing.assert_array_equal(found[key], one)


def packed(parameters, rules=None, kept=None):
    rules = rules or dict.fromkeys(parameters, ADAM)
    kept = kept or {owner: slots(there) for owner, there in parameters.items()}
    return parameter_flattening.packing(Ops(), rules, parameters, kept), kept


def test_a_vector_for_each_dtype_and_back():
    parameters = {"a": model("f4", "f8", "f4"), "b": model("f8", "f8")}
    found, kept = packed(parameters)
    vectors = found.packed(parameters)
    assert {owner: {k: v.shape for k, v in there.items()} for owner, there in vectors.items()} == {
        "a": {"float32": (12,), "float64": (6,)},
        "b": {"float64": (12,)},
    }
    np.testing.assert_array_equal(vectors["a"]["float32"], [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7])
    same(found.unpacked(vectors), parameters)
    inside = found.packed_slots(kept)
    np.testing.assert_array_equal(inside["b"]["float64"]["v"], 20 * vectors["b"]["float64"])
    same(found.unpacked_slots(inside), kept)


def test_gradients_lie_in_the_order_of_parameters_whatever_theirs_is():
    parameters = {"a": model("f4", "f4")}
    found, _ = packed(parameters)
    turned = {"a": dict(reversed(parameters["a"].items()))}
    same(found.packed(turned), found.packed(parameters))


def test_what_has_no_slots_is_packed_too():
    parameters = {"a": model("f4", "f4")}
    kept = {"a": {name: {} for name in parameters["a"]}}
    found, _ = packed(parameters, {"a": update_rule(Optimizer("sgd"))}, kept)
    assert found.packed_slots(kept) == {"a": {"float32": {}}}
    assert found.unpacked_slots(found.packed_slots(kept)) == kept


class Whole(PerParameterRule):
    """Treats each parameter by itself, but not each number."""

    coefficients = update = None


Whole.__abstractmethods__ = frozenset()


@pytest.mark.parametrize(
    ("reason", "arrays", "change"),
    [
        ("one array only", model("f4"), {}),
        ("each array has a dtype of its own", model("f4", "f8"), {}),
        ("too large", model("f4", "f4", size=parameter_flattening.MOST), {}),
        ("the rule needs whole parameters", model("f4", "f4"), {"rules": {"a": Whole(Optimizer("adam"))}}),
        ("slots of another dtype", model("f4", "f4"), {"kept": {"a": slots(model("f4", "f4"), dtype="f8")}}),
    ],
)
def test_what_stays_as_it_is(reason, arrays, change):
    found, kept = packed({"a": arrays}, **change)
    assert found.packed({"a": arrays})["a"] is arrays, reason
    assert found.unpacked({"a": arrays})["a"] is arrays
    assert found.packed_slots(kept)["a"] is found.unpacked_slots(kept)["a"] is kept["a"]
