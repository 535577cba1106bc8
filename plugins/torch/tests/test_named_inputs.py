"""Modules as people have them: inputs by keyword, outputs at any depth, and losses that a module computes itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import ColumnError, GraphError, ShapeError

ROWS, BATCH, EPOCHS = 22, 8, 2  # a last batch of 6


@dataclass
class Output:
    """As models of transformers return it."""

    loss: Tensor | None
    logits: Tensor
    past: object
    encoder: dict[str, Any]


class Classifier(nn.Module):
    """The order of its arguments is not that of the columns, as in many encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.types = nn.Embedding(20, 8), nn.Embedding(2, 8)
        self.recurrent, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        x = self.tokens(input_ids)
        if token_type_ids is not None:
            x = x + self.types(token_type_ids)
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        hidden, state = self.recurrent(x)
        logits = self.head(hidden[:, -1])
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return Output(loss, logits, object(), {"hidden": hidden, "state": state, "pairs": logits @ logits.T})


@pytest.fixture
def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    ids = random.integers(0, 20, (ROWS, 5))
    mask = random.integers(0, 2, (ROWS, 5))
    columns = {"ids": ids, "mask": mask, "kind": random.integers(0, 3, ROWS)}
    data = aa.FeatureSet.from_dict("data", columns, ["ids", "mask"], ["kind"])
    data.add_splits({"train": np.arange(ROWS)})
    return data


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return Classifier()


def inputs(data: aa.FeatureSet, *, labels: bool) -> dict[str, Any]:
    named = {"attention_mask": data.reference("mask"), "input_ids": data.reference("ids")}
    return {**named, "labels": data.reference("kind")} if labels else named


def graph(model: nn.Module, upstream: Any, **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, upstream, **settings)], aa.Optimizer("sgd", lr=0.1))


def train(model_graph: aa.ModelGraph, loss: aa.AppliedLoss, **settings: Any) -> Any:
    sampler = aa.SimpleSampler(BATCH, drop_last=False)
    phase = aa.TrainPhase("train", data="train", losses=loss, sampler=sampler, epochs=EPOCHS, **settings)
    return aa.Experiment("test", model_graph, progress="none").run_phase(phase)


