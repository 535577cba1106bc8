"""The loop at its limits in every framework: streamed, accumulated, out of memory; the numbers stay the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import MultiStepProgram
from anyaccel.errors import OutOfMemoryError
from anyaccel.phases.loading import loader_factory
from anyaccel.registry import registry

MSE = aa.AppliedLoss("mse", on="net")
ROWS = 90


def data() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 4))
    found = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2 + draw.normal(size=(ROWS, 1)) / 9}, ["x"], ["y"])
    found.add_splits({"train": np.arange(ROWS), "val": np.arange(40)})
    return found


def mlp(framework: str, width: int = 1) -> Any:
    made: Any = registry().computing(framework).models()["SequentialMLP"]
    return made(output_shape=(width,), n_layers=2, hidden_dim=5, activation="tanh", dtype="float64")


def graph(*frameworks: str, **optimizer: Any) -> aa.ModelGraph:
    """A chain of one node for each framework; the last is `net`."""
    nodes: list[aa.ModelNode] = []
    for i, framework in enumerate(frameworks):
        label = "net" if i + 1 == len(frameworks) else f"n{i}"
        feeding = nodes[-1].label if nodes else data().reference(["x"], ["y"])
        nodes.append(aa.ModelNode(label, mlp(framework, 1 if label == "net" else 3), feeding))
    return aa.ModelGraph(nodes, aa.Optimizer(**{"name": "adam", "lr": 0.02, "clip_norm": 0.5, **optimizer}), seed=3)


def trained(made: aa.ModelGraph, **settings: Any) -> Any:
    sampler = aa.SimpleSampler(settings.pop("size", 16), shuffle=True, seed=1)
    phase = aa.TrainPhase("t", **{"data": "train", "losses": MSE, "sampler": sampler, "n_epochs": 4, **settings})
    return aa.Experiment("e", made, progress="none").run_phase(phase)


def close(one: aa.ModelGraph, other: aa.ModelGraph, within: float) -> None:
    first, second = one.state(), other.state()
    assert sorted(first) == sorted(second)
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=within, atol=within, err_msg=name)


def events(result: Any) -> list[str]:
    return [event.message.rpartition("; ")[2] for event in result.events if event.kind == "memory"]


class Full:
    """Lets programs run out of memory: above `most` rows at once, after so many calls, once their steps are done.

    What it computes before it fails has changed the program, as a failure in the middle of many steps does.
    """

    def __init__(self, most: int, after: int) -> None:
        self.most, self.after = most, after

    def fits(self, rows: int) -> bool:
        self.after -= 1
        return self.after >= 0 or rows <= self.most

    def watch(self, program: Any) -> Any:
        whole, back = getattr(program, "train_steps", None), program.forward_pullback

        def steps(columns: Any, orders: Any, start: int, count: int, batch: int, *parts: int) -> Any:
            fit = self.fits(batch // (parts[0] if parts else 1))
            found = whole(columns, orders, start, count, batch, *parts)
            if not fit:
                raise OutOfMemoryError("the device has no room")
            return found

        def forward_pullback(inputs: Any, *scale: Any) -> Any:
            if not self.fits(len(inputs[0])):
                raise OutOfMemoryError("the device has no room")
            return back(inputs, *scale)

        if isinstance(program, MultiStepProgram):
            program.train_steps = steps  # type: ignore[method-assign]
        program.forward_pullback = forward_pullback
        return program


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`full("torch", most=5, after=3)`: see `Full`."""

    def make(*frameworks: str, most: int, after: int = 0) -> None:
        limit = Full(most, after)
        for framework in dict.fromkeys(frameworks):
            backend = registry().computing(framework)
            build = type(backend).build
            monkeypatch.setattr(type(backend), "build", lambda self, segment, b=build: limit.watch(b(self, segment)))

    return make


@pytest.fixture(autouse=True)
def no_threads() -> Any:
    yield
    assert "anyaccel-prefetch" not in [thread.name for thread in threading.enumerate()]


