"""Compile strategies run as plain Python, and two compiled by torch itself."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyaccel.segment import LossTerm, Segment
from anyaccel.specs import Loss, Optimizer, Schedule
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.compiling import steps, strategies, toolchain_check

# Before torch 2.13 its compiler did not take the loop.
ONE_LOOP = (
    "all steps of a call in one compiled loop"
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    else "4 compiled steps per call, as the scan operator failed: InductorError"
)

Make = Callable[..., Segment]
RECIPES = [
    Optimizer("sgd", lr=0.1, clip_norm=0.2),
    Optimizer("sgd", lr=0.1, weight_decay=0.01, momentum=0.5),
    Optimizer("momentum", lr=0.05, weight_decay=0.01, schedule=Schedule("exponential", rate=0.99)),
    Optimizer("momentum", lr=0.05, momentum=0.7, nesterov=True, clip_norm=0.3),
    Optimizer("adam", lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01),
    Optimizer("adam", lr=0.01, schedule=Schedule("cosine", steps=80, warmup=10), clip_norm=0.1),
    Optimizer("adamw", lr=0.01, weight_decay=0.1, schedule=Schedule("linear", steps=90, final=0.1)),
    Optimizer("adamw", lr=0.01, weight_decay=0.0, schedule=Schedule("step", rate=0.5, every=30)),
]


def python_loop(function: Any, carry: Any, xs: list[Tensor]) -> Any:
    """The semantics of torch's scan."""
    result = []
    for i in range(len(xs[0])):
        carry, outputs = function(carry, [x[i] for x in xs])
        result.append(outputs)
    return carry, [torch.stack(list(column)) for column in zip(*result, strict=True)]


