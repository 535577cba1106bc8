"""Estimators take rows of one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyaccel import EvalPhase, FeatureSet, FitPhase, ModelGraph, ModelNode, Pad
from anyaccel.errors import GraphError
from anyaccel.experiment import Experiment

RANDOM = np.random.default_rng(0)


ROWS = [RANDOM.normal(size=(n, 3)).astype("float32") for n in RANDOM.integers(1, 12, size=45)]


Y = np.array([[row.sum()] for row in ROWS], "float32")


def made(rows: Any = ROWS, **pad: Any) -> FeatureSet:
    return FeatureSet.from_dict("d", {"x": rows, "y": Y[: len(rows)]}, ["x"], ["y"], pad={"x": Pad(**pad)})


def run(graph: ModelGraph, phase: Any) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


class Totals:
    """Predicts the sum of a row."""

    def fit(self, x: Any, y: Any) -> Totals:
        return self

    def predict(self, x: Any) -> Any:
        return x.sum(axis=1)


def test_estimators_take_rows_of_one_length() -> None:
    rows = [row[:, 0] for row in ROWS]
    longest = max(map(len, rows))
    with pytest.raises(GraphError, match=rf"'net': an estimator needs rows of one length.*Pad\(0, length={longest}\)"):
        ModelGraph([ModelNode("net", Totals(), made(rows).reference())]).build()
    graph = ModelGraph([ModelNode("net", Totals(), made(rows, length=longest).reference())])
    run(graph, FitPhase("f", data="all"))
    predicted = run(graph, EvalPhase("e", data="all", batch_size=7)).prediction("net")
    np.testing.assert_allclose(predicted, [row.sum() for row in rows], rtol=1e-5)
