"""The script train.py with sharded parameters and optimizer state (FSDP)."""

from __future__ import annotations

import torch
from torch import nn

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_distributed import is_main_process

torch.manual_seed(0)  # every process makes the same model
data = digits()
data.split_random({"train": 0.8, "test": 0.2}, seed=0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
node = aa.ModelNode("net", net, data.reference("pixels"))
graph = aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01))
phase = aa.TrainPhase(
    "train",
    data="train",
    losses=[aa.AppliedLoss("cross_entropy", on="net")],
    batch_size=96,
    epochs=3,
    validation="test",
    sharding="full",
)
results = aa.Experiment(graph, progress="none").run_phase(phase)
if is_main_process():
    print(*results.plan.notes)
    print(results.loss.round(4), round(results.epochs[-1].validation["loss"], 4))
