"""Train a model that torch's `parallelize_module` has sharded."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import anyaccel as aa
from anyaccel.data import digits

torch.manual_seed(0)
data = digits()
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
if "RANK" in os.environ:
    n_processes = int(os.environ["WORLD_SIZE"])
    mesh = torch.distributed.init_device_mesh("cpu", (n_processes,))
    parallelize_module(net, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference("pixels"))], "adam")
phase = aa.TrainPhase(
    "train",
    data=data,
    losses=[aa.AppliedLoss("cross_entropy", on="net")],
    batch_size=96,
    epochs=2,
    replicas=1,
    compile="off",
)
loss = aa.Experiment(graph, progress="none").run_phase(phase).loss
if os.environ.get("RANK", "0") == "0":
    print(loss.round(4))
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
