"""Serialization: everything to plain data and back, and no configuration can run code."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from anyaccel import (
    Accelerator,
    AppliedLoss,
    ConcatNode,
    EvalPhase,
    Experiment,
    Metric,
    ModelGraph,
    ModelNode,
    Optimizer,
    Schedule,
    SimpleSampler,
    TrainPhase,
)
from anyaccel.errors import AnyaccelError, ConfigError, FrameworkError, GraphError
from anyaccel.numpy_backend import Dense, SequentialCNN
from anyaccel.phases import Phase


def through_json(config: object) -> object:
    return json.loads(json.dumps(config, allow_nan=False))


class Small(Dense):
    """A model of the test's own with a configuration."""

    def get_config(self):
        return {"features": self.features, "bias": self.bias}


@pytest.fixture
def graph(table, mlp, parts):
    """A graph with one of everything a configuration can hold."""
    one, two = table("one"), table("two", y=None)
    return ModelGraph(
        [
            ModelNode("a", mlp(3, dropout=0.5), one.reference(), Accelerator("cuda:1", pin_memory=True)),
            ModelNode("b", mlp(2), ["a", two.reference()], framework="numpy", outputs=["y"]),
            ConcatNode("c", ["b.y", "a"], 0),
            ModelNode(
                "d",
                mlp(),
                "c",
                optimizer=Optimizer("adamw", 0.1, betas=(0.8, 0.99), schedule=Schedule("cosine", steps=9, warmup=2)),
            ),
        ],
        Optimizer("momentum", lr=0.25, clip_norm=2.0, nesterov=True),
        "everything",
        seed=7,
    ).freeze("b")


def read(config: object, graph: ModelGraph, **given: object) -> ModelGraph:
    sets = [up.feature_set for node in graph.nodes.values() for up in node.upstreams if not isinstance(up, str)]
    return ModelGraph.from_config(config, feature_sets=sets, **given)


# -- there and back ----------------------------------------------------------------------------------------------------


def test_a_graph_round_trips(graph):
    config = through_json(graph.get_config())
    again = read(config, graph)
    assert through_json(again.get_config()) == config
    assert (again.label, again.seed, again.optimizer) == ("everything", 7, graph.optimizer)
    assert again.frozen == ("b",)
    assert again["a"].accelerator == Accelerator("cuda:1", pin_memory=True)
    assert again["a"].accelerator.spec == "cuda:1"
    assert again["b"].outputs == ("y",) and again["b"].framework == "numpy"
    assert again["c"].axis == 0 and again["c"].upstreams == ("b.y", "a")
    assert again["d"].optimizer == graph["d"].optimizer


def test_a_graph_from_a_configuration_computes_the_same(graph):
    first, again = graph.state(), read(through_json(graph.get_config()), graph).state()
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_a_convolutional_model_round_trips(table):
    model = SequentialCNN((2, 2), (3,), 5, 3, "tanh", 0.25, "float64")
    graph = ModelGraph([ModelNode("a", model, table(x=((2, 6, 7), "float64")).reference())], seed=3)
    config = through_json(graph.get_config())
    again = read(config, graph)
    assert type(again["a"].model) is SequentialCNN
    assert again["a"].model.get_config() == model.get_config()
    first, second = graph.state(), again.state()
    assert "a/parameters/convs.0.weight" in first and first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "accelerator",
    [Accelerator("cpu"), Accelerator("cuda"), Accelerator("gpu:3", pin_memory=True), Accelerator("rocm:1"), None],
)
def test_an_accelerator_is_kept_whole_by_nodes_and_phases(accelerator, table, mlp):
    """pin_memory was dropped on the way."""
    graph = ModelGraph([ModelNode("a", mlp(), table().reference(), accelerator)])
    phase = EvalPhase("e", data="all", accelerator=accelerator, final_device=accelerator)
    again = [
        read(through_json(graph.get_config()), graph)["a"].accelerator,
        Phase.from_config(through_json(phase.get_config())).accelerator,
        Phase.from_config(through_json(phase.get_config())).final_device,
    ]
    for one in again:
        assert one == accelerator
        assert one is None or (one.spec, one.vendor) == (accelerator.spec, accelerator.vendor)


def test_nodes_that_share_a_model_share_it_afterwards(table, mlp):
    fs, model, own = table(), mlp(4), Optimizer("sgd")
    nodes = [ModelNode("a", model, fs.reference()), ModelNode("b", mlp(4), "a"), ModelNode("c", model, "b")]
    for node in nodes:
        node.optimizer = own
    graph = ModelGraph(nodes)
    config = through_json(graph.get_config())
    again = read(config, graph)
    assert again["a"].model is again["c"].model is not again["b"].model
    assert again.get_config() == graph.get_config()
    mine = mlp(4)
    assert read(config, graph, models={"a": mine})["c"].model is mine
    loss = AppliedLoss("mse", on="c", inputs=["outputs", "fs.x"])
    Experiment("e", again).run_phase(TrainPhase("t", data="all", losses=[loss]))


