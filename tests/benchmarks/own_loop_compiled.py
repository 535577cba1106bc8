"""Own loops of JAX and TensorFlow beside loops by hand: processor time of a step, in turns within one run.

python tests/benchmarks/own_loop_compiled.py --framework jax
python tests/benchmarks/own_loop_compiled.py --framework tensorflow
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np

import anyaccel as aa

os.environ.setdefault("JAX_PLATFORMS", "cpu")
WIDTHS = {"0.1 MB": (100, 500), "2 MB": (500, 200)}
"""Sizes of a model's gradients: its width, and the steps of an epoch."""
BATCH = 64
Epoch = Callable[[], Any]


def arrays(n_steps: int) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(n_steps * BATCH, 20)).astype("float32")
    return x, x.sum(1, keepdims=True)


class Batches:
    """Batches in memory."""

    def __init__(self, n_steps: int) -> None:
        x, y = arrays(n_steps)
        rows = [slice(i, i + BATCH) for i in range(0, len(x), BATCH)]
        self._batches = [(x[part], y[part]) for part in rows]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Any:
        return iter(self._batches)


def of_jax(width: int, n_steps: int, loop: Any | None) -> Epoch:
    import jax
    import jax.numpy as jnp
    import optax

    sizes, draw = (20, width, width, 1), np.random.default_rng(1)
    params = [jnp.asarray(draw.normal(size=size) / 10, "float32") for size in pairwise(sizes)]
    optimizer = optax.sgd(0.01)

    def squared_error(params: Any, x: Any, y: Any) -> Any:
        first, second, last = params
        return jnp.mean((jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last - y) ** 2)

    def step(state: Any, x: Any, y: Any) -> Any:
        params, averages = state
        value, grads = value_and_grad(params, x, y)
        updates, averages = optimizer.update(grads, averages, params)
        return (optax.apply_updates(params, updates), averages), value

    state, batches = (params, optimizer.init(params)), Batches(n_steps)
    if loop is None:
        value_and_grad, compiled = jax.value_and_grad(squared_error), jax.jit(step, donate_argnums=0)
    else:
        value_and_grad, compiled = loop.value_and_grad(squared_error), loop.compile(step)
        state, batches = loop.prepare(state, batches)

    def epoch() -> None:
        nonlocal state
        for x, y in batches:
            state, value = compiled(state, x, y)
        value.block_until_ready()

    return epoch


def of_tensorflow(width: int, n_steps: int, loop: Any | None) -> Epoch:
    import keras
    import tensorflow as tf

    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((20,)), *layers])
    optimizer = keras.optimizers.SGD(0.01)
    batches = tf.data.Dataset.from_tensor_slices(arrays(n_steps)).batch(BATCH)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 - traced
        return loss

    if loop is None:
        gradient, compiled = lambda tape, loss, variables: tape.gradient(loss, variables), tf.function(step)
    else:
        gradient, compiled = loop.gradient, loop.function(step)
        model, optimizer, batches = loop.prepare(model, optimizer, batches)

    def epoch() -> None:
        for x, y in batches:
            loss = compiled(x, y)
        float(loss)

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", choices=["jax", "tensorflow"], required=True)
    parser.add_argument("--builds", type=int, default=5, help="times to create all models: where memory lies matters")
    parser.add_argument("--rounds", type=int, default=4, help="epochs of each, in turns, after two that warm up")
    parser.add_argument("--steps", type=int, help="steps of an epoch")
    options = parser.parse_args()
    make = {"jax": of_jax, "tensorflow": of_tensorflow}[options.framework]
    for name, (width, n_steps) in WIDTHS.items():
        n_steps = options.steps or n_steps
        plain, ratios = [], []
        for _ in range(options.builds):
            with closing(aa.Loop("cpu", framework=options.framework)) as loop:
                epochs = make(width, n_steps, None), make(width, n_steps, loop)
                for turn in range(options.rounds + 2):
                    times = []
                    for epoch in epochs if turn % 2 else epochs[::-1]:
                        began = time.process_time()
                        epoch()
                        times.append(time.process_time() - began)
                    by_hand, by_loop = times if turn % 2 else times[::-1]
                    if turn > 1:
                        plain.append(by_hand)
                        ratios.append(by_loop / by_hand)
        about = {"framework": options.framework, "gradients": name, "steps": n_steps}
        micro = round(statistics.median(plain) * 1e6 / n_steps)
        print(json.dumps({**about, "microseconds by hand": micro, "Loop": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
