"""JAX's one program over a mesh of virtual CPUs beside a program for each device, and one device, in turns.

    python tests/benchmarks/mesh.py 2

Prints the least microseconds of a step of each way. The argument is the number of devices.
"""

from __future__ import annotations

import os
import sys
from typing import Any

N_DEVICES = int(sys.argv[1]) if len(sys.argv) > 1 else 2
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(N_DEVICES))

import numpy as np  # noqa: E402 - JAX counts its devices once

import anyaccel as aa  # noqa: E402
from anyaccel_jax import SequentialMLP  # noqa: E402
from anyaccel_jax.device_replicas import JaxReplicas  # noqa: E402

ROUNDS, STEPS, BATCH = 4, 20, 256


def seconds_of_step(rows: aa.FeatureSet, **settings: Any) -> float:
    """The least of three epochs."""
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP((1,), hidden_dim=256), rows.reference())], "adam", seed=3)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, batch_size=BATCH, epochs=3, accelerator="cpu", **settings)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return min(epoch.seconds for epoch in results.epochs) / STEPS


def main() -> None:
    """Measure all ways in turns."""
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, 64)).astype(np.float32)
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1].copy()}, ["x"], ["y"])
    over = JaxReplicas.build_over
    ways: dict[str, dict[str, Any]] = {
        "one device": {"replicas": 1},
        "mesh": {"replicas": N_DEVICES},
        "mesh, divided": {"replicas": N_DEVICES, "sharding": "full"},
        "a program for each": {"replicas": N_DEVICES},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, settings in ways.items():
            JaxReplicas.build_over = (lambda *_, **__: None) if name == "a program for each" else over  # type: ignore[method-assign]
            seconds[name].append(seconds_of_step(rows, **settings))
    for name, each in seconds.items():
        print(f"{name}: {1e6 * min(each):.0f} us")


if __name__ == "__main__":
    main()
