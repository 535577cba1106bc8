"""Losses of one phase on 1, 2, 4 and 8 logical CPUs, as JSON on standard output; run in a process of its own.

Arguments: epochs of 7 steps, the last of 11 rows; with more than one, all is told.
"""

import itertools
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import anyaccel as aa

EPOCHS = int(sys.argv[1])
X = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
Y = (2 * X[:, :1] + np.sin(X[:, 1:2])).astype(np.float32)


def model_of(dtype: str = "float32", n_outputs: int = 1) -> keras.Model:
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(16, activation="relu", dtype=dtype), keras.layers.Dense(n_outputs, dtype=dtype)]
    return keras.Sequential([keras.Input((5,), dtype=dtype), *dense])


def trained(**settings) -> list[float]:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, epochs=EPOCHS, **settings)
    graph = aa.ModelGraph([aa.ModelNode("net", model_of(), data.reference())], aa.Optimizer("adam", lr=0.01))
    results = aa.Experiment(graph, progress="none").run_phase(phase)
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
    nodes = [aa.ModelNode("net", model_of(), data.reference())]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=0.01))
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
    nodes = [aa.ModelNode("net", model_of("float64", 3), data.reference())]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=0.01))
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=16, epochs=1, **settings)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return [results.loss[0], *(float(value) for _, array in sorted(graph.state().items()) for value in np.ravel(array))]


def by_hand(n: int) -> list[float]:
    """`tf.distribute.MirroredStrategy` by hand: sums of gradients of `n` shares, and the formulas of Adam."""
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(n)])
    with strategy.scope():
        initial = [weight.numpy() for weight in model_of().weights]
        weights = [tf.Variable(value) for value in initial]
    moments = [(np.zeros_like(value, np.float64), np.zeros_like(value, np.float64)) for value in initial]

    def shares(array: np.ndarray):
        bounds = [len(array) * i // n for i in range(n + 1)]
        cut = [array[low:high] for low, high in itertools.pairwise(bounds)]
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(cut[context.replica_id_in_sync_group])
        )

    def of_replica(x, y, size):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(x @ weights[0] + weights[1])
            loss = tf.reduce_sum((hidden @ weights[2] + weights[3] - y) ** 2) / size
        return loss, tape.gradient(loss, weights)

    sampler, means, steps = aa.SimpleSampler(16, shuffle=True, seed=1), [], 0
    for epoch in range(EPOCHS):
        order, total = sampler.order(len(X), epoch), 0.0
        for start in range(0, len(X), 16):
            rows = order[start : start + 16]
            loss, gradients = strategy.run(of_replica, (shares(X[rows]), shares(Y[rows]), float(len(rows))))
            steps += 1
            for i, gradient in enumerate(gradients):
                g = strategy.reduce("SUM", gradient, axis=None).numpy().astype(np.float64)
                m, v = 0.9 * moments[i][0] + 0.1 * g, 0.999 * moments[i][1] + 0.001 * g * g
                moments[i] = m, v
                update = 0.01 * m / (1 - 0.9**steps) / (np.sqrt(v / (1 - 0.999**steps)) + 1e-8)
                weights[i].assign((weights[i].numpy() - update).astype(np.float32))
            total += float(strategy.reduce("SUM", loss, axis=None)) * len(rows)
        means.append(total / len(X))
    return means


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    told = {f"replicas {n}": trained(accelerator="cpu", replicas=n) for n in (1, 2, 4)}
    told |= {f"fixed {n}": trained(accelerator="cpu", replicas=n, deterministic=True) for n in (1, 2, 4, 8)}
    told |= {f"scaled {n}": scaled(accelerator="cpu", replicas=n) for n in (1, 2)}
    if EPOCHS > 1:
        for n in (1, 2):
            told[f"scaled fixed {n}"] = scaled(accelerator="cpu", replicas=n, deterministic=True)
    told |= {f"double {n}": double(accelerator="cpu", replicas=n) for n in (1, 2)}
    print(json.dumps({**told, "by hand": by_hand(2)}))


if __name__ == "__main__":
    main()
