"""Placing and moving; torch's meta device, whose tensors have no values, stands in for another chip."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import MoveError, OutOfMemoryError
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.error_translation import translate_errors

CPU, GPU, META = Device("cpu"), Device("gpu"), Device("meta")


class OnMeta(TorchBackend):
    """torch's meta device stands in for another chip: its tensors have a device and no values."""

    kinds = ("meta",)


class NoDouble(TorchBackend):
    kinds = ("cpu",)
    unsupported_dtypes: ClassVar = frozenset({"float64"})


# -- place -----------------------------------------------------------------------------------------------------------


def test_place_keeps_the_module_and_its_parameters(backend: TorchBackend) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = list(model.parameters())
    assert backend.place(backend.place(model, CPU), CPU) is model
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert OnMeta().place(model, META) is model
    assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {"meta"}


def test_place_moves_containers() -> None:
    Pair = namedtuple("Pair", "a b")
    tree = {"t": torch.zeros(2), "m": nn.Linear(1, 1), "p": Pair(torch.zeros(1), 3), "l": [(torch.zeros(1), "text")]}
    placed = OnMeta().place(tree, META)
    assert placed["t"].is_meta and placed["m"] is tree["m"] and placed["m"].weight.is_meta
    assert isinstance(placed["p"], Pair) and placed["p"].a.is_meta and placed["p"].b == 3
    assert placed["l"][0][0].is_meta and placed["l"][0][1] == "text"
    assert OnMeta().place(placed, META) is placed
    assert type(OnMeta().place(OrderedDict(a=torch.zeros(1)), META)) is OrderedDict


def test_place_packed_sequences_leaves_their_sizes_on_the_host() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.zeros(3, 1), torch.zeros(2, 1)])
    placed = OnMeta().place(packed, META)
    assert placed.data.is_meta and placed.batch_sizes.device.type == "cpu"


def test_placing_a_meta_model_raises_move_error(backend: TorchBackend) -> None:
    model = nn.Linear(1, 1, device="meta")
    message = r"Linear on cpu:0: a tensor on torch's meta device has no values.*load_checkpoint_and_dispatch"
    with pytest.raises(MoveError, match=message):
        backend.place(model, CPU)


def stepped_optimizer(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), **settings)
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


def moved_in_place(model: nn.Module) -> None:
    """As a move to an accelerator does; a move to the meta device creates new parameters."""
    model.zero_grad()
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().to("meta")))


@pytest.mark.parametrize(("setting", "where"), [("foreach", "cpu"), ("capturable", "meta"), ("fused", "meta")])
def test_adam_step_stays_on_torchs_device(setting: str, where: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = stepped_optimizer(model)
    optimizer.param_groups[0][setting] = True
    moved_in_place(model)
    assert OnMeta().place(optimizer, META) is optimizer
    for state in optimizer.state.values():
        assert (state["exp_avg"].device.type, state["exp_avg_sq"].device.type) == ("meta", "meta")
        assert state["step"].device.type == where
    before = {key: dict(state) for key, state in optimizer.state.items()}
    OnMeta().place(optimizer, META)
    assert all(optimizer.state[p][k] is v for p, state in before.items() for k, v in state.items())


def test_a_step_that_was_moved_away_comes_back() -> None:
    model = nn.Linear(2, 1)
    optimizer = stepped_optimizer(model)
    for state in optimizer.state.values():
        state["step"] = state["step"].to("meta")
        state["lists"] = [torch.zeros(1, device="meta")]
    with pytest.raises(NotImplementedError):  # a meta tensor has no values, which shows that it is the host's turn
        TorchBackend().place(optimizer, CPU)


def test_optimizer_state_follows_its_parameters_not_the_request() -> None:
    model = nn.Linear(2, 1)
    optimizer = stepped_optimizer(model)
    OnMeta().place(optimizer, META)
    assert {state["exp_avg"].device.type for state in optimizer.state.values()} == {"cpu"}


def test_optimizer_without_state_is_unchanged(backend: TorchBackend) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters())
    assert backend.place(optimizer, CPU) is optimizer and not optimizer.state


# -- move ------------------------------------------------------------------------------------------------------------


