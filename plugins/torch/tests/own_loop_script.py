"""Loops of one's own, each as a function that gives what must not depend on the number of processes.

Started as `own_loop_script.py FILE [NAME ...]`; the file gets what all functions give, or the named ones, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from own_loop_models import Generator, Net, Rows, masked_rows, network, normalizing, rows_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import anyaccel as aa


def numbers(module: nn.Module) -> list[float]:
    """A figure for each parameter and buffer; of all processes where they are divided."""
    whole = (t.full_tensor() if hasattr(t, "full_tensor") else t for t in module.state_dict().values())
    return [float(tensor.double().sum()) for tensor in whole]


def updates(n: int, size: int, accumulate: int = 1, **settings: Any) -> list[Any]:
    loop = aa.Loop("cpu", framework="torch", accumulate=accumulate, **settings)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(TensorDataset(*rows_of(n)), batch_size=size, shuffle=True, generator=order)
    net, optimizer, schedule, loader = loop.prepare(net, optimizer, schedule, loader)
    losses, norms, full = [], [], []
    for _ in loop.epochs(2):
        for x, y in loader:
            with loop.accumulate(net):
                loss = F.mse_loss(net(x), y)
                loop.backward(loss)
                full.append(loop.is_update)
                norm = loop.clip_grad_norm_(net, 1.0)
                norms += [] if norm is None else [float(norm)]
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(float(loop.reduce(loss.detach())))
    return [losses, norms, full, numbers(net), schedule.get_last_lr(), loop.step]


def ragged() -> list[Any]:
    return updates(107, 16)


def one_row() -> list[Any]:
    return updates(97, 16)


def window() -> list[Any]:
    return updates(14 * 16, 16, 3)


def divided() -> list[Any]:
    return updates(107, 16, 3, sharding="full")


def tokens() -> list[Any]:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(*masked_rows()), batch_size=6))
    means = []
    for x, y, mask in loader:
        total = ((net(x) - y).square() * mask).sum()
        loop.backward(total, count=mask.sum())
        means.append(float(loop.reduce(total.detach(), count=mask.sum())))
        optimizer.step()
        optimizer.zero_grad()
    return [means, numbers(net)]


def twice() -> list[Any]:
    """A model called twice, by its methods too; two backward passes for an update; a part without gradients."""
    loop = aa.Loop("cpu", framework="torch")
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(*rows_of(31)), batch_size=8))
    for x, y in loader:
        optimizer.zero_grad()
        loop.backward(net.loss(x, y) + F.mse_loss(net(x * 0.5), y))
        loop.backward(net.loss(x, y))
        optimizer.step()
    return [numbers(net), net.unused.weight.grad is None]


def adversaries() -> list[Any]:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    generator, judge = Generator(), network(2)
    first = torch.optim.Adam(generator.parameters(), lr=0.01)
    second = torch.optim.Adam(judge.parameters(), lr=0.01)
    x, _ = rows_of(40)
    z, _ = rows_of(41)
    loader = DataLoader(TensorDataset(x, z[:40]), batch_size=9)
    generator, judge, first, second, loader = loop.prepare(generator, judge, first, second, loader)
    for x, z in loader:
        second.zero_grad()
        made = generator(z)
        loop.backward(F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean(), judge)
        second.step()
        first.zero_grad()
        loop.backward(F.softplus(-judge(made)).mean(), generator)
        first.step()
    return [numbers(generator), numbers(judge), loop.step]


def gathered() -> list[Any]:
    """Each row once and in order, whatever it is; also in a second epoch, and of an iterator that is left early."""
    loop = aa.Loop("cpu", framework="torch")
    test = loop.prepare(DataLoader(Rows(103), batch_size=20))
    told = []
    for _ in range(2):
        found = loop.gather(
            {
                "x": batch["x"],
                "nested": ({"text": batch["text"], "nothing": None}, batch["x"][:, :1]),
                "scalar": torch.tensor(1.0),
                "wide": torch.ones(len(batch["text"]), int(batch["x"].max()) % 7 + 1),
            }
            for batch in test
        )
        kinds = [
            type(found["nested"]).__name__,
            type(found["nested"][0]["text"]).__name__,
            found["nested"][0]["nothing"],
        ]
        rows = found["x"][:, 0].tolist()
        texts = found["nested"][0]["text"]
        told += [rows, texts, found["nested"][1].shape, kinds, len(found["wide"]), set(found["scalar"]) == {1.0}]
    for batch in test:
        told.append(loop.gather(batch["x"][:, 0]).tolist())
        break
    return told


def normalized() -> list[Any]:
    """Statistics over the rows of all; a last batch with fewer rows than there are processes."""
    loop = aa.Loop("cpu", framework="torch", sync_batchnorm=True)
    net = normalizing()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(*rows_of(42)), batch_size=10))
    for x, y in loader:
        loop.backward(F.mse_loss(net(x), y))
        optimizer.step()
        optimizer.zero_grad()
    net.eval()
    return [numbers(net), net(rows_of(5)[0]).detach().flatten().tolist()]


def skipped() -> list[Any]:
    """An infinite gradient in one process skips step, schedule, average and count in all."""
    loop = aa.Loop("cpu", framework="torch", precision="fp16-mixed")
    net = network(dtype=torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    average = torch.optim.swa_utils.AveragedModel(net)
    loader = DataLoader(TensorDataset(*rows_of(32, torch.float32)), batch_size=8)
    net, optimizer, schedule, average, loader = loop.prepare(net, optimizer, schedule, average, loader)
    told: list[Any] = []
    for number, (x, y) in enumerate(loader):
        loss = F.mse_loss(net(x).float(), y) / 64
        loop.backward(loss * float("inf") if number == 1 and loop.is_main_process else loss)
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        optimizer.zero_grad()
        told.append(optimizer.was_skipped)
    scale = loop.scaler.get_scale()
    dtype = str(net(rows_of(2, torch.float32)[0]).dtype)
    return [told, loop.step, schedule.get_last_lr(), int(average.n_averaged), scale, dtype]


def interrupted_window() -> list[Any]:
    """Evaluation, and leaving the loop, within an accumulation change neither its batches nor their weights."""
    loop = aa.Loop("cpu", framework="torch", accumulate=4)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train, test = (DataLoader(TensorDataset(*rows_of(n)), batch_size=5) for n in (43, 11))
    net, optimizer, train, test = loop.prepare(net, optimizer, train, test)
    losses = []
    for stop in (3, 20):
        for number, (x, y) in enumerate(train):
            loss = F.mse_loss(net(x), y)
            with torch.no_grad():
                outputs = loop.gather(net(a) for a, _ in test)
            for _ in test:
                break
            loop.backward(loss)
            losses.append(float(loop.reduce(loss.detach())))
            optimizer.step()
            optimizer.zero_grad()
            if number == stop - 1:
                break
    return [losses, len(outputs), loop.step, numbers(net)]


def several_counts(accumulate: int) -> list[Any]:
    """Each loss is divided by its own count, that of a second model by the model's."""
    loop = aa.Loop("cpu", framework="torch", accumulate=accumulate)
    net, other = network(), network(2)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
    loader = DataLoader(TensorDataset(*masked_rows()), batch_size=6)
    net, other, optimizer, loader = loop.prepare(net, other, optimizer, loader)
    for x, y, mask in loader:
        optimizer.zero_grad()
        loop.backward(((net(x) - y).square() * mask).sum(), net, count=mask.sum())
        if accumulate == 1:
            loop.backward((net(x) - y).abs().sum(), net, count=len(x))
        loop.backward((other(x) - y).square().sum(), other, count=3 * len(x))
        optimizer.step()
    return [numbers(net), numbers(other)]


