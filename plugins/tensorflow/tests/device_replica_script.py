"""Losses of one phase on 1, 2, 4 and 8 logical CPUs, as JSON on standard output; run in a process of its own.

Arguments: epochs of 7 steps, the last of 11 rows.
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


def model_of() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])


def trained(**settings) -> list[float]:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, n_epochs=EPOCHS, **settings)
    graph = aa.ModelGraph([aa.ModelNode("net", model_of(), data.reference())], aa.Optimizer("adam", lr=0.01))
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return [epoch.loss for epoch in results.epochs]


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
    print(json.dumps({**told, "by hand": by_hand(2)}))


if __name__ == "__main__":
    main()
