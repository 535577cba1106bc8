"""Failures of files, memory and packages, and warnings that are errors, are never told as those of a model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import GraphError
from anyaccel.numpy_backend import Dense


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A folder that nobody can make, root included: a file is in its place."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "cache"


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).standard_normal((12, 4)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])


class Caching(Dense):
    """A layer that keeps something when it is built."""

    def __init__(self, keep: Any) -> None:
        super().__init__(1)
        self.keep = keep

    def build(self, *arguments: Any) -> None:
        self.keep()
        super().build(*arguments)


def warn() -> None:
    warnings.warn("the cache is cold", UserWarning, stacklevel=2)


def out_of_memory() -> None:
    raise MemoryError("8 GiB")


def import_missing() -> None:
    import a_package_that_is_not_installed  # noqa: F401


@pytest.mark.parametrize("framework", [None, "numpy"])
@pytest.mark.parametrize(
    ("keep", "kind", "message"),
    [
        (warn, UserWarning, "the cache is cold"),  # warnings are errors in these tests
        (out_of_memory, MemoryError, "8 GiB"),
        (import_missing, ModuleNotFoundError, "a_package_that_is_not_installed"),
    ],
)
def test_a_failure_that_is_not_the_models_keeps_its_type(keep: Any, kind: Any, message: str, framework: Any) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", Caching(keep), data().reference(), framework=framework)], "adam")
    with pytest.raises(kind, match=message) as caught:
        graph.build()
    assert not isinstance(caught.value, GraphError)
    assert "node 'net'" in caught.value.__notes__[-1]


def test_a_folder_that_cannot_be_written_is_named_by_the_error_of_the_system(unwritable: Path) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", Caching(unwritable.mkdir), data().reference())], "adam")
    with pytest.raises(NotADirectoryError) as caught:
        graph.build()
    assert caught.value.filename == str(unwritable)
    assert "node 'net'" in caught.value.__notes__[-1]


def test_so_are_those_of_metrics_and_functions_for_weights(unwritable: Path) -> None:
    def metric(outputs: Any, targets: Any) -> float:
        unwritable.mkdir()
        return 0.0

    with pytest.raises(NotADirectoryError) as caught:
        aa.fit(aa.SequentialMLP(1), data(), loss="mse", metrics=[metric], validation=0.5, epochs=1)
    assert "metric 'metric'" in caught.value.__notes__[-1]

    graph = aa.fit(aa.SequentialMLP(1), data(), loss="mse", epochs=1).graph
    with pytest.raises(NotADirectoryError) as caught:
        graph.load_weights({"w": np.zeros(3)}, names=lambda name: str(unwritable.mkdir()))
    assert "names=" in caught.value.__notes__[-1]
