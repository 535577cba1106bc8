"""Broken plugins beside an estimator: each is asked whether it is theirs, and it is fitted all the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from broken_plugins import broken_plugins

import anyaccel as aa
from anyaccel import registry as registry_module
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry

BROKEN = broken_plugins("numpy")
del BROKEN["brk_conflict"]  # numpy is core's own, so that this is `brk_shadow`


class Mean:
    """An estimator: an object of no framework."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.mean = y.mean()

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x[:, :1] * 0 + self.mean


def mse() -> float:
    """Fit an estimator, and evaluate it."""
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x.sum(1, keepdims=True)}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("mean", Mean(), data.reference(["x"], ["y"]))])
    ours = aa.Experiment("f", graph, progress="none")
    fit, judged = ours.run(aa.FitPhase("fit", data="all"), aa.EvalPhase("eval", data="all", metrics=["mse"]))
    assert [fitted.node for fitted in fit.fitted] == ["mean"]
    return judged.metrics["mse"]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """`use(name, ...)`: the registry of this process has NumPy and these plugins."""

    def exchange(*names: str) -> Registry:
        registry = Registry(NumpyBackend, lambda: [BROKEN[name][0] for name in names])
        monkeypatch.setattr(registry_module, "_registry", [registry])
        return registry

    monkeypatch.delenv("ANYACCEL_PLUGINS", raising=False)
    return exchange


@pytest.mark.parametrize("names", [*((name,) for name in BROKEN), tuple(BROKEN)], ids=[*BROKEN, "all"])
def test_an_estimator_is_fitted_beside_broken_plugins(names: tuple[str, ...], use: Callable[..., Registry]) -> None:
    use()
    expected = mse()
    registry = use(*names)
    assert registry.owners(Mean()) == ()
    assert mse() == expected
    assert {plugin.name for plugin in registry.plugins} == {"numpy", *names}
