"""Samples of the columns of a node, in the form in which it takes them."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.example_spec import ExampleSpec
from anyaccel.errors import ShapeError
from anyaccel.graph.shape_inference import example_columns, infer_training, with_examples
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.module import Module
from anyaccel.segment import TensorSpec


@pytest.fixture
def data() -> aa.FeatureSet:
    columns = {"x": np.arange(10.0), "ids": np.arange(20).reshape(10, 2)}
    return aa.FeatureSet.from_dict("data", columns, ["x", "ids"])


def test_the_first_samples_of_each_column_are_taken(data: aa.FeatureSet):
    node = aa.ModelNode("net", object(), [data.reference("x"), "other", data.reference("ids")])
    columns = example_columns(node)
    assert set(columns) == {"data.x", "data.ids"}
    np.testing.assert_array_equal(columns["data.x"], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(columns["data.ids"], [[0, 1], [2, 3], [4, 5]])


def test_they_have_the_shape_that_the_node_takes():
    columns = {"data.x": np.arange(3.0)}
    specs = [TensorSpec((1,), "float32"), TensorSpec((4,), "float32")]
    lifted, other = with_examples(["data.x", "other"], specs, columns)
    assert isinstance(lifted, ExampleSpec)
    assert str(lifted) == "float32[1]"
    np.testing.assert_array_equal(lifted.samples, [[0.0], [1.0], [2.0]])
    assert other is specs[1]


@pytest.mark.parametrize(("answer", "kinds"), [(None, [TensorSpec]), ((), [TensorSpec, ExampleSpec])])
def test_a_model_runs_on_samples_in_training_only_where_its_outputs_are_unknown(
    data: aa.FeatureSet, answer: tuple[()] | None, kinds: list[type]
):
    seen: list[type] = []

    class Backend(NumpyBackend):
        def infer_training(self, model, inputs, arguments=()):
            seen.extend(map(type, inputs))
            return answer

    node = aa.ModelNode("net", object(), [data.reference("x")])
    assert infer_training(node, Backend(), ["data.x"], [TensorSpec((), "float32")]) == ()
    assert seen == kinds


def test_where_samples_do_not_help_the_error_stays(data: aa.FeatureSet):
    class Broken(Module):
        def apply(self, values, inputs, *, train, key):
            raise RuntimeError("wires crossed")

    with pytest.raises(
        ShapeError, match=r"node 'net' does not accept float64\[\] from data.x: Broken .*: wires crossed"
    ):
        aa.ModelGraph([aa.ModelNode("net", Broken(), data.reference("x"))]).build()
