"""Nodes: their arguments, and what they refuse at once."""

from __future__ import annotations

import pytest

from anyaccel import Accelerator, ConcatNode, ModelNode, Optimizer
from anyaccel.device import Device
from anyaccel.errors import DeviceParseError, GraphError, SpecError


@pytest.mark.parametrize(
    "label", ["", " a", "a ", "a.b", "a/b", "a\nb", "a\x00", "a\x1b[31m", "a\x9b31m", "a\ud800", None, 3, b"a"]
)
def test_an_invalid_label_is_refused_by_every_kind_of_node(label, table, mlp):
    for make in (lambda: ModelNode(label, mlp(), "x"), lambda: ConcatNode(label, ["x", "y"])):
        with pytest.raises(GraphError, match=r"is not a valid label of a node.*Hint: use text without"):
            make()


@pytest.mark.parametrize("label", ["a", "a b", "ä", "<script>", 'say "hi"', "a+b#2", "[0]", "日本"])
def test_any_other_text_is_a_label(label, mlp):
    assert ModelNode(label, mlp(), "x").label == label


def test_an_upstream_is_a_reference_a_label_or_a_node(table, mlp):
    fs = table()
    first = ModelNode("first", mlp(), fs.reference())
    joined = ConcatNode("joined", [first, fs.reference()])
    assert ModelNode("n", mlp(), first).upstreams == ("first",)
    assert ModelNode("n", mlp(), [joined, "first.0", fs.reference()]).upstreams == (
        "joined",
        "first.0",
        fs.reference(),
    )


@pytest.mark.parametrize("upstream", [None, 3, {1, 2}])
def test_another_object_as_upstream_is_refused(upstream, mlp):
    with pytest.raises(GraphError, match=rf"'n' has an upstream of type {type(upstream).__name__}.*pass feature_set"):
        ModelNode("n", mlp(), upstream)


def test_a_feature_set_as_upstream_stands_for_all_its_features(table, mlp):
    data = table()
    assert ModelNode("n", mlp(), data).upstreams == (data.reference(),)


def test_the_label_of_a_node_may_be_left_out(table, mlp):
    data, model = table(), mlp()
    node = ModelNode(model, data)
    assert (node.label, node.model, node.upstreams) == ("model", model, (data.reference(),))
    with pytest.raises(GraphError, match=r"node 'n' has an upstream of type NoneType"):
        ModelNode("n", model)


def test_a_node_without_upstreams_is_refused(mlp):
    with pytest.raises(GraphError, match=r"node 'n' has no upstream.*pass feature_set"):
        ModelNode("n", mlp(), [])


def test_a_concat_node_needs_two_values():
    with pytest.raises(GraphError, match=r"ConcatNode 'c' has 1 upstream.*two or more"):
        ConcatNode("c", ["a"])


@pytest.mark.parametrize("axis", [0.5, "0", None, True])
def test_a_concat_axis_that_is_no_int_is_refused(axis):
    with pytest.raises(GraphError, match=r"ConcatNode 'c': concat_axis must be an int"):
        ConcatNode("c", ["a", "b"], axis)


@pytest.mark.parametrize("outputs", ["logits", [], ["x", "x"], 3, {"x": 1}])
def test_outputs_that_are_no_list_of_different_names_are_refused(outputs, mlp):
    with pytest.raises(GraphError, match=r"outputs must be a list of distinct names") as raised:
        ModelNode("n", mlp(), "x", outputs=outputs)
    names = "['logits']" if outputs == "logits" else "['mean', 'variance']"
    assert raised.value.hint == f"write outputs={names}"


def test_an_output_is_called_like_a_node_may_be(mlp):
    with pytest.raises(GraphError, match=r"'a.b' is not a valid label of an output"):
        ModelNode("n", mlp(), "x", outputs=["a.b"])


def test_an_accelerator_may_be_text(mlp):
    own = Accelerator("gpu:1", pin_memory=True)
    assert ModelNode("n", mlp(), "x", own).accelerator is own
    assert ModelNode("n", mlp(), "x", "cuda:1").accelerator.device == Device("gpu", 1)
    assert ModelNode("n", mlp(), "x", Device("mps")).accelerator.device == Device("mps")
    with pytest.raises(DeviceParseError, match="'gpu:-1'"):
        ModelNode("n", mlp(), "x", "gpu:-1")


def test_an_optimizer_may_be_a_name(mlp):
    class Own:
        pass

    assert ModelNode("n", mlp(), "x", optimizer="sgd").optimizer == Optimizer("sgd")
    assert ModelNode("n", mlp(), "x", optimizer=Own).optimizer.own is Own
    with pytest.raises(
        GraphError, match=r"the optimizer of node 'n' is an object of Own.*write optimizer=Optimizer\('adam', lr=1e-3\)"
    ):
        ModelNode("n", mlp(), "x", optimizer=Own())
    with pytest.raises(SpecError, match=r"no optimizer is called 'adamm'"):
        ModelNode("n", mlp(), "x", optimizer="adamm")


@pytest.mark.parametrize("model", [None, "resnet50", 3, 0.5, [], {"w": 1}, lambda x: x, print])
@pytest.mark.parametrize("framework", [None, "numpy"])
def test_text_numbers_containers_and_functions_are_no_models(model, framework):
    with pytest.raises(
        GraphError, match=r"the model of node 'n' is a \w+: .* Hint: (pass an? (model )?object of a|if this is the st)"
    ) as caught:
        ModelNode("n", model, "x", framework=framework)
    assert type(model).__name__ in str(caught.value)


def test_a_class_is_no_model(mlp):
    with pytest.raises(GraphError, match=r"is the class SequentialMLP.*SequentialMLP\(\.\.\.\)"):
        ModelNode("n", type(mlp()), "x")


def test_nodes_show_what_they_are(mlp):
    assert repr(ModelNode("n", mlp(), "x", "cuda")) == "ModelNode('n', SequentialMLP on gpu:0)"
    assert repr(ModelNode("n", mlp(), "x")) == "ModelNode('n', SequentialMLP)"
    assert repr(ConcatNode("c", ["a", "b"])) == "ConcatNode('c', 2 inputs)"
