"""Shape inference: what a built graph knows, and the errors where shapes or frameworks do not fit."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from anyaccel import ConcatNode, FeatureSet, ModelGraph, ModelNode
from anyaccel.errors import (
    AmbiguousOwnerError,
    CapabilityError,
    ColumnError,
    FrameworkError,
    GraphError,
    NoBackendError,
    ShapeError,
)
from anyaccel.install_hints import install_line
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Module, Sequential
from anyaccel.plugin_testing import TinyBackend
from anyaccel.segment import TensorSpec


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def alien(module: str, name: str = "Linear") -> object:
    """An object of a class that says it comes from some module."""
    return type(name, (), {"__module__": module})()


# -- what is known -----------------------------------------------------------------------------------------------------


def test_every_value_has_a_spec(table, mlp, parts):
    fs = table(x=((4,), "float64"))
    graph = ModelGraph(
        [
            ModelNode("a", parts(1, 3), fs.reference(), outputs=["one", "three"]),
            ModelNode("b", mlp(2, 5), ["a.three", "a.one", fs.reference()]),
            ModelNode("c", mlp(dtype="float64"), fs.reference()),
        ]
    )
    shapes = graph.shapes
    assert shapes.outputs == {"a": ("a.one", "a.three"), "b": ("b",), "c": ("c",)}
    assert shapes.inputs["b"] == ("a.three", "a.one", "fs.x")
    assert shapes.specs == {
        "fs.x": spec(4, dtype="float64"),
        "a.one": spec(1),
        "a.three": spec(3),
        "b": spec(2, 5),
        "c": spec(1, dtype="float64"),
    }
    assert shapes.wanted("b") == (spec(3), spec(1), spec(4))
    assert shapes.wanted("c") == (spec(4, dtype="float64"),)


def test_outputs_without_names_are_numbered(table, parts):
    assert ModelGraph([ModelNode("a", parts(2, 2), table().reference())]).shapes.outputs["a"] == ("a.0", "a.1")


def test_a_single_output_may_have_a_name(table, mlp):
    graph = ModelGraph([ModelNode("a", mlp(), table().reference(), outputs=["y"]), ModelNode("b", mlp(), "a.y")])
    assert graph.shapes.inputs["b"] == ("a.y",)


def test_weights_follow_from_the_seed_and_the_label_alone(table, mlp):
    def weights(seed: int, *labels: str) -> dict[str, np.ndarray]:
        nodes = [ModelNode(label, mlp(), table().reference()) for label in labels[:1]]
        nodes += [ModelNode(label, mlp(), labels[0]) for label in labels[1:]]
        return ModelGraph(nodes, seed=seed).state()

    first, again, other = weights(1, "a", "b"), weights(1, "a", "z"), weights(2, "a", "b")
    name = "a/parameters/layers.0.weight"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert np.array_equal(first[name], weights(np.int32(1), "a", "b")[name])


def test_building_twice_initialises_weights_once(table, mlp):
    model = mlp()
    graph = ModelGraph([ModelNode("a", model, table().reference())]).build()
    before = dict(model.parameters)
    graph.build().build(force=True)
    assert all(model.parameters[name] is array for name, array in before.items())


def test_a_model_that_replaces_another_is_seen(table, mlp):
    graph = ModelGraph([ModelNode("a", mlp(), table().reference())]).build()
    known = graph.shapes
    assert graph.build().shapes is known
    graph["a"].model = mlp(6)
    assert graph.shapes.specs["a"] == spec(6)


def test_shared_models_are_built_once(table, mlp):
    fs, model = table(), mlp(4)
    graph = ModelGraph([ModelNode("a", model, fs.reference()), ModelNode("b", model, "a")]).build()
    assert list(graph.state()) == ["seed", "a/parameters/layers.0.weight", "a/parameters/layers.0.bias"]
    assert graph.summary().endswith("20 parameters")


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_a_shape_that_does_not_fit_names_the_node_and_both_shapes(table, mlp):
    model = Dense(3)
    graph = ModelGraph([ModelNode("a", model, table().reference())]).build()
    graph.add_node(ModelNode("b", mlp(7), "a")).add_node(ModelNode("c", model, "b"))
    with pytest.raises(ShapeError) as caught:
        graph.build()
    message = str(caught.value)
    assert "node 'c' does not accept float32[7] from b" in message
    assert "Dense(3) takes samples with 4 features, got float32[7]" in message


def test_a_failing_module_is_an_error_with_its_own_message(table):
    class Broken(Module):
        def apply(self, values, inputs, *, train, key):
            raise RuntimeError("wires crossed")

    with pytest.raises(ShapeError, match=r"node 'a' does not accept float32\[4\] from fs.x: Broken .*: wires crossed"):
        ModelGraph([ModelNode("a", Broken(), table().reference())]).build()


def test_integer_features_are_refused_with_a_hint(table):
    with pytest.raises(ShapeError) as caught:
        ModelGraph([ModelNode("a", Dense(3), table(x=((4,), "int64")).reference())]).build()
    message = str(caught.value)
    assert "node 'a' does not accept int64[4] from fs.x" in message
    assert "cast the features to float32" in message


def test_a_node_in_another_precision_than_what_feeds_it_is_refused_when_the_graph_is_built(table, mlp):
    nodes = [ModelNode("a", mlp(), table().reference()), ModelNode("b", mlp(dtype="float64"), "a")]
    with pytest.raises(ShapeError, match=r"node 'b' does not accept float32\[1\] from a: .*computes in float64"):
        ModelGraph(nodes).build()


def test_a_failed_build_leaves_the_graph_unbuilt_and_can_be_repeated(table, mlp):
    graph = ModelGraph([ModelNode("a", Dense(3), table(x=((4,), "int64")).reference())])
    with pytest.raises(ShapeError):
        graph.build()
    assert not graph.is_built
    graph.replace_node("a", ModelNode("a", mlp(), table().reference()))
    assert graph.build().is_built


@pytest.mark.parametrize(("given", "said"), [("a.2", "a.0, a.1"), ("a.mean", "a.0, a.1"), ("b.0", "b")])
def test_an_unknown_output_is_an_error(given, said, table, mlp, parts):
    fs = table()
    nodes = [ModelNode("a", parts(2, 2), fs.reference()), ModelNode("b", mlp(), fs.reference())]
    with pytest.raises(GraphError) as caught:
        ModelGraph([*nodes, ModelNode("c", mlp(), given)]).build()
    message = str(caught.value)
    assert f"node 'c' takes {given!r}, which {given[0]!r} does not output" in message
    assert f"Available: {said}. Hint: " in message


def test_a_wrong_count_of_named_outputs_is_refused(table, parts):
    with pytest.raises(GraphError, match=r"node 'a' names 3 outputs, but its model returns 2. Hint: name all"):
        ModelGraph([ModelNode("a", parts(2, 2), table().reference(), outputs=["x", "y", "z"])]).build()


def test_several_columns_are_joined_if_they_can_be(mlp):
    data = {"a": np.zeros((8, 2), "float32"), "b": np.zeros(8, "float32"), "i": np.zeros(8, "int64")}
    fs = FeatureSet.from_dict("fs", data, list(data))
    assert ModelGraph([ModelNode("m", mlp(), fs.reference(["a", "b"]))]).shapes.specs["fs.a+b"] == spec(3)
    assert ModelGraph([ModelNode("m", mlp(), fs.reference())]).shapes.specs["fs.a+b+i"] == spec(4, dtype="float64")
    other = FeatureSet.from_dict("fs", {"a": np.zeros((8, 2)), "b": np.zeros((8, 3, 2))}, ["a", "b"])
    with pytest.raises(ColumnError, match=r"columns 'a' .* and 'b' .* cannot be joined"):
        ModelGraph([ModelNode("m", mlp(), other.reference())]).build()


def test_a_plus_in_a_name_does_not_make_two_inputs_one(mlp):
    data = {"a": np.zeros((8, 1), "float32"), "b": np.zeros((8, 1), "float32"), "a+b": np.zeros((8, 5), "float32")}
    fs = FeatureSet.from_dict("fs", data, list(data))
    nodes = [ModelNode("m", mlp(), fs.reference(["a", "b"])), ModelNode("n", mlp(), fs.reference("a+b"))]
    with pytest.raises(GraphError, match=r"node 'n': 'fs.a\+b' is two different inputs.*float32\[2\] and float32\[5\]"):
        ModelGraph(nodes).build()


def test_layers_one_after_the_other_are_traced(table):
    model = Sequential(Dense(8), BatchNorm(), Dropout(0.5), Dense(2))
    assert ModelGraph([ModelNode("a", model, table().reference())]).shapes.specs["a"] == spec(2)


# -- concatenation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "shape"), [(0, (5, 2)), (1, (3, 3)), (-1, (3, 3)), (-2, (5, 2))])
def test_a_concat_joins_along_an_axis_of_the_sample(axis, shape, table, mlp):
    fs, other = table(), (2, 2) if axis in (0, -2) else (3, 1)
    nodes = [ModelNode("a", mlp(3, 2), fs.reference()), ModelNode("b", mlp(*other), fs.reference())]
    graph = ModelGraph([*nodes, ConcatNode("c", ["a", "b"], axis)])
    assert graph.shapes.specs["c"].shape == shape


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_samples_do_not_have_is_refused(axis, table, mlp):
    fs = table()
    nodes = [ModelNode("a", mlp(3, 2), fs.reference()), ConcatNode("c", ["a", "a"], axis)]
    with pytest.raises(ShapeError) as caught:
        ModelGraph(nodes).build()
    assert f"node 'c' has no axis {axis}: its inputs are samples of shape [3, 2]" in str(caught.value)
    assert "choose an axis of a sample, without the batch" in str(caught.value)


def test_scalars_are_not_joined(table):
    fs = table(x=((), "float32"))
    with pytest.raises(ShapeError, match=r"node 'c' has no axis -1: its inputs are samples of shape \[\]"):
        ModelGraph([ConcatNode("c", [fs.reference(), fs.reference()])]).build()


@pytest.mark.parametrize("other", [(3, 4), (2,), (1, 3, 2)])
def test_shapes_that_cannot_be_joined_are_both_named(other, table, mlp):
    fs = table()
    nodes = [ModelNode("a", mlp(3, 2), fs.reference()), ModelNode("b", mlp(*other), fs.reference())]
    with pytest.raises(ShapeError) as caught:
        ModelGraph([*nodes, ConcatNode("c", ["a", "b"], 0)]).build()
    message = str(caught.value)
    assert f"node 'c' cannot concatenate float32[3, 2] and float32{list(other)} along axis 0" in message
    assert "use equal dtypes, and equal extents along every other axis" in message


def test_dtypes_that_differ_are_not_joined(table, mlp):
    fs = table(x=((4,), "int32"))
    floats = table("other").reference()
    nodes = [ModelNode("a", mlp(4), floats), ConcatNode("c", ["a", fs.reference()]), ModelNode("d", mlp(), "c")]
    with pytest.raises(ShapeError, match=r"node 'c' cannot concatenate float32\[4\] and int32\[4\]"):
        ModelGraph(nodes).build()


def test_columns_are_joined_in_the_precision_of_the_consumer(table, mlp):
    fs = table(x=((4,), "float64"))
    nodes = [ModelNode("a", mlp(4), fs.reference()), ConcatNode("c", ["a", fs.reference()]), ModelNode("d", mlp(), "c")]
    assert ModelGraph(nodes).shapes.specs["c"] == spec(8)


def test_nested_concats_take_the_dtype_of_the_model_that_they_feed(table, mlp):
    fs = table(x=((4,), "float64"))
    nodes = [
        ConcatNode("c", [fs.reference(), fs.reference()]),
        ConcatNode("d", ["c", fs.reference()]),
        ModelNode("e", mlp(), "d"),
    ]
    shapes = ModelGraph(nodes).shapes
    assert (shapes.specs["d"], shapes.frameworks["c"]) == (spec(12), "numpy")


def test_a_concat_without_consumer_keeps_the_dtype_of_the_data(table):
    fs = table(x=((4,), "float64"))
    assert ModelGraph([ConcatNode("c", [fs.reference(), fs.reference()])]).shapes.specs["c"] == spec(8, dtype="float64")


# -- whose a model is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("torch.nn.modules.linear", "anyaccel-torch"),
        ("tensorflow.python.keras", "anyaccel-tensorflow"),
        ("keras.src.models", "anyaccel-tensorflow"),
        ("flax.linen", "anyaccel-jax"),
    ],
)
def test_a_model_of_a_framework_without_a_plugin_says_what_to_install(module, distribution, table):
    with pytest.raises(NoBackendError) as caught:
        ModelGraph([ModelNode("a", alien(module), table().reference())]).build()
    message = str(caught.value)
    assert f"node 'a': {module}.Linear has no backend" in message
    assert "Available: backends for numpy" in message
    assert install_line(distribution) in message


def test_a_users_class_is_recognised_by_its_bases(table):
    base = type(alien("torch.nn.modules.module", "Module"))
    net = type("Net", (base,), {"__module__": "__main__"})()
    with pytest.raises(NoBackendError, match=r"node 'a': __main__.Net has no backend: .*pip install .*plugins/torch"):
        ModelGraph([ModelNode("a", net, table().reference())]).build()


def test_a_model_without_owner_is_an_error_with_the_node(table):
    with pytest.raises(
        NoBackendError,
        match=r"node 'a': builtins.object has no backend: no installed plugin supports "
        r"it",
    ):
        ModelGraph([ModelNode("a", object(), table().reference())]).build()


def test_a_framework_named_for_a_model_that_it_does_not_know_is_an_error_with_the_node(table):
    with pytest.raises(
        GraphError, match=r"node 'a': numpy cannot use a object as a model \(AttributeError.*leave framework="
    ):
        ModelGraph([ModelNode("a", object(), table().reference(), framework="numpy")]).build()


def test_two_owners_of_one_model_are_both_named(serve, table, monkeypatch):
    monkeypatch.setitem(sys.modules, "both", ModuleType("both"))
    one, two = TinyBackend("one"), TinyBackend("two")
    one.import_roots = two.import_roots = ("both",)
    serve(one, two)
    with pytest.raises(AmbiguousOwnerError) as caught:
        ModelGraph([ModelNode("a", alien("both.models"), table().reference())]).build()
    message = str(caught.value)
    assert "node 'a': both.models.Linear belongs to several frameworks: one and two" in message
    assert "framework='one'" in message


def test_the_framework_that_is_named_decides(serve, twin, table, mlp):
    serve(twin())
    graph = ModelGraph(
        [ModelNode("a", mlp(), table().reference(), framework="twin"), ModelNode("b", mlp(), "a", framework="numpy")]
    )
    assert graph.shapes.frameworks == {"a": "twin", "b": "numpy"}


def test_a_framework_without_a_plugin_is_an_error_with_the_node(table, mlp):
    with pytest.raises(FrameworkError) as caught:
        ModelGraph([ModelNode("a", mlp(), table().reference(), framework="jax")]).build()
    message = str(caught.value)
    assert "node 'a': no plugin for the framework 'jax' is installed. Available: numpy" in message
    assert install_line("anyaccel-jax") in message


def test_a_backend_that_cannot_compute_is_an_error(serve, table):
    tiny = TinyBackend("tiny")
    serve(tiny)
    with pytest.raises(CapabilityError, match=r"the backend of tiny cannot compute. Available: place and move"):
        ModelGraph([ModelNode("a", tiny.new(), table().reference())]).build()


def test_an_array_is_no_model(table):
    with pytest.raises(ShapeError, match=r"node 'a' does not accept .*a ndarray is not a NumPy model: its gradients"):
        ModelGraph([ModelNode("a", np.zeros((4, 1), "float32"), table().reference())]).build()


# -- estimators --------------------------------------------------------------------------------------------------------


def test_of_many_columns_an_error_names_the_first(mlp):
    names = [f"c{i}" for i in range(60)]
    fs = FeatureSet.from_dict("fs", {name: np.zeros(4, "float32") for name in names}, names)
    model = ModelGraph([ModelNode("m", mlp(), fs.reference(names[:2]))]).build()["m"].model
    with pytest.raises(ShapeError, match=r"does not accept float32\[60\] from fs\.c0\+c1\+c2 and 57 more: ") as caught:
        ModelGraph([ModelNode("m", model, fs.reference())]).build()
    assert "c3" not in str(caught.value)


def test_the_error_with_the_node_replaces_the_one_without(table):
    class Broken(Module):
        def apply(self, values, inputs, *, train, key):
            raise RuntimeError("sizes differ")

    with pytest.raises(ShapeError, match=r"node 'm' does not accept .*sizes differ") as caught:
        ModelGraph([ModelNode("m", Broken(), table().reference())]).build()
    assert type(caught.value.__cause__) is RuntimeError and caught.value.__cause__.__cause__ is None
