"""Losses of one phase on 1, 2, 4 and 8 virtual CPUs, as JSON on standard output; run in a process of its own.

Arguments: epochs of 7 steps, the last of 11 rows; with more than one, all is told.
"""

import json
import os
import sys

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU

import jax
import jax.numpy as jnp
import numpy as np
import optax

import anyaccel as aa
from anyaccel_jax import SequentialMLP

EPOCHS = int(sys.argv[1])
X = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
Y = (2 * X[:, :1] + np.sin(X[:, 1:2])).astype(np.float32)


def graph_of(data: aa.FeatureSet) -> aa.ModelGraph:
    node = aa.ModelNode("net", SequentialMLP((1,), hidden_dim=16), data.reference())
    return aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01), seed=3)


def trained(**settings) -> list[float]:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, epochs=EPOCHS, **settings)
    results = aa.Experiment(graph_of(data), progress="none").run_phase(phase)
    return [epoch.loss for epoch in results.epochs]


def scaled(**settings) -> dict[str, list[float]]:
    """Losses of steps, loss scales, and what is left, in fp16-mixed; one row is more than float16 holds."""
    spoiled, heard = X.copy(), []
    spoiled[20] = 1e6

    class Heard(aa.Callback):
        def step_end(self, run):
            heard.append((*run.step_losses().values(), run.loss_scale.scale))

    scale = aa.LossScale(initial=1024.0, growth_interval=2)
    settings |= {"precision": "fp16-mixed", "loss_scale": scale, "on_nan": "ignore", "callbacks": [Heard()]}
    data = aa.FeatureSet.from_dict("d", {"x": spoiled, "y": Y}, ["x"], ["y"])
    graph = aa.ModelGraph(
        [aa.ModelNode("net", SequentialMLP((1,), hidden_dim=16), data.reference())],
        aa.Optimizer("adam", lr=0.01),
        seed=3,
    )
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=16, epochs=1, **settings)
    aa.Experiment(graph, progress="none").run_phase(phase)
    values = [float(value) for _, array in sorted(graph.state().items()) for value in np.ravel(array)]
    return {
        "losses": [loss for loss, _ in heard],
        "scales": [scale for _, scale in heard],
        "steps": [graph.optimizer_states["net"].step],
        "values": values,
    }


def double(**settings) -> list[float]:
    """Losses of a model in float64 whose classes have weights, and its values."""
    columns = {"x": X.astype(np.float64), "y": (X[:, :2] > 0).sum(1)}
    data = aa.FeatureSet.from_dict("d", columns, ["x"], ["y"])
    losses = [aa.AppliedLoss(aa.Loss("cross_entropy", class_weights=[0.1, 0.3, 0.7]), on="net")]
    graph = aa.ModelGraph(
        [aa.ModelNode("net", SequentialMLP((3,), dtype="float64"), data.reference())],
        aa.Optimizer("adam", lr=0.01),
        seed=3,
    )
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=16, epochs=1, **settings)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return [results.loss[0], *(float(value) for _, array in sorted(graph.state().items()) for value in np.ravel(array))]


def by_hand(n: int) -> list[float]:
    """`jax.sharding` by hand: one jitted step, parameters on all devices, each with a share of the batch."""
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    graph = graph_of(data)
    graph.build()
    model = graph["net"].model
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("rows",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    parameters = jax.device_put(dict(model.parameters), everywhere)
    rule = optax.adam(0.01)
    state = jax.device_put(rule.init(parameters), everywhere)

    def loss_of(parameters, x, y):
        (outputs,), _ = model.apply(parameters, {}, (x,), True, jax.random.key(0))
        return jnp.mean((outputs - y) ** 2)

    @jax.jit
    def step(parameters, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, state = rule.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)
    means = []
    for epoch in range(EPOCHS):
        order, total = sampler.order(len(X), epoch), 0.0
        for start in range(0, len(X), 16):
            rows = order[start : start + 16]
            sharding = shared if len(rows) % n == 0 else everywhere
            x, y = jax.device_put((X[rows], Y[rows]), sharding)
            parameters, state, loss = step(parameters, state, x, y)
            total += float(loss) * len(rows)
        means.append(total / len(X))
    return means


def main() -> None:
    told = {f"replicas {n}": trained(accelerator="cpu", replicas=n) for n in (1, 2, 4)}
    told |= {f"fixed {n}": trained(accelerator="cpu", replicas=n, deterministic=True) for n in (1, 2, 4, 8)}
    told |= {f"scaled {n}": scaled(accelerator="cpu", replicas=n) for n in (1, 2)}
    if EPOCHS > 1:
        told["scaled divided"] = scaled(accelerator="cpu", replicas=2, sharding="full")
        for n in (1, 2):
            told[f"scaled fixed {n}"] = scaled(accelerator="cpu", replicas=n, deterministic=True)
    told |= {"by hand": by_hand(4)}
    jax.config.update("jax_enable_x64", True)
    told |= {f"double {n}": double(accelerator="cpu", replicas=n) for n in (1, 2)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
