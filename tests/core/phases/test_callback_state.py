"""The state of callbacks: what resumes from it equals what was never broken off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import StateError

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
DATA = {"x": X, "y": X[:, :1] - X[:, 1:2]}


def graph_of() -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", DATA, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference())], aa.Optimizer("adam", lr=0.01))


def train(graph: aa.ModelGraph, callbacks: list[aa.Callback], epochs: int = 1, **settings: Any) -> Any:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase(
        "t", data="all", losses=losses, batch_size=8, epochs=epochs, callbacks=callbacks, compile="off", **settings
    )
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(actual) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.mark.parametrize("decay", [0.9, None])
def test_an_average_goes_on_from_its_state(decay: float | None) -> None:
    whole, first, second = (aa.WeightAveraging(decay) for _ in range(3))
    train(graph_of(), [whole], epochs=4)
    graph = graph_of()
    train(graph, [first], epochs=2)
    second.load_state_dict(first.state_dict())
    train(graph, [second], epochs=2)
    assert second.n_averaged == whole.n_averaged == (20 if decay else 4)
    assert_same(second.state_dict(), whole.state_dict())
    assert "net/parameters/layers.0.weight" in whole.state_dict()


def test_the_state_of_an_average_can_be_applied_without_a_run() -> None:
    averaging, loaded, graph = aa.WeightAveraging(0.5), aa.WeightAveraging(0.5), graph_of()
    train(graph, [averaging])
    loaded.load_state_dict(averaging.state_dict())
    before = graph.state()
    with loaded.applied(graph):
        applied = {name: array for name, array in graph.state().items() if "/parameters/" in name}
    assert_same(applied, {name: array for name, array in averaging.state_dict().items() if "/parameters/" in name})
    assert_same(graph.state(), before)
    with pytest.raises(StateError, match=r"lacks n_averaged, of all or of a node\. Hint: pass"):
        loaded.load_state_dict({})


class FailingOnce(aa.Callback):
    """Memory runs out in the fourth step, after others have heard of it."""

    def __init__(self) -> None:
        self.failed = False

    def step_end(self, run: Any) -> None:
        if run.step == 3 and not self.failed:
            self.failed = True
            raise MemoryError("no room")


def test_an_average_counts_steps_once_that_are_done_twice() -> None:
    expected, averaging, failing = aa.WeightAveraging(0.9), aa.WeightAveraging(0.9), FailingOnce()
    train(graph_of(), [expected])
    results = train(graph_of(), [averaging, failing], residency="auto")
    assert failing.failed
    assert any(event.kind == "memory" for event in results.events)
    assert averaging.n_averaged == expected.n_averaged == 5
    assert_same(averaging.state_dict(), expected.state_dict())


class Run:
    """As much of a run as a plateau reads."""

    history = ()

    def __init__(self) -> None:
        self.events: list[str] = []

    def log_event(self, kind: str, message: str) -> None:
        self.events.append(message)


def factors(plateau: aa.ReduceLROnPlateau, values: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found, run = [], Run()
    for value in values:
        monkeypatch.setattr("anyaccel.phases.plateau.monitored_value", lambda *_, value=value: value)
        plateau.epoch_end(run)  # type: ignore[arg-type]
        found.append(plateau(0))
    return found


def test_a_plateau_goes_on_from_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 0.9, 0.95, 0.92, 0.91, 0.93, 0.95, 0.5, 0.6, 0.7, 0.8, 0.9]
    settings: Any = {"factor": 0.5, "patience": 1, "cooldown": 1}
    expected = factors(aa.ReduceLROnPlateau("loss", **settings), values, monkeypatch)
    assert len(set(expected)) > 2
    for broken_off in range(1, len(values)):
        first, second = (aa.ReduceLROnPlateau("loss", **settings) for _ in range(2))
        actual = factors(first, values[:broken_off], monkeypatch)
        second.load_state_dict(first.state_dict())
        assert actual + factors(second, values[broken_off:], monkeypatch) == expected
    message = (
        r"this is not the state of a ReduceLROnPlateau: it has best\. Available: current, best, bad, cooling\. Hint"
    )
    with pytest.raises(StateError, match=message):
        aa.ReduceLROnPlateau("loss").load_state_dict({"best": 1.0})
