"""Rows of different length: each batch is padded to its own longest row, as `pad_sequence` in a loop by hand does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import Sampler as TorchSampler

import anyaccel as aa
from anyaccel.errors import ColumnError, PhaseError, SourceError, SpecError

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


@pytest.mark.parametrize(
    ("multiple_of", "compile_"),
    [(1, "auto"), (8, "auto"), (8, "steps"), pytest.param(1, "steps", marks=pytest.mark.whole)],
)
def test_training_is_that_of_a_loop_with_pad_sequence(multiple_of: int, compile_: str) -> None:
    data, net = texts(aa.Pad(0, multiple_of=multiple_of, mask="mask")), made(Classifier)
    phase = aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, epochs=EPOCHS, compile=compile_)
    results = run(graph_of(data, net), phase)
    means, expected = by_hand(multiple_of)
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    assert_same(net, expected)
    assert any("each batch is padded to its own length" in event.message for event in results.events)


def test_one_length_for_all_gives_other_numbers_and_stays_on_the_device() -> None:
    data = texts(aa.Pad(0, length=24, mask="mask"))
    phase = aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, epochs=EPOCHS, residency="resident")
    means, _ = by_hand(24)
    np.testing.assert_allclose(run(graph_of(data, made(Classifier)), phase).loss, means, rtol=1e-5)


def test_batches_of_one_update_are_padded_together() -> None:
    data, net = texts(), made(Classifier)
    phase = aa.TrainPhase(
        "t", data="all", losses=LOSS, sampler=aa.SimpleSampler(4, shuffle=True, seed=3), epochs=EPOCHS, accumulate=2
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
    run(tagger(tagged(), net), aa.TrainPhase("t", data="all", losses=loss, sampler=SAMPLER, epochs=EPOCHS))
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


@pytest.mark.parametrize("batch_size", [7, ROWS])
def test_metrics_over_different_lengths_count_what_rows_have(batch_size: int) -> None:
    """Whatever batches are padded to: the tokens of each row, one by one."""
    net, shapes = made(Tagger), []

    def positions(outputs: np.ndarray, targets: np.ndarray) -> float:
        shapes.append((outputs.shape, targets.shape))
        return 0.0

    phase = aa.EvalPhase(data="all", metrics=["accuracy", positions], batch_size=batch_size)
    accuracy = tagger(tagged(), net).run(phase, progress="none").metrics["accuracy"]
    with torch.no_grad():
        rows = [(net(torch.tensor(row[None]))["logits"][0].argmax(-1).numpy(), row % 4) for row in TOKENS]
    hits = [guess == tag for guesses, tags in rows for guess, tag in zip(guesses, tags, strict=True)]
    assert accuracy == pytest.approx(np.mean(hits), abs=1e-12)
    assert shapes == [((len(hits), 4), (len(hits),))]


def test_metrics_over_different_lengths_are_refused_where_targets_have_none() -> None:
    columns = {"ids": TOKENS, "tags": TAGS, "kind": CLASSES}
    data = aa.FeatureSet.from_dict("texts", columns, ["ids"], ["tags", "kind"], pad={"ids": 0, "tags": -100})
    metric = aa.Metric("mae", on="net", targets="texts.kind")
    with pytest.raises(SpecError, match=r"'mae' on node 'net' compares values that differ in length.*leave the metric"):
        run(tagger(data, made(Tagger)), aa.EvalPhase("e", data="all", metrics=[metric], batch_size=10))


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
    run(graph, aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER, epochs=EPOCHS))
    assert_same(net, by_hand()[1])


class OneLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(18, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head((input_ids * attention_mask).float())


def test_a_model_of_one_length_is_told_what_to_write() -> None:
    phase = aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER)
    with pytest.raises(Exception, match="shapes cannot be multiplied") as caught:
        run(graph_of(texts(), made(OneLength)), phase)
    (note,) = (note for note in caught.value.__notes__ if "length" in note)
    assert "the rows of texts.ids, texts.mask differ in length" in note and "Pad(..., length=...)" in note
    run(graph_of(texts(aa.Pad(0, length=18, mask="mask")), made(OneLength)), phase)  # the hint obeyed


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = made(Classifier)

    def forward(self, ids: Tensor, mask: Tensor, other_ids: Tensor, other_mask: Tensor) -> Tensor:
        return self.one(ids, mask) - self.one(other_ids, other_mask)


def test_each_side_of_pairs_has_its_own_length() -> None:
    data, net, expected = texts(), Pairs(), Pairs()
    columns = [data.reference(name, stream=stream) for stream in (None, "pair") for name in ("ids", "mask")]
    loss = aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs", "texts.kind"])
    sampler = aa.PairSampler(BATCH, aa.Same("kind"), seed=3)
    graph = aa.ModelGraph([aa.ModelNode("net", net, columns)], aa.Optimizer("sgd", lr=0.5))
    run(graph, aa.TrainPhase("t", data="all", losses=loss, sampler=sampler))
    draws = sampler.epoch_orders({"texts": data})
    orders = sampler.shuffled(draws, 0)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
    for start in range(0, draws.n, BATCH):
        sides = [order[start : start + BATCH] for order in orders]
        inputs = [stacked([each(TOKENS[row]) for row in rows]) for rows in sides for each in (np.asarray, np.ones_like)]
        optimizer.zero_grad()
        F.cross_entropy(expected(*inputs), torch.from_numpy(CLASSES[sides[0]])).backward()
        optimizer.step()
    assert_same(net, expected)


def test_a_saved_graph_takes_new_rows_of_other_lengths(tmp_path: Path) -> None:
    graph = graph_of(texts(), made(Classifier))
    run(graph, aa.TrainPhase("t", data="all", losses=LOSS, sampler=SAMPLER))
    graph.save(tmp_path / "saved")
    loaded = aa.ModelGraph.load(tmp_path / "saved", models={"net": made(Classifier)})
    fresh = texts(tokens=[np.arange(1, 31), np.arange(1, 4)])
    phase = aa.EvalPhase("p", data=fresh)
    np.testing.assert_array_equal(run(loaded, phase).prediction("net"), run(graph, phase).prediction("net"))


# -- sources -----------------------------------------------------------------------------------------------------------


class Texts(Dataset[Any]):
    def __init__(self, **more: Any) -> None:
        self.more = more

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"ids": torch.from_numpy(TOKENS[row]), "kind": int(CLASSES[row])}


def collated(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [item["ids"] for item in items]
    return {
        "ids": pad_sequence(rows, batch_first=True),
        "mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
        "kind": torch.tensor([item["kind"] for item in items]),
    }


class Shuffled(TorchSampler[int]):
    """The order of the phase's sampler."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(SAMPLER.order(ROWS, self.epoch).tolist())

    def __len__(self) -> int:
        return ROWS


