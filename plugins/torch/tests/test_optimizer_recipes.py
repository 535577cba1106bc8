"""Optimizers as the guides of PyTorch write them, beside a loop by hand: the same weights, or a hint that works.

Float32; a loop by hand and torch's own fused or foreach kernels agree within 1e-6.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

import anyaccel as aa
from anyaccel.errors import CompileWarning, SpecError
from anyaccel_torch import TorchSchedule

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
EPOCHS, STEPS = 3, 4  # of 8 rows


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(torch.tanh(self.body(x))))
        return result


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(4, 4)
        self.again.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.again(x))


def alike(make: Callable[[], nn.Module] = Net) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = make()
    return net, copy.deepcopy(net)


def by_hand(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = EPOCHS,
    before_step: Callable[[], Any] = lambda: None,
    after_step: Callable[[], Any] = lambda: None,
    after_epoch: Callable[[], Any] = lambda: None,
    accumulate: int = 1,
) -> None:
    for _ in range(epochs):
        for i in range(STEPS):
            rows = slice(8 * i, 8 * i + 8)
            loss = F.mse_loss(net(torch.tensor(X[rows])), torch.tensor(Y[rows])) / accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            if (i + 1) % accumulate == 0:
                before_step()
                optimizer.step()
                optimizer.zero_grad()
                after_step()
        after_epoch()


def graph_of(net: nn.Module, optimizer: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)


def train(graph: aa.ModelGraph, epochs: int = EPOCHS, **settings: Any) -> Any:
    settings = {"losses": [aa.AppliedLoss("mse", on="net")], "sampler": aa.SimpleSampler(8, shuffle=False), **settings}
    return graph.run(aa.TrainPhase("t", data="all", epochs=epochs, **settings), progress="none")


def check_equal(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, actual), expected in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        # after a dozen steps in float32, which processors round differently
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=name)


class Then(aa.Callback):
    """Calls a function after each step or epoch."""

    def __init__(self, *, step: Callable[[], Any] | None = None, epoch: Callable[[], Any] | None = None) -> None:
        self.step, self.epoch = step, epoch
        if step is None:
            self.step_end = lambda run: None  # type: ignore[method-assign]

    def step_end(self, run: Any) -> None:
        assert self.step is not None
        self.step()

    def epoch_end(self, run: Any) -> None:
        if self.epoch is not None:
            self.epoch()


# -- objects, as a loop by hand has them -------------------------------------------------------------------------------


def two_groups(net: nn.Module) -> torch.optim.Optimizer:
    groups: list[Any] = [
        {"params": net.get_submodule("body").parameters(), "lr": 0.01},
        {"params": net.get_submodule("norm").parameters()},
        {"params": net.get_submodule("head").parameters(), "momentum": 0.5},
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def without_decay_of_vectors(net: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}], lr=0.05
    )


def by_layer(net: nn.Module) -> torch.optim.Optimizer:
    layers = [child for child in net.children() if list(child.parameters())]
    rates = [{"params": layer.parameters(), "lr": 0.1 * 0.5**i} for i, layer in enumerate(reversed(layers))]
    return torch.optim.SGD(rates, momentum=0.9)


class HalfSteps(torch.optim.SGD):
    """A known class with a step of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= 0.5 * group["lr"] * parameter.grad.sign()


def decayed_by_name(net: nn.Module) -> torch.optim.Optimizer:
    names = dict(net.named_parameters())
    groups: list[Any] = [
        {"params": [p for name, p in names.items() if "norm" in name or name.endswith("bias")], "weight_decay": 0.0},
        {"params": [p for name, p in names.items() if "norm" not in name and not name.endswith("bias")]},
    ]
    return torch.optim.RAdam(groups, lr=0.05, weight_decay=0.2)


OBJECTS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "two groups": two_groups,
    "no decay of vectors": without_decay_of_vectors,
    "decay by name": decayed_by_name,
    "a rate for each layer": by_layer,
    "Nesterov": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.05, lr_decay=0.1),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01, centered=True, momentum=0.5),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters(), lr=0.05),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.05),
    "maximize": lambda net: torch.optim.Adam(net.parameters(), lr=0.01, maximize=True),
    "amsgrad, foreach": lambda net: torch.optim.Adam(net.parameters(), lr=0.05, amsgrad=True, foreach=True),
    "fused": lambda net: torch.optim.AdamW(net.parameters(), lr=0.05, fused=True),
    "a tensor as the rate": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.05)),
    "a custom step": lambda net: HalfSteps(net.parameters(), lr=0.05),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_trains_as_by_hand(name: str) -> None:
    net, other = alike()
    by_hand(other, OBJECTS[name](other))
    graph = graph_of(net, OBJECTS[name](net))
    train(graph, 1)
    train(graph, 2)  # goes on with its state
    check_equal(net, other)


