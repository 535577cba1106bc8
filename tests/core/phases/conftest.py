"""What tests of phases share: a registry with NumPy only, simulated devices, small data, short graphs, and spies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from phase_fixtures import data as data
from phase_fixtures import line as line
from phase_fixtures import numpy_only as numpy_only
from phase_fixtures import sims as sims
from phase_fixtures import table as table
from phase_fixtures import table_of as table_of

from anyaccel import AppliedLoss
from anyaccel.adapter import VjpResult
from anyaccel.data import FeatureSet
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, topology
from anyaccel.graph.nodes import ModelKind
from anyaccel.hookspecs import HOOKS, hookimpl
from anyaccel.numpy_backend import Module, SimArray
from anyaccel.phases import Callback, EvalPhase, TrainPhase
from anyaccel.phases.learners import Learners, Learning

MSE = AppliedLoss("mse", on="net")


class Steps(Module, ModelKind):
    """A model that learns from each step without gradients: it follows the mean of its input, and writes a diary."""

    fixed = "a learner"
    differentiable = False
    computes_on_host = True
    tries_other_inputs = False

    def __init__(self) -> None:
        super().__init__()
        self.diary: list[float] = []

    @property
    def learns_from_steps(self) -> bool:
        return True

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        mean = np.float32(np.mean(self.diary or [0.0]))
        return VjpResult((np.full((len(inputs[0]), 1), mean),), lambda cotangents: None)


class StepLearners(Learners):
    """The nodes of such models, each behind one node."""

    def __init__(self, labels: Sequence[str], graph: ModelGraph, rows: Any, streams: Any) -> None:
        self.labels, self.graph = tuple(labels), graph

    @property
    def upstreams(self) -> list[str]:
        return topology.upstream_nodes(self.labels, self.graph.nodes)

    def step(self, values: Any, span_of: Any, to_host: Any) -> None:
        for label, name in zip(self.labels, self.upstreams, strict=True):
            self.graph[label].model.diary.append(float(np.mean(to_host(name, values[name]))))

    def snapshot(self) -> Any:
        return [copy.deepcopy(self.graph[label].model.diary) for label in self.labels]

    def restore(self, snapshot: Any) -> None:
        for label, diary in zip(self.labels, snapshot, strict=True):
            self.graph[label].model.diary[:] = diary


class StepLearning(Learning):
    """Finds them."""

    learners = StepLearners

    def nodes(self, phase_label: str, losses: Any, graph: ModelGraph) -> list[str]:
        return [label for label in graph.shapes.order if graph[label].kind.learns_from_steps]


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> type[Steps]:
    """A model class that learns without gradients, as a distribution's extension lets it."""
    monkeypatch.setattr("anyaccel.extensions._registered", {"learners": [StepLearning()]})
    monkeypatch.setattr("anyaccel.extensions.entry_points", lambda group: ())
    return Steps


@pytest.fixture
def experiment() -> Callable[..., Experiment]:
    """`experiment(graph, callbacks=...)` is a quiet one."""
    return lambda graph, **settings: Experiment("e", graph, **{"progress": "none", **settings})


@pytest.fixture
def train(data: FeatureSet) -> Callable[..., TrainPhase]:
    """`train(...)` is a TrainPhase of `net` over the split `train`, in batches of four, with any setting changed."""

    def make(label: str = "train", **settings: Any) -> TrainPhase:
        return TrainPhase(
            label,
            **{"data": "train", "losses": [MSE], **({} if "sampler" in settings else {"batch_size": 4}), **settings},
        )

    return make


@pytest.fixture
def evaluate() -> Callable[..., EvalPhase]:
    """`evaluate(...)` is an EvalPhase of `net` over the split `val`, with any setting changed."""

    def make(label: str = "eval", **settings: Any) -> EvalPhase:
        return EvalPhase(label, **{"data": "val", "losses": [MSE], **settings})

    return make