def by_hand(data: aa.FeatureSet, model: nn.Module) -> list[float]:
    """The mean loss of each epoch, of a plain loop."""
    ids, mask, kind = (torch.tensor(data.array(name)) for name in ("ids", "mask", "kind"))
    optimizer, means = torch.optim.SGD(model.train().parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        total = 0.0
        for start in range(0, ROWS, BATCH):
            rows = slice(start, start + BATCH)
            loss = model(ids[rows], attention_mask=mask[rows], labels=kind[rows]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(ids[rows])
        means.append(total / ROWS)
    return means


def same_weights(first: nn.Module, second: nn.Module) -> None:
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("compile", ["off", "auto"])
def test_a_module_trains_by_its_custom_loss_as_in_a_loop_by_hand(
    data: aa.FeatureSet, model: nn.Module, compile: str
) -> None:
    own = copy.deepcopy(model)
    result = train(graph(model, inputs(data, labels=True)), aa.AppliedLoss.from_output("net"), compile=compile)
    np.testing.assert_allclose(result.loss, by_hand(data, own), rtol=1e-6)
    same_weights(model, own)


def test_a_named_output_takes_a_named_loss(data: aa.FeatureSet, model: nn.Module) -> None:
    own = copy.deepcopy(model)
    loss = aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs.logits", "data.kind"])
    result = train(graph(model, inputs(data, labels=False)), loss)
    np.testing.assert_allclose(result.loss, by_hand(data, own), rtol=1e-6)
    same_weights(model, own)


def test_a_loss_function_of_the_user_may_have_any_name(data: aa.FeatureSet, model: nn.Module) -> None:
    def from_output(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    own = copy.deepcopy(model)
    loss = aa.AppliedLoss(from_output, on="net", inputs=("outputs.logits", "targets"))
    result = train(graph(model, inputs(data, labels=False)), loss)
    np.testing.assert_allclose(result.loss, by_hand(data, own), rtol=1e-6)


def test_a_loss_of_the_module_is_weighted_by_rows_in_micro_batches(data: aa.FeatureSet, model: nn.Module) -> None:
    whole, split = copy.deepcopy(model), copy.deepcopy(model)
    loss = aa.AppliedLoss.from_output("net")
    for given, batch, accumulate in ((whole, 8, 1), (split, 4, 2)):
        phase = aa.TrainPhase("t", data="train", losses=loss, batch_size=batch, epochs=1, accumulate=accumulate)
        aa.Experiment("e", graph(given, inputs(data, labels=True)), progress="none").run_phase(phase)
    same_weights(whole, split)


def test_outputs_have_the_names_of_their_paths_and_the_batch_first(data: aa.FeatureSet, model: nn.Module) -> None:
    made = graph(model, inputs(data, labels=True))
    names = ("net.logits", "net.encoder.hidden", "net.encoder.state.0", "net.encoder.state.1")
    assert made.shapes.outputs["net"] == names
    result = aa.Experiment("e", made, progress="none").run_phase(aa.EvalPhase("p", data="train", outputs="net"))
    with torch.no_grad():
        expected = model.eval()(torch.tensor(data.array("ids")), attention_mask=torch.tensor(data.array("mask")))
    np.testing.assert_allclose(result.prediction("net.logits"), expected.logits, rtol=1e-5, atol=1e-6)
    state = expected.encoder["state"][1].movedim(1, 0)
    np.testing.assert_allclose(result.prediction("net.encoder.state.1"), state, rtol=1e-5, atol=1e-6)


def test_another_node_takes_an_output_by_its_path(data: aa.FeatureSet, model: nn.Module) -> None:
    nodes = [
        aa.ModelNode("net", model, inputs(data, labels=False)),
        aa.ModelNode("top", nn.Flatten(), "net.encoder.hidden"),
    ]
    assert aa.ModelGraph(nodes).shapes.specs["top"].shape == (30,)


class Images(nn.Module):
    """A list of images, as detectors take it, and one output in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, images: list[Tensor], *, sizes: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"score": self.layer(images[0] - 2 * images[1]) * sizes["width"]}


def test_lists_and_dicts_are_built_as_the_module_wants() -> None:
    random = np.random.default_rng(0)
    x, y, w = (random.standard_normal((6, n)).astype("float32") for n in (2, 2, 1))
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y, "w": w}, ["x", "y", "w"])
    model = Images()
    upstream = {"images": [data.reference("x"), data.reference("y")], "sizes": {"width": data.reference("w")}}
    made = graph(model, upstream)
    assert made.shapes.outputs["net"] == ("net",) and made.shapes.aliases == {"net.score": "net"}
    result = aa.Experiment("e", made, progress="none").run_phase(aa.EvalPhase("p", data="all", outputs="net"))
    with torch.no_grad():
        expected = model([torch.tensor(x), torch.tensor(y)], sizes={"width": torch.tensor(w)})["score"]
    np.testing.assert_allclose(result.prediction("net"), expected, rtol=1e-6)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_mask_cannot_land_in_the_argument_of_another_name(model: nn.Module, data: aa.FeatureSet) -> None:
    columns = {"input_ids": data.array("ids"), "attention_mask": data.array("mask")}
    named = aa.FeatureSet.from_dict("data", columns, list(columns))
    references = [named.reference(name) for name in columns]
    with pytest.raises(GraphError, match=r"'attention_mask' would be the argument 'token_type_ids' of its model"):
        graph(model, references).build()
    graph(model, dict(zip(columns, references, strict=True))).build()


def test_an_argument_that_the_module_lacks_is_told(model: nn.Module, data: aa.FeatureSet) -> None:
    with pytest.raises(GraphError, match=r"no input 'inputs_ids'\. Available: input_ids, token_type_ids, .* did you"):
        graph(model, {"inputs_ids": data.reference("ids")}).build()


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("lost", ColumnError, r"the output 'net\.lost', which its model does not return\. Available: net\.loss, "),
        ("logits", ShapeError, r"the output 'net\.logits', float32\[3\], which is not a loss"),
    ],
)
def test_a_loss_from_an_output_that_is_none_is_refused(
    data: aa.FeatureSet, model: nn.Module, output: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(graph(model, inputs(data, labels=True)), aa.AppliedLoss.from_output("net", output))


def test_a_module_without_its_labels_has_no_loss(data: aa.FeatureSet, model: nn.Module) -> None:
    with pytest.raises(ColumnError, match=r"computes a loss only with targets, pass them as an input"):
        train(graph(model, inputs(data, labels=False)), aa.AppliedLoss.from_output("net"))