def one_batch_several_counts() -> list[Any]:
    return several_counts(1)


def window_of_several_counts() -> list[Any]:
    return several_counts(2)


def read_together() -> list[Any]:
    """Batches of two loaders, of which processes have other fractions; and how often that is said without counts."""
    loop = aa.Loop("cpu", framework="torch")
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, *loaders = loop.prepare(
        net, optimizer, *(DataLoader(TensorDataset(*rows_of(42)), batch_size=size) for size in (7, 9))
    )
    for (x, y), (others, _) in zip(*loaders, strict=False):
        optimizer.zero_grad()
        loop.backward((net(x) - y).square().sum(), count=len(x))
        loop.backward(net(others).square().sum(), count=len(others))
        optimizer.step()
    trained = numbers(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for (x, y), (others, _) in zip(*loaders, strict=False):
            optimizer.zero_grad()
            loop.backward(F.mse_loss(net(x), y) + net(others).square().mean())
            optimizer.step()
    said = [str(warning.message) for warning in caught if "several loaders at once" in str(warning.message)]
    return [trained, len(said) == (loop.num_processes > 1)]


class OwnBuffers(nn.Module):
    """Without parameters, and with values of its process."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("rank", torch.tensor(float(rank)))


def own_buffers() -> list[Any]:
    """What processes may hold apart; and that equal weights in 16 bits, with infinite and undefined ones, are equal."""
    loop = aa.Loop("cpu", framework="torch")
    net = network().to(torch.bfloat16)
    with torch.no_grad():
        net[0].weight[0, 0], net[0].weight[1] = float("inf"), float("nan")
    own, net, loader = loop.prepare(
        OwnBuffers(loop.process_index), net, DataLoader(TensorDataset(*rows_of(8)), batch_size=4)
    )
    n_rows = loop.reduce(sum(len(x) for x, _ in loader), "sum")
    return [float(own.rank) == loop.process_index, int(n_rows) == 8]


def counted() -> list[Any]:
    """What an evaluation adds up itself: a process that has no row of a batch is given none."""
    loop = aa.Loop("cpu", framework="torch")
    x, _ = rows_of(41)
    test, plain = loop.prepare(DataLoader(TensorDataset(x), batch_size=10), list(x.split(10)).__iter__())
    count, total = 0, 0.0
    with torch.no_grad():
        for (rows,) in test:
            count, total = count + len(rows), total + rows.sum()
        more = sum(len(rows) for rows in plain)
    return [int(loop.reduce(count, "sum")), float(loop.reduce(total, "sum")), int(loop.reduce(more, "sum"))]


def tokenless() -> list[Any]:
    """No token counts anywhere: nothing is trained, and nothing is NaN."""
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(*rows_of(40)), batch_size=16))
    means = []
    for x, y in loader:
        total = (0 * (net(x) - y)).sum()
        loop.backward(total, count=0)
        means.append(float(loop.reduce(total.detach(), count=0)))
        optimizer.step()
        optimizer.zero_grad()
    return [means, numbers(net)]


class Shift(nn.Module):
    """Computes in float32 under autocast, too."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.shift


def clipped() -> list[Any]:
    """Gradients are clipped after they are unscaled, and exchanged."""
    loop = aa.Loop("cpu", framework="torch", precision="fp16-mixed", accumulate=2)
    net = Shift()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    x = rows_of(50, torch.float32)[0]
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(x), batch_size=12))
    norms = []
    for (x,) in loader:
        loop.backward(net(x).square().sum(1).mean())
        norm = loop.clip_grad_norm_(net, 0.5)
        norms += [] if norm is None else [float(norm)]
        optimizer.step()
        optimizer.zero_grad()
    return [norms, net.shift.tolist()]


