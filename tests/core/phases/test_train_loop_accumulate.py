"""Gradient accumulation: an update of several batches equals that of one batch of all their rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from neighbours import Neighbours

from anyaccel import AppliedLoss, Schedule, SimpleSampler
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.hookspecs import hookimpl
from anyaccel.numpy_backend import BatchNorm, Dense, NumpyBackend, Sequential, SequentialMLP
from anyaccel.phases import Callback, TrainPhase
from anyaccel.phases.loading import residency as loader_factory
from anyaccel.registry import Registry
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
OPTIMIZERS = {
    "adam": Optimizer("adam", lr=0.03),
    "sgd": Optimizer("sgd", lr=0.1),
    "momentum": Optimizer("momentum", lr=0.05, weight_decay=0.01),
    "clipped": Optimizer("adam", lr=0.03, clip_norm=0.2),
    "scheduled": Optimizer("sgd", lr=0.1, schedule=Schedule("cosine", steps=9, final=0.1, warmup=2)),
}


def numbers(label: str = "data", n: int = 53, seed: int = 0) -> FeatureSet:
    draw = np.random.default_rng(seed)
    columns = {
        "x": draw.normal(size=(n, 3)),
        "y": draw.normal(size=(n, 1)),
        "c": draw.integers(0, 3, n),
        "k": np.arange(n) % 2,
    }
    made = FeatureSet.from_dict(label, columns, ["x"], ["y", "c"], ["k"])
    made.add_splits({"train": np.arange(n)})
    return made


def mlp(width: int = 1) -> SequentialMLP:
    return SequentialMLP((width,), 2, 4, "tanh", dtype="float64")


def line(optimizer: Optimizer = OPTIMIZERS["adam"], model: Any = None) -> ModelGraph:
    node = ModelNode("net", model or mlp(), numbers().reference(["x"], ["y"]))
    return ModelGraph([node], optimizer, seed=2)


def trained(graph: ModelGraph, **settings: Any) -> tuple[Any, dict[str, np.ndarray]]:
    phase = TrainPhase("t", **{"data": "train", "losses": MSE, "epochs": 3, **settings})
    return Experiment("e", graph, progress="none").run_phase(phase), graph.state()


def close(one: tuple[Any, Any], other: tuple[Any, Any], within: float = 1e-9) -> None:
    for name, array in one[1].items():
        np.testing.assert_allclose(array, other[1][name], rtol=within, atol=within, err_msg=name)
    for first, second in zip(one[0].epochs, other[0].epochs, strict=True):
        assert first.steps == second.steps
        assert first.losses == pytest.approx(second.losses, rel=within)


def drawn(size: int, **settings: Any) -> SimpleSampler:
    return SimpleSampler(size, shuffle=True, seed=4, **settings)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without microbatching."""
    monkeypatch.setattr(ArrayProgram, "supports_microbatching", False)


