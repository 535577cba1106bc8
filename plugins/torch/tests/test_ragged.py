"""Rows of different length: each batch is padded to its own longest row, as `pad_sequence` in a loop by hand does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import anyaccel as aa
from anyaccel.errors import ColumnError, PhaseError, SpecError

ROWS, BATCH, EPOCHS = 45, 8, 3  # a last batch of 5
RANDOM = np.random.default_rng(0)
TOKENS = [RANDOM.integers(1, 50, size=n) for n in RANDOM.integers(1, 19, size=ROWS)]
CLASSES = np.array([row.sum() % 3 for row in TOKENS])
TAGS = [row % 4 for row in TOKENS]


class Classifier(nn.Module):
    """Its mean is over all places, also padded ones: another length than by hand gives other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.recurrent, self.head = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.tokens(input_ids) * attention_mask[..., None])
        return self.head(hidden.mean(dim=1))


class Tagger(nn.Module):
    """An output for each token, and a loss that leaves out what was padded."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(self.tokens(input_ids))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def made(model: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model()


def texts(pad: Any = None, tokens: Sequence[np.ndarray] = TOKENS) -> aa.FeatureSet:
    pad = aa.Pad(0, mask="mask") if pad is None else pad
    columns = {"ids": tokens, "kind": CLASSES[: len(tokens)]}
    return aa.FeatureSet.from_dict("texts", columns, ["ids"], ["kind"], pad={"ids": pad})


def graph_of(data: aa.FeatureSet, model: nn.Module) -> aa.ModelGraph:
    inputs = {"input_ids": data.reference("ids"), "attention_mask": data.reference("mask")}
    return aa.ModelGraph([aa.ModelNode("net", model, inputs)], aa.Optimizer("sgd", lr=0.5))


LOSS = aa.AppliedLoss("cross_entropy", on="net")
SAMPLER = aa.SimpleSampler(BATCH, shuffle=True, seed=3)


def run(graph: aa.ModelGraph, phase: Any) -> Any:
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def batches(epoch: int, size: int = BATCH) -> Iterator[np.ndarray]:
    order = SAMPLER.order(ROWS, epoch)
    return (order[start : start + size] for start in range(0, ROWS, size))


def stacked(rows: Sequence[np.ndarray], value: float = 0, multiple_of: int = 1) -> Tensor:
    padded = pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value)
    return F.pad(padded, (0, -padded.shape[1] % multiple_of), value=value)


def by_hand(multiple_of: int = 1, size: int = BATCH) -> tuple[list[float], nn.Module]:
    net, means = made(Classifier), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in batches(epoch, size):
            ids = stacked([TOKENS[row] for row in rows], multiple_of=multiple_of)
            mask = stacked([np.ones_like(TOKENS[row]) for row in rows], multiple_of=multiple_of)
            loss = F.cross_entropy(net(ids, mask), torch.from_numpy(CLASSES[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        means.append(total / ROWS)
    return means, net


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, value), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("compile_", ["auto", "steps"])
@pytest.mark.parametrize("multiple_of", [1, 8])
def test_training_is_that_of_a_loop_with_pad_sequence(multiple_of: int, compile_: str) -> None:
    data, net = texts(aa.Pad(0, multiple_of=multiple_of, mask="mask")), made(Classifier)
    phase = aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, n_epochs=EPOCHS, compile=compile_)
    results = run(graph_of(data, net), phase)
    means, expected = by_hand(multiple_of)
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    assert_same(net, expected)
    assert any("each batch is padded to its own length" in event.message for event in results.events)


def test_one_length_for_all_gives_other_numbers_and_stays_on_the_device() -> None:
    data = texts(aa.Pad(0, length=24, mask="mask"))
    phase = aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, n_epochs=EPOCHS, residency="resident")
    means, _ = by_hand(24)
    np.testing.assert_allclose(run(graph_of(data, made(Classifier)), phase).loss, means, rtol=1e-5)


def test_batches_of_one_update_are_padded_together() -> None:
    data, net = texts(), made(Classifier)
    phase = aa.TrainPhase(
        "t", data="all", losses=LOSS, sampler=aa.SimpleSampler(4, shuffle=True, seed=3), n_epochs=EPOCHS, accumulate=2
    )
    means, expected = by_hand(size=8)
    np.testing.assert_allclose(run(graph_of(data, net), phase).loss, means, rtol=1e-5)
    assert_same(net, expected)


def test_evaluation_pads_each_batch_too() -> None:
    data, net = texts(), made(Classifier)
    results = run(graph_of(data, net), aa.EvalPhase("e", data="all", batch_size=10, losses=LOSS, metrics=["accuracy"]))
    parts = [np.arange(start, min(start + 10, ROWS)) for start in range(0, ROWS, 10)]
    with torch.no_grad():
        expected = torch.cat(
            [
                net(stacked([TOKENS[row] for row in rows]), stacked([np.ones_like(TOKENS[row]) for row in rows]))
                for rows in parts
            ]
        )
    np.testing.assert_allclose(results.prediction("net"), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert results.loss == pytest.approx(F.cross_entropy(expected, torch.from_numpy(CLASSES)).item(), rel=1e-5)
    assert results.metrics["accuracy"] == pytest.approx((expected.argmax(1).numpy() == CLASSES).mean())


def test_other_data_may_have_longer_rows() -> None:
    longer = [np.concatenate([row, row]) for row in TOKENS]
    net = made(Classifier)
    graph = graph_of(texts(), net)
    results = run(graph, aa.EvalPhase("e", data=texts(tokens=longer), batch_size=ROWS, losses=LOSS))
    with torch.no_grad():
        expected = net(stacked(longer), stacked([np.ones_like(row) for row in longer]))
    np.testing.assert_allclose(results.prediction("net"), expected.numpy(), rtol=1e-5, atol=1e-6)
    other = aa.FeatureSet.from_dict(
        "texts", {"ids": [row / 2 for row in TOKENS], "kind": CLASSES}, "ids", "kind", pad={"ids": aa.Pad(mask="mask")}
    )
    with pytest.raises(ColumnError, match=r"texts.ids is float64\[18\] in these data.*built for int64\[18\]"):
        run(graph, aa.EvalPhase("e", data=other, losses=LOSS))


def tagged() -> aa.FeatureSet:
    columns = {"ids": TOKENS, "tags": TAGS}
    return aa.FeatureSet.from_dict("texts", columns, ["ids"], ["tags"], pad={"ids": 0, "tags": -100})


def tagger(data: aa.FeatureSet, net: nn.Module) -> aa.ModelGraph:
    inputs = {"input_ids": data.reference("ids"), "labels": data.reference("tags")}
    return aa.ModelGraph([aa.ModelNode("net", net, inputs)], aa.Optimizer("sgd", lr=0.5))


def test_targets_of_each_token_are_padded_with_what_the_loss_ignores() -> None:
    net, expected = made(Tagger), made(Tagger)
    loss = aa.AppliedLoss.from_output("net", "loss")
    run(tagger(tagged(), net), aa.TrainPhase("t", data="all", losses=loss, sampler=SAMPLER, n_epochs=EPOCHS))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
    for epoch in range(EPOCHS):
        for rows in batches(epoch):
            labels = stacked([TAGS[row] for row in rows], -100)
            optimizer.zero_grad()
            expected(stacked([TOKENS[row] for row in rows]), labels)["loss"].backward()
            optimizer.step()
    assert_same(net, expected)


def test_outputs_of_each_token_are_nan_behind_the_longest_row_of_a_batch() -> None:
    net = made(Tagger)
    results = run(tagger(tagged(), net), aa.EvalPhase("e", data="all", batch_size=10, outputs="net"))
    logits = results.prediction("net")
    for start in range(0, ROWS, 10):
        ids = stacked(TOKENS[start : start + 10])
        with torch.no_grad():
            expected = net(ids)["logits"].numpy()
        np.testing.assert_allclose(logits[start : start + 10, : ids.shape[1]], expected, rtol=1e-5, atol=1e-6)
        assert np.isnan(logits[start : start + 10, ids.shape[1] :]).all()
    assert logits.shape == (ROWS, max(map(len, TOKENS)), 4)


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_outputs_that_cannot_hold_nan_are_refused() -> None:
    data = texts(0)
    graph = aa.ModelGraph([aa.ModelNode("net", Tokens(), data.reference("ids"))])
    with pytest.raises(PhaseError, match=r"'net' is int64\[\d+\] per sample in one batch and .*outputs="):
        run(graph, aa.EvalPhase("e", data="all", batch_size=10))


def test_metrics_over_different_lengths_are_refused() -> None:
    graph = tagger(tagged(), made(Tagger))
    with pytest.raises(SpecError, match=r"'mae' on node 'net' compares values that differ in length.*leave the metric"):
        run(graph, aa.EvalPhase("e", data="all", metrics=[aa.Metric("mae", on="net")], batch_size=10))


def test_rows_of_different_length_are_not_resident() -> None:
    phase = aa.TrainPhase("t", data="all", losses=LOSS, residency="resident")
    with pytest.raises(PhaseError, match=r"residency='resident', and the rows of texts.ids differ.*Pad\(..., length="):
        run(graph_of(texts(), made(Classifier)), phase)


def test_tokenised_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"input_ids": [row.tolist() for row in TOKENS], "attention_mask": [[1] * len(row) for row in TOKENS]}
    dataset = datasets.Dataset.from_dict({**rows, "labels": CLASSES.tolist()})
    data = aa.FeatureSet.from_arrow(
        "texts", dataset, ["input_ids", "attention_mask"], ["labels"], pad={"input_ids": 0, "attention_mask": 0}
    )
    net = made(Classifier)
    inputs = {name: data.reference(name) for name in ("input_ids", "attention_mask")}
    graph = aa.ModelGraph([aa.ModelNode("net", net, inputs)], aa.Optimizer("sgd", lr=0.5))
    run(graph, aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, n_epochs=EPOCHS))
    assert_same(net, by_hand()[1])
