"""State of the user's modules that a program changes and restores."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch import SequentialMLP
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.module_traits import infer_outputs

CPU, META = Device("cpu"), Device("meta")
Data = tuple[Tensor, Tensor, Tensor]
Make = Callable[..., Segment]


def mlp(seed: int = 0, *, wide: int = 8) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, wide), nn.ReLU(), nn.Linear(wide, 1))


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_frozen_node_passes_gradients_and_is_unchanged(backend: TorchBackend, data: Data) -> None:
    x, y, order = data
    first, frozen, last = nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)), nn.Linear(4, 1)
    operations = (
        Operation("a", first, ("x",), ("a",), CPU),
        Operation("b", frozen, ("a",), ("b",), CPU, trainable=False),
        Operation("c", last, ("b",), ("c",), CPU),
    )
    before, mean = [weights(m) for m in (first, frozen, last)], frozen[0].running_mean.clone()
    program = backend.build(
        Segment(
            "s",
            operations,
            {"x": (TensorSpec((3,), "float32"), CPU), "y": (TensorSpec((1,), "float32"), CPU)},
            (),
            (LossTerm("l", "c", Loss("mse"), ("c", "y"), CPU),),
            (ParameterGroup("g", Optimizer("sgd", lr=0.1), ("a", "c")),),
        )
    )
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    program.train_steps([x, y], [order, order], 0, 3, 8)
    assert (first.training, frozen.training, last.training) == (True, False, True)
    assert not equal(weights(first), before[0]) and equal(weights(frozen), before[1])
    assert torch.equal(frozen[0].running_mean, mean)
    program.close()
    assert all(parameter.requires_grad for parameter in frozen.parameters()) and frozen[0].training


def test_parameters_that_the_user_froze_stay_frozen(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = mlp()
    model[0].weight.requires_grad_(False)
    before = weights(model)
    program = backend.build(segment_of(model))
    program.train_steps([x, y], [order, order], 0, 2, 8)
    assert torch.equal(model[0].weight, before[0]) and not torch.equal(model[0].bias, before[1])
    assert "0.weight" not in program.close()["a"].slots
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]


@pytest.mark.parametrize("root", [True, False])
def test_modes_are_switched_and_restored(backend: TorchBackend, segment_of: Make, data: Data, root: bool) -> None:
    x, y, order = data
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).train(root)
    model[1].eval()
    program, other = backend.build(segment_of(model)), backend.build(segment_of(model, groups=()))
    seen: list[tuple[bool, bool]] = []
    model[1].register_forward_hook(lambda *_: seen.append((model.training, model[1].training)))
    for _ in range(2):
        program.train_steps([x, y], [order, order], 0, 1, 8)
        other.forward([x, y])
    assert seen == [(True, True), (False, False)] * 2
    program.close()
    assert (model.training, model[0].training, model[1].training) == (root, root, False)


def test_evaluating_program_leaves_gradient_flags_alone(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = mlp()
    training = backend.build(segment_of(model))
    with_eval = backend.build(segment_of(model, groups=()))
    with_eval.forward([x, y])
    with_eval.close()
    training.train_steps([x, y], [order, order], 0, 1, 8)
    training.close()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_old_gradients_are_cleared(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model, fresh = mlp(), mlp()
    model(x).sum().backward()
    for each in (model, fresh):
        backend.build(segment_of(each)).train_steps([x, y], [order, order], 0, 1, 8)
    assert equal(weights(model), weights(fresh))


def test_close_restores_the_random_state_and_is_idempotent(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = nn.Sequential(nn.Dropout(0.5), mlp())
    before = torch.get_rng_state()
    program = backend.build(segment_of(model, optimizer=Optimizer("adam")))
    program.seed(2**64 - 1)
    program.train_steps([x, y], [order, order], 0, 2, 8)
    states = program.close()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    after = torch.get_rng_state()
    assert program.close() is states is program.optimizer_states()
    assert torch.equal(torch.get_rng_state(), after)
    assert states["a"].step == 2 and set(states["a"].slots["1.0.weight"]) == {"m", "v"}


def test_seed_decides_the_dropout(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    result = []
    for key in (1, 1, 2):
        model = nn.Sequential(mlp()[0], nn.Dropout(0.5), mlp(1)[2])
        program = backend.build(segment_of(model))
        program.seed(key)
        program.train_steps([x, y], [order, order], 0, 3, 8)
        program.close()
        result.append(weights(model))
    assert equal(result[0], result[1]) and not equal(result[0], result[2])


class Counting(nn.Module):
    """Replaces its buffer in every step."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + 1
        return x


