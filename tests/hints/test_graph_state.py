"""Hints of graphs that are saved and loaded, of weights, drawings and placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def features(**columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    return aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))


DATA = features()


def node(label: str = "net", model: Any = None, data: aa.FeatureSet = DATA, **settings: Any) -> aa.ModelNode:
    return aa.ModelNode(label, model or aa.SequentialMLP(1, hidden_dim=3), data.reference(), **settings)


def built(*nodes: Any, optimizer: Any = "sgd") -> aa.ModelGraph:
    graph = aa.ModelGraph(list(nodes) or [node()], optimizer)
    graph.build()
    return graph


def train(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="all", losses=[LOSS], **settings)


class Learner:
    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full((len(features), 1), self.mean_, "float32")


class Centered:
    def fit(self, x: np.ndarray) -> None:
        self.mean_ = x.mean(0)

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x - self.mean_

    def inverse_transform(self, x: np.ndarray) -> np.ndarray:
        return x + self.mean_


class Doubled(Centered):
    def transform(self, x: np.ndarray) -> np.ndarray:
        return 2 * x


class Centered:
    def fit(self, x: np.ndarray) -> None:
        self.mean_ = x.mean(0)

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x - self.mean_

    def inverse_transform(self, x: np.ndarray) -> np.ndarray:
        return x + self.mean_


def test_transforms_of_the_data(hint: Any, tmp_path: Path) -> None:
    scaled = features().fit_transform(Centered(), "x", fit_on="all")
    graph = built(node(data=scaled))
    state, folder = graph.state(), tmp_path / "graph"
    graph.save(folder)
    with hint(
        "build the graph on data with the same transforms: new.transform_like(data); ModelGraph.load(folder) "
        "restores them"
    ):
        built().load_state(state)
    new = features()
    built(node(data=new.transform_like(scaled))).load_state(state)
    other = features().fit_transform(Doubled(), "x", fit_on="all")
    with hint(
        "pass data with the same transforms: new.transform_like(data), or let ModelGraph.load(folder) restore them"
    ):
        aa.ModelGraph.from_config(graph.get_config(), feature_sets=[other])
    assert aa.ModelGraph.from_config(graph.get_config(), feature_sets=[new.transform_like(scaled)])
    assert aa.ModelGraph.load(folder, allow=[Centered])


def test_states(hint: Any) -> None:
    graph = built()
    with hint("pass the result of state()"):
        graph.load_state([])  # type: ignore[arg-type]
    graph.load_state(graph.state())
    state = graph.state() | {"net/parameters/zzz": np.ones(3)}
    with hint("load it into the graph that it belongs to, or load the matching parts with strict=False"):
        graph.load_state(state)
    with pytest.warns(UserWarning, match="zzz"):
        graph.load_state(state, strict=False)
    renamed = {name.replace("weight", "kernel"): array for name, array in graph.state().items()}
    with hint("map the names: names={'IN THE STATE': 'IN THE MODEL'}, with None to skip an array"):
        graph.load_state(renamed, names={})
    graph.load_state(
        renamed,
        names={
            name.split("/")[-1].replace("weight", "kernel"): name.split("/")[-1]
            for name in graph.state()
            if "/parameters/" in name
        },
        change=lambda name, array: array,
    )


def test_configurations(hint: Any, tmp_path: Path) -> None:
    graph = built()
    config = graph.get_config()
    with hint("write feature_sets=[data]"):
        aa.ModelGraph.from_config(config, feature_sets=3)  # type: ignore[arg-type]
    data = features()
    assert aa.ModelGraph.from_config(config, feature_sets=[data])
    with hint("write allow=[MyModel]"):
        aa.ModelGraph.from_config(config, feature_sets=[data], allow=["MyModel"])  # type: ignore[list-item]

    class MyModel(aa.SequentialMLP):
        pass

    assert aa.ModelGraph.from_config(config, feature_sets=[data], allow=[MyModel])
    (entry,) = [part for part in config["nodes"] if part["label"] == "net"]
    named = dict(entry["model"])
    for wrong, text in ((None, "no model"), ({**named, "name": "Zzz"}, "another name")):
        entry["model"] = wrong
        assert text
        with hint("pass it: models={{}: ...}"):
            aa.ModelGraph.from_config(config, feature_sets=[data])
        assert aa.ModelGraph.from_config(config, feature_sets=[data], models={"net": aa.SequentialMLP(1)})
    entry["model"] = 3
    with hint("write {'framework': ..., 'name': ..., 'config': {...}}"):
        aa.ModelGraph.from_config(config, feature_sets=[data])
    entry["model"] = {key: named[key] for key in ("framework", "name", "config")}
    assert aa.ModelGraph.from_config(config, feature_sets=[data])


def test_files_of_weights(hint: Any, tmp_path: Path) -> None:
    graph, file = built(), tmp_path / "weights.safetensors"
    with hint("write 'weights.safetensors'"):
        graph.save_weights(None)  # type: ignore[arg-type]
    names = graph.save_weights(str(tmp_path / "weights.safetensors"))
    with hint("write names={'IN THE FILE': 'IN THE MODEL'}"):
        graph.load_weights(file, names=3)  # type: ignore[arg-type]
    assert graph.load_weights(file, names={names[0]: names[0]})
    with hint("write change=lambda name, array: array"):
        graph.load_weights(file, change=3)  # type: ignore[arg-type]
    assert graph.load_weights(file, change=lambda name, array: array)
    with hint("{}names={'IN THE FILE': 'IN THE MODEL'}"):
        graph.load_weights(file, names={"zzz": names[0]})
    assert graph.load_weights(file, names={names[0]: names[0]})


def arrays_of(graph: aa.ModelGraph) -> dict[str, np.ndarray]:
    return {name.split("/")[-1]: value for name, value in graph.state().items() if "/parameters/" in name}


def test_names_of_weights(hint: Any) -> None:
    graph = built()
    arrays = arrays_of(graph)
    with hint("map names={'IN THE FILE': 'IN THE MODEL'}, or load the matching parts with strict=False"):
        graph.load_weights({f"zzz{i}": array for i, array in enumerate(arrays.values())})
    assert graph.load_weights(
        {f"zzz{i}": array for i, array in enumerate(arrays.values())},
        names={f"zzz{i}": name for i, name in enumerate(arrays)},
        change=lambda name, array: array,
        strict=False,
    )
    with hint("names=lambda name: name.removeprefix({})"):
        graph.load_weights({f"module.{name}": array for name, array in arrays.items()})
    assert graph.load_weights(
        {f"module.{name}": array for name, array in arrays.items()}, names=lambda name: name.removeprefix("module.")
    )
    with hint("use strict=False to allow rounding"):
        graph.load_weights({name: array.astype("float64") + 1e-12 for name, array in arrays.items()})
    with pytest.warns(UserWarning, match="rounded"):
        assert graph.load_weights(
            {name: array.astype("float64") + 1e-12 for name, array in arrays.items()}, strict=False
        )


def test_axes_of_weights(hint: Any) -> None:
    graph = built()
    arrays = arrays_of(graph)
    square = next(name for name, array in arrays.items() if array.ndim == 2 and len(set(array.shape)) == 1)
    renamed = {name.replace(square, "other.kernel"): array for name, array in arrays.items()}
    names = {"other.kernel": square}
    with hint("specify the order: {}; or, if the order is the same, pass change=lambda name, array: array"):
        graph.load_weights(renamed, names=names)
    assert graph.load_weights(renamed, names=names, change=lambda name, array: array)


def test_weights_that_are_copied(hint: Any) -> None:
    source, target = aa.SequentialMLP(1, hidden_dim=3), aa.SequentialMLP(1, hidden_dim=3)
    built(node("a", source), node("b", target))
    with hint("write change=lambda name, array: array"):
        aa.copy_weights(source, target, change=3)  # type: ignore[arg-type]
    assert aa.copy_weights(source, target, change=lambda name, array: array)
    with hint("map names={TARGET: SOURCE}"):
        aa.copy_weights(source, target, names={"zzz": "yyy"})
    (first, *_) = (name.split("/")[-1] for name in built(node("a", source)).state() if "/parameters/" in name)
    assert aa.copy_weights(source, target, names={first: first})
    wide = aa.SequentialMLP(1, hidden_dim=5)
    built(node("wide", wide))
    with hint("pass change=lambda name, array: ... to transpose or convert it"):
        aa.copy_weights(wide, target)
    assert aa.copy_weights(wide, target, change=lambda name, array: np.resize(array, shapes_of(target)[name]))


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in model.parameters.items()}


def test_settings_of_estimators(hint: Any) -> None:
    def trained(**settings: Any) -> Any:
        graph = built(node("first", Learner(), **settings), aa.ModelNode("net", aa.SequentialMLP(1), "first"))
        graph.run(aa.FitPhase("fit", data="all", nodes="first"), progress="none")
        return graph.run(train(), progress="none")

    with hint("leave {} out"):
        trained(sharding="full")
    with hint("leave precision out"):
        trained(precision="bf16-mixed")
    assert trained().loss.size  # without sharding and precision


def test_drawings(hint: Any) -> None:
    graph = built()
    phase = train()
    with hint("graph.visualize('svg')"):
        graph.visualize("png")
    assert graph.visualize("svg")
    experiment = aa.Experiment("test", graph, progress="none")
    with hint("pass experiment.plan(phase)"):
        graph.visualize("svg", plan=3)  # type: ignore[arg-type]
    assert graph.visualize("svg", plan=experiment.plan(phase))
    other = built(node("other"))
    with hint("make a new plan with experiment.plan(phase)"):
        other.visualize("svg", plan=experiment.plan(phase))
    assert graph.visualize("svg", plan=experiment.plan(phase))


def test_devices_and_policies(hint: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy")  # commands ask no other plugin, which would import its framework
    graph = built()
    with hint("use one of these; `anyaccel devices` lists devices and `anyaccel plugins` the installed plugins"):
        graph.run(train(accelerator="cpu:7"), progress="none")
    assert cli("devices").exit_code == 0  # anyaccel devices
    assert (answer := cli("plugins")).exit_code == 0, answer.output  # anyaccel plugins
    assert graph.run(train(accelerator="cpu:0"), progress="none")
    with hint("install a plugin that has it, or leave policy= out"):
        graph.run(train(policy="nearest"), progress="none")
    assert graph.run(train(), progress="none")  # without policy=


def test_precision_of_nodes(hint: Any) -> None:
    with hint("leave remat out"):
        built(node(remat="all")).run(train(), progress="none")
    assert built(node()).run(train(), progress="none")  # without remat
    with hint("leave device_map, max_memory and offload out"):
        built(node(device_map="auto")).run(train(), progress="none")
    assert built(node()).run(train(), progress="none")  # without device_map, max_memory and offload
    with hint("leave {} out, or write device_map='auto'"):
        node(device_map={"": "cpu"}, max_memory={"cpu": 2**30})
    assert node(device_map={"": "cpu"}) and node(device_map="auto", max_memory={"cpu": 2**30})


def test_columns_of_losses(hint: Any) -> None:
    bare = aa.FeatureSet.from_dict("data", {"x": X}, ["x"])
    with hint("name target in the feature set, or columns in reference(target=[...])"):
        built(node(data=bare)).run(train(), progress="none")
    whole = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], target=["y"])
    named = aa.ModelNode("net", aa.SequentialMLP(1), whole.reference(target=["y"]))
    assert built(named).run(train(), progress="none")
    integers = aa.FeatureSet.from_dict(
        "data", {"a": np.ones((24, 2), int), "b": np.ones((24, 2), int), "y": X[:, :1]}, ["a", "b"], ["y"]
    )
    with hint(
        "pass each as a separate input, by the model's argument name: {{}}; or, if these are numbers rather than ids, "
        "convert them to floats: {}.cast({})"
    ):
        built(node(data=integers))
    assert built(node(data=integers.cast({"a": "float32", "b": "float32"})))
    with hint("leave batch_axis out, and move the axis in the model"):
        built(node(batch_axis=1))
    assert built(node())  # without batch_axis
    with hint("pass a flat list of upstreams, in the order of the model's inputs"):
        built(aa.ModelNode("net", aa.SequentialMLP(1), {"inputs": DATA.reference()}))
    assert built(aa.ModelNode("net", aa.SequentialMLP(1), [DATA.reference()]))
