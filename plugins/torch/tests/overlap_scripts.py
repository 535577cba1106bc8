"""Functions for the replicas of test_overlap.py; arguments are their names, and the folder for what they tell."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel_distributed import launched

PLACE = launched()
RANK, SIZE = (0, 1) if PLACE is None else (PLACE.rank, PLACE.size)
WIDTH = 32


def rows_of(n: int = 250) -> aa.FeatureSet:
    """Rows whose last batch of 48 has 10, and a column of which only some rows of a batch are above 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, WIDTH)).astype(np.float32)
    x[:, 0] = np.arange(n) % 8 >= 4
    x[:, 0] *= 2
    columns = {"x": x, "y": np.tanh(x[:, 1:4]), "k": rng.integers(0, 40, size=(n, 1))}
    return aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], ["k"])


def deep(depth: int = 4) -> nn.Sequential:
    """Linear layers of 4 KB each."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


class Tied(nn.Module):
    """The first layer once more after the second; the third is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = deep()
        self.body[2].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body[2](self.body[0](self.body[1](self.body[0](x))))
        return cast("Tensor", self.body[4](self.body[3](x)))


class Branches(nn.Module):
    """Layers that only some rows take, in an order that depends on the rows, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.some, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        layers = [self.first, self.second]
        if bool((x[:1, 0] > 1).any()):
            layers.reverse()  # another order of gradients, with the same sum
        out = torch.tanh(layers[0](x)) + torch.tanh(layers[1](x))
        some = x[:, 0] > 1
        if bool(some.any()):
            out = out + torch.where(some[:, None], self.some(x), 0.0)
        return cast("Tensor", self.last(out))


class Sparse(nn.Module):
    """Embeddings whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body = nn.Embedding(40, WIDTH, sparse=True), deep(2)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.body(x + self.table(x[:, 1].abs().mul(10).long().clamp(max=39))))


class Reentrant(nn.Module):
    """One layer in two checkpointed parts, so that its gradient comes twice; from a call on if `since` is above 0."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self.body, self.since, self.calls = deep(), since, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        x = self.body[0](x)
        for i in (1, 3, 2, 3):  # the first bucket is full before the bias of the last comes again
            x = checkpoint(self.body[i], x, use_reentrant=True) if self.calls > self.since else self.body[i](x)
        return cast("Tensor", self.body[4](x))


class Planted(nn.Module):
    """Gives infinite gradients in one step, in the last replica alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = deep(), 0

    def forward(self, x: Tensor) -> Tensor:
        out = cast("Tensor", self.body(x))
        self.calls += self.training
        return out * torch.inf if self.training and self.calls == 3 and RANK == SIZE - 1 else out


def tell(name: str, **values: Any) -> None:
    """Write what this replica found."""
    (Path(sys.argv[2]) / f"{name}-{RANK}.json").write_text(json.dumps(values))


class Batches:
    """Batches of 48 rows, and one of 10."""

    def __init__(self, rows: aa.FeatureSet) -> None:
        self.x, self.y = rows.array("x"), rows.array("y")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"x": self.x[i : i + 48], "y": self.y[i : i + 48]} for i in range(0, len(self.x), 48))


