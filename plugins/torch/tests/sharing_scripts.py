"""Functions for the replicas of test_sharing.py; arguments are their names, and the folder for what they tell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from replica_scripts import OUT, RANK, data, graph_of, model_of, tell

import anyaccel as aa
from anyaccel.errors import AnyaccelError

SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def classes() -> aa.FeatureSet:
    """Sequences of 6 positions with a class each, some ignored, masks, and weights of samples; 102 rows."""
    rng = np.random.default_rng(1)
    n, positions = 102, 6
    x = rng.normal(size=(n, positions, 8)).astype(np.float32)
    y = rng.integers(0, 4, size=(n, positions))
    y[rng.random(y.shape) < 0.4] = -100
    y[:7] = -100  # the share of a replica may have no position that counts
    mask = (rng.random((n, positions)) < 0.5).astype(np.float32)
    weights = rng.uniform(0, 3, size=(n, 1)).astype(np.float32)
    weights[10:30] = 0
    columns = {"x": x, "y": y, "mask": mask, "w": weights[:, 0], "t": x[:, 0, :2].copy()}
    return aa.FeatureSet.from_dict("c", columns, feature_keys=["x"], target_keys=["y"], tag_keys=["mask", "w", "t"])


def losses_of(name: str) -> list[aa.AppliedLoss]:
    """Losses of which not every element counts alike."""
    weighted = aa.Loss("cross_entropy", ignore_index=-100, class_weights=[1.0, 5.0, 0.5, 2.0])
    ignoring = aa.Loss("cross_entropy", ignore_index=-100)
    return {
        "ignore_index": [aa.AppliedLoss(ignoring, on="net")],
        "class_weights": [aa.AppliedLoss(weighted, on="net", mask="c.mask")],
        "two": [
            aa.AppliedLoss(weighted, on="net", sample_weight="c.w", weight=0.7, label="a"),
            aa.AppliedLoss(ignoring, on="net", weight=0.3, label="b"),
        ],
    }[name]


def weighted() -> None:
    """Weighted losses over ragged shares, also accumulated."""
    rows = classes()
    for name in ("ignore_index", "class_weights", "two"):
        for accumulate in (1, 2):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
            graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))
            sampler = aa.SimpleSampler(7)
            losses = losses_of(name)
            phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=sampler, n_epochs=3, accumulate=accumulate)
            results = aa.Experiment(graph).run_phase(phase)
            epochs = [[epoch.loss, *epoch.losses.values()] for epoch in results.epochs]
            weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
            tell(f"weighted-{name}-{accumulate}", epochs=epochs, weights=weights)


class Items(torch.utils.data.Dataset):
    """The rows of `data()` one by one."""

    def __init__(self, rows: aa.FeatureSet) -> None:
        self.x, self.y = rows.array("x").copy(), rows.array("y").copy()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.x[index], self.y[index]


def source_of(name: str, rows: aa.FeatureSet) -> Any:
    """The same rows behind a source."""
    items, columns = Items(rows), {"features": "x", "targets": "y"}

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(items), 96):
            yield {"x": items.x[start : start + 96], "y": items.y[start : start + 96]}

    if name == "map":
        return aa.MapSource("data", items, **columns)
    if name == "generator":
        return aa.IterableSource("data", batches, **columns)
    if name == "parquet":
        path = OUT / f"rows-{RANK}.parquet"
        pq.write_table(pa.table({"x": list(items.x), "y": list(items.y)}), path)
        return aa.ParquetStream("data", path, sampler=aa.SimpleSampler(96, shuffle=True), **columns)
    loader = torch.utils.data.DataLoader(items, batch_size=96, shuffle=True, num_workers=int(name == "workers"))
    return aa.IterableSource("data", loader, **columns)


def sources() -> None:
    """Map sources, generators, DataLoaders and Parquet files, each batch shared."""
    rows = data(306)
    for name in ("map", "generator", "loader", "workers", "parquet"):
        model = model_of()
        phase = aa.TrainPhase(
            "train",
            data={"data": source_of(name, rows)},
            losses=[aa.AppliedLoss("mse", on="net")],
            n_epochs=3,
            accumulate=2 if name == "generator" else 1,
            **({"sampler": aa.SimpleSampler(96, shuffle=True)} if name == "map" else {}),
        )
        results = aa.Experiment(graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))).run_phase(phase)
        weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
        steps = [epoch.steps for epoch in results.epochs]
        tell(f"source-{name}", epochs=[epoch.loss for epoch in results.epochs], weights=weights, steps=steps)


def own_shares() -> None:
    """A loader that gives each replica rows of its own."""
    rows = data(192)
    sampler = torch.utils.data.DistributedSampler(Items(rows), num_replicas=SIZE, rank=RANK)
    loader = torch.utils.data.DataLoader(Items(rows), batch_size=48, sampler=sampler)
    source = aa.IterableSource("data", loader, features="x", targets="y")
    graph = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data={"data": source}, losses=losses))


def shorter() -> None:
    """A source that ends earlier in one replica."""
    rows = data(192)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, 96 if RANK else 192, 48):
            yield {"x": rows.array("x")[start : start + 48], "y": rows.array("y")[start : start + 48]}

    source = aa.IterableSource("data", batches, features="x", targets="y")
    graph = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data={"data": source}, losses=losses))


def small_batch() -> None:
    """A last batch of one row."""
    rows = data(97)
    source = source_of("generator", rows)
    graph = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data={"data": source}, losses=losses))


def refused() -> None:
    """What ends all replicas alike, one after the other."""
    for function in (own_shares, shorter, small_batch):
        try:
            function()
        except AnyaccelError as error:
            tell(function.__name__, message=str(error))


if __name__ == "__main__":
    functions = (weighted, sources, refused)
    scripts: dict[str, Callable[[], None]] = {each.__name__: each for each in functions}
    for chosen in sys.argv[1].split(","):
        scripts[chosen]()
