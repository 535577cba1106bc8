"""Operators that MPS lacks are refused or warned of. Models are real; what MPS has is from a table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.errors import FallbackWarning, PhaseError
from anyaccel.machine import is_older
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_check import SWITCH, check_operators
from anyaccel_mps.operator_support import OperatorSupport

MPS = Device("mps")
Make = Callable[..., Segment]


class LinearThen(nn.Module):
    """A linear layer, then a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


class Gated(torch.autograd.Function):
    """A function whose backward pass needs an operator that its forward pass does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient + torch.mode(gradient, 1)[0][:, None]


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


def mode(x: Tensor) -> Tensor:
    return x.mode(1)[0][:, None]


def is_pulled_back(segment: Segment) -> bool:
    return any("backward pass" in places for places in operators_of(segment).values())


# -- the check -------------------------------------------------------------------------------------------------------


def test_a_missing_operator_is_named_with_its_node(published: OperatorSupport, segment_of: Make) -> None:
    with pytest.raises(PhaseError) as caught:
        check_operators(segment_of(LinearThen(mode)), published)
    words = str(caught.value)
    assert words.startswith("segment 's' cannot run on mps:0 because of missing operators: aten::mode (node 'net'); ")
    assert f" operators in torch {torch.__version__}. Hint: " in words
    assert words.endswith(
        "Hint: set accelerator='cpu' on the node, use other layers, or start Python with PYTORCH_ENABLE_MPS_FALLBACK=1 "
        "to compute these operators on the CPU, slowly and with a warning."
    )


def test_a_missing_operator_of_the_backward_pass_is_named(published: OperatorSupport, segment_of: Make) -> None:
    with pytest.raises(PhaseError, match=r"aten::mode \(backward pass\)"):
        check_operators(segment_of(LinearThen(Gated.apply), target=(4,)), published)
    check_operators(segment_of(LinearThen(Gated.apply), target=(4,), groups=()), published)  # nothing is trained


def test_all_missing_operators_are_named(published: OperatorSupport, segment_of: Make) -> None:
    operations = (
        Operation("one", LinearThen(mode), ("x",), ("h",), MPS),
        Operation("two", nn.RReLU(), ("h",), ("y",), MPS),
    )
    with pytest.raises(PhaseError, match=r"aten::mode \(node 'one'\), aten::rrelu_with_noise \(node 'two'\)"):
        check_operators(segment_of(None, operations=operations), published)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "mlp": (nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Dropout(), nn.LayerNorm(5), nn.Linear(5, 3)), (4,), "float32"),
    "images": (
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)),
        ),
        (3, 16, 16),
        "float32",
    ),
    "upwards": (nn.Sequential(nn.ConvTranspose2d(3, 3, 2), nn.Upsample(scale_factor=2)), (3, 4, 4), "float32"),
    "sequence": (nn.TransformerEncoderLayer(8, 2, batch_first=True), (7, 8), "float32"),
    "words": (nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3)), (3,), "int64"),
    "norms": (nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4), nn.RMSNorm(5), nn.SiLU()), (4, 5), "float32"),
}


@pytest.mark.parametrize("key", ["CPU", "MPS"])
@pytest.mark.parametrize("name", MODELS)
def test_common_models_are_not_refused(published: OperatorSupport, segment_of: Make, key: str, name: str) -> None:
    """For the CPU the answers are real, and the tests of the torch plugin run such models."""
    if (name, key) == ("norms", "MPS") and is_older(torch.__version__, "2.13"):
        pytest.skip("this torch has no backward pass of group normalization for MPS: the refusal is right")
    model, features, dtype = MODELS[name]
    inputs = {"x": (TensorSpec(features, dtype), MPS)}
    square = Loss(lambda y: y.square().mean())
    losses = (LossTerm("l", "net", square, ("y",), MPS),)
    segment = segment_of(model, inputs=inputs, losses=losses)
    check_operators(segment, published if key == "MPS" else OperatorSupport(key))
    assert is_pulled_back(segment)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_every_optimizer_is_supported(published: OperatorSupport, segment_of: Make, name: str) -> None:
    optimizer = Optimizer(name, lr=0.1, clip_norm=1.0)
    check_operators(segment_of(nn.Linear(4, 1), groups=(ParameterGroup("g", optimizer, ("net",)),)), published)


@pytest.mark.parametrize(
    ("loss", "target", "dtype"),
    [
        ("mse", (3,), "float32"),
        ("mae", (3,), "float32"),
        ("cross_entropy", (), "int64"),
        ("binary_cross_entropy", (3,), "float32"),
    ],
)
def test_every_named_loss_is_supported(
    published: OperatorSupport, segment_of: Make, loss: str, target: tuple[int, ...], dtype: str
) -> None:
    inputs = {"x": (TensorSpec((4,), "float32"), MPS), "t": (TensorSpec(target, dtype), MPS)}
    segment = segment_of(nn.Linear(4, 3), loss=loss, inputs=inputs)
    check_operators(segment, published)
    assert is_pulled_back(segment)


# -- the fallback to the CPU -----------------------------------------------------------------------------------------


def build(cpu_class: Any, segment: Segment, operators: OperatorSupport) -> Program:
    program: Program = type("Checked", (cpu_class,), {"operator_support": lambda self: operators})().build(segment)
    return program


def test_building_a_program_checks_its_operators(cpu_class: Any, segment_of: Make, published: OperatorSupport) -> None:
    with pytest.raises(PhaseError, match=r"aten::mode \(node 'net'\)"):
        build(cpu_class, segment_of(LinearThen(mode)), published)


@pytest.mark.parametrize("value", ["0", "", "yes"])
def test_without_the_switch_there_is_no_fallback(
    cpu_class: Any, segment_of: Make, published: OperatorSupport, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(SWITCH, value)
    with pytest.raises(PhaseError, match="PYTORCH_ENABLE_MPS_FALLBACK=1"):
        build(cpu_class, segment_of(LinearThen(mode)), published)


def test_a_fallback_warns_every_time(
    cpu_class: Any, segment_of: Make, published: OperatorSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")  # which shows a warning once for each line of code
        for _ in range(2):
            build(cpu_class, segment_of(LinearThen(mode)), published).close()
    assert [warning.category for warning in warned] == [FallbackWarning] * 2
    assert {str(warning.message) for warning in warned} == {
        "segment 's' needs operators missing in MPS; because PYTORCH_ENABLE_MPS_FALLBACK is set, torch computes them "
        "on the CPU in every step: aten::mode (node 'net')"
    }
    assert {warning.filename for warning in warned} == {__file__}


def test_without_missing_operators_there_is_no_warning(
    cpu_class: Any, segment_of: Make, published: OperatorSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    build(cpu_class, segment_of(nn.Linear(4, 1)), published).close()
