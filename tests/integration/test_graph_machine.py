"""A graph trained, frozen, moved and changed at random, in every framework and in NumPy alone: the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import anyaccel as aa
from anyaccel.registry import registry


def _load() -> ModuleType:
    """The module beside this one: pytest's importlib mode puts no folder on the path."""
    spec = importlib.util.spec_from_file_location("machine_graphs", Path(__file__).with_name("graphs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


graphs = _load()
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}


class Machine(RuleBasedStateMachine):
    """Two graphs of one recipe: `ours` is spread over frameworks and devices, `reference` is of NumPy on the CPU."""

    frameworks: tuple[str, ...] = ()

    @initialize(recipe=graphs.recipes(), owners=st.lists(st.integers(0, 9), min_size=4, max_size=4))
    def begin(self, recipe: Any, owners: list[int]) -> None:
        self.recipe = recipe
        self.source = graphs.feature_set(recipe)
        self.count = len(recipe.layers)
        by_layer = {i: self.frameworks[owner % len(self.frameworks)] for i, owner in enumerate(owners)}
        self.ours = graphs.graph(recipe, self.source, by_layer)
        self.reference = graphs.graph(recipe, self.source, "numpy")
        self.phases = 0
        self.both(lambda graph: graph.build())
        self.compare()

    def both(self, act: Any) -> list[Any]:
        return [act(graph) for graph in (self.ours, self.reference)]

    def compare(self) -> None:
        tolerance = TOLERANCE[self.recipe.dtype]
        ours, reference = self.both(lambda graph: graph.state())
        assert set(ours) == set(reference)
        for name, array in reference.items():
            assert ours[name].dtype == array.dtype, name
            np.testing.assert_allclose(ours[name], array, rtol=tolerance, atol=tolerance, err_msg=name)

    def trainable(self) -> bool:
        """Whether a loss depends on a node that is not frozen."""
        needed, todo = set(), [f"n{self.count - 1}"] + (["n0"] if self.recipe.extra_loss else [])
        while todo:
            label = todo.pop()
            needed.add(label)
            inputs = self.recipe.layers[int(label[1:])].inputs
            todo += [f"n{i}" for i in inputs if i >= 0]
        return bool(needed - set(self.ours.frozen))

    @precondition(lambda self: self.trainable())
    @rule(listen=st.booleans())
    def train(self, listen: bool) -> None:
        """An epoch, with or without somebody who looks at every step."""
        self.phases += 1

        def run(graph: aa.ModelGraph) -> Any:
            phase = aa.TrainPhase(
                f"t{self.phases}",
                data=self.source,
                sampler=aa.SimpleSampler(16, shuffle=True, seed=self.phases),
                losses=graphs.losses(self.recipe),
                callbacks=[Look()] if listen else [],
            )
            return aa.Experiment("machine", graph, progress="none").run_phase(phase)

        ours, reference = self.both(run)
        tolerance = TOLERANCE[self.recipe.dtype]
        for name in reference.figures:
            np.testing.assert_allclose(ours.figure(name), reference.figure(name), rtol=tolerance, atol=tolerance)
        self.compare()

    @rule(which=st.integers(0, 3))
    def freeze(self, which: int) -> None:
        self.both(lambda graph: graph.freeze(f"n{which % self.count}"))

    @rule(which=st.integers(0, 3))
    def unfreeze(self, which: int) -> None:
        self.both(lambda graph: graph.unfreeze(f"n{which % self.count}"))

    @rule(which=st.integers(0, 3), where=st.integers(0, 9))
    def move(self, which: int, where: int) -> None:
        """Another device of the same framework, from the next phase on."""
        label = f"n{which % self.count}"
        there = registry().find(self.ours.shapes.frameworks[label]).devices()
        usable = [device for device in there if device.kind == "cpu"]
        node: Any = self.ours[label]
        node.accelerator = aa.Accelerator(str(usable[where % len(usable)]))

    @rule(which=st.integers(0, 3), owner=st.integers(0, 9), keep=st.booleans())
    def replace(self, which: int, owner: int, keep: bool) -> None:
        """A new model, perhaps of another framework, in the place of one; with its weights, or fresh ones."""
        index = which % self.count
        label, layer = f"n{index}", self.recipe.layers[index]

        def exchange(graph: aa.ModelGraph, framework: str) -> None:
            old: Any = graph[label]
            made: Any = registry().computing(framework).models()["SequentialMLP"]
            model = made(
                output_shape=(layer.width,),
                n_layers=layer.layers,
                hidden_dim=3,
                activation=layer.activation,
                dtype=self.recipe.dtype,
            )
            node = aa.ModelNode(label, model, list(old.upstreams))
            node.frozen = old.frozen
            graph.replace_node(label, node).build()
            if keep:
                aa.copy_weights(old.model, model)

        exchange(self.ours, self.frameworks[owner % len(self.frameworks)])
        exchange(self.reference, "numpy")
        self.compare()


class Look(aa.Callback):
    """Looks at every step."""

    def step_end(self, run: Any) -> None:
        run.step_losses()


def machine(*frameworks: str) -> type[Machine]:
    """A machine over some frameworks."""
    return type("MachineOver", (Machine,), {"frameworks": frameworks})


def test_a_graph_of_one_framework_and_numpy(framework: str) -> None:
    run_state_machine_as_test(
        machine(framework, "numpy"), settings=settings(max_examples=10, stateful_step_count=7, deadline=None)
    )


@pytest.mark.usefixtures("three")
def test_a_graph_of_all_frameworks() -> None:
    run_state_machine_as_test(
        machine("torch", "jax", "tensorflow", "numpy"),
        settings=settings(max_examples=10, stateful_step_count=7, deadline=None),
    )
