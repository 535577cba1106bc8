"""Models in bfloat16: trained as by hand, predictions that NumPy and Arrow hold, and a saved state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import anyaccel as aa
from anyaccel.registry import registry

ml_dtypes = pytest.importorskip("ml_dtypes", reason="no framework is installed that has bfloat16")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype("float32")
Y = (RNG.random((24, 1)) < 0.5).astype("float32")
START = np.array([[0.5], [-0.25], [0.125]], "float32")


def jax_model(start: np.ndarray = START, dtype: str = "bfloat16") -> Any:
    import jax.numpy as jnp

    from anyaccel_jax import Function

    return Function(lambda p, x: x @ p["w"], {"w": jnp.asarray(start, dtype)})


def tensorflow_model(start: np.ndarray = START, dtype: str = "bfloat16") -> Any:
    import tensorflow as tf

    class Linear(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.constant(start, dtype))

        def __call__(self, x: Any) -> Any:
            return x @ self.w

    return Linear()


def torch_model(start: np.ndarray = START, dtype: str = "bfloat16") -> Any:
    import torch

    layer = torch.nn.Linear(3, start.shape[1], bias=False)
    layer.weight.data = torch.tensor(start.T)
    return layer.to(getattr(torch, dtype))


MODELS = {"jax": jax_model, "tensorflow": tensorflow_model, "torch": torch_model}


@pytest.fixture
def model(framework: str) -> Any:
    if framework not in MODELS:
        pytest.skip(f"no model in bfloat16 of {framework} here")
    return MODELS[framework]()


def experiment(model: Any, optimizer: Any = None) -> aa.Experiment:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer or aa.Optimizer("sgd", lr=0.5))
    return aa.Experiment("e", graph, progress="none")


def rounded(array: np.ndarray) -> np.ndarray:
    """In the numbers of bfloat16."""
    return array.astype(ml_dtypes.bfloat16).astype("float32")


def by_hand() -> np.ndarray:
    """The weights after an epoch, in float32 but for weights, outputs and gradients at the end of each step."""
    w, x = START, rounded(X)
    for start in range(0, 24, 8):
        rows = slice(start, start + 8)
        outputs = rounded(x[rows] @ w)
        w = rounded(w - 0.5 * rounded(x[rows].T @ rounded(2 * (outputs - Y[rows]) / 8)))
    return w


def test_a_step_rounds_as_by_hand(model: Any, framework: str) -> None:
    ours = experiment(model)
    losses = [aa.AppliedLoss("mse", on="net")]
    result = ours.run_phase(aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(8)))
    assert 0 < result.loss[0] < 1
    (weights,) = registry().computing(framework).state(ours.graph["net"].model).values()
    np.testing.assert_allclose(weights.astype("float32").reshape(3, 1), by_hand(), rtol=2e-2, atol=4e-3)


@pytest.mark.shared
def test_predictions_are_float32_in_arrays_metrics_and_tables(model: Any) -> None:
    phase = aa.EvalPhase("v", data="all", metrics=["accuracy", "roc_auc"])
    result = experiment(model).run_phase(phase)
    predicted = result.prediction("net")
    assert predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, rounded(X) @ START, rtol=1e-2, atol=1e-2)
    assert result.metrics["accuracy"] == np.mean((predicted > 0) == Y)
    pairs = [(a > b) + 0.5 * (a == b) for a in predicted[Y == 1] for b in predicted[Y == 0]]
    assert result.metrics["roc_auc"] == pytest.approx(np.mean(pairs))
    assert pa.table(result.to_arrow()).column("prediction.net").to_pylist() == predicted[:, 0].tolist()


def test_a_saved_graph_comes_back_bit_by_bit_and_goes_on(model: Any, framework: str, tmp_path: Path) -> None:
    backend, ours = registry().computing(framework), experiment(model, "adam")
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=8)
    ours.run_phase(phase)
    ours.graph.save(tmp_path / "saved")
    data = ours.graph.feature_sets["data"]
    loaded = aa.ModelGraph.load(tmp_path / "saved", models={"net": MODELS[framework]()}, feature_sets=[data])
    for _ in range(2):  # as loaded, and one phase later
        (before,), (after,) = (backend.state(graph["net"].model).values() for graph in (ours.graph, loaded))
        assert after.dtype == before.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(after.view(np.int16), before.view(np.int16))
        ours.graph.run(phase, progress="none")
        loaded.run(phase, progress="none")


@pytest.mark.shared
def test_weights_are_copied_into_bfloat16(model: Any, framework: str) -> None:
    aa.copy_weights(MODELS[framework](START * 1.37, "float32"), model)
    (copied,) = registry().computing(framework).state(model).values()
    np.testing.assert_array_equal(copied.reshape(3, 1), (START * 1.37).astype(ml_dtypes.bfloat16))


RANDOM = np.random.default_rng(26)
CLASSES = RANDOM.integers(0, 3, 24)
TARGETS = {
    "mse": RANDOM.normal(1000, 3, (24, 1)).astype("float32"),  # in 16 bits these would be rounded
    "mae": RANDOM.normal(1000, 3, (24, 1)).astype("float32"),
    "binary_cross_entropy": RANDOM.random((24, 1)).astype("float32"),
    "cross_entropy": CLASSES,
}


def in_float64(loss: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """By the formulas of the reference."""
    if loss == "cross_entropy":
        logs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(len(targets)), targets].mean())
    wanted = targets.astype("float64")
    if loss == "binary_cross_entropy":
        return float((np.logaddexp(0, outputs) - outputs * wanted).mean())
    return float(((outputs - wanted) ** 2).mean() if loss == "mse" else np.abs(outputs - wanted).mean())


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:.*are float16, in which:anyaccel.errors.NaNWarning")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("loss", TARGETS)
def test_losses_of_outputs_in_16_bits_are_computed_and_averaged_in_float32(
    framework: str, loss: str, dtype: str
) -> None:
    """As by hand from the model's own outputs, in training and in an evaluation; issue 26."""
    if framework not in MODELS:
        pytest.skip(f"no model in {dtype} of {framework} here")
    start = RANDOM.normal(size=(3, 3 if loss == "cross_entropy" else 1)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": TARGETS[loss]}, ["x"], ["y"])
    model = MODELS[framework](start, dtype)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=1e-12))
    run, losses = aa.Experiment("e", graph, progress="none"), [aa.AppliedLoss(loss, on="net")]
    evaluated = run.run_phase(aa.EvalPhase("v", data=data, losses=losses, outputs="net"))
    expected = in_float64(loss, np.asarray(evaluated.prediction("net"), "float64"), TARGETS[loss])
    # XLA leaves out the rounding of outputs to bfloat16 where the same program goes on in float32.
    tolerance = 1e-3 if framework == "jax" and dtype == "bfloat16" else 3e-7
    assert evaluated.loss == pytest.approx(expected, rel=tolerance)
    trained = run.run_phase(aa.TrainPhase("t", data=data, losses=losses, batch_size=7))
    assert trained.loss[0] == pytest.approx(expected, rel=tolerance)
