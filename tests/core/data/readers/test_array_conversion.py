"""FeatureSet.from_dict: which values it takes, what they become, and what is refused."""

from __future__ import annotations

import array as stdlib_array
import decimal

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import AnyaccelError, ColumnError, DataError
from anyaccel.segment import TensorSpec

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def column_of(values: object) -> FeatureSet:
    return FeatureSet.from_dict("fs", {"x": values}, ["x"])


def refusal(values: object) -> str:
    with pytest.raises(ColumnError) as caught:
        column_of(values)
    return str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES + FLOATS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2)])
def test_every_dtype_and_shape_comes_back_as_it_was(dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.arange(5 * int(np.prod(shape, dtype=int))) % 7).astype(dtype).reshape(5, *shape)
    fs = column_of(values)
    assert fs.array("x").dtype == values.dtype
    assert np.array_equal(fs.array("x"), values)
    assert fs.spec("x") == TensorSpec(shape, dtype)


def test_later_writes_of_the_user_do_not_show() -> None:
    values = np.zeros((4, 2), np.float32)
    fs = FeatureSet.from_dict("fs", {"x": values, "t": values[:, 0], "g": values[:, 1]}, ["x"], ["t"], ["g"])
    values[:] = 1
    assert not any(fs.array(name).any() for name in "xtg")


def test_text_and_object_tags_are_copied_too() -> None:
    text, when = np.array(["a", "b"]), np.array(["2020-01-01", "2021-01-01"], "datetime64[ns]")
    fs = FeatureSet.from_dict("fs", {"x": [1, 2], "text": text, "when": when}, "x", tags=["text", "when"])
    text[:], when[:] = "z", np.datetime64("1999-01-01")
    assert fs.column("text").to_pylist() == ["a", "b"]
    assert [moment.year for moment in fs.column("when").to_pylist()] == [2020, 2021]


def test_arrays_are_read_only_for_good_and_without_a_copy() -> None:
    fs = FeatureSet.from_dict(
        "fs",
        {"x": np.ones((3, 2)), "s": np.ones(3), "b": np.ones(3, bool), "bb": np.ones((3, 2), bool)},
        ["x", "s", "b", "bb"],
    )
    for name in fs.columns:
        values = fs.array(name)
        assert values is fs.array(name)
        with pytest.raises(ValueError):
            values[0] = 0
        with pytest.raises(ValueError):
            values.flags.writeable = True
    assert fs.array("s").ctypes.data == fs.column("s").chunk(0).buffers()[1].address
    assert fs.array("x").ctypes.data == fs.column("x").chunk(0).storage.flatten().buffers()[1].address


def test_lists_take_the_dtype_of_numpy() -> None:
    assert column_of([1, 2]).spec("x") == TensorSpec((), "int64")
    assert column_of([1.0, 2]).spec("x") == TensorSpec((), "float64")
    assert column_of([[True], [False]]).spec("x") == TensorSpec((1,), "bool")
    assert column_of(([1, 2], [3, 4])).spec("x") == TensorSpec((2,), "int64")
    assert column_of(range(3)).array("x").tolist() == [0, 1, 2]
    assert column_of(stdlib_array.array("f", [1, 2])).spec("x") == TensorSpec((), "float32")


def test_lists_of_arrays_and_object_arrays_of_numbers_are_taken() -> None:
    samples = [np.full((2,), i, np.float32) for i in range(3)]
    assert column_of(samples).spec("x") == TensorSpec((2,), "float32")
    objects = np.empty(3, object)
    objects[:] = samples
    assert column_of(objects).spec("x") == TensorSpec((2,), "float32")
    assert column_of(np.array([1, 2], object)).spec("x") == TensorSpec((), "int64")
    assert column_of(np.array([np.float32(1), np.float32(2)], object)).spec("x") == TensorSpec((), "float32")
    assert column_of(np.array([[1, 2], [3, 4]], object)).spec("x") == TensorSpec((2,), "int64")


def test_nested_object_arrays_are_taken() -> None:
    inner = np.empty(2, object)
    inner[:] = [np.array([1, 2]), np.array([3, 4])]
    outer = np.empty(2, object)
    outer[:] = [inner, inner]
    assert column_of(outer).spec("x") == TensorSpec((2, 2), "int64")


