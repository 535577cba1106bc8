"""Rows that are gathered for later calls: the same rows as gathered by each call, and dropped where they do not fit."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel_torch import program
from anyaccel_torch.program import RowsAhead

COLUMNS = (torch.arange(600.0).reshape(200, 3), torch.arange(200))
ORDER = torch.randperm(200, generator=torch.Generator().manual_seed(0))
ORDERS = (ORDER, ORDER)


def taken(rows: RowsAhead, start: int, n_steps: int, batch: int, orders: tuple = ORDERS) -> list:
    return list(rows.take(COLUMNS, orders, start, n_steps, batch))


def by_hand(start: int, n_steps: int, batch: int, orders: tuple = ORDERS) -> list:
    spans = [slice(first, first + batch) for first in range(start, start + n_steps * batch, batch)]
    return [tuple(column[order[span]] for column, order in zip(COLUMNS, orders, strict=True)) for span in spans]


def assert_same(given: list, expected: list) -> None:
    assert len(given) == len(expected)
    for left, right in zip(given, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_rows_that_were_not_taken_are_free_with_what_gathered_them() -> None:
    """At once, not when Python next looks for cycles."""
    column, rows = COLUMNS[0].clone(), RowsAhead(1000)
    held = weakref.ref(column)
    gc.disable()
    try:
        assert len(list(rows.take([column], [ORDER], 0, 2, 4))) == 2
        del column, rows
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("max_bytes", [1, 1000, 2**20])
@pytest.mark.parametrize("calls", [[1] * 25, [1, 2, 4, 8, 10], [3, 1, 21], [25]])
def test_calls_get_the_rows_that_they_ask_for(max_bytes: int, calls: list[int]) -> None:
    rows, start = RowsAhead(max_bytes), 0
    for n_steps in calls:
        assert_same(taken(rows, start, n_steps, 8), by_hand(start, n_steps, 8))
        start += n_steps * 8


def test_a_call_that_goes_back_or_has_another_size_gathers_anew() -> None:
    rows = RowsAhead(2**20)
    for start, n_steps, batch in [(0, 1, 8), (8, 1, 8), (8, 1, 8), (0, 2, 8), (16, 1, 4), (20, 1, 8), (192, 1, 8)]:
        assert_same(taken(rows, start, n_steps, batch), by_hand(start, n_steps, batch))


def test_another_order_of_the_same_length_is_another_epoch() -> None:
    rows, other = RowsAhead(2**20), (ORDER.flip(0), ORDER.flip(0))
    taken(rows, 0, 1, 8)
    assert_same(taken(rows, 8, 1, 8, other), by_hand(8, 1, 8, other))


def test_rows_of_single_steps_are_gathered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, real = [], program.gathered_blocks

    def counting(*arguments):
        for block in real(*arguments):
            gathered.append(len(block[0]))
            yield block

    monkeypatch.setattr(program, "gathered_blocks", counting)
    rows = RowsAhead(2**20)
    for step in range(25):
        taken(rows, step * 8, 1, 8)
    assert gathered == [200]


def test_what_was_gathered_is_dropped_with_its_last_step_and_by_clear() -> None:
    rows = RowsAhead(2**20)
    for last in (rows.clear, lambda: taken(rows, 8, 24, 8)):
        block = weakref.ref(next(iter(rows.take(COLUMNS, ORDERS, 0, 1, 8)))[0]._base)  # noqa: SLF001 - the rows of all steps
        assert block() is not None
        last()
        assert block() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bfloat16])
def test_each_batch_begins_where_torch_would_begin_a_tensor(dtype: torch.dtype) -> None:
    """So that the last bits of a step do not depend on where its call began: those of products on a CPU do."""
    columns = (torch.arange(1400).reshape(200, 7).to(dtype), torch.arange(200).to(dtype))
    rows = RowsAhead(2**20)
    for start, n_steps in [(0, 1), (5, 3), (20, 2), (40, 30)]:
        given = list(rows.take(columns, ORDERS, start, n_steps, 5))
        assert all(part.data_ptr() % 64 == 0 and part.is_contiguous() for batch in given for part in batch)
        for i, batch in enumerate(given):
            span = ORDER[start + 5 * i : start + 5 * i + 5]
            assert all(torch.equal(part, column[span]) for part, column in zip(batch, columns, strict=True))


def test_a_run_cut_within_an_epoch_has_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    """Batches of 7 rows of 6 numbers: 168 bytes."""
    draw = np.random.default_rng(0)
    table = {"x": draw.normal(size=(53, 6)).astype("float32"), "y": draw.normal(size=(53, 1)).astype("float32")}

    class Cut(aa.Callback):
        left = 11

        def step_end(self, run: Any) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    def trained(folder: str, callbacks: list[aa.Callback]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        data = aa.FeatureSet.from_dict("data", table, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], aa.Optimizer("sgd", lr=0.1))
        checkpoint = tmp_path / folder
        settings: dict[str, Any] = {"batch_size": 7, "epochs": 4, "compile": "off", "checkpoint": checkpoint}
        phase = aa.TrainPhase("t", data="all", losses=aa.AppliedLoss("mse"), callbacks=callbacks, **settings)
        graph.run(phase, progress="none", resume="auto")
        return list(net.parameters())

    whole = trained("whole", [])
    with pytest.raises(KeyboardInterrupt):
        trained("cut", [Cut()])
    assert all(torch.equal(a, b) for a, b in zip(trained("cut", []), whole, strict=True))