def loader(size: int = BATCH, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Texts(), batch_size=size, sampler=Shuffled(), collate_fn=collated, **settings)


ROLES: dict[str, Any] = {"features": ["ids", "mask"], "target": "kind"}
PADS = {"ids": 0, "mask": 0}


@pytest.mark.parametrize("compile_", ["auto", pytest.param("steps", marks=pytest.mark.whole)])
@pytest.mark.parametrize("kind", ["loader", "loader as it is", "items", "items, mask of the source", "collate"])
def test_a_source_is_padded_as_by_hand(kind: str, compile_: str) -> None:
    if kind.startswith("loader"):
        source: Any = aa.IterableSource("texts", loader(), **ROLES, pad=PADS)
    elif kind == "collate":
        source = aa.MapSource("texts", Texts(), **ROLES, pad=PADS, collate=collated)
    elif kind == "items":
        items = [{**Texts()[row], "mask": np.ones_like(TOKENS[row])} for row in range(ROWS)]
        source = aa.MapSource("texts", items, **ROLES, pad=PADS)
    else:
        pad = {"ids": aa.Pad(0, mask="mask")}
        source = aa.MapSource("texts", Texts(), features="ids", target="kind", pad=pad)
    net = made(Classifier)
    phase = aa.TrainPhase(
        "t",
        data=loader() if kind == "loader as it is" else source,
        losses=LOSS,
        sampler=SAMPLER,
        epochs=EPOCHS,
        compile=compile_,
        validation=aa.EvalPhase("v", data=source, metrics=["accuracy"]),
    )
    results = run(graph_of(source, net), phase)
    means, expected = by_hand()
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    assert_same(net, expected)
    with torch.no_grad():
        ids, mask = stacked(TOKENS), stacked([np.ones_like(row) for row in TOKENS])
        loss = F.cross_entropy(expected(ids, mask), torch.from_numpy(CLASSES)).item()
    assert results.epochs[-1].validation["loss"] == pytest.approx(loss, rel=1e-5)


