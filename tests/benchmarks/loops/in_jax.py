"""JAX with optax, by hand: what the framework gives who writes it all himself."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from loops.turns import Turn, second_of_two
from loops.workloads import Workload, workload

ADAM = optax.adam(1e-3)


def by_step(name: str) -> Turn:
    """A jitted step, called for each of the batches that lie on the device."""
    work = workload(name)
    x, y = stacked(work)
    batches = [(x[i], y[i]) for i in range(work.steps)]
    step = jax.jit(stepping(work), donate_argnums=0)
    state = started(work)

    def epoch() -> None:
        nonlocal state
        losses = []
        for batch in batches:
            state, loss = step(state, batch)
            losses.append(loss)
        jnp.stack(losses).mean().item()

    return second_of_two(epoch)


def by_scan(name: str) -> Turn:
    """A whole epoch in one call: a scan over the batches in order."""
    work = workload(name)
    batches = stacked(work)
    whole = jax.jit(lambda state, given: jax.lax.scan(stepping(work), state, given), donate_argnums=0)
    state = started(work)

    def epoch() -> None:
        nonlocal state
        state, losses = whole(state, batches)
        losses.mean().item()

    return second_of_two(epoch)


def stacked(work: Workload) -> tuple[jax.Array, jax.Array]:
    """Inputs and targets [steps, batch, ...] on the device."""
    x, y = (jax.device_put(one.reshape(work.steps, work.batch, *one.shape[1:])) for one in work.data())
    return x, y


def started(work: Workload) -> Any:
    """Parameters and the state of the optimizer."""
    random = np.random.default_rng(1)
    shapes = [(b, a) for a, b in itertools.pairwise((*work.features, *work.widths, work.outputs))]
    parameters = [
        (jnp.asarray(random.uniform(-1, 1, shape) / shape[1] ** 0.5, jnp.float32), jnp.zeros(shape[0]))
        for shape in shapes
    ]
    return parameters, ADAM.init(parameters)


def stepping(work: Workload) -> Any:
    """A function from (state, batch) to (state, loss)."""

    def loss_of(parameters: Any, x: jax.Array, y: jax.Array) -> Any:
        *hidden, (weight, bias) = parameters
        for w, b in hidden:
            x = jax.nn.relu(x @ w.T + b)
        out = x @ weight.T + bias
        if work.classes:
            return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()
        return jnp.mean((out - y) ** 2)

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        parameters, slots = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *batch)
        updates, slots = ADAM.update(gradients, slots, parameters)
        return (optax.apply_updates(parameters, updates), slots), loss

    return step
