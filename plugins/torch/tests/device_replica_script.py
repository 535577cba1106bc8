"""Losses of one phase on 1, 2, 4 and 8 simulated devices, as JSON on standard output; run in a process of its own.

Arguments: epochs of 7 steps, the last of 11 rows.
"""

import json
import os
import sys
import warnings

os.environ["ANYACCEL_TORCH_SIMULATE"] = "8"

import numpy as np
import torch

import anyaccel as aa

EPOCHS = int(sys.argv[1])
X = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
Y = (2 * X[:, :1] + np.sin(X[:, 1:2])).astype(np.float32)


class Switch(torch.nn.Module):
    """Of its two layers each row uses one, so that a share may leave one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(5, 1), torch.nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return torch.where(x[:, :1] > 0, self.left(x), self.right(x))
        parts = [(x[i : i + 1], self.left if x[i, 0] > 0 else self.right) for i in range(len(x))]
        return torch.cat([layer(row) for row, layer in parts])


class Centred(torch.nn.Linear):
    """Moves a mean towards that of the rows of each call."""

    def __init__(self) -> None:
        super().__init__(5, 1)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
        return super().forward(x - self.mean)


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind in ("centred", "spectral"):
        return Centred() if kind == "centred" else torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(5, 1))
    if kind == "switch":
        return Switch()
    last = torch.nn.Linear(16, 3 if kind == "classes" else 1)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Dropout(0.0), last)


def trained(kind: str = "plain", epochs: int = EPOCHS, **settings) -> list[float]:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, epochs=epochs, **settings)
    graph = aa.ModelGraph([aa.ModelNode("net", model_of(kind), data.reference())], aa.Optimizer("adam", lr=0.01))
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return [epoch.loss for epoch in results.epochs]


def double(**settings) -> list[float]:
    """Losses of a model in float64 whose classes have weights, and its values."""
    columns = {"x": X.astype(np.float64), "y": (X[:, :2] > 0).sum(1)}
    data = aa.FeatureSet.from_dict("d", columns, ["x"], ["y"])
    losses = [aa.AppliedLoss(aa.Loss("cross_entropy", class_weights=[0.1, 0.3, 0.7]), on="net")]
    graph = aa.ModelGraph(
        [aa.ModelNode("net", model_of("classes").double(), data.reference())], aa.Optimizer("adam", lr=0.01)
    )
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=16, epochs=1, **settings)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    return [results.loss[0], *(float(value) for _, array in sorted(graph.state().items()) for value in np.ravel(array))]


def by_hand() -> list[float]:
    """A loop by hand on the CPU over the same batches."""
    net, sampler, means = model_of("plain"), aa.SimpleSampler(16, shuffle=True, seed=1), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        order, total = sampler.order(len(X), epoch), 0.0
        for start in range(0, len(X), 16):
            rows = order[start : start + 16]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows]))
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        means.append(total / len(X))
    return means


def warned(kind: str, **settings) -> list[str]:
    """What is warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained(kind, 1, accelerator="sim", **settings)
    return [str(each.message) for each in told]


def main() -> None:
    told = {f"replicas {n}": trained(accelerator="sim", replicas=n) for n in (1, 2, 4)}
    told |= {f"fixed {n}": trained(accelerator="sim", replicas=n, deterministic=True) for n in (1, 2, 4, 8)}
    told |= {f"switch {n}": trained("switch", 1, accelerator="sim", replicas=n) for n in (1, 8)}
    told |= {f"double {n}": double(accelerator="sim", replicas=n) for n in (1, 2)}
    told["warned"] = {kind: warned(kind, replicas=2) for kind in ("plain", "spectral", "centred")}
    told |= {f"spectral {n}": trained("spectral", 1, accelerator="sim", replicas=n) for n in (1, 2)}
    print(json.dumps({**told, "by hand": by_hand()}))


if __name__ == "__main__":
    main()