def test_sharing_with_a_node_that_does_not_come_before_is_refused(table, mlp):
    fs, model = table(), mlp(4)
    graph = ModelGraph([ModelNode("a", model, fs.reference()), ModelNode("b", model, "a")])
    config = graph.get_config()
    config["nodes"].reverse()
    with pytest.raises(ConfigError, match=r"node 'b' shares the model of 'a', which is not a node before it\."):
        read(config, graph)


def test_a_train_phase_round_trips():
    phase = TrainPhase(
        "train",
        data={"one": "train", "two": "all"},
        losses=[AppliedLoss("mse", on="d", inputs=["outputs", "one.y"], weight=0.5, label="main")],
        sampler=SimpleSampler(16, shuffle=True, drop_last=True, seed=3),
        epochs=5,
        validation=EvalPhase("val", data="val", metrics=["rmse", Metric("r2", on="d", label="fit")], batch_size=8),
        validate_every=2,
        accelerator="cuda:0",
        strict=True,
        policy="spread",
        final_device="cpu",
    )
    config = through_json(phase.get_config())
    again = Phase.from_config(config)
    assert type(again) is TrainPhase
    assert through_json(again.get_config()) == config
    assert (again.sampler, again.losses, again.epochs) == (phase.sampler, phase.losses, 5)
    assert [metric.label for metric in again.validation.metrics] == ["rmse", "fit"]
    assert (again.strict, again.policy, str(again.final_device)) == (True, "spread", "cpu:0")


@pytest.mark.parametrize(
    "phase",
    [
        EvalPhase("e", data="all", metrics=["accuracy"], outputs=["a", "b"], batch_size=7),
        EvalPhase("e", data="all", losses=[AppliedLoss("mae", on="a")], outputs=None),
        EvalPhase("e", data="all", outputs=[]),
        TrainPhase("t", data="all", losses=[AppliedLoss("ce", on="a")], validation="val", epochs=0),
    ],
)
def test_every_phase_round_trips(phase):
    config = through_json(phase.get_config())
    again = Phase.from_config(config)
    assert type(again) is type(phase)
    assert through_json(again.get_config()) == config


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_sampler_round_trips(shuffle):
    sampler = SimpleSampler(8, shuffle=shuffle, drop_last=not shuffle, seed=2**40)
    assert SimpleSampler.from_config(through_json(sampler.get_config())) == sampler


def test_an_experiment_round_trips(graph, table):
    train = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="d", inputs=["outputs", "one.y"])])
    first = Experiment("e", graph, [train, EvalPhase("v", data="all", outputs=["d"])])
    config = through_json(first.get_config())
    again = Experiment.from_config(config, feature_sets=[table("one"), table("two", y=None)])
    assert through_json(again.get_config()) == config
    for one in (first, again):
        one.graph["a"].accelerator = None
    predicted = [one.run()[1].prediction("d") for one in (first, again)]
    assert np.array_equal(*predicted)


def test_data_by_their_objects_are_named_where_they_have_a_name(table):
    fs = table()
    train = fs.split_random({"train": 0.5, "test": 0.5})["train"]
    assert EvalPhase("e", data=train).get_config()["data"] == {"fs": "train"}
    with pytest.raises(ConfigError, match=r"phase 'e' cannot be saved: its data have no name. Hint: register a split"):
        EvalPhase("e", data={"fs": train.feature_set.view()}).get_config()


# -- models that a configuration cannot make ---------------------------------------------------------------------------


def test_a_model_without_a_configuration_must_be_given(table, mlp):
    graph = ModelGraph([ModelNode("a", Dense(1), table().reference())])
    config = through_json(graph.get_config())
    assert config["nodes"][0]["model"] is None
    with pytest.raises(
        ConfigError, match=r"the configuration does not have the model of node 'a'. Hint: pass it: models="
    ):
        read(config, graph)
    model = Dense(1)
    assert read(config, graph, models={"a": model})["a"].model is model


def test_a_class_with_a_configuration_must_be_allowed(table):
    graph = ModelGraph([ModelNode("a", Small(3, bias=False), table().reference())])
    config = through_json(graph.get_config())
    assert config["nodes"][0]["model"]["config"] == {"features": 3, "bias": False}
    with pytest.raises(ConfigError) as caught:
        read(config, graph)
    message = str(caught.value)
    assert (
        f"the configuration names the class '{__name__}:Small', which is not registered; nothing was imported"
        in message
    )
    assert (
        "nothing was imported. Hint: pass the model: models={'a': ...}; or, if you trust the class, import it and pass "
        "allow=[Small]"
    ) in message
    model = read(config, graph, allow=[Dense, Small])["a"].model
    assert (type(model), model.features, model.bias) == (Small, 3, False)


