"""Positions, ignored targets, class and sample weights, and masks: as functions of torch over the whole batch."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa

ROWS, TIME, CLASSES = 24, 5, 4
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.25]


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CLASSES, (ROWS, TIME))
    lengths = rng.integers(0, TIME + 1, ROWS)  # some rows have nothing that counts
    mask = np.arange(TIME) < lengths[:, None]
    return {
        "x": rng.normal(size=(ROWS, TIME, 3)).astype("float32"),
        "tokens": np.where(mask, tokens, -100),
        "clean": tokens,
        "mask": mask,
        "image": np.where(rng.random((ROWS, TIME)) < 0.3, 255, tokens).astype("uint8"),
        "real": np.where(mask, rng.normal(size=(ROWS, TIME)), np.nan).astype("float32"),
        "yes": rng.integers(0, 2, (ROWS, TIME)).astype("float32"),
        "vector": rng.normal(size=(ROWS, TIME, CLASSES)).astype("float32"),
        "w": rng.random(ROWS).astype("float32") * (rng.random(ROWS) < 0.8),
        "wt": rng.random((ROWS, TIME)).astype("float32"),
    }


class ClassesFirst(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).movedim(-1, 1)


class Squeezed(ClassesFirst):
    def forward(self, x):
        return self.inner(x)[..., 0]


def weighted(losses, weights):
    return torch.where(weights > 0, losses, 0).mul(weights).sum() / weights.sum()


def ce(outputs, targets, **settings):
    return F.cross_entropy(outputs.movedim(-1, 1), targets.long(), **settings)


CASES = {
    "positions": ({"loss": "cross_entropy"}, "clean", None, lambda y, t, c: ce(y, t)),
    "ignore_index": (
        {"loss": aa.Loss("cross_entropy", ignore_index=-100)},
        "tokens",
        None,
        lambda y, t, c: ce(y, t, ignore_index=-100),
    ),
    "classes first": (
        {"loss": aa.Loss("cross_entropy", ignore_index=255, class_axis=1)},
        "image",
        ClassesFirst,
        lambda y, t, c: F.cross_entropy(y, t.long(), ignore_index=255),
    ),
    "class weights": (
        {"loss": aa.Loss("cross_entropy", ignore_index=-100, class_weights=CLASS_WEIGHTS)},
        "tokens",
        None,
        lambda y, t, c: ce(y, t, ignore_index=-100, weight=torch.tensor(CLASS_WEIGHTS)),
    ),
    "smoothing": (
        {
            "loss": aa.Loss(
                "cross_entropy", ignore_index=-100, class_weights=np.array(CLASS_WEIGHTS), label_smoothing=0.1
            )
        },
        "tokens",
        None,
        lambda y, t, c: ce(y, t, ignore_index=-100, weight=torch.tensor(CLASS_WEIGHTS), label_smoothing=0.1),
    ),
    "only smoothing": (
        {"loss": aa.Loss("cross_entropy", label_smoothing=0.2)},
        "clean",
        None,
        lambda y, t, c: ce(y, t, label_smoothing=0.2),
    ),
    "mask": (
        {"loss": "cross_entropy", "mask": "data.mask"},
        "clean",
        None,
        lambda y, t, c: weighted(ce(y, t, reduction="none"), c["mask"].float()),
    ),
    "weights by row and position, and a mask": (
        {"loss": aa.Loss("cross_entropy", ignore_index=-100), "sample_weight": "data.w", "mask": "data.mask"},
        "tokens",
        None,
        lambda y, t, c: weighted(
            ce(y, t, reduction="none", ignore_index=-100), c["w"][:, None] * (t != -100) * c["mask"]
        ),
    ),
    "mse with a mask over NaN": (
        {"loss": "mse", "mask": "data.mask"},
        "real",
        Squeezed,
        lambda y, t, c: ((y - t)[c["mask"]] ** 2).sum() / c["mask"].sum(),
    ),
    "mae of vectors by position": (
        {"loss": "mae", "sample_weight": "data.wt"},
        "vector",
        None,
        lambda y, t, c: weighted((y - t).abs().mean(-1), c["wt"]),
    ),
    "binary by row": (
        {"loss": "binary_cross_entropy", "sample_weight": "data.w"},
        "yes",
        Squeezed,
        lambda y, t, c: weighted(
            F.binary_cross_entropy_with_logits(y, t, reduction="none"), c["w"][:, None].expand(y.shape)
        ),
    ),
}


def by_hand(model, arrays, target, function, batch):
    columns = {name: torch.from_numpy(array) for name, array in arrays.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for rows in torch.arange(ROWS).split(batch):
            part = {name: column[rows] for name, column in columns.items()}
            loss = function(model(part["x"]), part[target], part)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def over_all(model, arrays, target, function):
    columns = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with torch.no_grad():
        return float(function(model(columns["x"]), columns[target], columns))


def graph_of(arrays, model, target, lr=0.5):
    data = aa.FeatureSet.from_dict("data", {**arrays, "y": arrays[target]}, ["x"], ["y"], ["mask", "w", "wt"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference("x"))], aa.Optimizer("sgd", lr=lr))


def run(graph, phase):
    return aa.Experiment("test", graph, progress="none").run_phase(phase)


def fresh(wrap):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    return wrap(net) if wrap else net


COMPILED = ["weights by row and position, and a mask"]
if os.environ.get("ANYACCEL_TEST_FULL"):
    COMPILED.append("class weights")
HOW = [
    {},
    {"accumulate": 4},
    {"residency": "streamed"},
    {"residency": "streamed", "accumulate": 3},
    {"compile": "steps"},
]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_torch_over_all_that_counts_in_the_batch(case, how, arrays):
    applied, target, wrap, function = CASES[case]
    if how.get("compile") and case not in COMPILED:
        pytest.skip("compiled once for weights, and in the whole once for settings")
    model, mine = fresh(wrap), fresh(wrap)
    sampler = aa.SimpleSampler(12 // how.get("accumulate", 1))
    loss = aa.AppliedLoss(on="net", **applied)
    graph = graph_of(arrays, model, target)
    run(graph, aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, epochs=2, **how))
    by_hand(mine, arrays, target, function, 12)
    for ours, theirs in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    expected = over_all(mine, arrays, target, function)
    evaluated = run(graph, aa.EvalPhase("eval", data="all", losses=loss, batch_size=5))
    assert evaluated.loss == pytest.approx(expected, rel=1e-6)
    still = aa.TrainPhase("still", data="all", losses=loss, sampler=sampler, **how)
    assert run(graph_of(arrays, model, target, lr=1e-20), still).loss[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_rows_of_their_own_lengths_count_by_tokens(accumulate):
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 5, n) for n in rng.integers(1, 7, ROWS)]
    tags = [row % 3 for row in words]
    columns = {"words": [row.tolist() for row in words], "tags": [row.tolist() for row in tags]}
    data = aa.FeatureSet.from_dict("data", columns, ["words"], ["tags"], pad={"words": 0, "tags": -100})
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 3)))
    graph = aa.ModelGraph([aa.ModelNode("net", models[0], data)], aa.Optimizer("sgd", lr=0.5))
    loss = aa.AppliedLoss(aa.Loss("cross_entropy", ignore_index=-100))
    sampler = aa.SimpleSampler(12 // accumulate)
    run(graph, aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, accumulate=accumulate))
    optimizer = torch.optim.SGD(models[1].parameters(), lr=0.5)
    for start in (0, 12):
        part = slice(start, start + 12)
        tokens, targets = (torch.from_numpy(np.concatenate(rows[part])) for rows in (words, tags))
        optimizer.zero_grad()
        F.cross_entropy(models[1](tokens), targets).backward()
        optimizer.step()
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["mse", "mae", "binary_cross_entropy"])
def test_a_model_in_bfloat16_takes_float_targets_and_weights(loss, arrays):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(CLASSES, 1), nn.Flatten()).bfloat16()
    mine = nn.Sequential(nn.Embedding(CLASSES, 1), nn.Flatten()).bfloat16()
    mine.load_state_dict(net.state_dict())
    data = aa.FeatureSet.from_dict("data", arrays, ["clean"], ["yes"], ["wt"])
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference("clean"))], aa.Optimizer("sgd", lr=0.5))
    applied = aa.AppliedLoss(loss, sample_weight="data.wt")
    run(graph, aa.TrainPhase("train", data="all", losses=applied, sampler=aa.SimpleSampler(12)))
    function = {"mse": F.mse_loss, "mae": F.l1_loss, "binary_cross_entropy": F.binary_cross_entropy_with_logits}[loss]
    columns = {name: torch.from_numpy(arrays[name]) for name in ("clean", "yes", "wt")}
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.5)
    for rows in torch.arange(ROWS).split(12):
        losses = function(mine(columns["clean"][rows]).float(), columns["yes"][rows], reduction="none")
        optimizer.zero_grad()
        weighted(losses, columns["wt"][rows]).backward()
        optimizer.step()
    torch.testing.assert_close(net[0].weight, mine[0].weight, rtol=0.01, atol=0.01)
