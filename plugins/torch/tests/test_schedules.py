"""Schedules of torch beside those of anyaccel: the same learning rates, and the same training as by hand."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import PhaseError, SpecError
from anyaccel_torch import TorchSchedule

ROWS, BATCH, EPOCHS = 40, 8, 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ RNG.normal(size=(4, 1))).astype("float32")


@pytest.fixture
def data() -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    features.add_splits({"train": np.arange(30), "val": np.arange(30, 40)})
    return features


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def train(net: nn.Module, data: aa.FeatureSet, optimizer: aa.Optimizer, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)
    losses = [aa.AppliedLoss("mse", on="net")]
    settings = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, "validation": "val", **settings}
    phase = aa.TrainPhase("t", data="train", losses=losses, **settings)
    return aa.Experiment("schedules", graph, progress="none").run_phase(phase)


def by_hand(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[float], Any]:
    """Train an epoch by hand; gives the losses of the batches."""
    losses = []
    for i in range(0, 30, BATCH):
        x, y = torch.tensor(X[i : min(i + BATCH, 30)]), torch.tensor(Y[i : min(i + BATCH, 30)])
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, F.mse_loss(net(torch.tensor(X[30:])), torch.tensor(Y[30:])).item()


@pytest.mark.parametrize("compile_mode", ["off", "auto"])
def test_reduce_on_plateau_equals_torchs_own_by_hand(compile_mode: str, data: aa.FeatureSet) -> None:
    net = linear()
    expected = copy.deepcopy(net)
    settings: dict[str, Any] = {"factor": 0.5, "patience": 1, "threshold": 0.8, "cooldown": 1}
    plateau = aa.ReduceLROnPlateau("val_loss", min_factor=0.1, **settings)
    results = train(net, data, aa.Optimizer("sgd", lr=0.3, schedule=plateau), compile=compile_mode)

    optimizer = torch.optim.SGD(expected.parameters(), lr=0.3, fused=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=0.03, **settings)
    values = []
    for _ in range(EPOCHS):
        _, value = by_hand(expected, optimizer)
        scheduler.step(value)
        values.append(value)
    assert plateau.current == pytest.approx(optimizer.param_groups[0]["lr"] / 0.3)
    assert plateau.current < 1
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(results.figure("val_loss"), values, rtol=1e-5)
    told = [event.message for event in results.events if event.kind == "rate"]
    assert told[0] == "the learning rate is multiplied by 0.5 from now on: val_loss has not improved for 2 epochs"


@given(
    st.lists(st.one_of(st.floats(-10, 10), st.just(math.nan)), min_size=1, max_size=40),
    st.sampled_from(["min", "max"]),
    st.sampled_from(["rel", "abs"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-4, 0.2]),
)
def test_the_same_factor_as_torch_for_any_values(
    values: list[float], mode: Any, threshold_mode: Any, patience: int, cooldown: int, threshold: float
) -> None:
    settings = {"factor": 0.5, "patience": patience, "cooldown": cooldown, "threshold": threshold}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    expected = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, threshold_mode=threshold_mode, eps=0.0, **settings
    )
    plateau = aa.ReduceLROnPlateau("loss", mode=mode, threshold_mode=threshold_mode, **settings)  # type: ignore[arg-type]
    for value in values:
        run: Any = SimpleNamespace(history=[SimpleNamespace(figures={"loss": value})], log_event=lambda *_: None)
        run.epoch, run.phase = 0, SimpleNamespace(on_nan="ignore")
        expected.step(value)
        plateau.epoch_end(run)
        assert plateau(0) == optimizer.param_groups[0]["lr"]


def test_plateaus_of_nodes_are_their_own_and_phases_go_on(data: aa.FeatureSet) -> None:
    never = [aa.ReduceLROnPlateau("loss", patience=0, threshold=1.0, factor=factor) for factor in (0.5, 0.1)]
    nodes = [
        aa.ModelNode("body", nn.Linear(4, 3), data.reference(), optimizer=aa.Optimizer("sgd", schedule=never[0])),
        aa.ModelNode("net", nn.Linear(3, 1), "body", optimizer=aa.Optimizer("sgd", schedule=never[1])),
    ]
    experiment = aa.Experiment("own", aa.ModelGraph(nodes), progress="none")
    losses = [aa.AppliedLoss("mse", on="net")]
    for _ in range(2):  # given as a callback too, it is called once
        experiment.run_phase(aa.TrainPhase("t", data="train", losses=losses, epochs=1, callbacks=never[:1]))
    experiment.run_phase(aa.EvalPhase("v", data="val", losses=losses))
    assert [one.current for one in never] == pytest.approx([0.5, 0.1])  # the first epoch is the best


def test_a_value_that_epochs_do_not_have(data: aa.FeatureSet) -> None:
    optimizer = aa.Optimizer("sgd", schedule=aa.ReduceLROnPlateau("val_los"))
    with pytest.raises(PhaseError, match=r"ReduceLROnPlateau monitors 'val_los'.*did you mean 'val_loss'\?"):
        train(linear(), data, optimizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"mode": "low"},
            "ReduceLROnPlateau: unknown mode='low'. Available: 'auto', 'min', 'max'. Hint: write mode='min'",
        ),
        ({"threshold_mode": 1}, "unknown threshold_mode=1. Available: 'rel', 'abs'"),
        ({"factor": 1.0}, "factor=1.0 is not a number in (0, 1). Hint: write factor=0.1"),
        ({"patience": -1}, "patience=-1 is not an int of at least 0"),
        ({"min_factor": -1}, "min_factor=-1 is not a number of 0 or more"),
    ],
)
def test_settings_of_a_plateau(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PhaseError) as caught:
        aa.ReduceLROnPlateau(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("compile_mode", ["off", "auto"])
def test_a_function_as_a_schedule_equals_lambdalr(compile_mode: str, data: aa.FeatureSet) -> None:
    net = linear()
    expected = copy.deepcopy(net)
    triangle = lambda step: 1.0 - abs(step % 10 - 5) / 6  # noqa: E731
    train(net, data, aa.Optimizer("adam", lr=0.05, schedule=triangle), compile=compile_mode)
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.05, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, triangle)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    for _ in range(EPOCHS):
        by_hand(expected, optimizer)
    pairs: list[tuple[Tensor, Tensor]] = list(zip(net.parameters(), expected.parameters(), strict=True))
    for actual, value in pairs:
        torch.testing.assert_close(actual, value, rtol=1e-6, atol=1e-6)


SCHEDULERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "cosine": (torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": 7, "eta_min": 0.01}),
    "restarts": (torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 5}),
    "one cycle": (torch.optim.lr_scheduler.OneCycleLR, {"max_lr": 0.2, "total_steps": 60, "cycle_momentum": False}),
    "cyclic": (
        torch.optim.lr_scheduler.CyclicLR,
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4, "cycle_momentum": False},
    ),
    "milestones": (torch.optim.lr_scheduler.MultiStepLR, {"milestones": [3, 9], "gamma": 0.5}),
    "poly": (torch.optim.lr_scheduler.PolynomialLR, {"total_iters": 20, "power": 2.0}),
    "sequential": (
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [5],
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch_train_as_by_hand(name: str, data: aa.FeatureSet) -> None:
    cls, settings = SCHEDULERS[name]
    net = linear()
    expected = copy.deepcopy(net)
    spec = aa.Optimizer("sgd", lr=1.0, schedule=TorchSchedule(cls, **settings))
    train(net, data, spec, compile="off", validation=None)
    optimizer = torch.optim.SGD(expected.parameters(), lr=1.0, fused=True)
    scheduler = cls(optimizer, **settings)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    for _ in range(EPOCHS):
        by_hand(expected, optimizer)
    for actual, value in zip(net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        ("CosineAnnealingLR", {}, "the scheduler CosineAnnealingLR cannot be created"),
        ("ReduceLROnPlateau", {}, "needs a value in each step. Hint: write schedule=anyaccel.ReduceLROnPlateau"),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 9}, "changes the momentum, which a schedule cannot do"),
    ],
)
def test_schedulers_that_are_no_schedules(cls: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        TorchSchedule(getattr(torch.optim.lr_scheduler, cls), **settings)
    assert message in str(caught.value)


def test_a_scheduler_that_ends_too_early(data: aa.FeatureSet) -> None:
    short = TorchSchedule(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9, cycle_momentum=False)
    with pytest.raises(SpecError, match=r"OneCycleLR has no rate for step 10: .*Hint: set its number of steps"):
        train(linear(), data, aa.Optimizer("sgd", lr=1.0, schedule=short), compile="off")


def test_a_range_test_of_rates_is_that_of_a_loop_by_hand() -> None:
    """Adam, 60 steps over batches of 16 in order, the rate set before each; parameters come back."""
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = np.sin(x[:, :1])
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    expected = copy.deepcopy(net)
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")
    phase = aa.TrainPhase(data="all", losses=[aa.AppliedLoss("mse", on="net")], sampler=aa.SimpleSampler(16))
    test = aa.find_learning_rate(graph, phase, min_lr=1e-4, max_lr=0.1, n_steps=60, stop_factor=None)
    for name, value in expected.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name

    optimizer, losses = torch.optim.Adam(expected.parameters(), lr=1e-4), []
    for step, rate in enumerate(np.geomspace(1e-4, 0.1, 60)):
        rows = slice(step % 4 * 16, step % 4 * 16 + 16)
        optimizer.param_groups[0]["lr"] = rate
        loss = F.mse_loss(expected(torch.tensor(x[rows])), torch.tensor(y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(test.losses, losses, rtol=1e-4)
