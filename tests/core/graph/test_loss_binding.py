"""Losses, optimizers and columns of a phase: what is compared, in which form, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss, Experiment, FeatureSet, Loss, ModelGraph, ModelNode, Optimizer, TrainPhase
from anyaccel.errors import AnyaccelError, ColumnError, GraphError, PhaseError, ShapeError, SpecError
from anyaccel.graph import Request, Resolution, resolve
from anyaccel.numpy_backend import Activation, NumpyBackend
from anyaccel.segment import TensorSpec


def training(graph: ModelGraph, *losses: AppliedLoss, **settings: object) -> Resolution:
    return resolve(graph, Request("p", losses=losses, training=True, **settings))


def columns(graph: ModelGraph, *losses: AppliedLoss) -> dict[str, TensorSpec]:
    return {column.name: column.spec for column in training(graph, *losses).plan.columns}


def one(model: object, fs: FeatureSet, optimizer: object = "sgd", **settings: object) -> ModelGraph:
    return ModelGraph([ModelNode("a", model, fs.reference(), **settings)], optimizer)


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "mae", "binary_cross_entropy"])
@pytest.mark.parametrize(
    ("output", "target"),
    [((1,), (3,)), ((3,), ()), ((3,), (1,)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((6,), (2, 3)), ((3, 1), (1, 2))],
)
def test_shapes_that_would_broadcast_or_fold_are_refused_naming_both(loss, output, target, table, mlp):
    graph = one(mlp(*output), table(y=(target, "float32")))
    with pytest.raises(ShapeError) as caught:
        training(graph, AppliedLoss(loss, on="a"))
    message = str(caught.value)
    assert (
        f"{loss} on node 'a' cannot compare its output float32{list(output)} with fs.y, float32{list(target)}"
        in message
    )
    assert "losses never broadcast. Available: " in message
    wanted = f"an output of shape {list(target)}" if len(target) > 1 else f"{target[0] if target else 1} output"
    assert f"Hint: give the model {wanted}" in message and "or choose another column" in message


@pytest.mark.parametrize("loss", ["mse", "mae", "binary_cross_entropy"])
@pytest.mark.parametrize(
    ("output", "target"),
    [((1,), ()), ((1,), (1,)), ((1, 1), ()), ((1, 1), (1,)), ((1,), (1, 1)), ((3,), (1, 3)), ((2, 1, 3), (2, 3))],
)
def test_single_axes_are_aligned(loss, output, target, table, mlp):
    graph = one(mlp(*output), table(y=(target, "float32")))
    assert columns(graph, AppliedLoss(loss, on="a"))["fs.y"] == TensorSpec(output, "float32")
    column = training(graph, AppliedLoss(loss, on="a")).plan.columns[1]
    assert column.change == ("" if output == target else f"{list(target)} to {list(output)}")


def test_aligned_targets_are_those_of_their_row(mlp):
    """Aligning must never turn [n] and [n, 1] into [n, n]: the first step's loss is the mean of the squares."""
    y = np.arange(8, dtype="float32")
    fs = FeatureSet.from_dict("fs", {"x": np.ones((8, 2), "float32"), "y": y}, ["x"], ["y"])
    graph = one(mlp(1, 1), fs).build()
    guess = graph["a"].model(fs.array("x")).reshape(8)
    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="a")], batch_size=8)
    loss = Experiment("e", graph).run_phase(phase).loss[0]
    assert loss == pytest.approx(np.mean((guess - y) ** 2), rel=1e-6)


# -- dtypes ------------------------------------------------------------------------------------------------------------


def test_float64_columns_are_cast_once_to_the_models_dtype_and_the_plan_says_so(table, mlp):
    graph = one(mlp(), table(x=((4,), "float64"), y=((1,), "float64")))
    plan = training(graph, AppliedLoss("mse", on="a")).plan
    assert [(column.name, column.spec.dtype, column.change) for column in plan.columns] == [
        ("fs.x", "float32", "float64 to float32"),
        ("fs.y", "float32", "float64 to float32"),
    ]
    assert "load  fs.x -> numpy cpu:0: float32[4] (float64 to float32)" in str(plan)


