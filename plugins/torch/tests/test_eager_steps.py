"""Whole training steps in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.device import Device
from anyaccel.errors import CompileError, OutOfMemoryError, PhaseError, ShapeError
from anyaccel.segment import LossTerm, Operation, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer, Schedule
from anyaccel_torch import step_compiler
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.step_compiler import gathered_blocks

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


@pytest.mark.parametrize(
    ("most", "sizes"), [(400, [25, 25, 25, 15]), (479, [25, 25, 25, 15]), (80, [5] * 18), (1, [5] * 18)]
)
def test_rows_are_gathered_for_as_many_whole_batches_as_the_bytes_allow(most: int, sizes: list[int]) -> None:
    columns, order = [torch.arange(400.0).view(100, 4)], torch.randperm(100)  # 16 bytes a row, 80 a batch
    blocks = [block for (block,) in gathered_blocks(columns, [order], 10, 100, 5, most)]
    assert [len(block) for block in blocks] == sizes
    assert torch.equal(torch.cat(blocks), columns[0][order[10:]])


@pytest.mark.parametrize("recipe", ["sgd", "momentum", "adam", "adamw"])
def test_train_steps_equal_a_loop_by_hand(backend: TorchBackend, segment_of: Make, data: Data, recipe: str) -> None:
    x, y, order = data
    actual, hand = mlp(), mlp()
    built_program = backend.build(segment_of(actual, optimizer=Optimizer(recipe, lr=0.01)))
    losses = built_program.train_steps([x, y], [order, order], 4, 5, 4)
    kinds = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    extra = {"momentum": 0.9} if recipe == "momentum" else {}
    optimizer = kinds[recipe](hand.parameters(), lr=0.01, fused=True, **extra)
    expected = []
    for i in range(5):
        rows = order[4 + i * 4 :][:4]
        optimizer.zero_grad()
        loss = F.mse_loss(hand(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())
    assert losses.shape == (5, 1) and not losses.requires_grad
    assert torch.equal(losses[:, 0], torch.stack(expected))
    assert equal(weights(actual), weights(hand))
    assert all(parameter.grad is None for parameter in actual.parameters())


def test_gathering_in_blocks_changes_no_result(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, order = data
    result = []
    for bound in (step_compiler.BLOCK_BYTES, 100, 1):
        monkeypatch.setattr(step_compiler, "BLOCK_BYTES", bound)
        model = mlp()
        result.append((backend.build(segment_of(model)).train_steps([x, y], [order, order], 0, 6, 4), weights(model)))
    assert all(torch.equal(losses, result[0][0]) and equal(values, result[0][1]) for losses, values in result)


def test_last_step_may_be_smaller(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    built_program = backend.build(segment_of(mlp()))
    assert built_program.train_steps([x, y], [order, order], 20, 1, 10).shape == (1, 1)


def test_clipping_and_schedule_apply_inside_train_steps(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    recipe = Optimizer("sgd", lr=0.5, clip_norm=0.1, schedule=Schedule("linear", steps=4))
    actual, hand = mlp(), mlp()
    built_program = backend.build(segment_of(actual, optimizer=recipe))
    built_program.train_steps([x, y], [order, order], 0, 2, 8)
    built_program.train_steps([x, y], [order, order], 16, 1, 8)
    for i in range(3):
        rows = order[i * 8 :][:8]
        grads = torch.autograd.grad(F.mse_loss(hand(x[rows]), y[rows]), list(hand.parameters()))
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        with torch.no_grad():
            for parameter, grad in zip(hand.parameters(), grads, strict=True):
                parameter -= recipe.rate(i) * grad * min(1.0, 0.1 / (float(norm) + 1e-6))
    for a, b in zip(weights(actual), weights(hand), strict=True):
        torch.testing.assert_close(a, b)


WAITS = ("item", "cpu", "numpy", "to", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__")


@pytest.mark.parametrize(
    "recipe", [Optimizer("adam", clip_norm=0.1), Optimizer("momentum", schedule=Schedule("cosine", steps=9))]
)
def test_train_steps_neither_transfer_nor_wait(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, recipe: Optimizer
) -> None:
    x, y, order = data
    classes = (y[:, 0] > 0).long()
    losses = (
        LossTerm("l", "a", Loss("mse"), ("a", "y"), CPU),
        LossTerm("c", "a", Loss("cross_entropy"), ("pair", "kind"), CPU, 0.5),
        LossTerm("own", "a", Loss(nn.L1Loss), ("a", "y"), CPU),
    )
    pair = Operation("pair", Function(lambda a: torch.cat([a, -a], 1)), ("a",), ("pair",), CPU)
    segment = segment_of(mlp(), optimizer=recipe, losses=losses)
    inputs = {**segment.inputs, "kind": (TensorSpec((), "int64"), CPU)}
    built_program = backend.build(Segment("s", (*segment.operations, pair), inputs, (), losses, segment.groups))
    counted: list[str] = []

    def counting(name: str, real: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            counted.extend(
                [name] if result is not args[0] else []
            )  # torch's own `to` where it is already is no transfer
            return result

        return run

    for name in WAITS:
        monkeypatch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))
    monkeypatch.setattr(TorchProgram, "loss_table", lambda self, result: result)  # after the last step, it may move
    result = built_program.train_steps([x, y, classes], [order] * 3, 0, 6, 4)
    assert counted == [] and len(result) == 18


def test_losses_are_means_in_order(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    terms = tuple(LossTerm(n, "a", Loss(n), ("a", "y"), CPU, w) for n, w in (("mse", 0.5), ("mae", 2.0)))
    actual, hand = mlp(), mlp()
    result = backend.build(segment_of(actual, losses=terms)).train_steps([x, y], [order, order], 0, 1, 8)
    rows = order[:8]
    parts = F.mse_loss(hand(x[rows]), y[rows]), F.l1_loss(hand(x[rows]), y[rows])
    torch.testing.assert_close(result, torch.stack(parts).detach()[None])
    grads = torch.autograd.grad(0.5 * parts[0] + 2 * parts[1], list(hand.parameters()))
    for a, b, grad in zip(weights(actual), weights(hand), grads, strict=True):
        torch.testing.assert_close(a, b - 0.1 * grad)


def test_segment_without_trained_parameters_raises_phase_error(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    x, y, order = data
    frozen = mlp().requires_grad_(False)
    for segment in (segment_of(frozen), segment_of(mlp(), losses=()), segment_of(mlp(), groups=())):
        with pytest.raises(PhaseError, match=r"no loss of .* reaches a trained parameter.*Hint: unfreeze a node"):
            backend.build(segment).train_steps([x, y], [order, order], 0, 1, 4)


def test_shapes_that_would_broadcast_stop_the_first_step(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    with pytest.raises(ShapeError, match="losses never broadcast"):
        backend.build(segment_of(mlp())).train_steps([x, y[:, 0]], [order, order], 0, 1, 4)


def test_out_of_memory_in_a_step_raises_out_of_memory_error(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    x, y, order = data
    greedy = nn.Sequential(mlp(), Function(lambda a: a + a.new_empty(2**48)))
    built_program = backend.build(segment_of(greedy))
    for act in (
        lambda: built_program.train_steps([x, y], [order, order], 0, 1, 4),
        lambda: built_program.forward([x, y]),
    ):
        with pytest.raises(OutOfMemoryError, match=r"not enough memory for a .* segment 's'"):
            act()


@pytest.mark.parametrize("n_microbatches", [1, 2])
def test_gradients_are_exchanged_once_a_step_before_clipping_and_update(
    backend: TorchBackend, segment_of: Make, data: Data, n_microbatches: int
) -> None:
    x, y, order = data
    actual, hand = mlp(), mlp()
    program = backend.build(segment_of(actual, optimizer=Optimizer("sgd", lr=0.1, clip_norm=0.2)))
    rows: list[int] = []

    def exchange(n_rows: int) -> None:
        rows.append(n_rows)
        for parameter in actual.parameters():
            parameter.grad = 3 * parameter.grad  # type: ignore[operator]

    program.exchange_in_steps(exchange)
    program.train_steps([x, y], [order, order], 4, 5, 4, n_microbatches)
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.1, fused=True)
    for i in range(5):
        taken = order[4 + i * 4 :][:4]
        optimizer.zero_grad()
        F.mse_loss(hand(x[taken]), y[taken]).backward()
        for parameter in hand.parameters():
            parameter.grad = 3 * parameter.grad  # type: ignore[operator]
        nn.utils.clip_grad_norm_(hand.parameters(), 0.2)
        optimizer.step()
    assert rows == [4] * 5
    for own, expected in zip(weights(actual), weights(hand), strict=True):
        torch.testing.assert_close(own, expected, rtol=0 if n_microbatches == 1 else 1e-6, atol=1e-7)


def test_steps_with_an_exchange_are_not_compiled(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    program = backend.build(segment_of(mlp()))
    program.exchange_in_steps(lambda n_rows: None)
    program.train_steps([x, y], [order, order], 4, 5, 4)
    assert program.estimate_compile(10**9) is None
    with pytest.raises(CompileError, match=r"replicas exchange gradients within each step\. Hint: leave compile"):
        program.compile([x, y], [order, order], 4)
