"""Resolve: what is refused before anything moves."""

from __future__ import annotations

import pytest

from anyaccel import AppliedLoss, Experiment, ModelGraph, ModelNode, TrainPhase
from anyaccel.errors import GraphError
from anyaccel.numpy_backend import Dense, Sequential


def train(graph, *on):
    losses = [AppliedLoss("mse", on=label) for label in on]
    return Experiment("e", graph, progress="none").run_phase(TrainPhase("t", data="all", losses=losses))


@pytest.fixture
def fs(table):
    return table(y=((1,), "float32"))


def test_a_model_is_not_frozen_in_one_node_and_trained_in_another(fs):
    model = Dense(1)
    graph = ModelGraph([ModelNode(label, model, fs.reference()) for label in ("kept", "taught")], "sgd").freeze("kept")
    with pytest.raises(
        GraphError,
        match=r"^node 'taught' is trained, but shares its model with node 'kept', which is frozen\. "
        r"Hint: freeze both, graph\.freeze\('taught'\), or use a copy in 'kept': copy\.deepcopy\(model\)\.$",
    ):
        train(graph, "taught")


@pytest.mark.parametrize("takes_part", [True, False])
def test_a_frozen_node_does_not_share_a_layer_with_one_that_is_trained(takes_part, fs):
    shared = Dense(4)
    nodes = [
        ModelNode("kept", Sequential(shared), fs.reference()),
        ModelNode("taught", Sequential(shared, Dense(1)), "kept" if takes_part else fs.reference()),
    ]
    graph = ModelGraph(nodes, "sgd").freeze("kept").build()
    before = graph.state()["kept/parameters/0.weight"]
    with pytest.raises(GraphError, match=r"share the parameter '0\.weight', and 'kept' is frozen\. Hint: freeze both"):
        train(graph, "taught")
    assert (graph.state()["kept/parameters/0.weight"] == before).all()
