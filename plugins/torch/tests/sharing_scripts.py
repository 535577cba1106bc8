"""Functions for the replicas of test_sharing.py; arguments are their names, and the folder for what they tell."""

from __future__ import annotations

import atexit
import copy
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from replica_scripts import OUT, RANK, data, graph_of, model_of, rmse, tell
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import anyaccel as aa
from anyaccel.errors import AnyaccelError

SIZE = int(os.environ.get("WORLD_SIZE", "1"))
IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))


def classes(dtype: str = "float32") -> aa.FeatureSet:
    """Sequences of 6 positions with a class each, some ignored, masks, and weights of samples; 102 rows."""
    rng = np.random.default_rng(1)
    n, positions = 102, 6
    x = rng.normal(size=(n, positions, 8)).astype(dtype)
    y = rng.integers(0, 4, size=(n, positions))
    y[rng.random(y.shape) < 0.4] = -100
    y[:7] = -100  # the share of a replica may have no position that counts
    mask = (rng.random((n, positions)) < 0.5).astype(np.float32)
    weights = rng.uniform(0, 3, size=(n, 1)).astype(np.float32)
    weights[10:30] = 0
    columns = {"x": x, "y": y, "mask": mask, "w": weights[:, 0], "t": x[:, 0, :2].copy()}
    return aa.FeatureSet.from_dict("c", columns, features=["x"], target=["y"], tags=["mask", "w", "t"])


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
    for name in ("ignore_index", "class_weights", "two", "double"):
        rows = classes("float64" if name == "double" else "float32")
        for accumulate in (1, 2):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
            model = model.double() if name == "double" else model
            graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))
            sampler = aa.SimpleSampler(7)
            losses = losses_of("two" if name == "double" else name)
            phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=sampler, epochs=3, accumulate=accumulate)
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
    items, columns = Items(rows), {"features": "x", "target": "y"}

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
            epochs=3,
            accumulate=2 if name == "generator" else 1,
            **({"sampler": aa.SimpleSampler(96, shuffle=True)} if name == "map" else {}),
        )
        results = aa.Experiment(graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))).run_phase(phase)
        weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
        steps = [epoch.steps for epoch in results.epochs]
        tell(f"source-{name}", epochs=[epoch.loss for epoch in results.epochs], weights=weights, steps=steps)


class Texts(torch.utils.data.Dataset):
    """Rows of 1 to 12 tokens, of which the last replica has the longest."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        lengths = [int(rng.integers(1, 4)) if i % 10 < 7 else int(rng.integers(4, 12)) for i in range(104)]
        self.rows = [{"ids": rng.integers(1, 20, size=n), "y": rng.normal(size=n).astype("float32")} for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.rows[index]


def collated(items: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest row."""
    columns = {name: [torch.from_numpy(item[name]) for item in items] for name in ("ids", "y")}
    return {name: torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for name, each in columns.items()}


def ragged() -> None:
    """Rows that differ in length, and a loss in which what they are padded with counts, as in one process."""
    texts, pad = Texts(), {"ids": 0, "y": 0.0}
    columns = {name: [row[name] for row in texts.rows] for name in ("ids", "y")}
    rows = aa.FeatureSet.from_dict("t", columns, "ids", "y", pad=pad)
    given: dict[str, Any] = {
        "rows": rows,
        "map": aa.MapSource("t", texts, features="ids", target="y", pad=pad),
        "collated": aa.MapSource("t", texts, features="ids", target="y", pad=pad, collate=collated),
    }
    for name, phase_data in given.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Embedding(20, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten()
        )
        node = aa.ModelNode("net", model, rows.reference("ids"))
        graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1), seed=3)
        losses, sampler = [aa.AppliedLoss("mse", on="net")], aa.SimpleSampler(10, shuffle=name != "rows")
        phase = aa.TrainPhase(
            "train", data=phase_data, losses=losses, sampler=sampler, epochs=2, accumulate=1 + (name == "rows")
        )
        results = aa.Experiment(graph).run_phase(phase)
        weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
        tell(f"ragged-{name}", epochs=[epoch.loss for epoch in results.epochs], weights=weights)


