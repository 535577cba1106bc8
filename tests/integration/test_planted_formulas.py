"""Named optimizers, losses and schedules that a table knows and a path does not: trained by their formula, or refused.

Toys are planted into the tables, and compared with the same steps by NumPy.
"""

# ruff: noqa: SLF001  (toys are planted into private tables)
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import specs
from anyaccel.adapter import losses as adapter_losses
from anyaccel.adapter import optimizers as adapter_optimizers
from anyaccel.errors import CompileWarning, SpecError
from anyaccel.registry import registry

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
RATE, EPOCHS, BATCH = 0.05, 2, 8
MODES = ["off", "auto", "steps"]


class Signed(adapter_optimizers.PerParameterRule):
    """The sign of the gradient."""

    names = ()

    def coefficients(self, step: int) -> dict[str, float]:
        return {"rate": self.optimizer.rate(step - 1)}

    def update(self, xp: Any, w: Any, g: Any, slots: Any, coefficients: Any) -> tuple[Any, dict[str, Any]]:
        return w - coefficients["rate"] * g / (xp.sqrt(g * g) + 1e-12), {}


class Opposite(adapter_optimizers.Adam):
    """A known rule, also where parameters are joined to one vector, that updates otherwise."""

    def update(self, xp: Any, w: Any, g: Any, slots: Any, coefficients: Any) -> tuple[Any, dict[str, Any]]:
        return w + 0.5 * self.optimizer.lr * g, {"m": slots["m"], "v": slots["v"]}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(specs.OPTIMIZERS, "signed", {"weight_decay": 0.0})
    monkeypatch.setitem(specs.OPTIMIZERS, "opposite", dict(specs.OPTIMIZERS["adam"]))
    monkeypatch.setitem(specs.LOSSES, "cubic", {})
    monkeypatch.setitem(specs.SCHEDULES, "sawtooth", lambda t, every: 1.0 - 0.5 * (t % every) / every)
    yield


