"""FeatureSet.from_pandas, and rows as pandas DataFrames."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import ArgumentError, ColumnError, DataError


def test_importing_data_does_not_import_pandas() -> None:
    code = "import sys, anyaccel.data; assert 'pandas' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_pandas_columns_keep_their_dtype() -> None:
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"a": np.arange(3, dtype=np.int8), "b": [0.5, 1.5, np.nan], "c": [True, False, True]})
    df["vector"] = [np.ones(2, np.float32)] * 3
    df["nullable"] = pd.array([1, 2, 3], "Int32")
    df["who"] = ["x", "y", None]
    df["kind"] = pd.Categorical(["u", "v", "u"])
    df["maybe"] = pd.array([1, None, 3], "Int64")
    fs = FeatureSet.from_pandas("fs", df, ["a", "b", "c", "vector"], ["nullable"], ["who", "kind", "maybe"])
    specs = [str(fs.spec(name)) for name in fs.features + fs.targets]
    assert specs == ["int8[]", "float64[]", "bool[]", "float32[2]", "int32[]"]
    assert fs.column("who").to_pylist() == ["x", "y", None]
    assert fs.column("kind").to_pylist() == ["u", "v", "u"]
    assert fs.column("maybe").to_pylist() == [1, None, 3]
    assert np.isnan(fs.array("b")[2])


def test_pandas_data_is_copied() -> None:
    pd = pytest.importorskip("pandas")
    own, nullable, tag = np.zeros(3), pd.array([0, 0, 0], "Int32"), pd.array([0, None, 0], "Int64")
    frame = {"x": pd.Series(own, copy=False), "n": pd.Series(nullable, copy=False), "t": pd.Series(tag, copy=False)}
    fs = FeatureSet.from_dict("fs", frame, ["x", "n"], tags=["t"])
    own[:] = 1
    nullable[:] = 1
    tag[:] = 1
    assert not fs.array("x").any() and not fs.array("n").any()
    assert fs.column("t").to_pylist() == [0, None, 0]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([1, None, 3], "Int64", "'x' has nulls in 1 of 3 rows, the first in row 1"),
        ([1, None, 3], object, "'x' has NaN or null among integers in 1 of 3 rows, the first in row 1"),
        (["a", "b"], object, "'x' cannot be read as numbers"),
        (["a", "b"], "category", "'x' cannot be read as numbers: it is of type dictionary"),
        ([[1], [1, 2]], object, "'x' is ragged"),
    ],
)
def test_pandas_columns_that_are_refused(values: list[object], dtype: object, message: str) -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(ColumnError, match=message):
        FeatureSet.from_pandas("fs", pd.DataFrame({"x": pd.Series(values, dtype=dtype)}), ["x"])


def test_pandas_na_among_objects() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(ColumnError, match=r"'x' has NaN or null among integers in 1 of 2 rows"):
        FeatureSet.from_dict("fs", {"x": [1, pd.NA]}, "x")


def test_pandas_names_are_text_and_there_once() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(ColumnError, match=r"0 cannot be the name of a column.*df.columns.astype\(str\)"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1]]), [0])  # type: ignore[list-item]
    with pytest.raises(ColumnError, match=r"2 columns called 'x'"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1, 2]], columns=["x", "x"]), ["x"])
    with pytest.raises(ColumnError, match=r"no column 'y'"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1]], columns=[0]), ["y"])


def test_pandas_leaves_the_index_out_and_reads_in_the_order_of_the_rows() -> None:
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"x": [1.0, 2.0, 3.0], "t": list("abc")}, index=pd.Index([7, 5, 6], name="key")).sort_index()
    fs = FeatureSet.from_pandas("fs", df, "x", tags="t")
    assert fs.columns == ("x", "t")
    assert fs.array("x").tolist() == [2.0, 3.0, 1.0]
    with pytest.raises(ColumnError, match=r"no column 'key'"):
        FeatureSet.from_pandas("fs", df, "key")


def test_pandas_arrow_dtypes_and_categories() -> None:
    pd = pytest.importorskip("pandas")
    vectors = pd.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pd.ArrowDtype(pa.list_(pa.float32(), 2)))
    df = pd.DataFrame({"v": vectors, "i": pd.Series([1, 2], dtype="int16[pyarrow]"), "b": pd.array([True, False])})
    df["kind"] = pd.Categorical(["u", None], categories=["v", "u"])
    df["text"] = pd.Series(["a", None], dtype=pd.ArrowDtype(pa.large_string()))
    df["when"] = pd.Series(pd.to_datetime(["2024-01-01T00:00:00.000000001", None]))
    fs = FeatureSet.from_pandas("fs", df, ["v", "i", "b"], tags=["kind", "text", "when"])
    assert [str(fs.spec(name)) for name in fs.features] == ["float32[2]", "int16[]", "bool[]"]
    assert fs.column("kind").to_pylist() == ["u", None]
    assert fs.column("text").to_pylist() == ["a", None]
    assert fs.column("when").null_count == 1


def test_pandas_columns_that_arrow_cannot_read() -> None:
    pd = pytest.importorskip("pandas")
    sparse = pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 5])})
    assert FeatureSet.from_pandas("fs", sparse, "x").array("x").tolist() == [0, 0, 5]
    mixed = pd.DataFrame({"x": [1, 2], "t": pd.Categorical([1, "a"])})
    with pytest.raises(ColumnError, match=r"column 't' cannot be read"):
        FeatureSet.from_pandas("fs", mixed, "x", tags="t")


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "int64[pyarrow]", "double[pyarrow]", "object"])
def test_pandas_nulls_are_refused_in_features_and_targets(dtype: str) -> None:
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"ok": [1, 2, 3], "x": pd.Series([1, None, 0], dtype=dtype)})
    for features, targets in (("x", ()), ("ok", "x")):
        with pytest.raises(ColumnError, match=r"'x' has (nulls|NaN or null among integers) in 1 of 3 rows.* in row 1"):
            FeatureSet.from_pandas("fs", df, features, targets)
    assert FeatureSet.from_pandas("fs", df, "ok", tags="x").column("x").null_count == 1


def test_integers_of_pandas_with_nan_are_floats_and_nan_is_a_value_of_floats() -> None:
    pd = pytest.importorskip("pandas")
    fs = FeatureSet.from_pandas("fs", pd.DataFrame({"x": [1, None, 3]}), "x")
    assert fs.spec("x").dtype == "float64"
    assert np.isnan(fs.array("x")).tolist() == [False, True, False]


def test_not_a_data_frame() -> None:
    with pytest.raises(DataError, match=r"the data of 'fs' is a dict, not a data frame. Available: .*use from_dict"):
        FeatureSet.from_pandas("fs", {"x": [1]}, ["x"])


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    df = pl.DataFrame(
        {
            "x": [1.5, 2.5, 3.5],
            "v": pl.Series([[1, 2], [3, 4], [5, 6]], dtype=pl.Array(pl.Int32, 2)),
            "b": [True, False, True],
            "text": ["a", None, "a text that is longer than twelve bytes"],
            "kind": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
            "level": pl.Series(["low", "high", None], dtype=pl.Enum(["low", "high"])),
        }
    )
    fs = FeatureSet.from_pandas("fs", df, ["x", "v"], ["b"], ["text", "kind", "level"])
    assert [str(fs.spec(name)) for name in ("x", "v", "b")] == ["float64[]", "int32[2]", "bool[]"]
    view = fs.take([2, 0])
    assert view.array("v").tolist() == [[5, 6], [1, 2]]
    assert view.column("text").to_pylist() == ["a text that is longer than twelve bytes", "a"]
    assert view.column("kind").to_pylist() == ["u", "u"]
    assert view.column("level").to_pylist() == [None, "low"]
    assert len(fs.filter({"kind": "u", "level": "low"})) == 1
    assert FeatureSet.from_arrow("fs", df, "x").array("x").tolist() == [1.5, 2.5, 3.5]


def test_polars_nulls_are_refused() -> None:
    pl = pytest.importorskip("polars")
    with pytest.raises(ColumnError, match=r"column 'x' has nulls in 1 of 3 rows, the first in row 2"):
        FeatureSet.from_pandas("fs", pl.DataFrame({"x": [1, 2, None]}), "x")
    with pytest.raises(ColumnError, match=r"column 'v' has nulls in 1 of 2 rows, the first in row 1"):
        frame = pl.DataFrame({"v": pl.Series([[1.0, 2.0], [3.0, None]], dtype=pl.Array(pl.Float64, 2))})
        FeatureSet.from_pandas("fs", frame, "v")


def test_duckdb_relations() -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    query = "select i::float as x, i % 2 as y, 'r' || i as t, [i, i]::int[2] as v from range(5) r(i) order by i"
    fs = FeatureSet.from_pandas("fs", connection.sql(query), ["x", "v"], "y", "t")
    assert fs.array("x").tolist() == [0, 1, 2, 3, 4]
    assert fs.spec("v").shape == (2,)
    assert fs.take([3]).column("t").to_pylist() == ["r3"]
    with pytest.raises(ColumnError, match=r"column 'x' has nulls in 1 of 1 rows"):
        FeatureSet.from_pandas("fs", connection.sql("select null::int as x"), "x")
    with pytest.raises(ColumnError, match=r"'x' cannot be read as numbers: it is of type decimal128"):
        FeatureSet.from_pandas("fs", connection.sql("select 0.5 as x"), "x")


def test_lazy_frames_and_series_are_refused_with_a_hint() -> None:
    pd, duckdb = pytest.importorskip("pandas"), pytest.importorskip("duckdb")
    with pytest.raises(DataError, match=r"is a Series, not a data frame.*Hint: call to_frame\(\) on it first"):
        FeatureSet.from_pandas("fs", pd.Series([1], name="x"), "x")
    row = pd.DataFrame({"x": [1, 2], "y": [3, 4]}).iloc[1]
    with pytest.raises(DataError, match=r"or to_frame\(\)\.T where it is a row\."):
        FeatureSet.from_pandas("fs", row, ["x"], ["y"])
    assert FeatureSet.from_pandas("fs", row.to_frame().T, ["x"], ["y"]).array("y").tolist() == [4]
    connection = duckdb.connect().execute("select 1 as x")
    with pytest.raises(DataError, match=r"is a DuckDBPyConnection, not.*Hint: call to_arrow_table\(\) on it first"):
        FeatureSet.from_pandas("fs", connection, "x")
    assert len(FeatureSet.from_pandas("fs", duckdb.sql("select 1 as x").to_arrow_table(), "x")) == 1


class Interchange:
    """A data frame that has the interchange protocol and nothing else."""

    def __init__(self, df: Any) -> None:
        self._df = df

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        return self._df.__dataframe__(nan_as_null, allow_copy)


def test_frames_with_only_the_interchange_protocol_are_copied() -> None:
    values = np.arange(3.0)
    table = pa.table({"x": values, "t": ["a", None, "c"], "rest": [1, 2, 3]})
    fs = FeatureSet.from_pandas("fs", Interchange(table), "x", tags="t")
    values[:] = -1
    assert fs.columns == ("x", "t")
    assert fs.array("x").tolist() == [0, 1, 2]
    assert fs.column("t").to_pylist() == ["a", None, "c"]
    with pytest.raises(ColumnError, match=r"no column 'z'"):
        FeatureSet.from_pandas("fs", Interchange(table), "z")
    with pytest.raises(ColumnError, match=r"column 'n' has nulls in 1 of 2 rows"):
        FeatureSet.from_pandas("fs", Interchange(pa.table({"n": [1, None]})), "n")


def test_a_failing_interchange_is_reported() -> None:
    with pytest.raises(DataError, match=r"the Interchange of 'fs' cannot be read through its __dataframe__"):
        FeatureSet.from_pandas("fs", Interchange(pa.table({"x": [[1], [2]]})), "x")


def example() -> FeatureSet:
    data = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "n": np.arange(4, dtype=np.int8), "b": [True] * 4}
    tags = {"who": ["a", None, "c", "d"], "gap": [1, None, 3, 4]}
    return FeatureSet.from_dict("fs", {**data, **tags}, ["x", "n"], "b", list(tags))


def test_rows_become_a_pandas_frame() -> None:
    pytest.importorskip("pandas")
    fs = example()
    df = fs.to_pandas()
    assert list(df.columns) == ["x", "n", "b", "who", "gap"]
    assert list(df.index) == [0, 1, 2, 3]
    assert (df["n"].dtype, df["b"].dtype) == (np.int8, np.bool_)
    assert df["who"].isna().tolist() == df["gap"].isna().tolist() == [False, True, False, False]
    assert df["x"][3].tolist() == [6.0, 7.0]
    df.loc[0, "n"] = 9
    assert fs.array("n").tolist() == [0, 1, 2, 3]


def test_a_view_becomes_a_pandas_frame_that_knows_its_rows_and_comes_back() -> None:
    pytest.importorskip("pandas")
    view = example().take([3, 1]).select(tags="who")
    df = view.to_pandas()
    assert list(df.columns) == ["x", "n", "b", "who"]
    assert list(df.index) == [3, 1]
    again = FeatureSet.from_pandas("fs", df, ["x", "n"], "b", "who")
    assert again.array("x").tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert again.spec("x") == view.spec("x")
    assert again.column("who").to_pylist() == ["d", None]


def test_rows_export_themselves_to_other_libraries() -> None:
    view = example().select("n").take([3, 1])
    assert pa.table(view).equals(view.to_arrow())
    again = FeatureSet.from_arrow("again", view)
    assert (again.columns, again.tags, again.array("n").tolist()) == (view.columns, view.tags, [3, 1])
    pl = pytest.importorskip("polars")
    assert pl.DataFrame(view)["who"].to_list() == ["d", None]


def test_a_missing_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DataError, match=r"'fs' cannot become a DataFrame: pandas is not.*python -m pip install pandas"):
        example().to_pandas()


def test_tags_with_nulls_become_cells_of_a_frame() -> None:
    pytest.importorskip("pandas")
    pairs = pa.array([[1, None], [2, 3], [4, 5]], pa.list_(pa.int64(), 2))
    fs = FeatureSet.from_dict(
        "fs", {"x": [1.0, 2.0, 3.0], "n": pa.array([1, None, 3]), "p": pairs}, "x", (), ["n", "p"]
    )
    assert [list(cell) for cell in fs.to_pandas()["p"]][1:] == [[2, 3], [4, 5]]
    part = fs.take([2, 1]).select(tags="p").to_pandas()
    assert [cell.tolist() for cell in part["p"]] == [[4, 5], [2, 3]] and part.index.tolist() == [2, 1]
    assert fs.take([2, 0]).to_pandas()["n"].tolist() == [3, 1]


OLD = {"feature_keys": "features", "target_keys": "target", "tag_keys": "tags", "targets": "target"}
OLD |= {"feature_cols": "features", "target_cols": "target", "tag_cols": "tags"}


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("reader", ["from_dict", "from_arrow", "from_pandas", "from_csv", "from_parquet"])
def test_old_words_for_roles_say_the_new_one(reader: str, old: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{reader} has no argument '{old}'.*it is called '{OLD[old]}'"):
        getattr(FeatureSet, reader)("fs", {}, **{old: "x"})


def test_roles_are_named_or_the_rest() -> None:
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"x": [1.0], "y": [2.0], "t": ["a"]})
    assert FeatureSet.from_pandas("fs", df, features=..., tags="t").features == ("x", "y")
    with pytest.raises(ColumnError, match=r"'fs' has no feature"):
        FeatureSet.from_pandas("fs", df)


def test_series_whose_index_has_another_order_are_refused() -> None:
    """Rows are taken by position; pandas itself would align them."""
    pd = pytest.importorskip("pandas")
    a = pd.Series([1.0, 2.0, 3.0])
    b = pd.Series([30.0, 10.0, 20.0], index=[2, 0, 1])
    expected = pd.DataFrame({"a": a, "b": b})["b"].tolist()
    with pytest.raises(
        ColumnError, match=r"'a' and 'b' of 'd' have the same index in another order.*b\.loc\[a\.index\]"
    ):
        FeatureSet.from_dict("d", {"a": a, "b": b}, ["a", "b"])
    aligned = FeatureSet.from_dict("d", {"a": a, "b": b.loc[a.index]}, ["a", "b"])
    assert aligned.array("b").tolist() == expected == [10, 20, 30]
    by_position = FeatureSet.from_dict("d", {"a": a, "b": b.to_numpy()}, ["a", "b"])
    assert by_position.array("b").tolist() == [30, 10, 20]
    other_rows = pd.Series([1.0, 2.0, 3.0], index=[7, 8, 9])  # nothing says which row would be which
    assert FeatureSet.from_dict("d", {"a": a, "b": other_rows}, ["a", "b"]).array("b").tolist() == [1, 2, 3]