def test_each_form_and_device_of_a_column_is_loaded_once(table, mlp, sims):
    fs = table(x=((4,), "float64"))
    nodes = [
        ModelNode("a", mlp(), fs.reference()),
        ModelNode("b", mlp(), fs.reference()),
        ModelNode("c", mlp(dtype="float64"), fs.reference()),
        ModelNode("d", mlp(), fs.reference(), "sim:0"),
    ]
    made = resolve(ModelGraph(nodes), Request("p", wants=("a", "b", "c", "d")))
    assert [(c.name, c.spec.dtype, str(c.device)) for c in made.plan.columns] == [
        ("fs.x", "float32", "cpu:0"),
        ("fs.x#2", "float64", "cpu:0"),
        ("fs.x#3", "float32", "sim:0"),
    ]
    assert [op.inputs for op in made.segments[0].operations] == [("fs.x",), ("fs.x",), ("fs.x#2",), ("fs.x#3",)]


def test_a_column_that_is_called_like_another_form_of_one_is_not_mistaken_for_it(mlp):
    data = {"x": np.zeros((8, 2), "float64"), "x#2": np.ones((8, 2), "float32"), "y": np.zeros(8, "float32")}
    fs = FeatureSet.from_dict("fs", data, ["x", "x#2"], "y")
    nodes = [
        ModelNode("m", mlp(), fs.reference("x")),
        ModelNode("n", mlp(dtype="float64"), fs.reference("x")),
        ModelNode("o", mlp(), fs.reference("x#2")),
    ]
    made = resolve(ModelGraph(nodes), Request("p", wants=("m", "n", "o")))
    loaded = {column.name: (column.columns, column.spec.dtype) for column in made.plan.columns}
    taken = {op.label: loaded[op.inputs[0]] for op in made.segments[0].operations}
    assert taken == {"m": (("x",), "float32"), "n": (("x",), "float64"), "o": (("x#2",), "float32")}


def test_a_column_with_a_plus_is_not_mistaken_for_two_joined(mlp):
    data = {"a": np.zeros((8, 1), "float32"), "b": np.zeros((8, 1), "float32"), "a+b": np.ones((8, 2), "float32")}
    fs = FeatureSet.from_dict("fs", data, list(data))
    nodes = [ModelNode("m", mlp(2), fs.reference(["a", "b"])), ModelNode("n", mlp(2), fs.reference("a+b"))]
    made = resolve(ModelGraph(nodes), Request("p", wants=("m", "n")))
    assert [column.columns for column in made.plan.columns] == [("a", "b"), ("a+b",)]
    assert made.segments[0].operations[0].inputs != made.segments[0].operations[1].inputs
    loss = AppliedLoss("mse", on="m", inputs=["outputs", "fs.a+b"])
    assert training(ModelGraph(nodes[:1], "sgd"), loss).plan.columns[1].columns == ("a+b",)


@pytest.mark.parametrize("loss", ["mse", "mae", "binary_cross_entropy"])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integer_targets_of_a_regression_loss_are_refused_with_a_hint(loss, dtype, table, mlp):
    with pytest.raises(SpecError) as caught:
        training(one(mlp(), table(y=((1,), dtype))), AppliedLoss(loss, on="a"))
    message = str(caught.value)
    assert f"{loss} on 'a' compares float32 outputs with fs.y, which is {dtype}" in message
    assert "Hint: cast each batch of a source, or build the graph on a copy with another dtype: " in message
    assert "feature_set.cast({'y': 'float32'})" in message


def test_the_hint_for_integer_targets_works_as_written(table, mlp):
    with pytest.raises(SpecError) as caught:
        training(one(mlp(), table(y=((1,), "int64"))), AppliedLoss("mse", on="a"))
    feature_set = table(y=((1,), "int64"))
    code = caught.value.hint.partition(": ")[2]
    mended = eval(code, {"feature_set": feature_set})  # noqa: S307  # the message promises that this can be pasted
    assert columns(one(mlp(), mended), AppliedLoss("mse", on="a"))["fs.y"].dtype == "float32"


def test_the_hint_names_each_of_several_targets(mlp):
    data = {"x": np.zeros((8, 2), "float32"), "y": np.zeros(8, "int64"), "z": np.zeros(8, "int64")}
    fs = FeatureSet.from_dict("fs", data, "x", ["y", "z"])
    with pytest.raises(SpecError, match=r"feature_set.cast\({'y': 'float32', 'z': 'float32'}"):
        training(one(mlp(2), fs), AppliedLoss("mse", on="a"))


