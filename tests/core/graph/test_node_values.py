"""Inputs by name and by position, and names of outputs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode
from anyaccel.errors import ColumnError, GraphError, SpecError
from anyaccel.graph import shape_inference as node_values
from anyaccel.graph.nodes import ConcatNode
from anyaccel.graph.resolve import Request, resolve
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.segment import OutputSpec, TensorSpec


@pytest.fixture
def data() -> FeatureSet:
    ids = np.zeros((6, 4), "int64")
    columns = {"ids": ids, "mask": ids, "x": np.zeros((6, 3), "float32"), "y": np.zeros((6, 1), "float32")}
    return FeatureSet.from_dict("data", columns, ["ids", "mask", "x"], ["y"])


class Named(NumpyBackend):
    """Takes keywords, by a signature of its own."""

    calls_by_keyword = True

    def __init__(self, call) -> None:
        self._signature = inspect.signature(call)

    def signature(self, model):
        return self._signature


def check(node, call) -> None:
    node_values.check_call(node, Named(call))


# -- arguments of nodes ------------------------------------------------------------------------------------------------


def test_a_list_is_positional_and_a_dict_by_keyword(data, mlp):
    ids, mask = data.reference("ids"), data.reference("mask")
    assert ModelNode("n", mlp(), [ids, mask]).arguments == ()
    node = ModelNode("n", mlp(), {"input_ids": ids, "more": {"masks": [mask, "other"]}})
    assert node.upstreams == (ids, mask, "other")
    assert node.arguments == (("input_ids",), ("more", "masks", 0), ("more", "masks", 1))


@pytest.mark.parametrize(
    ("upstream", "message"),
    [({}, "node 'n' has no upstream"), ({3: "a"}, "has an upstream under 3, which is not text.*Hint: write {'NAME'")],
)
def test_dicts_that_name_no_inputs_are_refused(upstream, message, mlp):
    with pytest.raises(GraphError, match=message):
        ModelNode("n", mlp(), upstream)


def test_a_target_is_an_input_by_keyword_only(data, mlp):
    for node in (
        lambda ref: ModelNode("n", mlp(), ref),
        lambda ref: ModelNode("n", mlp(), [data.reference("x"), ref]),
        lambda ref: ConcatNode("n", [data.reference("x"), ref]),
    ):
        with pytest.raises(GraphError, match=r"takes y as an input, which is a target of 'data'.*'labels': data\.ref"):
            node(data.reference("y"))
    assert ModelNode("n", mlp(), {"labels": data.reference("y")}).upstreams[0].features == ("y",)


def test_the_arguments_are_part_of_the_configuration(data, mlp):
    model = mlp()
    node = ModelNode("n", model, {"b": data.reference("x"), "a": [data.reference("ids")]})
    config = ModelGraph([node]).get_config()
    again = ModelGraph.from_config(config, feature_sets=[data], models={"n": model})
    assert again["n"].arguments == node.arguments and again["n"].upstreams == node.upstreams


def test_a_backend_without_keywords_refuses_them(data, mlp):
    with pytest.raises(GraphError, match=r"node 'n': numpy calls models with positional arguments only.*flat list"):
        ModelGraph([ModelNode("n", mlp(), {"x": data.reference("x")})]).build()


# -- the call ----------------------------------------------------------------------------------------------------------


def forward(input_ids, token_type_ids=None, attention_mask=None):
    pass


def test_a_column_that_would_be_another_argument_is_refused(data, mlp):
    renamed = FeatureSet.from_dict(
        "data", {"input_ids": data.array("ids"), "attention_mask": data.array("mask")}, ["input_ids", "attention_mask"]
    )
    references = [renamed.reference("input_ids"), renamed.reference("attention_mask")]
    with pytest.raises(
        GraphError, match=r"'attention_mask' would be the argument 'token_type_ids'.*Hint: pass the inputs by name"
    ):
        check(ModelNode("n", mlp(), references), forward)
    check(ModelNode("n", mlp(), dict(zip(["input_ids", "attention_mask"], references, strict=True))), forward)
    check(ModelNode("n", mlp(), [data.reference("ids"), data.reference("mask")]), forward)  # names that tell nothing


def test_an_unknown_keyword_is_refused(data, mlp):
    node = ModelNode("n", mlp(), {"input_idz": data.reference("ids")})
    with pytest.raises(GraphError, match=r"its model has no input 'input_idz'.*Hint: did you mean 'input_ids'"):
        check(node, forward)
    check(node, lambda **rest: None)


def test_an_input_that_is_not_given_is_named(data, mlp):
    def call(ids, *, mask, scale=1.0):
        pass

    with pytest.raises(GraphError, match=r"its model needs the input 'mask', which is missing.*Hint: add it: \{'mask"):
        check(ModelNode("n", mlp(), {"ids": data.reference("ids")}), call)
    check(ModelNode("n", mlp(), {"ids": data.reference("ids"), "mask": data.reference("mask")}), call)


def test_inputs_that_have_names_only_are_not_given_in_an_order(data, mlp):
    def by_name(*, a, b):
        pass

    with pytest.raises(GraphError, match=r"takes its inputs by name.*Available: a, b. Hint: pass a dict: \{"):
        check(ModelNode("n", mlp(), [data.reference("ids"), data.reference("mask")]), by_name)


def test_vectors_of_integers_are_not_joined(data, mlp):
    message = r"integer columns ids, mask as one input, joined end to end.*\{'ids': data\.reference\('ids'\), 'mask'"
    with pytest.raises(GraphError, match=message):
        ModelGraph([ModelNode("n", mlp(), data.reference(["ids", "mask"]))]).build()


def test_vectors_of_integers_are_joined_once_they_are_floating(data, mlp):
    with pytest.raises(GraphError, match="or, if these are numbers rather than ids") as caught:
        ModelGraph([ModelNode("n", mlp(), data.reference(["ids", "mask"]))]).build()
    assert caught.value.hint.endswith("convert them to floats: data.cast({'ids': 'float32', 'mask': 'float32'})")
    data = data.cast({"ids": "float32", "mask": "float32"})
    graph = ModelGraph([ModelNode("n", mlp(), data.reference(["ids", "mask"]))])
    graph.build()
    assert len(graph.shapes.inputs["n"]) == 1


# -- outputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([()], ("n",)),
        ([("logits",)], ("n",)),
        ([(0,), (1, 0)], ("n.0", "n.1.0")),
        ([("a",), ("b", "c")], ("n.a", "n.b.c")),
    ],
)
def test_outputs_are_named_by_their_paths(paths, names, mlp, data, monkeypatch):
    returned = [OutputSpec(path, TensorSpec((2,), "float32")) for path in paths]
    monkeypatch.setattr(NumpyBackend, "infer_outputs", lambda *args: returned)
    graph = ModelGraph([ModelNode("n", mlp(), data.reference("x"))]).build()
    assert graph.shapes.outputs["n"] == names
    assert all(graph.shapes.specs[name].shape == (2,) for name in names)
    assert graph.shapes.aliases == ({"n.logits": "n"} if paths == [("logits",)] else {})


def test_a_loss_from_an_output_needs_one_that_exists(mlp, data):
    graph = ModelGraph([ModelNode("n", mlp(), data.reference("x"))], "sgd")
    loss = AppliedLoss.from_output("n", "loss")
    assert loss.inputs == ("outputs.loss",) and AppliedLoss.from_config(loss.get_config()) == loss
    with pytest.raises(ColumnError, match=r"is the output 'n\.loss', which its model does not return.*its only output"):
        resolve(graph, Request("p", losses=(loss,), training=True))


@pytest.mark.parametrize("inputs", [("outputs", "targets"), ("targets",), ("outputs.a", "outputs.b")])
def test_from_output_takes_one_output(inputs):
    with pytest.raises(
        SpecError, match=r"inputs=.* must be exactly one output.*Hint: write AppliedLoss\.from_output\('n'"
    ):
        AppliedLoss("from_output", on="n", inputs=inputs)
