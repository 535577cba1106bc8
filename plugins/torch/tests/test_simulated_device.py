"""The simulated device itself: it computes as the CPU does, and counts memory, transfers and waits.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

# ruff: noqa: SLF001  (torch spells its operators over lists so, and its count of writes)

from __future__ import annotations

import copy
import io
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from anyaccel.device import Device
from anyaccel.errors import ConfigError, MoveError, OutOfMemoryError
from anyaccel_torch import simulated
from anyaccel_torch.simulated.backend import SimulatedBackend
from anyaccel_torch.simulated.sim_device import unavailable_reason

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for device in DEVICES:
        device.capacity = None
        device.clear()
    torch.manual_seed(0)
    yield


def ones(device: str = ONE, *shape: int, **settings: Any) -> Tensor:
    return torch.ones(shape or (2, 3), device=device, **settings)


# -- computes as the CPU ---------------------------------------------------------------------------------------------


def layers() -> dict[str, tuple[nn.Module, Tensor]]:
    return {
        "linear": (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4)), torch.randn(5, 3)),
        "in place": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), torch.randn(5, 3)),
        "batch norm": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(5, 3)),
        "images": (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            torch.randn(4, 2, 8, 8),
        ),
        "up": (nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.AdaptiveAvgPool2d(1)), torch.randn(2, 2, 4, 4)),
        "embedding": (nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), torch.randint(0, 9, (5, 2))),
        "attention": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)),
        "lstm": (nn.LSTM(3, 4, num_layers=2, batch_first=True), torch.randn(2, 5, 3)),
        "gru": (nn.GRU(3, 4, bidirectional=True), torch.randn(5, 2, 3)),
        "no bias": (nn.LSTM(3, 4, bias=False), torch.randn(5, 2, 3)),
        "dropout": (nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5)), torch.randn(5, 3)),
    }


def differentiated(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    result = model(x)
    first = result[0] if isinstance(result, tuple) else result
    first.square().sum().backward()
    return [first.detach().cpu(), *(p.grad.cpu() for p in model.parameters()), *(b.cpu() for b in model.buffers())]


@pytest.mark.parametrize("name", layers())
def test_values_and_gradients_equal_those_of_the_cpu(name: str) -> None:
    model, x = layers()[name]
    expected = differentiated(copy.deepcopy(model), x)
    result = differentiated(copy.deepcopy(model).to(TWO), x.to(TWO))
    for actual, other in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, other, rtol=1e-5, atol=5e-6)


def test_inference_mode_and_graph_copies_work() -> None:
    """In inference mode, torch dispatches whole operators that it decomposes otherwise."""
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    with torch.no_grad():
        expected = model(x)[0]
    with torch.inference_mode():
        moved = x.to(TWO)
        assert (str(moved.device), str(moved.to(ONE).cpu().device)) == (TWO, "cpu")
    with torch.inference_mode():
        torch.testing.assert_close(model.to(TWO)(moved)[0].cpu(), expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(RuntimeError, match="same device"):
            model(x)
    x = ones(TWO, requires_grad=True)
    torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False).sum().backward()
    torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True).sum().backward()
    assert str(x.grad.device) == TWO
    result = torch.func.grad(lambda w: (w * w).sum())(ones(ONE))
    assert (str(result.device), result.sum().item()) == (ONE, 12)


EVERY = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, {"foreach": yes}) for kind in EVERY for yes in (True, False)]
    + [(kind, {"fused": True}) for kind in EVERY[:3]],
    ids=str,
)
def test_torch_optimizers_step_as_on_the_cpu(kind: str, settings: dict[str, bool]) -> None:
    cls = getattr(torch.optim, kind)
    weights = []
    for device in ("cpu", ONE):
        torch.manual_seed(1)
        model = nn.Linear(3, 2).to(device)
        optimizer = cls(model.parameters(), lr=0.05, **settings)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(5, 3, device=device)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        weights.append(model.weight.detach().cpu())
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)


def test_placed_optimizer_has_its_step_on_the_host() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    backend, where = SimulatedBackend(), Device("sim", 1)
    for device in ("cpu", TWO, TWO):
        model(torch.ones(1, 3, device=device)).sum().backward()
        DEVICES[1].clear()
        optimizer.step()
        assert DEVICES[1].syncs == 0, "a step count on the device would be waited for"
        backend.place(model, where)
        assert backend.place(optimizer, where) is optimizer
    states = list(optimizer.state.values())
    assert [(str(state["exp_avg"].device), str(state["step"].device), state["step"].item()) for state in states] == [
        (TWO, "cpu", 3.0)
    ] * 2


def test_module_keeps_its_parameters_when_moved() -> None:
    """As on a GPU, an optimizer and a module that shares a parameter see it move."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = model.weight
    both, before = nn.ModuleList([model, other]), [model.weight, model.bias]
    for device in (ONE, TWO, "cpu", ONE, "cpu"):
        both.to(device)
        assert model.weight is other.weight is before[0] and model.bias is before[1]
        assert str(before[0].device) == device and isinstance(before[0], nn.Parameter)
        model(torch.ones(1, 2, device=device)).sum().backward()
        assert str(before[0].grad.device) == device


