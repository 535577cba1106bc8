"""Contexts around a phase: guards and meshes are left, traced functions are refused, the rest is obeyed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")


class Net(nn.Module):
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1, dtype=self.dtype, param_dtype=self.dtype, kernel_init=nn.initializers.zeros)(x)


def trained(dtype: str = "float32", **settings: Any) -> Any:
    x = X.astype(dtype)
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": 2 * x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", Net(jnp.dtype(dtype)), data.reference())], aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(16), epochs=3, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def by_hand(dtype: str = "float32") -> list[float]:
    """Least squares with NumPy, from zeros, in four batches an epoch."""
    x, w, b, means = X.astype(dtype), np.zeros((6, 1), dtype), np.zeros(1, dtype), []
    for _ in range(3):
        losses = []
        for start in range(0, 64, 16):
            rows = x[start : start + 16]
            error = rows @ w + b - 2 * rows[:, :1]
            losses.append(float(np.mean(error**2)))
            w, b = w - 0.1 * 2 * rows.T @ error / 16, b - 0.1 * 2 * error.mean(axis=0)
        means.append(float(np.mean(losses)))
    return means


def mesh() -> Any:
    return jax.make_mesh((1,), ("a",))


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no context": nullcontext,
    "jax.transfer_guard": lambda: jax.transfer_guard("disallow"),
    "jax.transfer_guard, explicit copies too": lambda: jax.transfer_guard("disallow_explicit"),
    "jax.set_mesh": lambda: jax.set_mesh(mesh()),
    "debug_nans": lambda: jax.debug_nans(True),
    "no jit": lambda: jax.disable_jit(),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "64 bits": lambda: jax.enable_x64(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
}


@pytest.mark.parametrize("residency", ["resident", "streamed"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_phase_computes_as_a_loop_by_hand(context: str, residency: str) -> None:
    if context == "jax.set_mesh" and not hasattr(jax, "set_mesh"):
        pytest.skip("this JAX has no set_mesh")
    with CONTEXTS[context]():
        results = trained(residency=residency)
    assert np.allclose(results.loss, by_hand(), rtol=1e-5)
    told = [event.message for event in results.events if event.kind == "context"]
    name = context.partition(",")[0]
    assert len(told) == (name in ("jax.transfer_guard", "jax.set_mesh"))
    assert all(message.startswith(f"{name} around the phase is ignored") for message in told)


@pytest.mark.parametrize("residency", ["resident", "streamed"])
def test_64_bits_of_a_context_hold_in_the_threads_of_a_phase(residency: str) -> None:
    """They are of a thread alone: blocks of rows in another could not be float64, with the hint to switch that on."""
    with jax.enable_x64(True):
        results = trained("float64", residency=residency)
    assert np.allclose(results.loss, by_hand("float64"), rtol=1e-12)
    assert not jax.config.jax_enable_x64


def test_a_transfer_guard_of_the_process_holds_in_no_thread_of_a_phase() -> None:
    jax.config.update("jax_transfer_guard", "disallow_explicit")
    try:
        results = trained(residency="streamed")
    finally:
        jax.config.update("jax_transfer_guard", None)
    assert np.allclose(results.loss, by_hand(), rtol=1e-5)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
def test_a_phase_inside_a_function_that_is_transformed_is_refused(transform: Any) -> None:
    """It would train once, when the function is traced; `jit` said that a tracer has no `is_ready`."""

    def step(x: Any) -> Any:
        with pytest.raises(PhaseError, match=r"function that JAX transforms.*Hint: run it outside of the function"):
            trained()
        return x

    transform(step)(jnp.ones(2) if transform is jax.vmap else 1.0)
    assert np.allclose(trained().loss, by_hand(), rtol=1e-5)
