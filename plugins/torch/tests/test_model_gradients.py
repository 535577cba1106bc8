"""Models that take gradients themselves, as of an energy for forces: trained, evaluated and predicted as by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import ShapeError

X = np.random.default_rng(0).normal(size=(32, 6)).astype("f4")
LOSSES = [
    aa.AppliedLoss("mse", on="net", inputs=["outputs.0", "d.e"], label="e"),
    aa.AppliedLoss("mse", on="net", inputs=["outputs.1", "d.f"], label="f"),
]


class Forces(nn.Module):
    """Gives an energy and the forces, by `torch.autograd.grad` or by `backward`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        energy = self.layers(x)
        return energy, -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def made() -> Forces:
    torch.manual_seed(0)
    return Forces()


def graph_of(net: nn.Module) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("d", {"x": X, "e": X[:, :1], "f": 0 * X}, ["x"], ["e", "f"])
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference("x"))], aa.Optimizer("sgd", lr=0.1))


def evaluation() -> aa.EvalPhase:
    return aa.EvalPhase("v", data="all", losses=LOSSES, accelerator="cpu")


def phase(**settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(16)
    return aa.TrainPhase("t", data="all", losses=LOSSES, sampler=sampler, accelerator="cpu", **settings)


def total(net: nn.Module, rows: slice) -> Tensor:
    energy, forces = net(torch.tensor(X[rows]))
    return nn.functional.mse_loss(energy, torch.tensor(X[rows, :1])) + forces.square().mean()


def by_hand(net: nn.Module, epochs: int) -> list[float]:
    optimizer, figures = torch.optim.SGD(net.parameters(), 0.1), list[float]()
    for _ in range(epochs):
        values = []
        for rows in (slice(0, 16), slice(16, 32)):
            optimizer.zero_grad()
            loss = total(net, rows)
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        figures.append(sum(values) / 2)
    return figures


@pytest.mark.parametrize("validates", [False, True])
def test_forces_are_trained_and_evaluated_as_by_hand(validates: bool) -> None:
    net, hand = made(), made()
    graph, expected = graph_of(net), by_hand(hand, 2)
    settings = {"validation": evaluation()} if validates else {}
    np.testing.assert_allclose(graph.run(phase(epochs=2, **settings), progress="none").loss, expected, rtol=1e-5)
    results = graph.run(evaluation(), progress="none")
    assert results.loss == pytest.approx(total(hand, slice(0, 32)).item(), rel=1e-5)


def test_predictions_of_forces_have_no_gradients() -> None:
    net = made()
    predicted = graph_of(net).run(aa.EvalPhase("p", data="all", losses=LOSSES, accelerator="cpu"), progress="none")
    assert predicted.loss == pytest.approx(total(copy.deepcopy(net), slice(0, 32)).item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in net.parameters())


class Backward(Forces):
    """As Forces, by a backward pass, which adds to the gradients of parameters."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        energy = self.layers(x)
        if not self.training:
            energy.sum().backward(retain_graph=True)
        return energy, x * self.layers[0].weight.sum() if x.grad is None else -x.grad


def test_a_backward_pass_in_a_validation_does_not_reach_the_next_step() -> None:
    def losses(**settings: Any) -> np.ndarray:
        torch.manual_seed(0)
        return graph_of(Backward()).run(phase(epochs=3, **settings), progress="none").loss

    np.testing.assert_array_equal(losses(validation=evaluation()), losses())


class OfInputs(Forces):
    """Takes the gradient of its input, which has none."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.layers(x)
        return energy, -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


class OfClones(OfInputs):
    """As the hint says."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        return super().forward(x)


def test_a_gradient_of_an_input_that_has_none_is_refused_with_what_to_write() -> None:
    with pytest.raises(ShapeError, match=r"node 'net'.*Hint: .*: x = x\.clone\(\)\.requires_grad_\(\)\."):
        graph_of(OfInputs()).run(phase(), progress="none")
    torch.manual_seed(0)
    loss = graph_of(OfClones()).run(phase(), progress="none").loss
    assert loss == pytest.approx(by_hand(made(), 1), rel=1e-5)


class Fails(nn.Module):
    """Fails by something else than sizes."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(6, 1), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("text", ["Ninja is required to load C++ extensions", "call this in training only"])
def test_only_errors_of_sizes_are_said_to_be_of_sizes(text: str) -> None:
    with pytest.raises(ShapeError, match=rf"node 'net'.*{text[:20]}.*Hint: fix the model's code".replace("+", r"\+")):
        graph_of(Fails(RuntimeError(text))).run(phase(), progress="none")
    with pytest.raises(ShapeError, match="Hint: correct the sizes of the model"):
        graph_of(nn.Linear(5, 1)).run(phase(), progress="none")
