"""Models that have the batch on another axis than the first, beside loops by hand that move it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import AnyaccelError, GraphError

ROWS, BATCH, EPOCHS = 22, 8, 2
RANDOM = np.random.default_rng(0)
COLUMNS = {
    "x": RANDOM.normal(size=(ROWS, 5, 3)).astype("float32"),
    "state": RANDOM.normal(size=(ROWS, 1, 4)).astype("float32"),
    "mask": RANDOM.random((ROWS, 5)) < 0.3,
    "y": RANDOM.normal(size=(ROWS, 4)).astype("float32"),
}


class Recurrent(nn.Module):
    """Time first, as recurrent layers of torch are by default."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 4)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        assert x.shape[0] == 5 and state.shape[0] == 1
        return self.recurrent(x, state)


class Encoder(nn.Module):
    """Time first, with a mask that is batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(3, 1, 6, dropout=0.0)
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.layer(x, src_key_padding_mask=mask).mean(dim=0))


def made(model: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return model()


def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("d", COLUMNS, ["x", "state", "mask"], ["y"])


def train(node: aa.ModelNode, output: str, **settings: Any) -> Any:
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    loss = aa.AppliedLoss("mse", on="net", inputs=[output, "targets"])
    sampler = aa.SimpleSampler(BATCH)
    phase = aa.TrainPhase("t", data="all", losses=loss, sampler=sampler, epochs=EPOCHS, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase), graph


def by_hand(net: nn.Module, call: Any) -> nn.Module:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    columns = {name: torch.from_numpy(array) for name, array in COLUMNS.items()}
    for _ in range(EPOCHS):
        for start in range(0, ROWS, BATCH):
            batch = {name: column[start : start + BATCH] for name, column in columns.items()}
            optimizer.zero_grad()
            F.mse_loss(call(net, batch), batch["y"]).backward()
            optimizer.step()
    return net


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, value), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("named", [True, False])
def test_all_inputs_may_have_the_batch_in_the_middle(named: bool, accumulate: int) -> None:
    source, net = data(), made(Recurrent)
    inputs: Any = {"state": source.reference("state"), "x": source.reference("x")}
    inputs = inputs if named else [inputs["x"], inputs["state"]]
    node = aa.ModelNode("net", net, inputs, batch_axis=1, outputs=["time", "last"])
    expected = by_hand(
        made(Recurrent), lambda net, batch: net(batch["x"].movedim(0, 1), batch["state"].movedim(0, 1))[1][0]
    )
    last = aa.ModelNode("last", Last(), "net.last")
    graph = aa.ModelGraph([node, last], aa.Optimizer("sgd", lr=0.1))
    loss, sampler = aa.AppliedLoss("mse", on="last", inputs=["outputs", "d.y"]), aa.SimpleSampler(BATCH // accumulate)
    phase = aa.TrainPhase("t", data="all", losses=loss, sampler=sampler, epochs=EPOCHS, accumulate=accumulate)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert_same(net, expected)
    predicted = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("p", data="all", outputs="net"))
    x, state = torch.from_numpy(COLUMNS["x"]).movedim(0, 1), torch.from_numpy(COLUMNS["state"]).movedim(0, 1)
    with torch.no_grad():
        time, _ = expected(x, state)
    np.testing.assert_allclose(predicted.prediction("net.time"), time.movedim(1, 0).numpy(), rtol=1e-5, atol=1e-6)


class Last(nn.Module):
    def forward(self, state: Tensor) -> Tensor:
        return state[:, 0]


def test_inputs_may_differ() -> None:
    source, net = data(), made(Encoder)
    inputs = {"x": source.reference("x"), "mask": source.reference("mask")}
    _, graph = train(aa.ModelNode("net", net, inputs, batch_axis={"x": 1}), "outputs")
    call = lambda net, batch: net(batch["x"].movedim(0, 1), batch["mask"])  # noqa: E731
    assert_same(net, by_hand(made(Encoder), call))
    config = graph.get_config()
    again = aa.ModelGraph.from_config(config, feature_sets={"d": source}, models={"net": net})
    assert again["net"].arguments == graph["net"].arguments and again["net"].arguments.batch_axes == (1, 0)
    assert copy.deepcopy(again["net"].arguments) == graph["net"].arguments
    assert graph["net"].arguments != tuple(graph["net"].arguments)


@pytest.mark.parametrize(
    ("batch_axis", "message"),
    [
        ({"z": 1}, r"batch_axis has 'z', which is not an input. Available: x, mask"),
        (-1, r"batch_axis=-1 is not the number of an axis. Hint: write batch_axis=1"),
        ("1", r"batch_axis='1' is not the number of an axis"),
        (2, r"batch_axis=2, but the input has only 2 axes.*batch_axis=0 to 1.*batch_axis={'INPUT': 1}"),
    ],
)
def test_axes_that_are_not_there_are_refused(batch_axis: Any, message: str) -> None:
    source = data()
    inputs = {"x": source.reference("x"), "mask": source.reference("mask")}
    with pytest.raises(AnyaccelError, match=message):
        aa.ModelGraph([aa.ModelNode("net", made(Encoder), inputs, batch_axis=batch_axis)]).build()


def test_frameworks_whose_models_have_the_batch_first_say_so() -> None:
    node = aa.ModelNode("net", aa.SequentialMLP((1,)), data().reference("x"), batch_axis=1)
    with pytest.raises(GraphError, match=r"numpy calls models with the batch on the first axis. Hint: leave"):
        aa.ModelGraph([node]).build()
