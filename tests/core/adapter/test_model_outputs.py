"""The tensors that a model returns, and their specs."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.model_outputs import input_error, input_hint, output_tuple, probe_output_specs
from anyaccel.errors import ShapeError
from anyaccel.segment import TensorSpec

A, B = np.zeros((2, 1)), np.ones((2, 3))


def spec_of(output):
    return TensorSpec(output.shape[1:], output.dtype.name)


@pytest.mark.parametrize(
    ("result", "expected"),
    [(A, (A,)), ((A, B), (A, B)), ([A], (A,)), ({"b": B, "a": A}, (B, A))],
    ids=["one", "tuple", "list", "dict"],
)
def test_outputs_are_one_tensor_or_those_of_a_container(result, expected):
    found = output_tuple(result, np.ndarray)
    assert len(found) == len(expected) and all(x is y for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (3, r"returned a int, which cannot"),
        ("ab", r"returned a str, which"),
        ((), r"returned a tuple of nothing"),
        ({"a": A, "b": None}, r"returned a dict of ndarray, NoneType.*one array, or .*dict of arrays"),
        ([A, (B,)], r"returned a list of ndarray, tuple"),
    ],
)
def test_anything_else_is_refused(result, told):
    with pytest.raises(ShapeError, match=told):
        output_tuple(result, np.ndarray, "array")


def test_specs_are_those_of_one_sample():
    specs = probe_output_specs("Net", lambda batch: [np.zeros((batch, 4)), np.zeros(batch, "int64")], spec_of)
    assert specs == (TensorSpec((4,), "float64"), TensorSpec((), "int64"))


def test_an_output_without_a_batch_is_refused():
    for shape in ((), (1,), (4, 2)):
        with pytest.raises(ShapeError, match=r"Net returns shape \[.*\] for a batch of 2.*Hint: swap"):
            probe_output_specs("Net", lambda batch, shape=shape: [np.zeros(shape)], spec_of, hint="swap")


def test_a_spec_that_depends_on_the_batch_size_is_refused():
    with pytest.raises(ShapeError, match=r"float64\[2\] per sample for a batch of 2, but float64\[3\] .* batch of 3"):
        probe_output_specs("Net", lambda batch: [np.zeros((batch, batch))], spec_of)


def test_the_error_for_inputs_names_them():
    error = input_error("Net", [TensorSpec((3,), "float32"), TensorSpec((), "int64")], "no", "do")
    assert str(error).startswith("Net does not accept float32[3] and int64[] per sample. Available: no")
    assert "no input per sample" in str(input_error("Net", [], "no", "do"))


@pytest.mark.parametrize(
    ("spec", "settings", "hint"),
    [
        (TensorSpec((), "float32"), {"is_code_error": True}, r"\[n, 1\]"),
        (TensorSpec((3,), "float32"), {"is_code_error": True}, "fix the model's code"),
        (TensorSpec((3,), "int64"), {"dtype": "float32"}, r"feature_set.cast\(\{...: 'float32'\}, keep_splits=True\)"),
        (TensorSpec((3,), "float64"), {"dtype": "float32", "convert": "ask {dtype}"}, "float32 inputs .* ask float64"),
        (TensorSpec((3,), "float32"), {"dtype": "float32"}, "correct the sizes"),
        (TensorSpec((3,), "float32"), {}, "correct the sizes"),
    ],
)
def test_the_hint_fits_what_is_wrong(spec, settings, hint):
    import re

    assert re.search(hint, input_hint([spec], **settings))