def graph_of(framework: str, optimizer: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
    mlp: Any = registry().computing(framework).models()["SequentialMLP"]
    return aa.ModelGraph([aa.ModelNode("net", mlp((1,), n_layers=1), data.reference())], optimizer, seed=1)


def train(graph: aa.ModelGraph, loss: str = "mse", **settings: Any) -> Any:
    sampler = aa.SimpleSampler(BATCH, shuffle=False)
    losses = [aa.AppliedLoss(loss, on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, n_epochs=EPOCHS, **settings)
    return graph.run(phase, progress="none")


def weights(graph: aa.ModelGraph) -> list[np.ndarray]:
    """Those of the one layer: [inputs, 1] and [1]."""
    state = graph.state()
    named = {name.rpartition(".")[2]: value for name, value in state.items() if "parameters/" in name}
    kernel = next(value for name, value in named.items() if "bias" not in name)
    return [np.asarray(kernel, "float64").reshape(3, 1), np.asarray(named["bias"], "float64")]


def by_numpy(
    start: list[np.ndarray],
    update: Callable[[np.ndarray, int], np.ndarray],
    slope: Callable[[np.ndarray], np.ndarray] = lambda error: 2 * error,
) -> list[np.ndarray]:
    """`update(gradient, step)` is added to each; `slope` is that of the loss of an element."""
    (kernel, bias), step = start, 0
    for _ in range(EPOCHS):
        for i in range(0, len(X), BATCH):
            x, y = X[i : i + BATCH].astype("float64"), Y[i : i + BATCH]
            error = slope(x @ kernel + bias - y) / BATCH
            kernel, bias = kernel + update(x.T @ error, step), bias + update(error.sum(0), step)
            step += 1
    return [kernel, bias]


def check_close(graph: aa.ModelGraph, expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(weights(graph), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def built(framework: str, optimizer: Any) -> tuple[aa.ModelGraph, list[np.ndarray]]:
    graph = graph_of(framework, optimizer)
    graph.build()
    return graph, weights(graph)


OTHERS: dict[str, tuple[Any, Callable[[Any, int], Any]]] = {
    "signed": (Signed, lambda g, t: -RATE * np.sign(g)),
    "opposite": (Opposite, lambda g, t: 0.5 * RATE * g),
}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("compile_", MODES)
def test_a_planted_optimizer_trains_by_its_formula_or_not_at_all(
    name: str, compile_: Any, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, update = OTHERS[name]
    graph, start = built(framework, aa.Optimizer(name, lr=RATE))
    with pytest.raises(
        SpecError, match=rf"optimizer.* '?{name}'? here\. Available: sgd, .*Hint: use one of these names"
    ):
        train(graph, compile=compile_)
    if framework == "torch":
        plant_into_torch(name, monkeypatch)
    else:
        monkeypatch.setitem(adapter_optimizers._RULES, name, rule)
    if framework == "torch" and compile_ == "steps":
        with pytest.warns(CompileWarning, match=rf"the optimizer {name} cannot be compiled: it has no formula"):
            train(graph, compile=compile_)
    else:
        train(graph, compile=compile_)
    check_close(graph, by_numpy(start, update))


def plant_into_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from anyaccel_torch import optimizer_creation

    class Toy(torch.optim.Adam):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p += -group["lr"] * p.grad.sign() if name == "signed" else 0.5 * group["lr"] * p.grad

    monkeypatch.setitem(optimizer_creation._CLASSES, name, Toy)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", MODES)
def test_a_planted_loss_is_computed_by_its_formula_or_not_at_all(
    compile_: Any, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE))
    with pytest.raises(
        SpecError, match=r"no formula for 'cubic' here\. Available: mse, .*Hint: use one of these names"
    ):
        train(graph, "cubic", compile=compile_)
    if framework == "torch":
        import torch
        from torch.nn import functional as F

        from anyaccel_torch import losses

        def cubic(outputs: Any, targets: Any, reduction: str = "mean") -> Any:
            cubes = F.l1_loss(outputs, targets, reduction="none") ** 3
            return cubes.mean() if reduction == "mean" else cubes.sum()

        monkeypatch.setitem(losses._NAMED, "cubic", (cubic, losses._elementwise, torch.Tensor.numel))
    else:

        def parts(ops: Any, outputs: Any, targets: Any, settings: Any) -> Any:
            error = outputs - targets
            size = ops.xp.sqrt(error * error)
            return adapter_losses._Parts(size**3, lambda: (3 * error * size, -3 * error * size))

        monkeypatch.setitem(adapter_losses._FORMULAS, "cubic", parts)
    train(graph, "cubic", compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * g, lambda error: 3 * error * np.abs(error)))


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", MODES)
def test_a_planted_schedule_is_followed(compile_: Any, framework: str) -> None:
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE, schedule=aa.Schedule("sawtooth", every=3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        train(graph, compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * (1 - 0.5 * (t % 3) / 3) * g))


class Halving(aa.Optimizer):
    """A spec whose rate halves in each step."""

    def rate(self, step: int) -> float:
        return self.lr * 0.5**step


@pytest.mark.parametrize("compile_", MODES)
def test_a_rate_of_a_derived_spec_is_followed(compile_: Any, framework: str) -> None:
    graph, start = built(framework, Halving("sgd", lr=RATE))
    train(graph, compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * 0.5**t * g))


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", OTHERS)
def test_replicas_train_by_the_planted_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, update = OTHERS[name]
    monkeypatch.setitem(adapter_optimizers._RULES, name, rule)
    with aa.simulate(2):
        graph, start = built("numpy", aa.Optimizer(name, lr=RATE, schedule=aa.Schedule("sawtooth", every=3)))
        train(graph, accelerator="sim", replicas=2)

    def factor(step: int) -> float:
        return 1 - 0.5 * (step % 3) / 3 if name == "signed" else 1.0

    check_close(graph, by_numpy(start, lambda g, t: factor(t) * update(g, t)))
