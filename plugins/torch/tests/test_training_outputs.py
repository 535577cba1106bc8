"""Outputs that a module gives in training only: named, trained as a loop by hand does, and refused where unnamed."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import AnyaccelError, GraphError, PhaseError

Heads = namedtuple("Heads", ["logits", "aux"])


class Inception(nn.Module):
    """As torchvision's: a named tuple with an auxiliary head in training, a tensor in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.head, self.aux = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        features = torch.relu(self.norm(self.body(x)))
        logits = self.head(features)
        return Heads(logits, self.aux(features)) if self.training else logits


class Distilled(Inception):
    """As DeiT: two heads in training, their mean in evaluation."""

    def forward(self, x: torch.Tensor) -> Any:
        heads = self.head(x1 := torch.relu(self.norm(self.body(x)))), self.aux(x1)
        return heads if self.training else (heads[0] + heads[1]) / 2


class Probabilities(Inception):
    """Another shape in training than in evaluation."""

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.head(torch.relu(self.norm(self.body(x))))
        return logits if self.training else logits.softmax(-1).max(-1).values


class AddedLoss(Inception):
    """A loss of its own, without the batch as an axis, in training."""

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.head(torch.relu(self.norm(self.body(x))))
        return (logits, logits.square().mean()) if self.training else logits


def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 6)).astype(np.float32)
    source = aa.FeatureSet.from_dict("data", {"x": x, "kind": (x[:, 0] > 0).astype(np.int64)}, ["x"], ["kind"])
    source.split_random({"train": 0.75, "val": 0.25})
    return source


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def graph(source: aa.FeatureSet, model: nn.Module, **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, source.reference(), **settings)], aa.Optimizer("sgd", lr=0.1))


LOSSES = [
    aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs.logits", "targets"]),
    aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs.aux", "targets"], weight=0.4, label="aux"),
]


def phase(losses: Any = LOSSES, **settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="train", losses=losses, sampler=aa.SimpleSampler(8), epochs=2, **settings)


def run(model_graph: aa.ModelGraph, one: Any) -> Any:
    return aa.Experiment("test", model_graph, progress="none").run_phase(one)


