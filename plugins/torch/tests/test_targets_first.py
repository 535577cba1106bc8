"""Custom losses whose parameters are named as in Keras, and models that were trained by an optimizer of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
DATA = {"x": X, "y": X[:, :1]}


def quantile(outputs: Any, targets: Any) -> Any:
    error = targets - outputs
    return torch.maximum(0.9 * error, -0.1 * error).mean()


def quantile_of_keras(y_true: Any, y_pred: Any) -> Any:
    return quantile(y_pred, y_true)


def quantile_of_y(y: Any, y_hat: Any) -> Any:
    return quantile(y_hat, y)


class Quantile(nn.Module):
    def forward(self, y_true: Any, y_pred: Any) -> Any:
        return quantile(y_pred, y_true)


def losses_of(loss: Any, **settings: Any) -> np.ndarray:
    torch.manual_seed(0)
    order = {"sampler": aa.SimpleSampler(16), "optimizer": "adam", "epochs": 2, "progress": "none"}
    losses: np.ndarray = aa.fit(nn.Linear(3, 1), DATA, target="y", loss=loss, **order, **settings).results.loss
    return losses


@pytest.mark.parametrize("loss", [quantile_of_keras, quantile_of_y, Quantile(), aa.Loss(Quantile)])
def test_a_loss_of_y_true_and_y_pred_receives_the_targets_first(loss: Any) -> None:
    np.testing.assert_array_equal(losses_of(loss), losses_of(quantile))
    swapped = losses_of(lambda outputs, targets: quantile(targets, outputs))
    assert not np.allclose(losses_of(loss), swapped)


@pytest.mark.parametrize("inputs", [["targets", "outputs"], ["data.y", "outputs"]])
def test_inputs_that_begin_with_the_targets_are_passed_in_this_order(inputs: list[str]) -> None:
    losses = []
    for applied in (aa.AppliedLoss(quantile), aa.AppliedLoss(quantile_of_keras, inputs=inputs)):
        torch.manual_seed(0)
        data = aa.FeatureSet.from_dict("data", DATA, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", nn.Linear(3, 1), data.reference())], "adam")
        phase = aa.TrainPhase("t", data="all", losses=[applied], epochs=2)
        losses.append(graph.run(phase, progress="none").loss)
    np.testing.assert_array_equal(*losses)


def test_a_model_trained_by_an_optimizer_of_torch_loads_to_predict(tmp_path: Path) -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters())
    fitted = aa.fit(net, DATA, target="y", loss="mse", optimizer=optimizer, epochs=1, progress="none")
    assert fitted.model is net
    fitted.save(tmp_path / "model")
    loaded = aa.load(tmp_path / "model", models={"model": nn.Linear(3, 1)})
    np.testing.assert_array_equal(loaded.predict(DATA), fitted.predict(DATA))
    rows = aa.FeatureSet.from_dict("data", DATA, ["x"], ["y"])
    phase = aa.TrainPhase("more", data=rows, losses=[aa.AppliedLoss("mse")], epochs=1)
    with pytest.raises(aa.errors.AnyaccelError, match="optimizer"):
        loaded.experiment.run_phase(phase)
    with pytest.raises(aa.errors.ConfigError, match="has no configuration"):
        aa.ModelGraph.load(tmp_path / "model", models={"model": nn.Linear(3, 1)})
