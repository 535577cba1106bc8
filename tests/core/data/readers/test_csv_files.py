"""CSV files as feature sets, by Arrow's reader."""

from __future__ import annotations

import pytest

from anyaccel import FeatureSet
from anyaccel.data.readers.csv_files import table_from_csv
from anyaccel.errors import ColumnError, DataError

TEXT = "a,b,flag,name,y\n1,0.5,true,x,1\n2,1.5,false,y,0\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT)
    return path


def test_columns_have_the_types_that_arrow_finds(file):
    data = FeatureSet.from_csv("d", file, ["a", "b", "flag"], "y", "name")
    assert {name: data.spec(name).dtype for name in ("a", "b", "flag", "y")} == {
        "a": "int64",
        "b": "float64",
        "flag": "bool",
        "y": "int64",
    }
    assert data.array("b").tolist() == [0.5, 1.5] and data.column("name").to_pylist() == ["x", "y"]


def test_one_role_may_be_the_rest_and_the_delimiter_another(tmp_path):
    (tmp_path / "t.csv").write_text(TEXT.replace(",", ";"))
    data = FeatureSet.from_csv("d", str(tmp_path / "t.csv"), ..., "y", ["name"], delimiter=";")
    assert data.features == ("a", "b", "flag")


def test_what_is_no_csv_file_is_an_error(tmp_path, file):
    with pytest.raises(FileNotFoundError):
        FeatureSet.from_csv("d", tmp_path / "none.csv", "a")
    with pytest.raises(DataError, match=r"3 is not the path of a CSV file\. Hint: write 'FILE\.csv'"):
        FeatureSet.from_csv("d", 3, "a")
    (tmp_path / "ragged.csv").write_text("a,b\n1\n")
    with pytest.raises(DataError, match=r"ragged\.csv' cannot be read as CSV: .*Hint: check the delimiter"):
        FeatureSet.from_csv("d", tmp_path / "ragged.csv", "a")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        FeatureSet.from_csv("d", file, "a", delimiter="ab")
    with pytest.raises(ColumnError, match="no column of 'd' has a role"):
        FeatureSet.from_csv("d", file)
    (tmp_path / "empty.csv").write_text("a,b\n1,\n2,3\n")
    with pytest.raises(ColumnError, match="column 'b' has nulls"):
        FeatureSet.from_csv("d", tmp_path / "empty.csv", ["a", "b"])


def test_an_empty_or_na_text_is_a_null_unless_it_is_quoted(tmp_path):
    (tmp_path / "t.csv").write_text('a,name\n1,x\n2,\n3,NA\n4,"NA"\n5,""\n')
    data = FeatureSet.from_csv("d", tmp_path / "t.csv", "a", None, "name")
    assert data.column("name").to_pylist() == ["x", None, None, "NA", ""]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0x1F", "0XA0", ""], "string"),  # Arrow alone: 31, 160
        (["0xFFFFFFFFFFFFFFFF", "17"], "string"),  # -1
        (["12345678901234567890", "3"], "uint64"),  # 1.2345678901234567e19
        (["+12345678901234567890", "3"], "uint64"),
        (["123456789012345678901", "3"], "string"),
        (["-12345678901234567890", "3"], "string"),
        (["12345678901234567890", "1.5"], "double"),
        (["1e30", "3"], "double"),
        (["inf", "3"], "double"),
        (["9223372036854775807", "-3"], "int64"),
        (["x0x1F", "17"], "string"),
    ],
)
def test_hexadecimal_and_long_integers_are_read_as_pandas_reads_them(tmp_path, cells, kind):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "t.csv"
    path.write_text("n,code,x\n" + "".join(f"1,{cell},2\n" for cell in cells))
    table = table_from_csv("d", path)
    assert [str(arrow_type) for arrow_type in table.schema.types] == ["int64", kind, "int64"]
    read = pandas.read_csv(path)["code"]
    values = [None if pandas.isna(value) else value for value in read.tolist()]
    assert table.column("code").to_pylist() == (
        list(map(str, values)) if kind == "string" and "" not in cells else values
    )


DIGITS = ["0,0,5,13,9.5,no"] * 3 + ["3,7,0,16,12,yes"] * 3


@pytest.mark.parametrize(
    ("lines", "seems_headless"),
    [
        (DIGITS, True),
        (["17.99,10.38,122.8,M", "20.57,9.77,132.9,B", "11.4,12.2,99.1,M"], True),
        (["x,a,n", "b,a,y", "x,c,n", "b,a,y"], True),
        (["0,1,2,3,4,y", *DIGITS], False),  # positions, as of NumPy arrays
        (["city,2020,2019,2018", "a,2018,2021,2017", "b,2022,2016,2019"], False),  # years
        (["0.1,0.5,0.9,y", "-2,0.1,1,no", "2,0.7,0.8,yes"], False),  # quantiles
        (["4000.5,10.5,399.5", "0.1,0.2,0.3", "0.4,0.1,0.2"], False),  # names out of the range of the numbers
        (["word", "a", "word"], False),
    ],
)
def test_a_file_without_a_header_is_refused(lines, seems_headless, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    if seems_headless:
        with pytest.raises(DataError, match=r"seems to have no header: its first line, '.*', is like the rows below"):
            FeatureSet.from_csv("d", path, None, None, ...)
    else:
        assert FeatureSet.from_csv("d", path, None, None, ...).columns == tuple(lines[0].split(","))


def test_columns_without_a_name_are_called_as_in_pandas(tmp_path):
    (tmp_path / "t.csv").write_text(",a,,y\n0,0.5,,1\n1,1.5,,0\n")
    data = FeatureSet.from_csv("d", tmp_path / "t.csv", None, None, ...)
    assert data.columns == ("Unnamed: 0", "a", "Unnamed: 2", "y")