def test_arrow_columns_are_taken() -> None:
    fs = FeatureSet.from_dict(
        "fs", {"x": pa.array([1, 2], pa.int16()), "c": pa.chunked_array([["a"], ["b"]])}, "x", tags="c"
    )
    assert fs.spec("x") == TensorSpec((), "int16")
    assert fs.column("c").to_pylist() == ["a", "b"]


def test_arrow_lists_of_one_length_are_taken() -> None:
    fs = FeatureSet.from_dict("fs", {"x": pa.array([[1.0, 2.0], [3.0, 4.0]])}, "x")
    assert fs.spec("x") == TensorSpec((2,), "float64")
    assert "lists of 1 to 2 entries" in refusal(pa.array([[1], [2, 3]]))


def test_nan_is_a_value_of_floats() -> None:
    assert np.isnan(column_of([1.5, float("nan")]).array("x")[1])
    assert np.isnan(column_of([float("nan"), float("nan")]).array("x")).all()
    assert np.isnan(column_of([1.0, float("nan")]).array("x")[1])
    assert np.isnan(column_of(np.array([1.5, np.nan], object)).array("x")[1])
    assert np.isnan(column_of([np.array([1.0, np.nan]), np.array([2, 3])]).array("x")[0, 1])


@pytest.mark.parametrize("values", [np.arange(6.0)[::2], np.asfortranarray(np.ones((3, 2))), np.arange(3, dtype=">i4")])
def test_any_memory_layout_and_byte_order_is_taken(values: np.ndarray) -> None:
    assert np.array_equal(column_of(values).array("x"), values)
    assert column_of(values).array("x").dtype == values.dtype.newbyteorder("=")


def test_tags_may_be_anything() -> None:
    data = {
        "x": [1, 2],
        "text": ["a", None],
        "gap": [1, None],
        "ragged": [[1], [1, 2]],
        "grid": np.array([["a"], ["b"]]),
    }
    fs = FeatureSet.from_dict("fs", data, "x", tags=["text", "gap", "ragged", "grid"])
    assert fs.column("text").to_pylist() == ["a", None]
    assert fs.column("gap").to_pylist() == [1, None]
    assert fs.column("ragged").to_pylist() == [[1], [1, 2]]
    assert fs.column("grid").to_pylist() == [["a"], ["b"]]


def test_a_text_tag_is_not_read_as_an_array() -> None:
    fs = FeatureSet.from_dict("fs", {"x": [1, 2], "t": ["a", "b"], "g": [1, None]}, "x", tags=["t", "g"])
    with pytest.raises(ColumnError, match=r"'t' cannot be read as numbers: it is of type string.*column\(\)"):
        fs.array("t")
    with pytest.raises(ColumnError, match=r"'t' cannot be read"):
        fs.spec("t")
    with pytest.raises(ColumnError, match=r"'g' has nulls in 1 of 2 rows, the first in row 1"):
        fs.array("g")


@pytest.mark.parametrize(
    ("values", "arrow_type"),
    [
        (["a", "b"], "<U1"),
        (np.array(["a"], object), "<U1"),
        ([1 + 2j], "complex128"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"datetime64[D]"),
        ([decimal.Decimal(1)], "object"),
        ([2**70], "object"),
        (np.array([1], np.longdouble), str(np.dtype(np.longdouble))),
        (pa.array(["a"]), "string"),
        (pa.array(["a"]).dictionary_encode(), "dictionary"),
    ],
)
def test_values_that_are_not_numeric_are_refused(values: object, arrow_type: str) -> None:
    message = refusal(values)
    assert f"column 'x' cannot be read as numbers: it is of type {arrow_type}" in message
    assert "; features and targets must be bool, int8" in message
    is_text = arrow_type in ("<U1", "string", "dictionary")
    remedy = "name it in tags, then fit_transform(OneHotEncoder(), 'x', fit_on='train', role='feature')"
    other = "make a column of each part" if arrow_type == "complex128" else "convert it to numbers first"
    assert f"Hint: {remedy if is_text else other}" in message


@pytest.mark.parametrize(
    ("values", "arrow_type"),
    [
        (["a", None, "b"], "text, with nulls in 1 of 3 rows"),
        (np.array(["a", np.nan, None], object), "text, with nulls in 2 of 3 rows"),
        (pa.array(["a", None]), "string"),
    ],
)
def test_text_with_nulls_is_text_first(values: object, arrow_type: str) -> None:
    message = refusal(values)
    assert f"column 'x' cannot be read as numbers: it is of type {arrow_type}" in message and "OneHotEncoder" in message


