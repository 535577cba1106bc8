"""CallLayout: arguments by position and keyword, nested containers, and outputs by path."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout, ProbeLayout, layout_of, leaves
from anyaccel.device import Device
from anyaccel.errors import PhaseError, ShapeError
from anyaccel.segment import Operation, OutputSpec, TensorSpec

A, B, C = np.zeros((2, 1)), np.ones((2, 3)), np.ones((5, 2))
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    logits: Any
    hidden: Any = None


class Cache:
    """What a model keeps for its next call."""

    key = A


@pytest.mark.parametrize(
    ("paths", "arguments"),
    [
        ([], ([1, 2], {})),
        ([("ids",), ("mask",)], ((), {"ids": 1, "mask": 2})),
        ([("mask",), ("ids",)], ((), {"mask": 1, "ids": 2})),
        ([(0, "ids"), (0, "mask")], ([{"ids": 1, "mask": 2}], {})),
        ([("images", 0), ("images", 1)], ([], {"images": [1, 2]})),
        ([("a", "b", "c"), ("a", "d")], ([], {"a": {"b": {"c": 1}, "d": 2}})),
        ([(0,), (1, "x")], ([1, {"x": 2}], {})),
    ],
)
def test_inputs_become_arguments(paths, arguments):
    positional, named = CallLayout(paths).bind([1, 2])
    assert (list(positional), named) == (list(arguments[0]), arguments[1])


def test_a_list_keeps_its_order_whatever_the_order_of_the_inputs():
    assert CallLayout([("x", 1), ("x", 0)]).bind(["b", "a"]) == ([], {"x": ["a", "b"]})


class Attributes(dict):
    """A dict whose keys are attributes, too; it raises KeyError for others."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (A, {(): A}),
        ((A, B), {(0,): A, (1,): B}),
        ({"logits": A, "loss": None, "cache": Cache(), 3: B}, {("logits",): A}),
        (Pair(A, (B, 1.0)), {("first",): A, ("second", 0): B}),
        (Output(A, {"last": B}), {("logits",): A, ("hidden", "last"): B}),
        ((A, (B, C)), {(0,): A, (1, 0): B, (1, 1): C}),
        ("text", {}),
    ],
)
def test_tensors_are_found_at_any_depth_and_nothing_else(returned, found):
    result = leaves(returned, np.ndarray)
    assert list(result) == list(found) and all(result[path] is found[path] for path in found)


def test_a_dict_with_attributes_for_its_keys_is_a_dict():
    """Its other attributes raise KeyError."""
    assert leaves(Attributes(logits=A), np.ndarray) == {("logits",): A}


def spec(path, axis=0, shape=(1,)):
    return OutputSpec(path, TensorSpec(shape, "float64"), axis)


def outputs(layout, returned):
    return layout.outputs(returned, np.ndarray, np.moveaxis)


def test_outputs_are_picked_by_path_with_the_batch_first():
    layout = CallLayout((), [spec(("second",), 1), spec(("first",))])
    found = outputs(layout, Pair(A, C))
    assert found[0].shape == (2, 5) and found[1] is A
    assert outputs(CallLayout((), [spec(("hidden", "last"))]), Output(A, {"last": B})) == (B,)


def test_an_output_that_this_mode_lacks_is_none():
    assert outputs(CallLayout((), [None, spec(("logits",))]), {"logits": A, "cache": None}) == (None, A)


@pytest.mark.parametrize("returned", [{"other": A}, A, (A,), {"logits": None}])
def test_an_output_that_is_missing_is_told(returned):
    with pytest.raises(PhaseError, match=r"without logits, which it returned when .* Hint: return the same outputs"):
        outputs(CallLayout((), [spec(("logits",))]), returned)


def test_without_results_a_flat_container_is_taken():
    assert outputs(POSITIONAL, (A, B)) == (A, B)
    with pytest.raises(ShapeError, match="cannot be the output"):
        outputs(POSITIONAL, (A, (B,)))


def test_a_probe_finds_all_and_says_where():
    layout = ProbeLayout([("x",)])
    found = outputs(layout, {"a": A, "b": [B]})
    assert layout.by_path(found) == {("a",): A, ("b", 0): B}
    with pytest.raises(ShapeError, match="returned a int"):
        outputs(layout, 3)


def test_tensors_may_be_of_several_types():
    found = ProbeLayout().outputs({"a": A, "b": [np.float32(1)]}, (np.ndarray, np.generic), np.moveaxis)
    assert found == (A, np.float32(1))
    picked = CallLayout((), [spec(("b", 0), None, ())])
    assert picked.outputs({"b": [np.float32(1)]}, (np.ndarray, np.generic), np.moveaxis) == (np.float32(1),)
    assert CallLayout().outputs(np.float32(2), (np.ndarray, np.generic), np.moveaxis) == (np.float32(2),)


def test_layouts_are_equal_by_value():
    one, same, other = (CallLayout([("x",)], [spec(path)]) for path in [("a",), ("a",), ("b",)])
    assert one == same != other and hash(one) == hash(same) and one != "x"


def test_the_layout_of_an_operation_is_that_of_the_mode():
    operation = Operation("n", object(), ("x",), ("n",), Device("cpu"), training_results=(spec(("logits",)),))
    assert layout_of(operation, training=False) is POSITIONAL
    assert outputs(layout_of(operation, training=True), {"logits": A}) == (A,)
