"""Functions for the replicas of test_overlap.py; arguments are their names, and the folder for what they tell."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel_distributed import Replicate, launched
from anyaccel_torch import TorchBackend
from anyaccel_torch.gradient_buckets import exchanged_bytes
from anyaccel_torch.program import BackwardPass, OverlappedPass, StepWeight

PLACE = launched()
RANK, SIZE = (0, 1) if PLACE is None else (PLACE.rank, PLACE.size)
WIDTH = 32


def rows_of(n: int = 250, *, last: float | None = None) -> aa.FeatureSet:
    """Rows whose last batch of 48 has 10, and a column of which only some rows of a batch are above 1.

    Args:
        n: how many.
        last: the value of another column in the last row.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, WIDTH)).astype(np.float32)
    x[:, 0] = np.arange(n) % 8 >= 4
    x[:, 0] *= 2
    if last is not None:
        x[-1, 1] = last
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


class Once(nn.Module):
    """Each layer in a checkpointed part of its own: its gradient comes once, and is not found from the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = deep()

    def forward(self, x: Tensor) -> Tensor:
        x = self.body[0](x)
        for i in (1, 2, 3):
            x = checkpoint(self.body[i], x, use_reentrant=True)
        return cast("Tensor", self.body[4](x))


class LastStep(nn.Module):
    """A branch that only the last row takes, and so one replica in the last step of an epoch in order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = deep()
        self.branch = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = cast("Tensor", self.body(x))
        taken = x[:, 1] > 50
        return out + torch.where(taken[:, None], self.branch(x / 50), 0.0) if bool(taken.any()) else out


class LateSparse(nn.Module):
    """An embedding that only the last row takes, whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.body = deep()
        self.table = nn.Embedding(4, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        out = cast("Tensor", self.body(x))
        taken = x[:, 1] > 50
        return out + torch.where(taken[:, None], self.table(taken.long()), 0.0) if bool(taken.any()) else out


class Planted(nn.Module):
    """Gives infinite gradients in one step, in the last replica alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = deep(), 0

    def forward(self, x: Tensor) -> Tensor:
        out = cast("Tensor", self.body(x))
        self.calls += self.training
        return out * torch.inf if self.training and self.calls == 3 and RANK == SIZE - 1 else out


class Delayed(torch.optim.Optimizer):
    """Steps with the gradient of the step before, which it keeps as it is."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if "gradient" in state:
                        parameter.sub_(group["lr"] * state["gradient"])
                    state["gradient"] = parameter.grad


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
    last: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Losses of epochs and final values of a training; with `batches`, over a source that makes its own."""
    rows = rows_of(n, last=last)
    data: Any = aa.IterableSource("data", Batches(rows), features="x", target="y") if batches else rows
    kept = {} if remat is None else {"remat": remat}
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **kept)], optimizer, seed=3)
    losses, sampler = [aa.AppliedLoss("mse", on="net")], aa.SimpleSampler(48, shuffle=True)
    more = {"epochs": 2, "compile": "off", **({} if batches else {"sampler": sampler}), **settings}
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
        "reentrant once": trained(Once(), sgd),
        "last step": trained(LastStep(), sgd, last=100.0, sampler=aa.SimpleSampler(48)),
        "last step accumulated": trained(LastStep(), sgd, last=100.0, sampler=aa.SimpleSampler(48), accumulate=5),
        "sparse in the last step": trained(LateSparse(), sgd, last=100.0, sampler=aa.SimpleSampler(48)),
        "recomputed": trained(deep(), sgd, remat="[02]"),
        "a source": trained(deep(), adam, batches=True),
        "kept gradients": trained(deep(), aa.Optimizer(Delayed, lr=1e-2)),
    }


def equal() -> None:
    """All cases."""
    for name, found in cases().items():
        tell(name, **found)


def planted() -> None:
    """A step whose gradients are infinite in one replica is skipped by all."""
    tell("planted", **trained(Planted(), aa.Optimizer("sgd", lr=1e-2), precision="fp16-mixed"))