# -- streamed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 2000])
def test_streamed_rows_give_the_numbers_of_resident_ones(
    framework: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)
    one, other = graph(framework), graph(framework)
    resident = trained(one, residency="resident", validation="val")
    streamed = trained(other, residency="streamed", validation="val")
    close(one, other, within=1e-12)
    for first, second in zip(resident.epochs, streamed.epochs, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-12)
        assert second.validation == pytest.approx(first.validation, rel=1e-12)


def test_streamed_predictions_are_those_of_resident_rows(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 1000)
    made = graph(framework)
    ours = aa.Experiment("e", made, progress="none")
    found = [
        ours.run_phase(aa.EvalPhase("p", data="train", losses=MSE, outputs="net", batch_size=16, residency=residency))
        for residency in ("resident", "streamed")
    ]
    np.testing.assert_allclose(found[0].prediction("net"), found[1].prediction("net"), rtol=1e-12)
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-12)


# -- accumulated -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "residency"), [("adam", "streamed"), ("sgd", "resident")])
def test_accumulated_batches_are_one(framework: str, optimizer: str, residency: str) -> None:
    one, several = graph(framework, name=optimizer), graph(framework, name=optimizer)
    expected = trained(one, size=24)
    result = trained(several, size=8, accumulate=3, residency=residency)
    close(one, several, within=1e-6)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)
    assert [epoch.steps for epoch in result.epochs] == [4] * 4


# -- out of memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "after"), [(3, 0), (8, 3), (3, 9)])
def test_out_of_memory_ends_with_the_same_numbers(
    framework: str, most: int, after: int, full: Callable[..., None]
) -> None:
    """102 steps; the failing ones have changed everything that they could before they fail."""
    one, other = graph(framework), graph(framework)
    expected = trained(one, n_epochs=17)
    full(framework, most=most, after=after)
    result = trained(other, n_epochs=17)
    close(one, other, within=1e-6)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)
    assert events(result)[0] == "rows are streamed from now on" and len(result.epochs) == 17
    assert other.optimizer_states["net"].step == 102


def test_a_validation_that_runs_out_of_memory_ends_with_the_same_numbers(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = graph(framework), graph(framework)
    expected = trained(one, validation="val")
    backend = registry().computing(framework)
    build = type(backend).build

    def limited(self: Any, segment: Any) -> Any:
        program = build(self, segment)
        forward = program.forward

        def computed(inputs: Any) -> Any:
            if len(inputs[0]) > 7:
                raise OutOfMemoryError("the device has no room")
            return forward(inputs)

        program.forward = computed  # type: ignore[method-assign]
        return program

    monkeypatch.setattr(type(backend), "build", limited)
    result = trained(other, validation="val")
    close(one, other, within=1e-12)
    for first, second in zip(expected.epochs, result.epochs, strict=True):
        assert second.validation == pytest.approx(first.validation, rel=1e-9)
    assert events(result)[0] == "rows are streamed from now on"


@pytest.mark.parametrize(
    "settings", [{"residency": "streamed"}, {"size": 8, "accumulate": 2}], ids=["streamed", "parts"]
)
@pytest.mark.parametrize("after", [None, 0, 4])
def test_several_frameworks(
    three: tuple[str, str, str], after: int | None, settings: dict[str, Any], full: Callable[..., None]
) -> None:
    one, other = graph(*three), graph(*three)
    trained(one)
    if after is not None:
        full(*three, most=5, after=after)
    trained(other, **settings)
    close(one, other, within=1e-6)


def test_batch_normalization_in_torch(full: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")

    def made() -> aa.ModelGraph:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 1)
        ).double()
        return aa.ModelGraph([aa.ModelNode("net", model, data().reference(["x"], ["y"]))], "adam")

    full("torch", most=11, after=2)
    with pytest.raises(OutOfMemoryError) as caught:
        trained(made())
    text = str(caught.value)
    assert text.startswith("phase 't': no room to train 16 rows at once, and micro-batches are ruled out by BatchNorm")
    assert (
        "Available: cpu:0 (torch): parameters " in text
        and "; 11 rows would fit. Hint: use batches of at most 11" in text
    )
    result = trained(made(), microbatching="approximate")
    assert len(result.epochs) == 4 and events(result)[-1] == "8 rows of 16 at once now"
