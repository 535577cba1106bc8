"""What Accelerate's own tests check, as checks of Loop in one process or several.

The arguments are a folder, and names of checks. Each function is a check. `test_own_loop_accelerate.py` calls them, and
starts this file in two processes, which write the names of those that held, and tracebacks of the others.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, OneCycleLR
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

import anyaccel as aa
from anyaccel.errors import ConfigError, DataError

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def line() -> nn.Linear:
    """A line to be fitted."""
    torch.manual_seed(42)
    return nn.Linear(1, 1)


def points(n_rows: int) -> TensorDataset:
    """Points on a line, with noise."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n_rows, 1, generator=draw)
    return TensorDataset(x, 2 * x + 3 + 0.1 * torch.randn(n_rows, 1, generator=draw))


def mse(net: nn.Module, batch: Any) -> Tensor:
    """The mean squared error of a batch."""
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def gradients(net: nn.Module) -> list[float]:
    """All gradients."""
    return [float(value) for parameter in net.parameters() for value in parameter.grad.flatten()]


def numbers(batches: Any) -> list[list[int]]:
    """Batches of numbers as lists."""
    return [batch.tolist() for batch in batches]


class Rows(IterableDataset[Any]):
    """Rows that can only be iterated over, with or without a length."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        yield from self.rows


class SizedRows(Rows):
    """The same with a length."""

    def __len__(self) -> int:
        return len(self.rows)


# -- test_sync.py: gradients meet once an update -----------------------------------------------------------------------


@check
def gradients_are_shared_with_the_last_batch_of_an_update() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net, by_hand = line(), line()
    data = points(80)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(data, batch_size=16))
    window: list[Any] = []
    n_updates = 0
    for batch, whole in zip(loader, DataLoader(data, batch_size=16), strict=True):
        window.append(whole)
        is_update = loop.is_update
        loop.backward(mse(net, batch))
        if not is_update:
            of_processes = loop.gather(gradients(net)[0])
            assert len(set(of_processes)) == loop.num_processes  # each has its own
            assert loop.clip_grad_norm_(net, 1e-9) is None
        else:
            by_hand.zero_grad()
            sum(mse(by_hand, part) * len(part[0]) for part in window).backward()
            expected = [value / sum(len(part[0]) for part in window) for value in gradients(by_hand)]
            norm = loop.clip_grad_norm_(net, 1e9)
            assert gradients(net) == pytest.approx(expected, rel=1e-5)
            assert float(norm) == pytest.approx(torch.tensor(expected).norm().item(), rel=1e-5)
            window, n_updates = [], n_updates + 1
        optimizer.step()
        optimizer.zero_grad()
    assert n_updates == loop.step == 3  # of 2, 2 and 1 batches


@check
def several_forward_passes_may_come_before_their_backward_passes() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=3)
    net, by_hand = line(), line()
    data = points(48)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(data, batch_size=16))
    losses = [(mse(net, batch) * len(batch[0]), len(batch[0])) for batch in loader]
    for number, (loss, n_rows) in enumerate(losses):
        with loop.accumulate(net):
            loop.backward(loss, count=n_rows)
            assert loop.is_update == (number == 2)
    loop.clip_grad_norm_(net, 1e9)
    mse(by_hand, data.tensors).backward()
    assert gradients(net) == pytest.approx(gradients(by_hand), rel=1e-5)


@check
def optimizer_and_schedule_follow_updates() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    data = points(80)

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, LambdaLR]:
        net = line()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        return net, optimizer, LambdaLR(optimizer, lambda epoch: (1 + epoch) ** 0.65)

    net, optimizer, schedule, loader = loop.prepare(*parts(), DataLoader(data, batch_size=16))
    by_hand, its_optimizer, its_schedule = parts()
    for number, (batch, whole) in enumerate(zip(loader, DataLoader(data, batch_size=16), strict=True)):
        with loop.accumulate(net):
            loop.backward(mse(net, batch))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        n_batches = 1 if number == 4 else 2  # the last update has one
        (mse(by_hand, whole) / n_batches).backward()
        if number % 2 == 1 or number == 4:
            its_optimizer.step()
            its_schedule.step()
            its_optimizer.zero_grad()
        assert schedule.get_last_lr() == its_schedule.get_last_lr()
        for own, other in zip(net.parameters(), by_hand.parameters(), strict=True):
            assert own.item() == pytest.approx(other.item(), rel=1e-6)


@check
def another_loader_within_an_epoch_does_not_end_it() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=100)
    first, second = loop.prepare(
        DataLoader(points(80), batch_size=16), DataLoader(points(96), batch_size=16), batch="global"
    )
    ends = []
    for number, _ in enumerate(first):
        ends.append(loop.is_update)
        if number == 1:
            for inner, _ in enumerate(second):
                assert loop.is_update == (inner == 5)
            assert not loop.is_update
        if number == 2:
            for _ in second:
                break
            assert not loop.is_update
    assert ends == [False] * 4 + [True]


# -- test_ops.py: values of all processes ------------------------------------------------------------------------------


def own_tensor(loop: Any) -> Tensor:
    """As many numbers as there are processes, which go on from those of the process before."""
    return torch.arange(loop.num_processes) + 1.0 + loop.num_processes * loop.process_index


@check
def tensors_and_objects_are_gathered_in_order() -> None:
    loop = aa.Loop("cpu", framework="torch")
    size = loop.num_processes
    assert loop.gather(own_tensor(loop)).tolist() == list(range(1, size**2 + 1))
    assert loop.gather([loop.process_index]) == list(range(size))
    assert loop.gather(["rank", str(loop.process_index)]) == [t for i in range(size) for t in ("rank", str(i))]
    across = torch.arange(12).view(4, 3).t()
    assert not across.is_contiguous() and torch.equal(loop.gather(across), torch.cat([across] * size))


@check
def values_are_broadcast() -> None:
    loop = aa.Loop("cpu", framework="torch")
    assert loop.broadcast(own_tensor(loop)).tolist() == list(range(1, loop.num_processes + 1))
    last = loop.num_processes - 1
    assert loop.broadcast({"name": f"rank {loop.process_index}"}, source=last) == {"name": f"rank {last}"}
    unlike = torch.ones(1, 2) if loop.is_main_process else torch.ones(3)
    assert loop.broadcast(unlike).shape == (1, 2)  # of another shape there, which is no matter


@check
def unlike_widths_are_padded() -> None:
    loop = aa.Loop("cpu", framework="torch")
    width = 3 if loop.is_main_process else 2
    padded = loop.gather(torch.arange(width)[None], pad=0)
    assert padded.tolist() == [[0, 1, 2], *([[0, 1, 0]] * (loop.num_processes - 1))]


@check
def values_are_reduced() -> None:
    loop = aa.Loop("cpu", framework="torch")
    size = loop.num_processes
    every = [[1.0 + i + size * rank for i in range(size)] for rank in range(size)]
    by_hand: dict[str, Any] = {"sum": sum, "max": max, "min": min, "mean": lambda column: sum(column) / size}
    for how, function in by_hand.items():
        reduced = loop.reduce(own_tensor(loop), how)
        assert reduced.tolist() == [function(column) for column in zip(*every, strict=True)]
    assert not loop.any(False) and loop.any(loop.process_index == size - 1)


@check
def unlike_shapes_are_an_error_and_no_stall() -> None:
    loop = aa.Loop("cpu", framework="torch")
    if loop.num_processes == 1:
        return
    shape = (1, 5) if loop.is_main_process else (1, 1, 6)
    for act in (loop.gather, loop.reduce):
        with pytest.raises(DataError, match=r"dimensions|shape"):
            act({"tensor": torch.zeros(shape)})
    name = "a" if loop.is_main_process else "b"
    for act in (loop.gather, loop.reduce):
        with pytest.raises(DataError, match="structures"):
            act({name: torch.zeros(2)})
    assert loop.reduce(1.0, "sum") == loop.num_processes  # they go on


@check
def rows_of_many_batches_are_gathered_after_the_loop() -> None:
    loop = aa.Loop("cpu", framework="torch")
    loader = loop.prepare(DataLoader(TensorDataset(torch.arange(10)), batch_size=4))
    outputs, texts = [], []
    for (x,) in loader:
        outputs.append(x)
        texts += [str(int(number)) for number in x]
        with pytest.raises(DataError, match="for a batch of"):
            loop.gather(torch.zeros(7))
        with pytest.raises(DataError, match="a list of 7 items for a batch of"):
            loop.gather(["text"] * 7)
    assert sorted(loop.gather(torch.cat(outputs)).tolist()) == list(range(10))
    assert sorted(map(int, loop.gather(texts))) == list(range(10))
    assert loop.gather([[1, 2, 3]]) == [[1, 2, 3]] * loop.num_processes


# -- test_metrics.py: each row once ------------------------------------------------------------------------------------


@check
def each_row_is_evaluated_once() -> None:
    loop = aa.Loop("cpu", framework="torch")
    for n_rows, batch_size in itertools.product((99, 82, 1), (1, 16, 512)):
        data = TensorDataset(torch.arange(n_rows), torch.arange(n_rows) % 3)
        loader = loop.prepare(DataLoader(data, batch_size=batch_size))
        for _ in range(2 if batch_size > 1 else 1):
            rows, labels = loop.gather((x, y) for x, y in loader)
            assert rows.tolist() == list(range(n_rows)) and labels.tolist() == [i % 3 for i in range(n_rows)]
        batch_by_batch = [loop.gather(x) for x, _ in loader] if batch_size > 1 else [rows]
        assert torch.cat(batch_by_batch).tolist() == list(range(n_rows))


@check
def iterables_are_evaluated_once() -> None:
    loop = aa.Loop("cpu", framework="torch")
    texts = [{"number": torch.tensor(i), "text": f"text {i}"} for i in range(30)]
    for kind in (Rows, SizedRows):
        for rows in (list(range(30)), torch.arange(30)):
            loader = loop.prepare(DataLoader(kind(rows), batch_size=4))
            assert torch.cat([loop.gather(batch) for batch in loader]).tolist() == list(range(30))
            assert loop.gather(batch for batch in loader).tolist() == list(range(30))
        gathered = loop.gather(batch for batch in loop.prepare(DataLoader(kind(texts), batch_size=4)))
        assert gathered["text"] == [row["text"] for row in texts] and gathered["number"].tolist() == list(range(30))


@check
def dropped_rows_stay_dropped() -> None:
    loop = aa.Loop("cpu", framework="torch")
    loader = loop.prepare(DataLoader(range(13), batch_size=5, drop_last=True))
    assert loop.gather(batch for batch in loader).tolist() == list(range(10))


# -- test_data_loader.py: who gets which rows --------------------------------------------------------------------------


@check
def batches_are_divided_and_no_row_is_repeated() -> None:
    loop = aa.Loop("cpu", framework="torch")
    for n_rows, batch_size, drop_last in itertools.product((24, 22, 21, 20, 2), (3, 4), (False, True)):
        sampler = BatchSampler(range(n_rows), batch_size, drop_last)
        for batch in ("global", "per_replica"):
            made = DataLoader(range(n_rows), batch_sampler=sampler)
            loader = loop.prepare(made, batch=batch)
            together = loop.num_processes if batch == "per_replica" else 1
            merged = [list(itertools.chain(*some)) for some in _in_groups(list(sampler), together)]
            with torch.no_grad():  # where no process is given a row of another
                shares = [loader.share.rows for _ in loader]
            of_all = loop.gather([shares])
            assert [sum(of_processes) for of_processes in zip(*of_all, strict=True)] == list(map(len, merged))
            assert all(max(parts) - min(parts) <= 1 for parts in zip(*of_all, strict=True))
            assert len(loader) == len(merged) == len(shares)
            assert numbers(loop.gather(rows) for rows in loader) == merged


def _in_groups(batches: list[Any], size: int) -> list[list[Any]]:
    return [batches[start : start + size] for start in range(0, len(batches), size)]


@check
def batches_of_varying_size_are_divided() -> None:
    class Varying(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            rows = iter(range(14))
            return (list(itertools.islice(rows, size)) for size in (3, 2, 4, 3, 2))

        def __len__(self) -> int:
            return 5

    loop = aa.Loop("cpu", framework="torch")
    sampler = Varying(SequentialSampler(range(14)), 3, False)
    loader = loop.prepare(DataLoader(range(14), batch_sampler=sampler))
    assert numbers(loop.gather(rows) for rows in loader) == list(sampler)


@check
def iterables_of_any_length_are_divided() -> None:
    loop = aa.Loop("cpu", framework="torch")
    for n_rows in (1, 5, 44):
        loader = loop.prepare(DataLoader(Rows(range(n_rows)), batch_size=4))
        assert numbers(loop.gather(rows) for rows in loader) == _in_groups(list(range(n_rows)), 4)
    without = loop.prepare(Batches())
    assert numbers(loop.gather(rows) for rows in without) == [[0, 1, 2], [3, 4]]


class Batches:
    """Batches of no DataLoader."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.arange(3)
        yield torch.arange(3, 5)