def by_hand(source: aa.FeatureSet, model: nn.Module) -> list[float]:
    rows = source.split("train")
    x, y = torch.tensor(rows.array("x")), torch.tensor(rows.array("kind"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for _ in range(2):
        sums = []
        for start in range(0, len(x), 8):
            heads = model.train()(x[start : start + 8])
            losses = [nn.functional.cross_entropy(head, y[start : start + 8]) for head in heads]
            optimizer.zero_grad()
            (losses[0] + 0.4 * losses[1]).backward()
            optimizer.step()
            sums.append((losses[0] + 0.4 * losses[1]).item())
        means.append(float(np.mean(sums)))
    return means


@pytest.mark.parametrize("kind", [Inception, Distilled])
@pytest.mark.parametrize("compile", ["off", "auto"])
def test_named_outputs_of_training_are_trained_as_by_hand(kind: type[nn.Module], compile: str) -> None:
    source, given, own = data(), seeded(kind), seeded(kind)
    result = run(graph(source, given, outputs=["logits", "aux"]), phase(compile=compile))
    expected = by_hand(source, own)
    np.testing.assert_allclose(result.loss, expected, rtol=1e-6)
    for mine, other in zip(given.state_dict().values(), own.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other)


def test_evaluation_leaves_out_what_exists_only_in_training() -> None:
    source, model = data(), seeded(Inception)
    model_graph = graph(source, model, outputs=["logits", "aux"])
    result = run(model_graph, phase(validation="val"))
    rows = source.split("val")
    with torch.no_grad():
        logits = model.eval()(torch.tensor(rows.array("x")))
        expected = nn.functional.cross_entropy(logits, torch.tensor(rows.array("kind"))).item()
    np.testing.assert_allclose(result.figure("val_loss")[-1], expected, rtol=1e-5)
    evaluation = aa.EvalPhase("eval", data="val", losses=LOSSES)
    values = run(model_graph, evaluation)
    assert list(values.losses) == ["net"]
    np.testing.assert_allclose(values.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(values.prediction("net.logits"), logits.numpy(), rtol=1e-5)
    with pytest.raises(AnyaccelError, match=r"net\.aux"):
        values.prediction("net.aux")
    notes = aa.Experiment("test", model_graph, progress="none").plan(evaluation).notes
    assert "the loss 'aux' is left out: net.aux exists only in training" in notes


PLAIN = [aa.AppliedLoss("cross_entropy", on="net")]


@pytest.mark.parametrize("kind", [Inception, Distilled])
def test_outputs_of_training_without_names_are_refused_and_the_hint_works(kind: type[nn.Module]) -> None:
    """Before, the first output was taken and the auxiliary head was not trained."""
    source = data()
    with pytest.raises(PhaseError) as caught:
        run(graph(source, seeded(kind)), phase(PLAIN))
    assert str(caught.value).startswith(
        "node 'net': its model returns 2 outputs (float32[3], float32[3] per sample) in training, but 1 output "
        "(float32[3] per sample) in evaluation; "
    )
    first, other = ("logits", "aux") if kind is Inception else ("out0", "out1")
    assert f"outputs=['{first}', '{other}']" in caught.value.hint
    assert f"inputs=['outputs.{other}', 'targets'], label='{other}'" in caught.value.hint
    losses = [
        aa.AppliedLoss("cross_entropy", on="net", inputs=[f"outputs.{first}", "targets"]),
        aa.AppliedLoss("cross_entropy", on="net", inputs=[f"outputs.{other}", "targets"], label=other, weight=0.4),
    ]
    result = run(graph(source, seeded(kind), outputs=[first, other]), phase(losses))
    np.testing.assert_allclose(result.loss, by_hand(source, seeded(kind)), rtol=1e-6)


def test_another_shape_in_training_is_refused() -> None:
    losses = [aa.AppliedLoss("mse", on="net", inputs=["outputs", "data.kind"])]
    with pytest.raises(PhaseError) as caught:
        run(graph(data(), seeded(Probabilities)), phase(losses))
    problem = "returns 1 output (float32[3] per sample) in training, but 1 output (float32[] per sample) in evaluation"
    assert problem in str(caught.value)
    assert caught.value.hint == "wrap the model in one that returns the same outputs in both modes"


def test_a_loss_that_a_module_returns_in_training_alone_is_refused() -> None:
    with pytest.raises(
        PhaseError, match=r"node 'net': its model returns '1', one number for a batch, only in training"
    ):
        run(graph(data(), seeded(AddedLoss)), phase(PLAIN))


def test_a_frozen_model_is_used_as_it_evaluates() -> None:
    source, model = data(), seeded(Inception)
    nodes = [aa.ModelNode("net", model, source.reference()), aa.ModelNode("top", nn.Linear(3, 2), "net")]
    model_graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
    model_graph.freeze("net")
    assert np.isfinite(run(model_graph, phase([aa.AppliedLoss("cross_entropy", on="top")])).loss).all()


def test_a_loss_on_an_output_of_training_of_a_frozen_node_is_refused() -> None:
    source = data()
    nodes = [
        aa.ModelNode("net", seeded(Inception), source.reference(), outputs=["logits", "aux"]),
        aa.ModelNode("top", nn.Linear(3, 3), "net.logits"),
    ]
    model_graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
    model_graph.freeze("net")
    with pytest.raises(PhaseError, match=r"the loss 'aux' takes 'net\.aux', an output that exists only") as e:
        run(model_graph, phase([aa.AppliedLoss("cross_entropy", on="top"), LOSSES[1]]))
    assert "graph.unfreeze('net')" in e.value.hint


def test_no_node_is_fed_by_an_output_of_training() -> None:
    source = data()
    nodes = [
        aa.ModelNode("net", seeded(Inception), source.reference(), outputs=["logits", "aux"]),
        aa.ModelNode("top", nn.Linear(3, 2), "net.aux"),
    ]
    with pytest.raises(GraphError, match=r"node 'top' takes 'net\.aux', an output that exists only") as e:
        aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)).build()
    assert "into the model" in e.value.hint


def test_inferring_outputs_of_training_leaves_the_model_as_it_was() -> None:
    source, model = data(), seeded(Inception).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    model_graph = graph(source, model, outputs=["logits", "aux"])
    aa.Experiment("test", model_graph, progress="none").plan(phase())
    assert not model.training and not model.norm.training
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_node_that_names_outputs_that_do_not_exist_is_refused() -> None:
    with pytest.raises(GraphError, match="names 3 outputs, but its model returns 1"):
        graph(data(), seeded(Inception), outputs=["logits", "aux", "more"]).build()
