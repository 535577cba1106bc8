"""Targets of 64-bit integers, which JAX lacks unless they are enabled, with losses of one's own and named ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import linen

import anyaccel as aa
from anyaccel.errors import ColumnError
from anyaccel_jax.backend import JaxBackend

X = np.random.default_rng(0).normal(size=(32, 6)).astype("f4")
KINDS = (X[:, 0] > 0).astype("i8") + (X[:, 1] > 0)


def own(outputs: Any, targets: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, targets).mean()


def graph_of(targets: np.ndarray) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("d", {"x": X, "k": targets}, ["x"], ["k"])
    return aa.ModelGraph([aa.ModelNode("net", linen.Dense(3), data.reference())], aa.Optimizer("sgd", lr=0.1))


def trained(graph: aa.ModelGraph, loss: Any) -> np.ndarray:
    losses = [aa.AppliedLoss(loss, on="net")]
    sampler = aa.SimpleSampler(16)
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, epochs=2, accelerator="cpu")
    return graph.run(phase, progress="none").loss


def by_hand(parameters: Any) -> list[float]:
    """The losses of two epochs of SGD."""
    net, figures = linen.Dense(3), []

    def loss(values: Any, x: np.ndarray, targets: np.ndarray) -> Any:
        return own(net.apply({"params": values}, x), targets)

    for _ in range(2):
        total = 0.0
        for rows in (slice(0, 16), slice(16, 32)):
            value, gradients = jax.value_and_grad(loss)(parameters, X[rows], KINDS[rows].astype("i4"))
            parameters = jax.tree.map(lambda each, gradient: each - 0.1 * gradient, parameters, gradients)
            total += float(value) / 2
        figures.append(total)
    return figures


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint8"])
@pytest.mark.parametrize("loss", [own, "cross_entropy"])
def test_integer_targets_train_as_by_hand(dtype: str, loss: Any) -> None:
    graph = graph_of(KINDS.astype(dtype))
    graph.build()
    state = graph.state()
    expected = by_hand({name: state[f"net/parameters/{name}"] for name in ("kernel", "bias")})
    np.testing.assert_allclose(trained(graph, loss), expected, rtol=1e-5)


@pytest.mark.parametrize("targets", [KINDS, np.array(["ant", "bee", "cat"])[KINDS]])
def test_fit_takes_classes_with_a_loss_of_ones_own(targets: np.ndarray) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "accelerator": "cpu", "progress": "none"}
    losses = [
        aa.fit(linen.Dense(3), (X, targets), loss=loss, **settings).experiment.history[-1].loss
        for loss in (own, "cross_entropy")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("loss", [own, "cross_entropy"])
def test_integers_that_32_bits_do_not_hold_are_refused_instead_of_wrapped(loss: Any) -> None:
    far = KINDS + 2**40  # whose low 32 bits are legal classes
    hint = r"'k' is loaded as int32: row 0 holds 10995116\d+.*Hint: number .* np\.unique\(values, return_inverse=True\)"
    with pytest.raises(ColumnError, match=hint):
        trained(graph_of(far), loss)
    renumbered = np.unique(far, return_inverse=True)[1]
    np.testing.assert_array_equal(trained(graph_of(renumbered), loss), trained(graph_of(KINDS), loss))


def test_64_bit_integers_stay_where_they_are_enabled() -> None:
    assert JaxBackend().loaded_dtype("int64") == "int32"
    with jax.enable_x64(True):
        assert JaxBackend().loaded_dtype("int64") == "int64"
