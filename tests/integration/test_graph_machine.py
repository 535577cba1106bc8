"""A graph trained, frozen, moved and changed at random gives the same values in every framework as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from hypothesis_profiles import examples

import anyaccel as aa
from anyaccel.registry import registry

from . import graphs

TOLERANCE = {"float64": 1e-8, "float32": 1e-3}


class Machine(RuleBasedStateMachine):
    """Two graphs of one spec: `mixed` is spread over frameworks and devices, `reference` is NumPy on the CPU."""

    frameworks: tuple[str, ...] = ()

    @initialize(spec=graphs.graph_specs(), owners=st.lists(st.integers(0, 9), min_size=4, max_size=4))
    def begin(self, spec: Any, owners: list[int]) -> None:
        self.spec = spec
        self.source = graphs.feature_set(spec)
        self.count = len(spec.layers)
        by_layer = {i: self.frameworks[owner % len(self.frameworks)] for i, owner in enumerate(owners)}
        self.mixed = graphs.graph(spec, self.source, by_layer)
        self.reference = graphs.graph(spec, self.source, "numpy")
        self.phases = 0
        self.both(lambda graph: graph.build())
        self.compare()

    def both(self, function: Any) -> list[Any]:
        return [function(graph) for graph in (self.mixed, self.reference)]

    def compare(self) -> None:
        tolerance = TOLERANCE[self.spec.dtype]
        mixed, reference = self.both(lambda graph: graph.state())
        assert set(mixed) == set(reference)
        for name, array in reference.items():
            assert mixed[name].dtype == array.dtype, name
            np.testing.assert_allclose(mixed[name], array, rtol=tolerance, atol=tolerance, err_msg=name)

    def trainable(self) -> bool:
        """Whether a loss depends on a node that is not frozen."""
        needed, todo = set(), [f"n{self.count - 1}"] + (["n0"] if self.spec.extra_loss else [])
        while todo:
            label = todo.pop()
            needed.add(label)
            inputs = self.spec.layers[int(label[1:])].inputs
            todo += [f"n{i}" for i in inputs if i >= 0]
        return bool(needed - set(self.mixed.frozen))

    @precondition(lambda self: self.trainable())
    @rule(listen=st.booleans())
    def train(self, listen: bool) -> None:
        """Train an epoch, with or without a callback that reads the losses of every step."""
        self.phases += 1

        def run(graph: aa.ModelGraph) -> Any:
            phase = aa.TrainPhase(
                f"t{self.phases}",
                data=self.source,
                sampler=aa.SimpleSampler(16, shuffle=True, seed=self.phases),
                losses=graphs.losses(self.spec),
                callbacks=[ReadLosses()] if listen else [],
            )
            return aa.Experiment("machine", graph, progress="none").run_phase(phase)

        mixed, reference = self.both(run)
        tolerance = TOLERANCE[self.spec.dtype]
        for name in reference.figures:
            np.testing.assert_allclose(mixed.figure(name), reference.figure(name), rtol=tolerance, atol=tolerance)
        self.compare()

    @rule(which=st.integers(0, 3))
    def freeze(self, which: int) -> None:
        self.both(lambda graph: graph.freeze(f"n{which % self.count}"))

    @rule(which=st.integers(0, 3))
    def unfreeze(self, which: int) -> None:
        self.both(lambda graph: graph.unfreeze(f"n{which % self.count}"))

    @rule(which=st.integers(0, 3), where=st.integers(0, 9))
    def move(self, which: int, where: int) -> None:
        """Give a node another device of its framework, from the next phase on."""
        label = f"n{which % self.count}"
        devices = registry().find(self.mixed.shapes.frameworks[label]).devices()
        usable = [device for device in devices if device.kind == "cpu"]
        node: Any = self.mixed[label]
        node.accelerator = aa.Accelerator(str(usable[where % len(usable)]))

    @rule(which=st.integers(0, 3), owner=st.integers(0, 9), keep=st.booleans())
    def replace(self, which: int, owner: int, keep: bool) -> None:
        """Replace a model, possibly by one of another framework, with its weights or new ones."""
        index = which % self.count
        label, layer = f"n{index}", self.spec.layers[index]

        def exchange(graph: aa.ModelGraph, framework: str) -> None:
            old: Any = graph[label]
            mlp: Any = registry().computing(framework).models()["SequentialMLP"]
            model = mlp(
                output_shape=(layer.width,),
                n_layers=layer.layers,
                hidden_dim=3,
                activation=layer.activation,
                dtype=self.spec.dtype,
            )
            node = aa.ModelNode(label, model, list(old.upstreams))
            node.frozen = old.frozen
            graph.replace_node(label, node).build()
            if keep:
                aa.copy_weights(old.model, model)

        exchange(self.mixed, self.frameworks[owner % len(self.frameworks)])
        exchange(self.reference, "numpy")
        self.compare()


class ReadLosses(aa.Callback):
    """Reads the losses of every step."""

    def step_end(self, run: Any) -> None:
        run.step_losses()


def machine(*frameworks: str) -> type[Machine]:
    """The state machine over these frameworks."""
    return type("MachineOver", (Machine,), {"frameworks": frameworks})


def test_a_graph_of_one_framework_and_numpy(framework: str) -> None:
    run_state_machine_as_test(
        machine(framework, "numpy"), settings=settings(max_examples=examples(10), stateful_step_count=7, deadline=None)
    )


@pytest.mark.usefixtures("three")
def test_a_graph_of_all_frameworks() -> None:
    run_state_machine_as_test(
        machine("torch", "jax", "tensorflow", "numpy"),
        settings=settings(max_examples=examples(10), stateful_step_count=7, deadline=None),
    )