def own_shares() -> None:
    """A loader that gives each replica rows of its own."""
    rows = data(192)
    sampler = torch.utils.data.DistributedSampler(Items(rows), num_replicas=SIZE, rank=RANK)
    loader = torch.utils.data.DataLoader(Items(rows), batch_size=48, sampler=sampler)
    source = aa.IterableSource("data", lambda: loader, features="x", target="y")
    graph = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data={"data": source}, losses=losses))


def shorter() -> None:
    """A source that ends earlier in one replica."""
    rows = data(192)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, 96 if RANK else 192, 48):
            yield {"x": rows.array("x")[start : start + 48], "y": rows.array("y")[start : start + 48]}

    source = aa.IterableSource("data", batches, features="x", target="y")
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


def no_mean() -> None:
    """A loss that is no mean over rows, of divided parameters."""
    rows = data(130)
    graph = graph_of(rows, model_of(), aa.Optimizer("sgd", lr=1e-2))
    losses = [aa.AppliedLoss(rmse, on="net")]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        aa.Experiment(graph).run_phase(aa.TrainPhase("train", data=rows, losses=losses, batch_size=13, sharding="full"))
    tell("no_mean", messages=[str(each.message) for each in told if "Hint" in str(each.message)])


class CountsRows(torch.nn.Module):
    """Counts the rows that it computes in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rows = model_of(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += 0 if self.training else len(x)
        return self.inner(x)


def evaluated() -> None:
    """A validation and an evaluation whose batches are shared, one that has too few, and one that is computed whole."""
    rows = data()
    model = CountsRows()
    graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net", sample_weight="data.w")]
    validation = aa.EvalPhase("val", data="val", batch_size=20, metrics=["mae", "r2"])
    experiment = aa.Experiment(graph)
    phase = aa.TrainPhase("train", data="train", losses=losses, batch_size=96, epochs=2, validation=validation)
    results = experiment.run_phase(phase)
    counted, found = [], []
    for batch_size, replicas in ((20, None), (1024, None), (20, 1)):
        model.rows = 0
        settings: dict[str, Any] = {"losses": losses, "metrics": ["mae", "r2"], "batch_size": batch_size}
        values = experiment.run_phase(aa.EvalPhase("eval", data="val", replicas=replicas, **settings))
        counted.append(model.rows)
        found.append([values.loss, *values.metrics.values(), values.prediction("net").tolist()])
    epochs = [[epoch.loss, *epoch.validation.values()] for epoch in results.epochs]
    tell("evaluated", epochs=epochs, counted=counted, found=found)


class Blocks(torch.nn.Module):
    """Blocks in a list, a buffer, and a parameter that is not trained."""

    def __init__(self, width: int = 48, n_blocks: int = 3) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Tanh())
            for _ in range(n_blocks)
        )
        self.last = torch.nn.Linear(width, 3)
        self.scale = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x) * self.scale


def storages() -> int:
    """Bytes of all tensors of this process, each memory once."""
    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor):
            local = each.to_local() if isinstance(each, DTensor) else each
            found[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(found.values())


class Counts(aa.Callback):
    """Counts the memory of tensors after a step, beside what there was before the phase."""

    def __init__(self) -> None:
        self.nbytes = 0

    def step_end(self, run: Any) -> None:
        if run.epoch == 0 and run.step == 3:
            self.nbytes = storages()


class Seldom(Blocks):
    """One layer that every third call uses, and one that none does."""

    def __init__(self) -> None:
        super().__init__(n_blocks=1)
        self.seldom, self.never = torch.nn.Linear(20, 3), torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out + self.seldom(x) if self.training and self.seen % 3 == 0 else out


def sharded() -> None:
    """FSDP2 over a model of blocks: plain, clipped, accumulated, with weighted losses, and going on from a phase."""
    rows, weighing = data(), aa.Loss("mse")
    plain, weighted = [aa.AppliedLoss(weighing, on="net")], [aa.AppliedLoss("mse", on="net", sample_weight="data.w")]
    settings: dict[str, tuple[aa.Optimizer, list[aa.AppliedLoss], dict[str, Any]]] = {
        "plain": (aa.Optimizer("adam", lr=1e-3), plain, {"epochs": 6, "validation": "val"}),
        "clipped": (aa.Optimizer("adamw", lr=1e-3, clip_norm=0.05), plain, {"epochs": 2}),
        "clipped by value": (aa.Optimizer("adam", lr=1e-3, clip_value=0.001), plain, {"epochs": 2}),
        "accumulated": (aa.Optimizer("sgd", lr=1e-2, momentum=0.9), plain, {"epochs": 2, "accumulate": 3}),
        "weighted": (aa.Optimizer("adam", lr=1e-3), weighted, {"epochs": 2, "accumulate": 2}),
        "unused": (aa.Optimizer("adamw", lr=1e-3, weight_decay=0.5, clip_norm=0.05), plain, {}),
        "class": (aa.Optimizer(torch.optim.NAdam, lr=1e-3), plain, {"epochs": 2}),
    }
    for name, (optimizer, losses, more) in settings.items():
        if name in ("clipped by value", "class") and not IS_FULL:
            continue
        torch.manual_seed(0)
        model = Seldom() if name == "unused" else Blocks()
        classes, flags = [type(part) for part in model.modules()], [p.requires_grad for p in model.parameters()]
        objects = [id(parameter) for parameter in model.parameters()]
        graph = graph_of(rows, model, optimizer)
        sampler = aa.SimpleSampler(35 if "accumulate" in more else 96, shuffle=True)
        phase = aa.TrainPhase("train", data="train", losses=losses, sampler=sampler, sharding="full", **more)
        results = aa.Experiment(graph).run_phase(phase)
        again = aa.Experiment(graph).run_phase(phase)  # goes on with the optimizer state
        assert classes == [type(part) for part in model.modules()]
        assert flags == [p.requires_grad for p in model.parameters()]
        assert objects == [id(parameter) for parameter in model.parameters()]
        epochs = [[epoch.loss, *epoch.validation.values()] for epoch in (*results.epochs, *again.epochs)]
        weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
        slots = {key: value.tolist() for key, value in graph.state().items() if key.startswith("net/optimizer")}
        tell(
            f"sharded-{name}",
            epochs=epochs,
            weights=weights,
            slots=slots,
            seen=float(model.seen),
            notes=results.plan.notes,
        )


class ReadsAlone(aa.Callback):
    """Reads the model in the first replica only."""

    def epoch_end(self, run: Any) -> None:
        if run.is_main_process:
            run.model("net")


def reads_alone() -> None:
    """A model whose parameters are divided is read in one replica."""
    rows = data(96)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, sharding="full", callbacks=[ReadsAlone()])
    try:
        aa.Experiment(graph_of(rows, model_of(), aa.Optimizer("sgd", lr=1e-2))).run_phase(phase)
    except AnyaccelError as error:
        tell("reads_alone", message=str(error))


def memory() -> None:
    """Bytes of parameters and optimizer state of a process, counted while the phase runs."""
    rows = data(96)
    torch.manual_seed(0)
    model = Blocks(256, 4)
    counts = Counts()
    graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-3))
    losses = [aa.AppliedLoss("mse", on="net")]
    rest = storages() - sum(parameter.nbytes for parameter in model.parameters())
    phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=aa.SimpleSampler(16), sharding="full")
    phase.callbacks = (counts,)
    aa.Experiment(graph).run_phase(phase)
    tell("memory", nbytes=counts.nbytes - rest)


def blocks_graph(rows: aa.FeatureSet) -> tuple[Blocks, aa.ModelGraph]:
    """A model of blocks, and its graph."""
    torch.manual_seed(0)
    model = Blocks()
    return model, graph_of(rows, model, aa.Optimizer("adam", lr=1e-3, clip_norm=0.5))


NODES: dict[str, tuple[str | None, str | None, str | None]] = {
    "one": ("full", None, None),
    "below": (None, "none", "full"),
    "whole": (None, None, None),
}
"""What the first node, the last and the phase say."""


def nodes_graph(rows: aa.FeatureSet, way: str, optimizer: aa.Optimizer, last: Any = None) -> aa.ModelGraph:
    """Blocks of which each replica has a part, and a head that is whole; `last` is the optimizer of the head."""
    torch.manual_seed(0)
    first, other, _ = NODES[way]
    blocks, head = Blocks(), torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    nodes = [
        aa.ModelNode("blocks", blocks, rows.reference(), sharding=first),
        aa.ModelNode("head", head, "blocks", sharding=other, optimizer=last),
    ]
    return aa.ModelGraph(nodes, optimizer, seed=3)


def checkpointed(name: str, epochs: int, folder: str) -> None:
    """Go on from the checkpoints in a folder to an epoch, with an average of weights and the best state of an epoch.

    One node is divided, and one is whole.
    """
    rows = data()
    graph = nodes_graph(rows, "below", aa.Optimizer("adam", lr=1e-3, clip_norm=0.5))
    averaging = aa.WeightAveraging(0.9, every_n_steps=2)
    phase = aa.TrainPhase(
        "train",
        data="train",
        losses=[aa.AppliedLoss("mse", on="head")],
        batch_size=96,
        epochs=epochs,
        validation="val",
        checkpoint=aa.Checkpoint(OUT / folder, every=4, wait=True),
        callbacks=[aa.EarlyStopping("val_loss", patience=50, restore_best=True), averaging],
        sharding="full",
    )
    results = aa.Experiment(graph).run_phase(phase, resume="auto")
    epochs = [[epoch.loss, epoch.validation["loss"]] for epoch in results.epochs]
    weights = [p.detach().numpy().tolist() for node in graph.nodes.values() for p in node.model.parameters()]
    averages = {key: np.asarray(value).tolist() for key, value in averaging.state_dict().items()}
    slots = {key: value.tolist() for key, value in graph.state().items() if "/optimizer" in key}
    tell(name, epochs=epochs, weights=weights, averages=averages, slots=slots)


def begin() -> None:
    """Two epochs."""
    checkpointed("begun", 2, "checkpoints")


def go_on() -> None:
    """Two more, of as many replicas as there are now; the first two in a run of its own."""
    checkpointed("gone_on", 4, "checkpoints")


def go_on_from_one() -> None:
    """The same from the checkpoints of a single process."""
    checkpointed("gone_on", 4, "from_one")


def undisturbed() -> None:
    """All four at once."""
    checkpointed("gone_on", 4, "other")


def by_hand() -> None:
    """The same rows by `fully_shard` in a loop by hand."""
    rows = data(960)
    model, graph = blocks_graph(rows)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=aa.SimpleSampler(96), epochs=3, sharding="full")
    results = aa.Experiment(graph).run_phase(phase)
    own, _ = blocks_graph(rows)
    for part in (*own.blocks, own):
        fully_shard(part)
    x, y = torch.from_numpy(rows.array("x").copy()), torch.from_numpy(rows.array("y").copy())
    optimizer = torch.optim.Adam(own.parameters(), lr=1e-3)
    part_size = 96 // SIZE
    for _ in range(3):
        for start in range(0, 960, 96):
            taken = slice(start + RANK * part_size, start + (RANK + 1) * part_size)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(own(x[taken]), y[taken]).backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 0.5)
            optimizer.step()
    whole = [parameter.full_tensor() for parameter in own.parameters()]
    apart = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), whole, strict=True))
    notes = " ".join(results.plan.notes)
    tell("by_hand", apart=apart, notes=notes)


class Scaled(torch.nn.Module):
    """A squared error with a trained scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((self.scale * outputs - targets) ** 2).mean()


