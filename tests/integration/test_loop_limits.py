"""Streaming, accumulation and running out of memory change no losses and weights, in every framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import MultiStepProgram
from anyaccel.errors import OutOfMemoryError
from anyaccel.phases.loading import residency as loader_factory
from anyaccel.registry import registry

MSE = aa.AppliedLoss("mse", on="net")
ROWS = 90


def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4))
    features = aa.FeatureSet.from_dict(
        "data", {"x": x, "y": x[:, :1] * 2 + random.normal(size=(ROWS, 1)) / 9}, ["x"], ["y"]
    )
    features.add_splits({"train": np.arange(ROWS), "val": np.arange(40)})
    return features


def mlp(framework: str, width: int = 1) -> Any:
    cls: Any = registry().computing(framework).models()["SequentialMLP"]
    return cls(output_shape=(width,), n_layers=2, hidden_dim=5, activation="tanh", dtype="float64")


def graph(*frameworks: str, **optimizer: Any) -> aa.ModelGraph:
    """A chain of one node for each framework; the last is `net`."""
    nodes: list[aa.ModelNode] = []
    for i, framework in enumerate(frameworks):
        label = "net" if i + 1 == len(frameworks) else f"n{i}"
        upstream = nodes[-1].label if nodes else data().reference(["x"], ["y"])
        nodes.append(aa.ModelNode(label, mlp(framework, 1 if label == "net" else 3), upstream))
    return aa.ModelGraph(nodes, aa.Optimizer(**{"name": "adam", "lr": 0.02, "clip_norm": 0.5, **optimizer}), seed=3)


def train(graph: aa.ModelGraph, **settings: Any) -> Any:
    sampler = aa.SimpleSampler(settings.pop("size", 16), shuffle=True, seed=1)
    phase = aa.TrainPhase("t", **{"data": "train", "losses": MSE, "sampler": sampler, "epochs": 4, **settings})
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def assert_close(expected: aa.ModelGraph, actual: aa.ModelGraph, within: float) -> None:
    first, second = expected.state(), actual.state()
    assert sorted(first) == sorted(second)
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=within, atol=within, err_msg=name)


def memory_events(result: Any) -> list[str]:
    return [event.message.rpartition("; ")[2] for event in result.events if event.kind == "memory"]


class MemoryLimit:
    """Lets programs run out of memory with more than `max_rows` rows in a call, after `after` calls.

    A call computes before it fails, so that it changes the program like a failure in the middle of several steps.
    """

    def __init__(self, max_rows: int, after: int) -> None:
        self.max_rows, self.after = max_rows, after

    def fits(self, rows: int) -> bool:
        self.after -= 1
        return self.after >= 0 or rows <= self.max_rows

    def limit(self, program: Any) -> Any:
        train_steps, forward_backward = getattr(program, "train_steps", None), program.forward_pullback

        def limited_steps(columns: Any, orders: Any, start: int, count: int, batch: int, *parts: int) -> Any:
            fit = self.fits(batch // (parts[0] if parts else 1))
            result = train_steps(columns, orders, start, count, batch, *parts)
            if not fit:
                raise OutOfMemoryError("the device has no room")
            return result

        def forward_pullback(inputs: Any, *scale: Any) -> Any:
            if not self.fits(len(inputs[0])):
                raise OutOfMemoryError("the device has no room")
            return forward_backward(inputs, *scale)

        if isinstance(program, MultiStepProgram):
            program.train_steps = limited_steps  # type: ignore[method-assign]
        program.forward_pullback = forward_pullback
        return program


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`full("torch", max_rows=5, after=3)`: see `MemoryLimit`."""

    def make(*frameworks: str, max_rows: int, after: int = 0) -> None:
        limit = MemoryLimit(max_rows, after)
        for framework in dict.fromkeys(frameworks):
            backend = registry().computing(framework)
            build = type(backend).build
            monkeypatch.setattr(type(backend), "build", lambda self, segment, b=build: limit.limit(b(self, segment)))

    return make


@pytest.fixture(autouse=True)
def no_threads() -> Any:
    yield
    assert "anyaccel-prefetch" not in [thread.name for thread in threading.enumerate()]