def test_a_class_of_the_same_name_from_elsewhere_is_not_the_one_that_was_named(table):
    graph = ModelGraph([ModelNode("a", Small(3), table().reference())])
    other = type("Small", (Dense,), {"__module__": "elsewhere"})
    with pytest.raises(ConfigError, match=r"which is not registered; nothing was imported. Available: elsewhere:Small"):
        read(through_json(graph.get_config()), graph, allow=[other])


def test_a_given_model_wins_over_the_configuration(graph, mlp):
    mine = mlp(3)
    assert read(through_json(graph.get_config()), graph, models={"a": mine})["a"].model is mine


def test_a_model_for_an_unknown_node_is_an_error(graph, mlp):
    with pytest.raises(
        GraphError, match=r"graph 'everything' has no node 'aa'. Available: a, b, c, d. Hint: did you mean"
    ):
        read(through_json(graph.get_config()), graph, models={"aa": mlp()})


@pytest.mark.parametrize(
    "name", ["evil_module:Net", "evil_module:Net.__init__", "os:system", "evil_module", ":", "", 7, None]
)
def test_a_class_that_is_not_allowed_is_refused_before_anything_is_imported(name, graph, tmp_path, monkeypatch):
    tmp_path.joinpath("evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = through_json(graph.get_config())
    config["nodes"][0]["model"] = {"class": name, "config": {}}
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=r"node 'a': the configuration names the class .* nothing was imported"):
        read(config, graph, allow=[Small])
    assert "evil_module" not in sys.modules and set(sys.modules) == before


def test_a_name_in_a_configuration_reaches_nothing_but_registered_models(graph):
    config = through_json(graph.get_config())
    for name in ("__class__", "SequentialMLP.__init__", "os.system", "Dense"):
        config["nodes"][0]["model"] = {"framework": "numpy", "name": name, "config": {}}
        with pytest.raises(ConfigError, match=r"numpy has no model called .* Available: SequentialMLP"):
            read(config, graph)


# -- malformed ---------------------------------------------------------------------------------------------------------

MODEL = {"framework": "numpy", "name": "SequentialMLP", "config": {}}
NODE = {"type": "model", "label": "a", "upstreams": [{"feature_set": "fs"}], "model": MODEL}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"None is not the configuration of a graph"),
        ([], r"\[\] is not the configuration of a graph"),
        ({}, r"the configuration of a graph lacks nodes"),
        ({"nodes": None}, r"nodes of a graph must be a list, got None"),
        ({"nodes": {}}, r"nodes of a graph must be a list, got {}"),
        (
            {"nodes": [], "extra": 1},
            r"the configuration of a graph has unknown keys: extra. Available: data, label, nodes, optimizer, seed",
        ),
        ({"nodes": [None]}, r"unknown type of a node: None. Available: model, concat"),
        ({"nodes": [{"type": "lambda"}]}, r"unknown type of a node: 'lambda'"),
        ({"nodes": [{"type": "model"}]}, r"the configuration of a ModelNode lacks label, upstreams"),
        ({"nodes": [{"type": "concat", "label": "c"}]}, r"the configuration of a ConcatNode lacks axis, upstreams"),
        ({"nodes": [{**NODE, "code": "x"}]}, r"the configuration of a ModelNode has unknown keys: code"),
        ({"nodes": [{**NODE, "upstreams": "fs"}]}, r"upstreams of node 'a' must be a list, got 'fs'"),
        ({"nodes": [{**NODE, "upstreams": [3]}]}, r"3 is not the configuration of a reference"),
        (
            {"nodes": [{**NODE, "upstreams": [{"feature_set": "x"}]}]},
            r"names the feature set 'x', which is not in "
            r"feature_sets",
        ),
        ({"nodes": [{**NODE, "accelerator": "gpu"}]}, r"'gpu' is not the configuration of an accelerator"),
        ({"nodes": [{**NODE, "optimizer": "adam"}]}, r"'adam' is not the configuration of an optimizer"),
        ({"nodes": [{**NODE, "model": "x"}]}, r"node 'a': 'x' is not the configuration of a model. Hint: write"),
        ({"nodes": [{**NODE, "model": {**MODEL, "name": []}}]}, r"numpy has no model called '\[\]'"),
        ({"nodes": [{**NODE, "model": {**MODEL, "config": []}}]}, r"\[\] is not the configuration of a model"),
        (
            {"nodes": [{**NODE, "model": {**MODEL, "config": {"x": 1}}}]},
            r"node 'a': its model does not accept its configuration.*Hint: pass the model: models=\{'a': ...\}",
        ),
        (
            {"nodes": [{**NODE, "model": {"shared_with": "z"}}]},
            r"node 'a' shares the model of 'z', which is not a node",
        ),
        ({"nodes": [{**NODE, "model": {"shared_with": {}}}]}, r"node 'a' shares the model of {}, which is not a node"),
    ],
)
def test_a_malformed_graph_is_an_error_with_the_reason(config, message, table):
    with pytest.raises(ConfigError, match=message):
        ModelGraph.from_config(config, feature_sets=[table()])


