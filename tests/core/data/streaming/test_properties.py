"""Properties of sources, for any batches and any sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.data import IterableSource, MapSource, ParquetStream, SimpleSampler
from anyaccel.errors import SourceError

DTYPES = ("float32", "float64", "int8", "uint16", "bool")


@st.composite
def a_batch(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A batch that may be empty, of unequal columns, or of any dtype and shape."""
    rows = draw(st.integers(0, 3))
    other = draw(st.sampled_from([rows, rows, rows, rows, rows + 1]))
    shape = draw(st.sampled_from([(2,), (2,), (2,), (), (2, 1), (0,)]))
    dtype = draw(st.sampled_from(["float32", "float32", "float32", *DTYPES]))
    return np.zeros((rows, *shape), dtype), np.arange(other, dtype="int64")


def is_fine(batch: tuple[np.ndarray, np.ndarray], first: tuple[np.ndarray, np.ndarray]) -> bool:
    x, y = batch
    alike = x.shape[1:] == first[0].shape[1:] and x.dtype == first[0].dtype
    return len(x) == len(y) > 0 and 0 not in x.shape and alike


@given(batches=st.lists(a_batch(), max_size=6), by_name=st.booleans())
def test_all_batches_come_up_to_the_first_that_is_wrong(batches: list[Any], by_name: bool) -> None:
    """Batches that come out are alike and complete; an invalid one is refused with its number, and ends the epoch."""
    shown = [{"y": y, "x": x} for x, y in batches] if by_name else batches
    right = 0
    while right < len(batches) and is_fine(batches[right], batches[0]):
        right += 1
    made = IterableSource("s", lambda: iter(shown), features="x", target="y")
    for epoch in range(2):
        result, error = [], ""
        try:
            for batch in made.batches(epoch):
                result.append(batch)
        except SourceError as failure:
            error = str(failure)
        assert len(result) == right
        assert all(np.array_equal(first["x"], two[0]) for first, two in zip(result, batches, strict=False))
        assert bool(error) == (right < len(batches) or not batches)
        if batches and error:
            assert f"batch {right} of source 's' in epoch {epoch}" in error


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    group=st.integers(1, 5),
    batch=st.integers(1, 9),
    part=st.floats(0, 1),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 3),
)
def test_streams_give_every_row_once(
    counts: list[int], group: int, batch: int, part: float, shuffle: bool, drop_last: bool, seed: int
) -> None:
    total = sum(counts)
    sampler = SimpleSampler(batch, shuffle=shuffle, drop_last=drop_last, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        for number, count in enumerate(counts):
            start = sum(counts[:number])
            table = pa.table({"x": np.arange(start, start + count)})
            pq.write_table(table, Path(folder) / f"{number}.parquet", row_group_size=group)
        if total == 0 or (drop_last and total < batch):
            return
        settings: dict[str, Any] = {"buffer_size": max(1, round(part * total))} if shuffle else {}
        made = ParquetStream("s", folder, features="x", sampler=sampler, **settings)
        result = [columns["x"] for columns in made.batches(1)]
        again = [columns["x"] for columns in made.batches(1)]
    assert [len(first) for first in result] == [batch] * (total // batch) + (
        [total % batch] if total % batch and not drop_last else []
    )
    rows = np.concatenate(result).tolist()
    assert len(set(rows)) == len(rows) and set(rows) <= set(range(total))
    assert rows == np.concatenate(again).tolist()
    assert made.steps == len(result) and (shuffle or rows == list(range(len(rows))))


@given(
    rows=st.integers(1, 12),
    asked=st.lists(st.integers(0, 11), min_size=1, max_size=20),
    workers=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
)
def test_items_come_as_asked(rows: int, asked: list[int], workers: int, dtype: str) -> None:
    values = np.arange(rows * 2).reshape(rows, 2).astype(dtype)
    made = MapSource(
        "s", [(value, number) for number, value in enumerate(values)], features="x", target="y", workers=workers
    )
    order = [number % rows for number in asked]
    result = made.gather(order)
    assert np.array_equal(result["x"], values[order]) and result["x"].dtype == values.dtype
    assert result["y"].tolist() == order
