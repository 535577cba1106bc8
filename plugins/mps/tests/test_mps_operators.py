"""The record of operators and the rehearsal of a step. What MPS has is read from torch's wheel, all else is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, Segment
from anyaccel.specs import Loss
from anyaccel_mps import MpsBackend
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_support import Operators, name_of

MPS = Device("mps")
Make = Callable[..., Segment]


class Applied(nn.Module):
    """A linear layer, and a function of what it gives."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def mode(x: Tensor) -> Tensor:
    return x.mode(1)[0][:, None]


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def names(segment: Segment) -> dict[str, list[str]]:
    return {name_of(each): places for each, places in operators_of(segment).items()}


# -- the record ------------------------------------------------------------------------------------------------------


def test_a_torch_without_mps_says_nothing_of_it(pretending: Any, segment_of: Make) -> None:
    assert not Operators("IPU").is_known()
    if not torch.backends.mps.is_built():
        assert MpsBackend().operators() is None
    program = type("Silent", (pretending,), {"operators": lambda self: None})().build(segment_of(Applied(mode)))
    program.release()


@pytest.mark.skipif(torch.backends.mps.is_built(), reason="this torch has a record of MPS")
def test_without_a_record_nothing_is_rehearsed(pretending: Any, segment_of: Make) -> None:
    backend = type("Honest", (pretending,), {"operators": MpsBackend.operators})()
    backend.build(segment_of(Applied(mode))).release()


@pytest.mark.parametrize("gone", [AttributeError, TypeError])
def test_a_torch_whose_inner_names_have_moved_says_nothing(
    monkeypatch: pytest.MonkeyPatch, gone: type[Exception]
) -> None:
    def moved(name: str, key: str) -> bool:
        raise gone

    monkeypatch.setattr("torch._C._dispatch_has_kernel_for_dispatch_key", moved)
    assert not Operators("CPU").is_known()


def test_a_torch_whose_modules_have_moved_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anyaccel_mps.operator_support", None)
    assert MpsBackend().operators() is None


def test_the_record_of_this_torch_for_its_cpu() -> None:
    """The dispatcher's own answers, nothing pretended."""
    cpu = Operators("CPU")
    assert cpu.is_known()
    for name in ("add.Tensor", "convolution", "select_backward", "linear", "geqrf", "_linalg_eigh"):
        assert not cpu.lacks(operator(name)), name
    for name in ("_cudnn_rnn", "_fused_dropout", "_lstm_mps"):
        assert cpu.lacks(operator(name)), name
    assert cpu.registered("aten::add.Tensor").startswith("CPU: registered at ")
    assert cpu.registered("aten::_cudnn_rnn") == ""


def test_an_operator_that_delegates_to_one_that_is_lacking_is_lacking(published: Operators) -> None:
    assert not published.lacks(operator("select_backward"))
    assert published.lacks(operator("_linalg_eigh"))


def test_an_operator_that_torch_computes_on_the_cpu_by_itself_is_lacking(published: Any) -> None:
    """What a Mac's record says of it is written by hand after torch's source."""
    assert not published.lacks(operator("col2im"))
    published.stand_ins.add("aten::col2im")
    try:
        assert published.lacks(operator("col2im"))
    finally:
        published.stand_ins.clear()


def test_a_torch_that_gives_no_record_has_kernels_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._C._dispatch_dump")
    assert Operators("CPU").registered("aten::add.Tensor") == ""
    assert not Operators("CPU").lacks(operator("add.Tensor"))


# -- the rehearsal ---------------------------------------------------------------------------------------------------


def test_a_step_is_rehearsed_forward_backward_and_in_the_optimizer(segment_of: Make) -> None:
    found = names(segment_of(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())))
    assert found["aten::sigmoid"] == ["node 'net'"]
    assert found["aten::mse_loss"] == ["losses"]
    assert found["aten::sigmoid_backward"] == ["backward pass"]
    assert found["aten::_foreach_addcdiv_.ScalarList"] == ["optimizer"]


def test_without_training_there_is_no_backward_pass(segment_of: Make) -> None:
    found = names(segment_of(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), groups=()))
    assert "aten::sigmoid" in found
    assert "aten::sigmoid_backward" not in found


def test_cotangents_from_elsewhere_are_pulled_back(segment_of: Make) -> None:
    segment = segment_of(nn.Sigmoid(), losses=(), groups=(), needs_pullback=("x",))
    assert names(segment)["aten::sigmoid_backward"] == ["backward pass"]


def test_the_users_model_stays_as_it_is(segment_of: Make) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).eval()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    drawn = torch.get_rng_state()
    assert "aten::native_batch_norm_backward" in names(segment_of(model))
    after = model.state_dict(keep_vars=True)
    assert all(id(after[name]) == kept and torch.equal(after[name], value) for name, (kept, value) in before.items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(part.training or vars(part)["_forward_hooks"] for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_numbers_of_the_cpu_are_drawn_as_if_nothing_had_been_rehearsed(segment_of: Make) -> None:
    segment = segment_of(Applied(lambda x: x.sigmoid() * torch.rand(())), target=(4,))
    drawn = torch.get_rng_state()
    found = names(segment)
    assert found["aten::sigmoid_backward"] == ["backward pass"]
    assert "aten::rand" not in found  # it is not on the device
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_model_in_two_nodes_is_told_by_both_and_copied_once(segment_of: Make) -> None:
    model = nn.Linear(4, 4)
    operations = (Operation("one", model, ("x",), ("h",), MPS), Operation("two", model, ("h",), ("y",), MPS))
    found = names(segment_of(model, target=(4,), operations=operations))
    assert found["aten::addmm"] == ["node 'one' and 'two'"]


def test_a_loss_with_parameters_of_its_own_is_copied(segment_of: Make) -> None:
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (self.weight * (outputs - targets).atan()).mean()

    own = Weighed()
    segment = segment_of(nn.Linear(4, 1), losses=(LossTerm("l", "net", Loss(own), ("y", "t"), MPS),))
    assert names(segment)["aten::atan"] == ["losses"]
    assert own.weight.device.type == "cpu"


def test_a_model_that_reads_values_is_known_up_to_there(segment_of: Make) -> None:
    found = names(segment_of(Applied(lambda x: mode(x) * float(x.sigmoid().sum()))))
    assert "aten::mode" in found
    assert "aten::sigmoid" in found
    assert "aten::mse_loss" not in found
