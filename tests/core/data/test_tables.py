"""FeatureSet from Arrow, pandas and Parquet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, DataError
from anyaccel.segment import TensorSpec


def tensor(values: np.ndarray, **more: Any) -> Any:
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:], **more)
    flat = pa.array(values.reshape(-1))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, values[0].size))


def example() -> FeatureSet:
    data = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "b": np.eye(3, dtype=bool),
        "y": [1, 2, 3],
        "t": list("abc"),
    }
    return FeatureSet.from_dict("fs", data, ["x", "b"], ["y"], ["t"])


def same(one: FeatureSet, other: FeatureSet) -> bool:
    return (one.features, one.targets, one.tags) == (other.features, other.targets, other.tags) and all(
        one.column(name).equals(other.column(name)) for name in one.columns
    )


def test_arrow_there_and_back_keeps_roles_and_memory() -> None:
    fs = example()
    again = FeatureSet.from_arrow("again", fs.to_arrow())
    assert same(fs, again)
    assert again.array("x").ctypes.data == fs.array("x").ctypes.data
    assert again.array("b").tolist() == np.eye(3, dtype=bool).tolist()


def test_arrow_columns_are_read_where_they_lie() -> None:
    values, scalars = np.arange(24, dtype=np.int16).reshape(4, 2, 3), np.arange(4.0)
    fs = FeatureSet.from_arrow("fs", pa.table({"x": tensor(values), "s": scalars, "rest": ["a"] * 4}), ["x"], ["s"])
    assert fs.array("x").ctypes.data == values.ctypes.data
    assert fs.array("s").ctypes.data == scalars.ctypes.data
    assert fs.spec("x") == TensorSpec((2, 3), "int16")
    assert fs.columns == ("x", "s")


def test_slices_are_read_where_they_lie() -> None:
    values = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    fs = FeatureSet.from_arrow("fs", pa.table({"x": tensor(values)}).slice(1, 2), "x")
    assert np.array_equal(fs.array("x"), values[1:3])
    assert fs.array("x").ctypes.data == values[1:].ctypes.data


def test_chunks_are_combined_once() -> None:
    column = pa.chunked_array([tensor(np.ones((2, 3))), tensor(np.zeros((1, 3)))])
    fs = FeatureSet.from_arrow("fs", pa.table({"x": column, "n": pa.chunked_array([[1], [2, 3]])}), ["x", "n"])
    assert fs.array("x").tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert fs.array("n").tolist() == [1, 2, 3]
    assert fs.array("x") is fs.array("x")
    assert fs.column("x").num_chunks == 1
    assert len(fs.to_arrow()) == 3


def test_empty_chunks_cost_no_copy() -> None:
    values = np.arange(3.0)
    column = pa.chunked_array([pa.array([], pa.float64()), pa.array(values)])
    assert FeatureSet.from_arrow("fs", pa.table({"x": column}), "x").array("x").ctypes.data == values.ctypes.data


@pytest.mark.parametrize("value", [pa.float32(), pa.bool_(), pa.uint8()])
def test_fixed_size_lists_have_a_shape(value: Any) -> None:
    kind = pa.list_(pa.list_(value, 3), 2)
    fs = FeatureSet.from_arrow(
        "fs",
        pa.table(
            {
                "x": pa.array(
                    [[[True, False, True], [False, False, True]]] * 4, pa.list_(pa.list_(pa.bool_(), 3), 2)
                ).cast(kind)
            }
        ).slice(1),
        "x",
    )
    assert fs.spec("x").shape == (2, 3)
    assert fs.array("x").tolist() == [[[1, 0, 1], [0, 0, 1]]] * 3


def test_permuted_tensors_are_read_in_their_logical_shape() -> None:
    values = np.arange(12.0).reshape(2, 2, 3)
    fs = FeatureSet.from_arrow("fs", pa.table({"x": tensor(values, permutation=[1, 0])}), "x")
    assert fs.spec("x") == TensorSpec((3, 2), "float64")
    assert np.array_equal(fs.array("x"), values.transpose(0, 2, 1))
    with pytest.raises(ValueError):
        fs.array("x").flags.writeable = True


def test_batches_and_streams_are_taken() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
    assert len(FeatureSet.from_arrow("fs", batch, "x")) == 2
    assert len(FeatureSet.from_arrow("fs", pa.RecordBatchReader.from_batches(batch.schema, [batch]), "x")) == 2


def test_keys_override_the_roles_of_the_schema() -> None:
    fs = FeatureSet.from_arrow("fs", example().to_arrow(), feature_keys=["y"])
    assert (fs.features, fs.targets, fs.tags) == (("y",), (), ())


def test_no_keys_and_no_roles() -> None:
    with pytest.raises(
        ColumnError, match=r"no column of 'fs' has a role. There is: columns: x; none has 'anyaccel.role'"
    ):
        FeatureSet.from_arrow("fs", pa.table({"x": [1]}))


def test_strange_roles() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"anyaccel.role": "input"})])
    with pytest.raises(
        ColumnError, match=r"column 'x' of 'fs' has the role 'input'. There is: roles: feature, target, tag"
    ):
        FeatureSet.from_arrow("fs", pa.table({"x": [1]}, schema=schema))


def test_other_metadata_is_kept() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"unit": "m"})], {"origin": "lab"})
    table = FeatureSet.from_arrow("fs", pa.table({"x": [1]}, schema=schema), "x").to_arrow()
    assert table.schema.field("x").metadata == {b"unit": b"m", b"anyaccel.role": b"feature"}
    assert table.schema.metadata == {b"origin": b"lab"}


@pytest.mark.parametrize(
    ("column", "count", "first"),
    [
        (pa.array([1, None, None]), 2, 1),
        (pa.array([[1.0, 2.0], None, [1.0, 2.0]], pa.list_(pa.float64(), 2)), 1, 1),
        (pa.array([[1.0, 2.0], [1.0, 2.0], [None, 2.0]], pa.list_(pa.float64(), 2)), 1, 2),
        (pa.array([None, None, None]), 3, 0),
        (pa.array([[[1], [None]]] * 3, pa.list_(pa.list_(pa.int8(), 1), 2)), 3, 0),
    ],
)
def test_nulls_in_arrow_are_counted(column: Any, count: int, first: int) -> None:
    with pytest.raises(ColumnError, match=rf"column 'x' has nulls in {count} of 3 rows, the first in row {first}"):
        FeatureSet.from_arrow("fs", pa.table({"x": column}), "x")


def test_nulls_of_later_chunks_are_counted_from_the_start() -> None:
    with pytest.raises(ColumnError, match=r"1 of 4 rows, the first in row 3"):
        FeatureSet.from_arrow("fs", pa.table({"x": pa.chunked_array([[1, 2], [3, None]])}), "x")


@pytest.mark.parametrize("column", [pa.array(["a"]), pa.array([[1, 2]]), pa.array([1]).cast(pa.timestamp("s"))])
def test_arrow_types_that_are_not_numbers(column: Any) -> None:
    with pytest.raises(ColumnError, match=r"column 'x' cannot be read as numbers: it is of type"):
        FeatureSet.from_arrow("fs", pa.table({"x": column}), "x")


def test_samples_of_no_size() -> None:
    with pytest.raises(ColumnError, match=r"'x' has samples of shape \[0\]"):
        FeatureSet.from_arrow("fs", pa.table({"x": pa.array([[], []], pa.list_(pa.int8(), 0))}), "x")


def test_two_columns_of_one_name() -> None:
    table = pa.table([[1], [2]], names=["x", "x"])
    with pytest.raises(ColumnError, match=r"'fs' has 2 columns called 'x'. To do: rename all but one"):
        FeatureSet.from_arrow("fs", table, "x")


def test_not_a_table() -> None:
    with pytest.raises(DataError, match=r"the data of 'fs' is a dict, not an Arrow table. To do: give a pyarrow.Table"):
        FeatureSet.from_arrow("fs", {"x": [1]}, "x")


def test_buffers_that_are_too_short() -> None:
    written = pa.BufferOutputStream()
    table = pa.table({"x": np.zeros(1000, np.int64)})
    with pa.ipc.new_stream(written, table.schema) as stream:
        stream.write_table(table)
    claimed = written.getvalue().to_pybytes().replace((1000).to_bytes(8, "little"), (10**9).to_bytes(8, "little"))
    with pytest.raises(DataError, match=r"the Arrow table of 'fs' is not valid: .*too small"):
        FeatureSet.from_arrow("fs", pa.ipc.open_stream(claimed).read_all(), "x")


def test_parquet_there_and_back(tmp_path: Path) -> None:
    fs = example()
    pq.write_table(fs.to_arrow(), tmp_path / "fs.parquet")
    assert same(fs, FeatureSet.from_parquet("again", tmp_path / "fs.parquet"))
    chosen = FeatureSet.from_parquet("again", str(tmp_path / "fs.parquet"), feature_keys=["x"], tag_keys=["t"])
    assert chosen.columns == ("x", "t")


def test_parquet_is_read_whole_from_several_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "x.parquet", row_group_size=7)
    assert FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "x").array("x").tolist() == list(range(100))


def test_parquet_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FeatureSet.from_parquet("fs", tmp_path / "none.parquet")


def test_parquet_that_is_none_or_broken(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet: .*write the file anew"):
        FeatureSet.from_parquet("fs", path, "x")
    pq.write_table(pa.table({"x": np.arange(1000)}), path)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        FeatureSet.from_parquet("fs", path, "x")


def test_parquet_is_validated_in_full(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    pq.write_table(pa.table({"x": [1], "t": text}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*UTF8"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "x", tag_keys="t")


def test_parquet_keys_are_checked(tmp_path: Path) -> None:
    pq.write_table(pa.table({"pixels": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ColumnError, match=r"no column 'pixel'.*did you mean 'pixels'"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "pixel")
    with pytest.raises(ColumnError, match=r"has a role"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet")


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
    fs = FeatureSet.from_dict("fs", frame, ["x", "n"], tag_keys=["t"])
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
    with pytest.raises(ColumnError, match=r"0 is not the name of a column.*df.columns.astype\(str\)"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1]]), [0])  # type: ignore[list-item]
    with pytest.raises(ColumnError, match=r"2 columns called 'x'"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1, 2]], columns=["x", "x"]), ["x"])
    with pytest.raises(ColumnError, match=r"no column 'y'"):
        FeatureSet.from_pandas("fs", pd.DataFrame([[1]], columns=[0]), ["y"])


def test_not_a_data_frame() -> None:
    with pytest.raises(DataError, match=r"the data of 'fs' is a dict, not a pandas DataFrame. To do: use from_dict"):
        FeatureSet.from_pandas("fs", {"x": [1]}, ["x"])
