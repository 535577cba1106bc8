"""Batch normalization and a batch of one row: refused before the first step where that is known, else in its step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import PhaseError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
X = np.random.default_rng(0).normal(size=(33, 6)).astype("f4")
LOSSES = [aa.AppliedLoss("mse", on="net")]


class Inside(nn.Module):
    """Batch normalization in a module of one's own."""

    def __init__(self, norm: nn.Module, shape: tuple[int, ...] = (4,)) -> None:
        super().__init__()
        self.shape, self.first, self.norm, self.last = shape, nn.Linear(6, int(np.prod(shape))), norm, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).reshape(len(x), *self.shape))
        return self.last(hidden.flatten(2).mean(2) if hidden.ndim > 2 else hidden)


class Functional(nn.Module):
    """Calls the function, which no layer tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(self.layer(x), None, None, training=True)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def graph_of(net: nn.Module, n_rows: int = 33, **settings: Any) -> aa.ModelGraph:
    torch.manual_seed(0)
    x = X[:n_rows]
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference(), **settings)], aa.Optimizer("sgd", lr=0.1))


def trained(graph: aa.ModelGraph, **settings: Any) -> np.ndarray:
    drawn = {} if "batch_size" in settings else {"sampler": aa.SimpleSampler(32)}
    keywords = {"data": "all", "accelerator": "cpu", "losses": LOSSES, **drawn} | settings
    return graph.run(aa.TrainPhase("t", **keywords), progress="none").loss


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "inside": lambda: Inside(nn.BatchNorm1d(4)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1)),
    "maps_of_one_pixel": lambda: Inside(nn.BatchNorm2d(4), (4, 1, 1)),
    "no_momentum": lambda: Inside(nn.BatchNorm1d(4, momentum=None)),
    "no_statistics": lambda: Inside(nn.BatchNorm1d(4, track_running_stats=False)),
    "synchronized": lambda: Inside(nn.SyncBatchNorm(4)),
    "scripted": lambda: torch.jit.script(plain()),
    "compiled": lambda: torch.compile(plain(), backend="eager"),
    "constant_weights": lambda: Inside(nn.BatchNorm1d(4).requires_grad_(False)),
}
TAKEN: dict[str, Callable[[], nn.Module]] = {
    "maps": lambda: Inside(nn.BatchNorm2d(4), (4, 2, 2)),
    "groups": lambda: Inside(nn.GroupNorm(2, 4)),
    "layers": lambda: Inside(nn.LayerNorm(4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_last_batch_of_one_row_is_refused_before_the_first_step(name: str) -> None:
    graph = graph_of(REFUSED[name]())
    graph.build()
    before = graph.state()
    with pytest.raises(
        PhaseError,
        match=r"phase 't': step 2 of each epoch has a batch of one row, and node 'net' cannot be trained on it: "
        r"Expected more than 1 value per channel.*Hint: draw batches of 31 rows, or leave that one out: "
        r"sampler=SimpleSampler\(32, drop_last=True\)\.",
    ):
        trained(graph)
    after = graph.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "sampler", [aa.SimpleSampler(31, shuffle=True), aa.SimpleSampler(31), aa.SimpleSampler(32, drop_last=True)]
)
def test_what_the_hint_says_trains(sampler: Any) -> None:
    assert np.isfinite(trained(graph_of(plain()), sampler=sampler)).all()


@pytest.mark.parametrize("name", TAKEN)
def test_layers_that_take_one_row_train_with_it_as_by_hand(name: str) -> None:
    torch.manual_seed(1)
    net = TAKEN[name]()
    torch.manual_seed(1)
    hand = TAKEN[name]()
    optimizer, values = torch.optim.SGD(hand.parameters(), 0.1), []
    for rows in (slice(0, 32), slice(32, 33)):
        optimizer.zero_grad()
        x = torch.tensor(X[rows])
        loss = nn.functional.mse_loss(hand(x), x[:, :1])
        loss.backward()
        optimizer.step()
        values.append(loss.item() * len(x))
    np.testing.assert_allclose(trained(graph_of(net)), sum(values) / 33, rtol=1e-5)


def test_norms_in_evaluation_mode_take_one_row() -> None:
    net = plain()
    net[1].eval()
    assert np.isfinite(trained(graph_of(net, modes="as_is"))).all()
    with pytest.raises(PhaseError, match="a batch of one row"):
        trained(graph_of(plain(), modes="as_is"))


def test_accumulated_batches_and_batches_of_one() -> None:
    with pytest.raises(PhaseError, match="step 1 of each epoch has a batch of one row"):
        trained(graph_of(plain()), accumulate=2)
    with pytest.raises(PhaseError, match=r"step 1 of each epoch.*Hint: draw batches of 3 rows\.$"):
        trained(graph_of(plain()), batch_size=1)


@pytest.mark.parametrize(("n_rows", "size"), [(33, 32), (7, 2), (7, 3), (13, 2), (13, 4), (5, 1), (9, 4)])
def test_both_parts_of_the_hint_are_followed(n_rows: int, size: int) -> None:
    with pytest.raises(PhaseError) as caught:
        trained(graph_of(plain(), n_rows), batch_size=size)
    found = re.fullmatch(
        r"draw batches of (\d+) rows(, or leave that one out: sampler=(SimpleSampler\(.*\)))?", caught.value.hint
    )
    assert found is not None
    trained(graph_of(plain(), n_rows), batch_size=int(found[1]))
    if size > 1:  # of a batch size, which shuffles
        assert found[3] == f"SimpleSampler({size}, shuffle=True, drop_last=True)"
        trained(graph_of(plain(), n_rows), sampler=aa.SimpleSampler(size, shuffle=True, drop_last=True))


def test_one_row_alone_has_no_batches_of_another_size() -> None:
    with pytest.raises(PhaseError, match=r"Hint: use more rows\.$"):
        trained(graph_of(plain(), 1), batch_size=32)
    trained(graph_of(plain(), 2), batch_size=32)


def test_fit_refuses_it_too_and_takes_the_size_of_the_hint() -> None:
    settings: dict[str, Any] = {"loss": "mse", "epochs": 1, "accelerator": "cpu", "progress": "none"}
    with pytest.raises(PhaseError, match="draw batches of 31 rows"):
        aa.fit(plain(), (X, X[:, :1]), batch_size=32, **settings)
    aa.fit(plain(), (X, X[:, :1]), batch_size=31, **settings)


class Batches:
    """Batches whose sizes nobody knows before they are there."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for size in self.sizes:
            yield {"x": X[:size], "y": X[:size, :1]}


@pytest.mark.parametrize("make", [plain, Functional])
def test_a_batch_of_a_source_is_refused_in_its_step(make: Callable[[], nn.Module]) -> None:
    source = aa.IterableSource("d", Batches(8, 8, 1), features="x", target="y")
    graph = aa.ModelGraph([aa.ModelNode("net", make(), source.reference())], "sgd")
    with pytest.raises(
        PhaseError, match=r"node 'net' cannot be trained with a batch of 1 row: Expected more.*drop_last=True"
    ) as caught:
        trained(graph, data=source, sampler=aa.SimpleSampler(8))
    assert "it was step 3 of epoch 1" in caught.value.__notes__
