"""JAX's processes with divided parameters and with whole ones, beside a loop by hand over the same mesh, in turns.

    anyaccel run --replicas 2 tests/benchmarks/process_mesh.py

Prints microseconds a step of each way, and ratios within each round. By hand, a step is one function that `jax.jit`
compiles, whose arrays are divided by `NamedSharding`: called for each step, and as a `lax.scan` over all of them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import anyaccel as aa
from anyaccel_distributed import join
from anyaccel_distributed.replicated_training import GlobalBatchStep
from anyaccel_jax import SequentialMLP
from anyaccel_jax.sharding import JaxSharding

PLACE = join("jax")
ROUNDS, STEPS, BATCH = 5, 60, 256
SHAPES = [(64, 128), (256, 512)]


class ByHand:
    """A perceptron with Adam over one device of each process, each array divided along its longest axis.

    Args:
        parameters: as a model has them, by name.
        apply: the model as a function.
        x, y: all rows, in the order in which they are taken.
    """

    def __init__(
        self, parameters: dict[str, Any], apply: Callable[[Any, Any], Any], x: np.ndarray, y: np.ndarray
    ) -> None:
        self._mesh = Mesh(np.array(jax.devices()), ("replicas",))
        self._apply, self._rule = apply, optax.adam(1e-3)
        self._state = jax.tree.map(self._divided, (parameters, self._rule.init(parameters)))
        self._rows = self._put(x, None, "replicas"), self._put(y, None, "replicas")
        sharding = jax.tree.map(lambda array: array.sharding, self._state)
        self._step = jax.jit(self._one_step, out_shardings=(sharding, None))
        self._scan = jax.jit(
            lambda state, rows: jax.lax.scan(self._in_scan, state, rows), out_shardings=(sharding, None)
        )

    def _put(self, array: Any, *axes: str | None) -> Any:
        sharding = NamedSharding(self._mesh, PartitionSpec(*axes))
        return jax.make_array_from_callback(np.shape(array), sharding, lambda index: np.asarray(array)[index])

    def _divided(self, array: Any) -> Any:
        sizes = [size if size % len(jax.devices()) == 0 else 0 for size in np.shape(array)]
        if not any(sizes):
            return self._put(array)
        longest = sizes.index(max(sizes))
        return self._put(array, *[None] * longest, "replicas")

    def _in_scan(self, state: Any, rows: Any) -> Any:
        return self._one_step(state, *rows)

    def _one_step(self, state: Any, x: Any, y: Any) -> Any:
        parameters, slots = state
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean((self._apply(p, x) - y) ** 2))(parameters)
        updates, slots = self._rule.update(gradients, slots)
        return (optax.apply_updates(parameters, updates), slots), loss

    def steps(self) -> float:
        """Seconds of one call for each step."""
        batches = [tuple(column[i] for column in self._rows) for i in range(STEPS)]
        jax.block_until_ready(batches)
        began = time.perf_counter()
        for x, y in batches:
            self._state, _ = self._step(self._state, x, y)
            jax.block_until_ready(self._state)  # collectives of several calls at once would get in each other's way
        return time.perf_counter() - began

    def scan(self) -> float:
        """Seconds of one call for all."""
        began = time.perf_counter()
        self._state, losses = self._scan(self._state, self._rows)
        jax.block_until_ready(losses)
        return time.perf_counter() - began


def compare(width: int, hidden: int) -> None:
    """Measure one model."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(BATCH * STEPS, n)).astype(np.float32) for n in (width, 1))
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, features=["x"], target=["y"])
    model = SequentialMLP((1,), hidden_dim=hidden, n_layers=3)
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("adam", lr=1e-3), seed=3)
    graph.build()
    key = jax.random.key(0)
    parameters = {name: np.asarray(array) for name, array in model.parameters.items()}
    hand = ByHand(
        parameters,
        lambda p, x: model.apply(p, {}, (x,), True, key)[0][0],
        x.reshape(STEPS, BATCH, width),
        y.reshape(STEPS, BATCH, 1),
    )
    losses, sampler = [aa.AppliedLoss("mse", on="net")], aa.SimpleSampler(BATCH)

    def ours(sharding: str | None) -> float:
        phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=sampler, epochs=4, sharding=sharding)
        results = aa.Experiment(graph, progress="none").run_phase(phase)
        return min(epoch.seconds for epoch in results.epochs)

    def single_steps() -> float:
        made = GlobalBatchStep.__init__

        def one_by_one(self: GlobalBatchStep, *given: Any, **_: Any) -> None:
            made(self, *given, multi_step=False)

        GlobalBatchStep.__init__ = one_by_one  # type: ignore[method-assign]
        try:
            return ours("full")
        finally:
            GlobalBatchStep.__init__ = made  # type: ignore[method-assign]

    def program_of_each() -> float:
        JaxSharding.computes_together = False
        try:
            return ours(None)
        finally:
            JaxSharding.computes_together = True

    ways: dict[str, Callable[[], float]] = {
        "divided, several a call": lambda: ours("full"),
        "divided, one a call, as before": single_steps,
        "by hand, jitted steps": lambda: min(hand.steps(), hand.steps()),
        "by hand, a scan": lambda: min(hand.scan(), hand.scan()),
        "whole, several a call": lambda: ours(None),
        "whole, a program of each, as before": program_of_each,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # compiles
        way()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            seconds[name].append(way() / STEPS)
    if PLACE is None or PLACE.rank == 0:
        first = seconds["divided, several a call"]
        print(f"{width}-{hidden}-{hidden}-1, batch {BATCH}")
        for name, each in seconds.items():
            ratios = [a / b for a, b in zip(first, each, strict=True)]
            print(f"  {name}: {1e6 * statistics.median(each):.0f} us, ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    for shape in SHAPES:
        compare(*shape)