@pytest.mark.parametrize(
    ("values", "count", "first"),
    [
        ([1, None, 3], 1, 1),
        ([1, float("nan"), None], 2, 1),
        ([[1, 2], [3, float("nan")]], 1, 1),
        (np.array([1, np.nan, 3], object), 1, 1),
        ([True, None], 1, 1),
        ([np.array([1, 2]), [3, float("nan")]], 1, 1),
    ],
)
def test_missing_integers_are_refused(values: list[object], count: int, first: int) -> None:
    message = refusal(values)
    n = len(values)
    assert f"column 'x' has NaN or null among integers in {count} of {n} rows, the first in row {first}" in message
    assert "fill these places or leave the rows out" in message


@pytest.mark.parametrize("values", [[1.5, None], [None, None], [[1.5], None], np.array([None, 2.5, "a"], object)])
def test_nulls_are_refused(values: list[object]) -> None:
    first = next(i for i, value in enumerate(values) if value is None)
    assert f"has nulls in {sum(v is None for v in values)} of {len(values)} rows, the first in row {first}" in refusal(
        values
    )


def test_masked_values_are_refused_and_masks_without_any_are_not() -> None:
    masked = np.ma.masked_array(np.ones((3, 2)), mask=[[False, False], [False, True], [False, False]])
    assert "has masked values in 1 of 3 rows, the first in row 1" in refusal(masked)
    assert column_of(np.ma.masked_array([1, 2])).spec("x") == TensorSpec((), "int64")


def test_integers_that_numpy_would_make_floats_of_are_refused() -> None:
    assert "integers that no single dtype holds" in refusal([2**63, -1])
    assert "integers that no single dtype holds" in refusal([np.array([2**63], np.uint64), np.array([1], np.int64)])


@pytest.mark.parametrize(
    "values", [[[1], [1, 2]], [[1, 2], 3], [np.ones(2), np.ones(3)], np.array([[1], [1, 2]], object)]
)
def test_ragged_samples_are_refused(values: object) -> None:
    message = refusal(values)
    assert "column 'x' is ragged: its samples differ in shape" in message
    assert "pad={'x': 0}" in message


@pytest.mark.parametrize(
    ("value", "kind"), [(3, "int"), ("text", "str"), ({1}, "set"), ((i for i in [1]), "generator")]
)
def test_single_things_are_refused(value: object, kind: str) -> None:
    assert f"column 'x' has no rows: it is a single {kind}" in refusal(value)


def test_a_sparse_matrix_is_refused_with_what_makes_it_dense() -> None:
    class Sparse:
        def toarray(self) -> np.ndarray:
            return np.eye(2)

    message = refusal(Sparse())
    assert "column 'x' is a sparse Sparse; columns are dense arrays [n, *shape]" in message
    assert "Hint: write 'x': x.toarray()" in message


def test_empty_shapes_are_refused() -> None:
    assert "column 'x' has samples of shape [0, 3], which are empty" in refusal(np.zeros((4, 0, 3)))
    assert "shape [0]" in refusal([[], []])


@pytest.mark.parametrize("values", [[], np.zeros((0, 3)), pa.array([], pa.int64())])
def test_no_rows_are_refused(values: object) -> None:
    with pytest.raises(DataError, match=r"'fs' has no rows. Available: columns: x"):
        column_of(values)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ColumnError, match=r"the columns of 'fs' differ in length; a: 2, b: 3"):
        FeatureSet.from_dict("fs", {"a": [1, 2], "b": [1, 2, 3]}, ["a"], ["b"])


def test_unknown_keys_name_the_closest() -> None:
    with pytest.raises(
        ColumnError, match=r"'fs' has no column 'pixel'. Available: pixels, label. Hint: did you mean 'pixels'"
    ):
        FeatureSet.from_dict("fs", {"pixels": [1], "label": [1]}, ["pixel"])
    with pytest.raises(ColumnError, match=r"no column 'zzz'.*use one of these names"):
        FeatureSet.from_dict("fs", {"pixels": [1]}, ["pixels"], ["zzz"])


def test_long_lists_of_columns_are_cut() -> None:
    with pytest.raises(ColumnError, match=r"c19, and 5 more. Hint"):
        FeatureSet.from_dict("fs", {f"c{i}": [1] for i in range(25)}, ["zzz"])