# -- classes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "int16"])
def test_class_indices_are_aligned_and_made_int64(shape, dtype, table, mlp):
    graph = one(mlp(3), table(y=(shape, dtype)))
    assert columns(graph, AppliedLoss("cross_entropy", on="a"))["fs.y"] == TensorSpec((), "int64")


def test_probabilities_are_compared_as_they_are(table, mlp):
    graph = one(mlp(3), table(y=((3,), "float64")))
    assert columns(graph, AppliedLoss("cross_entropy", on="a"))["fs.y"] == TensorSpec((3,), "float32")


@pytest.mark.parametrize(
    ("output", "target", "dtype"),
    [
        ((3,), (3,), "int64"),
        ((3,), (2,), "int64"),
        ((3,), (), "bool"),
        ((2, 3), (), "int64"),
        ((3,), (), "float32"),
        ((2, 3), (3, 2), "float32"),
    ],
)
def test_classes_that_do_not_fit_are_refused(output, target, dtype, table, mlp):
    with pytest.raises(ShapeError) as caught:
        training(one(mlp(*output), table(y=(target, dtype))), AppliedLoss("cross_entropy", on="a"))
    message = str(caught.value)
    assert f"its output float32{list(output)} with fs.y, {dtype}{list(target)}" in message
    assert "Available: logits [..., classes] and class indices [...], or probabilities [..., classes]" in message


def test_float_class_indices_are_refused_with_a_hint(table, mlp):
    with pytest.raises(
        ShapeError, match=r"or, if these are class indices, cast them: feature_set.cast\({'y': 'int64'}"
    ):
        training(one(mlp(3), table(y=((1,), "float64"))), AppliedLoss("cross_entropy", on="a"))


@pytest.mark.parametrize(("bad", "said"), [(3, 3), (-1, -1), (2**40, 2**40)])
def test_a_class_index_out_of_range_is_caught_before_anything_moves(bad, said, mlp, sims):
    y = np.array([0, 1, 2, bad] * 4)
    fs = FeatureSet.from_dict("fs", {"x": np.ones((16, 2), "float32"), "y": y}, "x", "y")
    graph = one(mlp(3), fs).build()
    for device in sims:
        device.clear()
    phase = TrainPhase("t", data="all", losses=[AppliedLoss("cross_entropy", on="a")], accelerator="sim:0")
    with pytest.raises(ColumnError) as caught:
        Experiment("e", graph).run_phase(phase)
    assert f"fs.y has the class index {said}; the model has 3 classes, 0 to 2" in str(caught.value)
    assert sims[0].used == sims[0].transfers.into.number == 0
    assert graph.progress == {}


def test_the_classes_are_those_of_the_output_that_is_compared(parts):
    fs = FeatureSet.from_dict("fs", {"x": np.ones((8, 5), "float32"), "y": np.array([0, 2] * 4)}, "x", "y")
    graph = one(parts(3, 2), fs)

    def run(name: str) -> None:
        loss = AppliedLoss("cross_entropy", on="a", inputs=[f"outputs.{name}", "targets"])
        Experiment("e", graph).run_phase(TrainPhase("t", data="all", losses=[loss]))

    run("0")
    with pytest.raises(ColumnError, match=r"fs.y has the class index 2; the model has 2 classes, 0 to 1"):
        run("1")


@pytest.mark.parametrize("values", [[0.0, float("nan"), 1.0], [0, None, 1]])
def test_missing_integers_are_refused_when_the_data_are_made(values):
    """NaN among class indices makes them floats in most tools; here no column changes its meaning on the way."""
    with pytest.raises(ColumnError, match=r"column 'y' has NaN or null among integers|cannot be cast"):
        FeatureSet.from_dict("fs", {"x": np.zeros((3, 1), "float32"), "y": values}, "x", "y").cast({"y": "int64"})


# -- which columns -----------------------------------------------------------------------------------------------------


