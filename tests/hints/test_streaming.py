"""Hints of sources of batches and rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
IterableSource, MapSource, ParquetStream, Pad = aa.IterableSource, aa.MapSource, aa.ParquetStream, aa.Pad


def batches(size: int = 8) -> Iterator[Any]:
    for start in range(0, 24, size):
        yield {"x": X[start : start + size]}


def read(source: Any) -> list[Any]:
    """The column x of each batch of an epoch."""
    return [batch["x"] for batch in source.batches(0)]


class Rows:
    """A map-style data set."""

    def __init__(self, rows: Any = X) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return {"x": self.rows[number]}


class Batched:
    """A data set that makes batches of its rows when it is asked to."""

    def __init__(self, size: int = 0) -> None:
        self.size = size

    def batch(self, size: int) -> Batched:
        return Batched(size)

    def __iter__(self) -> Iterator[Any]:
        return batches(self.size) if self.size else ({"x": float(value)} for value in X[:, 0])


def test_rows_in_place_of_batches(hint: Any) -> None:
    source = Batched()
    with hint("batch the rows (source.batch(32), DataLoader(...)), or pass a data set to MapSource(...)"):
        read(IterableSource("data", source, features="x"))
    assert len(read(IterableSource("data", source.batch(32), features="x"))[0]) == 24
    DataLoader = pytest.importorskip("torch.utils.data").DataLoader
    assert len(read(IterableSource("data", DataLoader(Rows(), 12), features="x"))) == 2
    assert MapSource("data", Rows(), features="x").gather([0])["x"].shape == (1, 3)


def test_batches_that_differ(hint: Any) -> None:
    uneven = [{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}]
    with hint("use one shape and dtype for all rows; if batches differ in length, set pad={{}: 0}"):
        read(IterableSource("data", uneven, features="x"))
    padded = read(IterableSource("data", uneven, features="x", pad={"x": 0}))
    assert [batch.shape for batch in padded] == [(2, 3), (2, 4)]
    with hint("set a length that holds all rows, Pad(..., length={}), or cut the rows"):
        read(IterableSource("data", uneven, features="x", pad={"x": Pad(0, length=3)}))
    padded = read(IterableSource("data", uneven, features="x", pad={"x": Pad(0, length=4)}))
    assert [batch.shape for batch in padded] == [(2, 4), (2, 4)]
    flat = [{"x": np.ones((2, 3)), "n": np.ones(2)}]
    with hint("leave {} out of pad="):
        read(IterableSource("data", flat, features=["x", "n"], pad={"x": 0, "n": 0}))
    assert len(read(IterableSource("data", flat, features=["x", "n"], pad={"x": 0}))) == 1


def test_masks_of_padded_batches(hint: Any) -> None:
    given = [{"x": np.ones((2, 3)), "mask": np.ones((2, 3))}, {"x": np.ones((2, 4)), "mask": np.ones((2, 4))}]
    with hint("return {} from the source too, and name it in features= and pad="):
        IterableSource("data", given, features="x", pad={"x": Pad(0, mask="mask")})
    source = IterableSource("data", given, features=["x", "mask"], pad={"x": 0, "mask": 0})
    assert [batch["mask"].shape for batch in source.batches(0)] == [(2, 3), (2, 4)]


def test_parts_of_batches(hint: Any) -> None:
    y, w = X[:, :1], np.ones(24, "float32")
    given = [(X, y, w)]
    with hint("name one column for each part (features=, target=, tags=), or return mappings by name{}"):
        read(IterableSource("data", given, features="x", target="y"))
    assert len(read(IterableSource("data", given, features=["x"], target=["y"], tags=["w"]))) == 1
    assert len(read(IterableSource("data", [{"x": X, "y": y}], features="x", target="y"))) == 1
    with hint(
        "; a third part with weights is a tag: IterableSource(..., tags=['w']), AppliedLoss(sample_weight='DATA.w')"
    ):
        read(IterableSource("data", given, features="x", target="y"))
    AppliedLoss = aa.AppliedLoss
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": y, "w": w}, ["x"], ["y"], ["w"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    losses = [AppliedLoss("mse", on="net", sample_weight="data.w")]
    source = IterableSource("data", given, features="x", target="y", tags=["w"])
    assert graph.run(aa.TrainPhase("train", data=source, losses=losses), progress="none").loss.size


def test_workers(hint: Any) -> None:
    with hint("write {}=1"):
        aa.suggested_num_workers(devices=0)
    assert aa.suggested_num_workers(devices=1) >= 0

    class Loader:
        """A loader whose worker is killed."""

        multiprocessing_context = "spawn"

        def __init__(self, num_workers: int) -> None:
            self.num_workers = num_workers

        def __iter__(self) -> Iterator[Any]:
            if self.num_workers:
                raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
            yield from batches()

    with hint(
        "the worker was killed, often because memory ran out, or it exited: use fewer workers, or num_workers=0 to "
        "read in this process"
    ):
        read(IterableSource("data", Loader(num_workers=2), features="x"))
    assert len(read(IterableSource("data", Loader(num_workers=0), features="x"))) == 3


@pytest.mark.across
def test_forked_workers(hint: Any) -> None:
    DataLoader = pytest.importorskip("torch.utils.data").DataLoader
    pytest.importorskip("jax")
    pytest.importorskip("anyaccel_jax")
    with hint("create the loader with multiprocessing_context='forkserver' (or 'spawn'), or with num_workers=0"):
        loader = DataLoader(Rows(), 8, num_workers=1, multiprocessing_context="fork")
        IterableSource("data", loader, features="x")
    loader = DataLoader(Rows(), 8, num_workers=1, multiprocessing_context="forkserver")
    assert IterableSource("data", loader, features="x").steps == 3
    assert len(read(IterableSource("data", DataLoader(Rows(), 8, num_workers=0), features="x"))) == 3


def test_a_loader_of_a_part_of_the_rows(hint: Any) -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = data.DistributedSampler(range(24), num_replicas=2, rank=0)
    loader = data.DataLoader(Rows(), 8, sampler=sampler)
    with hint(
        "create the loader without it (no DistributedSampler); to read one part on purpose, pass a function: lambda: "
        "loader"
    ):
        IterableSource("data", loader, features="x")
    assert len(read(IterableSource("data", data.DataLoader(Rows(), 8), features="x"))) == 3
    assert len(read(IterableSource("data", lambda: loader, features="x"))) == 2


def test_what_can_be_read_once(hint: Any) -> None:
    source = IterableSource("data", batches(), features="x")
    assert len(read(source)) == 3
    with hint("pass a function that creates it, such as the generator function itself, without calling it"):
        read(source)
    source = IterableSource("data", batches, features="x")
    assert len(read(source)) == len(read(source)) == 3
    once = batches()
    source = IterableSource("data", lambda: once, features="x")
    with hint("pass a function that creates a new iterator at each call"):
        assert len(read(source)) == 3
        read(source)
    source = IterableSource("data", lambda: batches(), features="x")
    assert len(read(source)) == len(read(source)) == 3
    with hint("yield batches, or return a list of them"):
        read(IterableSource("data", lambda: 3, features="x"))
    assert len(read(IterableSource("data", lambda: list(batches()), features="x"))) == 3
    with hint("write a function that yields batches"):
        IterableSource("data", 3, features="x")
    assert len(read(IterableSource("data", batches, features="x"))) == 3


def test_the_number_of_batches(hint: Any) -> None:
    with hint("set the correct number of batches: steps=..."):
        read(IterableSource("data", batches, features="x", steps=5))
    assert len(read(IterableSource("data", batches, features="x", steps=3))) == 3

    class Wrong:
        def __len__(self) -> int:
            return 9

        def __iter__(self) -> Iterator[Any]:
            return batches()

    loader = Wrong()
    with hint("correct its __len__, or pass a function, which has no length: lambda: loader"):
        read(IterableSource("data", loader, features="x"))
    assert len(read(IterableSource("data", lambda: loader, features="x"))) == 3
    with hint("write steps=1000"):
        IterableSource("data", batches, features="x", steps=0)
    assert IterableSource("data", batches, features="x", steps=1000).steps == 1000
    endless = itertools.cycle([{"x": X}])
    with hint(
        "set the number of batches of an epoch: IterableSource('data', source, features='x', target='y', steps=1000)"
    ):
        IterableSource("data", endless, features="x")
    endless = itertools.cycle([{"x": X, "y": X}])
    assert len(read(IterableSource("data", endless, features="x", target="y", steps=1000))) == 1000
    with hint("write read_ahead=0 to read a batch only after the previous step, or leave it out"):
        IterableSource("data", batches, features="x", read_ahead=2)
    assert IterableSource("data", batches, features="x", read_ahead=0).read_ahead == 0
    assert IterableSource("data", batches, features="x").read_ahead is None


def test_what_is_no_source_of_batches(hint: Any) -> None:
    label = "data"

    class Numbered:
        """Rows by number, which cannot be iterated over."""

        __len__, __getitem__ = Rows.__len__, Rows.__getitem__
        rows = X

    dataset = Numbered()
    with hint(
        "write MapSource(label, dataset, features=[...]) instead of IterableSource; the phase's sampler then orders "
        "and batches its rows"
    ):
        IterableSource(label, dataset, features="x")
    assert MapSource(label, dataset, features=["x"]).gather([0, 1])["x"].shape == (2, 3)

    def make_batches(size: int) -> Iterator[Any]:
        return batches(size)

    with hint("write lambda: make_batches(...) with the arguments inside"):
        IterableSource("data", make_batches, features="x")
    assert len(read(IterableSource("data", lambda: make_batches(6), features="x"))) == 4


def test_data_in_place_of_sources(hint: Any) -> None:
    label, arrays, array = "data", {"x": X}, X
    with hint("write FeatureSet.from_dict(label, arrays, features=[...]); choose one of several data sets"):
        IterableSource(label, arrays, features="x")
    assert aa.FeatureSet.from_dict(label, arrays, features=["x"]).array("x").shape == (24, 3)
    with hint("write FeatureSet.from_dict(label, {'x': array}, features=['x'])"):
        IterableSource(label, array, features="x")
    assert aa.FeatureSet.from_dict(label, {"x": array}, features=["x"]).array("x").shape == (24, 3)
    data = pa.table({"x": X[:, 0]})
    with hint("write FeatureSet.from_arrow(label, data, features=[...])"):
        MapSource(label, data, features="x")
    assert len(aa.FeatureSet.from_arrow(label, data, features=["x"])) == 24


def test_frames_and_files_in_place_of_sources(hint: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"x": X[:, 0]}), file)
    with hint("read the file with FeatureSet.from_parquet, or with ParquetStream if it is larger than memory"):
        IterableSource("data", file, features="x")
    assert len(aa.FeatureSet.from_parquet("data", file, ["x"])) == 24
    assert ParquetStream("data", file, features="x").rows == 24
    df = pytest.importorskip("pandas").DataFrame({"x": X[:, 0]})
    with hint("write FeatureSet.from_pandas(label, df, features=[...])"):
        MapSource("data", df, features="x")
    assert len(aa.FeatureSet.from_pandas("data", df, features=["x"])) == 24


@pytest.mark.across
def test_data_sets_that_compute_rows(hint: Any) -> None:
    datasets = pytest.importorskip("datasets")
    label = "data"
    dataset = datasets.Dataset.from_dict({"x": [1.0, 2.0]}).with_transform(
        lambda rows: {"x": [3.0 * x for x in rows["x"]]}
    )
    with hint("write MapSource(label, dataset, features=[...])"):
        IterableSource(label, dataset, features="x")
    assert MapSource(label, dataset, features=["x"]).gather([0, 1])["x"].tolist() == [3, 6]


def test_settings_of_map_sources(hint: Any) -> None:
    source, label = batches, "data"
    with hint("write IterableSource(label, source, ...) for a source of batches"):
        MapSource(label, source, features="x")
    assert len(read(IterableSource(label, source, features="x"))) == 3
    with hint("write collate=lambda items: ..."):
        MapSource(label, Rows(), features="x", collate=3)  # type: ignore[arg-type]
    collated = MapSource(label, Rows(), features="x", collate=lambda items: {"x": np.stack([i["x"] for i in items])})
    assert collated.gather([3, 4])["x"].shape == (2, 3)
    with hint("write workers=0, or a few"):
        MapSource(label, Rows(), features="x", workers=-1)
    for workers in (0, 2):
        assert MapSource(label, Rows(), features="x", workers=workers).gather([1, 0])["x"].shape == (2, 3)
    with hint("write gather([0, 1])"):
        MapSource(label, Rows(), features="x").gather([0.5])
    assert MapSource(label, Rows(), features="x").gather([0, 1])["x"].shape == (2, 3)


def test_many_rows_at_once(hint: Any) -> None:
    class Many(Rows):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            return [self[0]]

    with hint("correct __getitems__, or leave it out"):
        MapSource("data", Many(), features="x").gather([0, 1])

    class Corrected(Rows):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            return [self[number] for number in numbers]

    for rows in (Corrected(), Rows()):
        assert np.array_equal(MapSource("data", rows, features="x").gather([0, 1])["x"], X[:2])


def test_buffers_of_parquet_streams(hint: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": X[:, 0]}), file, row_group_size=4)

    def stream(**settings: Any) -> aa.ParquetStream:
        return ParquetStream("data", file, features="x", **settings)

    with hint("use 1 or more, or leave it out"):
        stream(buffer_size=0)
    assert stream(buffer_size=1).buffer_size == 1 and stream().buffer_size == 16
    SimpleSampler = aa.SimpleSampler
    with hint("leave it out, or write sampler=SimpleSampler(..., shuffle=True)"):
        stream(buffer_size=8, sampler=SimpleSampler(4))
    assert stream(sampler=SimpleSampler(4)).steps == 6
    assert stream(buffer_size=8, sampler=SimpleSampler(4, shuffle=True)).buffer_size == 8
    with hint("pass a SimpleSampler, or batch_size=32"):
        stream(sampler=aa.PairSampler(4, aa.Same("x")))
    assert stream(sampler=SimpleSampler(4)).steps == 6 and stream(batch_size=32).steps == 1
    with hint("write batch_size={}"):
        stream(sampler=4)
    assert stream(batch_size=4).steps == 6
    with hint("leave batch_size out: the sampler has one"):
        stream(sampler=SimpleSampler(4), batch_size=8)
    assert stream(sampler=SimpleSampler(4)).steps == 6  # without batch_size
    with hint("write buffer_size={} to shuffle all rows together, or use FeatureSet.from_parquet"):
        stream(buffer_size=100)
    assert sorted(np.concatenate(read(stream(buffer_size=24)))) == sorted(X[:, 0])
    assert len(aa.FeatureSet.from_parquet("data", file, ["x"])) == 24


class Sampled:
    """A loader of torch's form: its batch sampler tells the size of batches and whether the last one is dropped."""

    def __init__(self, batch_size: int, *, drop_last: bool) -> None:
        self.batch_sampler, self.sampler, self.batch_size, self.drop_last = self, X, batch_size, drop_last

    def __len__(self) -> int:
        return len(X) // self.batch_size + (not self.drop_last and len(X) % self.batch_size > 0)

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            yield {"x": X[number * self.batch_size : (number + 1) * self.batch_size]}


def test_a_loader_that_drops_all_rows(hint: Any) -> None:
    with hint("write drop_last=False, or batch_size={} or less"):
        _ = IterableSource("s", Sampled(32, drop_last=True), features=["x"]).example
    with pytest.raises(aa.errors.SourceError, match="its loader drops all its 24 rows, which do not fill a batch"):
        _ = IterableSource("s", Sampled(32, drop_last=True), features=["x"]).example
    for loader in (Sampled(32, drop_last=False), Sampled(batch_size=24, drop_last=True)):
        assert len(read(IterableSource("s", loader, features=["x"]))[0]) == 24
