"""Models of Flax and Equinox as they are, beside loops by hand with `jax.value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

from .conftest import chosen

for name in ("jax", "flax", "equinox"):
    pytest.importorskip(name)

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

from . import jax_models as models  # noqa: E402

STEPS, BATCH, RATE = 3, 4, 0.05
ROWS = STEPS * BATCH
RANDOM = np.random.default_rng(0)
IMAGES = {"images": RANDOM.standard_normal((ROWS, 8, 8, 3)).astype("float32")}
CHANNELS_FIRST = {"images": np.moveaxis(IMAGES["images"], -1, 1).copy()}
SERIES = {"series": RANDOM.standard_normal((ROWS, 6, 4)).astype("float32")}
TOKENS = {"input_ids": RANDOM.integers(0, 20, (ROWS, 6))}
TOKENS["attention_mask"] = np.where(np.arange(6) < RANDOM.integers(3, 7, (ROWS, 1)), 1, 0)
KINDS = RANDOM.integers(0, models.CLASSES, ROWS)

Inputs = dict[str, np.ndarray]


def loss_of(returned: Any, kinds: Any) -> Any:
    scores = returned["logits"] if isinstance(returned, dict) else returned
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), kinds[:, None], 1).mean()


def stepped(parameters: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, parameters, gradients)


def in_a_node(model: Any, inputs: Inputs) -> tuple[float, Any]:
    """The mean loss of a phase of three steps, and the model of the node."""
    data = aa.FeatureSet.from_dict("data", {**inputs, "kinds": KINDS}, list(inputs), ["kinds"])
    node = aa.ModelNode("net", model, {name: data.reference(name) for name in inputs})
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=RATE))
    several = "net.logits" in graph.build().shapes.outputs["net"]
    loss = aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs.logits" if several else "outputs", "targets"])
    phase = aa.TrainPhase("train", data="all", losses=loss, sampler=aa.SimpleSampler(BATCH), epochs=1)
    result = aa.Experiment("model", graph, progress="none").run_phase(phase)
    return float(result.loss[-1]), graph["net"].model


def batches(inputs: Inputs) -> list[tuple[dict[str, Any], Any]]:
    starts = range(0, ROWS, BATCH)
    return [({name: x[i : i + BATCH] for name, x in inputs.items()}, jnp.asarray(KINDS[i : i + BATCH])) for i in starts]


def same_leaves(first: Any, second: Any) -> None:
    for value, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


LINEN = {
    "LinenConvolutions": (models.LinenConvolutions, IMAGES),
    "LinenEncoder": (models.LinenEncoder, TOKENS),
    "LinenMixer": (models.LinenMixer, SERIES),
    "LinenRecurrent": (models.LinenRecurrent, SERIES),
}
NNX = {"NnxConvolutions": (models.NnxConvolutions, IMAGES), "NnxEncoder": (models.NnxEncoder, TOKENS)}
EQUINOX = {
    "EquinoxConvolutions": (models.EquinoxConvolutions, CHANNELS_FIRST),
    "EquinoxEncoder": (models.EquinoxEncoder, TOKENS),
    "EquinoxRecurrent": (models.EquinoxRecurrent, SERIES),
}


@pytest.mark.parametrize("name", chosen(LINEN, {"LinenEncoder"}))
def test_a_linen_module_trains_as_by_hand(name: str) -> None:
    from anyaccel_jax import Linen

    make, inputs = LINEN[name]
    module: Any = make()
    variables = module.init(jax.random.key(0), **{key: x[:2] for key, x in inputs.items()})
    parameters, others = variables["params"], {key: each for key, each in variables.items() if key != "params"}
    mode = {"train": True} if "Convolutions" in name else {}

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def loss(parameters: Any, others: Any, batch: Any, kinds: Any) -> Any:
        returned, changed = module.apply({"params": parameters, **others}, **batch, **mode, mutable=list(others))
        return loss_of(returned, kinds), changed

    losses = []
    for batch, kinds in batches(inputs):
        (value, others), gradients = loss(parameters, others, batch, kinds)
        parameters = stepped(parameters, gradients)
        losses.append(float(value))
    mean, model = in_a_node(Linen(module, variables), inputs)
    np.testing.assert_allclose(mean, np.mean(losses), rtol=1e-5)
    same_leaves(model.variables, {"params": parameters, **others})


@pytest.mark.parametrize("name", chosen(NNX, ()))
def test_an_nnx_module_trains_as_by_hand(name: str) -> None:
    make, inputs = NNX[name]
    module, own = make(nnx.Rngs(0)), make(nnx.Rngs(0))
    own.train()

    @nnx.jit
    @nnx.value_and_grad
    def loss(module: Any, batch: Any, kinds: Any) -> Any:
        return loss_of(module(**batch), kinds)

    losses = []
    for batch, kinds in batches(inputs):
        value, gradients = loss(own, batch, kinds)
        nnx.update(own, stepped(nnx.state(own, nnx.Param), gradients))
        losses.append(float(value))
    mean, _ = in_a_node(module, inputs)
    np.testing.assert_allclose(mean, np.mean(losses), rtol=1e-5)
    same_leaves(nnx.state(module), nnx.state(own))


def single(module: Any) -> Any:
    """In single precision, whatever the default of the process is."""
    return jax.tree.map(lambda leaf: leaf.astype("float32") if eqx.is_inexact_array(leaf) else leaf, module)


@pytest.mark.parametrize("name", chosen(EQUINOX, ()))
def test_an_equinox_module_trains_as_by_hand(name: str) -> None:
    make, inputs = EQUINOX[name]
    module = single(make(jax.random.key(0)))
    own = module

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(module: Any, batch: Any, kinds: Any) -> Any:
        return loss_of(jax.vmap(lambda sample: module(**sample))(batch), kinds)

    losses = []
    for batch, kinds in batches(inputs):
        value, gradients = loss(own, batch, kinds)
        own = eqx.apply_updates(own, jax.tree.map(lambda gradient: -RATE * gradient, gradients))
        losses.append(float(value))
    mean, model = in_a_node(module, inputs)
    np.testing.assert_allclose(mean, np.mean(losses), rtol=1e-5)
    same_leaves(eqx.filter(model.module, eqx.is_array), eqx.filter(own, eqx.is_array))


def test_there_are_at_least_eight() -> None:
    tables: list[dict[str, tuple[Callable[..., Any], Inputs]]] = [LINEN, NNX, EQUINOX]
    assert sum(map(len, tables)) >= 8
