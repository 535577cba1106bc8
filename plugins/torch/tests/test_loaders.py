"""Loaders of torch that leave rows out or repeat them: refused, warned of, or as their user chose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

import anyaccel as aa
from anyaccel import IterableSource
from anyaccel.errors import SourceError

ROWS = 12
X = torch.arange(float(ROWS))[:, None]
DATA = TensorDataset(X, X)


class EachReadsAll(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, X, strict=True)


class EachReadsItsPart(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        for row in range(worker.id, ROWS, worker.num_workers):
            yield X[row], X[row]


def source(loader: Any) -> IterableSource:
    return IterableSource("s", loader, features="x", target="y")


def rows(loader: Any) -> list[int]:
    return sorted(int(row) for batch in source(loader).batches(0) for row in batch["x"][:, 0])


def test_a_sampler_of_one_of_several_parts_is_refused() -> None:
    part = DistributedSampler(DATA, 2, 0, shuffle=False)
    expected = list(range(0, ROWS, 2))
    for loader in (DataLoader(DATA, 3, sampler=part), DataLoader(DATA, batch_sampler=BatchSampler(part, 3, False))):
        with pytest.raises(
            SourceError, match=r"1 of 2 parts of its rows: DistributedSampler.*create the loader without it"
        ):
            source(loader)
        assert rows(lambda it=loader: it) == expected == sorted(int(x) for batch in loader for x in batch[0])
    model = torch.nn.Linear(1, 1)
    with pytest.raises(SourceError, match="DistributedSampler"):
        aa.fit(model, DataLoader(DATA, 3, sampler=part), loss="mse", accelerator="cpu", progress="none")


def test_samplers_that_a_user_chose_are_obeyed() -> None:
    assert rows(DataLoader(DATA, 3)) == list(range(ROWS))
    assert rows(DataLoader(DATA, 3, sampler=DistributedSampler(DATA, 1, 0))) == list(range(ROWS))
    assert rows(DataLoader(DATA, 3, sampler=SubsetRandomSampler(range(4)))) == [0, 1, 2, 3]
    assert rows(DataLoader([(X[:5], X[:5]), (X[5:], X[5:])], batch_size=None)) == list(range(ROWS))


def test_rows_that_drop_last_leaves_out_are_told_in_training_and_warned_of_in_an_evaluation() -> None:
    options: dict[str, Any] = {"loss": "mse", "epochs": 1, "accelerator": "cpu", "progress": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = aa.fit(torch.nn.Linear(1, 1), DataLoader(DATA, 5, drop_last=True), **options)
        assert any("drops 2 rows of each epoch" in event.message for event in fitted.results.events)
        even = aa.fit(torch.nn.Linear(1, 1), DataLoader(DATA, 4, drop_last=True), **options)
        assert not any("leaves" in event.message for event in even.results.events)
        assert len(fitted.predict(DataLoader(DATA, 5))) == ROWS, "the hint"
    with pytest.warns(UserWarning, match=r"leaves 2 of its rows out: its loader has drop_last=True.*drop_last=False"):
        assert len(fitted.predict(DataLoader(DATA, 5, drop_last=True))) == 10


def test_workers_that_read_all_rows_each_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    settings: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork"}
    with pytest.warns(UserWarning, match="every row comes 2 times in an epoch"):
        assert rows(DataLoader(EachReadsAll(), **settings)) == np.repeat(range(ROWS), 2).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(DataLoader(EachReadsAll(), batch_size=2)) == list(range(ROWS)), "the hint: num_workers=0"
        assert rows(DataLoader(EachReadsItsPart(), **settings)) == list(range(ROWS)), "the hint: each its part"
