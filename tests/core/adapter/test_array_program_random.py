"""ArrayProgram on random small graphs: gradients against finite differences, and results on simulated devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.device import Device
from anyaccel.numpy_backend import Activation, Dense, NumpyBackend, simulate
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

ROWS, WIDTH, WEIGHT = 3, 2, 0.5
CPU = Device("cpu")
PLACES = (CPU, Device("sim", 0), Device("sim", 1))
SPEC = TensorSpec((WIDTH,), "float64")
BACKEND = NumpyBackend()


@dataclass(frozen=True)
class Node:
    """One drawn operation: what it computes of which values, by whose model, whether frozen, and where."""

    kind: str
    inputs: tuple[str, ...]
    model: int
    frozen: bool
    place: int


@st.composite
def graphs(draw) -> list[Node]:
    """Two to five operations over the columns `c0` and `c1`; a drawn model may be that of an earlier node."""
    nodes: list[Node] = []
    for position in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["dense", "dense", "join", "tanh"]))
        values = st.sampled_from(["c0", "c1", *(f"n{i}" for i in range(position))])
        inputs = tuple(draw(st.lists(values, min_size=2, max_size=2)) if kind == "join" else [draw(values)])
        alike = [node for node in nodes if kind == node.kind == "dense"]
        if alike and draw(st.booleans()):
            other = draw(st.sampled_from(alike))
            nodes.append(Node(kind, inputs, other.model, other.frozen, other.place))
        else:
            nodes.append(Node(kind, inputs, position, draw(st.integers(0, 3)) == 0, draw(st.integers(0, 2))))
    return nodes


class Graph:
    """A drawn graph as a segment: every second node and the last are judged, `c0` and the last value cross borders."""

    def __init__(self, nodes: list[Node], places=(CPU, CPU, CPU)) -> None:
        self.models: dict[int, Dense] = {}
        operations = [op for i, node in enumerate(nodes) for op in self._operations(i, node, places[node.place])]
        where = {op.label: op.device for op in operations}
        judged = [f"n{i}" for i in range(len(nodes)) if i % 2 or i == len(nodes) - 1]
        terms = tuple(LossTerm(name, name, Loss("mse"), (name, "y"), where[name], WEIGHT) for name in judged)
        trained = tuple(op.label for op in operations if op.trainable and op.model is not None)
        groups = (ParameterGroup("main", Optimizer("sgd", lr=1.0), trained),)
        numbers = np.random.default_rng(0)
        self.columns = {name: numbers.normal(size=(ROWS, WIDTH)) for name in ("c0", "c1", "y")}
        self.cotangent = numbers.normal(size=(ROWS, WIDTH))
        inputs = dict.fromkeys(self.columns, (SPEC, places[0]))
        self.segment = Segment("random", tuple(operations), inputs, (f"n{len(nodes) - 1}",), terms, groups, ("c0",))
        self.end = where[f"n{len(nodes) - 1}"]

    def _operations(self, i: int, node: Node, device: Device):
        values, label = node.inputs, f"n{i}"
        if node.kind == "join":
            yield Operation(f"join{i}", None, values, (f"j{i}",), device)
            values = (f"j{i}",)
        model = Activation("tanh") if node.kind == "tanh" else self._dense(node, device)
        yield Operation(label, model, values, (label,), device, trainable=not node.frozen)

    def _dense(self, node: Node, device: Device) -> Dense:
        if node.model not in self.models:
            model = self.models[node.model] = Dense(WIDTH, dtype="float64")
            BACKEND.infer(model, [TensorSpec((WIDTH * len(node.inputs),), "float64")], node.model)
            BACKEND.place(model, device)
        return self.models[node.model]

    def pulled(self) -> tuple[list[np.ndarray], np.ndarray, list[float]]:
        """Gradients of all parameters (what a step of rate 1 takes away), the cotangent of `c0`, and the losses."""
        program = BACKEND.build(self.segment)
        before = self.parameters()
        inputs = [BACKEND.move(self.columns[name], where) for name, (_, where) in self.segment.inputs.items()]
        _, losses, pullback = program.forward_pullback(inputs)
        (back,) = pullback([BACKEND.move(self.cotangent, self.end)])
        program.optimizer_step()
        program.close()
        gradients = [w - after for w, after in zip(before, self.parameters(), strict=True)]
        return gradients, BACKEND.to_host(back), [float(part) for part, _ in losses.values()]

    def parameters(self) -> list[np.ndarray]:
        """The values of all models' parameters on the host."""
        return [BACKEND.to_host(w) for model in self.models.values() for w in model.parameters.values()]


def total(graph: Graph, program) -> float:
    """What the gradients are of: the weighted means, and the last value against its cotangent."""
    (last,), losses = program.forward(tuple(graph.columns.values()))
    means = sum(WEIGHT * float(part) / float(weight) for part, weight in losses.values())
    return means + float(np.sum(last * graph.cotangent))


@given(nodes=graphs())
def test_gradients_agree_with_finite_differences(nodes, slopes):
    graph = Graph(nodes)
    program = BACKEND.build(graph.segment)  # holds the values of before, which are changed in place below
    frozen = {node.model for node in nodes if node.frozen}
    arrays = [(w, i in frozen) for i, model in graph.models.items() for w in model.parameters.values()]
    gradients, back, _ = graph.pulled()
    for (array, still), gradient in zip(arrays, gradients, strict=True):
        expected = np.zeros_like(array) if still else slopes(lambda: total(graph, program), array)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)
    np.testing.assert_allclose(back, slopes(lambda: total(graph, program), graph.columns["c0"]), atol=1e-6)


@given(nodes=graphs())
def test_results_do_not_depend_on_the_devices(nodes):
    gradients, back, losses = Graph(nodes).pulled()
    with simulate(2):
        elsewhere = Graph(nodes, PLACES).pulled()
    for expected, actual in zip(gradients, elsewhere[0], strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)
    np.testing.assert_allclose(elsewhere[1], back, atol=1e-12)
    assert elsewhere[2] == losses
