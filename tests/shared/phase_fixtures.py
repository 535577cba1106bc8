"""Fixtures of tests of phases: the NumPy backend and no plugin, simulated devices, small data, and a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anyaccel import registry as registry_module
from anyaccel.data import FeatureSet
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend, Simulation, simulate
from anyaccel.registry import Registry
from anyaccel.specs import Optimizer


@pytest.fixture(autouse=True)
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The process's registry exchanged for one with the built-in backend, to which a test may register plugins."""
    registry = Registry(NumpyBackend, lambda: ())
    monkeypatch.setattr(registry_module, "_registry", [registry])
    return registry


@pytest.fixture
def sims() -> Iterator[Simulation]:
    """Three simulated devices."""
    with simulate(3) as simulation:
        yield simulation


def table_of(n: int = 24, label: str = "data", *, seed: int = 0, dtype: str = "float32") -> FeatureSet:
    """Features `x` [3], targets `y` [1] (linear in x, with noise) and class indices `c` of three, tags `id`."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3))
    y = x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * draw.normal(size=(n, 1)) + 0.3
    columns = {"x": x.astype(dtype), "y": y.astype(dtype), "c": draw.integers(0, 3, n), "id": np.arange(n)}
    return FeatureSet.from_dict(label, columns, ["x"], ["y", "c"], ["id"])


@pytest.fixture
def table() -> Callable[..., FeatureSet]:
    """`table(n, label, seed=, dtype=)` is a feature set; see `table_of`."""
    return table_of


@pytest.fixture
def data() -> FeatureSet:
    """24 rows with the splits `train` (16 rows) and `val` (8 rows)."""
    result = table_of()
    result.add_splits({"train": np.arange(16), "val": np.arange(16, 24)})
    return result


@pytest.fixture
def line(data: FeatureSet) -> Callable[..., ModelGraph]:
    """`line(model=..., optimizer=...)` is a graph of one node `net` on the features and the target `y`."""

    def make(model: Any = None, optimizer: Any = None, source: FeatureSet = data, **settings: Any) -> ModelGraph:
        node = ModelNode("net", model or Dense(1), source.reference(["x"], ["y"]), **settings)
        return ModelGraph([node], optimizer or Optimizer("adam", lr=0.05))

    return make
