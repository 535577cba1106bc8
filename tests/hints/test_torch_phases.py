"""Hints of steps that are functions of the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, EvalPhase, ModelGraph, ModelNode, TrainPhase

torch = pytest.importorskip("torch")

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = AppliedLoss("mse", on="net")


def data() -> aa.FeatureSet:
    made = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    made.add_splits({"train": range(16), "val": range(16, 24)})
    return made


def step(models: Any, batch: Any, optimizers: Any) -> Any:
    """Trains nothing."""
    return {"loss": 0.0}


def run(phase: Any) -> Any:
    node = ModelNode("net", torch.nn.Linear(3, 1), data().reference())
    return ModelGraph([node], "sgd").run(phase, progress="none")


def test_steps_of_users(hint: Any) -> None:
    with hint("write step=FUNCTION"):
        TrainPhase("train", data="train", step="step")
    assert run(TrainPhase("train", data="train", step=step)).loss.size
    with hint("leave losses out; those of a validation belong to it: validation=EvalPhase(..., losses=[...])"):
        TrainPhase("train", data="train", step=step, losses=[MSE])
    validation = EvalPhase("val", data="val", losses=[MSE])
    assert run(TrainPhase("train", data="train", step=step, validation=validation)).figure("val_loss").size
    with hint("leave precision out, and cast in the step, as by the framework's own autocast"):
        TrainPhase("train", data="train", step=step, precision="bf16-mixed")
    with hint("leave accumulate out, and add up gradients in the step"):
        TrainPhase("train", data="train", step=step, accumulate=2)
    with hint("leave compile out, and compile what pays with your framework's own compiler"):
        TrainPhase("train", data="train", step=step, compile="steps")
    # without precision, accumulate and compile
    with hint("give it as {}, and validate with TrainPhase(validation=...)"):
        run(TrainPhase("train", data="train", step=lambda *_: {"val_loss": 1.0}))
    given = TrainPhase("train", data="train", step=lambda *_: {"loss": 1.0}, validation=validation)
    assert run(given).figure("val_loss").size
    with hint("give a mean over the batch, as in {'loss': loss}"):
        run(TrainPhase("train", data="train", step=lambda *_: {"loss": X}))
    loss = X.mean()
    assert run(TrainPhase("train", data="train", step=lambda *_: {"loss": loss})).loss[0] == pytest.approx(float(loss))
