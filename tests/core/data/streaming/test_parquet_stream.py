"""ParquetStream: every row once, in an order that follows from the seed, in little memory, with nothing left open."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel.data import FeatureSet, ParquetStream, SimpleSampler
from anyaccel.errors import ColumnError, DataError, SamplerError, SourceError

Held = Callable[[], tuple[list[str], int]]
ROWS = 100


def columns(n: int = ROWS, start: int = 0) -> pa.Table:
    number = np.arange(start, start + n)
    vector = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(number, 3).astype("float32")), 3)
    return pa.table(
        {"x": vector, "f": pa.array(number % 2 == 0), "y": number, "t": [f"row {i}" for i in number], "unread": number}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 100 rows in row groups of 8."""
    pq.write_table(columns(), tmp_path / "rows.parquet", row_group_size=8)
    return tmp_path / "rows.parquet"


def stream(path: Any, **settings: Any) -> ParquetStream:
    return ParquetStream("s", path, **{"features": ["x", "f"], "target": "y", "tags": "t", **settings})


def numbers(given: ParquetStream, epoch: int = 0) -> list[int]:
    """The rows of an epoch, after a check that all columns belong together."""
    result: list[int] = []
    for batch in given.batches(epoch):
        assert list(batch) == ["x", "f", "y", "t"]
        assert np.array_equal(batch["x"], np.repeat(batch["y"], 3).reshape(-1, 3).astype("float32"))
        assert batch["x"].dtype == np.float32 and batch["f"].dtype == np.bool_
        assert np.array_equal(batch["f"], batch["y"] % 2 == 0)
        assert batch["t"].tolist() == [f"row {i}" for i in batch["y"]]
        result += batch["y"].tolist()
    return result


def sizes(given: ParquetStream) -> list[int]:
    return [len(batch["y"]) for batch in given.batches(0)]