@pytest.mark.parametrize("recipe", [Optimizer("adam", lr=0.01), Optimizer(torch.optim.NAdam, lr=0.01)], ids=str)
def test_snapshot_restores_everything(backend: TorchBackend, segment_of: Make, data: Data, recipe: Optimizer) -> None:
    x, y, order = data
    model = nn.Sequential(Counting(), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    program = backend.build(segment_of(model, optimizer=recipe))
    start = program.snapshot()
    program.train_steps([x, y], [order, order], 0, 2, 8)
    snapshot = program.snapshot()
    kept = [tensor.clone() for tensor in model.state_dict().values()]

    def go_on() -> list[Tensor]:
        program.forward_pullback([x, y])[2]([None])
        losses = program.train_steps([x, y], [order, order], 0, 3, 8)
        return [losses, *[tensor.clone() for tensor in model.state_dict().values()]]

    program.zero_grad()
    expected = go_on()
    for _ in range(2):
        program.restore(snapshot)
        assert equal(list(model.state_dict().values()), kept) and program.optimizer_states()["a"].step == 2
        assert equal(go_on(), expected)
    program.restore(start)
    assert (
        program.optimizer_states()["a"].step == 0 and program.optimizer_states()["a"].slots == {} and model[0].seen == 0
    )


def test_parameters_of_losses_train_with_their_node(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.factor.square() * (a - b).square().mean()

    loss = Scaled().eval()
    program = backend.build(segment_of(mlp(), loss=loss, optimizer=Optimizer("adam")))
    program.train_steps([x, y], [order, order], 0, 2, 8)
    assert loss.factor != 2 and loss.training
    states = program.close()
    assert "loss.l.factor" in states["a"].slots and not loss.training


def test_sequential_mlp_trains(backend: TorchBackend, segment_of: Make, data: Data) -> None:
    x, y, order = data
    model = SequentialMLP()
    backend.infer(model, [TensorSpec((3,), "float32")], 1)
    losses = backend.build(segment_of(model, optimizer=Optimizer("adam", lr=0.05))).train_steps(
        [x, y], [order] * 2, 0, 6, 4
    )
    assert losses.isfinite().all()


def test_sparse_gradients_are_supported(backend: TorchBackend, segment_of: Callable[..., Segment], data: Data) -> None:
    _, y, order = data
    model = nn.Sequential(nn.Embedding(24, 1, sparse=True), nn.Flatten())
    rows = torch.arange(24)[:, None]
    program = backend.build(segment_of(model, features=(1,)))
    program.forward_pullback([rows, y])[2]([None])
    square, finite = program.grad_stats()["g"]
    torch.testing.assert_close(square, (2 / 24 * (model[0].weight - y)).square().sum().detach())
    program.optimizer_step({"g": 0.5})
    assert finite and program.train_steps([rows, y], [order, order], 0, 3, 8).shape == (3, 1)


class Running(torch.nn.Module):
    """Its forward changes plain attributes, what they hold, a buffer and its own hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.LazyLinear(2)
        self.count, self.center, self.seen = 0, torch.ones(3), list[int]()
        self.array, self.helper = np.zeros(2), SimpleNamespace(count=0)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.center.mul_(0.5)
        self.last = x
        self.seen.append(1)
        self.array += 1
        self.helper.count += 1
        self.mean += 1  # type: ignore[operator]
        self.register_forward_hook(lambda *_: None)
        return self.linear(x - self.center)  # type: ignore[no-any-return]


def test_inference_leaves_the_attributes_of_a_module_as_they_were() -> None:
    model = Running()
    center = model.center
    for _ in range(2):
        (output,) = infer_outputs(model, [TensorSpec((3,), "float32")], (), 0)
        assert output.spec == TensorSpec((2,), "float32")
    assert (model.count, model.seen, model.helper.count, len(vars(model)["_forward_hooks"])) == (0, [], 0, 0)
    assert model.center is center and center.tolist() == [1, 1, 1] and not hasattr(model, "last")
    assert model.array.tolist() == [0, 0] and model.mean.item() == 0
    assert isinstance(model.linear, torch.nn.Linear)


def test_a_module_that_builds_itself_in_its_first_call_stays_built() -> None:
    class Lazy(torch.nn.Module):
        ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                self.ready = True
                self.layers.append(torch.nn.Linear(3, 2))
            return self.layers[0](x)

    model = Lazy()
    model.layers = torch.nn.ModuleList()
    infer_outputs(model, [TensorSpec((3,), "float32")], (), 0)
    assert model.ready and len(list(model.parameters())) == 2
