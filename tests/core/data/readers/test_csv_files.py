"""CSV files as feature sets, by Arrow's reader."""

from __future__ import annotations

import pytest

from anyaccel import FeatureSet
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
