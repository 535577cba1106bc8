"""Modes of JAX models: parts in evaluation mode train in training mode, and frozen nodes run in the mode asked for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import GraphError

ROWS, BATCH = 16, 4


@pytest.fixture
def nnx() -> ModuleType:
    return pytest.importorskip("flax.nnx")


def table() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, 1))}
    return aa.FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in columns.items()}, ["x"], ["y"])


def phase() -> aa.TrainPhase:
    losses = [aa.AppliedLoss("mse", on="net")]
    return aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), compile="off")


def body(nnx: ModuleType) -> Any:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs))


def by_hand(nnx: ModuleType, module: Any, generator: Any = None) -> None:
    """SGD over the module, or over what comes before it, in the modes that both are in."""
    data = table()
    trained = module if generator is None else generator
    x, y = (jnp.asarray(data.array(name).reshape(ROWS, -1)) for name in ("x", "y"))

    def loss(trained: Any, judge: Any, x: Any, y: Any) -> Any:
        return jnp.mean(((trained(x) if generator is None else judge(trained(x))) - y) ** 2)

    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        gradients = nnx.grad(loss)(trained, None if generator is None else module, x[rows], y[rows])
        parameters = nnx.state(trained, nnx.Param)
        nnx.update(trained, jax.tree.map(lambda value, grad: value - 0.1 * grad, parameters, gradients))


def assert_equal(nnx: ModuleType, first: Any, second: Any) -> None:
    for value, other in zip(*(jax.tree.leaves(nnx.state(each)) for each in (first, second)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_an_nnx_layer_in_evaluation_mode_trains_in_training_mode(nnx: ModuleType) -> None:
    model, reference = body(nnx), body(nnx)
    model.layers[1].eval()
    by_hand(nnx, reference)
    graph = aa.ModelGraph([aa.ModelNode("net", model, table().reference())], aa.Optimizer("sgd", lr=0.1))
    aa.Experiment("e", graph, progress="none").run_phase(phase())
    assert_equal(nnx, model, reference)
    assert model.layers[1].use_running_average, "the user's module stays in its mode"


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_frozen_nnx_module_runs_in_the_mode_asked_for(nnx: ModuleType, mode: str) -> None:
    def pair() -> tuple[Any, Any]:
        return nnx.Linear(3, 3, rngs=nnx.Rngs(1)), body(nnx)

    generator, critic = pair()
    own_generator, own_critic = pair()
    (own_critic.train if mode == "train" else own_critic.eval)()
    by_hand(nnx, own_critic, own_generator)
    nodes = [aa.ModelNode("generator", generator, table().reference()), aa.ModelNode("net", critic, "generator")]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)).freeze("net", mode=mode)
    aa.Experiment("e", graph, progress="none").run_phase(phase())
    assert_equal(nnx, generator, own_generator)
    assert_equal(nnx, critic, own_critic)


def test_modes_as_is_are_refused(nnx: ModuleType) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", body(nnx), table().reference(), modes="as_is")], "sgd")
    with pytest.raises(GraphError, match="modes='as_is' is not supported for models of jax"):
        aa.Experiment("e", graph, progress="none").run_phase(phase())
