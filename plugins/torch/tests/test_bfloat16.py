"""Models in bfloat16, which NumPy does not support: fed with float32, trained, evaluated and saved as by hand."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import ColumnError, StateError
from anyaccel_torch import TorchBackend

ROWS, BATCH = 22, 8  # a last batch of 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5)).astype("float32")
Y = (RNG.random((ROWS, 1)) < 0.5).astype("float32")


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).bfloat16()


def table() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def experiment(model: nn.Module, data: Any) -> aa.Experiment:
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.1))
    return aa.Experiment("e", graph, progress="none")


def train(model: nn.Module, data: Any, **settings: Any) -> Any:
    losses = [aa.AppliedLoss("binary_cross_entropy", on="net")]
    phase = aa.TrainPhase("t", data=data, losses=losses, epochs=2, **settings)
    return experiment(model, data).run_phase(phase)


def by_hand(model: nn.Module) -> list[float]:
    optimizer, means = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        total = 0.0
        for start in range(0, ROWS, BATCH):
            x, y = (torch.tensor(array[start : start + BATCH]) for array in (X, Y))
            loss = F.binary_cross_entropy_with_logits(model(x.bfloat16()).float(), y)  # losses are in float32
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        means.append(total / ROWS)
    return means


@pytest.mark.parametrize("settings", [{}, {"residency": "streamed"}], ids=str)
def test_training_is_that_of_a_loop_by_hand(net: nn.Module, settings: dict[str, Any]) -> None:
    own = copy.deepcopy(net)
    result = train(net, table(), sampler=aa.SimpleSampler(BATCH, drop_last=False), compile="off", **settings)
    np.testing.assert_allclose(result.loss, by_hand(own), rtol=1e-6)
    for value, other in zip(net.parameters(), own.parameters(), strict=True):
        assert torch.equal(value, other)


def test_a_source_of_tensors_in_bfloat16_trains_the_same(net: nn.Module) -> None:
    own = copy.deepcopy(net)
    batches = [
        {"x": torch.tensor(X[i : i + BATCH]).bfloat16(), "y": torch.tensor(Y[i : i + BATCH]).bfloat16()}
        for i in range(0, ROWS, BATCH)
    ]
    result = train(net, aa.IterableSource("data", batches, features="x", target="y"), compile="off")
    np.testing.assert_allclose(result.loss, by_hand(own), rtol=1e-6)


def test_predictions_come_in_float32_with_the_values_of_the_model(net: nn.Module) -> None:
    with torch.no_grad():
        expected = net(torch.tensor(X).bfloat16()).float().numpy()
    phase = aa.EvalPhase("v", data="all", metrics=["accuracy"])
    result = experiment(net, table()).run_phase(phase)
    assert result.prediction("net").dtype == np.float32
    np.testing.assert_array_equal(result.prediction("net"), expected)
    assert result.metrics["accuracy"] == np.mean((expected > 0) == Y)
    assert pa.table(result.to_arrow()).column("prediction.net").to_pylist()[3] == expected[3]


def test_a_state_is_saved_and_loaded_bit_by_bit(net: nn.Module, tmp_path: Path) -> None:
    trained = experiment(net, table()).graph
    state = TorchBackend().state(net)
    assert state["parameters/0.weight"].dtype == ml_dtypes.bfloat16
    trained.save(tmp_path / "saved")
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).bfloat16()
    aa.ModelGraph.load(tmp_path / "saved", models={"net": other})
    for value, expected in zip(other.parameters(), net.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_where_ml_dtypes_is_missing_a_saved_state_says_so(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment(net, table()).graph.save(tmp_path / "saved")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(
            StateError,
            match=r"has arrays of bfloat16, which NumPy does not support\. Hint: .* "
            r"install ml_dtypes",
        ):
            aa.ModelGraph.load(tmp_path / "saved", models={"net": net})
    aa.ModelGraph.load(tmp_path / "saved", models={"net": net})


def test_a_tensor_goes_to_the_host_and_back_with_its_bits() -> None:
    backend = TorchBackend()
    tensor = torch.tensor([[1.0, -0.0, float("inf")], [3e-40, 65280.0, float("nan")]]).bfloat16()
    array = backend.to_host(tensor.T)
    assert array.dtype == ml_dtypes.bfloat16 and array.shape == (3, 2)
    for back in (backend.from_host(array, aa.Device("cpu")), backend.from_host_owned(array.copy(), aa.Device("cpu"))):
        assert back.dtype is torch.bfloat16
        assert torch.equal(back.T.contiguous().view(torch.int16), tensor.view(torch.int16))


def test_columns_of_arrays_are_widened_and_a_tensor_has_a_hint() -> None:
    tensor = torch.tensor(X).bfloat16()
    data = aa.FeatureSet.from_dict("d", {"x": TorchBackend().to_host(tensor)}, ["x"])
    assert data.array("x").dtype == np.float32
    np.testing.assert_array_equal(data.array("x"), tensor.float().numpy())
    with pytest.raises(
        ColumnError, match=r"'x' is a Tensor that cannot be converted.*Hint: cast it first: 'x': tensor"
    ):
        aa.FeatureSet.from_dict("d", {"x": tensor}, ["x"])
    aa.FeatureSet.from_dict("d", {"x": tensor.float()}, ["x"])


def test_a_number_that_would_be_infinite_is_refused(net: nn.Module) -> None:
    x = X.astype("float64")
    x[3, 1] = 1e300
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": Y}, ["x"], ["y"])
    with pytest.raises(ColumnError, match=r"loaded as bfloat16: row 3 holds 1e\+300, which would be infinite.*Hint"):
        train(net, data)