def test_tied_weights_are_one_parameter_of_an_object() -> None:
    net, other = alike(Tied)
    by_hand(other, without_decay_of_vectors(other))
    train(graph_of(net, without_decay_of_vectors(net)))
    check_equal(net, other)
    assert net.again.weight is net.body.weight


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=EPOCHS * STEPS + 1),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, T_max=8)],
        milestones=[4],
    ),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: min((step + 1) / 4, 1.0)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_of_an_object_has_an_effect(name: str) -> None:
    net, other = alike()
    theirs, mine = by_layer(other), by_layer(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its SequentialLR
        by_hand(other, theirs, after_step=SCHEDULERS[name](theirs).step)
        scheduler = SCHEDULERS[name](mine)
    train(graph_of(net, mine), callbacks=[Then(step=scheduler.step)])
    check_equal(net, other)


@pytest.mark.parametrize("name", ["warm-up, then cosine", "LambdaLR", "StepLR"])
def test_the_same_schedulers_without_an_object(name: str) -> None:
    net, other = alike()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its SequentialLR
        by_hand(other, optimizer, after_step=SCHEDULERS[name](optimizer).step)
        spec = aa.Optimizer("sgd", lr=0.1, momentum=0.9, schedule=TorchSchedule(SCHEDULERS[name]))
        train(graph_of(net, spec))
    check_equal(net, other)


def test_plateaus_lower_the_rate_of_an_object() -> None:
    """By a value that never improves, so that both lower the rate after two epochs."""
    net, other = alike()
    theirs, mine = by_layer(other), by_layer(net)
    plateau = lr_scheduler.ReduceLROnPlateau(theirs, factor=0.1, patience=0)
    by_hand(other, theirs, after_epoch=lambda: plateau.step(1.0))
    own = lr_scheduler.ReduceLROnPlateau(mine, factor=0.1, patience=0)
    train(graph_of(net, mine), callbacks=[Then(epoch=lambda: own.step(1.0))])
    check_equal(net, other)
    assert mine.param_groups[0]["lr"] < 0.02


@pytest.mark.parametrize("clipping", [{"clip_norm": 0.1}, {"clip_value": 0.01}])
def test_an_object_with_clipping(clipping: dict[str, Any]) -> None:
    net, other = alike()
    clip: dict[str, Any] = {"clip_norm": nn.utils.clip_grad_norm_, "clip_value": nn.utils.clip_grad_value_}
    ((name, limit),) = clipping.items()
    by_hand(other, by_layer(other), before_step=lambda: clip[name](other.parameters(), limit))
    train(graph_of(net, aa.Optimizer(by_layer(net), **clipping)))
    check_equal(net, other)


def test_an_object_with_accumulated_gradients() -> None:
    net, other = alike()
    by_hand(other, by_layer(other), accumulate=2)
    train(graph_of(net, by_layer(net)), accumulate=2)
    check_equal(net, other)


def test_a_frozen_part_is_unfrozen_between_phases() -> None:
    net, other = alike()
    optimizer = without_decay_of_vectors(other)
    other.body.requires_grad_(False)
    by_hand(other, optimizer, epochs=1)
    other.body.requires_grad_(True)
    by_hand(other, optimizer, epochs=1)
    graph = graph_of(net, without_decay_of_vectors(net))
    net.body.requires_grad_(False)
    train(graph, 1)
    net.body.requires_grad_(True)
    train(graph, 1)
    check_equal(net, other)


def test_averages_are_those_of_averaged_model() -> None:
    net, other = alike()
    swa = torch.optim.swa_utils.AveragedModel(other)
    by_hand(other, by_layer(other), after_epoch=lambda: swa.update_parameters(other))
    averaging = aa.WeightAveraging()
    graph = graph_of(net, by_layer(net))
    train(graph, callbacks=[averaging])
    averaging.apply(graph)
    check_equal(net, swa.module)


def test_hooks_of_an_object_are_called() -> None:
    net, other = alike()

    def bounded(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-0.4, 0.4)

    theirs, mine = by_layer(other), by_layer(net)
    theirs.register_step_post_hook(bounded)
    mine.register_step_post_hook(bounded)
    by_hand(other, theirs)
    graph = graph_of(net, mine)
    train(graph, 1)
    train(graph, 2)
    check_equal(net, other)
    assert max(parameter.abs().max() for parameter in net.parameters()) <= 0.4


def test_hooks_of_all_optimizers_are_called_and_such_steps_not_compiled() -> None:
    calls: list[str] = []
    handle = register_optimizer_step_post_hook(lambda o, *_: calls.append(type(o).__name__))
    try:
        net, _ = alike()
        with pytest.warns(CompileWarning, match=r"register_optimizer_step_post_hook.*Hint: remove these hooks"):
            train(graph_of(net, aa.Optimizer("sgd", lr=0.1)), compile="steps")
    finally:
        handle.remove()
    assert calls == ["SGD"] * EPOCHS * STEPS


@pytest.mark.parametrize("given", [HalfSteps, functools.partial(HalfSteps, momentum=0.0)])
def test_a_known_class_with_another_step_is_never_compiled_into_the_known_formula(given: Any) -> None:
    net, other = alike()
    by_hand(other, HalfSteps(other.parameters(), lr=0.05))
    with pytest.warns(CompileWarning, match=r"the optimizer HalfSteps cannot be compiled: it has no formula"):
        train(graph_of(net, aa.Optimizer(given, lr=0.05)), compile="steps")
    check_equal(net, other)


MUON = getattr(torch.optim, "Muon", None)


@pytest.mark.skipif(MUON is None, reason="this torch has no Muon")
def test_muon_takes_matrices_and_its_own_error_says_so() -> None:
    net, other = alike(lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)))
    by_hand(other, MUON(other.parameters(), lr=0.05))  # type: ignore[misc]
    train(graph_of(net, MUON(net.parameters(), lr=0.05)))  # type: ignore[misc]
    check_equal(net, other)
    with pytest.raises(SpecError, match=r"Muon cannot be created with settings lr: .*2D.*Hint: correct the settings"):
        train(graph_of(Net(), aa.Optimizer(MUON, lr=0.05)))


