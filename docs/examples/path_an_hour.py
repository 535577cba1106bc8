"""An hour: graphs, phases, data and checkpoints: the notebook of docs/tutorial as a script."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import anyaccel as aa

rng = np.random.default_rng(0)
signal, facts = rng.normal(size=(600, 20)), rng.normal(size=(600, 3))
columns = {
    "signal": signal,
    "facts": facts,
    "warm": (signal[:, :5].sum(axis=1) + 2 * facts[:, 0] > 0).astype("int64"),
    "room": [f"room {number}" for number in range(600)],
}
rooms = aa.FeatureSet.from_dict("rooms", columns, ["signal", "facts"], "warm", "room")
rooms.split_random({"train": 0.8, "test": 0.2}, seed=0)
print(rooms)

torch.manual_seed(0)
nodes = [
    aa.ModelNode("signals", nn.Linear(20, 16), rooms.reference("signal")),
    aa.ModelNode("facts", aa.SequentialMLP(4), rooms.reference("facts")),
    aa.ConcatNode("both", ["signals", "facts"]),
    aa.ModelNode("head", aa.SequentialMLP(2), "both"),
]
graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=5e-3), seed=0)
print(graph)

loss = aa.AppliedLoss("cross_entropy", on="head")
train = aa.TrainPhase(
    "train",
    data="train",
    losses=loss,
    epochs=10,
    validation="test",
    checkpoint=aa.Checkpoint("runs/rooms", keep_best="val_loss"),
)
test = aa.EvalPhase("test", data="test", losses=loss, metrics="accuracy")
experiment = aa.Experiment("rooms", graph, progress="none")
experiment.plan(train)

trained, tested = experiment.run(train, test)
print(tested.metrics["accuracy"] > 0.8)

print(tested.to_arrow().slice(0, 3).to_pydict()["room"])

longer = aa.TrainPhase(
    "train",
    data="train",
    losses=loss,
    epochs=12,
    validation="test",
    checkpoint=aa.Checkpoint("runs/rooms", keep_best="val_loss"),
)
resumed = experiment.run_phase(longer, resume="auto")
len(resumed.epochs)