def trained(
    model: nn.Module,
    optimizer: aa.Optimizer,
    *,
    n: int = 250,
    remat: Any = None,
    batches: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Losses of epochs and final values of a training; with `batches`, over a source that makes its own."""
    rows = rows_of(n)
    data: Any = aa.IterableSource("data", Batches(rows), features="x", targets="y") if batches else rows
    kept = {} if remat is None else {"remat": remat}
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **kept)], optimizer, seed=3)
    losses, sampler = [aa.AppliedLoss("mse", on="net")], aa.SimpleSampler(48, shuffle=True)
    more = {"n_epochs": 2, "compile": "off", **({} if batches else {"sampler": sampler}), **settings}
    results = aa.Experiment(graph).run_phase(aa.TrainPhase("train", data=data, losses=losses, **more))
    weights = [parameter.detach().flatten().tolist() for parameter in model.parameters()]
    return {"losses": [epoch.loss for epoch in results.epochs], "weights": weights}


def cases() -> dict[str, dict[str, Any]]:
    """Trainings whose numbers are those of one process."""
    adam, sgd = aa.Optimizer("adam", lr=1e-2), aa.Optimizer("sgd", lr=1e-2)
    clipped = aa.Optimizer("adam", lr=1e-2, clip_norm=0.3)
    return {
        "plain": trained(deep(), adam),
        "clipped": trained(deep(), clipped, residency="streamed"),
        "accumulated": trained(deep(), aa.Optimizer("sgd", lr=1e-2, momentum=0.9), accumulate=3),
        "tied": trained(Tied(), adam),
        "branches": trained(Branches(), aa.Optimizer("adamw", lr=1e-3, weight_decay=0.1)),
        "sparse": trained(Sparse(), sgd),
        "reentrant": trained(Reentrant(0), sgd),
        "recomputed": trained(deep(), sgd, remat="[02]"),
        "a source": trained(deep(), adam, batches=True),
    }


def equal() -> None:
    """All cases."""
    for name, found in cases().items():
        tell(name, **found)


def planted() -> None:
    """A step whose gradients are infinite in one replica is skipped by all."""
    tell("planted", **trained(Planted(), aa.Optimizer("sgd", lr=1e-2), precision="fp16-mixed"))


def beside_ddp() -> None:
    """The same rows by DistributedDataParallel with buckets of 2 KB, in a loop by hand; also with `no_sync`."""
    for name, accumulate in (("ddp", 1), ("no_sync", 2)):
        rows, model, by_hand = rows_of(480), deep(), deep()
        graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("adam", lr=1e-2))
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase(
            "train", data=rows, losses=losses, sampler=aa.SimpleSampler(48), n_epochs=3, accumulate=accumulate
        )
        aa.Experiment(graph).run_phase(phase)
        x, y = torch.from_numpy(rows.array("x")), torch.from_numpy(rows.array("y"))
        ddp = nn.parallel.DistributedDataParallel(by_hand, bucket_cap_mb=0.002)
        optimizer, whole = torch.optim.Adam(ddp.parameters(), lr=1e-2), 48 * accumulate
        part = whole // SIZE
        for _ in range(3):
            for start in range(0, 480, whole):
                own = range(start + RANK * part, start + (RANK + 1) * part, 48 // SIZE)
                optimizer.zero_grad()
                for i, first in enumerate(own):
                    last = i == len(own) - 1
                    taken = slice(first, first + 48 // SIZE)
                    with _exchanging(ddp, last):
                        (nn.functional.mse_loss(ddp(x[taken]), y[taken]) / len(own)).backward()
                optimizer.step()
        apart = max(
            float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), by_hand.parameters(), strict=True)
        )
        tell(name, apart=apart)


@contextmanager
def _exchanging(ddp: nn.parallel.DistributedDataParallel, last: bool) -> Iterator[None]:
    if last:
        yield
    else:
        with ddp.no_sync():
            yield


@contextmanager
def events() -> Iterator[list[list[Any]]]:
    """What torch.distributed adds up, as it begins."""
    seen: list[list[Any]] = []
    every: Any = torch.distributed.ProcessGroup
    whole = vars(every)["allreduce"]

    def all_reduce(group: Any, tensors: list[Tensor], *rest: Any) -> Any:
        seen.append(["all-reduce", tensors[0].nbytes])
        return whole.__get__(group)(tensors, *rest)

    every.allreduce = all_reduce
    try:
        yield seen
    finally:
        every.allreduce = whole


def overlaps() -> None:
    """In which order parts of steps begin: gradients of layers, and sums over the replicas."""
    for name, settings in {"whole": {}, "parts": {"accumulate": 2}}.items():
        model = deep()
        with events() as seen:
            for i, layer in enumerate(model):
                layer.register_full_backward_pre_hook(lambda *_, i=i: seen.append(["backward", i]))
            trained(model, aa.Optimizer("sgd", lr=1e-2), n=192, n_epochs=1, **settings)
        tell(f"events of {name}", events=seen)


class Breaks(torch.autograd.Function):
    """Fails, or ends the process, in the backward pass of its fourth step in one replica."""

    calls, how = 0, "raise"

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        Breaks.calls += 1
        if Breaks.calls == 4 and RANK == 1:
            if Breaks.how == "kill":
                time.sleep(0.3)  # what was launched is done
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a fault within the backward pass")
        return gradient


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = deep()

    def forward(self, x: Tensor) -> Tensor:
        x = Breaks.apply(self.body[1](self.body[0](x)))  # type: ignore[no-untyped-call]
        return cast("Tensor", self.body[4](self.body[3](self.body[2](x))))


def broken() -> None:
    """One replica fails when the first buckets are on their way."""
    began = time.monotonic()
    try:
        trained(Breaking(), aa.Optimizer("sgd", lr=1e-2))
    except Exception as error:
        tell(Breaks.how, message=str(error), kind=type(error).__name__, seconds=time.monotonic() - began)
        traceback.print_exc()
        raise SystemExit(1) from None


def killed() -> None:
    """One is killed then."""
    Breaks.how = "kill"
    broken()


def late() -> None:
    """A gradient comes twice in a later step alone."""
    try:
        trained(Reentrant(2), aa.Optimizer("sgd", lr=1e-2))
    except AnyaccelError as error:
        tell("late", message=str(error))


if __name__ == "__main__":
    functions = (equal, planted, beside_ddp, overlaps, broken, killed, late)
    scripts: dict[str, Callable[[], None]] = {each.__name__: each for each in functions}
    for chosen in sys.argv[1].split(","):
        scripts[chosen]()
