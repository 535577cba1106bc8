"""Modules that do not accept zeros are built with samples of their data, and left as they were."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import GraphError, PhaseError, ShapeError

ROWS, BATCH, END = 20, 8, 2


class Pooled(nn.Module):
    """Answers at the last end token of each sample, as BART and T5 do for classes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.calls = 0
        self.to(dtype)

    def forward(self, input_ids: Tensor, lengths: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        self.calls += 1
        if not (input_ids == END).any(1).all():
            raise ValueError("each sample must have an end token")
        if (lengths < 1).any():
            raise RuntimeError("lengths must be positive")
        mask = torch.arange(input_ids.shape[1]) < lengths[:, None]
        x = self.norm((self.tokens(input_ids) * mask[..., None]).sum(1) / lengths[:, None])
        logits = self.head(x) * self.scale
        return {"loss": None if labels is None else F.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def columns() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    ids = random.integers(3, 10, (ROWS, 5))
    ids[:, -1] = END
    return {"ids": ids, "lengths": random.integers(1, 6, ROWS), "kind": random.integers(0, 3, ROWS)}


def made(model: nn.Module, columns: dict[str, np.ndarray]) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", columns, ["ids", "lengths"], ["kind"])
    named = {"input_ids": "ids", "lengths": "lengths", "labels": "kind"}
    node = aa.ModelNode("net", model, {name: data.reference(column) for name, column in named.items()})
    return aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))


def by_hand(model: nn.Module, columns: dict[str, np.ndarray]) -> float:
    ids, lengths, kind = (torch.from_numpy(columns[name]) for name in ("ids", "lengths", "kind"))
    optimizer, total = torch.optim.SGD(model.train().parameters(), lr=0.1), 0.0
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        loss = model(ids[rows], lengths[rows], kind[rows])["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(ids[rows])
    return total / ROWS


def test_a_module_that_refuses_zeros_trains_as_in_a_loop_by_hand(columns: dict[str, np.ndarray]) -> None:
    torch.manual_seed(0)
    model = Pooled()
    own = copy.deepcopy(model)
    sampler = aa.SimpleSampler(BATCH, drop_last=False)
    loss = aa.AppliedLoss.from_output("net")
    phase = aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, epochs=1)
    result = aa.Experiment("test", made(model, columns), progress="none").run_phase(phase)
    np.testing.assert_allclose(result.loss, [by_hand(own, columns)], rtol=1e-6)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, own.state_dict()[name], msg=name)


def test_building_with_samples_leaves_the_module_as_it_was(columns: dict[str, np.ndarray]) -> None:
    model = Pooled()
    before = copy.deepcopy(model.state_dict())
    graph = made(model, columns).build()
    assert graph.shapes.outputs["net"] == ("net",)
    assert model.calls == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_rows_than_are_needed_are_repeated(columns: dict[str, np.ndarray], rows: int) -> None:
    few = {name: column[:rows] for name, column in columns.items()}
    assert made(Pooled(), few).build().shapes.outputs["net"] == ("net",)


def test_where_the_samples_are_refused_too_the_error_is_theirs(columns: dict[str, np.ndarray]) -> None:
    columns["lengths"][1] = -5
    with pytest.raises(ShapeError, match="lengths must be positive"):  # zeros have no end token, which is said first
        made(Pooled(), columns).build()


def test_a_module_without_samples_says_why(columns: dict[str, np.ndarray]) -> None:
    data = aa.FeatureSet.from_dict("data", columns, ["ids", "lengths"], ["kind"])
    ids = aa.ModelNode("ids", nn.Identity(), data.reference("ids"))
    net = aa.ModelNode("net", Pooled(), {"input_ids": ids, "lengths": data.reference("lengths")})
    with pytest.raises(GraphError, match="each sample must have an end token"):
        aa.ModelGraph([ids, net]).build()


def test_an_auxiliary_head_is_seen_where_training_does_not_accept_zeros(columns: dict[str, np.ndarray]) -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(10, 3), nn.Linear(3, 3)

        def forward(self, input_ids: Tensor) -> Any:
            if self.training and (input_ids != END).all():
                raise ValueError("no end token")
            x = self.tokens(input_ids).mean(1)
            return (self.head(x), x) if self.training else self.head(x)

    data = aa.FeatureSet.from_dict("data", columns, ["ids"], ["kind"])
    graph = aa.ModelGraph([aa.ModelNode("net", Auxiliary(), data.reference("ids"))], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("train", data="all", losses=aa.AppliedLoss("cross_entropy", on="net"), batch_size=BATCH)
    with pytest.raises(PhaseError, match=r"its model returns 2 outputs .* in training, but 1 output"):
        aa.Experiment("test", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_floating_samples_arrive_in_the_dtype_of_the_module(dtype: torch.dtype) -> None:
    class Positive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2, dtype=dtype)

        def forward(self, x: Tensor) -> Tensor:
            if (x <= 0).any():
                raise ValueError("not positive")
            out: Tensor = self.layer(x)
            return out

    data = aa.FeatureSet.from_dict("data", {"x": np.arange(1.0, 7.0, dtype="float32")}, "x")
    graph = aa.ModelGraph([aa.ModelNode("net", Positive(), data.reference("x"))]).build()
    assert str(graph.shapes.specs["net"]) == f"{str(dtype).removeprefix('torch.')}[2]"
