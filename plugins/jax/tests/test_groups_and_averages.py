"""Groups of parameters beside `optax.multi_transform`, and averages of weights beside `optax.incremental_update`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel_jax import Function

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = np.tanh(X[:, :1] - X[:, 1:2]).astype("float32")
BATCH, EPOCHS = 8, 3
LOSSES = [aa.AppliedLoss("mse", on="net")]


def parameters() -> Any:
    draw = np.random.default_rng(1)
    shapes = {"w": (4, 8), "bias": (8,), "v": (8, 1)}
    return {name: jnp.asarray(draw.normal(size=shape) / 3, "float32") for name, shape in shapes.items()}


def mlp(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["bias"]) @ params["v"]


def by_hand(tx: Any, optax: Any) -> list[Any]:
    """The parameters after each step."""
    params, all_params = parameters(), []
    slots = tx.init(params)
    for i in [*range(0, 32, BATCH)] * EPOCHS:
        grads = jax.grad(lambda p, i=i: jnp.mean((mlp(p, X[i : i + BATCH]) - Y[i : i + BATCH]) ** 2))(params)
        updates, slots = tx.update(grads, slots, params)
        params = optax.apply_updates(params, updates)
        all_params.append(params)
    return all_params


def train(optimizer: aa.Optimizer, callbacks: Any = (), compile_mode: str = "auto") -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    model = Function(mlp, parameters())
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer)
    settings: Any = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, "callbacks": callbacks}
    phase = aa.TrainPhase("t", data=data, losses=LOSSES, compile=compile_mode, **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    return graph, model


def assert_close(actual: Any, expected: Any, atol: float = 1e-6) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=atol, err_msg=name)


@pytest.mark.parametrize("compile_mode", ["auto", "off"])
def test_groups_by_name_and_predicate_are_those_of_optax(compile_mode: str, optax: Any) -> None:
    groups = {"bias": {"weight_decay": 0.0}, (lambda name, w: w.shape[-1] == 1): {"lr": 0.001}}
    spec = aa.Optimizer("adamw", lr=0.05, weight_decay=0.3, groups=groups)
    rules = {
        "decayed": optax.adamw(0.05, weight_decay=0.3),
        "plain": optax.adamw(0.05, weight_decay=0.0),
        "slow": optax.adamw(0.001, weight_decay=0.3),
    }
    tx = optax.multi_transform(rules, {"w": "decayed", "bias": "plain", "v": "slow"})
    _, model = train(spec, compile_mode=compile_mode)
    assert_close(model.tree, by_hand(tx, optax)[-1], 1e-5)  # Optax corrects the bias of its moments in float32


def test_averages_of_steps_and_of_epochs(optax: Any) -> None:
    moving, mean = aa.WeightAveraging(0.8), aa.WeightAveraging()
    graph, model = train(aa.Optimizer("sgd", lr=0.1), [moving, mean])
    steps = by_hand(optax.sgd(0.1), optax)
    average = steps[0]
    for params in steps[1:]:
        average = optax.incremental_update(params, average, 0.2)
    with moving.applied(graph):
        assert_close(model.tree, average)
    ends = steps[3::4]
    with mean.applied(graph):
        assert_close(model.tree, jax.tree.map(lambda *values: sum(values) / len(values), *ends))
    assert_close(model.tree, steps[-1])
