"""Lazy frames, Arrow data sets in folders, and several data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel.data import as_source
from anyaccel.errors import ColumnError, DataError, PhaseError, SourceError

TABLE = pa.table({"x": np.arange(6, dtype="float32"), "y": np.arange(6) % 2, "g": list("aabbcc")})


class Lazy:
    """A frame like those of Polars."""

    def __init__(self, table: Any = TABLE, error: Exception | None = None) -> None:
        self.table, self.error, self.read = table, error, [""]

    def collect_schema(self) -> Any:
        class Schema:
            names = staticmethod(lambda: TABLE.schema.names)

        return Schema()

    def select(self, names: list[str]) -> Lazy:
        self.read = names
        return self

    def collect(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.table.select(self.read)


@pytest.mark.parametrize("make", [FeatureSet.from_pandas, FeatureSet.from_arrow])
def test_only_the_named_columns_of_a_lazy_frame_are_computed(make: Any) -> None:
    frame = Lazy()
    data = make("d", frame, ["x"], ["y"])
    assert frame.read == ["x", "y"] and data.array("x").tolist() == [0, 1, 2, 3, 4, 5]
    assert make("d", Lazy(), ..., "y", "g").features == ("x",)


def test_lazy_frames_of_polars_are_computed() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(TABLE).lazy().filter(polars.col("y") == 1)
    data = FeatureSet.from_pandas("d", frame, ["x"], tags=["g"])
    assert data.array("x").tolist() == [1, 3, 5] and data.column("g").to_pylist() == ["a", "b", "c"]


def test_arrow_data_sets_in_folders_are_read_with_their_partitions(tmp_path: Path) -> None:
    ds.write_dataset(TABLE, tmp_path, format="feather", partitioning=["g"], partitioning_flavor="hive")
    folder = ds.dataset(tmp_path, format="feather", partitioning="hive")
    data = FeatureSet.from_arrow("d", folder, ["x"], ["y"], ["g"])
    assert sorted(zip(data.array("x").tolist(), data.column("g").to_pylist(), strict=True)) == [
        *((0.0, "a"), (1.0, "a"), (2.0, "b"), (3.0, "b"), (4.0, "c"), (5.0, "c"))
    ]
    assert FeatureSet.from_pandas("d", folder, "x").columns == ("x",)


def test_names_and_errors_of_lazy_tables_are_told(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"'d' has no column 'z'.*Available: x, y, g"):
        FeatureSet.from_arrow("d", Lazy(), "z")
    with pytest.raises(DataError, match=r"the Lazy of 'd' cannot be computed: OSError: no such file"):
        FeatureSet.from_arrow("d", Lazy(error=OSError("no such file")), "x")


def test_data_sets_by_name_become_splits() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict(TABLE.to_pydict())
    by_name = datasets.DatasetDict({"train": whole.select(range(4)), "test": whole.select([5, 4])})
    data = FeatureSet.from_arrow("d", by_name, ["x"], ["y"])
    assert {name: view.array("x").tolist() for name, view in data.splits.items()} == {
        "train": [0, 1, 2, 3],
        "test": [5, 4],
    }
    other = datasets.Dataset.from_dict({"x": [1.0], "z": [2]})
    with pytest.raises(DataError, match=r"data sets 'train' and 'test' of 'd' have different columns.*data\['train'\]"):
        FeatureSet.from_arrow("d", datasets.DatasetDict({"train": whole, "test": other}), ["x"])


def test_a_phase_takes_a_data_set_and_asks_for_one_of_several() -> None:
    """Features and targets by the names that the graph was built with; the numbers are those of a feature set."""
    datasets = pytest.importorskip("datasets")
    columns = {"x": np.arange(8, dtype="float32"), "y": np.arange(8, dtype="float32") / 2}
    whole = datasets.Dataset.from_dict(columns).cast_column("x", datasets.Value("float32"))
    whole = whole.cast_column("y", datasets.Value("float32"))
    by_name = datasets.DatasetDict({"train": whole, "test": whole.select(range(4))})
    known = FeatureSet.from_dict("d", columns, ["x"], ["y"])
    loss = AppliedLoss("mse", on="net")

    def trained(data: object) -> list[float]:
        graph = ModelGraph([ModelNode("net", SequentialMLP(), known.reference())], "adam")
        return list(graph.run(TrainPhase(data=data, losses=loss, epochs=2, batch_size=4), progress="none").loss)

    assert trained(by_name["train"]) == trained("all")
    for given in (by_name, dict(by_name)):
        with pytest.raises(PhaseError, match=r"Hint: choose a split of the \w+: data=splits\['train'\]"):
            trained(given)
    with pytest.raises(DataError, match=r"is a DatasetDict, not a data frame.*Hint: use from_arrow, which keeps its"):
        FeatureSet.from_pandas("d", by_name, "x")
    with pytest.raises(DataError, match=r"is a Dataset, not a data frame.*Hint: use from_arrow, which reads its table"):
        FeatureSet.from_pandas("d", whole, "x")
    assert np.array_equal(FeatureSet.from_arrow("d", whole, "x", "y").array("x"), columns["x"])
    wide = datasets.Dataset.from_dict({name: values.tolist() for name, values in columns.items()})
    with pytest.raises(ColumnError, match=r"float64\[\] in these data.*float32\[\]\. Hint: cast the data"):
        trained(wide)


def test_a_frame_of_polars_is_no_source_of_batches() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(TABLE)
    known = FeatureSet.from_pandas("d", frame, ["x"], ["y"])
    for given in (frame, frame.lazy()):
        with pytest.raises(SourceError, match=r"a (Data|Lazy)Frame cannot be the data of 'd'.*FeatureSet\.from_pandas"):
            as_source("d", given, known)
