"""Groups of parameters with settings of their own: beside the parameter groups of torch, by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import GraphError, SpecError

ROWS, BATCH, EPOCHS = 40, 8, 4
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
NO_DECAY = {"*bias": {"weight_decay": 0.0}, "1.*": {"weight_decay": 0.0, "lr": 0.003}}


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))


def graph_of(net: nn.Module, data: aa.FeatureSet, optimizer: aa.Optimizer) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)


def train(graph: aa.ModelGraph, epochs: int = EPOCHS, **settings: Any) -> Any:
    losses = [aa.AppliedLoss("mse", on="net")]
    sampler = aa.SimpleSampler(BATCH)
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, epochs=epochs, **settings)
    return aa.Experiment("groups", graph, progress="none").run_phase(phase)


def by_hand(net: nn.Sequential, make: Any, factor: Any = None, clip: Any = None) -> None:
    """The usual split by hand: biases without decay, the norm without decay and with a rate of its own."""
    bias = [net[0].bias, net[1].bias, net[3].bias]
    groups = [
        {"params": [net[0].weight, net[3].weight]},
        {"params": bias, "weight_decay": 0.0},
        {"params": [net[1].weight], "weight_decay": 0.0, "lr": 0.003},
    ]
    optimizer = make(groups)
    scheduler = None if factor is None else torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(EPOCHS):
        for i in range(0, ROWS, BATCH):
            optimizer.zero_grad()
            F.mse_loss(net(torch.tensor(X[i : i + BATCH])), torch.tensor(Y[i : i + BATCH])).backward()
            if clip is not None:
                clip(net.parameters())
            optimizer.step()
            if scheduler is not None:
                scheduler.step()


def assert_close(actual: nn.Module, expected: nn.Module, tolerance: float = 1e-6) -> None:
    for name, value in expected.named_parameters():
        torch.testing.assert_close(actual.get_parameter(name), value, rtol=tolerance, atol=tolerance, msg=name)


CLIPS: dict[str, Any] = {
    "clip_norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.2),
    "clip_value": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.2),
}


@pytest.mark.parametrize("compile_mode", ["off", pytest.param("steps", marks=pytest.mark.whole)])
def test_equals_the_groups_of_torch_with_schedule_and_clipping_over_all(compile_mode: str, data: aa.FeatureSet) -> None:
    net = mlp()
    expected = copy.deepcopy(net)
    schedule = aa.Schedule("cosine", steps=30)
    spec = aa.Optimizer("adamw", lr=0.02, weight_decay=0.3, clip_norm=0.2, schedule=schedule, groups=NO_DECAY)
    results = train(graph_of(net, data, spec), compile=compile_mode)
    by_hand(
        expected,
        lambda groups: torch.optim.AdamW(groups, lr=0.02, weight_decay=0.3),
        schedule.factor,
        CLIPS["clip_norm"],
    )
    assert_close(net, expected, 1e-6 if compile_mode == "off" else 2e-5)
    if compile_mode == "steps":
        assert any("compiled" in event.message for event in results.events if event.kind == "compile")
    plain = mlp()
    train(graph_of(plain, data, aa.Optimizer("adamw", lr=0.02, weight_decay=0.3, clip_norm=0.2, schedule=schedule)))
    assert not torch.allclose(plain[0].bias, net[0].bias)  # the groups do matter here


def test_a_class_of_torch_and_a_predicate(data: aa.FeatureSet) -> None:
    net = mlp()
    expected = copy.deepcopy(net)
    groups = {
        "1.weight": {"weight_decay": 0.0, "lr": 0.003},
        (lambda name, parameter: parameter.ndim < 2): {"weight_decay": 0.0},
    }
    train(graph_of(net, data, aa.Optimizer(torch.optim.NAdam, lr=0.01, weight_decay=0.1, groups=groups)))
    by_hand(expected, lambda groups: torch.optim.NAdam(groups, lr=0.01, weight_decay=0.1))
    assert_close(net, expected)


def test_phases_and_saved_states_continue(data: aa.FeatureSet) -> None:
    spec = aa.Optimizer("adamw", lr=0.02, weight_decay=0.3, groups=NO_DECAY)
    whole, parts, saved = mlp(), mlp(), mlp()
    train(graph_of(whole, data, spec))
    graph = graph_of(parts, data, spec)
    train(graph, 2)
    other = graph_of(saved, data, spec)
    other.load_state(graph.state())
    train(graph, 2)
    train(other, 2)
    assert_close(parts, whole, 0.0)
    assert_close(saved, whole, 0.0)


def test_optimizers_of_a_step_of_ones_own_have_the_groups(data: aa.FeatureSet) -> None:
    seen: list[Any] = []

    def step(models: Any, batch: Any, optimizers: Any) -> None:
        groups = optimizers["net"].param_groups
        seen.append([(group["lr"], group["weight_decay"], len(group["params"])) for group in groups])

    spec = aa.Optimizer("adamw", lr=0.02, weight_decay=0.3, groups=NO_DECAY)
    phase = aa.TrainPhase("t", data="all", step=step)
    aa.Experiment("groups", graph_of(mlp(), data, spec), progress="none").run_phase(phase)
    assert seen[0] == [(0.02, 0.3, 2), (0.02, 0.0, 3), (0.003, 0.0, 1)]


def test_a_momentum_that_only_some_have_is_refused(data: aa.FeatureSet) -> None:
    spec = aa.Optimizer("sgd", momentum=0.9, groups={"*bias": {"momentum": 0.0}})
    with pytest.raises(SpecError, match=r"'sgd' has momentum=0.9, but a group of it has momentum=0.0\. Hint: set a"):
        train(graph_of(mlp(), data, spec))


def test_a_pattern_without_a_parameter_is_refused_by_the_plan(data: aa.FeatureSet) -> None:
    graph = graph_of(mlp(), data, aa.Optimizer("adamw", groups={"*bais": {"lr": 0.1}}))
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    with pytest.raises(SpecError, match=r"no parameter name matches '\*bais'.*Available: 0\.weight, 0\.bias"):
        aa.Experiment("groups", graph).plan(phase)


def test_nodes_that_share_a_parameter_have_one_optimizer() -> None:
    """The optimizer of the first node trained it for both, without a message."""

    def trained(**of_second: Any) -> tuple[nn.Linear, nn.Linear]:
        torch.manual_seed(0)
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        wide = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, ::-1]}, ["x"], ["y"])
        nodes = [aa.ModelNode("first", first, wide.reference()), aa.ModelNode("second", second, "first", **of_second)]
        graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
        loss = aa.AppliedLoss("mse", on="second")
        graph.run(aa.TrainPhase("t", data="all", losses=[loss], epochs=2, batch_size=ROWS), progress="none")
        return first, second

    with pytest.raises(GraphError) as refused:
        trained(optimizer=aa.Optimizer("adam", lr=0.1))
    assert str(refused.value) == (
        "nodes 'first' and 'second' share the parameter 'weight' but have different optimizers. "
        "Hint: use the same optimizer for both."
    )
    first, second = trained()
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    optimizer = torch.optim.SGD([one.weight, one.bias, other.bias], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(other(one(torch.from_numpy(X))), torch.from_numpy(X[:, ::-1].copy())).backward()
        optimizer.step()
    torch.testing.assert_close([first.weight, first.bias, second.bias], [one.weight, one.bias, other.bias])
