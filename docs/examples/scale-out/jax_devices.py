"""Train with JAX on one device and on two, whole and sharded.

For two devices of a CPU: `JAX_NUM_CPU_DEVICES=2 python jax_devices.py`.
"""

from __future__ import annotations

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_jax import SequentialMLP

data = digits()
for settings in (
    {"replicas": 1},
    {"replicas": 2},
    {"replicas": 2, "sharding": "full"},
):
    node = aa.ModelNode("net", SequentialMLP((10,)), data.reference("pixels"))
    phase = aa.TrainPhase(
        "train",
        data=data,
        losses=[aa.AppliedLoss("cross_entropy", on="net")],
        accelerator="cpu",
        epochs=2,
        **settings,
    )
    graph = aa.ModelGraph([node], "adam", seed=0)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    print(results.loss.round(4), *results.plan.notes[1:])