def test_gradients_cross_devices_in_any_thread() -> None:
    result: list[Tensor] = []

    def back() -> None:
        x = ones(ONE, requires_grad=True)
        (x.to(TWO).square().to("cpu") * 3).to(TWO).sum().backward()
        result.append(x.grad)

    back()
    thread = threading.Thread(target=back)
    thread.start()
    thread.join()
    assert [str(gradient.device) for gradient in result] == [ONE, ONE]
    assert all(torch.equal(gradient.cpu(), torch.full((2, 3), 6.0)) for gradient in result)


def test_views_share_memory_and_version_counters() -> None:
    x = torch.zeros(2, 3, device=TWO)
    view, version = x[0], x._version
    view.fill_(7)
    assert x.cpu().tolist() == [[7.0] * 3, [0.0] * 3]
    assert x._version == version + 1
    assert x.t().data_ptr() == x.data_ptr() and x.unsqueeze_(0).shape == (1, 2, 3) and x.cpu().shape == (1, 2, 3)
    x.data = torch.ones(2, device=TWO)
    assert x.cpu().tolist() == [1.0, 1.0] and torch.equal(torch.cat([x, x], out=ones(TWO, 4)).cpu(), torch.ones(4))


def test_each_device_has_its_own_random_numbers() -> None:
    def drawn(device: str) -> list[float]:
        return torch.rand(3, device=device).cpu().tolist()

    torch.manual_seed(5)
    on_sim0, on_sim1, host = drawn(ONE), drawn(TWO), drawn("cpu")
    assert on_sim0 == on_sim1 == host  # each has drawn its first three
    torch.sim.manual_seed(5)
    assert drawn(ONE) == on_sim0 and drawn(TWO) != on_sim1 and drawn("cpu") != host
    state = torch.sim.get_rng_state(1)
    more = drawn(TWO)
    torch.sim.set_rng_state(state, TWO)
    assert drawn(TWO) == more
    own = torch.Generator(TWO).manual_seed(5)
    assert own.device == torch.device(TWO) and isinstance(own, torch.Generator)
    assert torch.rand(3, device=TWO, generator=own).cpu().tolist() == on_sim0
    torch.sim.manual_seed_all(5)
    before = torch.get_rng_state()
    assert torch.native_dropout(ones(TWO), 0.5, True)[0].device == torch.device(TWO)
    assert torch.equal(torch.get_rng_state(), before)


def test_modules_are_copied_saved_and_loaded() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(TWO)
    model(torch.ones(3, 2, device=TWO)).sum().backward()
    copied = copy.deepcopy(model)
    assert copied[0].weight is not model[0].weight and torch.equal(copied[0].weight.grad, model[0].weight.grad)
    assert isinstance(copied[0].weight, nn.Parameter) and copied[0].weight.requires_grad
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {str(value.device) for value in loaded.values()} == {TWO}
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(ONE)
    other.load_state_dict(loaded)
    assert str(other[1].running_mean.device) == ONE
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].cpu(), value.cpu()), name


def test_repr_shows_the_device() -> None:
    assert repr(ones(TWO, 1, requires_grad=True)) == "tensor([1.], device='sim:1', requires_grad=True)"
    assert ones().numpy(force=True).tolist() == ones().tolist() == [[1.0] * 3] * 2
    assert DEVICES[0].transfers.out.number == DEVICES[0].syncs == 2


def test_several_results_of_an_operator_are_on_the_device() -> None:
    x = torch.randn(4, 3, device=TWO)
    result = [*x.max(0), *x.topk(1), *x.sort(), *torch.linalg.svd(x), *x.unbind(), *x.split(2), x.std(0), x.unique()]
    assert {str(output.device) for output in result} == {TWO}


# -- memory and books ------------------------------------------------------------------------------------------------


