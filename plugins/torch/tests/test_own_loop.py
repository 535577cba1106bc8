"""Loops of one's own in one, two and three processes: the numbers are those of a loop that is written by hand."""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

HERE = Path(__file__).parent
_models = runpy.run_path(str(HERE / "own_loop_models.py"))  # shared with a script, which imports it
Generator, Net, network, normalizing = (_models[name] for name in ("Generator", "Net", "network", "normalizing"))
masked_rows, rows_of = _models["masked_rows"], _models["rows_of"]
WITHIN_THE_PASS = {"ANYACCEL_TORCH_BUCKET_MB": "0.0001"}
"""Gradients of more than this are exchanged by DistributedDataParallel."""


def told_by(size: int, folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What the script tells in so many processes; checkpoints of all are side by side."""
    variables = {**variables, "OWN_LOOP_FOLDER": str(folder.parent / f"continued-{len(variables)}")}
    file = folder / "told.json"
    launcher = [] if size == 1 else ["-m", "anyaccel", "run", "--replicas", str(size)]
    command = [sys.executable, *launcher, str(HERE / "own_loop_script.py"), str(file)]
    env = {**os.environ, **variables}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    told: dict[str, Any] = json.loads(file.read_text())
    return told


@pytest.fixture(
    scope="module",
    params=[(1, {}), (2, {}), pytest.param((3, {}), marks=pytest.mark.whole), (2, WITHIN_THE_PASS)],
    ids=["one", "two", "three", "two within the pass"],
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    size, variables = request.param
    return told_by(size, tmp_path_factory.mktemp("told"), variables)


def numbers(module: nn.Module) -> list[float]:
    return [float(tensor.double().sum()) for tensor in module.state_dict().values()]


def updates(n: int, size: int, accumulate: int = 1) -> list[Any]:
    """The loop of the script by hand: sums, divided by the rows of the window."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(TensorDataset(*rows_of(n)), batch_size=size, shuffle=True, generator=order)
    losses, norms, full, steps = [], [], [], 0
    for _ in range(2):
        rows = n_batches = 0
        for number, (x, y) in enumerate(loader):
            total = F.mse_loss(net(x), y, reduction="sum")
            total.backward()
            rows, n_batches = rows + len(x), n_batches + 1
            full.append(n_batches == accumulate or number + 1 == len(loader))
            losses.append(total.item() / len(x))
            if full[-1]:
                for parameter in net.parameters():
                    parameter.grad /= rows
                norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 1.0)))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                rows, n_batches, steps = 0, 0, steps + 1
    return [losses, norms, full, numbers(net), schedule.get_last_lr(), steps]


def tokens() -> list[Any]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    means, count = [], 0.0
    for number, (x, y, mask) in enumerate(DataLoader(TensorDataset(*masked_rows()), batch_size=6)):
        total = ((net(x) - y).square() * mask).sum()
        total.backward()
        means.append(total.item() / mask.sum().item())
        count += float(mask.sum())
        if number % 2:
            for parameter in net.parameters():
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0.0
    return [means, numbers(net)]


def twice() -> list[Any]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in DataLoader(TensorDataset(*rows_of(31)), batch_size=8):
        optimizer.zero_grad()
        (2 * net.loss(x, y) + F.mse_loss(net(x * 0.5), y)).backward()
        optimizer.step()
    return [numbers(net), True]


def adversaries() -> list[Any]:
    generator, judge = Generator(), network(2)
    first = torch.optim.Adam(generator.parameters(), lr=0.01)
    second = torch.optim.Adam(judge.parameters(), lr=0.01)
    x, z = rows_of(40)[0].split(9), rows_of(41)[0][:40].split(9)
    for start in range(0, len(x), 2):
        pairs = list(zip(x, z, strict=True))[start : start + 2]
        rows = sum(len(real) for real, _ in pairs)
        made = [generator(noise) for _, noise in pairs]
        of_judge = sum(F.softplus(-judge(real)).sum() for real, _ in pairs)
        of_judge = of_judge + sum(F.softplus(judge(fake.detach())).sum() for fake in made)
        of_generator = sum(F.softplus(-judge(fake)).sum() for fake in made[:-1])
        judge_grads = torch.autograd.grad(of_judge / rows, list(judge.parameters()))
        for parameter, gradient in zip(judge.parameters(), judge_grads, strict=True):
            parameter.grad = gradient
        first_part = torch.autograd.grad(of_generator, list(generator.parameters())) if len(made) > 1 else None
        second.step()  # the generator's pass of the last batch sees the judge after its step
        last = torch.autograd.grad(F.softplus(-judge(made[-1])).sum(), list(generator.parameters()))
        for i, parameter in enumerate(generator.parameters()):
            parameter.grad = (last[i] + (first_part[i] if first_part else 0)) / rows
        first.step()
    return [numbers(generator), numbers(judge), 3]


