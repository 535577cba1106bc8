"""as_source: what a phase is given as data, with the roles of the feature set that the graph is wired to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet, IterableSource, MapSource, as_source
from anyaccel.errors import DataError, SourceError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.array([0, 1, 2])
LIKE = FeatureSet.from_dict("s", {"x": X, "y": Y, "t": list("abc")}, "x", "y", "t")


def pairs() -> Iterator[Any]:
    yield X, Y


class Rows:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


@pytest.mark.parametrize("given", [pairs, pairs(), [(X, Y)], ({"x": X, "y": Y},), lambda: pairs()])
def test_iterables_become_an_iterable_source(given: Any) -> None:
    source = as_source("s", given, LIKE)
    assert isinstance(source, IterableSource) and source.columns == ("x", "y")
    (batch,) = source.batches(0)
    assert np.array_equal(batch["y"], Y)


def test_map_style_data_sets_become_a_map_source() -> None:
    source = as_source("s", Rows(), LIKE.view())
    assert isinstance(source, MapSource) and source.rows == 3
    assert np.array_equal(source.gather([2])["x"], X[[2]])
    assert as_source("s", source, LIKE) is source


@pytest.mark.parametrize(
    "given", [None, "train", LIKE, LIKE.view(), {"s": "train"}, {"s": LIKE}, {"s": [(X, Y)]}, {"s": pairs}, {}, 3]
)
def test_data_that_is_not_a_source_gives_none(given: Any) -> None:
    assert as_source("s", given, LIKE) is None


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"x": X, "y": Y}, r"a dict cannot be the data of 's'.*FeatureSet\.from_dict"),
        ({"x": [1, 2]}, r"FeatureSet\.from_dict"),
        ({"x": pa.array([1])}, r"FeatureSet\.from_dict"),
        (X, r"a ndarray cannot be the data .*FeatureSet\.from_dict"),
        (pa.table({"x": [1]}), r"FeatureSet\.from_arrow"),
        (b"text", r"FeatureSet\.from_parquet"),
    ],
)
def test_data_in_memory(given: Any, remedy: str) -> None:
    with pytest.raises(SourceError, match=remedy):
        as_source("s", given, LIKE)


class Inner:
    """The interface of a data set of Hugging Face; the real one is in tests/integration."""

    column_names = ("x", "y")
    features: Any = None

    def __init__(self, table: Any) -> None:
        self.table = table

    def with_format(self, form: str) -> Inner:
        assert form == "arrow"
        return self

    def __len__(self) -> int:
        return 3

    def __getitem__(self, rows: slice) -> Any:
        if isinstance(self.table, Exception):
            raise self.table
        return self.table

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("read row by row")


class Own(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.list_(pa.float32()), "anyaccel.test.own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Own:
        return cls()


def test_an_arrow_table_inside_is_a_feature_set() -> None:
    x = pa.array(X.tolist(), pa.list_(pa.float32()))
    for column in (x, pa.ExtensionArray.from_storage(Own(), x)):
        dataset = Inner(pa.table({"x": column, "y": Y, "z": Y}))
        source = as_source("s", dataset, LIKE)
        assert isinstance(source, FeatureSet) and source.columns == ("x", "y")
        assert np.array_equal(source.array("x"), X)
        assert len(FeatureSet.from_arrow("s", dataset, "x").split_random({"a": 0.5, "b": 0.5})) == 2
    with pytest.raises(SourceError, match=r"the Inner given as source 's' is data.*from_arrow"):
        IterableSource("s", dataset, features="x")


def test_a_data_set_that_does_not_give_its_table() -> None:
    with pytest.raises(DataError, match=r"the Inner of 's' cannot return its Arrow table: gone.*MapSource"):
        FeatureSet.from_arrow("s", Inner(ValueError("gone")), "x")
    with pytest.raises(DataError, match=r"the Inner of 's' returned a dict as its Arrow table"):
        FeatureSet.from_arrow("s", Inner({}), "x")
