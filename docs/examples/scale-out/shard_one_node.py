"""Shard one node of a graph, and keep the other whole in each replica."""

from __future__ import annotations

import torch
from torch import nn

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_distributed import is_main_process

torch.manual_seed(0)
data = digits()
encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))
nodes = [
    aa.ModelNode("encoder", encoder, data.reference("pixels"), sharding="full"),
    aa.ModelNode("head", nn.Linear(32, 10), "encoder"),
]
graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=0.01, clip_norm=1.0))
losses = [aa.AppliedLoss("cross_entropy", on="head")]
phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=96, epochs=2)
results = aa.Experiment(graph, progress="none").run_phase(phase)
if is_main_process():
    print(results.loss.round(4), *results.plan.notes, sep="\n")