# -- looking at graphs -------------------------------------------------------------------------------------------------


def values_of(graph: ModelGraph) -> dict[str, np.ndarray]:
    """Everything a phase may change, in host memory."""
    return graph.state()


@pytest.fixture
def values() -> Callable[[ModelGraph], dict[str, np.ndarray]]:
    return values_of


@pytest.fixture
def same() -> Callable[..., None]:
    """`same(one, other)`: two mappings of arrays are equal in names and, to the bit, in values (or within `within`)."""

    def compare(one: dict[str, np.ndarray], other: dict[str, np.ndarray], within: float = 0.0) -> None:
        assert sorted(one) == sorted(other)
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], rtol=within, atol=within, err_msg=name)

    return compare


@pytest.fixture
def owned() -> Callable[..., int]:
    """`owned(graph, "sim:0")`: bytes of the parameters, buffers and optimizer state that a graph has on a device."""

    def count(graph: ModelGraph, device: str) -> int:
        result: dict[int, Any] = {}
        for node in graph.nodes.values():
            model = getattr(node, "model", None)
            if model is not None:
                result.update({id(a): a for a in [*model.parameters.values(), *model.buffers.values()]})
        for state in graph.optimizer_states.values():
            result.update({id(a): a for slots in state.slots.values() for a in slots.values()})
        return sum(a.nbytes for a in result.values() if isinstance(a, SimArray) and str(a.device) == device)

    return count


# -- spies -------------------------------------------------------------------------------------------------------------

Seen = list[tuple[str, str, dict[str, Any]]]
"""Who was called, at which moment, with what."""


def plugin_spy(seen: Seen, moments: tuple[str, ...] = HOOKS, act: Any = None) -> ModuleType:
    """A plugin that writes every moment down, then does `act(moment)`."""
    module = ModuleType("spy")
    told = {
        "phase_start": lambda phase, run: heard("phase_start", phase=phase, run=run),
        "before_placement": lambda phase, plan, run: heard("before_placement", phase=phase, plan=plan, run=run),
        "after_placement": lambda phase, plan, run: heard("after_placement", phase=phase, plan=plan, run=run),
        "after_loading": lambda phase, plan, run: heard("after_loading", phase=phase, plan=plan, run=run),
        "epoch_start": lambda run: heard("epoch_start", run=run),
        "step_end": lambda run: heard("step_end", run=run),
        "steps_done": lambda run, steps: heard("steps_done", run=run, steps=steps),
        "epoch_end": lambda run: heard("epoch_end", run=run),
        "phase_end": lambda phase, plan, run, error: heard("phase_end", phase=phase, plan=plan, run=run, error=error),
    }

    def heard(moment: str, **arguments: Any) -> None:
        seen.append(("plugin", moment, arguments))
        if act is not None:
            act(moment)

    for moment in moments:
        setattr(module, moment, hookimpl(told[moment]))
    return module


def callback_spy(seen: Seen, moments: tuple[str, ...] = HOOKS, act: Any = None) -> Callback:
    """A callback that does the same."""

    def method(moment: str) -> Callable[..., None]:
        def heard(self: Callback, **arguments: Any) -> None:
            seen.append(("callback", moment, arguments))
            if act is not None:
                act(moment)

        return heard

    return type("Spy", (Callback,), {moment: method(moment) for moment in moments})()


@pytest.fixture
def spy() -> Callable[..., Any]:
    """`spy("plugin" or "callback", seen, moments, act)` is a listener."""
    return lambda kind, *args, **kwargs: {"plugin": plugin_spy, "callback": callback_spy}[kind](*args, **kwargs)


@pytest.fixture
def at() -> Callable[..., Callback]:
    """`at("epoch_end", function)`: a callback that calls a function with those of the moment's arguments it names."""

    def make(moment: str, function: Callable[..., Any]) -> Callback:
        return type("At", (Callback,), {moment: staticmethod(function)})()

    return make