@pytest.mark.parametrize("buffer_size", [None, 1, 5, 8, 30, 99, 100])
@pytest.mark.parametrize("batch", [1, 7, 32, 100, 1000])
def test_every_row_once_in_another_order_each_epoch(path: Path, buffer_size: int | None, batch: int) -> None:
    made = stream(path, sampler=SimpleSampler(batch, shuffle=True, seed=5), buffer_size=buffer_size)
    first, second = numbers(made, 0), numbers(made, 1)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second and first != list(range(ROWS))
    assert numbers(made, 0) == first and made.repeats
    assert sizes(made) == [batch] * (ROWS // batch) + ([ROWS % batch] if ROWS % batch else [])
    assert (made.rows, made.steps, made.buffer_size) == (ROWS, -(-ROWS // batch), buffer_size or 32)


def test_not_shuffled_is_the_order_of_the_files(path: Path) -> None:
    made = stream(path, sampler=SimpleSampler(9))
    assert numbers(made) == numbers(made, 3) == list(range(ROWS))


def test_the_seed_decides_and_a_batch_size_shuffles(path: Path) -> None:
    first, other = (stream(path, sampler=SimpleSampler(9, shuffle=True, seed=seed)) for seed in (0, 1))
    assert numbers(first) != numbers(other)
    assert numbers(stream(path, batch_size=9)) == numbers(first)
    assert numbers(first)[:9] == [44, 7, 77, 72, 14, 9, 73, 1, 3], "pinned: the same on every machine"


def test_a_row_stays_in_its_filling_of_the_buffer(path: Path) -> None:
    made = numbers(stream(path, batch_size=10, buffer_size=16))
    for start in range(0, 96, 16):
        groups = {row // 8 for row in made[start : start + 16]}
        assert len(groups) <= 3, "two row groups, or parts of three beside the short last one"


def test_drop_last(path: Path) -> None:
    made = stream(path, sampler=SimpleSampler(30, shuffle=True, drop_last=True))
    assert sizes(made) == [30, 30, 30] and made.steps == 3
    assert len(set(numbers(made))) == 90
    with pytest.raises(SamplerError, match=r"drop_last leaves no batch of 101"):
        stream(path, sampler=SimpleSampler(101, drop_last=True))


def test_folders_lists_and_their_columns(tmp_path: Path) -> None:
    for site in (1, 2):
        (tmp_path / f"site={site}").mkdir()
        pq.write_table(columns(10, 10 * site), tmp_path / f"site={site}" / "a.parquet", row_group_size=4)
    made = ParquetStream("s", tmp_path, features=["x", "site"], target="y", batch_size=6)
    result = list(made.batches(0))
    assert sorted(np.concatenate([batch["y"] for batch in result]).tolist()) == list(range(10, 30))
    assert all(np.array_equal(batch["site"], batch["y"] // 10) for batch in result)
    only = ParquetStream("s", tmp_path, features="site", sampler=SimpleSampler(20))
    assert next(only.batches(0))["site"].tolist() == [1] * 10 + [2] * 10
    files = [tmp_path / f"site={site}" / "a.parquet" for site in (2, 1)]
    listed = ParquetStream("s", files, features="x", target="y", sampler=SimpleSampler(20))
    assert next(listed.batches(0))["y"].tolist() == [*range(20, 30), *range(10, 20)]


def test_roles_from_the_files_and_the_rest(path: Path, tmp_path: Path) -> None:
    stored = FeatureSet.from_arrow("s", columns(), ["x"], ["y"], ["t"])
    pq.write_table(stored.to_arrow(), tmp_path / "roles.parquet")
    made = ParquetStream("s", tmp_path / "roles.parquet")
    assert (made.features, made.targets, made.tags) == (("x",), ("y",), ("t",))
    rest = ParquetStream("s", path, features=..., target="y", tags=["t"])
    assert rest.features == ("x", "f", "unread")


def test_the_example_is_of_the_same_specs_as_a_feature_set(path: Path) -> None:
    made, same = stream(path), FeatureSet.from_parquet("s", path, ["x", "f"], "y", "t")
    assert [made.spec(name) for name in ("x", "f", "y")] == [same.spec(name) for name in ("x", "f", "y")]
    assert len(made.example) == 4 and made.example.column("t").to_pylist()[0] == "row 0"
    assert made.reference("x").features == ("x",)
    assert repr(made) == "ParquetStream('s', 100 rows; 4 batches; columns: x, f, y, t)"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0]] * 20, pa.list_(pa.float64())),
        pa.array([[[1], [2]]] * 20, pa.large_list(pa.large_list(pa.int16()))),
        pa.array([[True, False]] * 20, pa.list_(pa.bool_(), 2)),
        pa.array(np.ones(20, "int8")),
        pa.array(np.ones(20, "uint64")),
    ],
)
def test_types_are_read_as_a_feature_set_reads_them(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", row_group_size=6)
    same = FeatureSet.from_parquet("s", tmp_path / "x.parquet", "x").array("x")
    made = ParquetStream("s", tmp_path / "x.parquet", features="x", sampler=SimpleSampler(20))
    result = next(made.batches(0))["x"]
    assert np.array_equal(result, same) and result.dtype == same.dtype


def test_tags_of_numbers_with_nulls_and_empty_row_groups(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.int32(), "t": pa.int64()})
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for rows in ([1, 2], [], [3]):
            writer.write_table(pa.table({"x": rows, "t": [None if i == 2 else i for i in rows]}, schema=schema))
    made = ParquetStream("s", tmp_path / "x.parquet", features="x", tags="t", sampler=SimpleSampler(2))
    first, second = made.batches(0)
    assert np.array_equal(first["t"], [1, np.nan], equal_nan=True) and second["t"].tolist() == [3]


# -- bad input -------------------------------------------------------------------------------------------------------


def test_a_buffer_larger_than_the_data(path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"buffer_size=101 is larger than the data; 100 rows. Hint: write buffer_size=100"
    ):
        stream(path, buffer_size=101)


@pytest.mark.parametrize("buffer_size", [0, -3, True, 2.5, "all"])
def test_buffer_size_must_be_a_positive_integer(path: Path, buffer_size: Any) -> None:
    with pytest.raises(SourceError, match=r"is not a number of rows.*leave it out"):
        stream(path, buffer_size=buffer_size)


def test_a_buffer_without_shuffling_and_another_sampler_are_refused(path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"buffer_size=8, but nothing is shuffled.*SimpleSampler\(\.\.\., shuffle=True\)"
    ):
        stream(path, buffer_size=8, sampler=SimpleSampler(4))
    for wrong in (True, "simple"):
        with pytest.raises(SourceError, match=r"cannot be read by .*pass a SimpleSampler, or batch_size=32"):
            stream(path, sampler=wrong)
    with pytest.raises(SourceError, match=r"has sampler=8\. Hint: write batch_size=8\."):
        stream(path, sampler=8)
    with pytest.raises(SourceError, match=r"has both a sampler and a batch_size\. Hint: leave batch_size out"):
        stream(path, sampler=SimpleSampler(8), batch_size=32)
    with pytest.raises(SamplerError, match=r"epoch='first' is not an integer"):
        stream(path).batches("first")  # type: ignore[arg-type]


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        stream(tmp_path / "none.parquet")
    with pytest.raises(SourceError, match=r"source 's': the folder .* has no Parquet file"):
        stream(tmp_path)
    with pytest.raises(SourceError, match=r"source 's': the list of files for 's' is empty"):
        stream([])


def test_invalid_columns_are_refused(path: Path) -> None:
    with pytest.raises(ColumnError, match=r"'s' has no column 'z'"):
        stream(path, features="z")
    with pytest.raises(DataError, match=r"'a.b' is not a label"):
        ParquetStream("a.b", path, features="x")


def test_schemas_that_differ(tmp_path: Path, path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5], "f": [True], "y": [1], "t": ["a"]}), tmp_path / "z.parquet")
    with pytest.raises(
        ColumnError, match=r"column 'x' is of type .* in .*rows\.parquet and of type double in .*z\.parquet"
    ):
        stream(tmp_path)


