"""FeatureSet.from_arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
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


def same(data: FeatureSet, other: FeatureSet) -> bool:
    return (data.features, data.targets, data.tags) == (other.features, other.targets, other.tags) and all(
        data.column(name).equals(other.column(name)) for name in data.columns
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
    fs = FeatureSet.from_arrow("fs", example().to_arrow(), features=["y"])
    assert (fs.features, fs.targets, fs.tags) == (("y",), (), ())


def test_no_keys_and_no_roles() -> None:
    with pytest.raises(ColumnError, match=r"no column of 'fs' has a role; columns: x; none has 'anyaccel.role'"):
        FeatureSet.from_arrow("fs", pa.table({"x": [1]}))


def test_strange_roles() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"anyaccel.role": "input"})])
    with pytest.raises(
        ColumnError, match=r"column 'x' of 'fs' has the role 'input'. Available: roles: feature, target, tag"
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


def test_nulls_of_later_chunks_are_counted_from_the_first_row() -> None:
    with pytest.raises(ColumnError, match=r"1 of 4 rows, the first in row 3"):
        FeatureSet.from_arrow("fs", pa.table({"x": pa.chunked_array([[1, 2], [3, None]])}), "x")


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([[[1], [2]], [[3], None]], r"'x' has nulls in 1 of 4 rows, the first in row 3"),
        ([[[1], [2]], [[3, 4]]], r"'x' is ragged: .*lists of 1 to 2 entries"),
        ([[[[1]]], [[[2, 3]]]], r"'x' is ragged: .*lists of 1 to 2 entries"),
    ],
)
def test_lists_of_several_chunks_are_judged_together(chunks: list[Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        FeatureSet.from_arrow("fs", pa.table({"x": pa.chunked_array(chunks)}), "x")


def test_lists_stay_in_their_chunks() -> None:
    nested = pa.chunked_array([[[[1, 2]], [[3, 4]]], [], [[[5, 6]]]], pa.large_list(pa.list_(pa.int8())))
    fs = FeatureSet.from_arrow("fs", pa.table({"x": nested}), "x")
    assert [len(chunk) for chunk in fs.column("x").chunks] == [2, 1]
    assert fs.spec("x") == TensorSpec((1, 2), "int8")
    assert fs.array("x").tolist() == [[[1, 2]], [[3, 4]], [[5, 6]]]


@pytest.mark.parametrize("column", [pa.array(["a"]), pa.array([["a"]]), pa.array([1]).cast(pa.timestamp("s"))])
def test_arrow_types_that_are_not_numbers(column: Any) -> None:
    with pytest.raises(ColumnError, match=r"column 'x' cannot be read as numbers: it is of type"):
        FeatureSet.from_arrow("fs", pa.table({"x": column}), "x")


def test_lists_of_one_length_have_a_shape() -> None:
    values = np.arange(12, dtype=np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, 13, 3, dtype=np.int32), pa.array(values))
    nested = pa.array([[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]], pa.large_list(pa.list_(pa.int8())))
    table = pa.table({"x": lists, "y": nested, "t": [["a"], [], None, ["b"]]})
    fs = FeatureSet.from_arrow("fs", table, "x", "y", "t")
    assert fs.array("x").ctypes.data == values.ctypes.data
    assert (fs.spec("x"), fs.spec("y")) == (TensorSpec((3,), "float32"), TensorSpec((1, 2), "int8"))
    assert fs.array("y")[:, 0, 1].tolist() == [2, 4, 6, 8]
    assert fs.column("t").to_pylist() == [["a"], [], None, ["b"]]
    part = FeatureSet.from_arrow("fs", pa.concat_tables([table.slice(1, 2), table.slice(0, 1)]), "x", "y")
    assert part.array("x").tolist() == [[3, 4, 5], [6, 7, 8], [0, 1, 2]]
    assert part.array("y")[:, 0, 0].tolist() == [3, 5, 1]
    assert FeatureSet.from_arrow("again", part.to_arrow()).spec("y") == fs.spec("y")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[1, 2], [3]], r"'x' is ragged: its samples differ in shape; lists of 1 to 2 entries, but all"),
        ([[[1], [2]], [[3], []]], r"'x' is ragged: .*lists of 0 to 1 entries"),
        ([[1], None], r"'x' has nulls in 1 of 2 rows, the first in row 1"),
        ([[1, 2], [3, None]], r"'x' has nulls in 1 of 2 rows, the first in row 1"),
        ([[], []], r"'x' cannot be read as numbers: it is of type list<item: null>"),
    ],
)
def test_lists_that_cannot_be_samples(lists: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        FeatureSet.from_arrow("fs", pa.table({"x": lists}), "x")


def test_samples_of_no_size() -> None:
    for kind in (pa.list_(pa.int8(), 0), pa.list_(pa.int8())):
        with pytest.raises(ColumnError, match=r"'x' has samples of shape \[0\]"):
            FeatureSet.from_arrow("fs", pa.table({"x": pa.array([[], []], kind)}), "x")


def test_two_columns_of_one_name() -> None:
    table = pa.table([[1], [2]], names=["x", "x"])
    with pytest.raises(ColumnError, match=r"'fs' has 2 columns called 'x'. Hint: rename all but one"):
        FeatureSet.from_arrow("fs", table, "x")


def test_not_a_table() -> None:
    with pytest.raises(
        DataError,
        match=r"'fs' is a dict, not an Arrow table. Available: tables.*pass a pyarrow.Table",
    ):
        FeatureSet.from_arrow("fs", {"x": [1]}, "x")


def test_buffers_that_are_too_short() -> None:
    written = pa.BufferOutputStream()
    table = pa.table({"x": np.zeros(1000, np.int64)})
    with pa.ipc.new_stream(written, table.schema) as stream:
        stream.write_table(table)
    claimed = written.getvalue().to_pybytes().replace((1000).to_bytes(8, "little"), (10**9).to_bytes(8, "little"))
    with pytest.raises(DataError, match=r"the Arrow table of 'fs' is not valid: .*too small"):
        FeatureSet.from_arrow("fs", pa.ipc.open_stream(claimed).read_all(), "x")


class Exporting:
    """An object of another library that exports its data through Arrow's C interface, any number of times."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Batch:
    """As `Exporting`, with a single batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def test_objects_with_arrow_interfaces_are_read_without_a_copy() -> None:
    values = np.arange(4.0)
    table = pa.table({"x": values, "t": list("abcd")})
    for source in (Exporting(table), Batch(table.to_batches()[0]), table.__arrow_c_stream__()):
        fs = FeatureSet.from_arrow("fs", source, "x", tags="t")
        assert fs.array("x").ctypes.data == values.ctypes.data
        assert fs.column("t").to_pylist() == list("abcd")


def test_a_stream_carries_the_roles() -> None:
    assert same(FeatureSet.from_arrow("again", Exporting(example().to_arrow())), example())


def test_a_stream_that_breaks_off() -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pydict({"x": [1, 2]})
        raise OSError("the line is dead")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches())
    with pytest.raises(DataError, match=r"RecordBatchReader of 'fs' cannot be imported by Arrow: .*line is dead"):
        FeatureSet.from_arrow("fs", reader, "x")


def test_a_pandas_frame_is_sent_to_from_pandas() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(DataError, match=r"is a DataFrame, not an Arrow table.*from_pandas"):
        FeatureSet.from_arrow("fs", pd.DataFrame({"x": [1]}), "x")


def test_a_label_is_checked_before_anything_is_read() -> None:
    with pytest.raises(DataError, match=r"'a.b' is not a label"):
        FeatureSet.from_arrow("a.b", None)
    with pytest.raises(DataError, match=r"'' is not a label"):
        FeatureSet.from_parquet("", "nowhere.parquet")


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="this pyarrow has no views")
def test_text_views_are_written_in_the_plain_layout() -> None:
    text = pa.array(["a", None, "a text that is longer than a view holds"], pa.string_view())
    index = pa.array([0, 1, 0], pa.int8())
    table = pa.table(
        {
            "x": [1, 2, 3],
            "text": text,
            "bytes": pa.array([b"a", b"b", None], pa.binary_view()),
            "kind": pa.DictionaryArray.from_arrays(index, pa.array(["u", "v"], pa.string_view())),
            "words": pa.array([["a"], None, []], pa.large_list(pa.string_view())),
            "one": pa.array([["a"], None, ["b"]], pa.list_(pa.string_view(), 1)),
            "inner": pa.array(
                [{"n": 1, "t": "a"}, None, {"n": 2, "t": None}], pa.struct({"n": pa.int8(), "t": pa.string_view()})
            ),
        }
    )
    kinds = pa.ListArray.from_arrays([0, 1, 2, 3], table["kind"].chunk(0))
    table = table.append_column("kinds", kinds)
    fs = FeatureSet.from_arrow("fs", table, "x", tags=table.column_names[1:])
    part = fs.add_split("some", [2, 0])
    for name in fs.tags:
        assert "view" not in str(fs.column(name).type)
        whole = table.column(name).to_pylist()
        assert part.column(name).to_pylist() == [whole[2], whole[0]]


def test_run_end_encoded_columns_are_written_out() -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 4], ["a", "b"])
    numbers = pa.chunked_array([pa.RunEndEncodedArray.from_arrays([1, 4], [0.5, 1.5])])
    table = pa.table({"x": numbers, "t": runs})
    for data in (table, table.slice(0, 4)):
        fs = FeatureSet.from_arrow("fs", data, "x", (), "t")
        assert fs.array("x").tolist() == [0.5, 1.5, 1.5, 1.5]
        assert fs.take([3, 0]).column("t").to_pylist() == ["b", "a"]
    part = FeatureSet.from_arrow("fs", table.slice(1, 2), "x", (), "t")
    assert part.column("t").to_pylist() == ["a", "b"] and part.array("x").tolist() == [1.5, 1.5]
