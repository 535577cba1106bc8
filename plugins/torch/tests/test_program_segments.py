"""Random small segments against the same computation written plainly in torch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch.backend import TorchBackend

CPU = Device("cpu")
WIDTH, ROWS, BATCH, STEPS = 3, 20, 5, 3
Node = tuple[str, tuple[int, ...], bool]
"""Kind, which earlier values it reads, and whether it is trained."""
Term = tuple[int, str, float]
"""The node that a loss is on, its name and its weight."""


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["linear", "concat"]))
        count = 1 if kind == "linear" else 2
        sources = tuple(draw(st.integers(0, i)) for _ in range(count))
        nodes.append((kind, sources, draw(st.booleans())))
    return nodes


def widths(nodes: list[Node]) -> list[int]:
    result = [WIDTH]
    for kind, sources, _ in nodes:
        result.append(WIDTH if kind == "linear" else sum(result[source] for source in sources))
    return result


def segment_of(nodes: list[Node], models: list[Any], terms: list[Term], optimizers: list[Any]) -> Segment:
    names = ["x", *[f"n{i}" for i in range(len(nodes))]]
    operations = tuple(
        Operation(names[i + 1], models[i], tuple(names[s] for s in sources), (names[i + 1],), CPU, trained)
        for i, (_, sources, trained) in enumerate(nodes)
    )
    trained = [names[i + 1] for i, node in enumerate(nodes) if node[2] and node[0] == "linear"]
    width = widths(nodes)
    inputs = {"x": (TensorSpec((WIDTH,), "float64"), CPU)}
    inputs |= {f"y{j}": (TensorSpec((width[on + 1],), "float64"), CPU) for j, (on, _, _) in enumerate(terms)}
    losses = tuple(
        LossTerm(f"l{j}", names[on + 1], Loss(name), (names[on + 1], f"y{j}"), CPU, weight)
        for j, (on, name, weight) in enumerate(terms)
    )
    groups = tuple(ParameterGroup(f"g{k}", optimizers[k], tuple(trained[k::2])) for k in range(2))
    return Segment("s", operations, inputs, (names[-1],), losses, groups)


def plain_values(nodes: list[Node], models: list[Any], x: Tensor) -> list[Tensor]:
    values = [x]
    for (kind, sources, _), model in zip(nodes, models, strict=True):
        read = [values[source] for source in sources]
        values.append(model(read[0]) if kind == "linear" else torch.cat(read, 1))
    return values


def plain_steps(
    nodes: list[Node],
    models: list[Any],
    terms: list[Term],
    recipes: list[Any],
    x: Tensor,
    ys: list[Tensor],
) -> list[list[float]]:
    trained = [model for model, node in zip(models, nodes, strict=True) if node[2] and node[0] == "linear"]
    torch_optimizers = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    }
    optimizers = []
    for k, recipe in enumerate(recipes):
        parameters = [p for model in trained[k::2] for p in model.parameters()]
        optimizers += [torch_optimizers[recipe.name](parameters)] if parameters else []
    kept = []
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        values = plain_values(nodes, models, x[rows])
        result = [
            {"mse": F.mse_loss, "mae": F.l1_loss}[name](values[on + 1], y[rows])
            for (on, name, _), y in zip(terms, ys, strict=True)
        ]
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(weight * loss for loss, (_, _, weight) in zip(result, terms, strict=True)).backward()
        for optimizer in optimizers:
            optimizer.step()
        kept.append([loss.item() for loss in result])
    return kept


def reaches(nodes: list[Node], on: int) -> bool:
    """Whether a trained node is on the way to node `on`."""
    kind, sources, trained = nodes[on]
    return (kind == "linear" and trained) or any(source and reaches(nodes, source - 1) for source in sources)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Node], list[Term], list[Optimizer]]:
    nodes = draw(graphs())
    term = st.tuples(st.integers(0, len(nodes) - 1), st.sampled_from(["mse", "mae"]), st.floats(0.1, 2))
    terms = draw(st.lists(term, min_size=1, max_size=3))
    assume(any(reaches(nodes, on) for on, _, _ in terms))
    return nodes, terms, [Optimizer(draw(st.sampled_from(["adam", "momentum"])), lr=0.01) for _ in range(2)]


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(problem=problems())
def test_segment_equals_plain_torch(problem: tuple[list[Node], list[Term], list[Optimizer]]) -> None:
    nodes, terms, recipes = problem
    draw = torch.Generator().manual_seed(3)
    width = widths(nodes)
    models = [nn.Linear(width[sources[0]], WIDTH).double() if kind == "linear" else None for kind, sources, _ in nodes]
    plain = copy.deepcopy(models)
    x = torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)
    ys = [torch.randn(ROWS, width[on + 1], generator=draw, dtype=torch.float64) for on, _, _ in terms]
    program = TorchBackend().build(segment_of(nodes, models, terms, recipes))
    result = program.train_steps([x, *ys], [torch.arange(ROWS)] * (1 + len(ys)), 0, STEPS, BATCH)
    expected = plain_steps(nodes, plain, terms, recipes, x, ys)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))
    (out,), losses = program.forward([x, *ys])
    torch.testing.assert_close(out, plain_values(nodes, plain, x)[-1].detach())
    assert list(losses) == [f"l{j}" for j in range(len(terms))]
    for actual, reference in zip(models, plain, strict=True):
        for a, b in zip(
            actual.parameters() if actual else [], reference.parameters() if reference else [], strict=True
        ):
            torch.testing.assert_close(a, b)