def test_no_rows_at_all(tmp_path: Path) -> None:
    pq.write_table(columns(0), tmp_path / "none.parquet")
    with pytest.raises(SourceError, match=r"source 's' has no rows; 1 Parquet files without a row"):
        stream(tmp_path / "none.parquet")


def test_a_file_cut_short(path: Path, held: Held) -> None:
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(SourceError, match=r"rows\.parquet cannot be read as Parquet: .*write the file again"):
        stream(path)
    assert held()[0] == []


def test_a_file_cut_short_while_it_is_used(path: Path, held: Held) -> None:
    made = stream(path, batch_size=8, buffer_size=8)
    run = made.batches(0)
    next(run)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(SourceError, match=r"rows\.parquet has changed since the source was created"):
        list(run)
    with pytest.raises(SourceError, match=r"rows\.parquet has changed since the source was created"):
        numbers(made, 1)
    del run
    gc.collect()
    assert held()[0] == []


def test_pages_that_are_broken(tmp_path: Path, held: Held) -> None:
    pq.write_table(columns(), tmp_path / "rows.parquet", row_group_size=50, use_dictionary=False, compression="snappy")
    where = tmp_path / "rows.parquet"
    content = bytearray(where.read_bytes())
    offset = pq.ParquetFile(where).metadata.row_group(1).column(0).data_page_offset
    content[offset : offset + 200] = b"\xff" * 200
    where.write_bytes(content)
    made = stream(where, sampler=SimpleSampler(10))
    assert len(made.example) == 4, "of the first row group"
    with pytest.raises(SourceError, match=r"row group 1 of .*rows\.parquet, source 's': .*cannot be read as Parquet"):
        numbers(made)
    assert held()[0] == []


def test_a_file_replaced_since_is_an_error(path: Path) -> None:
    made = stream(path)
    pq.write_table(columns(50), path, row_group_size=8)
    with pytest.raises(SourceError, match=r"rows\.parquet has changed since the source was created"):
        numbers(made)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        numbers(made)


def test_nulls_and_lists_of_another_length_on_the_way(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1.0]] * 10 + [[1.0, 2.0]] * 2), "y": [*range(11), None]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    lists = ParquetStream("s", tmp_path / "x.parquet", features="x", sampler=SimpleSampler(2))
    with pytest.raises(
        SourceError, match=r"column 'x' of row group 1 of .*x\.parquet is float64\[2\].*it is float64\[1\]"
    ):
        list(lists.batches(0))
    nulls = ParquetStream("s", tmp_path / "x.parquet", features="y", sampler=SimpleSampler(2))
    with pytest.raises(SourceError, match=r"row group 1 of .*, source 's': column 'y' has nulls in 1 of 2 rows"):
        list(nulls.batches(0))


# -- memory and handles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_little_is_in_memory_at_once(tmp_path: Path, shuffle: bool) -> None:
    rows, width, group = 40_000, 100, 2_000
    values = np.random.default_rng(0).normal(size=rows * width).astype("float32")
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), width), "y": np.arange(rows)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=group)
    whole, group_bytes = table.nbytes, table.nbytes * group // rows
    del table, values
    sampler = SimpleSampler(64, shuffle=shuffle)
    settings: dict[str, Any] = {"buffer_size": 2 * group} if shuffle else {}
    made = ParquetStream("s", tmp_path / "x.parquet", features="x", target="y", sampler=sampler, **settings)
    before, peak, count = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    try:
        for batch in made.batches(0):
            count += len(batch["y"])
            peak = max(peak, pa.total_allocated_bytes() - before)
        ours = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == rows
    held = 2 * group_bytes if shuffle else max(group_bytes, 8 * 2**20)
    assert ours < held + group_bytes, f"NumPy's: {ours:,} of {whole:,}"
    assert peak < 6 * group_bytes, f"Arrow's: {peak:,} of {whole:,}"
    assert pa.total_allocated_bytes() - before < group_bytes, "nothing is kept after an epoch"


def test_one_file_is_open_at_a_time_and_none_afterwards(tmp_path: Path, held: Held) -> None:
    for number in range(3):
        pq.write_table(columns(20, 20 * number), tmp_path / f"{number}.parquet", row_group_size=5)
    made = stream(tmp_path, batch_size=4, buffer_size=5)
    assert held()[0] == []
    assert len(made.example) == 4 and held()[0] == []
    run = made.batches(0)
    for _ in range(6):
        next(run)
        assert len(held()[0]) <= 1
    run.close()
    assert held() == ([], 0)
    left = made.batches(0)
    next(left)
    del left
    gc.collect()
    assert held()[0] == []


def test_ctrl_c_closes_files(path: Path, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyaccel.data.streaming import parquet_stream as module

    made = stream(path, batch_size=8, buffer_size=8)
    assert len(made.example) == 4
    real_add = module.ShuffleBuffer.add
    calls: list[int] = []

    def interrupted(self: Any, piece: Any) -> None:
        calls.append(len(piece))
        if len(calls) == 4:
            raise KeyboardInterrupt
        real_add(self, piece)

    monkeypatch.setattr(module.ShuffleBuffer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        numbers(made)
    assert held() == ([], 0)
