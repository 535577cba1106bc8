"""Host columns: numbers that a dtype or a loss does not take are refused, from memory and from a source."""

from __future__ import annotations

import warnings
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

    return IterableSource("data", batches, features="x", target="y")


def train(given: Given, columns: Mapping[str, np.ndarray], loss: Any = "mse", **settings: Any) -> Any:
    """Train on the columns, with a graph that was built for innocent numbers of the same kinds."""
    innocent = {name: np.zeros_like(array) for name, array in columns.items()}
    node = ModelNode("net", Dense(1, dtype="float32"), from_memory(innocent).reference())
    phase = TrainPhase("t", data=given(dict(columns)), losses=[AppliedLoss(loss, on="net")], batch_size=4, **settings)
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


def of_classes(probabilities: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.ones((8, 2)), "y": probabilities}


def train_classes(given: Given, probabilities: np.ndarray) -> Any:
    columns = of_classes(probabilities)
    innocent = from_memory(of_classes(np.full((8, 3), 1 / 3)))
    node = ModelNode("net", Dense(3, dtype="float32"), innocent.reference())
    phase = TrainPhase("t", data=given(columns), losses=[AppliedLoss("cross_entropy", on="net")], batch_size=4)
    return Experiment("e", ModelGraph([node], "sgd"), progress="none").run_phase(phase)


@BOTH
@pytest.mark.parametrize("wrong", [-2.0, 5.0, np.inf])
def test_probabilities_of_classes_are_from_0_to_1(given: Given, wrong: float) -> None:
    """The loss of -2 was -6.99, without a word; issue 26."""
    probabilities = np.full((8, 3), 1 / 3)
    probabilities[6, 1] = wrong
    with pytest.raises(
        REFUSED,
        match=rf"has the target {wrong}; cross_entropy takes probabilities of classes from 0 to 1\. "
        "Hint: pass probabilities that add up to 1, or integer class indices",
    ):
        train_classes(given, probabilities)
    probabilities[6, 1] = 1 / 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(train_classes(given, probabilities).loss[0])


def test_probabilities_of_classes_that_do_not_add_up_to_1_are_warned_of() -> None:
    counted = np.tile([[1.0, 0.5, 0.5]], (8, 1))
    with pytest.warns(UserWarning, match=r"add up to 2 in row 0, and not to 1 in 8 places.*divide them by their sum"):
        train_classes(from_memory, counted)
    left_out = np.tile([[0.25, 0.25, 0.5], [0.0, 0.0, 0.0]], (4, 1))  # zeros: rows that do not count
    rounded = np.full((8, 3), np.float16(1 / 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for probabilities in (counted / 2, left_out, rounded.astype("float64")):
            train_classes(from_memory, probabilities)