def nodes() -> None:
    """One node divided and one whole: clipped together, accumulated, weighted, of two optimizers, by a class."""
    rows, adam = data(), aa.Optimizer("adam", lr=1e-3)
    on_both = [aa.AppliedLoss("mse", on="head"), aa.AppliedLoss("mse", on="blocks", weight=0.3)]
    weighted = [aa.AppliedLoss("mse", on="head", sample_weight="data.w")]
    both_ways = {"accumulate": 2, "validation": "val"}
    everything = [aa.AppliedLoss("mse", on="head", sample_weight="data.w"), aa.AppliedLoss(Scaled(), on="blocks")]
    clipped = aa.Optimizer("adamw", lr=1e-3, clip_norm=0.05)
    ways: dict[str, tuple[str, aa.Optimizer, Any, list[aa.AppliedLoss], dict[str, Any]]] = {
        "all at once": ("one", clipped, aa.Optimizer("sgd", lr=1e-2), everything, both_ways),
        "clipped": ("one", clipped, None, on_both, {"validation": "val"}),
        "accumulated": ("below", aa.Optimizer("sgd", lr=1e-2, momentum=0.9), None, on_both, {"accumulate": 3}),
        "weighted": ("below", adam, aa.Optimizer("sgd", lr=1e-2), weighted, {"accumulate": 2}),
        "class": ("below", aa.Optimizer(torch.optim.NAdam, lr=1e-3, clip_value=1e-3), None, on_both, {}),
        "own loss": ("one", adam, None, [aa.AppliedLoss(Scaled(), on="head")], {}),
    }
    for name, (way, optimizer, last, losses, more) in ways.items():
        if name != "all at once" and not IS_FULL:
            continue
        graph = nodes_graph(rows, way, optimizer, last)
        sampler = aa.SimpleSampler(80, shuffle=True)
        settings = {"sampler": sampler, "epochs": 1, "sharding": NODES[way][2], **more}
        phase = aa.TrainPhase("train", data="train", losses=losses, **settings)
        results = aa.Experiment(graph).run_phase(phase)
        again = aa.Experiment(graph).run_phase(phase)  # goes on with the optimizer state
        epochs = [[epoch.loss, *epoch.validation.values()] for epoch in (*results.epochs, *again.epochs)]
        values = {key: value.tolist() for key, value in graph.state().items()}
        tell(f"nodes-{name}", epochs=epochs, values=values, notes=results.plan.notes)