# -- what is refused ---------------------------------------------------------------------------------------------------


def used(net: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    by_hand(copy.deepcopy(net), torch.optim.Adam(net.parameters()), epochs=0)
    F.mse_loss(net(torch.tensor(X)), torch.tensor(Y)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


class Around(torch.optim.SGD):
    """Has another optimizer in it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.inner = torch.optim.Adam(self.param_groups[0]["params"], lr=lr)


Made = Callable[[nn.Module], Any]
REFUSED: dict[str, tuple[Made, str, Made]] = {
    "a schedule besides": (
        lambda net: aa.Optimizer(torch.optim.Adam(net.parameters(), lr=0.05), schedule=lambda step: 0.5),
        r"Adam is an object .*also got schedule\. Hint: .*its class: Optimizer\(torch\.optim\.Adam",
        lambda net: aa.Optimizer(torch.optim.Adam, lr=0.05, schedule=lambda step: 0.5),
    ),
    "groups besides": (
        lambda net: aa.Optimizer(torch.optim.Adam(net.parameters(), lr=0.05), groups={"*bias": {"lr": 0.1}}),
        r"also got groups\. Hint: set them in the object, or pass its class",
        lambda net: aa.Optimizer(torch.optim.Adam, lr=0.05, groups={"*bias": {"lr": 0.1}}),
    ),
    "steps before": (
        used,
        r"has already done steps.*Hint: create a new one",
        lambda net: torch.optim.Adam(net.parameters()),
    ),
    "parameters of others": (
        lambda net: torch.optim.Adam(net.get_submodule("head").parameters()),
        r"lacks a trained parameter of shape \[4, 4\]\. Hint: create it with all parameters",
        lambda net: torch.optim.Adam(net.parameters()),
    ),
    "another optimizer in it": (
        lambda net: Around(net.parameters(), lr=0.1),
        r"has another optimizer in it, inner\. Hint: create and step it in a custom step: TrainPhase\(step=",
        lambda net: aa.Optimizer(torch.optim.Adam, lr=0.1),
    ),
    "LBFGS": (
        lambda net: torch.optim.LBFGS(net.parameters()),
        r"LBFGS needs a closure.*Hint: .*TrainPhase\(step=function\)",  # test_optimizer_factories follows it
        lambda net: "sgd",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name: str) -> None:
    wrong, message, right = REFUSED[name]
    net, _ = alike()
    with pytest.raises(SpecError, match=message):
        train(graph_of(net, wrong(net)))
    train(graph_of(net, right(net)))


def test_only_the_head_is_trained_as_the_hint_says() -> None:
    net, other = alike()
    by_hand(other, torch.optim.Adam(other.head.parameters(), lr=0.05))
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    train(graph_of(net, torch.optim.Adam(net.head.parameters(), lr=0.05)))
    check_equal(net, other)