@pytest.mark.parametrize(
    "change",
    [
        {"label": ["a"]},
        {"label": None},
        {"label": "a.b"},
        {"framework": []},
        {"framework": "jax"},
        {"outputs": "y"},
        {"outputs": 3},
        {"accelerator": {"device": "gpu:x"}},
        {"accelerator": {"device": "cpu", "pin_memory": "yes"}},
        {"optimizer": {"name": "adamz"}},
        {"optimizer": {"name": "adam", "lr": "fast"}},
        {"optimizer": {"schedule": {"name": "cosine"}}},
        {"model": {**MODEL, "framework": "torch"}},
        {"model": {**MODEL, "config": {"n_layers": -1}}},
    ],
)
def test_a_malformed_node_is_an_error_of_anyaccel(change, table):
    with pytest.raises(AnyaccelError):
        ModelGraph.from_config({"nodes": [{**NODE, **change}]}, feature_sets=[table()]).build()


@pytest.mark.parametrize("seed", ["0", 1.5, None, 2**70])
def test_a_malformed_seed_is_refused(seed, table):
    with pytest.raises(GraphError, match=r"is not an int of 64 bits"):
        ModelGraph.from_config({"nodes": [NODE], "seed": seed}, feature_sets=[table()])


def test_a_missing_framework_is_an_error_with_the_install_command(table):
    config = {"nodes": [{**NODE, "model": {**MODEL, "framework": "torch"}}]}
    with pytest.raises(
        FrameworkError, match=r"no plugin for the framework 'torch' is installed.*pip install \S*plugins/torch"
    ):
        ModelGraph.from_config(config, feature_sets=[table()])


def test_feature_sets_may_be_given_by_a_generator_or_by_name(table):
    for given in ((each for each in [table()]), {"fs": table()}, (table(),)):
        assert list(ModelGraph.from_config({"nodes": [NODE]}, feature_sets=given).nodes) == [NODE["label"]]


@pytest.mark.parametrize("given", ["fs", 3, None, [1]])
def test_what_is_no_feature_set_is_refused(given):
    with pytest.raises(ConfigError, match=r"feature_sets=.* are not feature sets. Hint: write feature_sets=\[data\]"):
        ModelGraph.from_config({"nodes": [NODE]}, feature_sets=given)


def test_two_feature_sets_of_one_label_are_refused(table):
    with pytest.raises(ConfigError, match=r"two feature sets are called 'fs'. Hint: give each a unique label"):
        ModelGraph.from_config({"nodes": [NODE]}, feature_sets=[table(), table()])


def test_a_framework_s_own_optimizer_has_no_configuration(table, mlp):
    own = type("Own", (), {})
    for graph in (
        ModelGraph([ModelNode("a", mlp(), table().reference())], own),
        ModelGraph([ModelNode("a", mlp(), table().reference(), optimizer=own)]),
    ):
        with pytest.raises(ConfigError, match=r"optimizer 'Own' belongs to a framework and has no configuration"):
            graph.get_config()


@pytest.mark.parametrize("config", [None, {}, {"label": "e"}, {"graph": {}, "more": 1}])
def test_a_malformed_experiment_is_an_error_with_its_keys(config):
    with pytest.raises(
        ConfigError, match=r"is not the configuration of an experiment. Available: keys label, graph and phases"
    ):
        Experiment.from_config(config)


@pytest.mark.parametrize("phases", [None, "train", {"type": "train"}])
def test_phases_of_an_experiment_are_a_list(phases, table):
    with pytest.raises(ConfigError, match=r"phases must be a list of phase configurations"):
        Experiment.from_config({"graph": {"nodes": [NODE]}, "phases": phases}, feature_sets=[table()])


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"type": "sing"},
        {"type": "train"},
        {"type": "eval", "label": "e"},
        {"type": "eval", "label": "e", "data": "all", "callbacks_": []},
        {"type": "eval", "label": "e", "data": "all", "metrics": [{"measure": "os.system"}]},
        {"type": "eval", "label": "e", "data": "all", "accelerator": "gpu"},
        {"type": "train", "label": "e", "data": "all", "losses": [{"on": "a"}], "sampler": {}},
    ],
)
def test_a_malformed_phase_is_an_error_of_anyaccel(config):
    with pytest.raises(AnyaccelError):
        Phase.from_config(config)