def nodes_by_hand() -> None:
    """The same rows by `fully_shard` and DistributedDataParallel in a loop by hand."""
    rows = data(480)
    graph = nodes_graph(rows, "one", aa.Optimizer("adam", lr=1e-3, clip_norm=0.05))
    losses = [aa.AppliedLoss("mse", on="head")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=aa.SimpleSampler(96), epochs=2)
    aa.Experiment(graph).run_phase(phase)
    by_hand = nodes_graph(rows, "one", aa.Optimizer("adam"))
    blocks, head = by_hand["blocks"].model, by_hand["head"].model
    for part in (*blocks.blocks, blocks):
        fully_shard(part)
    replica = torch.nn.parallel.DistributedDataParallel(head)
    x, y = torch.from_numpy(rows.array("x").copy()), torch.from_numpy(rows.array("y").copy())
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (blocks, head)]
    part_size = 96 // SIZE
    for _ in range(2):
        for start in range(0, 480, 96):
            taken = slice(start + RANK * part_size, start + (RANK + 1) * part_size)
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(replica(blocks(x[taken])), y[taken]).backward()
            divided = torch.nn.utils.get_total_norm([p.grad for p in blocks.parameters() if p.grad is not None])
            square = divided.full_tensor() ** 2 + sum(p.grad.square().sum() for p in head.parameters())
            factor = torch.clamp(0.05 / (square.sqrt() + 1e-6), max=1.0)
            for parameter in (*blocks.parameters(), *head.parameters()):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            for optimizer in optimizers:
                optimizer.step()
    values = [p.full_tensor() for p in blocks.parameters()] + list(head.parameters())
    own = [*graph["blocks"].model.parameters(), *graph["head"].model.parameters()]
    apart = max(float((a - b).detach().abs().max()) for a, b in zip(own, values, strict=True))
    tell("nodes_by_hand", apart=apart)


