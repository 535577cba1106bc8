"""prepare: a loop by hand with three lines changed gives the same numbers, on a device, with batches ahead."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import DataError, DeviceUnavailableError, NoBackendError
from anyaccel.fitting import DeviceLoader


def parts():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = torch.randn(48, 4)
    dataset = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
    return net, optimizer, torch.utils.data.DataLoader(dataset, batch_size=8)


def train(net, optimizer, loader):
    losses = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("accelerator", ["auto", "cpu", aa.Accelerator("cpu")])
def test_a_loop_by_hand_is_the_same(accelerator):
    net, optimizer, loader = parts()
    prepared = aa.prepare(net, optimizer, loader, accelerator=accelerator)
    on_cpu = next(net.parameters()).device.type == "cpu"
    expected = train(*parts())
    assert train(*prepared) == (expected if on_cpu else pytest.approx(expected, rel=1e-4))
    assert prepared[0] is net and prepared[1] is optimizer


class Noisy(torch.utils.data.Dataset):
    """Rows with noise, drawn when they are read."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(np.random.default_rng().uniform(0.0, 3e-4))  # so that no thread is always first
        return torch.full((4,), index / 48.0) + 0.1 * torch.randn(4), torch.ones(1)


def with_dropout(dataset, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    return net, optimizer, torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)


def test_one_seed_is_one_run_whichever_thread_draws_first():
    runs = [train(*aa.prepare(*with_dropout(Noisy(), seed), accelerator="cpu")) for seed in (0, 0, 0, 1)]
    assert runs[0] == runs[1] == runs[2] != runs[3]


def test_a_shuffled_loop_with_dropout_is_that_by_hand():
    dataset = parts()[2].dataset
    assert train(*aa.prepare(*with_dropout(dataset, 5), accelerator="cpu")) == train(*with_dropout(dataset, 5))


def test_a_loader_stays_what_it_was():
    loader = parts()[2]
    ahead = aa.prepare(loader)
    assert isinstance(ahead, DeviceLoader) and len(ahead) == 6
    assert ahead.dataset is loader.dataset and ahead.batch_size == 8
    for _ in range(2):
        for (x, y), (own_x, own_y) in zip(ahead, loader, strict=True):
            assert torch.equal(x, own_x) and torch.equal(y, own_y)


def test_batches_are_read_ahead_in_a_thread_that_ends_with_the_loop():
    read = []

    class Slow:
        def __iter__(self):
            for number in range(5):
                read.append((number, threading.current_thread() is threading.main_thread()))
                yield torch.full((2,), float(number))

    for batch in aa.prepare(Slow()):
        time.sleep(0.05)
        assert len(read) > int(batch[0]) + 1 or int(batch[0]) == 4
        if int(batch[0]) == 2:
            break
    assert not any(in_main for _, in_main in read) and len(read) < 6
    time.sleep(0.1)
    assert not [thread for thread in threading.enumerate() if thread.name == "anyaccel-prefetch"]


def test_arrays_of_a_loader_become_tensors_of_the_models_framework():
    net, batches = parts()[0], DataOf([{"x": np.ones((2, 4), np.float32), "id": ["a", "b"]}])
    net, loader = aa.prepare(net, batches)
    (batch,) = loader
    assert isinstance(batch["x"], torch.Tensor) and batch["id"] == ["a", "b"] and net(batch["x"]).shape == (2, 1)


class DataOf:
    """A loader of these batches."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_an_error_of_the_loader_is_raised_in_its_place():
    class Broken:
        def __iter__(self):
            yield torch.ones(1)
            raise RuntimeError("no more")

    batches = iter(aa.prepare(Broken()))
    assert next(batches).item() == 1.0
    with pytest.raises(RuntimeError, match="no more"):
        next(batches)


def test_a_device_that_is_not_there_and_what_cannot_be_prepared_are_errors():
    net, optimizer, loader = parts()
    if not aa.devices("gpu", framework="torch"):
        with pytest.raises(DeviceUnavailableError, match="gpu:0"):
            aa.prepare(net, optimizer, loader, accelerator="gpu:0")
    with pytest.raises(DataError, match=r"prepare\(\) received no arguments\. Hint: write prepare\(net, opt"):
        aa.prepare()
    with pytest.raises(DataError, match=r"prepare\(\) cannot prepare 3\. Available: models, optimizers and loaders"):
        aa.prepare(net, 3)
    with pytest.raises(NoBackendError):
        aa.prepare(net, object())


@pytest.mark.skipif(not aa.devices("gpu", framework="torch"), reason="no GPU")
def test_on_a_gpu_parameters_state_and_batches_are_there():
    net, optimizer, loader = parts()
    train(net, optimizer, loader)
    net, optimizer, loader = aa.prepare(net, optimizer, loader, accelerator="gpu:0")
    assert {str(aa.device_of(batch)) for batch in loader} == {"gpu:0"} and np.isfinite(
        train(net, optimizer, loader)
    ).all()
