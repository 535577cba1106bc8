"""Forward, pullback and optimizer step, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch.backend import TorchBackend

CPU, META = Device("cpu"), Device("meta")
Data = tuple[Tensor, Tensor, Tensor]
Make = Callable[..., Segment]


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def mlp(seed: int = 0, *, wide: int = 8) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, wide), nn.ReLU(), nn.Linear(wide, 1))


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_forward_evaluates_without_gradients(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    before = model[1].running_mean.clone()
    (out,), losses = backend.build(segment_of(model)).forward([x, y])
    assert not out.requires_grad and torch.equal(model[1].running_mean, before)
    model.eval()
    torch.testing.assert_close(out, model(x).detach())
    total, weight = losses["l"]
    torch.testing.assert_close(total / weight, F.mse_loss(out, y))


def test_pullback_and_optimizer_step_equal_train_steps(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model_a, model_b = mlp(), mlp()
    recipe = Optimizer("adam", lr=0.01)
    whole, parts = (backend.build(segment_of(model, optimizer=recipe, weight=0.7)) for model in (model_a, model_b))
    expected = whole.train_steps([x, y], [order, order], 0, 3, 8)
    for i in range(3):
        rows = order[i * 8 :][:8]
        (out,), losses, pullback = parts.forward_pullback([x[rows], y[rows]])
        assert not out.requires_grad and not losses["l"][0].requires_grad
        assert pullback([None]) == ()
        parts.optimizer_step()
        torch.testing.assert_close(losses["l"][0] / losses["l"][1], expected[i, 0])
    for a, b in zip(weights(model_a), weights(model_b), strict=True):
        torch.testing.assert_close(a, b)


def test_micro_batches_with_scale_add_up(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    model_a, model_b = mlp(), mlp()
    whole, parts = backend.build(segment_of(model_a)), backend.build(segment_of(model_b))
    whole.forward_pullback([x, y])[2]([None])
    for rows in (slice(0, 16), slice(16, 24)):
        parts.forward_pullback([x[rows], y[rows]], {"l": torch.tensor(1 / 24)})[2]([None])
    torch.testing.assert_close(parts.grad_stats()["g"][0], whole.grad_stats()["g"][0])
    whole.optimizer_step()
    parts.optimizer_step()
    for a, b in zip(weights(model_a), weights(model_b), strict=True):
        torch.testing.assert_close(a, b)


def test_cotangents_train_two_segments_like_one(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    whole = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    F.mse_loss(whole(x), y).backward()
    expected = [parameter.grad for parameter in whole.parameters()]
    first = backend.build(
        Segment(
            "one",
            (Operation("a", whole[0], ("x",), ("a",), CPU),),
            {"x": (TensorSpec((3,), "float32"), CPU)},
            ("a",),
            groups=(ParameterGroup("g", Optimizer("sgd"), ("a",)),),
        )
    )
    second = backend.build(
        Segment(
            "two",
            (Operation("b", whole[1:], ("a",), ("b",), CPU),),
            {"a": (TensorSpec((4,), "float32"), CPU), "y": (TensorSpec((1,), "float32"), CPU)},
            ("b",),
            (LossTerm("l", "b", Loss("mse"), ("b", "y"), CPU),),
            (ParameterGroup("g", Optimizer("sgd"), ("b",)),),
            needs_pullback=("a",),
        )
    )
    (middle,), _, back_first = first.forward_pullback([x])
    kept = middle.clone()
    _, _, back_second = second.forward_pullback([middle, y])
    (cotangent,) = back_second([None])
    assert torch.equal(middle, kept), "an in-place activation must not write to what another segment gave"
    assert back_first([cotangent]) == ()
    for parameter, grad in zip(whole.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_unused_input_has_a_zero_cotangent(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    segment = segment_of(Function(lambda a: torch.ones(len(a), 1)), groups=(), needs_pullback=("x",))
    (result,) = backend.build(segment).forward_pullback([x, y])[2]([torch.ones(24, 1)])
    assert torch.equal(result, torch.zeros_like(x))


@pytest.mark.parametrize("training", [False, True])
def test_in_place_module_does_not_change_columns(
    backend: TorchBackend, segment_of: Make, data: Data, training: bool
) -> None:
    x, y, order = data
    kept = x.clone()
    program = backend.build(segment_of(nn.Sequential(nn.ReLU(inplace=True), mlp())))
    for _ in range(3):
        if training:
            program.forward_pullback([x[2:8], y[2:8]])[2]([None])
        else:
            program.forward([x[2:8], y[2:8]])
    program.train_steps([x, y], [order, order], 0, 2, 4)
    assert torch.equal(x, kept)


def test_grad_stats_map_gradients_scale_and_zero_grad(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, _ = data
    model = mlp()
    before = weights(model)
    program = backend.build(segment_of(model))
    pull = lambda: program.forward_pullback([x, y])[2]([None])  # noqa: E731
    pull()
    square, finite = program.grad_stats()["g"]
    assert square > 0 and finite
    seen: list[tuple[int, ...]] = []
    program.map_gradients(lambda grad: seen.append(tuple(grad.shape)) or grad * 2)
    assert seen == [tuple(tensor.shape) for tensor in before]
    torch.testing.assert_close(program.grad_stats()["g"][0], square * 4)
    program.zero_grad()
    assert program.grad_stats()["g"][0] == 0
    program.optimizer_step()
    assert equal(weights(model), before)
    pull()
    program.optimizer_step({"g": 0.0})
    assert equal(weights(model), before)
    pull()
    program.map_gradients(lambda grad: grad * float("inf"))
    assert not program.grad_stats()["g"][1]