def nodes_memory() -> None:
    """Bytes of parameters and optimizer state of a process that has a part of one node and the whole of another."""
    rows = data(96)
    torch.manual_seed(0)
    parts = [Blocks(256, 4), torch.nn.Sequential(torch.nn.Linear(3, 2**15), torch.nn.Linear(2**15, 3))]
    nodes = [
        aa.ModelNode("blocks", parts[0], rows.reference(), sharding="full"),
        aa.ModelNode("head", parts[1], "blocks"),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-3))
    counts = Counts()
    whole = [sum(parameter.nbytes for parameter in part.parameters()) for part in parts]
    rest = storages() - sum(whole)
    losses = [aa.AppliedLoss("mse", on="head")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=aa.SimpleSampler(16), callbacks=[counts])
    aa.Experiment(graph).run_phase(phase)
    tell("nodes_memory", nbytes=counts.nbytes - rest, whole=[3 * nbytes for nbytes in whole])


def nodes_mixed() -> None:
    """Precisions over shares of equal size: one node divided, and both whole."""
    rows = data(384)
    for name, settings in (("bf16", {"precision": "bf16-mixed"}), ("fp16", {"precision": "fp16-mixed"})):
        told: dict[str, Any] = {}
        for way in ("one", "whole"):
            graph = nodes_graph(rows, way, aa.Optimizer("adamw", lr=1e-3, clip_norm=0.5))
            losses, sampler = [aa.AppliedLoss("mse", on="head")], aa.SimpleSampler(32, shuffle=True)
            watch = ReadsScale()
            phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=sampler, epochs=2, **settings)
            phase.callbacks = (watch,)
            results = aa.Experiment(graph).run_phase(phase)
            weights = [p.detach().numpy().tolist() for node in graph.nodes.values() for p in node.model.parameters()]
            told[way] = {"epochs": results.loss.tolist(), "weights": weights, "scale": watch.scale}
        tell(f"nodes_mixed-{name}", **told)


