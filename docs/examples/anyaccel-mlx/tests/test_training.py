"""Whole experiments, against the reference in NumPy and together with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anyaccel_mlx import SequentialMLP

import anyaccel as aa
from anyaccel.numpy_backend import SequentialMLP as ReferenceMLP

X = np.random.default_rng(0).normal(size=(320, 10)).astype("float32")


def trained(body: Any, head: Any, accelerator: str = "cpu") -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses and state after fifty steps of Adam: five epochs of ten batches."""
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1] * X[:, 1:2]}, ["x"], ["y"])
    graph = aa.ModelGraph(
        [aa.ModelNode("body", body, data.reference(target=[])), aa.ModelNode("head", head, "body")],
        optimizer=aa.Optimizer("adam", lr=1e-2, clip_norm=1.0),
        seed=3,
    )
    phase = aa.TrainPhase(
        "train",
        data=data,
        sampler=aa.SimpleSampler(32, shuffle=True, seed=5),
        losses=[aa.AppliedLoss("mse", on="head", inputs=["outputs", "data.y"])],
        epochs=5,
        accelerator=accelerator,
    )
    results = aa.Experiment("parity", graph, progress="none").run_phase(phase)
    return np.array(results.loss), graph.state()


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "identity"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "with a head in NumPy"])
def test_fifty_steps_of_adam_are_those_of_the_reference(activation: str, mixed: bool) -> None:
    settings: dict[str, Any] = {"output_shape": (8,), "activation": activation}
    expected, state = trained(ReferenceMLP(**settings), ReferenceMLP())
    found, own = trained(SequentialMLP(**settings), ReferenceMLP() if mixed else SequentialMLP())
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert set(own) == set(state)
    for name in state:
        np.testing.assert_allclose(own[name], state[name], rtol=2e-4, atol=2e-5, err_msg=name)
