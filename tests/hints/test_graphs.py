"""Hints of nodes, graphs, losses on nodes and plans."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def features(**columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    data = aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))
    data.add_splits({"train": range(16), "val": range(16, 24)})
    return data


DATA = features()


def node(label: str = "net", width: int = 1, upstream: Any = None, **settings: Any) -> aa.ModelNode:
    return aa.ModelNode(label, aa.SequentialMLP(width), upstream or DATA.reference(), **settings)


def graph(*nodes: Any, optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph(list(nodes) or [node()], optimizer, **settings)


def train(*losses: Any, **settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="train", losses=list(losses) or [LOSS], **settings)


def test_words_of_others_for_training_a_graph(hint: Any) -> None:
    given = graph()
    with hint(
        "run a phase over it: graph.run(TrainPhase('train', data='train', losses=[AppliedLoss('mse', on='NODE')]))"
    ):
        given.fit()
    phase = aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("mse", on="net")])
    assert given.run(phase, progress="none").loss.size
    with hint("evaluate it: graph.run(EvalPhase('predict', data='all')).prediction('NODE')"):
        given.predict(X)
    assert len(given.run(aa.EvalPhase("predict", data="all"), progress="none").prediction("net")) == 24
    with hint("evaluate it: graph.run(EvalPhase('test', data='all', metrics=['mse'])).metrics"):
        given.evaluate()
    assert given.run(aa.EvalPhase("test", data="all", metrics=["mse"]), progress="none").metrics
    with hint("use run(phase)"):
        given.run_phase(phase)
    assert given.run(phase, progress="none")
    with hint("pass the optimizer to ModelGraph(nodes, 'adam') and losses to TrainPhase(..., losses=[...])"):
        given.compile("adam")
    adam = aa.ModelGraph([node()], "adam")
    assert adam.run(aa.TrainPhase("train", data="train", losses=[LOSS]), progress="none").loss.size
    with hint("a TrainPhase does this: TrainPhase(..., losses=[AppliedLoss(...)])"):
        given.zero_grad()
    assert given.run(aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("mse", on="net")]), progress="none")
    with hint("set it on a phase: TrainPhase(..., accelerator='cpu')"):
        given.to("cpu")
    assert given.run(aa.TrainPhase("train", data="train", losses=[LOSS], accelerator="cpu"), progress="none")


def test_words_of_others_for_the_state_of_a_graph(hint: Any, tmp_path: Path) -> None:
    given = graph()
    given.run(train(), progress="none")
    with hint("the models have them: graph['NODE'].model"):
        given.parameters()
    assert given["net"].model.parameters
    with hint("use state()"):
        given.state_dict()
    state = given.state()
    with hint("use load_state(state)"):
        given.load_state_dict(state)
    given.load_state(state)
    folder = tmp_path / "saved"
    with hint("use save(folder)"):
        given.save_model(folder)
    given.save(folder)
    with hint("use ModelGraph.load(folder)"):
        given.load_model(folder)
    assert aa.ModelGraph.load(folder)


def test_words_of_others_for_the_nodes_of_a_graph(hint: Any) -> None:
    given = graph()
    with hint("use add_node(ModelNode(...))"):
        given.add(node("other"))
    given.add_node(aa.ModelNode("other", aa.SequentialMLP(1), DATA.reference()))
    with hint("use graph.nodes, or graph['NODE']"):
        _ = given.layers
    assert given.nodes["other"] is given["other"]
    with hint("use visualize()"):
        given.plot()
    assert given.visualize()
    with hint("use freeze('NODE') and unfreeze('NODE')"):
        given.requires_grad_(False)
    given.freeze("net")
    assert given["net"].frozen
    given.unfreeze("net")
    with hint("pass labels, freeze('NODE', 'NODE'), or nothing for all nodes"):
        given.freeze(3)
    given.freeze("net", "other")
    given.freeze()
    with hint("write [node]"):
        aa.ModelGraph(node())  # type: ignore[arg-type]
    assert aa.ModelGraph([node()])
    with hint("wrap it: ModelNode('LABEL', model, upstream_ref)"):
        aa.ModelGraph([aa.SequentialMLP(1)])  # type: ignore[list-item]
    assert aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())])
    with hint("pass ModelNode(...) objects"):
        aa.ModelGraph([])
    assert aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())])
    with hint("write seed=0"):
        graph(seed="first")
    assert graph(seed=0)


def test_nodes_are_replaced_and_removed(hint: Any) -> None:
    given = graph()
    with hint("name the node of this graph first, then the new one: replace_node('LABEL', node)"):
        given.replace_node(node("net", 2), node())
    given.replace_node("net", node("net"))
    chain = graph(node("first", 4), node("last", 1, "first"))
    with hint("remove or rewire these first, or use replace_node"):
        chain.remove_node("first")
    chain.replace_node("first", node("first", 8))
    chain.remove_node("last")
    chain.remove_node("first") if len(chain.nodes) > 1 else None


def test_words_of_others_on_nodes(hint: Any) -> None:
    given = graph()
    own = given["net"]
    with hint("ask its model: node.model"):
        own.state_dict()
    assert own.model is not None
    with hint("a graph runs phases: graph.run(phase)"):
        own.fit()
    assert given.run(train(), progress="none")
    with hint("set the device: ModelNode(..., accelerator='cpu')"):
        own.to("cpu")
    assert aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference(), accelerator="cpu")
    with hint("the graph does: graph.freeze('NODE')"):
        own.freeze()
    given.freeze("net")
    with hint("a loss names the node: AppliedLoss('mse', on='NODE')"):
        _ = own.output
    assert aa.AppliedLoss("mse", on="net").on == "net"


def test_parts_of_nodes(hint: Any) -> None:
    with hint("use text without '.', '/' or outer spaces"):
        node("a.b")
    assert node("a b")
    with hint("write optimizer=Optimizer('adam', lr=1e-3)"):
        node(optimizer=3)
    assert node(optimizer=aa.Optimizer("adam", lr=1e-3))
    with hint("pass a model object of a framework, such as SequentialMLP(...)"):
        aa.ModelNode("net", 3, DATA.reference())
    with hint("create one: {}(...)"):
        aa.ModelNode("net", aa.SequentialMLP, DATA.reference())
    assert aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())
    data = DATA
    name = next(iter(data.features))
    with hint("use one of these labels; for a column of a FeatureSet, pass data.reference({})"):
        aa.ModelGraph([node(upstream=f"{data.label}.{name}")])
    assert aa.ModelGraph([node(upstream=data.reference(name))])
    with hint("write outputs={}"):
        node(outputs="mean")
    assert node(outputs=["mean"]).outputs == ("mean",)
    with hint("write outputs={}"):
        node(outputs=[])
    assert node(outputs=["mean", "variance"])
    with hint("pass feature_set.reference(...) or the label of a node"):
        node(upstream=[])
        aa.ModelNode("net", aa.SequentialMLP(1), [])
    with hint("pass feature_set.reference(...), a node, or the label of a node"):
        aa.ModelNode("net", aa.SequentialMLP(1), 3)
    for upstream in (DATA.reference(), node("other"), "other"):
        assert aa.ModelNode("net", aa.SequentialMLP(1), upstream)
    with hint("write {'NAME': feature_set.reference(...)}, with the argument names of the model's call"):
        aa.ModelNode("net", aa.SequentialMLP(1), {3: DATA.reference()})
    assert aa.ModelNode("net", aa.SequentialMLP(1), {"inputs": DATA.reference()})
    with hint("write batch_axis=1"):
        node(batch_axis="first")
    assert node(batch_axis=1)
    with hint("use the names of upstream_ref"):
        node(batch_axis={"zzz": 1})
    with hint("for a model that computes its loss, pass all inputs by name: {'labels': {}.reference({}), ...}"):
        aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference(["x", "y"]))
    assert aa.ModelNode("net", aa.SequentialMLP(1), {"inputs": DATA.reference(), "labels": DATA.reference("y")})


def test_concatenations(hint: Any) -> None:
    with hint("write concat_axis=-1"):
        aa.ConcatNode("both", ["a", "b"], concat_axis="last")  # type: ignore[arg-type]
    assert aa.ConcatNode("both", ["a", "b"], concat_axis=-1)
    with hint("pass two or more upstream_refs"):
        aa.ConcatNode("both", ["a"])
    assert aa.ConcatNode("both", upstream_refs=["a", "b"])
    scalars = features(y=X[:, 0], z=X[:, 1])
    with hint("choose an axis of a sample, without the batch; join scalars in one reference([...])"):
        first, last = node("a", 2), node("b", 2)
        graph(first, last, aa.ConcatNode("both", ["a", "b"], concat_axis=3)).build()
    graph(first, last, aa.ConcatNode("both", ["a", "b"], concat_axis=0)).build()
    assert scalars.reference(target=["y", "z"])


def test_inputs_of_losses(hint: Any) -> None:
    def trained(*losses: Any) -> Any:
        return graph().run(train(*losses), progress="none")

    with hint("write AppliedLoss.from_output({}, 'loss')"):
        aa.AppliedLoss("from_output", on="net", inputs=["outputs", "targets"])
    assert aa.AppliedLoss.from_output("net", "loss")
    with hint("pass it as an input of the loss: inputs=['outputs', 'targets', {}]"):
        aa.AppliedLoss(lambda outputs, targets: outputs, on="net", mask="data.y")
    assert aa.AppliedLoss(lambda outputs, targets, mask: outputs, on="net", inputs=["outputs", "targets", "data.y"])
    with hint("write inputs=['outputs', 'targets']"):
        trained(aa.AppliedLoss("mse", on="net", inputs=["outputs"]))
    assert trained(aa.AppliedLoss("mse", on="net", inputs=["outputs", "targets"]))
    with hint("write inputs=['outputs', 'targets'], in this order"):
        classes = features(label=np.arange(24) % 2)
        loss = aa.AppliedLoss("cross_entropy", on="net", inputs=["targets", "outputs"])
        graph(node(width=2, upstream=classes.reference())).run(train(loss), progress="none")
    loss = aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs", "targets"])
    assert graph(node(width=2, upstream=classes.reference())).run(train(loss), progress="none")
    with hint("write 'FEATURE_SET.COLUMN'"):
        trained(aa.AppliedLoss("mse", on="net", sample_weight="zzz.y"))
    weighted = features(y=X[:, :1], w=np.ones(24, "float32"))
    loss = aa.AppliedLoss("mse", on="net", sample_weight="data.w", inputs=["outputs", "data.y"])  # FEATURE_SET.COLUMN
    assert graph(node(upstream=weighted.reference())).run(train(loss), progress="none")


def test_classes_of_losses(hint: Any) -> None:
    classes = features(label=np.arange(24) % 2)

    def trained(width: int, *losses: Any, data: aa.FeatureSet = classes) -> Any:
        return graph(node(width=width, upstream=data.reference())).run(train(*losses), progress="none")

    with hint("use 'mse' for a number, 'binary_cross_entropy' for yes or no, or one output for each class"):
        trained(1, aa.AppliedLoss("cross_entropy", on="net"))
    assert trained(2, aa.AppliedLoss("cross_entropy", on="net"))
    with hint("write class_axis=1 for [batch, classes, ...], or leave it out for [batch, ..., classes]"):
        trained(2, aa.AppliedLoss(aa.Loss("cross_entropy", class_axis=5), on="net"))
    assert trained(2, aa.AppliedLoss(aa.Loss("cross_entropy", class_axis=1), on="net"))
    assert trained(2, aa.AppliedLoss(aa.Loss("cross_entropy"), on="net"))  # without class_axis
    with hint("cast each batch of a source, or build the graph on a copy with another dtype: feature_set.cast({})"):
        trained(1, aa.AppliedLoss("mse", on="net"))
    assert trained(1, aa.AppliedLoss("mse", on="net"), data=classes.cast({"label": "float32"}))
    probabilities = features(p=np.full((24, 2), 0.5, "float32"))
    with hint("use mask= or sample_weight= instead"):
        trained(2, aa.AppliedLoss(aa.Loss("cross_entropy", class_weights=[1.0, 2.0]), on="net"), data=probabilities)
    weighted = features(p=np.full((24, 2), 0.5, "float32"), w=np.ones(24, "float32"))
    losses = [
        aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs", "data.p"], sample_weight="data.w"),
        aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs", "data.p"], mask="data.w", label="masked"),
    ]
    assert trained(2, *losses, data=weighted)
    with hint("change the model's output_shape, or choose another column{}"):
        trained(3, aa.AppliedLoss("cross_entropy", on="net"), data=features())
    one_hot = np.eye(3, dtype="int64")[np.arange(24) % 3]
    with hint("pass probabilities as float, y.astype('float32'), or class indices, y.argmax(axis=-1)"):
        trained(3, aa.AppliedLoss("cross_entropy", on="net"), data=features(y=one_hot))
    for y in (one_hot.astype("float32"), one_hot.argmax(axis=-1)):
        assert trained(3, aa.AppliedLoss("cross_entropy", on="net"), data=features(y=y))
    model = aa.ModelNode("net", aa.SequentialMLP(output_shape=(1,)), DATA.reference())
    assert graph(model).run(train(), progress="none")


def test_groups_of_parameters(hint: Any) -> None:
    with hint("write a pattern of names, with * for any text: groups={'*bias': {'weight_decay': 0.0}}"):
        graph(optimizer=aa.Optimizer("adamw", groups={"zzz": {"weight_decay": 0.0}})).run(train(), progress="none")
    given = graph(optimizer=aa.Optimizer("adamw", groups={"*bias": {"weight_decay": 0.0}}))
    assert given.run(train(), progress="none")


def test_what_a_phase_needs_of_a_graph(hint: Any) -> None:
    with hint("set one on the graph, ModelGraph(..., optimizer='adam'), or on the node, or freeze it"):
        aa.ModelGraph([node()]).run(train(), progress="none")
    assert aa.ModelGraph([node()], optimizer="adam").run(train(), progress="none")
    assert aa.ModelGraph([node(optimizer="adam")]).run(train(), progress="none")
    model = aa.SequentialMLP(1)
    twins = [aa.ModelNode(label, model, DATA.reference()) for label in ("net", "twin")]
    both = graph(*twins)
    both.freeze("twin")
    with hint("freeze both, graph.freeze({}), or use a copy in {}: copy.deepcopy(model)"):
        both.run(train(), progress="none")
    apart = graph(twins[0], aa.ModelNode("twin", copy.deepcopy(model), DATA.reference()))
    apart.freeze("twin")
    assert apart.run(train(), progress="none")
    both.freeze("net")
    assert both.run(aa.EvalPhase("test", data="all"), progress="none")


class Learner:
    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full((len(features), 1), self.mean_, "float32")


def test_estimators_are_fitted_first(hint: Any) -> None:
    given = aa.ModelGraph([aa.ModelNode("net", Learner(), DATA.reference())])
    evaluate = aa.EvalPhase("test", data="all")
    with hint(
        "run a FitPhase first, FitPhase('fit', data=..., nodes={}); a loaded state or configuration has no estimators"
    ):
        given.run(evaluate, progress="none")
    given.run(aa.FitPhase("fit", data="all", nodes="net"), progress="none")
    assert given.run(evaluate, progress="none")


def test_inputs_of_nodes(hint: Any) -> None:
    columns = {"x": [[1.0], [1.0, 2.0]] * 12, "y": X[:, 0]}
    ragged = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], pad={"x": 0})
    with hint("pad all to one length: pad={{}: Pad(0, length={})}"):
        aa.ModelGraph([aa.ModelNode("net", Learner(), ragged.reference())]).build()
    padded = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], pad={"x": aa.Pad(0, length=2)})
    aa.ModelGraph([aa.ModelNode("net", Learner(), padded.reference())]).build()


def test_plans(hint: Any) -> None:
    experiment = aa.Experiment("test", graph(), progress="none")
    plan = experiment.plan(train())
    text = plan.to_json()
    with hint("pass experiment.plan(phase), or Plan.from_json(text)"):
        plan.diff("other")  # type: ignore[arg-type]
    assert plan.diff(experiment.plan(train())) == plan.diff(aa.Plan.from_json(text))
    with hint("pass the text from plan.to_json()"):
        aa.Plan.from_json("{")
    assert aa.Plan.from_json(plan.to_json()) and aa.Plan.from_json(text)
    with hint("pass the dict from plan.to_dict()"):
        aa.Plan.from_dict({})
    assert aa.Plan.from_dict(plan.to_dict())
    with hint("pass graph.visualize('svg', plan=plan)"):
        plan.to_html(picture="<svg/>")  # type: ignore[arg-type]
    picture = experiment.graph.visualize("svg", plan=plan)
    assert plan.to_html(picture=picture)
