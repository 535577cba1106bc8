"""Extra state: what modules give in `get_extra_state` is in a state, and is loaded from one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import StateError


class Counting(torch.nn.Module):
    """Counts its training steps outside of parameters and buffers; has a complex parameter, too."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.phase = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.count, self.center, self.extra = 0, torch.ones(2), extra

    def get_extra_state(self) -> Any:
        return {"count": self.count, "center": self.center, "more": [np.array([1.5]), "text", None, self.extra]}

    def set_extra_state(self, state: Any) -> None:
        self.count, self.center, self.more = state["count"], state["center"], state["more"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            self.center = 0.5 * self.center
        return self.linear((x * self.phase).real) / (1 + self.count)


def graph_of(model: torch.nn.Module) -> aa.ModelGraph:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(8, 3)).astype("float32"), "y": draw.normal(size=(8, 1)).astype("float32")}
    source = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, source.reference())], "adam")


def train(graph: aa.ModelGraph) -> None:
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=4, compile="off")
    aa.Experiment("e", graph, progress="none").run_phase(phase)


def test_extra_state_and_complex_parameters_go_on_elsewhere() -> None:
    first, second = Counting(), Counting()
    graph, other = graph_of(first), graph_of(second)
    train(graph)
    state = graph.state()
    assert state["net/buffers/_extra_state.count"] == 2
    other.load_state(state)
    assert (second.count, type(second.count)) == (2, int) and torch.equal(second.center, first.center)
    assert second.more[1:] == ["text", None, None] and second.more[0] == np.array([1.5])
    train(graph)
    train(other)
    assert torch.equal(first.phase, second.phase) and first.phase.is_complex()
    assert torch.equal(first.linear.weight, second.linear.weight)


def test_extra_state_of_other_objects_is_refused() -> None:
    graph = graph_of(torch.nn.Sequential(Counting(extra=object())))
    with pytest.raises(
        StateError,
        match=r"^the extra state of Counting has a 'object' object at 0\._extra_state\.more\.3, .* Hint:",
    ):
        graph.state()


def test_a_state_without_the_extra_state_is_refused() -> None:
    state = graph_of(Counting()).state()
    del state["net/buffers/_extra_state.count"]
    with pytest.raises(StateError, match=r"it lacks buffers/_extra_state\.count"):
        graph_of(Counting()).load_state(state)