def test_batches_of_a_source_that_make_one_update_are_padded_together() -> None:
    net = made(Classifier)
    source = aa.IterableSource("texts", loader(4), **ROLES, pad=PADS)
    run(graph_of(source, net), aa.TrainPhase("t", data=source, losses=LOSS, epochs=EPOCHS, accumulate=2))
    assert_same(net, by_hand(size=8)[1])


@pytest.mark.parametrize("classes", [False, True])
def test_the_loss_of_an_epoch_is_the_mean_over_all_elements_of_its_batches(classes: bool) -> None:
    values = [np.tanh(row.astype("float32")) for row in TOKENS]
    columns = {"ids": TOKENS, "y": TAGS if classes else values}
    data = aa.FeatureSet.from_dict("t", columns, "ids", "y", pad=dict.fromkeys(("ids", "y"), 0))
    torch.manual_seed(0)
    last = nn.Linear(8, 4) if classes else nn.Sequential(nn.Linear(8, 1), nn.Flatten())
    net, loss = nn.Sequential(nn.Embedding(50, 8), last), F.cross_entropy if classes else F.mse_loss
    total = count = 0.0
    for start in range(0, ROWS, BATCH):
        parts = [[torch.from_numpy(row) for row in columns[name][start : start + BATCH]] for name in ("ids", "y")]
        ids, y = (pad_sequence(part, batch_first=True) for part in parts)
        outputs = net(ids).flatten(0, 1) if classes else net(ids)
        total += loss(outputs, y.flatten() if classes else y).item() * y.numel()
        count += y.numel()
    name = "cross_entropy" if classes else "mse"
    phase = aa.TrainPhase("t", data=data, losses=aa.AppliedLoss(name, on="net"), sampler=aa.SimpleSampler(BATCH))
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference("ids"))], aa.Optimizer("sgd", lr=1e-12))
    results = aa.Experiment("t", graph, progress="none").run_phase(phase)
    assert results.loss[0] == pytest.approx(total / count, rel=1e-6)


def test_batches_of_a_source_are_rounded_up() -> None:
    net = made(Classifier)
    pads = {name: aa.Pad(0, multiple_of=8) for name in PADS}
    source = aa.IterableSource("texts", loader(), **ROLES, pad=pads)
    run(graph_of(source, net), aa.TrainPhase("t", data=source, losses=LOSS, epochs=EPOCHS))
    assert_same(net, by_hand(8)[1])


def test_a_collate_function_gets_exactly_the_items_of_a_batch() -> None:
    sizes: list[int] = []

    def counted(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        sizes.append(len(items))
        return {"x": torch.stack([item["ids"][:1].float() for item in items]), "kind": torch.zeros(len(items), 1)}

    source = aa.MapSource("texts", Texts(), features="x", target="kind", collate=counted)
    graph = aa.ModelGraph([aa.ModelNode("net", nn.Linear(1, 1), source.reference())], aa.Optimizer("sgd"))
    graph.build()
    sizes.clear()
    run(graph, aa.TrainPhase("t", data=source, losses=aa.AppliedLoss("mse", on="net"), sampler=SAMPLER, epochs=2))
    assert [size for size in sizes if size != 4] == [8, 8, 8, 8, 8, 5] * 2


def wrong(**batch: Any) -> Any:
    return lambda items: {**collated(items), **batch}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pad": {"ids": 0}}, r"'mask' of the batch of .*if batches differ in length, set pad={'mask': 0}"),
        ({"collate": 3}, r"collate=3 is not a function. Hint: write collate=lambda items"),
        ({"collate": wrong(kind=torch.zeros(3))}, r"the columns of the batch of .* differ in length"),
        ({"collate": lambda items: collated(items[1:])}, r"collate returned 7 rows for 8 items.*one row for each item"),
        ({"collate": lambda items: items[99]}, r"could not be collated: IndexError"),
        ({"pad": {**PADS, "mask": aa.Pad(0, mask="m")}}, r"cannot create a mask of 'mask': the lengths of rows"),
        ({"pad": {**PADS, "ids": aa.Pad(0, length=4)}}, r"'ids' of .* has a row of \d+ entries.*it is padded to 4"),
        ({"pad": {**PADS, "ids": 0.5}}, r"column 'ids' is of int64, which cannot hold the padding value 0.5"),
        ({"pad": {**PADS, "kind": 0}}, r"column 'kind' of .* has the shape \[8\], which has no axis to pad"),
    ],
)
def test_sources_that_cannot_be_padded_say_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((SourceError, ColumnError), match=message):
        source = aa.MapSource("texts", Texts(), **{**ROLES, "pad": PADS, "collate": collated, **settings})
        for start in range(0, 40, 8):
            source.gather(range(start, start + 8))