def normalized() -> list[Any]:
    net = normalizing()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(TensorDataset(*rows_of(42)), batch_size=10):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    net.eval()
    return [numbers(net), net(rows_of(5)[0]).detach().flatten().tolist()]


def interrupted_window() -> list[Any]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = list(DataLoader(TensorDataset(*rows_of(43)), batch_size=5))
    losses, rows, n_batches, steps = [], 0, 0, 0
    for number, (x, y) in enumerate([*batches[:3], *batches]):
        total = F.mse_loss(net(x), y, reduction="sum")
        total.backward()
        losses.append(total.item() / len(x))
        rows, n_batches = rows + len(x), n_batches + 1
        if n_batches == 4 or number == 2 + len(batches):
            for parameter in net.parameters():
                parameter.grad /= rows
            optimizer.step()
            optimizer.zero_grad()
            rows, n_batches, steps = 0, 0, steps + 1
    return [losses, 11, steps, numbers(net)]


def several_counts(accumulate: int) -> list[Any]:
    net, other = network(), network(2)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
    batches = list(DataLoader(TensorDataset(*masked_rows()), batch_size=6))
    for start in range(0, len(batches), accumulate):
        x, y, mask = (torch.cat(parts) for parts in zip(*batches[start : start + accumulate], strict=True))
        optimizer.zero_grad()
        loss = ((net(x) - y).square() * mask).sum() / mask.sum()
        if accumulate == 1:
            loss = loss + (net(x) - y).abs().mean()
        (loss + (other(x) - y).square().mean() / 3).backward()
        optimizer.step()
    return [numbers(net), numbers(other)]


def read_together() -> list[Any]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x, y), (others, _) in zip(*(DataLoader(TensorDataset(*rows_of(42)), size) for size in (7, 9)), strict=False):
        optimizer.zero_grad()
        (F.mse_loss(net(x), y) + net(others).square().mean()).backward()
        optimizer.step()
    return [numbers(net), True]


def clipped() -> list[Any]:
    shift, norms = torch.linspace(-1, 1, 5), []
    x = rows_of(50, torch.float32)[0]
    for rows in (x[:24], x[24:48], x[48:]):
        gradient = -2 * (rows - shift).mean(0)
        norms.append(float(gradient.norm()))
        shift = shift - 0.5 * gradient * min(1.0, 0.5 / (norms[-1] + 1e-6))  # as torch does
    return [norms, shift.tolist()]


def continued() -> list[Any]:
    """The second epoch of a run."""
    net = network()
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        losses.clear()
        for x, y in DataLoader(TensorDataset(*rows_of(31)), batch_size=8):
            loss = F.mse_loss(net(x), y)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(net)
    return [losses, numbers(net), numbers(average.module)]


BY_HAND: dict[str, Callable[[], list[Any]]] = {
    "ragged": lambda: updates(107, 16),
    "one_row": lambda: updates(97, 16),
    "window": lambda: updates(14 * 16, 16, 3),
    "divided": lambda: updates(107, 16, 3),
    "tokens": tokens,
    "twice": twice,
    "adversaries": adversaries,
    "normalized": normalized,
    "clipped": clipped,
    "tokenless": lambda: [[0.0] * 3, numbers(network())],
    "interrupted_window": interrupted_window,
    "one_batch_several_counts": lambda: several_counts(1),
    "read_together": read_together,
    "own_buffers": lambda: [True, True],
    "window_of_several_counts": lambda: several_counts(2),
}


