"""Trains torch, JAX and torch, one after the other, and writes what each replica found; the argument is a folder."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.parallel import DistributedDataParallel

import anyaccel as aa
from anyaccel.registry import registry
from anyaccel_distributed import join, launched


class Wrappers(aa.Callback):
    """Counts what adds up gradients within the backward pass."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def step_end(self, run: Any) -> None:
        self.counts.append(sum(isinstance(held, DistributedDataParallel) for held in gc.get_objects()))


def main() -> None:
    """Two epochs over rows whose last batch is a small one."""
    place = launched()
    if place is not None:
        join("jax")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((110, 10)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": np.tanh(x[:, :2])}, ["x"], ["y"])

    def mlp(framework: str, out: int) -> Any:
        model: Any = registry().computing(framework).models()["SequentialMLP"]
        return model(output_shape=(out,), n_layers=2, hidden_dim=8, activation="tanh")

    nodes = [
        aa.ModelNode("encoder", mlp("torch", 6), source.reference()),
        aa.ModelNode("body", mlp("jax", 5), "encoder"),
        aa.ModelNode("head", mlp("torch", 2), "body"),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.05, momentum=0.9, clip_norm=1.0), seed=11)
    wrappers = Wrappers()
    phase = aa.TrainPhase(
        "train",
        data=source,
        losses=[aa.AppliedLoss("mse", on="head")],
        sampler=aa.SimpleSampler(32, shuffle=True),
        epochs=2,
        accumulate=1,
        callbacks=[wrappers],
    )
    results = aa.Experiment(graph).run_phase(phase)
    torch_models: list[Any] = [graph.nodes[label].model for label in ("encoder", "head")]
    found = {
        "losses": [epoch.loss for epoch in results.epochs],
        "weights": [p.detach().flatten().tolist() for model in torch_models for p in model.parameters()],
        "wrappers": wrappers.counts,
    }
    (Path(sys.argv[1]) / f"{0 if place is None else place.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
