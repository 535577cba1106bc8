"""Trains graphs of two equal nodes, each with a profile, and prints as JSON the nodes of the operations in it.

They are whole on one device, or divided among two where the first argument says so.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.adapter.step_profiler import read_trace
from anyaccel_jax import SequentialMLP

X = np.ones((64, 6), "float32")
DATA = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])


def train(labels: list[str], folder: Path, **settings: Any) -> list[str]:
    nodes = [
        aa.ModelNode(label, SequentialMLP(1), source)
        for label, source in zip(labels, [DATA.reference(), labels[0]], strict=True)
    ]
    profile = aa.Profile(steps=(3, 6), folder=str(folder / "-".join(labels)))
    losses = [aa.AppliedLoss("mse", on=labels[1])]
    phase = aa.TrainPhase(
        "fit", data=DATA, losses=losses, batch_size=8, callbacks=[profile], compile="steps", **settings
    )
    experiment = aa.Experiment(aa.ModelGraph(nodes, "sgd"), progress="none")
    experiment.run_phase(phase)
    KEPT.append(experiment)  # what it has compiled is alive when the next is profiled
    events = read_trace(profile.files[0])
    return sorted({event["args"]["node"] for event in events if "node" in (event.get("args") or {})})


KEPT: list[aa.Experiment] = []
if __name__ == "__main__":
    parameters, folder, *graphs = sys.argv[1:]
    divided = {"accelerator": "cpu", "replicas": 2, "sharding": "full"} if parameters == "divided" else {}
    print(json.dumps([train(graph.split("-"), Path(folder), **divided) for graph in graphs]))