# -- streamed ----------------------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize("nbytes", [1, 2000])
def test_streamed_training_equals_resident_training(
    framework: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)
    reference, limited = graph(framework), graph(framework)
    resident = train(reference, residency="resident", validation="val")
    streamed = train(limited, residency="streamed", validation="val")
    assert_close(reference, limited, within=1e-12)
    for first, second in zip(resident.epochs, streamed.epochs, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-12)
        assert second.validation == pytest.approx(first.validation, rel=1e-12)


@pytest.mark.shared
def test_streamed_predictions_equal_resident_ones(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 1000)
    made = graph(framework)
    experiment = aa.Experiment("e", made, progress="none")
    found = [
        experiment.run_phase(
            aa.EvalPhase("p", data="train", losses=MSE, outputs="net", batch_size=16, residency=residency)
        )
        for residency in ("resident", "streamed")
    ]
    np.testing.assert_allclose(found[0].prediction("net"), found[1].prediction("net"), rtol=1e-12)
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-12)


# -- accumulated -------------------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize(("optimizer", "residency"), [("adam", "streamed"), ("sgd", "resident")])
def test_accumulated_batches_equal_one_large_batch(framework: str, optimizer: str, residency: str) -> None:
    reference, accumulated = graph(framework, name=optimizer), graph(framework, name=optimizer)
    expected = train(reference, size=24)
    result = train(accumulated, size=8, accumulate=3, residency=residency)
    assert_close(reference, accumulated, within=1e-6)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)
    assert [epoch.steps for epoch in result.epochs] == [4] * 4


# -- out of memory -----------------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize(("max_rows", "after"), [(3, 0), (8, 3), (3, 9)])
def test_training_that_runs_out_of_memory_gives_the_same_result(
    framework: str, max_rows: int, after: int, full: Callable[..., None]
) -> None:
    """102 steps; those that fail have changed the program before."""
    reference, limited = graph(framework), graph(framework)
    expected = train(reference, epochs=17)
    full(framework, max_rows=max_rows, after=after)
    result = train(limited, epochs=17)
    assert_close(reference, limited, within=1e-6)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)
    assert memory_events(result)[0] == "rows are streamed from now on" and len(result.epochs) == 17
    assert limited.optimizer_states["net"].step == 102


@pytest.mark.shared
def test_validation_that_runs_out_of_memory_gives_the_same_result(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, limited = graph(framework), graph(framework)
    expected = train(reference, validation="val")
    backend = registry().computing(framework)
    build = type(backend).build

    def build_limited(self: Any, segment: Any) -> Any:
        program = build(self, segment)
        forward = program.forward

        def computed(inputs: Any) -> Any:
            if len(inputs[0]) > 7:
                raise OutOfMemoryError("the device has no room")
            return forward(inputs)

        program.forward = computed  # type: ignore[method-assign]
        return program

    monkeypatch.setattr(type(backend), "build", build_limited)
    result = train(limited, validation="val")
    assert_close(reference, limited, within=1e-12)
    for first, second in zip(expected.epochs, result.epochs, strict=True):
        assert second.validation == pytest.approx(first.validation, rel=1e-9)
    assert memory_events(result)[0] == "rows are streamed from now on"


@pytest.mark.parametrize(
    "settings", [{"residency": "streamed"}, {"size": 8, "accumulate": 2}], ids=["streamed", "parts"]
)
@pytest.mark.parametrize("after", [None, 0, 4])
@pytest.mark.sampled(6)
def test_limits_change_nothing_in_a_graph_of_three_frameworks(
    three: tuple[str, str, str], after: int | None, settings: dict[str, Any], full: Callable[..., None]
) -> None:
    reference, limited = graph(*three), graph(*three)
    train(reference)
    if after is not None:
        full(*three, max_rows=5, after=after)
    train(limited, **settings)
    assert_close(reference, limited, within=1e-6)


def test_batch_normalization_is_not_split_unless_approximate(full: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")

    def made() -> aa.ModelGraph:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 1)
        ).double()
        return aa.ModelGraph([aa.ModelNode("net", model, data().reference(["x"], ["y"]))], "adam")

    full("torch", max_rows=11, after=2)
    with pytest.raises(OutOfMemoryError) as caught:
        train(made())
    text = str(caught.value)
    assert text.startswith("phase 't': not enough memory to train 16 rows at once") and "BatchNorm" in text
    assert "cpu:0 (torch): parameters " in text and "11 rows would fit" in text and "at most 11" in text
    result = train(made(), microbatching="approximate")
    assert len(result.epochs) == 4 and memory_events(result)[-1] == "8 of 16 rows at a time from now on"