def test_targets_are_those_of_the_data_that_feed_the_node_through_others_too(table, mlp):
    one_set, other = table("one"), table("two", y=((1,), "float64"))
    nodes = [
        ModelNode("a", mlp(), one_set.reference()),
        ModelNode("b", mlp(), other.reference()),
        ModelNode("c", mlp(), "b"),
    ]
    graph = ModelGraph(nodes, "sgd")
    assert "two.y" in columns(graph, AppliedLoss("mse", on="c"))
    assert "one.y" in columns(graph, AppliedLoss("mse", on="a"))


def test_a_loss_without_targets_says_where_to_name_them(table, mlp):
    with pytest.raises(ColumnError) as caught:
        training(one(mlp(), table(y=None)), AppliedLoss("mse", on="a"))
    assert "the loss on 'a' has the input 'targets', but the data that feed this node have no targets" in str(
        caught.value
    )
    assert "name target in the feature set, or columns in reference(target=[...])" in str(caught.value)


def test_several_targets_that_could_be_meant_are_listed(table, mlp):
    nodes = [ModelNode("a", mlp(), [table("one").reference(), table("two").reference()])]
    with pytest.raises(ColumnError) as caught:
        training(ModelGraph(nodes, "sgd"), AppliedLoss("mse", on="a"))
    assert (
        "has the input 'targets', but several data sets with targets feed this node. Available: one.y, two.y. "
        "Hint: name one of these" in str(caught.value)
    )
    loss = AppliedLoss("mse", on="a", inputs=["outputs", "two.y"])
    assert "two.y" in columns(ModelGraph(nodes, "sgd"), loss)


def test_any_column_can_be_named_a_feature_too(table, mlp):
    """An autoencoder: the features are the targets, and are loaded once."""
    fs = table(x=((2, 2), "float64"))
    graph = one(mlp(2, 2), fs)
    assert columns(graph, AppliedLoss("mse", on="a", inputs=["outputs", "fs.x"])) == {
        "fs.x": TensorSpec((2, 2), "float32")
    }


def test_an_unknown_column_suggests_the_closest_one(table, mlp):
    with pytest.raises(ColumnError, match=r"'fs' has no column 'yy'. Available: x, y. Hint: did you mean 'y'"):
        training(one(mlp(), table()), AppliedLoss("mse", on="a", inputs=["outputs", "fs.yy"]))


@pytest.mark.parametrize("text", ["nothing", "other.y", "outputs.3", "a.7", "target"])
def test_an_unknown_input_is_an_error_with_the_list(text, table, mlp):
    with pytest.raises(ColumnError) as caught:
        training(one(mlp(), table()), AppliedLoss("mse", on="a", inputs=["outputs", text]))
    message = str(caught.value)
    assert f"the loss on 'a' has the input {text!r}, which is not in this graph" in message
    assert "Available: outputs, targets, fs.x, a. Hint: use one of these names" in message


# -- which outputs -----------------------------------------------------------------------------------------------------


def test_a_named_output_is_compared(table, parts):
    graph = ModelGraph([ModelNode("a", parts(1, 3), table().reference(), outputs=["mean", "rest"])], "sgd")
    loss = AppliedLoss("mse", on="a", inputs=["outputs.mean", "targets"])
    (term,) = training(graph, loss).segments[0].losses
    assert term.inputs == ("a.mean", "fs.y")


def test_several_outputs_must_be_named(table, parts):
    with pytest.raises(SpecError) as caught:
        training(one(parts(2, 2), table()), AppliedLoss("mse", on="a"))
    message = str(caught.value)
    assert "mse on 'a': 'a' has several outputs. Available: a.0, a.1" in message
    assert "say which: AppliedLoss('mse', inputs=['outputs.0', 'targets'])" in message


def test_an_custom_loss_gets_the_inputs_that_it_names(table, parts):
    def total(*values):
        return sum(value.sum() for value in values)

    loss = AppliedLoss(Loss(total), on="a", inputs=["outputs", "fs.x", "targets"])
    (term,) = training(one(parts(2, 2), table(y=((), "float64"))), loss).segments[0].losses
    assert term.inputs == ("a.0", "a.1", "fs.x", "fs.y")
    assert columns(one(parts(2, 2), table(y=((), "float64"))), loss)["fs.y"] == TensorSpec((), "float32")


