"""Estimators beside networks in graphs: what is resolved, shaped, saved, and how nodes with them are called."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    Estimator,
    ModelGraph,
    ModelNode,
)
from anyaccel.data import FeatureSet
from anyaccel.errors import (
    GraphError,
    PhaseError,
    StateError,
)
from anyaccel.graph import Request, Resolution, resolve
from anyaccel.numpy_backend import Dense, SequentialMLP
from anyaccel.segment import TensorSpec


class Fitted:
    """Predicts the mean of what it was fitted to."""

    def __init__(self, mean: float | None = None) -> None:
        if mean is not None:
            self.mean_ = np.float32(mean)

    def fit(self, x, y=None):
        self.mean_ = np.mean(x if y is None else y, dtype="float32")
        return self

    def predict(self, x):
        return np.full(len(x), self.mean_, "float32")


@pytest.fixture
def estimator() -> type[Fitted]:
    return Fitted


@pytest.fixture
def table():
    """`table()`: a feature set with a feature [4] and a target."""
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(24, 4)).astype("float32"), "y": draw.normal(size=24).astype("float32")}
    return lambda: FeatureSet.from_dict("fs", columns, ["x"], ["y"])


@pytest.fixture
def mlp():
    """`mlp(3)`: a small model with three outputs."""
    return lambda *output_shape: SequentialMLP(output_shape or (1,), n_layers=1, hidden_dim=4)


def training(graph: ModelGraph, *losses: AppliedLoss, **settings: object) -> Resolution:
    return resolve(graph, Request("p", losses=losses, training=True, **settings))


def test_a_node_used_by_a_metric_only_is_not_trained_and_needs_no_optimizer(table, mlp, estimator):
    nodes = [
        ModelNode("a", mlp(3), table().reference(), optimizer="sgd"),
        ModelNode("b", mlp(), "a", optimizer="sgd"),
        ModelNode("c", mlp(), "a"),
        ModelNode("e", estimator(1.0), "a"),
    ]
    made = training(ModelGraph(nodes), AppliedLoss("mse", on="b"), wants=("c", "e"))
    assert {op.label: op.trainable for op in made.segments[0].operations} == {
        "a": True,
        "b": True,
        "c": False,
        "e": False,
    }
    assert [group.nodes for group in made.segments[0].groups] == [("a",), ("b",)]
    assert made.live == {"a", "b"}


def test_an_estimator_between_a_loss_and_a_trained_node_is_refused(table, mlp, estimator):
    nodes = [ModelNode("a", mlp(3), table().reference()), ModelNode("e", estimator(1.0), "a")]
    graph = ModelGraph(nodes, "sgd")
    with pytest.raises(GraphError) as caught:
        training(graph, AppliedLoss("mse", on="e"))
    assert "node 'e' is not differentiable and is between a loss and a, which is trained" in str(caught.value)
    assert "freeze the nodes before it" in str(caught.value)


def test_an_estimator_that_is_not_fitted_is_an_error(table, mlp, estimator):
    graph = ModelGraph([ModelNode("e", estimator(), table().reference())])
    with pytest.raises(PhaseError, match=r"phase 'p' needs 'e', an estimator that is not fitted. Hint: run a FitPhase"):
        resolve(graph, Request("p", wants=("e",)))


def test_a_node_is_named_after_the_wrapped_estimator(table):
    class Search:
        """It has an estimator, and is the model."""

        estimator = object()

        def fit(self, x):
            return self

        def predict(self, x):
            return x.mean(axis=1)

    node = ModelNode("a", Search(), table().reference())
    graph = ModelGraph([node])
    assert repr(node) == "ModelNode('a', Search)"
    graph.build()
    assert isinstance(node.model, Estimator) and repr(node) == "ModelNode('a', Search)"
    assert "Search" in graph.summary() and "object" not in graph.summary()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def test_an_estimator_is_a_model_only_if_nobody_owns_it(table, estimator):
    class Owned(Dense):
        """A module that happens to have `fit` and `predict`."""

        fit = predict = print

    fs = table()
    graph = ModelGraph([ModelNode("e", estimator(2.0), fs.reference()), ModelNode("m", Owned(2), fs.reference())])
    assert graph.shapes.specs["e"] == spec()
    assert graph.shapes.specs["m"] == spec(2)
    assert type(graph["m"].model) is Owned


def test_an_estimator_that_is_not_fitted_has_no_outputs(table, estimator, mlp):
    graph = ModelGraph([ModelNode("e", estimator(), table().reference())])
    assert graph.shapes.outputs["e"] == ()
    graph.add_node(ModelNode("b", mlp(), "e"))
    assert graph.shapes.outputs["b"] == graph.shapes.inputs["b"] == ()
    assert graph.shapes.unfitted == ("e",)
    graph["e"].model.fit([np.zeros((2, 1), "float32")], np.zeros(2, "float32"))
    assert graph.shapes.unfitted == () and graph.shapes.outputs["b"] == ("b",)


def test_a_state_of_what_an_estimator_has_still_to_feed(table, estimator, mlp):
    """The model behind an estimator that is not fitted may not be built yet, and is left out; nothing is guessed."""

    data = table()

    def make(*fitted):
        nodes = [ModelNode("e", estimator(*fitted), data.reference()), ModelNode("b", mlp(), "e")]
        return ModelGraph([*nodes, ModelNode("c", mlp(), data.reference())])

    state, whole = make().state(), make(2.0).state()
    assert {name.partition("/")[0] for name in state} == {"c", "seed"}
    assert {name.partition("/")[0] for name in whole} == {"b", "c", "seed"}
    assert make().load_state(state).shapes.unfitted == ("e",)
    with pytest.raises(StateError) as caught:
        make().load_state(whole)
    assert str(caught.value) == (
        "node 'b' is not built, because it depends on an estimator that is not fitted: e. "
        "Hint: put the fitted estimator into the graph first: states and configurations do not contain it."
    )
    assert make(2.0).load_state(whole).state().keys() == whole.keys()
