"""Replicas of torch beside DistributedDataParallel in a loop by hand, in the same processes, one after the other.

    anyaccel run --replicas 2 tests/benchmarks/replicas.py

Prints seconds a step of both and their ratio, the median of interleaved rounds.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import anyaccel as aa

ROUNDS, STEPS = 7, 60
SHAPES = [(64, 128, 256), (256, 512, 256), (1024, 1024, 256)]


def model_of(width: int, hidden: int) -> torch.nn.Module:
    """A perceptron of three layers."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 1))


def compare(width: int, hidden: int, batch: int) -> None:
    """Measure one model."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(batch * STEPS, n)).astype(np.float32) for n in (width, 1))
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, feature_keys=["x"], target_keys=["y"])
    own = model_of(width, hidden)
    graph = aa.ModelGraph([aa.ModelNode("net", own, rows.reference())], aa.Optimizer("adam", lr=1e-3))
    experiment = aa.Experiment(graph)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=aa.SimpleSampler(batch), n_epochs=2)
    experiment.run_phase(phase)  # joins the replicas
    by_hand = DistributedDataParallel(model_of(width, hidden))
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-3, fused=True)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    part = batch // size
    seconds: dict[str, list[float]] = {"anyaccel": [], "ddp": []}
    for _ in range(ROUNDS):
        results = experiment.run_phase(phase)
        seconds["anyaccel"].append(min(epoch.seconds for epoch in results.epochs) / STEPS)
        best = float("inf")
        for _ in range(2):
            torch.distributed.barrier()
            began = time.perf_counter()
            for start in range(rank * part, batch * STEPS, batch):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(
                    by_hand(inputs[start : start + part]), targets[start : start + part]
                ).backward()
                optimizer.step()
            best = min(best, time.perf_counter() - began)
        seconds["ddp"].append(best / STEPS)
    if rank == 0:
        ratio = statistics.median(a / b for a, b in zip(seconds["anyaccel"], seconds["ddp"], strict=True))
        ours, theirs = (1e6 * statistics.median(seconds[name]) for name in ("anyaccel", "ddp"))
        print(f"{width}-{hidden}-{hidden}-1, batch {batch}: {ours:.0f} us, by hand {theirs:.0f} us, ratio {ratio:.3f}")


if __name__ == "__main__":
    for shape in SHAPES:
        compare(*shape)
