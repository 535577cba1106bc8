"""An encoder on one simulated device and a head on another train as on the CPU.

Simulated torch devices are for tests: torch computes on the CPU and treats the values as if they were on other devices.

It prints:

    plan of 'train' on 'graph'
    node     device  native name  why   parameters
    encoder  sim:0   torch sim:0  node  56
    head     sim:1   torch sim:1  node  9
    load  data.x -> torch sim:0: float32[6]
    load  data.y -> torch sim:1: float32[1]
    cross encoder: torch sim:0 -> torch sim:1 by a move within the framework, 32 B per sample
    cross gradient of encoder: torch sim:1 -> torch sim:0 by a move within the framework, 32 B per sample
    losses: 1.364622 0.801136 0.377006
    60 transfers between the devices in 30 steps, 0 waits for sim:0
    Expected all tensors to be on the same device, but found at least two devices, sim:1 and cpu!...
"""

import numpy as np
import torch

from anyaccel import AppliedLoss, Experiment, FeatureSet, ModelGraph, ModelNode, Optimizer, SimpleSampler, TrainPhase
from anyaccel_torch import simulated

devices = simulated.start(2)  # before torch computes anything; for the whole process

x = np.random.default_rng(0).normal(size=(240, 6)).astype("float32")
data = FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 1:2]}, ["x"], ["y"])


def trained(encoder_on: str, head_on: str):
    """Two nodes with the same weights each time, trained for three epochs."""
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())
    nodes = [
        ModelNode("encoder", encoder, data.reference(), accelerator=encoder_on),
        ModelNode("head", torch.nn.Linear(8, 1), "encoder", accelerator=head_on),
    ]
    graph = ModelGraph(nodes, Optimizer("adam", lr=1e-2))
    losses, sampler = [AppliedLoss("mse", on="head")], SimpleSampler(24, shuffle=True, seed=1)
    phase = TrainPhase("train", data=data, losses=losses, sampler=sampler, epochs=3)
    return graph, Experiment("try", graph, progress="none").run_phase(phase)


graph, split = trained("sim:0", "sim:1")
_, whole = trained("cpu", "cpu")
print(split.plan)
print("losses:", *(f"{loss:.6f}" for loss in split.loss))
assert np.allclose(split.loss, whole.loss, rtol=1e-6)

head = graph["head"].model
assert str(head.weight.device) == "sim:1"
moved = devices[0].transfers.between
print(f"{moved.number} transfers between the devices in {3 * 10} steps, {devices[0].syncs} waits for sim:0")
assert moved.number == 2 * 30  # an output and its gradient in each step

try:
    head.weight + torch.zeros(1, 8)
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("a sum over two devices was computed")
