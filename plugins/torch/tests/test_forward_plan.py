"""Segments of many nodes: values, concatenation, devices, shared modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.device import Device
from anyaccel.errors import GraphError, PhaseError, ShapeError, SpecError
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


def test_concatenation_and_several_outputs_and_inputs(backend: TorchBackend, data: Data) -> None:
    x, y, order = data
    two = Function(lambda a: {"sum": a + 1, "difference": a - 1})
    head, hand = nn.Bilinear(6, 3, 1), nn.Bilinear(6, 3, 1)
    hand.load_state_dict(head.state_dict())
    operations = (
        Operation("two", two, ("x",), ("two.sum", "two.difference"), CPU),
        Operation("both", None, ("two.sum", "two.difference"), ("both",), CPU, axis=0),
        Operation("head", head, ("both", "x"), ("head",), CPU),
    )
    inputs = {"x": (TensorSpec((3,), "float32"), CPU), "y": (TensorSpec((1,), "float32"), CPU)}
    program = backend.build(
        Segment(
            "s",
            operations,
            inputs,
            ("head", "both", "x"),
            (LossTerm("l", "head", Loss("mse"), ("head", "y"), CPU),),
            (ParameterGroup("g", Optimizer("sgd", lr=0.1), ("two", "head")),),
        )
    )
    (out, both, same), _ = program.forward([x, y])
    torch.testing.assert_close(both, torch.cat([x + 1, x - 1], 1))
    torch.testing.assert_close(out, hand(both, x).detach())
    assert torch.equal(same, x)
    assert program.train_steps([x, y], [order, order], 0, 2, 4).shape == (2, 1)
    assert list(program.optimizer_states()) == ["two", "head"]


def test_concatenation_along_the_batch_raises_shape_error(backend: TorchBackend, data: Data) -> None:
    x = data[0]
    joined = (Operation("c", None, ("x", "x"), ("c",), CPU, axis=-1),)
    for rows, axis in ((x[:, 0], -1), (x, -2)):
        spec = {"x": (TensorSpec(tuple(rows.shape[1:]), "float32"), CPU)}
        operation = Operation("c", None, ("x", "x"), ("c",), CPU, axis=axis)
        with pytest.raises(ShapeError, match=rf"'c' cannot concatenate along axis {axis}: .*Hint: use an axis"):
            backend.build(Segment("s", (operation,), spec, ("c",))).forward([rows])
    spec = {"x": (TensorSpec((3,), "float32"), CPU)}
    assert backend.build(Segment("s", joined, spec, ("c",))).forward([x])[0][0].shape == (24, 6)


def test_changed_number_of_outputs_raises_graph_error(backend: TorchBackend, data: Data) -> None:
    operation = Operation("a", Function(lambda x: (x, x, x)), ("x",), ("a.0", "a.1"), CPU)
    spec = {"x": (TensorSpec((3,), "float32"), CPU)}
    with pytest.raises(
        GraphError, match=r"node 'a' returns 3 outputs in evaluation; the graph was built with 2: a\.0, a\.1\. Hint"
    ):
        backend.build(Segment("s", (operation,), spec, ("a.0",))).forward([data[0]])


def test_unknown_values_and_uncallable_models_raise(backend: TorchBackend, segment_of: Make) -> None:
    with pytest.raises(GraphError, match=r"segment has no value 'z' before .*Available: x, y, a\. Hint: put the"):
        backend.build(segment_of(mlp(), outputs=("z",)))
    with pytest.raises(SpecError, match=r"node 'a': a Tensor is not callable\. Hint: pass an nn\.Module"):
        backend.build(segment_of(torch.zeros(1)))


def test_value_is_transferred_once_per_device(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = nn.Linear(3, 2, device="meta")
    operations = (
        Operation("a", nn.Linear(3, 3), ("x",), ("a",), CPU),
        Operation("b", elsewhere, ("a",), ("b",), META),
        Operation("c", elsewhere, ("a",), ("c",), META),
        Operation("d", None, ("b", "c", "x"), ("d",), META),
    )
    program = backend.build(Segment("s", operations, {"x": (TensorSpec((3,), "float32"), CPU)}, ("d", "a")))
    moved: list[Any] = []
    real = Tensor.to
    monkeypatch.setattr(Tensor, "to", lambda self, *a, **kw: moved.append(a[0]) or real(self, *a, **kw))
    (d, a), _ = program.forward([torch.zeros(4, 3)])
    assert d.is_meta and d.shape == (4, 7) and not a.is_meta
    assert [to for to in moved if isinstance(to, torch.device)] == [torch.device("meta")] * 2


def test_shared_module_is_trained_once(backend: TorchBackend, data: Data) -> None:
    x, _, order = data
    actual, hand = nn.Linear(3, 3), nn.Linear(3, 3)
    hand.load_state_dict(actual.state_dict())
    operations = tuple(Operation(b, actual, (a,), (b,), CPU) for a, b in (("x", "a"), ("a", "b")))
    segment = Segment(
        "s",
        operations,
        {"x": (TensorSpec((3,), "float32"), CPU)},
        (),
        (LossTerm("l", "b", Loss("mse"), ("b", "x"), CPU),),
        (ParameterGroup("g", Optimizer("momentum", lr=0.1), ("a", "b")),),
    )
    program = backend.build(segment)
    program.train_steps([x], [order], 0, 1, 24)
    grads = torch.autograd.grad(F.mse_loss(hand(hand(x[order])), x[order]), list(hand.parameters()))
    for a, b, grad in zip(weights(actual), weights(hand), grads, strict=True):
        torch.testing.assert_close(a, b - 0.1 * grad)
    states = program.close()
    assert set(states["a"].slots) == {"weight", "bias"} and states["b"] is states["a"]
    swapped = Segment(**{**vars_of(segment), "groups": (ParameterGroup("g", Optimizer("momentum"), ("b", "a")),)})
    again = backend.build(Segment(**{**vars_of(swapped), "states": states}))
    result = again.optimizer_states()
    assert (result["a"].step, result["b"].step) == (1, 1) and set(result["b"].slots) == {"weight", "bias"}
    assert torch.equal(result["b"].slots["weight"]["velocity"], states["a"].slots["weight"]["velocity"])


def vars_of(segment: Segment) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in segment.__dataclass_fields__}


def test_a_module_that_starts_to_write_to_a_shared_input_is_told(backend: TorchBackend, data: Data) -> None:
    x, _, order = data
    calls = [0]

    def writes_later(x: Tensor) -> Tensor:
        calls[0] += 1
        return x.mul_(2.0) if calls[0] > 1 else x * 2.0

    operations = (
        Operation("w", Function(writes_later), ("x",), ("w",), CPU),
        Operation("b", nn.Linear(3, 3), ("x",), ("b",), CPU),
    )
    segment = Segment(
        "s",
        operations,
        {"x": (TensorSpec((3,), "float32"), CPU)},
        (),
        (LossTerm("l", "b", Loss("mse"), ("b", "w"), CPU),),
        (ParameterGroup("g", Optimizer("sgd", lr=0.1), ("b",)),),
    )
    program = backend.build(segment)
    program.train_steps([x], [order], 0, 1, 8)
    with pytest.raises(PhaseError, match=r"^node 'w' has written to an input that other nodes read, .* Hint: copy the"):
        program.train_steps([x], [order], 8, 1, 8)
    program.close()