def test_a_loader_of_different_lengths_is_told_what_to_write() -> None:
    source = aa.IterableSource("texts", loader(), **ROLES)
    with pytest.raises(SourceError, match=r"if batches differ in length, set pad={'ids': 0}"):
        list(source.batches(0))


def test_a_data_set_of_hugging_face_is_given_to_a_phase_as_it_is() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"ids": [row.tolist() for row in TOKENS], "kind": CLASSES.tolist()})
    data = aa.FeatureSet.from_arrow("texts", dataset, ["ids"], ["kind"], pad={"ids": aa.Pad(0, mask="mask")})
    net = made(Classifier)
    phase = aa.TrainPhase("t", data=dataset, losses=LOSS, sampler=SAMPLER, epochs=EPOCHS)
    run(graph_of(data, net), phase)
    assert_same(net, by_hand()[1])


# -- graphs ------------------------------------------------------------------------------------------------------------

SIZES = RANDOM.integers(2, 8, size=ROWS)
NODES = [RANDOM.normal(size=(n, 4)).astype("float32") for n in SIZES]
EDGES = [RANDOM.integers(0, n, size=(RANDOM.integers(1, 3 * n), 2)) for n in SIZES]
SUMS = np.array([[nodes.sum()] for nodes in NODES], "float32")


class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def disjoint(self, x: Tensor, edges: Tensor, graph: Tensor, count: int) -> Tensor:
        """Of nodes [all nodes, 4], edges [2, all edges] and the graph of each node [all nodes]."""
        x = x.new_zeros(len(x), 8).index_add(0, edges[1], self.layer(x)[edges[0]])
        return self.head(x.new_zeros(count, 8).index_add(0, graph, x))

    def forward(self, nodes: Tensor, edges: Tensor, is_node: Tensor, is_edge: Tensor) -> Tensor:
        is_node, is_edge = is_node.bool(), is_edge.bool()
        first = is_node.sum(dim=1).cumsum(dim=0) - is_node.sum(dim=1)
        pairs = (edges + first[:, None, None])[is_edge].T
        return self.disjoint(nodes[is_node], pairs, is_node.nonzero()[:, 0], len(nodes))


def test_graphs_of_nodes_and_edges_train_as_disjoint_batches_by_hand() -> None:
    pads = {"nodes": aa.Pad(0, mask="is_node"), "edges": aa.Pad(0, mask="is_edge")}
    data = aa.FeatureSet.from_dict(
        "graphs", {"nodes": NODES, "edges": EDGES, "y": SUMS}, ["nodes", "edges"], ["y"], pad=pads
    )
    inputs = {name: data.reference(name) for name in ("nodes", "edges", "is_node", "is_edge")}
    net, expected = made(Messages), made(Messages)
    graph = aa.ModelGraph([aa.ModelNode("net", net, inputs)], aa.Optimizer("sgd", lr=1e-3))
    loss = aa.AppliedLoss("mse", on="net")
    run(graph, aa.TrainPhase("t", data="all", losses=loss, sampler=SAMPLER, epochs=EPOCHS))
    optimizer = torch.optim.SGD(expected.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        for rows in batches(epoch):
            first = np.cumsum([0, *SIZES[rows][:-1]])
            x = torch.from_numpy(np.concatenate([NODES[row] for row in rows]))
            pairs = np.concatenate([EDGES[row] + start for row, start in zip(rows, first, strict=True)])
            owner = torch.repeat_interleave(torch.arange(len(rows)), torch.from_numpy(SIZES[rows]))
            output = expected.disjoint(x, torch.from_numpy(pairs).T, owner, len(rows))  # type: ignore[operator]
            optimizer.zero_grad()
            F.mse_loss(output, torch.from_numpy(SUMS[rows])).backward()
            optimizer.step()
    assert_same(net, expected)


def test_batches_of_a_graph_library_are_refused() -> None:
    batch = {"x": torch.zeros(7, 4), "edge_index": torch.zeros(2, 9, dtype=torch.int64), "y": torch.zeros(3, 1)}
    source = aa.IterableSource("graphs", [batch], features=["x", "edge_index"], target="y")
    with pytest.raises(SourceError, match=r"differ in length; x: 7, edge_index: 2, y: 3. Hint: .*one entry"):
        next(source.batches(0))
