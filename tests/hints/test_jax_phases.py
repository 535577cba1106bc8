"""Hints of phases that models of JAX alone reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, ModelGraph, ModelNode, TrainPhase

pytest.importorskip("jax")
linen = pytest.importorskip("flax.linen")

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
CLASSES = np.arange(24) % 3
ALPHA = 1.0


def run(targets: Any, loss: Any = "cross_entropy", width: int = 3, **settings: Any) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": targets}, ["x"], ["y"])
    net = ModelGraph([ModelNode("net", linen.Dense(width), data.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = TrainPhase("train", data="all", losses=[AppliedLoss(loss, on="net")], batch_size=8, **settings)
    return net.run(phase, progress="none")


def test_integers_that_32_bits_do_not_hold(hint: Any) -> None:
    values = CLASSES + 2**40
    with hint("number the values from 0: np.unique(values, return_inverse=True)"):
        run(values)
    _, numbers = np.unique(values, return_inverse=True)
    np.testing.assert_array_equal(run(numbers).loss, run(CLASSES).loss)


def scaled(outputs: Any, targets: Any) -> Any:
    return ALPHA * ((outputs - targets) ** 2).mean()


def test_values_that_callbacks_change(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def halving(hook: str) -> aa.Callback:
        def halve(self: Any, run: Any) -> None:
            globals()["ALPHA"] *= 0.5

        return type("Halving", (aa.Callback,), {hook: halve})()

    monkeypatch.setitem(globals(), "ALPHA", 1.0)
    with hint("change it in epoch_start or epoch_end, or set compile='off'"):
        run(X[:, :1], scaled, 1, epochs=2, callbacks=[halving("step_end")])
    for settings in ({"callbacks": [halving("epoch_end")]}, {"callbacks": [halving("step_end")], "compile": "off"}):
        assert run(X[:, :1], scaled, 1, epochs=2, **settings).loss.size == 2
    assert run(X[:, :1], scaled, 1, epochs=2, callbacks=[halving("step_end")], compile="off").loss.size