class Attentive(torch.nn.Module):
    """Blocks with norms, dropout and attention, of torch's own layers and of plain ones."""

    def __init__(self) -> None:
        super().__init__()
        width = 32
        encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        parts = [torch.nn.LayerNorm(width), torch.nn.Linear(width, 48), torch.nn.GELU(), torch.nn.Dropout(0.2)]
        self.first = torch.nn.Linear(20, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*[copy.deepcopy(part) for part in parts], torch.nn.Linear(48, width)) for _ in range(2)
        )
        self.encoders = torch.nn.ModuleList([encoder])
        self.last = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for block in self.blocks:
            x = x + block(x)
        return self.last(self.encoders[0](x.unflatten(1, (4, 8))).flatten(1))


MIXED: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16-mixed"},
    "bf16 recomputed": {"precision": "bf16-mixed", "remat": "blocks"},
    "fp16": {"precision": "fp16-mixed"},
    "fp16 skipping": {"precision": "fp16-mixed", "loss_scale": aa.LossScale(initial=2.0**26, growth_interval=5)},
    "recomputed": {"remat": "blocks"},
    "recomputed encoder": {"remat": "encoders.*"},
}


def mixed() -> None:
    """Precisions and recomputed blocks, over shares of equal size, with whole and with divided parameters."""
    torch.backends.mha.set_fastpath_enabled(False)  # it evaluates in float32, and not where modules have hooks
    rows = data(384)
    for name, settings in MIXED.items():
        if name not in ("bf16 recomputed", "fp16 skipping") and not IS_FULL:
            continue
        told: dict[str, Any] = {}
        for sharding in (None, "full"):
            torch.manual_seed(0)
            model = Attentive()
            node = aa.ModelNode("net", model, rows.reference(), remat=settings.get("remat"))
            graph = aa.ModelGraph([node], aa.Optimizer("adam", lr=3e-3), seed=3)
            phase = aa.TrainPhase(
                "train",
                data=rows,
                losses=[aa.AppliedLoss("mse", on="net")],
                sampler=aa.SimpleSampler(32, shuffle=True),
                epochs=9 if IS_FULL else 2,
                validation=aa.EvalPhase("again", data=rows),
                sharding=sharding,
                **{key: value for key, value in settings.items() if key != "remat"},
            )
            watch = ReadsScale()
            phase.callbacks = (watch,)
            results = aa.Experiment(graph).run_phase(phase)
            told[str(sharding)] = {
                "epochs": [[epoch.loss, *epoch.validation.values()] for epoch in results.epochs],
                "weights": [parameter.detach().numpy().tolist() for parameter in model.parameters()],
                "dtypes": sorted({str(parameter.dtype) for parameter in model.parameters()}),
                "scale": watch.scale,
            }
        tell(f"mixed-{name}", **told)


