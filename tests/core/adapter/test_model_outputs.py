"""The tensors that a model returns, and their specs."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.call_layout import leaves
from anyaccel.adapter.model_outputs import input_error, input_hint, output_tuple, probe_outputs
from anyaccel.errors import ShapeError
from anyaccel.segment import OutputSpec, TensorSpec

A, B = np.zeros((2, 1)), np.ones((2, 3))


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


def dtype_name(output):
    return output.dtype.name


def probe(returned, **settings):
    return probe_outputs("Net", lambda batch: leaves(returned(batch), np.ndarray), dtype_name, **settings)


def test_specs_are_those_of_one_sample():
    outputs = probe(lambda batch: [np.zeros((batch, 4)), np.zeros(batch, "int64")])
    specs = TensorSpec((4,), "float64"), TensorSpec((), "int64")
    assert outputs == (OutputSpec((0,), specs[0]), OutputSpec((1,), specs[1]))


def test_the_batch_is_found_on_any_axis():
    outputs = probe(lambda batch: {"out": np.zeros((batch, 5, 6)), "state": (np.zeros((1, batch, 6)),)})
    assert [(output.path, output.batch_axis, output.spec.shape) for output in outputs] == [
        (("out",), 0, (5, 6)),
        (("state", 0), 1, (1, 6)),
    ]


def test_what_is_there_once_for_a_batch_has_no_batch_axis():
    outputs = probe(lambda batch: {"loss": np.zeros(()), "logits": np.zeros((batch, 3))})
    assert [(output.path, output.batch_axis) for output in outputs] == [(("loss",), None), (("logits",), 0)]


def test_what_depends_on_the_batch_in_another_way_is_left_out_beside_outputs():
    outputs = probe(lambda batch: (np.zeros((batch, 3)), np.zeros((batch, batch)), np.zeros((batch * 4, 2))))
    assert [output.path for output in outputs] == [(0,)]


@pytest.mark.parametrize("shape", [(), (1,), (4, 2)])
def test_without_any_batch_a_model_is_refused(shape):
    with pytest.raises(ShapeError, match=r"Net returns \[.*\] for a batch of 2, and \[.*\] for a .*Hint: swap"):
        probe(lambda batch: [np.zeros(shape)], hint="swap")


def test_an_output_that_depends_on_the_batch_size_is_refused():
    with pytest.raises(ShapeError, match=r"returns \[2, 2\] for a batch of 2, and \[3, 3\] for a batch of 3"):
        probe(lambda batch: [np.zeros((batch, batch))])


def test_the_error_for_inputs_names_them():
    error = input_error("Net", [TensorSpec((3,), "float32"), TensorSpec((), "int64")], "no", "do")
    assert str(error).startswith("Net does not accept float32[3] and int64[] per sample; no")
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
