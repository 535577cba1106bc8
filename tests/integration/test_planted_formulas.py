"""One entry in a table of formulas makes an optimizer, a loss or a schedule that every framework and path has.

Each toy is compared with the same steps by NumPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import formulas
from anyaccel.errors import CompileWarning, ConfigError, NaNWarning, SpecError
from anyaccel.formulas import (
    AT_LEAST_0,
    STEPS,
    Hyperparameter,
    LossParts,
    LossRule,
    OptimizerRule,
    ScheduleRule,
    between,
)
from anyaccel.metrics import named
from anyaccel.registry import registry

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
RATE, EPOCHS, BATCH = 0.05, 2, 8
MODES = ["off", "auto", "steps"]


class SignMomentum(OptimizerRule):
    """The sign of an average of gradients; the rate falls with the number of the step."""

    settings: ClassVar = {
        "share": Hyperparameter(0.5, between(0, 1), "is not in [0, 1)", 0.5),
        "weight_decay": AT_LEAST_0,
    }
    elementwise = True

    def slots(self, settings: Any) -> tuple[str, ...]:
        return ("average",)

    def coefficients(self, settings: Any, xp: Any, rates: Any, steps: Any) -> dict[str, Any]:
        return {"rate": rates / xp.sqrt(steps), "constant": 1.0}

    def update(
        self, settings: Any, xp: Any, w: Any, g: Any, slots: Any, coefficients: Any
    ) -> tuple[Any, dict[str, Any]]:
        g = g + settings["weight_decay"] * w
        average = settings["share"] * slots["average"] + (1 - settings["share"]) * g
        return w - coefficients["rate"] * coefficients["constant"] * xp.sign(average), {"average": average}


class UnitNorm(OptimizerRule):
    """The gradient of each parameter, divided by its norm: parameters must not be joined to one vector."""

    def update(
        self, settings: Any, xp: Any, w: Any, g: Any, slots: Any, coefficients: Any
    ) -> tuple[Any, dict[str, Any]]:
        return w - coefficients["rate"] * g / xp.sqrt(xp.sum(g * g)), {}


def cubed(ops: Any, outputs: Any, targets: Any, settings: Any) -> LossParts:
    error = outputs - targets
    size = ops.xp.abs(error)
    return LossParts(size * size * size, lambda: (3 * error * size, -3 * error * size))


def brier(ops: Any, outputs: Any, targets: Any, settings: Any) -> LossParts:
    """Squared differences from 1 for the class and 0 for others, of classes along the last axis."""
    hits = ops.astype(targets[..., None] == ops.arange(outputs.shape[-1], targets), outputs.dtype)
    error = outputs - hits
    losses = ops.xp.sum(error * error, axis=-1, keepdims=True)
    return LossParts(losses, lambda: (2 * error, None), -1)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(formulas.OPTIMIZERS, "signed", SignMomentum())
    monkeypatch.setitem(formulas.OPTIMIZERS, "unit", UnitNorm())
    monkeypatch.setitem(formulas.LOSSES, "cubic", LossRule(cubed))
    monkeypatch.setitem(formulas.LOSSES, "brier", LossRule(brier, takes_classes=True))
    sawtooth = ScheduleRule(lambda t, period: 1.0 - 0.5 * (t % period) / period, {"period": STEPS})
    monkeypatch.setitem(formulas.SCHEDULES, "sawtooth", sawtooth)
    yield


def graph_of(framework: str, optimizer: Any, weight: Any = None) -> aa.ModelGraph:
    columns = {"x": X, "y": Y} | ({} if weight is None else {"w": weight.astype("float32")})
    data = aa.FeatureSet.from_dict("d", columns, ["x"], ["y"], [] if weight is None else ["w"])
    mlp: Any = registry().computing(framework).models()["SequentialMLP"]
    return aa.ModelGraph([aa.ModelNode("net", mlp((1,), n_layers=1), data.reference())], optimizer, seed=1)


def train(graph: aa.ModelGraph, loss: str = "mse", **settings: Any) -> Any:
    sampler = aa.SimpleSampler(BATCH, shuffle=False)
    losses = [aa.AppliedLoss(loss, on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, epochs=EPOCHS, **settings)
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


def built(framework: str, optimizer: Any, weight: Any = None) -> tuple[aa.ModelGraph, list[np.ndarray]]:
    graph = graph_of(framework, optimizer, weight)
    graph.build()
    return graph, weights(graph)


def signed_steps(start: list[np.ndarray], factor: Callable[[int], float] = lambda t: 1.0) -> list[np.ndarray]:
    averages: dict[tuple[int, ...], np.ndarray] = {}

    def update(g: np.ndarray, step: int) -> np.ndarray:
        averages[g.shape] = 0.75 * averages.get(g.shape, np.zeros(g.shape)) + 0.25 * g
        return -RATE * factor(step) / np.sqrt(step + 1) * np.sign(averages[g.shape])

    return by_numpy(start, update)


def unit_steps(start: list[np.ndarray], factor: Callable[[int], float] = lambda t: 1.0) -> list[np.ndarray]:
    return by_numpy(start, lambda g, t: -RATE * factor(t) * g / np.sqrt((g * g).sum()))


TOYS: dict[str, tuple[dict[str, float], Callable[..., list[np.ndarray]]]] = {
    "signed": ({"share": 0.75}, signed_steps),
    "unit": ({}, unit_steps),
}


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("compile_", MODES)
def test_an_optimizer_is_one_entry(name: str, compile_: Any, framework: str) -> None:
    settings, by_hand = TOYS[name]
    graph, start = built(framework, aa.Optimizer(name, lr=RATE, **settings))
    train(graph, compile=compile_)  # that it could not be compiled would be a warning, and an error here
    check_close(graph, by_hand(start))


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", TOYS)
def test_numpy_trains_by_the_entry(name: str) -> None:
    settings, by_hand = TOYS[name]
    graph, start = built("numpy", aa.Optimizer(name, lr=RATE, **settings))
    train(graph)
    check_close(graph, by_hand(start))


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_what_it_keeps_is_continued(compile_: Any, framework: str) -> None:
    """In another phase, and in another graph that loads the state of the first."""
    optimizer = aa.Optimizer("signed", lr=RATE, share=0.75)
    whole, _ = built(framework, optimizer)
    train(whole, compile=compile_)
    assert {name.split("/")[2] for name in whole.state() if "/optimizer/" in name} == {"average"}
    again, _ = built(framework, optimizer)
    again.load_state(whole.state())
    for graph in (whole, again):
        train(graph, compile=compile_)
    check_close(again, weights(whole))


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
def test_its_groups_have_settings_of_their_own(framework: str) -> None:
    groups = {"*bias": {"share": 0.0}}
    graph, start = built(framework, aa.Optimizer("signed", lr=RATE, share=0.75, groups=groups))
    train(graph, compile="steps")
    averages: dict[tuple[int, ...], np.ndarray] = {}

    def update(g: np.ndarray, step: int) -> np.ndarray:
        share = 0.0 if g.shape == (1,) else 0.75
        averages[g.shape] = share * averages.get(g.shape, np.zeros(g.shape)) + (1 - share) * g
        return -RATE / np.sqrt(step + 1) * np.sign(averages[g.shape])

    check_close(graph, by_numpy(start, update))


@pytest.mark.usefixtures("planted")
def test_its_settings_are_checked() -> None:
    with pytest.raises(SpecError, match=r"optimizer 'signed': share=2 is not in \[0, 1\)"):
        aa.Optimizer("signed", share=2)
    with pytest.raises(SpecError, match=r"optimizer 'signed' has no setting momentum"):
        aa.Optimizer("signed", momentum=0.9)
    with pytest.raises(SpecError, match=r"schedule 'sawtooth' lacks period"):
        aa.Schedule("sawtooth")


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", MODES)
def test_a_loss_is_one_entry(compile_: Any, framework: str) -> None:
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE))
    train(graph, "cubic", compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * g, lambda error: 3 * error * np.abs(error)))


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_a_loss_is_weighted(compile_: Any, framework: str) -> None:
    """Rows with a weight of 0 do not count, whatever they hold."""
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE), weight=np.r_[np.ones(24), np.zeros(8)])
    losses = [aa.AppliedLoss("cubic", on="net", sample_weight="d.w")]
    sampler = aa.SimpleSampler(32, shuffle=False)
    graph.run(
        aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, epochs=2, compile=compile_), progress="none"
    )
    (kernel, bias), x = start, X[:24].astype("float64")
    for _ in range(2):
        error = x @ kernel + bias - Y[:24]
        slope = 3 * error * np.abs(error) / 24
        kernel, bias = kernel - RATE * x.T @ slope, bias - RATE * slope.sum(0)
    check_close(graph, [kernel, bias])


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", MODES)
def test_a_planted_schedule_is_followed(compile_: Any, framework: str) -> None:
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE, schedule=aa.Schedule("sawtooth", period=3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        train(graph, compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * (1 - 0.5 * (t % 3) / 3) * g))


class Halving(aa.Optimizer):
    """A spec whose rate halves in each step."""

    def rate(self, step: int) -> float:
        return self.lr * 0.5**step


@pytest.mark.shared
@pytest.mark.parametrize("compile_", MODES)
def test_a_rate_of_a_derived_spec_is_followed(compile_: Any, framework: str) -> None:
    graph, start = built(framework, Halving("sgd", lr=RATE))
    train(graph, compile=compile_)
    check_close(graph, by_numpy(start, lambda g, t: -RATE * 0.5**t * g))


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("name", TOYS)
def test_replicas_train_by_the_entry(name: str) -> None:
    settings, by_hand = TOYS[name]
    schedule = aa.Schedule("sawtooth", period=3)
    with aa.simulate(2):
        graph, start = built("numpy", aa.Optimizer(name, lr=RATE, schedule=schedule, **settings))
        train(graph, accelerator="sim", replicas=2)
    check_close(graph, by_hand(start, lambda t: 1 - 0.5 * (t % 3) / 3))


@pytest.mark.shared
def test_a_metric_is_one_entry(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worst = named.NamedMetric(lambda outputs, targets: float(np.abs(outputs - targets).max()))
    monkeypatch.setitem(named.METRICS, "worst", worst)  # type: ignore[misc]
    graph, start = built(framework, aa.Optimizer("sgd", lr=RATE))
    phase = aa.EvalPhase("e", data="all", metrics=[aa.Metric("worst", on="net")])
    value = graph.run(phase, progress="none").metrics["worst"]
    np.testing.assert_allclose(value, np.abs(X @ start[0] + start[1] - Y).max(), rtol=1e-5)


@pytest.mark.shared
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_a_loss_of_classes_is_one_entry(compile_: Any, framework: str) -> None:
    classes = np.arange(32) % 3
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": classes}, ["x"], ["y"])
    mlp: Any = registry().computing(framework).models()["SequentialMLP"]
    node = aa.ModelNode("net", mlp((3,), n_layers=1), data.reference())
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=RATE), seed=1)
    graph.build()
    kernel, bias = (value for name, value in sorted(graph.state().items(), reverse=True) if "parameters/" in name)
    kernel, bias = kernel.astype("float64"), bias.astype("float64")  # [out, in]
    train(graph, "brier", compile=compile_)
    for _ in range(EPOCHS):
        for i in range(0, 32, BATCH):
            x = X[i : i + BATCH].astype("float64")
            slope = 2 * (x @ kernel.T + bias - np.eye(3)[classes[i : i + BATCH]]) / BATCH
            kernel, bias = kernel - RATE * slope.T @ x, bias - RATE * slope.sum(0)
    after = [value for name, value in sorted(graph.state().items(), reverse=True) if "parameters/" in name]
    for mine, theirs in zip(after, (kernel, bias), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_weights_that_are_all_0_are_no_silent_nan(compile_: Any, framework: str) -> None:
    graph, start = built(framework, aa.Optimizer("adam", lr=RATE), weight=np.zeros(32))
    losses = [aa.AppliedLoss("mse", on="net", sample_weight="d.w")]
    with pytest.warns(NaNWarning, match="loss 'net' on node 'net' is nan in epoch 1, because nothing counts: all wei"):
        graph.run(aa.TrainPhase("t", data="all", losses=losses, epochs=1, compile=compile_), progress="none")
    check_close(graph, start)


# -- every name that there is ------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(1).normal(size=(24, 1, 6, 6)).astype("float32")
TABLE = np.column_stack([IMAGES[:, 0, 0, :2], np.arange(24) % 4]).astype("float32")  # two numbers, a code
MODELS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "SequentialMLP": (IMAGES, {"output_shape": (3,), "n_layers": 2, "activation": "tanh"}),
    "SequentialCNN": (IMAGES, {"output_shape": (3,), "channels": (2,), "activation": "tanh"}),
    "TabularMLP": (TABLE, {"n_numbers": 2, "cardinalities": (4,), "n_outputs": 3, "hidden": (5,), "dropout": 0.0}),
}


def sample(framework: str, model: str, loss: str, **settings: Any) -> np.ndarray:
    """The losses of two epochs of a named model by a named loss."""
    classes = formulas.LOSSES[loss].takes_classes
    inputs, keywords = MODELS[model]
    picked = np.arange(len(inputs)) % 3
    targets = picked if classes else np.eye(3, dtype="float32")[picked]
    data = aa.FeatureSet.from_dict("d", {"x": inputs, "y": targets}, ["x"], ["y"])
    net: Any = registry().computing(framework).models()[model](**keywords)
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], aa.Optimizer("momentum", lr=0.02), seed=3)
    losses = [aa.AppliedLoss(loss, on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(8), epochs=2, **settings)
    return graph.run(phase, progress="none").losses()


@pytest.mark.shared
@pytest.mark.sampled(3)
@pytest.mark.parametrize("loss", formulas.LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_named_models_and_losses_are_the_same_in_every_path(model: str, loss: str, framework: str) -> None:
    expected = sample("numpy", model, loss)
    for compile_ in ("off", "steps"):
        np.testing.assert_allclose(sample(framework, model, loss, compile=compile_), expected, rtol=1e-4)


def test_samples_have_every_named_model(framework: str) -> None:
    assert MODELS.keys() == registry().computing(framework).models().keys()


@pytest.mark.shared
def test_a_model_is_one_entry(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved by its name, trains compiled as it does uncompiled, and is refused where it is not known."""
    backend: Any = registry().computing(framework)
    models = dict(backend.models())
    toy = type("Toy", (models["SequentialMLP"],), {})
    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "models", lambda self: {**models, "Toy": toy})
        trained = []
        for compile_ in ("off", "steps"):
            data = aa.FeatureSet.from_dict("d", {"x": X, "y": Y}, ["x"], ["y"])
            node = aa.ModelNode("net", toy((1,), n_layers=1), data.reference())
            graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=RATE), seed=1)
            train(graph, compile=compile_)
            trained.append(weights(graph))
        for mine, theirs in zip(*trained, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
        config = graph.get_config()
        assert type(aa.ModelGraph.from_config(config, feature_sets={"d": data})["net"].model) is toy
    with pytest.raises(ConfigError, match=rf"{framework} has no model called 'Toy'. Available: SequentialMLP"):
        aa.ModelGraph.from_config(config, feature_sets={"d": data})
