"""A function that replicas can import, for `anyaccel_distributed.spawn`."""

from __future__ import annotations

import torch
from torch import nn

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_distributed import is_main_process


def train() -> None:
    torch.manual_seed(0)
    data = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    node = aa.ModelNode("net", net, data.reference("pixels"))
    graph = aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01))
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=96, epochs=2)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    if is_main_process():
        print(results.loss.round(4))
