"""The dry run of a step: the operators that it finds, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, Segment
from anyaccel.specs import Loss
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_support import name_of

MPS = Device("mps")
Make = Callable[..., Segment]


class LinearThen(nn.Module):
    """A linear layer, then a function."""

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
    return {name_of(operator): places for operator, places in operators_of(segment).items()}


def test_operators_are_found_in_forward_backward_and_optimizer(segment_of: Make) -> None:
    operators = names(segment_of(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())))
    assert operators["aten::sigmoid"] == ["node 'net'"]
    assert operators["aten::mse_loss"] == ["losses"]
    assert operators["aten::sigmoid_backward"] == ["backward pass"]
    assert operators["aten::_foreach_addcdiv_.ScalarList"] == ["optimizer"]


def test_without_training_there_is_no_backward_pass(segment_of: Make) -> None:
    operators = names(segment_of(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), groups=()))
    assert "aten::sigmoid" in operators
    assert "aten::sigmoid_backward" not in operators


def test_the_backward_pass_runs_where_other_segments_need_it(segment_of: Make) -> None:
    segment = segment_of(nn.Sigmoid(), losses=(), groups=(), needs_pullback=("x",))
    assert names(segment)["aten::sigmoid_backward"] == ["backward pass"]


def test_the_users_model_is_unchanged(segment_of: Make) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).eval()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    drawn = torch.get_rng_state()
    assert "aten::native_batch_norm_backward" in names(segment_of(model))
    after = model.state_dict(keep_vars=True)
    assert all(id(after[name]) == kept and torch.equal(after[name], value) for name, (kept, value) in before.items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(part.training or vars(part)["_forward_hooks"] for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_random_state_is_unchanged(segment_of: Make) -> None:
    segment = segment_of(LinearThen(lambda x: x.sigmoid() * torch.rand(())), target=(4,))
    drawn = torch.get_rng_state()
    operators = names(segment)
    assert operators["aten::sigmoid_backward"] == ["backward pass"]
    assert "aten::rand" not in operators  # it is not on the device
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_model_in_two_nodes_is_reported_with_both(segment_of: Make) -> None:
    model = nn.Linear(4, 4)
    operations = (Operation("one", model, ("x",), ("h",), MPS), Operation("two", model, ("h",), ("y",), MPS))
    operators = names(segment_of(model, target=(4,), operations=operations))
    assert operators["aten::addmm"] == ["node 'one' and 'two'"]


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


def test_operators_of_a_model_that_reads_values_are_found_up_to_there(segment_of: Make) -> None:
    operators = names(segment_of(LinearThen(lambda x: mode(x) * float(x.sigmoid().sum()))))
    assert "aten::mode" in operators
    assert "aten::sigmoid" in operators
    assert "aten::mse_loss" not in operators
