"""FeatureSet: its properties, repr and casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet, Rows
from anyaccel.errors import ColumnError, DataError, SplitError
from anyaccel.segment import TensorSpec


class Frame:
    """Stands for a data frame of any library."""


@pytest.fixture
def fs() -> FeatureSet:
    data = {"x": np.ones((4, 2), np.float32), "n": np.arange(4), "y": np.arange(4.0), "who": list("abcd")}
    return FeatureSet.from_dict("fs", data, ["x", "n"], ["y"], ["who"])


def test_names_and_roles(fs: FeatureSet) -> None:
    assert (fs.label, len(fs), fs.columns) == ("fs", 4, ("x", "n", "y", "who"))
    assert (fs.features, fs.targets, fs.tags) == (("x", "n"), ("y",), ("who",))
    assert [fs.role(name) for name in fs.columns] == ["feature", "feature", "target", "tag"]
    assert isinstance(fs, Rows)


def test_unknown_columns(fs: FeatureSet) -> None:
    for read in (fs.role, fs.spec, fs.array, fs.column):
        with pytest.raises(
            ColumnError, match=r"'fs' has no column 'whom'. Available: x, n, y, who. Hint: did you mean 'who'"
        ):
            read("whom")


def test_repr_shows_rows_columns_and_splits(fs: FeatureSet) -> None:
    text = "FeatureSet('fs', 4 rows; features: x float32[2], n int64[]; targets: y float64[]; tags: who string"
    assert repr(fs) == text + ")"
    fs.split_random({"a": 0.5, "b": 0.5})
    assert repr(fs) == text + "; splits: a 2, b 2)"
    assert repr(fs["a"]) == "FeatureSetView('fs'['a'], 2 rows)"
    assert repr(fs.splits["b"]) == "FeatureSetView('fs'['b'], 2 rows)"


def test_nbytes(fs: FeatureSet) -> None:
    assert fs.nbytes == 4 * 8 + 4 * 8 + 4 * 8 + fs.column("who").nbytes


def test_cast_gives_a_new_feature_set_and_shares_the_rest(fs: FeatureSet) -> None:
    fs.split_random({"a": 0.5, "b": 0.5})
    cast = fs.cast({"n": "float32", "y": np.int8})
    assert (cast.label, cast.columns, cast.tags) == (fs.label, fs.columns, fs.tags)
    assert cast.spec("n") == TensorSpec((), "float32")
    assert cast.array("y").tolist() == [0, 1, 2, 3]
    assert cast.spec("y") == TensorSpec((), "int8")
    assert fs.spec("n") == TensorSpec((), "int64")
    assert cast.array("x").ctypes.data == fs.array("x").ctypes.data
    assert dict(fs.cast({"n": "float32"}, keep_splits=False).splits) == {}


def test_cast_keeps_the_splits(fs: FeatureSet) -> None:
    fs.split_random({"a": 0.5, "b": 0.5})
    cast = fs.cast({"x": "float64"})
    assert list(cast.splits) == ["a", "b"]
    assert np.array_equal(cast["a"].rows, fs["a"].rows)
    assert cast["a"].feature_set is cast


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0, 255]), "uint8"),
        (np.array([0, 1]), bool),
        (np.array([True, False]), "float16"),
        (np.array([2**24]), "float32"),
        (np.array([-128.0, 127.0]), "int8"),
        (np.array([np.inf, np.nan, 1e-60]), "float32"),
        (np.array([[0.1]]), "float16"),
        (np.array([2**63], np.uint64), "uint64"),
        (np.array([-(2.0**63)]), "int64"),
    ],
)
def test_casts_that_lose_nothing(values: np.ndarray, dtype: Any) -> None:
    cast = FeatureSet.from_dict("fs", {"x": values}, "x").cast({"x": dtype})
    assert cast.array("x").dtype == np.dtype(dtype)
    assert np.array_equal(cast.array("x"), values.astype(dtype), equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize(
    ("values", "dtype", "row", "value"),
    [
        (np.array([0, 256]), "uint8", 1, "256"),
        (np.array([-1], np.int8), "uint64", 0, "-1"),
        (np.array([0, 2]), "bool", 1, "2"),
        (np.array([[1, 2], [3, 2**24 + 1]]), "float32", 1, "16777217"),
        (np.array([2**64 - 1], np.uint64), "float64", 0, "18446744073709551615"),
        (np.array([2**63], np.uint64), "int64", 0, "9223372036854775808"),
        (np.array([0.5]), "int64", 0, "0.5"),
        (np.array([1.0, np.nan]), "int64", 1, "nan"),
        (np.array([np.inf], np.float16), "int64", 0, "inf"),
        (np.array([2.0**63]), "int64", 0, "9.22"),
        (np.array([1e39]), "float32", 0, "1e\\+39"),
    ],
)
def test_casts_that_would_lose_a_value_are_refused(values: np.ndarray, dtype: str, row: int, value: str) -> None:
    whole = FeatureSet.from_dict("fs", {"x": values}, "x")
    message = f"from {values.dtype} to {dtype}: row {row} holds {value}.*1 values cannot be represented in {dtype}"
    with pytest.raises(ColumnError, match=message):
        whole.cast({"x": dtype})


@pytest.mark.parametrize("dtype", ["bfloat16", None, str, "complex64", "datetime64[s]", object])
def test_casts_to_dtypes_that_are_not_numeric_are_refused(fs: FeatureSet, dtype: object) -> None:
    with pytest.raises(ColumnError, match=r"column 'x' cannot be read as numbers: it is of type"):
        fs.cast({"x": dtype})


def test_casts_of_what_is_not_there(fs: FeatureSet) -> None:
    with pytest.raises(ColumnError, match=r"no column 'z'"):
        fs.cast({"z": "int8"})
    with pytest.raises(ColumnError, match=r"'who' cannot be read as numbers"):
        fs.cast({"who": "int8"})


def test_a_table_with_roles_makes_a_feature_set(fs: FeatureSet) -> None:
    assert FeatureSet("other", fs.to_arrow()).spec("x") == fs.spec("x")


def test_arrays_outlive_the_feature_set() -> None:
    values = FeatureSet.from_dict("fs", {"x": np.arange(1000)}, "x").array("x")
    pa.default_memory_pool().release_unused()
    assert values.sum() == 499500


def test_repr_of_many_columns_is_short() -> None:
    data: dict[str, Any] = {f"c{i}": np.ones(2) for i in range(13)} | {
        "n": [1, 2],
        "im": np.ones((2, 3, 3)),
        "y": [1, 2],
    }
    text = "FeatureSet('wide', 2 rows; 13 features float64[]: c0, c1, c2, c3, ... and 9 more; 1 feature int64[]: n; "
    assert (
        repr(FeatureSet.from_dict("wide", data, ..., "y")) == f"{text}1 feature float64[3, 3]: im; targets: y int64[])"
    )
    assert repr(FeatureSet.from_dict("wide", data, "y", ())) == "FeatureSet('wide', 2 rows; features: y int64[])"
    wide = FeatureSet.from_dict("wide", data, ..., "y").reference(stream="pair")
    assert repr(wide) == "Reference('wide', features: c0+c1+c2 and 12 more; targets: y; stream: pair)"
    tags = FeatureSet.from_dict("wide", data, "y", (), [f"c{i}" for i in range(7)])
    assert repr(tags).endswith("; features: y int64[]; 7 tags float64[]: c0, c1, c2, c3, ... and 3 more)")


def test_dictionaries_are_called_categories() -> None:
    kind = pa.array(["u", "v"]).dictionary_encode()
    fs = FeatureSet.from_dict("fs", {"x": np.ones(2), "kind": kind}, "x", (), "kind")
    assert repr(fs) == "FeatureSet('fs', 2 rows; features: x float64[]; tags: kind category)"
    assert ">category<" in fs._repr_html_() and "dictionary" not in fs._repr_html_()


def test_a_cast_says_which_columns(fs: FeatureSet) -> None:
    for given, shown in (("float64", r"'float64'"), (np.float64, r"<class 'numpy.float64'>")):
        with pytest.raises(ColumnError) as caught:
            fs.cast(given)  # type: ignore[arg-type]
        assert f"cast({shown}) of 'fs' does not name the columns. Available: columns: x, n, y, who" in str(caught.value)
    with pytest.raises(ColumnError, match=r"Hint: write cast\(\{'x': 'float64'\}\)"):
        fs.cast("float64")  # type: ignore[arg-type]


def test_a_column_is_no_split(fs: FeatureSet) -> None:
    with pytest.raises(SplitError, match=r"no split 'x'. Available: all. Hint: it is a column: data.array\('x'\)"):
        fs["x"]


@pytest.mark.parametrize(
    ("given", "way"),
    [
        (Frame(), r"from_pandas\(label, df, features=\[...\]\)"),
        ({"x": [1]}, r"from_dict\(label, arrays, "),
        ("file.parquet", r"from_parquet\(label, path, "),
    ],
)
def test_the_class_itself_takes_an_arrow_table(given: object, way: str) -> None:
    result = type(given).__name__
    with pytest.raises(
        DataError, match=rf"'houses', ...\) needs an Arrow table, got a {result}.*Hint: write FeatureSet.{way}"
    ):
        FeatureSet("houses", given)