def flat(values: Any) -> list[Any]:
    return [item for value in values for item in flat(value)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", BY_HAND)
def test_the_numbers_are_those_of_a_loop_by_hand(told: dict[str, Any], name: str) -> None:
    assert flat(told[name]) == pytest.approx(flat(BY_HAND[name]()), rel=1e-6, abs=1e-9)


def test_each_row_is_gathered_once_and_in_order(told: dict[str, Any]) -> None:
    *whole, first_batch = told["gathered"]
    assert first_batch == list(range(20))
    for rows, texts, shape, kinds, n_wide, scalars in zip(*[iter(whole)] * 6, strict=True):
        assert rows == list(range(103)) and texts == [str(i) for i in range(103)]
        assert shape == [103, 1] and kinds == ["tuple", "list", None] and n_wide == 103 and scalars


def test_a_step_is_skipped_in_all(told: dict[str, Any]) -> None:
    was_skipped, steps, rates, n_averaged, scale, dtype = told["skipped"]
    assert was_skipped == [False, True, False, False]
    assert (steps, n_averaged, scale, dtype) == (3, 3, 2.0**15, "torch.float32")
    assert rates == [pytest.approx(0.1 / 4)]


def test_an_evaluation_that_adds_up_itself_counts_each_row_once(told: dict[str, Any]) -> None:
    assert told["counted"] == [41, pytest.approx(float(rows_of(41)[0].sum())), 41]


def test_gradients_are_exchanged_once_an_update(told: dict[str, Any]) -> None:
    is_several, exchanged = told["exchanges"]
    assert exchanged == [is_several and (number % 3 == 2 or number == 13) for number in range(14)]


def test_an_epoch_that_is_set_has_its_order_whatever_came_before(told: dict[str, Any]) -> None:
    assert told["order"] == [True, True, True]


def test_workers_draw_other_numbers_in_each_epoch_and_process_and_the_same_with_a_seed(told: dict[str, Any]) -> None:
    assert told["augmented"] == [[*range(24), *range(24)], [48] * 3, True, True]


def test_each_number_of_processes_goes_on_from_what_another_has_saved(told: dict[str, Any]) -> None:
    """By names of the bare model, with its average, and from divided parameters."""
    losses, weights, average = continued()
    for found_losses, found, found_average, names in told["continued"]:
        assert [*found_losses, *found] == pytest.approx([*losses, *weights], rel=1e-6, abs=1e-9)
        assert not found_average or found_average[0] == pytest.approx(average, rel=1e-6, abs=1e-9)
        assert names == list(network().state_dict())


def test_sparse_gradients_are_dense_after_their_exchange(told: dict[str, Any]) -> None:
    size, message, *values = told["sparse"]
    problem = "SparseAdam takes sparse gradients only, but they are dense after their exchange between processes"
    assert message == ("" if size == 1 else f"{problem}. Hint: use torch.optim.Adam, or run in one process.")
    for kind, actual in zip((torch.optim.SGD, torch.optim.Adam), values, strict=True):
        torch.manual_seed(0)
        net = nn.Embedding(7, 1)
        optimizer = kind(net.parameters(), lr=0.1)
        for x, y in zip((torch.arange(20) % 7).split(8), torch.linspace(-1, 1, 20)[:, None].split(8), strict=True):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close(actual, net.weight.flatten().tolist(), rtol=1e-5, atol=1e-6)


def test_all_agree(told: dict[str, Any]) -> None:
    assert told["agreed"] == [True, "a", [0.0, 1.0, 2.0], True, True]


def rows(size: int, repeats: int = 1) -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 26).reshape(13, 2)
    return DataLoader(TensorDataset(x.repeat(repeats, 1), x.sum(1, keepdim=True).repeat(repeats, 1)), batch_size=size)


def linear() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


