"""A day: scale, precision, big models and plugins: the notebook of docs/tutorial as a script."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_offload import Block, DeviceSpec, plan_blocks

data = digits()
losses = aa.AppliedLoss("cross_entropy", on="net")


def graph(model):
    node = aa.ModelNode("net", model, data.reference("pixels"))
    return aa.ModelGraph([node], aa.Optimizer("adam", lr=1e-2), seed=0)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def phase(**settings):
    return aa.TrainPhase("train", data="all", losses=losses, epochs=3, **settings)


full = graph(build()).run(phase(), progress="none")
half = graph(build()).run(phase(precision="bf16-mixed"), progress="none")
print(np.abs(full.loss - half.loss).max() < 0.05)

with aa.simulate(2):
    one = graph(aa.SequentialMLP(10)).run(phase(accelerator="sim:0"), progress="none")
    two = graph(aa.SequentialMLP(10)).run(phase(accelerator="sim", replicas=2), progress="none")
np.allclose(one.loss, two.loss, rtol=1e-6)

experiment = aa.Experiment("day", graph(aa.SequentialMLP(10)))
plan = experiment.plan(phase(accelerator="sim"), inventory="2x sim-1GB")
print(plan.memory)

blocks = [Block(name=f"layers.{number}", parameter_bytes=2 * 2**30) for number in range(20)]
devices = [DeviceSpec(name=f"gpu:{number}", memory=24 * 2**30) for number in range(2)]
print(plan_blocks(blocks, devices))


class StopBelow(aa.Callback):
    def __init__(self, loss):
        self.loss = loss

    def epoch_end(self, run):
        if run.history[-1].loss < self.loss:
            run.stop(f"the loss is below {self.loss}")


stopped = graph(build()).run(phase(callbacks=[StopBelow(1.0)]), progress="none")
print(stopped.stop_reason)