def test_two_outputs_are_compared_if_their_shapes_are_equal(table, mlp):
    fs = table()
    nodes = [
        ModelNode("a", mlp(3), fs.reference()),
        ModelNode("b", mlp(3), fs.reference()),
        ModelNode("c", mlp(1), fs.reference()),
    ]
    graph = ModelGraph(nodes, "sgd")
    (term,) = training(graph, AppliedLoss("mse", on="a", inputs=["outputs", "b"])).segments[0].losses
    assert term.inputs == ("a", "b")
    with pytest.raises(
        ShapeError, match=r"mse on node 'a' cannot compare its output float32\[3\] with c, float32\[1\]"
    ):
        training(graph, AppliedLoss("mse", on="a", inputs=["outputs", "c"]))


def test_the_output_of_another_node_is_what_its_targets_are_compared_with(table, mlp):
    fs = table(y=((2,), "float32"))
    nodes = [ModelNode("a", mlp(5), fs.reference()), ModelNode("b", mlp(2), fs.reference())]
    loss = AppliedLoss("mse", on="a", inputs=["b", "targets"])
    assert columns(ModelGraph(nodes, "sgd"), loss)["fs.y"] == TensorSpec((2,), "float32")


def test_order_matters_where_the_loss_is_not_symmetric(table, mlp):
    graph = one(mlp(3), table(y=((), "int64")))
    with pytest.raises(SpecError) as caught:
        training(graph, AppliedLoss("cross_entropy", on="a", inputs=["targets", "outputs"]))
    assert "cross_entropy on 'a': its first input, 'targets', is not an output" in str(caught.value)
    assert "write inputs=['outputs', 'targets'], in this order" in str(caught.value)
    assert training(one(mlp(), table()), AppliedLoss("mse", on="a", inputs=["targets", "outputs"])).segments


@pytest.mark.parametrize("inputs", [["outputs"], ["outputs", "targets", "targets"]])
def test_a_named_loss_compares_two_values(inputs, table, mlp):
    with pytest.raises(SpecError, match=r"mse on 'a' compares two values, but got . inputs. Hint: write"):
        training(one(mlp(), table()), AppliedLoss("mse", on="a", inputs=inputs))


def test_a_loss_on_an_unknown_node_suggests_the_closest_label(table, mlp):
    with pytest.raises(GraphError, match=r"phase 'p' names the node 'aa'. Available: a. Hint: did you mean 'a'"):
        training(one(mlp(), table()), AppliedLoss("mse", on="aa"))


# -- what is trained, with what ----------------------------------------------------------------------------------------


def test_a_phase_that_trains_without_a_loss_is_refused(table, mlp):
    with pytest.raises(PhaseError, match=r"phase 'p' trains, but has no loss .* Hint: pass losses=\[AppliedLoss"):
        training(one(mlp(), table()))


def test_a_missing_optimizer_is_an_error_with_three_hints(table, mlp):
    with pytest.raises(PhaseError) as caught:
        training(one(mlp(), table(), None), AppliedLoss("mse", on="a"))
    assert "node 'a' is trained but has no optimizer" in str(caught.value)
    assert "set one on the graph" in str(caught.value) and "or freeze it" in str(caught.value)


def test_nothing_to_train_is_an_error_with_the_reason_for_each_node(table, mlp):
    nodes = [ModelNode("a", mlp(), table().reference()), ModelNode("b", Activation("tanh"), "a")]
    with pytest.raises(PhaseError) as caught:
        training(ModelGraph(nodes, "sgd").freeze("a"), AppliedLoss("mse", on="b"))
    assert "phase 'p' has nothing to train: a (frozen), b (no parameters)" in str(caught.value)
    assert "unfreeze a node that a loss depends on" in str(caught.value)


def test_a_node_that_no_loss_depends_on_is_noted(table, mlp):
    fs = table()
    nodes = [ModelNode("a", mlp(), fs.reference()), ModelNode("b", mlp(), "a"), ModelNode("c", mlp(), fs.reference())]
    made = training(ModelGraph(nodes, "sgd"), AppliedLoss("mse", on="a"))
    assert made.plan.notes == ("b takes no part: no loss depends on it", "c takes no part: no loss depends on it")
    assert [one.node for one in made.plan.assignments] == ["a"]
    assert "note  b takes no part" in str(made.plan)