@check
def one_seed_is_one_order_in_all_processes() -> None:
    orders = []
    for seed in (3, 3, 4):
        loop = aa.Loop("cpu", framework="torch", seed=seed)
        loader = loop.prepare(DataLoader(range(32), batch_size=4, shuffle=True))
        orders.append([loop.gather(rows for rows in loader).tolist() for _ in range(2)])
        assert all(other == orders[-1] for other in loop.gather([orders[-1]]))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][1]
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == list(range(32))


@check
def a_loader_goes_on_where_it_was() -> None:
    loop = aa.Loop("cpu", framework="torch")
    for n_workers in (0, 2):
        make = lambda n=n_workers: loop.prepare(DataLoader(range(16), batch_size=4, num_workers=n))  # noqa: E731
        loader, resumed = make(), make()
        state = None
        for number, _ in enumerate(loader):
            if number == 1:
                state = loader.state_dict()
        resumed.load_state_dict(state)
        assert numbers(loop.gather(rows) for rows in resumed) == [[8, 9, 10, 11], [12, 13, 14, 15]]
        assert numbers(loop.gather(rows) for rows in resumed) == numbers(loop.gather(rows) for rows in loader)
        assert resumed.epoch == loader.epoch == 2


@check
def the_end_of_a_loader_is_seen() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=100)
    for data in (range(16), Rows(range(16))):
        loader = loop.prepare(DataLoader(data, batch_size=4))
        for _ in range(2):
            assert [loop.is_update for _ in loader] == [False, False, False, True]


