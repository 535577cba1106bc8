"""What Fabric's tests of parity check, by Fabric, by Loop, and by DistributedDataParallel, in the same processes.

The arguments are a folder, and names of checks. As in `own_loop_accelerate_script.py`, each function is a check,
which is called in one process and in two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import anyaccel as aa

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def ours(**settings: Any) -> Any:
    """Create a Loop."""
    return aa.Loop("cpu", framework="torch", **settings)


def theirs(**settings: Any) -> Fabric:
    """Create a Fabric in the processes that there are."""
    size = ours().num_processes
    strategy = {"strategy": "ddp"} if size > 1 else {}
    fabric = Fabric(accelerator="cpu", devices=size, **strategy, **settings)
    fabric.launch()
    return fabric


class Pictures(nn.Module):
    """Classify pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(8 * 25, 24), nn.ReLU(), nn.Linear(24, 10)),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        result: Tensor = self.layers(pictures)
        return result

    def loss(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """The loss, by a method that is not `forward`."""
        return F.cross_entropy(self.layers(pictures), labels)


def model() -> Pictures:
    """The same weights each time."""
    torch.manual_seed(1)
    return Pictures()


def pictures(n_rows: int) -> TensorDataset:
    """Random pictures and labels."""
    draw = torch.Generator().manual_seed(2)
    rows = torch.rand(n_rows, 3, 32, 32, generator=draw), torch.randint(0, 10, (n_rows,), generator=draw)
    return TensorDataset(*rows)


def weights(net: Any) -> list[float]:
    """All numbers of a model."""
    return [float(value) for tensor in net.state_dict().values() for value in tensor.flatten()]


def same(own: Any, other: Any, within: float = 1e-6) -> None:
    """Require the same numbers."""
    torch.testing.assert_close(torch.tensor(own), torch.tensor(other), rtol=within, atol=within)


Step = Callable[[Any, Tensor, Tensor], Tensor]
"""The loss of a batch."""


def of_outputs(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """The loss by the model's `forward`."""
    return F.cross_entropy(net(x), y)


def by_plain_torch(clip: Callable[[Any], object] = lambda net: None, accumulate: int = 1) -> list[float]:
    """Train with DistributedDataParallel, as one writes it by hand."""
    loop, net = ours(), model()
    wrapped = DistributedDataParallel(net) if loop.num_processes > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = pictures(16)
    sampler = None if loop.num_processes == 1 else DistributedSampler(data, shuffle=False)
    for number, (x, y) in enumerate(DataLoader(data, batch_size=2, sampler=sampler)):
        ends = (number + 1) % accumulate == 0
        with nullcontext() if ends or loop.num_processes == 1 else wrapped.no_sync():
            (of_outputs(wrapped, x, y) / accumulate).backward()
        if ends:
            clip(net)
            optimizer.step()
            optimizer.zero_grad()
    return weights(net)


def by_fabric(
    clip: Callable[[Fabric, Any, Any], object] = lambda fabric, net, optimizer: None,
    accumulate: int = 1,
    **settings: Any,
) -> list[float]:
    """Train with Fabric."""
    fabric, net = theirs(**settings), model()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(pictures(16), batch_size=2))
    for number, (x, y) in enumerate(loader):
        ends = (number + 1) % accumulate == 0
        with fabric.no_backward_sync(net, enabled=not ends):
            fabric.backward(of_outputs(net, x, y) / accumulate)
        if ends:
            clip(fabric, net, optimizer)
            optimizer.step()
            optimizer.zero_grad()
    return weights(net)


def by_loop(
    clip: Callable[[Any, Any], object] = lambda loop, net: None, step: Step = of_outputs, **settings: Any
) -> Any:
    """Train with Loop: batches of the rows that DistributedSampler deals out, one for each process and the next."""
    loop, net = ours(**settings), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(pictures(16), batch_size=2 * loop.num_processes)
    net, optimizer, loader = loop.prepare(net, optimizer, loader)
    for x, y in loader:
        loop.backward(step(net, x, y))
        clip(loop, net)
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


@check
def parity_with_plain_training_and_ddp() -> None:
    plain = by_plain_torch()
    assert plain != weights(model())
    same(by_loop(), plain, 0.0 if ours().num_processes == 1 else 1e-6)  # to the bit
    same(by_fabric(), plain)


@check
def clipping() -> None:
    for norm in (2.0, float("inf")):
        hand = by_plain_torch(lambda net, n=norm: nn.utils.clip_grad_norm_(net.parameters(), 0.05, n))
        same(by_loop(lambda loop, net, n=norm: loop.clip_grad_norm_(net, 0.05, n)), hand)
        same(
            by_fabric(lambda fabric, net, opt, n=norm: fabric.clip_gradients(net, opt, max_norm=0.05, norm_type=n)),
            hand,
        )
    hand = by_plain_torch(lambda net: nn.utils.clip_grad_value_(net.parameters(), 0.01))
    same(by_loop(lambda loop, net: loop.clip_grad_value_(net, 0.01)), hand)
    same(by_fabric(lambda fabric, net, optimizer: fabric.clip_gradients(net, optimizer, clip_val=0.01)), hand)


@check
def no_backward_sync() -> None:
    hand = by_plain_torch(accumulate=2)
    same(by_loop(accumulate=2), hand)
    same(by_fabric(accumulate=2), hand)


@check
def precision() -> None:
    within = 1e-6 if ours().num_processes == 1 else 5e-3  # sums of rows, divided after the exchange, round otherwise
    same(by_loop(precision="bf16-mixed"), by_fabric(precision="bf16-mixed"), within)
    loop = ours(precision="bf16-mixed")
    net, x = loop.prepare(model()), torch.zeros(1, 3, 32, 32)
    assert net(x).dtype == net.layers(x).dtype == torch.float32  # as Fabric's outputs
    with loop.autocast():
        assert net(x).dtype == torch.bfloat16


@check
def methods_train_without_a_mark() -> None:
    same(by_loop(step=lambda net, x, y: net.loss(x, y)), by_plain_torch())


@check
def models_and_optimizers_in_any_order() -> None:
    loop = ours()
    net, other = model(), nn.Linear(2, 2)
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (net, other))
    assert loop.prepare(second, other, net, first) == (second, other, net, first)
    x, y = pictures(4).tensors
    loop.backward(of_outputs(net, x, y), net, count=4)
    first.step()
    assert weights(net) != weights(model()) and all(p.grad is None for p in other.parameters())


