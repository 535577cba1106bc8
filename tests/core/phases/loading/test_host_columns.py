"""Host columns: numbers that a dtype or a loss does not take are refused, from memory and from a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import BatchSource, FeatureSet, IterableSource
from anyaccel.errors import ColumnError, SourceError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import TrainPhase

Given = Callable[[dict[str, np.ndarray]], Any]


def from_memory(columns: dict[str, np.ndarray]) -> FeatureSet:
    return FeatureSet.from_dict("data", columns, ["x"], ["y"])


def from_source(columns: dict[str, np.ndarray]) -> BatchSource:
    def batches() -> Any:
        for first in range(0, 8, 4):
            yield {name: array[first : first + 4] for name, array in columns.items()}

    return IterableSource("data", batches, features="x", targets="y")


def train(given: Given, columns: Mapping[str, np.ndarray], loss: Any = "mse", **settings: Any) -> Any:
    """Train on the columns, with a graph that was built for innocent numbers of the same kinds."""
    innocent = {name: np.zeros_like(array) for name, array in columns.items()}
    node = ModelNode("net", Dense(1, dtype="float32"), from_memory(innocent).reference())
    phase = TrainPhase("t", data=given(dict(columns)), losses=[AppliedLoss(loss, on="net")], sampler=4, **settings)
    return Experiment("e", ModelGraph([node], "sgd"), progress="none").run_phase(phase)


def columns_with(x: float = 1.0, y: float = 1.0, dtype: str = "float64") -> dict[str, np.ndarray]:
    columns = {"x": np.ones((8, 2), dtype), "y": np.ones((8, 1), dtype)}
    columns["x"][6, 1], columns["y"][6, 0] = x, y
    return columns


REFUSED = (ColumnError, SourceError)  # the latter says in which batch
BOTH = pytest.mark.parametrize("given", [from_memory, from_source])


@BOTH
@pytest.mark.parametrize("name", ["x", "y"])
def test_numbers_that_are_too_large_for_the_dtype_of_the_model_are_refused(given: Given, name: str) -> None:
    with pytest.raises(
        REFUSED,
        match=rf"column '{name}' is loaded as float32: row [26] holds 1e\+300, which would be infinite"
        r"; float32 holds numbers up to 3\.4.* Hint: scale the column",
    ):
        train(given, columns_with(**{name: 1e300}))


@BOTH
@pytest.mark.filterwarnings("ignore::anyaccel.errors.NaNWarning")
def test_numbers_that_are_infinite_or_round_are_loaded(given: Given) -> None:
    assert train(given, columns_with(x=0.1)).loss.size
    with np.errstate(all="ignore"):
        assert train(given, columns_with(x=np.inf)).loss.size


@BOTH
@pytest.mark.parametrize("target", [-1.0, 1.5])
def test_targets_of_binary_cross_entropy_are_from_0_to_1(given: Given, target: float) -> None:
    with pytest.raises(
        REFUSED, match=rf"data\.y has the target {target}; binary_cross_entropy .* Hint: write 0 for no"
    ):
        train(given, columns_with(y=target, dtype="float32"), "binary_cross_entropy")
    assert train(given, columns_with(y=0.25, dtype="float32"), "binary_cross_entropy").loss.size


class Ignores:
    """A custom loss with a class that it leaves out."""

    ignore_index = -100

    def __call__(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return float(np.sum(outputs)), float(len(outputs)), (np.ones_like(outputs), None)


@BOTH
def test_a_class_that_a_loss_leaves_out_is_refused_where_batches_are_accumulated(given: Given) -> None:
    columns = {"x": np.ones((8, 2), "float32"), "y": np.zeros(8, "int64")}
    columns["y"][6] = -100
    with pytest.raises(REFUSED, match=r"data\.y has targets of -100, which the loss leaves out .* Hint: leave acc"):
        train(given, columns, Ignores(), accumulate=2)
    assert train(given, columns, Ignores()).loss.size
    columns["y"][6] = 0
    assert train(given, columns, Ignores(), accumulate=2).loss.size