def test_memory_is_counted_until_it_is_freed() -> None:
    device = DEVICES[1]
    before = device.used
    x = torch.zeros(10, 10, device=TWO)
    views = [x[0], x.t(), x.detach(), nn.Parameter(x)]
    assert device.used - before == 400
    y = x + 1
    assert device.used - before == 800 == device.peak - before
    del x, views
    assert device.used - before == 400
    del y
    assert device.used == before and device.peak - before == 800
    assert torch.sim.memory_allocated(1) == device.used and torch.sim.max_memory_allocated(TWO) == device.peak


def test_out_of_memory_error_has_figures() -> None:
    device = DEVICES[0]
    device.capacity = device.used + 1000
    kept = torch.zeros(200, device=ONE)
    message = f"Tried to allocate 804 bytes. sim:0 has a capacity of {device.capacity} bytes (200 free)"
    for program in (
        lambda: torch.zeros(201, device=ONE),
        lambda: torch.ones(201).to(ONE),
        lambda: torch.cat([kept, kept[:1]]),
    ):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            program()
        assert message in str(caught.value)
    assert torch.sim.mem_get_info(0) == (200, device.capacity)
    assert device.used == device.capacity - 200
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for Linear on sim:0. .*(200 free)"):
        SimulatedBackend().place(nn.Linear(10, 10), Device("sim"))


def test_transfers_and_waits_are_counted() -> None:
    sim0, sim1 = DEVICES
    x = torch.ones(10).to(ONE)
    assert (sim0.transfers.into.number, sim0.transfers.into.nbytes, sim0.syncs) == (1, 40, 0)
    y = x.to(TWO)
    assert sim0.transfers.between.nbytes == sim1.transfers.between.nbytes == 40
    y.cpu()
    assert (sim1.transfers.out.nbytes, sim1.syncs) == (40, 1)
    y.to("cpu", non_blocking=True)
    assert (sim1.transfers.out.number, sim1.syncs) == (2, 1)
    for waiting in (lambda: y.sum().item(), lambda: bool(y.any()), lambda: y.nonzero(), lambda: y[y > 0]):
        before = sim1.syncs
        waiting()
        assert sim1.syncs == before + 1
    before = sim0.syncs
    assert torch.equal(x, x) and sim0.syncs == before + 1
    torch.sim.synchronize(0)
    assert sim0.syncs == before + 2
    x += 1
    assert (sim0.transfers.into.number, sim0.transfers.out.number) == (1, 0)
    x[torch.tensor([1, 2])] = torch.tensor(3.0)
    assert sim0.transfers.into.number == 2
    sim0.clear()
    assert (sim0.transfers.into.number, sim0.syncs, sim0.peak) == (0, 0, sim0.used)


# -- switched on -----------------------------------------------------------------------------------------------------


def test_starting_other_devices_raises_config_error() -> None:
    assert list(simulated.start(2)) == list(DEVICES) == list(simulated.running())
    with pytest.raises(ConfigError, match=r"has other simulated devices.*Available: sim:0 \(no limit\), sim:1"):
        simulated.start(3)


@pytest.mark.parametrize("wrong", [0, -1, 65, True, "2", 1.0])
def test_start_checks_the_count(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"count must be an int from 1 to 64"):
        simulated.start(wrong)


def test_start_checks_the_capacity() -> None:
    with pytest.raises(ConfigError, match=r"capacity=0\): capacity must be a positive number of bytes"):
        simulated.start(2, capacity=0)


def test_unavailable_reason_counts_the_devices() -> None:
    reason = "2 simulated devices were started; set ANYACCEL_TORCH_SIMULATE=6 before Python starts"
    assert SimulatedBackend().unavailable_reason(Device("sim", 5)) == reason == unavailable_reason(Device("sim", 5))


def test_device_info_names_the_device() -> None:
    DEVICES[1].capacity = DEVICES[1].used + 100
    info = SimulatedBackend().device_info(Device("sim", 1))
    assert (info.name, info.identity) == ("simulated torch device 1", "torch-sim:1")
    assert info.total_memory == DEVICES[1].capacity


def test_unsupported_features_raise() -> None:
    with pytest.raises(NotImplementedError, match=r"no sparse tensors: torch.sparse_coo on sim:1"):
        torch.eye(2).to_sparse().to(TWO)
    table = nn.Embedding(5, 2, sparse=True).to(ONE)
    with pytest.raises(NotImplementedError, match=r"no sparse tensors"):
        table(torch.tensor([1, 2], device=ONE)).sum().backward()


def test_from_dlpack_of_a_simulated_tensor_raises() -> None:
    from anyaccel.numpy_backend import NumpyBackend

    with pytest.raises((MoveError, BufferError)):
        NumpyBackend().from_dlpack(ones(), Device("cpu"))
