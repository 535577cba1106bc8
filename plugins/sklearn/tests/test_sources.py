"""Sources of batches: a fit reads them into memory, and estimators that learn refuse them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.phases import TrainPhase
from anyaccel_sklearn import FitPhase

ROWS = 50


_DRAW = np.random.default_rng(0)


COLUMNS = {
    "a": _DRAW.normal(size=(ROWS, 3)).astype("float32"),
    "b": _DRAW.normal(size=ROWS),  # float64, a scalar
    "k": _DRAW.integers(0, 9, ROWS).astype("int32"),
    "y": _DRAW.normal(size=(ROWS, 1)),
    "c": _DRAW.integers(0, 3, ROWS),
    "id": np.arange(ROWS),
}


FEATURES, TARGETS = ("a", "b", "k"), ("y", "c")


def table(label: str = "data", **columns: Any) -> FeatureSet:
    return FeatureSet.from_dict(label, {**COLUMNS, **columns}, FEATURES, TARGETS, ["id"])


def cut(start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: column[start:stop] for name, column in COLUMNS.items()}


def batches(size: int = 8) -> list[dict[str, np.ndarray]]:
    return [cut(start, start + size) for start in range(0, ROWS, size)]


class Numbered:
    """A map-style data set."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.read = rows, list[int]()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.read.append(row)
        return {name: column[row] for name, column in COLUMNS.items()}


def run(graph: ModelGraph, *phases: Any) -> Any:
    return Experiment("e", graph, progress="none").run(*phases)[-1]


def test_a_fit_over_a_source() -> None:
    class Mean:
        def fit(self, x: np.ndarray, y: np.ndarray) -> None:
            self.seen = (x.sum(), y.sum(), len(x))

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x[:, :1]

    seen = []
    for data in (table(), batches(), Numbered()):
        mean = Mean()
        node = ModelNode("net", mean, table().reference(["a"], ["y"]))
        run(ModelGraph([node]), FitPhase("f", data=data))
        seen.append(mean.seen)
    assert seen[0] == seen[1] == seen[2]


class Learner:
    def partial_fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.seen = len(x)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x[:, :1]


@pytest.mark.parametrize("data", [batches(), Numbered()], ids=["batches", "items"])
def test_estimators_do_not_learn_from_a_source(data: Any) -> None:
    node = ModelNode("est", Learner(), table().reference(["a"], ["y"]))
    with pytest.raises(PhaseError, match=r"but estimators cannot learn from a source.*partial_fit: est"):
        run(ModelGraph([node]), TrainPhase("t", data=data))