def test_an_optimizer_of_another_framework_is_refused_naming_the_node(table, mlp):
    adam = type("Adam", (), {"__module__": "torch.optim.adam"})
    with pytest.raises(SpecError) as caught:
        training(one(mlp(), table(), Optimizer(adam)), AppliedLoss("mse", on="a"))
    assert "node 'a': numpy does not support the optimizer 'Adam'" in str(caught.value)
    assert "Hint: use a named optimizer: sgd, momentum, adam, adamw." in str(caught.value)


def test_unknown_specs_are_refused_at_once():
    with pytest.raises(SpecError, match=r"no optimizer is called 'adamz'. Available: sgd, momentum, adam, adamw"):
        Optimizer("adamz")
    with pytest.raises(SpecError, match=r"no loss is called 'rmse'. Available: mse, mae, cross_entropy"):
        AppliedLoss("rmse", on="a")


def test_a_nodes_optimizer_wins_over_the_graphs(table, mlp):
    nodes = [ModelNode("graph", mlp(3), table().reference(), optimizer=Optimizer("sgd", lr=0.5))]
    nodes += [ModelNode("b", mlp(3), "graph"), ModelNode("c", mlp(), "b")]
    made = training(ModelGraph(nodes, Optimizer("adam", lr=0.1)), AppliedLoss("mse", on="c"))
    assert [(group.optimizer.name, group.nodes) for group in made.segments[0].groups] == [
        ("sgd", ("graph",)),
        ("adam", ("b", "c")),
    ]


def test_nodes_that_share_a_model_are_one_to_their_optimizer(table, mlp):
    fs, model, own = table(y=((4,), "float32")), mlp(4), Optimizer("sgd")
    nodes = [ModelNode(label, model, fs.reference() if label == "a" else "a", optimizer=own) for label in "ab"]
    made = training(ModelGraph(nodes), AppliedLoss("mse", on="b"))
    assert [group.nodes for group in made.segments[0].groups] == [("a", "b")]


def test_gradients_flow_where_a_trained_node_comes_before(table, mlp):
    nodes = [
        ModelNode("a", mlp(3), table().reference()),
        ModelNode("b", mlp(3), "a"),
        ModelNode("c", Activation("tanh"), "b"),
        ModelNode("d", mlp(), "c"),
    ]
    made = training(ModelGraph(nodes, "sgd").freeze("a", "d"), AppliedLoss("mse", on="d"))
    assert made.live == {"b", "c", "d"}
    assert [op.trainable for op in made.segments[0].operations] == [False, True, True, False]


def test_every_mistake_is_an_error_of_anyaccel(table, mlp):
    """Whatever is written in inputs=, the answer is one of the documented errors."""
    graph = one(mlp(), table())
    for text in ("", ".", "fs", "fs.", "fs.x+y", "a.", ".a", "outputs.", "targets.y", "fs.x.y", "a.a", "+", "x"):
        with pytest.raises(AnyaccelError):
            training(graph, AppliedLoss("mse", on="a", inputs=["outputs", text]))


# -- groups of parameters ----------------------------------------------------------------------------------------------

NO_DECAY = {"*bias": {"weight_decay": 0.0}}


def test_a_backend_that_does_not_heed_groups_is_refused_by_the_plan(table, mlp, monkeypatch):
    monkeypatch.setattr(NumpyBackend, "parameter_groups", False)
    graph = one(mlp(1), table(y=((1,), "float32")), Optimizer("adamw", groups=NO_DECAY))
    with pytest.raises(SpecError) as caught:
        training(graph, AppliedLoss("mse", on="a"))
    message = "node 'a': numpy does not support the optimizer's groups of parameters. Hint: leave groups out"
    assert message in str(caught.value)


def test_a_pattern_that_no_node_of_the_optimizer_has_is_refused(table, mlp):
    data = table(y=((1,), "float32"))
    groups = {**NO_DECAY, "body.*": {"lr": 0.1}}
    nodes = [ModelNode("body", mlp(3), data.reference()), ModelNode("a", mlp(1), "body")]
    with pytest.raises(SpecError, match=r"no parameter name matches 'body\.\*'.*Available: .*bias.*Hint: write"):
        training(ModelGraph(nodes, Optimizer("adamw", groups=groups)), AppliedLoss("mse", on="a"))