# 53 rows: batches of 5 leave 3, in groups of 4 that is 20, 20, 13; batches of 6 leave 5.
@pytest.mark.parametrize("whole", [True, False], ids=["in the program", "one by one"])
@pytest.mark.parametrize(("size", "n"), [(5, 4), (6, 3), (6, 9), (1, 7), (20, 2), (53, 2), (100, 3), (5, 100)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_of_several_batches_equals_that_of_one_large_batch(
    optimizer: str, size: int, n: int, whole: bool, request: pytest.FixtureRequest
) -> None:
    if not whole:
        request.getfixturevalue("one_by_one")
    several = trained(line(OPTIMIZERS[optimizer]), sampler=drawn(size), accumulate=n)
    close(trained(line(OPTIMIZERS[optimizer]), sampler=drawn(size * n)), several)
    assert [epoch.steps for epoch in several[0].epochs] == [math.ceil(math.ceil(53 / size) / n)] * 3


def test_dropped_batches_are_not_accumulated() -> None:
    result, _ = trained(line(), sampler=drawn(5, drop_last=True), accumulate=4)
    assert [epoch.steps for epoch in result.epochs] == [3, 3, 3]
    ten = SimpleSampler(5, drop_last=True)
    several = trained(line(), sampler=ten, accumulate=2)
    close(trained(line(), sampler=SimpleSampler(10, drop_last=True), epochs=3), several)


@pytest.mark.parametrize("nbytes", [1, 2000, 2**20])
def test_streamed_batches_are_accumulated_to_the_same_numbers(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)
    several = trained(line(), sampler=drawn(5), accumulate=4, residency="streamed")
    close(trained(line(), sampler=drawn(20)), several)
    resident = trained(line(), sampler=drawn(5), accumulate=4)
    assert all(np.array_equal(resident[1][name], array) for name, array in several[1].items())


def test_accumulating_one_batch_changes_nothing() -> None:
    one, other = trained(line(), sampler=drawn(5)), trained(line(), sampler=drawn(5), accumulate=1)
    assert all(np.array_equal(one[1][name], array) for name, array in other[1].items())
    assert [epoch.steps for epoch in other[0].epochs] == [11] * 3


# -- several segments --------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(numpy_only: Registry) -> None:
    """Two more frameworks, `one` and `two`: NumPy under other names."""

    class Other(NumpyBackend):
        kinds = ("cpu",)
        import_roots = ("elsewhere",)

        def __init__(self, framework: str) -> None:
            self.framework = framework  # type: ignore[misc]

        def devices(self) -> list[Device]:
            return [Device("cpu")]

    class Plugin:
        contract = 2

        @hookimpl
        def backends(self) -> list[Any]:
            return [Other("one"), Other("two")]

    numpy_only.register(Plugin(), "elsewhere")


def forked(optimizer: Any, *frozen: str) -> ModelGraph:
    """Three frameworks, two heads, and an optimizer of its own for one of them."""
    nodes = [
        ModelNode("a", mlp(4), numbers().reference(["x"], ["y"]), framework="one"),
        ModelNode("b", mlp(3), "a", framework="two"),
        ModelNode("net", mlp(1), "b", framework="one"),
        ModelNode("sort", mlp(3), "a", framework="two", optimizer=Optimizer("sgd", lr=0.1)),
    ]
    graph = ModelGraph(nodes, optimizer, seed=2)
    return graph.freeze(*frozen) if frozen else graph


LOSSES = [
    MSE,
    AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"], weight=0.4),
    AppliedLoss("mae", on="net", label="aside", weight=0.1),
]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("frozen", [(), ("a",), ("b",), ("net", "b")])
@pytest.mark.parametrize("optimizer", ["adam", "clipped", "scheduled"])
def test_several_segments_and_losses_are_accumulated(optimizer: str, frozen: tuple[str, ...]) -> None:
    several = trained(forked(OPTIMIZERS[optimizer], *frozen), losses=LOSSES, sampler=drawn(5), accumulate=4)
    close(trained(forked(OPTIMIZERS[optimizer], *frozen), losses=LOSSES, sampler=drawn(20)), several)
    streamed = trained(
        forked(OPTIMIZERS[optimizer], *frozen), losses=LOSSES, sampler=drawn(5), accumulate=4, residency="streamed"
    )
    close(several, streamed, within=0.0)


def test_pairs_are_accumulated() -> None:
    def graph() -> ModelGraph:
        model, source = mlp(), numbers()
        nodes = [
            ModelNode(name, model, source.reference(["x"], ["y"], stream=s))
            for name, s in (("net", None), ("b", "pair"))
        ]
        return ModelGraph(nodes, OPTIMIZERS["adam"], seed=2)

    losses = [AppliedLoss("mse", on="net", inputs=["outputs", "b"])]
    result = [
        trained(graph(), losses=losses, sampler=Neighbours(size, "k", seed=1), accumulate=n)
        for size, n in ((5, 4), (20, 1))
    ]
    close(*result)


def test_samplers_with_one_batch_size_are_accumulated() -> None:
    def graph() -> ModelGraph:
        nodes = [
            ModelNode(name, mlp(), numbers(f"d{name}", seed=i).reference(["x"], ["y"])) for i, name in enumerate("ab")
        ]
        return ModelGraph(nodes, OPTIMIZERS["clipped"], seed=2)

    losses = [AppliedLoss("mse", on="a"), AppliedLoss("mae", on="b", weight=0.3)]
    result = [
        trained(graph(), losses=losses, sampler={"da": drawn(size), "db": SimpleSampler(size)}, accumulate=n)
        for size, n in ((5, 4), (20, 1))
    ]
    close(*result)


# -- what counts -------------------------------------------------------------------------------------------------------


def test_a_step_is_an_update() -> None:
    heard: list[Any] = []

    class Ear(Callback):
        def step_end(self, run: Any) -> None:
            heard.append((run.epoch, run.step, run.step_losses()["net"]))

    graph = line()
    result, _ = trained(graph, sampler=drawn(5), accumulate=4, epochs=2, callbacks=[Ear()])
    assert [(epoch, step) for epoch, step, _ in heard] == [(epoch, step) for epoch in range(2) for step in range(3)]
    assert graph.optimizer_states["net"].step == 6
    rows = np.array([20, 20, 13])
    means = np.array([loss for _, _, loss in heard]).reshape(2, 3)
    np.testing.assert_allclose(result.loss, (means * rows).sum(axis=1) / 53, rtol=1e-6)


def test_batch_normalization_sees_each_batch() -> None:
    """Batch normalization works batch by batch, and updates its statistics with each; a warning says so."""
    model = Sequential(Dense(3, dtype="float64"), BatchNorm(dtype="float64"), Dense(1, dtype="float64"))
    expected = (
        r"accumulates batches, and the buffer 'net/buffers/1\.running_mean' and 1 more change in every call of the"
    )
    with pytest.warns(UserWarning, match=expected):
        several = trained(line(model=model), sampler=SimpleSampler(5), accumulate=4, epochs=1)
    other = Sequential(Dense(3, dtype="float64"), BatchNorm(dtype="float64"), Dense(1, dtype="float64"))
    one = trained(line(model=other), sampler=SimpleSampler(20), epochs=1)
    assert not np.allclose(one[0].loss, several[0].loss, rtol=1e-6)
    assert np.isfinite(several[0].loss).all()


def test_stopping_ends_after_an_update(at: Callable[..., Callback]) -> None:
    stop = at("step_end", lambda run: run.stop("enough") if run.step == 1 else None)
    result, _ = trained(line(), sampler=drawn(5), accumulate=4, callbacks=[stop])
    assert [epoch.steps for epoch in result.epochs] == [2]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "4", None])
