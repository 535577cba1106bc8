"""Trains with deterministic=True, in as many processes as a launcher made; each writes its losses and values.

Arguments: the folder; how to train, or several with commas between; the number of rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyaccel as aa
from anyaccel_distributed import launched

PLACE = launched()
RANK = 0 if PLACE is None else PLACE.rank
OUT = Path(sys.argv[1])
N = int(sys.argv[3])  # batches of 24 rows, and a last, smaller one


class Switch(torch.nn.Module):
    """Of its layers each row uses one or the other, one of them a single row of a batch, and the last none."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.rare, self.never = (torch.nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, rare = self.base(x), x[:, 0] > 2
        return out + torch.where(rare[:, None], self.rare(x), 0.0) if bool(rare.any()) else out


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
    columns = {"x": x, "y": np.tanh(x[:, :2]), "w": np.abs(x[:, 2]) * (x[:, 3] > 0)}
    return aa.FeatureSet.from_dict("d", columns, ["x"], ["y"], ["w"])


def batches() -> Iterator[dict[str, np.ndarray]]:
    """The rows in batches that are made elsewhere."""
    rows = data()
    x, y = rows.array("x"), rows.array("y")
    for start in range(0, N, 24):
        yield {"x": x[start : start + 24], "y": y[start : start + 24]}


def deep() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 2))


def trained(name: str, make: Any = deep, optimizer: Any = None, resume: str = "never", **settings: Any) -> None:
    torch.manual_seed(0)
    rows = settings.pop("data", None)
    nodes = [aa.ModelNode("net", make(), data().reference())]
    graph = aa.ModelGraph(nodes, optimizer or aa.Optimizer("adam", lr=0.01), seed=3)
    losses = settings.pop("losses", [aa.AppliedLoss("mse", "net", ["outputs", "d.y"])])
    sampler = {} if rows is not None else {"sampler": aa.SimpleSampler(24, shuffle=True)}
    given = {**sampler, "epochs": 2, "deterministic": True, **settings}
    phase = aa.TrainPhase("train", data=rows or data(), losses=losses, **given)
    results = aa.Experiment(graph, progress="none").run_phase(phase, resume=resume)
    told = {
        "losses": [[epoch.loss, epoch.validation.get("loss")] for epoch in results.epochs],
        "state": {key: np.asarray(value).tobytes().hex() for key, value in graph.state().items()},
        "events": [event.message for event in results.events if event.kind == "checkpoint"],
        "skipped": [event.message for event in results.events if event.kind == "precision"],
    }
    (OUT / f"{name}-{RANK}.json").write_text(json.dumps(told))


def plain() -> None:
    """Dropout, clipping, a validation."""
    clipped = aa.Optimizer("adam", lr=0.01, clip_norm=0.5)
    trained("plain", optimizer=clipped, validation=aa.EvalPhase("v", data=data(), batch_size=50))


def many() -> None:
    """100 steps and more."""
    trained("many", epochs=21)


def accumulated() -> None:
    """Steps of three batches, with losses that weigh rows."""
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    trained("accumulated", epochs=1, accumulate=3, losses=[loss])


def scaled() -> None:
    """Losses scaled by so much that gradients are not finite in float16, until the scale has shrunk."""
    scale = aa.LossScale(initial=2.0**24, growth_interval=2)
    trained("scaled", precision="fp16-mixed", loss_scale=scale)


def switch() -> None:
    """Parameters that only some shards use, and one that none does."""
    trained("switch", Switch, aa.Optimizer("adamw", lr=0.01, weight_decay=0.1), epochs=1)


def source() -> None:
    """Batches that are made elsewhere, which every process reads."""
    made = aa.IterableSource("d", batches, features=["x"], target=["y"])
    trained("source", epochs=1, data=made)


def unbroken() -> None:
    """What `broken` would be."""
    trained("unbroken")


class Ends(aa.Callback):
    """Ends the run in the midst of an epoch."""

    def __init__(self, never: bool = False) -> None:
        self.never = never

    def step_end(self, run: Any) -> None:
        if not self.never and run.epoch == 1 and run.step == 4:
            raise KeyError("ended here")


def broken() -> None:
    """A run that ends within an epoch, right after a checkpoint."""
    kept = aa.Checkpoint(OUT / "checkpoints", every=3, wait=True)
    try:
        trained("broken", checkpoint=kept, callbacks=[Ends()])
    except KeyError:
        return


def resumed() -> None:
    """The same from its checkpoint, with as many processes as there are now."""
    kept = aa.Checkpoint(OUT / "checkpoints", every=1000, wait=True)
    trained("resumed", checkpoint=kept, callbacks=[Ends(never=True)], resume="auto")


if __name__ == "__main__":
    functions = (plain, many, accumulated, scaled, switch, source, unbroken, broken, resumed)
    ways = {each.__name__: each for each in functions}
    for way in sys.argv[2].split(","):
        ways[way]()