@pytest.fixture
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions run as plain Python."""
    monkeypatch.setattr(strategies, "torch_compile", lambda function, options: function)
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    monkeypatch.setattr(toolchain_check, "scan", lambda: python_loop)
    monkeypatch.setattr(toolchain_check, "check", lambda: None)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", math.inf)  # which uncompiled "compiled" steps are


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def data(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(7)
    x, order = torch.randn(400, 3, generator=draw), torch.randperm(400, generator=draw)
    y = torch.sin(x.sum(1, keepdim=True))
    return [x.to(dtype), y.to(dtype)], [order, order]


def trained(
    backend: TorchBackend, segment: Segment, compile: bool, parts: int = 1, dtype: Any = torch.float32, batch: int = 4
) -> Any:
    """Losses of an epoch, 100 steps unless `batch` says otherwise, and the program."""
    program: Any = backend.build(segment)
    columns, orders = data(dtype)
    if compile:
        program.compile(columns, orders, batch, parts)
        assert program.compiled_as
    return program.train_steps(columns, orders, 0, 400 // batch, batch, parts), program


def assert_close_training(eager: Any, compiled: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(compiled[0], eager[0], rtol=tolerance, atol=tolerance)
    states, compiled_states = eager[1].optimizer_states(), compiled[1].optimizer_states()
    for node, state in states.items():
        assert compiled_states[node].step == state.step == len(eager[0])
        assert {name: set(slots) for name, slots in compiled_states[node].slots.items()} == {
            name: set(slots) for name, slots in state.slots.items()
        }
    for a, b in zip(weights(eager[1]), weights(compiled[1]), strict=True):
        torch.testing.assert_close(b, a, rtol=10 * tolerance, atol=10 * tolerance)


def weights(program: Any) -> list[Tensor]:
    return [tensor for operation in program.segment.operations for tensor in operation.model.state_dict().values()]


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("small", [True, False], ids=["loop", "in place"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.name}-{r.schedule.name}-{r.clip_norm}")
def test_compiled_optimizers_equal_torchs_own(
    backend: TorchBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, recipe: Optimizer, small: bool
) -> None:
    monkeypatch.setattr(steps, "FLAT_UP_TO", 1000 if small else 1)
    eager = trained(backend, segment_of(mlp(), optimizer=recipe), False)
    compiled = trained(backend, segment_of(mlp(), optimizer=recipe), True)
    expected = "all steps of a call in one compiled loop" if small else "one compiled step per call"
    assert compiled[1].compiled_as == expected
    assert_close_training(eager, compiled)


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_compiled_steps_support_other_dtypes(
    backend: TorchBackend, segment_of: Make, name: str, dtype: torch.dtype
) -> None:
    recipe = Optimizer(name, lr=0.01)
    eager, compiled = (
        trained(backend, segment_of(mlp(dtype), optimizer=recipe), compile, dtype=dtype) for compile in (False, True)
    )
    assert_close_training(eager, compiled, 5e-2 if dtype is torch.bfloat16 else 1e-10)


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("small", [True, False], ids=["loop", "in place"])
def test_micro_batches_equal_the_whole_batch(
    backend: TorchBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setattr(steps, "FLAT_UP_TO", 1000 if small else 1)
    recipe = Optimizer("adam", lr=0.01, clip_norm=0.1)
    whole = trained(backend, segment_of(mlp(), optimizer=recipe), False)
    assert_close_training(whole, trained(backend, segment_of(mlp(), optimizer=recipe), False, parts=2))
    assert_close_training(whole, trained(backend, segment_of(mlp(), optimizer=recipe), True, parts=4))


def test_unequal_micro_batches_are_weighted_by_rows(backend: TorchBackend, segment_of: Make) -> None:
    columns, orders = data()
    result = []
    for parts in (1, 3, 9):
        model = mlp()
        losses: Any = backend.build(segment_of(model)).train_steps(columns, orders, 0, 5, 7, parts)  # type: ignore[attr-defined]
        result.append((losses, list(model.parameters())))
    for losses, values in result[1:]:
        torch.testing.assert_close(losses, result[0][0])
        torch.testing.assert_close(values, result[0][1])


@pytest.mark.usefixtures("as_written")
def test_smaller_batch_than_a_compiled_one_is_not_compiled(backend: TorchBackend, segment_of: Make) -> None:
    program: Any = backend.build(segment_of(mlp()))
    columns, orders = data()
    for batch in (8, 16, 4):
        program.compile(columns, orders, batch)
    assert sorted(vars(vars(program)["_compiler"])["_compiled"]) == [(8, 1), (16, 1)]


@pytest.mark.usefixtures("as_written")
def test_parameter_without_gradient_is_unchanged(backend: TorchBackend, segment_of: Make) -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = mlp(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return self.used(x)

    model = Idle()
    before = [each.detach().clone() for each in model.idle.parameters()]
    _, program = trained(backend, segment_of(model, optimizer=Optimizer("adamw", lr=0.1, weight_decay=0.5)), True)
    assert all(map(torch.equal, before, model.idle.parameters()))
    assert set(program.optimizer_states()["a"].slots) == {
        "used.0.weight",
        "used.0.bias",
        "used.2.weight",
        "used.2.bias",
    }


@pytest.mark.usefixtures("as_written")
def test_module_that_writes_to_inputs_gets_copies(backend: TorchBackend, segment_of: Make) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.ELU(inplace=True), mlp())

    columns, _ = data()
    kept = [column.clone() for column in columns]
    assert_close_training(trained(backend, segment_of(model()), False), trained(backend, segment_of(model()), True))
    assert all(map(torch.equal, columns, kept))


@pytest.mark.whole
def test_compiled_loop_supports_micro_batches(backend: TorchBackend, segment_of: Make) -> None:
    """A loop inside the loop, with batch normalization, whose statistics change with every micro-batch."""

    def model() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))

    recipe = Optimizer("momentum", lr=0.01, clip_norm=1.0)
    eager, compiled = (
        trained(backend, segment_of(model(), optimizer=recipe), compile, 2, batch=20) for compile in (False, True)
    )
    assert compiled[1].compiled_as == ONE_LOOP
    assert_close_training(eager, compiled, 1e-4)


@pytest.mark.whole
def test_steps_are_unrolled_without_a_scan_operator(
    backend: TorchBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftover steps are uncompiled; a custom loss is compiled, too."""
    monkeypatch.setattr(toolchain_check, "scan", lambda: None)
    monkeypatch.setattr(steps, "UNROLLED", 3)
    terms = (LossTerm("l", "a", Loss(nn.HuberLoss()), ("a", "y"), segment_of(mlp()).losses[0].device),)
    recipe = Optimizer("adam", lr=0.01)
    eager, compiled = (
        trained(backend, segment_of(mlp(), optimizer=recipe, losses=terms), compile) for compile in (False, True)
    )
    assert compiled[1].compiled_as == "3 compiled steps per call"
    assert_close_training(eager, compiled, 1e-4)
