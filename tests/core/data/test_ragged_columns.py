"""Columns whose rows differ in length: read, padded, viewed, cast and written, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel import FeatureSet, Pad
from anyaccel.data import joined_spec
from anyaccel.errors import ColumnError

ROWS = [[3, 4, 5], [6], [], [7, 8]]
PADDED = [[3, 4, 5], [6, 0, 0], [0, 0, 0], [7, 8, 0]]
TABLE = pa.table({"x": ROWS, "y": [0, 1, 2, 3]})
TWO_CHUNKS = pa.concat_tables([TABLE.slice(1, 2), TABLE.slice(0, 1), TABLE.slice(3)])


def made(pad: Any = 0, **more: Any) -> FeatureSet:
    return FeatureSet.from_dict("d", {"x": ROWS, "y": [0, 1, 2, 3], **more}, ["x"], ["y"], pad={"x": pad})


def frame() -> Any:
    return pytest.importorskip("pandas").DataFrame({"x": ROWS, "y": range(4)})


def sources(folder: Path) -> dict[str, Callable[[], FeatureSet]]:
    pq.write_table(TABLE, folder / "d.parquet")
    pad = {"x": 0}
    arrays = [np.array(row, np.int64) for row in ROWS]
    large = TABLE.set_column(0, "x", TABLE["x"].cast(pa.large_list(pa.int64())))
    return {
        "lists": lambda: made(),
        "arrays": lambda: FeatureSet.from_dict("d", {"x": arrays, "y": range(4)}, ["x"], ["y"], pad=pad),
        "Arrow column": lambda: FeatureSet.from_dict("d", {"x": TABLE["x"], "y": range(4)}, ["x"], ["y"], pad=pad),
        "Arrow": lambda: FeatureSet.from_arrow("d", TABLE, ["x"], ["y"], pad=pad),
        "large lists": lambda: FeatureSet.from_arrow("d", large, ["x"], ["y"], pad=pad),
        "pandas": lambda: FeatureSet.from_pandas("d", frame(), "x", "y", pad=pad),
        "Parquet": lambda: FeatureSet.from_parquet("d", folder / "d.parquet", ["x"], ["y"], pad=pad),
        "again": lambda: FeatureSet.from_arrow("d", made().to_arrow()),
    }


@pytest.mark.parametrize(
    "source", ["lists", "arrays", "Arrow column", "Arrow", "large lists", "pandas", "Parquet", "again"]
)
def test_rows_are_padded_to_the_longest(source: str, tmp_path: Path) -> None:
    data = sources(tmp_path)[source]()
    assert str(data.spec("x")) == "int64[3]" and data.is_ragged("x") and not data.is_ragged("y")
    assert data.array("x").tolist() == PADDED
    assert data.column("x").to_pylist() == ROWS
    with pytest.raises(ValueError, match="read-only"):
        data.array("x")[0] = 1


def test_chunks_and_slices_keep_their_rows() -> None:
    data = FeatureSet.from_arrow("d", TWO_CHUNKS, ["x"], ["y"], pad={"x": 9})
    assert data.array("x").tolist() == [[6, 9, 9], [9, 9, 9], [3, 4, 5], [7, 8, 9]]
    assert data.array("y").tolist() == [1, 2, 0, 3]


def test_a_view_has_its_rows_and_the_width_of_its_feature_set() -> None:
    data = made()
    view = data.view().take([3, 1, 1])
    assert view.array("x").tolist() == [PADDED[3], PADDED[1], PADDED[1]]
    ragged = view.ragged_column("x")
    assert ragged is not None and (len(ragged), ragged.lengths.tolist()) == (3, [2, 1, 1])
    assert ragged.width(np.array([1, 2])) == 1
    out = np.empty((2, 2), np.int64)
    ragged.fill(np.array([1, 0]), out)
    assert out.tolist() == [[6, 0], [7, 8]]
    assert data.ragged_column("y") is None


def test_a_mask_says_where_values_are() -> None:
    data = made(Pad(7, mask="mask"))
    assert data.features == ("x", "mask") and str(data.spec("mask")) == "int64[3]"
    assert data.array("mask").tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert data.array("x")[1].tolist() == [6, 7, 7]
    rows = [np.ones(2, "float32"), np.ones(1, "float32")]
    narrow = FeatureSet.from_dict("d", {"x": rows}, "x", pad={"x": Pad(mask="m")})
    assert narrow.spec("m").dtype == "int32"


def test_widths_are_rounded_up_and_fixed_ones_are_not_ragged() -> None:
    rounded = made(Pad(0, multiple_of=4))
    assert rounded.spec("x").shape == (4,) and rounded.is_ragged("x")
    column = rounded.ragged_column("x")
    assert column is not None and [column.width(np.array([row])) for row in range(4)] == [4, 4, 4, 4]
    fixed = made(Pad(0, length=5))
    assert fixed.spec("x").shape == (5,) and not fixed.is_ragged("x")
    assert fixed.array("x")[3].tolist() == [7, 8, 0, 0, 0]


def test_rows_of_vectors_keep_their_other_axes() -> None:
    rows = [np.arange(n * 6, dtype="float32").reshape(n, 2, 3) for n in (2, 1, 3)]
    data = FeatureSet.from_dict("d", {"x": rows}, "x", pad={"x": -1})
    assert str(data.spec("x")) == "float32[3, 2, 3]"
    assert np.array_equal(data.array("x")[0, :2], rows[0]) and (data.array("x")[0, 2] == -1).all()
    nested = pa.table({"x": [row.tolist() for row in rows]})
    same = FeatureSet.from_arrow("d", nested, "x", pad={"x": -1})
    assert np.array_equal(same.array("x"), data.array("x"))
    assert np.array_equal(data.view().take([2, 0]).array("x"), data.array("x")[[2, 0]])
    assert data.view().take([2, 0]).to_arrow()["x"].to_pylist() == [rows[2].tolist(), rows[0].tolist()]


def test_rows_of_one_length_may_be_padded_too() -> None:
    data = FeatureSet.from_dict("d", {"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))}, "x", pad={"x": 0})
    assert data.is_ragged("x") and data.array("x").tolist() == [[1, 2], [3, 4]]


def test_a_cast_keeps_the_lengths() -> None:
    cast = made(Pad(5, multiple_of=2)).cast({"x": "float32"})
    assert str(cast.spec("x")) == "float32[4]" and cast.is_ragged("x")
    assert cast.column("x").to_pylist() == ROWS and cast.array("x")[1].tolist() == [6, 5, 5, 5]
    with pytest.raises(ColumnError, match=r"cannot be cast from int64 to int8: row 0 holds 500"):
        made(Pad(500)).cast({"x": "int8"})


def test_it_is_shown_with_its_longest_row() -> None:
    data = made(Pad(0, mask="m"))
    assert repr(data) == "FeatureSet('d', 4 rows; features: x int64[<=3], m int64[<=3]; targets: y int64[])"
    assert "int64[&lt;=3]" in data._repr_html_() and "[3, 4, 5]" in data._repr_html_()
    assert data.select(["x"]).features == ("x",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FeatureSet.from_dict("d", {"x": ROWS}, "x"),
            r"'x' is ragged.*in a FeatureSet, choose.*pad={'x': 0}",
        ),
        (lambda: FeatureSet.from_dict("d", {"x": ROWS}, "x", pad=0), r"pad=0 of 'd' does not name.*write pad={'x': 0}"),
        (lambda: FeatureSet.from_dict("d", {"x": ROWS}, "x", pad={"z": 0}), r"names 'z', which is not a feature or"),
        (lambda: made("0"), r"Pad: value='0' is not a number. Hint: write Pad\(0\)"),
        (lambda: Pad(multiple_of=0), r"Pad: multiple_of=0 is not 1 or more. Hint: write Pad\(0, multiple_of=8\)"),
        (lambda: Pad(length=2.5), r"Pad: length=2.5 is not 1 or more"),
        (lambda: Pad(mask=""), r"Pad: mask='' is not a name"),
        (lambda: Pad(length=9, multiple_of=4), r"length=9 is not a multiple of 4. Hint: leave multiple_of out"),
        (lambda: made(Pad(length=2)), r"'x' has a row of 3 entries; it is padded to 2. Hint: .*length=3"),
        (lambda: made(0.5), r"'x' is of int64, which cannot hold the padding value 0.5"),
        (lambda: made(Pad(mask="y")), r"mask of 'x' of 'd' is called 'y', but a column has that name.*leave mask= out"),
        (lambda: FeatureSet.from_dict("d", {"x": [[[1], [2, 3]]]}, "x", pad={"x": 0}), r"rows of column 'x' cannot be"),
        (lambda: FeatureSet.from_dict("d", {"x": [1, 2]}, "x", pad={"x": 0}), r"'x' is of int64, but pad= is for.*out"),
        (lambda: FeatureSet.from_dict("d", {"x": [[1], 2]}, "x", pad={"x": 0}), r"rows of column 'x' cannot be padded"),
        (lambda: FeatureSet.from_dict("d", {"x": [[], []]}, "x", pad={"x": 0}), r"and at least one must have values"),
        (lambda: FeatureSet.from_dict("d", {"x": [["a"], []]}, "x", pad={"x": 0}), r"'x' cannot be read as numbers"),
        (lambda: FeatureSet.from_dict("d", {"x": [[1, None], [2]]}, "x", pad={"x": 0}), r"'x' cannot be read as num"),
        (
            lambda: FeatureSet.from_dict("d", {"x": [[2**63], [-1]]}, "x", pad={"x": 0}),
            r"integers that no single dtype holds",
        ),
        (
            lambda: FeatureSet.from_arrow("d", pa.table({"x": [[1], None]}), "x", pad={"x": 0}),
            r"'x' has nulls in 1 of 2 rows, the first in row 1",
        ),
        (
            lambda: FeatureSet.from_arrow("d", pa.table({"x": [[1], [1, None]]}), "x", pad={"x": 0}),
            r"'x' has nulls in 1 of 2 rows, the first in row 1",
        ),
        (
            lambda: FeatureSet.from_arrow("d", pa.table({"x": [["a"], ["b", "c"]]}), "x", pad={"x": 0}),
            r"'x' cannot be read as numbers: it is of type lists of string",
        ),
        (
            lambda: FeatureSet.from_arrow("d", pa.table({"x": [1, 2]}), "x", pad={"x": 0}),
            r"'x' is of int64, but pad= is for rows of different length.*leave it out of pad=",
        ),
    ],
)
def test_what_cannot_be_padded_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        make()


def test_columns_of_different_length_are_not_joined() -> None:
    data = made(Pad(mask="mask"))
    with pytest.raises(ColumnError, match=r"'x' of 'd' cannot be joined .* its rows differ .*d.reference\('x'\)"):
        joined_spec(data, ["x", "mask"])
