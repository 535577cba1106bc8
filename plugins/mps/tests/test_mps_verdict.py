"""Operators that MPS lacks, refused or reported. The models and their operators are real; what MPS has is a table."""

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
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_check import SWITCH, judge
from anyaccel_mps.operator_support import Operators

MPS = Device("mps")
Make = Callable[..., Segment]


class Applied(nn.Module):
    """A linear layer, and a function of what it gives."""

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
def nobody_asks_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


def mode(x: Tensor) -> Tensor:
    return x.mode(1)[0][:, None]


def is_pulled_back(segment: Segment) -> bool:
    return any("backward pass" in places for places in operators_of(segment).values())


# -- the verdict -----------------------------------------------------------------------------------------------------


def test_a_lacking_operator_is_named_with_its_node(published: Operators, segment_of: Make) -> None:
    with pytest.raises(PhaseError) as told:
        judge(segment_of(Applied(mode)), published)
    words = str(told.value)
    assert words.startswith(
        "segment 's' cannot be computed on mps:0: it needs operators that MPS lacks: aten::mode (node 'net'). There"
    )
    assert f"Available: torch {torch.__version__} has " in words
    assert words.endswith(
        "Hint: give the node accelerator='cpu', use other layers, or start Python with PYTORCH_ENABLE_MPS_FALLBACK=1 "
        "to compute these operators on the CPU, which is slow and is reported."
    )


def test_a_lacking_operator_of_the_backward_pass_is_named(published: Operators, segment_of: Make) -> None:
    with pytest.raises(PhaseError, match=r"MPS lacks: aten::mode \(backward pass\)\. There"):
        judge(segment_of(Applied(Gated.apply), target=(4,)), published)
    judge(segment_of(Applied(Gated.apply), target=(4,), groups=()), published)  # nothing is trained


def test_all_of_them_are_named(published: Operators, segment_of: Make) -> None:
    operations = (
        Operation("one", Applied(mode), ("x",), ("h",), MPS),
        Operation("two", nn.RReLU(), ("h",), ("y",), MPS),
    )
    with pytest.raises(PhaseError, match=r"aten::mode \(node 'one'\), aten::rrelu_with_noise \(node 'two'\)"):
        judge(segment_of(None, operations=operations), published)


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
def test_what_runs_is_not_refused(published: Operators, segment_of: Make, key: str, name: str) -> None:
    """For the CPU the record is real and so is the proof: the tests of the torch plugin run such models."""
    model, features, dtype = MODELS[name]
    inputs = {"x": (TensorSpec(features, dtype), MPS)}
    square = Loss(lambda y: y.square().mean())
    losses = (LossTerm("l", "net", square, ("y",), MPS),)
    segment = segment_of(model, inputs=inputs, losses=losses)
    judge(segment, published if key == "MPS" else Operators(key))
    assert is_pulled_back(segment)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_every_optimizer_is_there(published: Operators, segment_of: Make, name: str) -> None:
    recipe = Optimizer(name, lr=0.1, clip_norm=1.0)
    judge(segment_of(nn.Linear(4, 1), groups=(ParameterGroup("g", recipe, ("net",)),)), published)


@pytest.mark.parametrize(
    ("loss", "target", "dtype"),
    [
        ("mse", (3,), "float32"),
        ("mae", (3,), "float32"),
        ("cross_entropy", (), "int64"),
        ("binary_cross_entropy", (3,), "float32"),
    ],
)
def test_every_named_loss_is_there(
    published: Operators, segment_of: Make, loss: str, target: tuple[int, ...], dtype: str
) -> None:
    inputs = {"x": (TensorSpec((4,), "float32"), MPS), "t": (TensorSpec(target, dtype), MPS)}
    segment = segment_of(nn.Linear(4, 3), loss=loss, inputs=inputs)
    judge(segment, published)
    assert is_pulled_back(segment)


# -- the way back to the CPU -----------------------------------------------------------------------------------------


def build(pretending: Any, segment: Segment, operators: Operators) -> Program:
    found: Program = type("Judging", (pretending,), {"operators": lambda self: operators})().build(segment)
    return found


def test_building_a_program_refuses(pretending: Any, segment_of: Make, published: Operators) -> None:
    with pytest.raises(PhaseError, match=r"aten::mode \(node 'net'\)"):
        build(pretending, segment_of(Applied(mode)), published)


@pytest.mark.parametrize("value", ["0", "", "yes"])
def test_a_switch_that_is_not_on_asks_for_nothing(
    pretending: Any, segment_of: Make, published: Operators, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(SWITCH, value)
    with pytest.raises(PhaseError, match="PYTORCH_ENABLE_MPS_FALLBACK=1"):
        build(pretending, segment_of(Applied(mode)), published)


def test_a_fallback_that_is_asked_for_is_reported_every_time(
    pretending: Any, segment_of: Make, published: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # which shows a warning once for each line of code
        for _ in range(2):
            build(pretending, segment_of(Applied(mode)), published).close()
    assert [one.category for one in told] == [FallbackWarning] * 2
    assert {str(one.message) for one in told} == {
        "segment 's' needs operators that MPS lacks; torch computes them on the CPU in every step, as "
        "PYTORCH_ENABLE_MPS_FALLBACK asks: aten::mode (node 'net')"
    }
    assert {one.filename for one in told} == {__file__}


def test_where_nothing_is_lacking_nothing_is_reported(
    pretending: Any, segment_of: Make, published: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    build(pretending, segment_of(nn.Linear(4, 1)), published).close()
