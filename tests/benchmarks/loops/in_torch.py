"""torch, and what people put around its loop: DataLoader, Accelerate, Fabric."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from loops.turns import Turn, second_of_two
from loops.workloads import Workload, workload


def by_hand(name: str, device: str = "cpu", *, autocast: bool = False) -> Turn:
    """The loop that a careful user writes: resident tensors, slices in order, a fused optimizer, losses kept.

    With `autocast` the forward pass is in bfloat16.
    """
    work = workload(name)
    x, y = (column.to(device) for column in columns(work))
    model, optimizer, loss_of = made(work, device)
    batch = work.batch

    def epoch() -> None:
        losses = []
        for start in range(0, len(x), batch):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
                loss = loss_of(model(x[start : start + batch]), y[start : start + batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.stack(losses).mean().item()

    return second_of_two(epoch)


def by_graph(name: str) -> Turn:
    """Steps that are captured once as a CUDA graph and replayed, as torch's documentation shows it."""
    work = workload(name)
    x, y = (column.to("cuda") for column in columns(work))
    model, _, loss_of = made(work, "cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    batch, kept = work.batch, torch.zeros(work.steps, device="cuda")
    own_x, own_y, where = x[:batch].clone(), y[:batch].clone(), torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(own_x), own_y)
        loss.backward()
        optimizer.step()
        kept.index_copy_(0, where, loss.detach().reshape(1))
        where.add_(1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    where.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def epoch() -> None:
        where.zero_()
        for start in range(0, len(x), batch):
            own_x.copy_(x[start : start + batch])
            own_y.copy_(y[start : start + batch])
            graph.replay()
        kept.mean().item()

    return second_of_two(epoch)


def with_dataloader(name: str, device: str = "cpu", *, gathered: bool = False) -> Turn:
    """The same with a DataLoader that shuffles; see `loader`."""
    work = workload(name)
    model, optimizer, loss_of = made(work, device)
    batches: Iterable[Any] = loader(work, gathered, pin_memory=device != "cpu")
    if device != "cpu":
        batches = Moved(batches, device)
    return over(batches, model, optimizer, loss_of, torch.Tensor.backward)


class Moved:
    """Batches of a loader on a device, by copies that the host does not wait for."""

    def __init__(self, batches: Iterable[Any], device: str) -> None:
        self.batches, self.device = batches, device

    def __iter__(self) -> Iterator[Any]:
        return ([part.to(self.device, non_blocking=True) for part in batch] for batch in self.batches)


def with_accelerate(name: str, device: str = "cpu", *, gathered: bool = False) -> Turn:
    """The loop of Hugging Face Accelerate."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    work = workload(name)
    accelerator = Accelerator(cpu=device == "cpu")
    model, optimizer, loss_of = made(work)
    rows = loader(work, gathered, pin_memory=device != "cpu")
    model, optimizer, batches = accelerator.prepare(model, optimizer, rows)
    return over(batches, model, optimizer, loss_of, accelerator.backward)


def with_fabric(name: str, *, gathered: bool = False) -> Turn:
    """The loop of Lightning Fabric."""
    from lightning_fabric import Fabric

    work = workload(name)
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer, loss_of = made(work)
    ready, stepping = fabric.setup(model, optimizer)
    batches = fabric.setup_dataloaders(loader(work, gathered))
    return over(batches, ready, stepping, loss_of, fabric.backward)


def over(
    batches: Iterable[Any], model: Any, optimizer: Any, loss_of: Callable[..., Any], backward: Callable[..., Any]
) -> Turn:
    """Epochs over an iterable of batches; losses are kept, and read when the epoch has ended."""

    def epoch() -> None:
        losses = []
        for x, y in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), y)
            backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        torch.stack(losses).mean().item()

    return second_of_two(epoch)


def loader(work: Workload, gathered: bool, *, pin_memory: bool = False) -> DataLoader[Any]:
    """A shuffling DataLoader in this process, which is faster than workers for data in memory.

    Args:
        work: the workload.
        gathered: take the rows of a batch from the tensors by one index, through the method `__getitems__` that
            torch's documentation offers for it, rather than sample by sample.
        pin_memory: give batches in page-locked memory.
    """
    if gathered:
        rows = Gathering(*columns(work))
        return DataLoader(rows, work.batch, shuffle=True, collate_fn=as_it_is, pin_memory=pin_memory)
    return DataLoader(TensorDataset(*columns(work)), work.batch, shuffle=True, pin_memory=pin_memory)


class Gathering(TensorDataset):
    """A dataset that gives a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        """The rows of a batch."""
        return tuple(column[indices] for column in self.tensors)


def as_it_is(batch: Any) -> Any:
    """A batch that needs no putting together."""
    return batch


def columns(work: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets on the CPU."""
    x, y = work.data()
    return torch.from_numpy(x), torch.from_numpy(y)


def made(work: Workload, device: str = "cpu") -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[..., Any]]:
    """Model, optimizer and loss."""
    model = (convolutional(work) if work.pictures else perceptron(work)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return model, optimizer, torch.nn.CrossEntropyLoss() if work.classes else torch.nn.MSELoss()


def perceptron(work: Workload) -> torch.nn.Sequential:
    """Linear layers with ReLU between them."""
    widths = (*work.features, *work.widths, work.outputs)
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def convolutional(work: Workload) -> torch.nn.Sequential:
    """Convolutions with ReLU and pooling, then a linear layer."""
    channels, height, width = work.features
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise((channels, *work.widths)):
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        height, width = height // 2, width // 2
    return torch.nn.Sequential(
        *layers, torch.nn.Flatten(), torch.nn.Linear(work.widths[-1] * height * width, work.outputs)
    )