def exchanges() -> list[Any]:
    """Whether gradients are exchanged in each batch, as torch's profiler sees it."""
    loop = aa.Loop("cpu", framework="torch", accumulate=3)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(TensorDataset(*rows_of(56)), batch_size=4))
    told = []
    for x, y in loader:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loop.backward(F.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
        told.append(any("all_reduce" in event.key for event in profile.key_averages()))
    return [loop.num_processes > 1, told]


def order() -> list[Any]:
    """Each epoch has an order of its own, and an epoch that is set has its order whatever came before."""
    orders = []
    for n_before in (0, 2):
        torch.manual_seed(n_before)
        loop = aa.Loop("cpu", framework="torch")
        loader = loop.prepare(DataLoader(range(31), batch_size=4, shuffle=True))
        before = [loop.gather(rows for rows in loader).tolist() for _ in range(n_before)]
        loader.set_epoch(5)
        orders.append(loop.gather(rows for rows in loader).tolist())
    return [orders[0] == orders[1], before[0] != before[1], all(sorted(one) == list(range(31)) for one in orders)]


class Drawn(Dataset[list[float]]):
    """For each row its number, and a draw of torch, NumPy and Python."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> list[float]:
        return [float(i), float(torch.rand(())), float(np.random.rand()), random.random()]


def augmented() -> list[Any]:
    """What two workers of each process draw in two epochs, with a seed, again, and with another seed."""
    runs = []
    for seed in (3, 3, 4):
        loop = aa.Loop("cpu", framework="torch", seed=seed)
        loader = loop.prepare(DataLoader(Drawn(), batch_size=6, num_workers=2))
        epochs = [loop.gather(torch.stack(columns, 1) for columns in loader).tolist() for _ in range(2)]
        runs.append([row for epoch in epochs for row in epoch])
    numbers, *draws = zip(*runs[0], strict=True)
    return [list(numbers), [len(set(draw)) for draw in draws], runs[0] == runs[1], runs[0] != runs[2]]


def continued() -> list[Any]:
    """From a checkpoint of each number of processes that was here before, with and without divided parameters."""
    told: list[Any] = []
    for sharding in ("none", "full"):

        def run(n_epochs: int, folder: Path, sharding: str = sharding) -> list[Any]:
            loop = aa.Loop("cpu", framework="torch", sharding=sharding)
            net = network()
            average = [torch.optim.swa_utils.AveragedModel(net)] if sharding == "none" else []
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            loader = DataLoader(TensorDataset(*rows_of(31)), batch_size=8)
            net, optimizer, average, loader = loop.prepare(net, optimizer, average, loader)
            losses = []
            for _ in loop.epochs(n_epochs, save=folder):
                for x, y in loader:
                    loss = F.mse_loss(net(x), y)
                    losses.append(float(loop.reduce(loss.detach())))
                    loop.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    for one in average:
                        one.update_parameters(net)
            names = list(loop.unwrap(net).state_dict())
            return [losses, numbers(net), [numbers(one.module) for one in average], names]

        base = Path(os.environ["OWN_LOOP_FOLDER"]) / sharding
        loop = aa.Loop("cpu", framework="torch")
        size = loop.num_processes
        run(1, base / f"of-{size}")
        loop.barrier()  # the first process has written
        others = sorted(base.glob("of-*"))
        for other in others:
            copy = base / f"copy-{size}-{other.name}"
            if loop.is_main_process and not copy.exists():
                shutil.copytree(other, copy)
            loop.barrier()
            told.append(run(2, copy))
    return told


def agreed() -> list[Any]:
    """What all processes do together."""
    loop = aa.Loop("cpu", framework="torch")
    size, rank = loop.num_processes, loop.process_index
    loop.barrier()
    with loop.main_process_first():
        pass
    stops = loop.any(rank == size - 1)
    told = loop.broadcast({"text": "a", "tensor": torch.arange(3.0)} if rank == 0 else None)
    total = loop.reduce(torch.tensor(float(rank)), "sum"), loop.reduce(rank, "max"), loop.reduce({"a": 2.0})["a"]
    return [
        stops,
        told["text"],
        told["tensor"].tolist(),
        float(total[0]) == sum(range(size)),
        int(total[1]) == size - 1,
    ]


def sparse() -> list[Any]:
    """What becomes of sparse gradients: SGD takes them dense, and SparseAdam is replaced by Adam, as its hint says."""
    loop, message, told = aa.Loop("cpu", framework="torch"), "", []
    for kind in (torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adam):
        torch.manual_seed(0)
        net = nn.Embedding(7, 1, sparse=kind is not torch.optim.Adam)
        rows = DataLoader(TensorDataset(torch.arange(20) % 7, torch.linspace(-1, 1, 20)[:, None]), batch_size=8)
        try:
            net, optimizer, rows = loop.prepare(net, kind(net.parameters(), lr=0.1), rows)
        except aa.errors.ConfigError as error:
            message = str(error)
            continue
        for x, y in rows:
            optimizer.zero_grad()
            loop.backward((net(x) - y).square().mean())
            optimizer.step()
        told.append(net.weight.flatten().tolist())
    return [loop.num_processes, message, told[0], told[-1]]


CASES = (
    ragged,
    one_row,
    window,
    divided,
    tokens,
    twice,
    adversaries,
    gathered,
    normalized,
    skipped,
    interrupted_window,
    one_batch_several_counts,
    window_of_several_counts,
    read_together,
    own_buffers,
    counted,
    agreed,
    tokenless,
    clipped,
    exchanges,
    order,
    augmented,
    continued,
    sparse,
)


def tell(file: str, names: list[str]) -> None:
    """Write what the cases tell, all or some, in the first process."""
    told = {case.__name__: case() for case in CASES if not names or case.__name__ in names}
    if aa.Loop(framework="torch").is_main_process:
        Path(file).write_text(json.dumps(told))


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*Profiler clears events")  # torch before 2.13
    tell(sys.argv[1], sys.argv[2:])
