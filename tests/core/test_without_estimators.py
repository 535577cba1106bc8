"""Without anyaccel-sklearn: whatever needs it is one error that names it, and nothing else asks for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import distributions, extensions
from anyaccel.errors import MissingDistributionError
from anyaccel.phases import Phase
from anyaccel.results import PhaseResults
from anyaccel.results.base import KINDS

HOME = "anyaccel-sklearn"
HERE = Path(__file__).parent


class Absent:
    """Finds that the package is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "anyaccel_sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture(autouse=True)
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(group: str, installed: Callable[[str], Any] = distributions.entry_points) -> tuple[Any, ...]:
        return tuple(entry for entry in installed(group) if not entry.value.startswith("anyaccel_sklearn"))

    for module in (distributions, extensions):
        monkeypatch.setattr(module, "entry_points", others)
    for name in ("Estimator", "FitPhase", "FitResults"):
        monkeypatch.delitem(vars(aa), name, raising=False)
    for kinds in (Phase.kinds, KINDS):
        monkeypatch.delitem(kinds, "fit", raising=False)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "anyaccel_sklearn"]
    for name in (*loaded, *(name for name in sys.modules if name.startswith("anyaccel.estimators"))):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])


class OfALibrary:
    """As scikit-learn's transformers: without `predict`."""

    __module__ = "sklearn.preprocessing"

    def fit(self, x: Any) -> None: ...


class InItsStyle:
    def fit(self, x: Any, y: Any) -> None: ...

    def predict(self, x: Any) -> Any: ...


def built(model: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": np.zeros((4, 2), "float32")}, ["x"])
    return aa.ModelGraph([aa.ModelNode("clf", model, data.reference())]).build()


def test_an_estimator_as_a_node_names_the_distribution() -> None:
    for model in (OfALibrary(), InItsStyle()):
        with pytest.raises(MissingDistributionError) as caught:
            built(model)
        what = f"node 'clf': what fits and predicts with a {type(model).__name__}"
        assert caught.value.problem == f"{what} needs {HOME}, which is not installed"
        assert caught.value.hint.endswith("pip install ./plugins/sklearn") or "plugins/sklearn" in caught.value.hint


def test_objects_of_no_framework_are_refused_as_before() -> None:
    with pytest.raises(aa.errors.NoBackendError):
        built(object())


@pytest.mark.parametrize("name", ["Estimator", "FitPhase", "FitResults"])
def test_each_name_says_where_it_is(name: str) -> None:
    with pytest.raises(MissingDistributionError, match=rf"^anyaccel\.{name} needs {HOME}, which is not installed"):
        getattr(aa, name)


@pytest.mark.parametrize(
    ("module", "name"), [("phases", "FitPhase"), ("results", "FitResults"), ("numpy_backend", "Estimator")]
)
def test_old_places_say_where_it_is(module: str, name: str) -> None:
    with pytest.raises(MissingDistributionError, match=rf"^anyaccel\.{name} needs {HOME}"):
        getattr(importlib.import_module(f"anyaccel.{module}"), name)
    with pytest.raises(AttributeError, match=rf"module 'anyaccel\.{module}' has no attribute 'Nothing'"):
        importlib.import_module(f"anyaccel.{module}").Nothing  # noqa: B018


def test_an_old_module_says_where_it_is() -> None:
    with pytest.raises(ImportError, match=rf"^anyaccel\.estimators needs {HOME}, which is not installed"):
        importlib.import_module("anyaccel.estimators")


def test_a_saved_phase_says_what_it_needs() -> None:
    with pytest.raises(MissingDistributionError, match=rf"^the saved phase\.fit needs {HOME}"):
        Phase.from_config({"type": "fit", "label": "fit", "data": "train"})


def test_saved_results_say_what_they_need() -> None:
    with pytest.raises(MissingDistributionError, match=rf"^the saved results\.fit needs {HOME}"):
        PhaseResults.load(HERE / "saved_0_1/experiment/results-0")
    with pytest.raises(MissingDistributionError, match=rf"needs {HOME}, which is not installed"):
        aa.Experiment.load(HERE / "saved_0_1/experiment/experiment", models={"means": InItsStyle()})