class Residual(torch.nn.Module):
    """Two layers around a residual, a norm and a head."""

    tp_plan: ClassVar[dict[str, str]] = {"up": "colwise", "down": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(20, 32), torch.nn.Linear(32, 20)
        self.norm, self.last = torch.nn.LayerNorm(20), torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x + self.down(torch.tanh(self.up(x)))))


def parallelized() -> None:
    """A model that its user has parallelized by its plan: each process has all rows, and a part of two layers."""
    rows = data(300)
    model = divided_residual()
    parts = {name: getattr(p, "to_local", lambda p=p: p)().numel() for name, p in model.named_parameters()}
    graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase(
        "train", data="train", losses=losses, batch_size=64, epochs=3, validation="val", replicas=1, compile="off"
    )
    results = aa.Experiment(graph).run_phase(phase)
    epochs = [[epoch.loss, *epoch.validation.values()] for epoch in results.epochs]
    values = {key: value.tolist() for key, value in graph.state().items()}
    message = ""
    if SIZE > 1:
        try:
            aa.Experiment(graph).run_phase(aa.TrainPhase("shared", data="train", losses=losses, batch_size=64))
        except AnyaccelError as error:
            message = str(error)
    limited = {name: parallelized_losses(**settings) for name, settings in LIMITED.items()}
    tell("parallelized", epochs=epochs, values=values, parts=parts, message=message, limited=limited)


def divided_residual() -> Residual:
    """The model, in several processes parallelized by its plan."""
    torch.manual_seed(0)
    model = Residual()
    if SIZE > 1:
        styles = {"colwise": ColwiseParallel(), "rowwise": RowwiseParallel()}
        mesh = init_device_mesh("cpu", (SIZE,))
        parallelize_module(model, mesh, {name: styles[style] for name, style in model.tp_plan.items()})
    return model


LIMITED: dict[str, dict[str, Any]] = {
    "norm": {"optimizer": aa.Optimizer("adam", lr=1e-2, clip_norm=0.05)},
    "norm of accumulated": {"optimizer": aa.Optimizer("sgd", lr=0.1, clip_norm=0.05), "accumulate": 2},
    "value": {"optimizer": aa.Optimizer("sgd", lr=0.1, clip_value=0.001)},
    "scaled": {
        "optimizer": aa.Optimizer("adam", lr=1e-2, clip_norm=0.05),
        "precision": "fp16-mixed",
        "loss_scale": aa.LossScale(initial=2.0**10, growth_interval=3),
        "spoiled": True,
        "compile": "steps" if SIZE > 1 else "off",
    },
    "fixed order": {"optimizer": aa.Optimizer("adam", lr=1e-2), "deterministic": True},
}