def test_one_role_per_column() -> None:
    with pytest.raises(ColumnError, match=r"column 'a' of 'fs' cannot be a target; it is already a feature"):
        FeatureSet.from_dict("fs", {"a": [1]}, ["a"], ["a"])
    with pytest.raises(ColumnError, match=r"cannot be a feature"):
        FeatureSet.from_dict("fs", {"a": [1]}, ["a", "a"])


def test_at_least_one_feature() -> None:
    with pytest.raises(ColumnError, match=r"'fs' has no feature. Available: columns: a. Hint: name at least one"):
        FeatureSet.from_dict("fs", {"a": [1]}, [], ["a"])
    with pytest.raises(ColumnError, match=r"columns: nothing"):
        FeatureSet.from_dict("fs", {}, [])


def test_names_are_text() -> None:
    with pytest.raises(ColumnError, match=r"3 cannot be the name of a column; column names must be text"):
        FeatureSet.from_dict("fs", {3: [1]}, [3])  # type: ignore[dict-item, list-item]


def test_tags_that_arrow_cannot_hold() -> None:
    with pytest.raises(ColumnError, match=r"column 't' cannot be read: .*use values of one type"):
        FeatureSet.from_dict("fs", {"x": [1, 2], "t": [1, "a"]}, "x", tags="t")
    with pytest.raises(ColumnError, match=r"column 't' cannot be read"):
        FeatureSet.from_dict("fs", {"x": [1, 2], "t": [object(), object()]}, "x", tags="t")
    message = r"column 't' cannot be read: it has integers of more than 64 bits\. Hint: convert it to text"
    long = [2**70, -(2**64)]
    with pytest.raises(ColumnError, match=message):
        FeatureSet.from_dict("fs", {"x": [1, 2], "t": long}, "x", tags="t")
    assert FeatureSet.from_dict("fs", {"x": [1, 2], "t": list(map(str, long))}, "x", tags="t").column("t")[0].as_py()
    assert FeatureSet.from_dict("fs", {"x": list(map(float, long))}, "x").array("x")[0] == 2.0**70


def test_data_is_a_mapping() -> None:
    with pytest.raises(DataError, match=r"the data of 'fs' must be a mapping of column names to arrays, got a list"):
        FeatureSet.from_dict("fs", [1], ["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["", "a.b", 3, None])
def test_labels(label: object) -> None:
    with pytest.raises(
        DataError, match=r"is not a label of a feature set; labels must be valid UTF-8 text without a dot"
    ):
        FeatureSet.from_dict(label, {"x": [1]}, ["x"])  # type: ignore[arg-type]


def test_columns_without_a_role_are_left_out() -> None:
    fs = FeatureSet.from_dict("fs", {"x": [1], "other": object()}, ["x"])
    assert fs.columns == ("x",)
    assert fs.to_arrow().column_names == ["x"]


def test_every_error_has_the_one_base() -> None:
    assert issubclass(ColumnError, DataError) and issubclass(DataError, AnyaccelError)


def test_a_data_frame_is_no_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    message = r"column 'x' is a whole data frame\. Hint: pass its values as one column, 'x': frame\.to_numpy\(\)"
    with pytest.raises(ColumnError, match=message):
        FeatureSet.from_dict("fs", {"x": frame}, ["x"])
    assert FeatureSet.from_dict("fs", {"x": frame.to_numpy()}, ["x"]).array("x").tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_text_of_polars_is_a_tag():
    polars = pytest.importorskip("polars")
    data = {"x": polars.Series([1.0, 2.0]), "word": polars.Series(["a", "b"])}
    assert FeatureSet.from_dict("fs", data, ["x"], [], ["word"]).column("word").to_pylist() == ["a", "b"]


def test_masked_arrays_in_a_list_keep_what_is_masked() -> None:
    rows = [np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 2.0], mask=[0, 0])]
    with pytest.raises(ColumnError, match=r"'x' has masked values in 1 of 2 rows, the first in row 0"):
        FeatureSet.from_dict("d", {"x": rows}, "x")
    filled = FeatureSet.from_dict("d", {"x": [row.filled(-1) for row in rows]}, "x")
    assert filled.array("x").tolist() == [[1, -1], [1, 2]]


def test_nan_among_text_is_missing() -> None:
    tags = np.array(["a", np.nan, "b"], object)
    made = FeatureSet.from_dict(
        "d", {"x": [1.0, 2.0, 3.0], "t": tags, "u": ["a", float("nan"), "b"]}, "x", (), ["t", "u"]
    )
    assert made.column("t").to_pylist() == made.column("u").to_pylist() == ["a", None, "b"]