class Counting(Dataset[int]):
    """A data set that keeps the epochs that it is told."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        return i

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@check
def epochs_have_orders_of_their_own() -> None:
    loop = ours()
    torch.manual_seed(5)
    data = Counting()
    loader = loop.prepare(DataLoader(data, batch_size=4, shuffle=True))
    orders = [loop.gather(batch for batch in loader).tolist() for _ in range(4)]
    assert len({tuple(order) for order in orders}) == 4 and all(sorted(order) == list(range(8)) for order in orders)
    assert all(other == orders for other in loop.gather([orders]))
    loader.set_epoch(1)
    once = loop.gather(batch for batch in loader).tolist()
    loader.set_epoch(1)
    assert loop.gather(batch for batch in loader).tolist() == once and data.epochs == [1, 1]


@check
def values_of_all_processes() -> None:
    fabric, loop = theirs(), ours()
    rank, size = loop.process_index, loop.num_processes
    own = torch.arange(3.0) + rank
    assert loop.gather(own).tolist() == fabric.all_gather(own).flatten().tolist()
    for how in ("mean", "sum"):
        assert loop.reduce(own, how).tolist() == fabric.all_reduce(own.clone(), reduce_op=how).tolist()
    assert loop.broadcast({"rank": rank}, source=size - 1) == fabric.broadcast({"rank": rank}, src=size - 1)


if __name__ == "__main__":
    from checks_in_processes import run

    run(CHECKS, sys.argv[2:], Path(sys.argv[1]), ours().process_index)