def test_accumulate_below_one_is_refused(given: Any) -> None:
    with pytest.raises(PhaseError) as caught:
        TrainPhase("t", data="train", losses=MSE, accumulate=given)
    hint = "Hint: write accumulate=1."
    assert str(caught.value) == f"phase 't': accumulate={given!r} is not an int of at least 1. {hint}"


@pytest.mark.parametrize("schedule", ["alternate_strict", "alternate_cycle", "zip_cycle"])
def test_accumulating_batches_of_different_sizes_is_refused(schedule: str) -> None:
    nodes = [ModelNode(name, mlp(), numbers(f"d{name}").reference(["x"], ["y"])) for name in "ab"]
    graph = ModelGraph(nodes, "adam")
    samplers = {"da": drawn(5), "db": drawn(7) if schedule == "zip_cycle" else drawn(5)}
    phase = TrainPhase(
        "t",
        data="train",
        losses=[AppliedLoss("mse", on="a"), AppliedLoss("mse", on="b")],
        sampler=samplers,
        schedule=schedule,
        accumulate=2,
    )
    ours = Experiment("e", graph, progress="none")
    for attempt in (ours.plan, ours.run_phase):
        with pytest.raises(PhaseError) as caught:
            attempt(phase)
        assert str(caught.value) == (
            "phase 't' has accumulate=2, but its samplers draw batches of different sizes. Hint: draw larger batches "
            "instead, or use one batch size for all samplers and schedule='zip_strict'."
        )
