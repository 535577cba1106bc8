"""Modes of nodes: which values they take, that they are saved, and what frameworks without own modes say."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.errors import ConfigError, GraphError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import BatchNorm, Dense, Sequential
from anyaccel.phases import TrainPhase


def table() -> FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(16, 3)), "y": draw.normal(size=(16, 1))}
    return FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in columns.items()}, ["x"], ["y"])


def run(graph: ModelGraph, **settings) -> object:
    losses = [AppliedLoss("mse", on="net")]
    phase = TrainPhase("t", data="all", losses=losses, sampler=SimpleSampler(4), **settings)
    return Experiment("e", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("value", ["asis", None, True, "eval"])
def test_unknown_modes_are_an_error(value):
    with pytest.raises(GraphError, match=r"node 'net': unknown modes=.*Available: 'train', 'as_is'\. Hint: ") as error:
        ModelNode("net", Dense(1), table().reference(), modes=value)
    assert error.value.hint == ("did you mean 'as_is'?" if value == "asis" else "write modes='train'")


def test_an_unknown_mode_of_freeze_is_an_error():
    graph = ModelGraph([ModelNode("net", Dense(1), table().reference())], "sgd")
    with pytest.raises(GraphError, match=r"freeze: unknown mode='training'\. Available: 'eval', 'train'") as error:
        graph.freeze("net", mode="training")
    assert error.value.hint == "did you mean 'train'?" and not graph.frozen


def test_modes_as_is_are_refused_where_models_have_no_modes_and_the_hints_work():
    graph = ModelGraph([ModelNode("net", Dense(1), table().reference(), modes="as_is")], "sgd")
    with pytest.raises(GraphError, match="node 'net': modes='as_is' is not supported for models of numpy") as error:
        run(graph)
    assert error.value.hint == "leave modes out, or freeze the node: graph.freeze('net')"
    data = table()
    both = ModelGraph(
        [ModelNode("body", Dense(3), data.reference(), modes="as_is"), ModelNode("net", Dense(1), "body")], "sgd"
    )
    assert run(both.freeze("body")).epochs


def test_modes_are_in_the_configuration():
    data = table()
    graph = ModelGraph([ModelNode("net", Dense(1), data.reference(), modes="as_is")], "sgd").freeze(mode="train")
    config = graph.get_config()
    again = ModelGraph.from_config(config, feature_sets=[data], models={"net": Dense(1)})
    assert (again["net"].modes, again["net"].frozen, again["net"].frozen_mode) == ("as_is", True, "train")
    config["nodes"][0]["modes"] = "asis"
    with pytest.raises(ConfigError, match=r"node 'net': unknown modes='asis'.*did you mean 'as_is'"):
        ModelGraph.from_config(config, feature_sets=[data], models={"net": Dense(1)})


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_frozen_node_has_the_statistics_of_the_batch_in_training_mode_alone(mode):
    data = table()
    frozen = Sequential(Dense(4), BatchNorm())
    graph = ModelGraph([ModelNode("body", frozen, data.reference()), ModelNode("net", Dense(1), "body")], "sgd")
    graph.freeze("body", mode=mode).build()
    parameters = {name: np.array(value) for name, value in frozen.parameters.items()}
    buffers = {name: np.array(value) for name, value in frozen.buffers.items()}
    run(graph)
    assert all((np.asarray(frozen.parameters[name]) == value).all() for name, value in parameters.items())
    moved = [name for name, value in buffers.items() if (np.asarray(frozen.buffers[name]) != value).any()]
    assert bool(moved) is (mode == "train")