def parallelized_losses(optimizer: aa.Optimizer, *, spoiled: bool = False, **settings: Any) -> dict[str, Any]:
    """Losses of the model's steps, of which one may have more than float16 holds, and what is told meanwhile."""
    x = np.random.default_rng(2).normal(size=(128, 20)).astype(np.float32)
    y = np.tanh(x[:, :3])
    x[70] *= 1e6 if spoiled else 1
    rows = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    graph = graph_of(rows, divided_residual(), optimizer)
    watch = ReadsScale()
    phase = aa.TrainPhase(
        "train",
        data=rows,
        losses=[aa.AppliedLoss("mse", on="net")],
        batch_size=16,
        epochs=2,
        replicas=1,
        on_nan="ignore",
        callbacks=[watch],
        **{"compile": "off", **settings},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps of divided parameters are not compiled
        results = aa.Experiment(graph).run_phase(phase)
    values = [value for array in graph.state().values() for value in array.ravel().tolist()]
    told = [event.message for event in results.events if event.kind == "compile"]
    steps = graph.optimizer_states["net"].step
    return {"losses": results.loss.tolist(), "values": values, "scale": watch.scale, "steps": steps, "told": told}


class ReadsScale(aa.Callback):
    """Reads the loss scale at the end."""

    scale: Any = None

    def epoch_end(self, run: Any) -> None:
        state = run.loss_scale
        self.scale = None if state is None else [state.scale, state.skipped]


class FailsLate(aa.Callback):
    """Fails in the last replica, in the middle of an epoch."""

    def step_end(self, run: Any) -> None:
        if RANK == SIZE - 1 and run.epoch == 1 and run.step == 3:
            raise ValueError("a fault of one replica")


def lose() -> None:
    """One replica fails; its model cannot be gathered any more."""
    rows = data()
    model, graph = blocks_graph(rows)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data="train", losses=losses, batch_size=96, epochs=3, sharding="full")
    phase.callbacks = (FailsLate(),)
    try:
        aa.Experiment(graph).run_phase(phase)
    except BaseException as error:
        values = {name: bool(each.isnan().all()) for name, each in model.named_parameters()}
        shapes = [list(each.shape) for each in model.parameters()]
        notes = " ".join(getattr(error, "__notes__", []))
        tell("lose", message=str(error), lost=values, shapes=shapes, notes=notes)
        raise


def normalized() -> None:
    """Batch normalization by the rows of all, over uneven shares, of values in one and two axes, and divided."""
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, size=(51, 2, 4, 4)).astype(np.float32)
    weights = rng.uniform(0, 2, size=51).astype(np.float32)
    columns = {"x": x, "y": x[:, :, 0, 0].copy(), "w": weights}
    rows = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], ["w"])
    norm = torch.nn.BatchNorm2d
    for name, sharding in (("replicated", None), ("divided", "full")):
        torch.manual_seed(0)
        first = torch.nn.Sequential(torch.nn.Conv2d(2, 5, 3, bias=False), norm(5, momentum=None), torch.nn.ReLU())
        second = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 2))
        model = torch.nn.Sequential(first, second)
        phase = aa.TrainPhase(
            "train",
            data=rows,
            losses=[aa.AppliedLoss("mse", on="net", sample_weight="data.w" if sharding is None else None)],
            sampler=aa.SimpleSampler(7, shuffle=True),
            epochs=4,
            sharding=sharding,
            sync_batchnorm=True,
            validation=aa.EvalPhase("again", data=rows),
        )
        results = aa.Experiment(graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))).run_phase(phase)
        assert "forward" not in vars(first[1])
        epochs = [[epoch.loss, *epoch.validation.values()] for epoch in results.epochs]
        values = [value.detach().double().numpy().tolist() for value in model.state_dict().values()]
        tell(f"normalized-{name}", epochs=epochs, weights=values)


def watch_end() -> None:
    """Tells which threads are left when Python has ended."""
    names = Path("/proc/self/task").glob("*/comm")
    atexit.register(lambda: tell("ended", threads=[name.read_text().strip() for name in names]))


def end() -> None:
    """A step with divided parameters."""
    rows = data()
    graph, losses = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2)), [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data=rows, losses=losses, batch_size=len(rows), sharding="full")
    aa.Experiment(graph, progress="none").run_phase(phase)


if __name__ == "__main__":
    functions = (
        weighted,
        sources,
        ragged,
        reads_alone,
        refused,
        evaluated,
        sharded,
        memory,
        normalized,
        by_hand,
        mixed,
        parallelized,
        lose,
        nodes,
        watch_end,
    )
    functions += (
        end,
        nodes,
        nodes_by_hand,
        nodes_memory,
        nodes_mixed,
        begin,
        go_on,
        go_on_from_one,
        undisturbed,
        no_mean,
    )
    scripts: dict[str, Callable[[], None]] = {each.__name__: each for each in functions}
    for chosen in sys.argv[1].split(","):
        scripts[chosen]()