@check
def samplers_are_told_of_an_epoch_that_is_set() -> None:
    class Sampler(BatchSampler):
        epoch = 0

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[(self.epoch + i) % 4 for i in range(4)]])

        def __len__(self) -> int:
            return 1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    loop = aa.Loop("cpu", framework="torch")
    sampler = Sampler(SequentialSampler(range(4)), 4, False)
    loader = loop.prepare(DataLoader(range(4), batch_sampler=sampler))
    assert loader.batch_sampler.epoch == 0
    loader.set_epoch(1)
    assert loader.batch_sampler.epoch == 1
    assert numbers(loop.gather(rows) for rows in loader) == [[1, 2, 3, 0]]


@check
def nothing_keeps_what_was_prepared() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net = line()
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, made, DataLoader(points(8), batch_size=4))
    for batch in loader:
        loop.backward(mse(net, batch))
        optimizer.step()
    references = [weakref.ref(item) for item in (loop, net, optimizer, loader)]
    del loop, net, made, optimizer, loader, batch
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


# -- complete_cv_example.py: a frozen backbone, whose parameters the optimizer has, too --------------------------------


@check
def frozen_parameters_may_be_thawed_if_they_were_prepared_to_be_trained() -> None:
    data = points(20)

    def thawed(freeze_first: bool) -> tuple[Any, nn.Module]:
        loop = aa.Loop("cpu", framework="torch", accumulate=2)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net[0].requires_grad_(not freeze_first)
        net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(data, batch_size=5))
        for epoch in range(2):
            net[0].requires_grad_(epoch == 1)
            for batch in loader:
                loop.backward(mse(net, batch))
                optimizer.step()
                optimizer.zero_grad()
        return loop, net

    with pytest.raises(ConfigError, match="was frozen in prepare"):
        thawed(freeze_first=True)
    loop, net = thawed(freeze_first=False)
    torch.manual_seed(0)
    by_hand = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for epoch in range(2):
        by_hand[0].requires_grad_(epoch == 1)
        for batch in DataLoader(data, batch_size=10):
            mse(by_hand, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    for own, other in zip(net.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6)
    assert torch.zeros(1).to(loop.device).device == loop.device


# -- test_optimizer.py and test_scheduler.py ---------------------------------------------------------------------------


@check
def a_prepared_optimizer_can_be_pickled() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net, optimizer = loop.prepare(net := nn.Linear(10, 10), torch.optim.SGD(net.parameters(), 0.1))
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.param_groups[0]["lr"] == 0.1 and len(again.param_groups[0]["params"]) == len(list(net.parameters()))


@check
def skipped_steps_are_seen_in_all_processes() -> None:
    loop = aa.Loop("cpu", framework="torch", precision="fp16-mixed")
    net = nn.Linear(5, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 10)
    net, optimizer, schedule, loader = loop.prepare(
        net, optimizer, schedule, DataLoader(torch.ones(16, 5), batch_size=4)
    )
    skipped, rates = [], []
    for number, x in enumerate(loader):
        loss = net(x).float().mean()
        if number in (1, 2) and loop.process_index == loop.num_processes - 1:
            loss = loss * float("inf")
        loop.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        skipped.append(optimizer.was_skipped)
        rates.append(round(schedule.get_last_lr()[0], 6))
    assert skipped == [False, True, True, False]
    assert rates == [0.09, 0.09, 0.09, 0.08]
    assert loop.step == 2


@check
def one_step_of_a_schedule_is_one_step() -> None:
    loop = aa.Loop("cpu", framework="torch")
    for make in (
        lambda optimizer: OneCycleLR(optimizer, max_lr=0.01, steps_per_epoch=2, epochs=1),
        lambda optimizer: LambdaLR(optimizer, lambda step: 1 - step / 10),
    ):
        torch.manual_seed(0)
        net = nn.Linear(2, 4)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
        net, optimizer, schedule = loop.prepare(net, optimizer, make(optimizer))
        loop.backward(net(torch.ones(2, 2)).sum(), count=2)
        optimizer.step()
        schedule.step()
        assert schedule.last_epoch == 1


@check
def schedules_end_after_the_same_number_of_updates() -> None:
    for accumulate in (1, 2, 4):
        loop = aa.Loop("cpu", framework="torch", accumulate=accumulate)
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=10.0)
        schedule = LinearLR(optimizer, 1.0, 0.0, total_iters=10)
        loader = DataLoader(points(10 * accumulate * 2), batch_size=2)
        net, optimizer, schedule, loader = loop.prepare(net, optimizer, schedule, loader)
        rates = []
        for batch in loader:
            with loop.accumulate(net):
                loop.backward(mse(net, batch) * 1e-6)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            rates.append(schedule.get_last_lr()[0])
        assert rates[-1] == 0.0 and 0.0 not in rates[: -accumulate if accumulate > 1 else -1]


if __name__ == "__main__":
    from checks_in_processes import run

    run(CHECKS, sys.argv[2:], Path(sys.argv[1]), aa.Loop("cpu", framework="torch").process_index)
