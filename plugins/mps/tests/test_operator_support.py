"""Which operators MPS has: by torch's dispatcher, and for MPS by the table in torch's wheel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyaccel.device import Device
from anyaccel.segment import Segment
from anyaccel_mps import MpsBackend
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_support import OperatorSupport, name_of

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


def test_without_kernels_for_mps_nothing_is_known(cpu_class: Any, segment_of: Make) -> None:
    assert not OperatorSupport("IPU").is_known()
    if not torch.backends.mps.is_built():
        assert MpsBackend().operator_support() is None
    program = type("Silent", (cpu_class,), {"operator_support": lambda self: None})().build(
        segment_of(LinearThen(mode))
    )
    program.close()


@pytest.mark.skipif(torch.backends.mps.is_built(), reason="this torch has kernels for MPS")
def test_where_nothing_is_known_operators_are_not_checked(cpu_class: Any, segment_of: Make) -> None:
    backend = type("Honest", (cpu_class,), {"operator_support": MpsBackend.operator_support})()
    backend.build(segment_of(LinearThen(mode))).close()


@pytest.mark.parametrize("gone", [AttributeError, TypeError])
def test_where_private_functions_have_moved_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, gone: type[Exception]
) -> None:
    def moved(name: str, key: str) -> bool:
        raise gone

    monkeypatch.setattr("torch._C._dispatch_has_kernel_for_dispatch_key", moved)
    assert not OperatorSupport("CPU").is_known()


def test_where_private_modules_have_moved_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anyaccel_mps.operator_support", None)
    assert MpsBackend().operator_support() is None


def test_the_dispatcher_knows_the_operators_of_the_cpu() -> None:
    """Answers of the real dispatcher."""
    cpu = OperatorSupport("CPU")
    assert cpu.is_known()
    for name in ("add.Tensor", "convolution", "select_backward", "linear", "geqrf", "_linalg_eigh"):
        assert not cpu.lacks(operator(name)), name
    for name in ("_cudnn_rnn", "_fused_dropout", "_lstm_mps"):
        assert cpu.lacks(operator(name)), name
    assert cpu.registered("aten::add.Tensor").startswith("CPU: registered at ")
    assert cpu.registered("aten::_cudnn_rnn") == ""


def test_an_operator_that_delegates_to_a_missing_one_is_missing(published: OperatorSupport) -> None:
    assert not published.lacks(operator("select_backward"))
    assert published.lacks(operator("_linalg_eigh"))


def test_an_operator_that_torch_computes_on_the_cpu_unasked_is_missing(published: Any) -> None:
    """The dump of a Mac is written by hand, after torch's source."""
    assert not published.lacks(operator("col2im"))
    published.cpu_fallbacks.add("aten::col2im")
    try:
        assert published.lacks(operator("col2im"))
    finally:
        published.cpu_fallbacks.clear()


def test_without_a_dump_kernels_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._C._dispatch_dump")
    assert OperatorSupport("CPU").registered("aten::add.Tensor") == ""
    assert not OperatorSupport("CPU").lacks(operator("add.Tensor"))