class Noted(nn.Module):
    """A model of a user's own class, with hooks, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = deep(), nn.Linear(WIDTH, WIDTH)
        self.calls: list[str] = []
        self.most_wrappers = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most_wrappers = max(self.most_wrappers, n_wrappers())
        return cast("Tensor", self.body(x))

    def note(self, name: str, *_: Any) -> None:
        """A hook."""
        self.calls.append(name)


def n_wrappers() -> int:
    """How many DistributedDataParallel there are."""
    return sum(isinstance(part, nn.parallel.DistributedDataParallel) for part in gc.get_objects())


def untouched() -> None:
    """What is left of a phase in a model: nothing but its values."""
    model = Noted()
    parameters, names = list(model.parameters()), list(model.state_dict())
    model.body[1].register_forward_hook(lambda *_: model.note("forward"))
    model.body[1].register_full_backward_hook(lambda *_: model.note("backward"))
    model.body[1][0].weight.register_post_accumulate_grad_hook(lambda *_: model.note("gradient"))  # type: ignore[no-untyped-call]
    gc.disable()
    trained(model, aa.Optimizer("adamw", lr=1e-2, weight_decay=0.5), n=192, epochs=1)
    left = n_wrappers()
    gc.enable()
    steps = {name: model.calls.count(name) for name in ("backward", "gradient")}
    model.body[1]._forward_hooks.clear()  # noqa: SLF001  (functions in functions are not pickled)
    model.body[1]._backward_hooks.clear()  # noqa: SLF001
    model.body[1][0].weight._post_accumulate_grad_hooks.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    again, copied = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    if RANK == 0:  # by itself: nothing waits for the others
        model(torch.ones(2, WIDTH)).sum().backward()
    tell(
        "untouched",
        used=model.most_wrappers,
        left=left,
        steps=steps,
        kind=type(model).__name__,
        same=all(a is b for a, b in zip(parameters, model.parameters(), strict=True)),
        names=list(model.state_dict()) == names == list(again.state_dict()) == list(copied.state_dict()),
        unused=model.unused.weight.grad is None and torch.equal(model.unused.weight, again.unused.weight),
        has_gradient=model.body[0][0].weight.grad is not None,
        unused_sum=float(model.unused.weight.detach().sum()),
    )


def group() -> Any:
    """The group of this replica."""
    return TorchBackend().required(Replicate).replica_group(RANK, SIZE)


def sixteen_bits() -> None:
    """Gradients of bfloat16 of one and two rows are added up in float32."""
    group()
    torch.manual_seed(0)
    every = torch.randn(2, 4096).bfloat16()
    parameter = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    backward = OverlappedPass([parameter], drops_gradients=True)
    backward.run([(parameter * every[RANK]).sum()], [None])
    backward.decide(sums=backward.is_summable, bucket_bytes=1000.0)
    parameter.grad = None
    backward.expect(StepWeight(RANK + 1, RANK + 1))
    backward.run([(parameter * every[RANK]).sum()], [None])
    backward.finish()
    wide = (every[0].float() * (1 / 3) + every[1].float() * (2 / 3)).bfloat16()
    narrow = every[0] * (1 / 3) + every[1] * (2 / 3)
    tell("16 bits", same=bool((parameter.grad == wide).all()), apart=bool((narrow != wide).any()))
    backward.close()


def without_rows() -> None:
    """A replica that has no rows for a program takes part in its sums."""
    group()
    first, second = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    backward = OverlappedPass([first, second], drops_gradients=True)
    backward.run([first.sum()], [None])
    backward.decide(sums=backward.is_summable, bucket_bytes=4.0)
    first.grad = None
    rows = 4.0 if RANK == 0 else 0.0
    backward.expect(StepWeight(rows, rows))
    if RANK == 0:
        backward.run([2 * first.sum()], [None])
    backward.finish()
    tell("without rows", first=first.grad.tolist(), second=second.grad is None)
    backward.close()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations give, as long as they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.see(tensor.untyped_storage())
        return result

    def see(self, storage: Any) -> None:
        key = storage._cdata  # noqa: SLF001  (the identity of a storage; its Python objects come and go)
        if key not in self.known:
            self.known.add(key)
            self.live += storage.nbytes()
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self.forget, key, storage.nbytes())

    def forget(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.live -= nbytes


class Shared:
    """A program whose gradients are exchanged after the pass."""

    is_divided, backward = False, BackwardPass()

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.trained, self.gradient_bytes = parameters, sum(map(exchanged_bytes, parameters))


def bounded() -> None:
    """The most that gradients and messages of a step take, and the bytes of all gradients."""
    joined = group()
    default = joined.bucket_bytes
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        parameters = [nn.Parameter(torch.zeros(64, 64, dtype=dtype)) for _ in range(16)]
        joined.bucket_bytes = 2 * exchanged_bytes(parameters[0])  # eight buckets
        counter = LiveBytes()
        with counter:
            for parameter in reversed(parameters):
                (parameter * (RANK + 1)).sum().backward()  # type: ignore[no-untyped-call]
            joined.average_gradients([Shared(parameters)], RANK + 1.0)
        mean = (1 + 2 * 2) / 3
        close = all(
            parameter.grad is not None and torch.allclose(parameter.grad.float(), torch.tensor(mean), rtol=1e-2)
            for parameter in parameters
        )
        tell(f"bounded {name}", most=counter.most, whole=sum(p.nbytes for p in parameters), close=close)
    joined.bucket_bytes = default


def beside_ddp() -> None:
    """The same rows by DistributedDataParallel with buckets of 2 KB, in a loop by hand; also with `no_sync`."""
    for name, accumulate in (("ddp", 1), ("no_sync", 2)):
        rows, model, by_hand = rows_of(480), deep(), deep()
        graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("adam", lr=1e-2))
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase(
            "train", data=rows, losses=losses, sampler=aa.SimpleSampler(48), epochs=3, accumulate=accumulate
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
            trained(model, aa.Optimizer("sgd", lr=1e-2), n=192, epochs=1, **settings)
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
    functions = (
        *(equal, planted, beside_ddp, overlaps, broken, killed, late),
        *(untouched, sixteen_bits, without_rows, bounded),
    )
    scripts: dict[str, Callable[[], None]] = {function.__name__: function for function in functions}
    for chosen in sys.argv[1].split(","):
        scripts[chosen]()