@pytest.mark.parametrize("n_batches", [5, 7])
def test_what_follows_epochs_follows_them_where_an_epoch_ends_within_an_update(n_batches: int) -> None:
    """After 5 of 7 batches of 2 rows, with 3 for an update, the last step has updated nothing."""
    loop = aa.Loop("cpu", framework="torch", accumulate=3)
    net, optimizer = linear()
    of_epochs, of_updates = StepLR(optimizer, 1, 0.5), StepLR(optimizer, 1, 1.0)
    average = AveragedModel(net)
    net, optimizer, of_epochs, of_updates, average, loader = loop.prepare(
        net, optimizer, of_epochs, of_updates, average, rows(2)
    )
    for _ in range(3):
        for number, (x, y) in enumerate(loader, start=1):
            loop.backward(F.mse_loss(net(x), y))
            optimizer.step()
            of_updates.step()
            optimizer.zero_grad()
            if number == n_batches:
                break
        of_epochs.step()
        average.update_parameters(net)
    assert (of_epochs.last_epoch, int(average.n_averaged)) == (3, 3)
    assert of_updates.last_epoch == loop.step == (9 if n_batches == 7 else 5)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_loaders_that_are_read_together_end_an_update_together(sizes: tuple[int, int]) -> None:
    """7 pairs of batches an epoch are updates of 3, 3 and 1 pair, whichever loader has no more than 7."""
    loop = aa.Loop("cpu", framework="torch", accumulate=3)
    repeats = [1 if size == 2 else 3 for size in sizes]
    net, optimizer, first, second = loop.prepare(*linear(), *(rows(*it) for it in zip(sizes, repeats, strict=True)))
    updated = []
    for _ in range(2):
        for (x, y), (others, _) in zip(first, second, strict=False):
            loop.backward(F.mse_loss(net(x), y) + net(others).square().mean())
            before = loop.step
            optimizer.step()
            optimizer.zero_grad()
            updated.append(loop.step > before)
    assert updated == 2 * [False, False, True, False, False, True, True]


def test_the_last_batch_of_an_outer_loader_does_not_end_updates_of_an_inner_one() -> None:
    """5 batches of 3 rows are updates of 2, 2 and 1 batch in each of 3 outer steps; both loaders have a third batch."""
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net, optimizer, outer, inner = loop.prepare(*linear(), rows(5), rows(3))
    updated = []
    for _ in outer:
        for x, y in inner:
            loop.backward(F.mse_loss(net(x), y))
            before = loop.step
            optimizer.step()
            optimizer.zero_grad()
            updated.append(loop.step > before)
    assert updated == 3 * [False, True, False, True, True]


def test_groups_that_are_added_to_a_prepared_optimizer_are_divided_too() -> None:
    def trained(*, is_late: bool) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
        loop, body = aa.Loop("cpu", framework="torch", accumulate=3), {"params": list(net[0].parameters()), "lr": 0.05}
        if not is_late:
            optimizer.add_param_group(body)
        net, optimizer, loader = loop.prepare(net, optimizer, rows(2))
        if is_late:
            optimizer.add_param_group(body)
            with pytest.raises(aa.errors.ConfigError, match="do not belong to a prepared and trained model"):
                optimizer.add_param_group({"params": nn.Linear(2, 1).parameters()})
        for x, y in loader:
            loop.backward(F.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
        loop.close()
        optimizer.add_param_group({"params": nn.Linear(2, 1).parameters()})
        return numbers(net)

    assert trained(is_late=True) == trained(is_late=False)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"precision": "fp16-mixed"}])
def test_a_loop_and_a_model_without_a_gradient_are_freed(settings: dict[str, Any]) -> None:
    loop = aa.Loop("cpu", framework="torch", **settings)
    net = loop.prepare(network())
    left = [weakref.ref(loop), weakref.ref(net)]
    del loop, net
    gc.collect()
    assert [reference() for reference in left] == [None, None]


def test_a_module_that_is_saved_as_a_whole_can_be_loaded_in_mixed_precision(tmp_path: Path) -> None:
    net = aa.Loop("cpu", framework="torch", precision="bf16-mixed").prepare(network())
    torch.save(net, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    assert numbers(loaded) == numbers(net)
    x = rows_of(4)[0]
    torch.testing.assert_close(loaded(x), net(x), rtol=0.05, atol=0.05)
