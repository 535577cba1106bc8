"""Rows of different length in NumPy: each batch is padded to its own longest row, on simulated devices too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss, EvalPhase, FeatureSet, ModelGraph, ModelNode, Optimizer, Pad, TrainPhase
from anyaccel.adapter import VjpResult
from anyaccel.data import SimpleSampler
from anyaccel.errors import ColumnError, NaNWarning, OutOfMemoryError
from anyaccel.experiment import Experiment
from anyaccel.numpy_backend import Module

RANDOM = np.random.default_rng(0)
ROWS = [RANDOM.normal(size=(n, 3)).astype("float32") for n in RANDOM.integers(1, 12, size=45)]
Y = np.array([[row.sum()] for row in ROWS], "float32")
MSE = AppliedLoss("mse", on="net")
SAMPLER = SimpleSampler(8, shuffle=True, seed=3)
EPOCHS, RATE = 3, 0.1


class Mean(Module):
    """A weighted mean over all places of a row [length, 3], also padded ones."""

    dtype = "float32"

    def __init__(self) -> None:
        super().__init__()
        self.parameters["w"] = np.full((3, 1), 0.5, "float32")
        self.shapes: list[tuple[int, ...]] = []

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,) = inputs
        self.shapes.append(tuple(x.shape))
        mean = x.mean(axis=1)

        def pullback(cotangents: Any) -> Any:
            return {"w": mean.T @ cotangents[0]}, (None,)

        return VjpResult((mean @ values["w"],), pullback)


def made(rows: Any = ROWS, **pad: Any) -> FeatureSet:
    return FeatureSet.from_dict("d", {"x": rows, "y": Y[: len(rows)]}, ["x"], ["y"], pad={"x": Pad(**pad)})


def graph_of(data: FeatureSet) -> ModelGraph:
    return ModelGraph([ModelNode("net", Mean(), data.reference())], Optimizer("sgd", lr=RATE))


def run(graph: ModelGraph, phase: Any) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


def padded(rows: Any, value: float, multiple_of: int = 1) -> np.ndarray:
    width = -(-max(len(ROWS[row]) for row in rows) // multiple_of) * multiple_of
    out = np.full((len(rows), width, 3), value, "float32")
    for i, row in enumerate(rows):
        out[i, : len(ROWS[row])] = ROWS[row]
    return out


def by_hand(value: float = 0.0, multiple_of: int = 1) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    w, shapes = np.full((3, 1), 0.5, "float32"), []
    for epoch in range(EPOCHS):
        order = SAMPLER.order(len(ROWS), epoch)
        for rows in np.split(order, range(8, len(order), 8)):
            x = padded(rows, value, multiple_of)
            shapes.append(x.shape)
            mean = x.mean(axis=1)
            w = w - RATE * mean.T @ (2 * (mean @ w - Y[rows]) / len(rows))
    return w, shapes


@pytest.mark.parametrize(("value", "multiple_of"), [(0.0, 1), (2.5, 4)])
@pytest.mark.parametrize("residency", ["auto", "streamed"])
def test_each_batch_is_as_long_as_its_longest_row(value: float, multiple_of: int, residency: str) -> None:
    graph = graph_of(made(value=value, multiple_of=multiple_of))
    graph.build()
    net = graph["net"].model
    net.shapes.clear()
    run(graph, TrainPhase("t", data="all", losses=MSE, sampler=SAMPLER, epochs=EPOCHS, residency=residency))
    w, shapes = by_hand(value, multiple_of)
    np.testing.assert_allclose(net.parameters["w"], w, rtol=1e-5)
    assert [shape for shape in net.shapes if shape in shapes][-len(shapes) :] == shapes


def test_copies_that_come_late_have_the_rows_of_their_batch(sims: Any) -> None:
    on = {"accelerator": "sim:0", "final_device": "cpu"}
    graph = graph_of(made())
    run(graph, TrainPhase("t", data="all", losses=MSE, sampler=SAMPLER, epochs=EPOCHS, **on))
    np.testing.assert_allclose(graph["net"].model.parameters["w"], by_hand()[0], rtol=1e-5)


class Full(Mean):
    """Has room for four rows in training."""

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        if train and len(inputs[0]) > 4:
            raise OutOfMemoryError("no room", available="")
        return super().apply(values, inputs, train=train, key=key)


def test_parts_of_a_batch_that_does_not_fit_have_the_length_of_the_batch() -> None:
    data = made()
    graph = ModelGraph([ModelNode("net", Full(), data.reference())], Optimizer("sgd", lr=RATE))
    results = run(graph, TrainPhase("t", data="all", losses=MSE, sampler=SAMPLER, epochs=EPOCHS))
    assert any(event.kind == "memory" for event in results.events)
    np.testing.assert_allclose(graph["net"].model.parameters["w"], by_hand()[0], rtol=1e-5)


def test_splits_and_views_take_their_own_rows() -> None:
    data = made()
    data.add_splits({"some": [4, 7, 1, 30, 2]})
    graph = graph_of(data)
    results = run(graph, EvalPhase("e", data="some", batch_size=2, losses=MSE))
    parts = [padded(rows, 0).mean(axis=1) @ np.full((3, 1), 0.5, "float32") for rows in ([4, 7], [1, 30], [2])]
    np.testing.assert_allclose(results.prediction("net"), np.concatenate(parts), rtol=1e-5)


def test_rows_without_entries_are_padded() -> None:
    rows = [*ROWS[:5], np.empty((0, 3), "float32")]
    results = run(graph_of(made(rows)), EvalPhase("e", data="all", batch_size=1))
    assert results.prediction("net")[-1] == 0.0


def test_nan_in_rows_is_warned_of() -> None:
    rows = [row.copy() for row in ROWS]
    rows[3][0, 0] = np.nan
    with pytest.warns(NaNWarning, match="features 'x' hold NaN in 1 of 45 rows"):
        run(graph_of(made(rows)), TrainPhase("t", data="all", losses=MSE, on_nan="warn"))


def test_numbers_that_are_too_large_are_refused() -> None:
    rows = [row.astype("float64") * 1e300 for row in ROWS]
    with pytest.raises(ColumnError, match="'x' is loaded as float32: row 0 holds"):
        run(graph_of(made(rows)), EvalPhase("e", data="all"))


def test_the_plan_and_other_phases_take_columns_as_long_as_the_longest_row() -> None:
    data = made()
    plan = Experiment("e", graph_of(data), progress="none").plan(TrainPhase("t", data="all", losses=MSE))
    (column, _) = plan.columns
    assert f"load  d.x -> numpy cpu:0: float32[<={max(map(len, ROWS))}, 3]" in str(plan)
    assert column.ragged and str(column.spec) == f"float32[{max(map(len, ROWS))}, 3]"
