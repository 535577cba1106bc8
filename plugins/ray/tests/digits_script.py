"""The example of docs/how-to/scale-out.md, with the losses written to a file; knows nothing of Ray."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import anyaccel as aa
from anyaccel.data import digits
from anyaccel.replicas import is_main_process

torch.manual_seed(0)
data = digits()
data.split_random({"train": 0.8, "test": 0.2}, seed=0)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference("pixels"))], aa.Optimizer("adam", lr=0.01))
losses = [aa.AppliedLoss("cross_entropy", on="net")]
phase = aa.TrainPhase("train", data="train", losses=losses, sampler=96, n_epochs=3, validation="test")
results = aa.Experiment(graph).run_phase(phase)
if is_main_process():
    epochs = [[epoch.loss, epoch.validation["loss"]] for epoch in results.epochs]
    Path(sys.argv[1]).write_text(json.dumps({"epochs": epochs, "folder": str(Path.cwd())}))