def test_move_returns_the_same_tensor_if_it_is_there(backend: TorchBackend) -> None:
    tensor = torch.zeros(2, dtype=torch.float64)
    assert backend.move(tensor, CPU) is tensor
    moved = OnMeta().move(tensor, META)
    assert moved.is_meta and moved.dtype == torch.float64 and moved.shape == (2,)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="there is one CUDA device, and fake ones count as real")
def test_moves_between_cuda_devices(backend: TorchBackend) -> None:
    with FakeTensorMode():  # tensors that say where they are, on a machine that has no such device
        tensor = backend.move(torch.zeros(2), Device("gpu", 1))
        assert backend.device_of(tensor) == Device("gpu", 1) and tensor.dtype == torch.float32
        assert backend.move(tensor, Device("gpu", 1)) is tensor
        tree = {"a": [tensor, torch.zeros(1, device="cuda:1")]}
        assert backend.place(tree, Device("gpu", 1)) is tree
        placed = backend.place(tree, GPU)
        assert {backend.device_of(each) for each in placed["a"]} == {GPU}
        assert backend.device_of(backend.move(tensor, CPU, pinned=True)) == CPU


def test_pinned_has_no_effect_towards_the_cpu(backend: TorchBackend) -> None:
    tensor = torch.zeros(2)
    assert backend.move(tensor, CPU, pinned=True) is tensor


class Pinning(TorchBackend):
    kinds = ("meta",)
    pinned_kinds = frozenset({"meta"})


def test_pinned_has_no_effect_without_page_locked_memory() -> None:
    for tensor in (torch.zeros(2), torch.zeros(2, requires_grad=True), torch.eye(2).to_sparse()):
        assert Pinning().move(tensor, META, pinned=True).is_meta


def test_nothing_is_pinned_between_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: pytest.fail("was pinned"))
    tensor = torch.zeros(2, device="meta")
    assert Pinning().move(tensor, META, pinned=True) is tensor


def test_pinned_copy_uses_a_buffer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sent = torch.Tensor.to, []

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sent.append((self, kwargs))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch, "empty_like", lambda like, *, device, pin_memory: torch.empty(like.shape))
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    monkeypatch.setattr(torch.Tensor, "to", to)
    tensor = torch.ones(2)
    Pinning().move(tensor, META, pinned=True)
    ((buffer, kwargs),) = sent
    assert kwargs == {"non_blocking": True}
    assert buffer.data_ptr() != tensor.data_ptr() and buffer.tolist() == [1.0, 1.0]


def test_unsupported_dtype_raises_move_error() -> None:
    for act in (NoDouble().move, NoDouble().place):
        with pytest.raises(MoveError, match=r"cpu:0 cannot hold float64, and a move keeps the dtype\. Hint: cast"):
            act(torch.zeros(1, dtype=torch.float64), CPU)
    with pytest.raises(MoveError, match="cannot hold float64"):
        NoDouble().place(nn.Linear(1, 1, dtype=torch.float64), CPU)
    assert NoDouble().move(torch.zeros(1, dtype=torch.float64).float(), CPU).dtype == torch.float32


# -- scope, synchronize, faults --------------------------------------------------------------------------------------


def test_scope_is_left_after_an_error(backend: TorchBackend) -> None:
    before = torch.get_default_device()
    with pytest.raises(KeyError), OnMeta().scope(META):
        assert torch.zeros(1).is_meta
        raise KeyError
    assert torch.get_default_device() == before and not torch.zeros(1).is_meta
    with backend.scope(CPU):
        assert torch.zeros(1).device.type == "cpu"


def test_synchronize_waits_for_accelerators_only(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    backend.synchronize(CPU)
    assert waited == []
    backend.synchronize(Device("gpu", 1))
    assert waited == [torch.device("cuda:1")]


def test_out_of_memory_raises_out_of_memory_error() -> None:
    with (
        pytest.raises(
            OutOfMemoryError,
            match=r"not enough memory for a test: .*1125899906842624.*\. Hint: use smaller",
        ),
        translate_errors("a test"),
    ):
        torch.empty(2**48, dtype=torch.float32)
    with pytest.raises(OutOfMemoryError, match="CUDA out of memory"), translate_errors("a test"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
    with pytest.raises(RuntimeError, match="something else"), translate_errors("a test"):
        raise RuntimeError("something else")


def test_a_model_that_is_there_keeps_shared_parameters_where_torch_replaces_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    weight = model[0].weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        aa.place(model, "cpu")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model[1].weight is model[0].weight is weight
