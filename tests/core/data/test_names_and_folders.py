"""Names that no file can hold, and paths after the working folder has changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as pa_csv
from pyarrow import parquet

import anyaccel as aa
from anyaccel.errors import AnyaccelError, ColumnError, DataError, MissingFileError, SpecError, SplitError

BAD = "a\udc80"
X = np.ones((8, 3), "float32")


def data(label="d", column="x"):
    return aa.FeatureSet.from_dict(label, {column: X, "y": X[:, :1]}, [column], ["y"])


def test_a_column_with_a_lone_surrogate_is_refused_and_the_hint_works():
    with pytest.raises(
        ColumnError, match=r"has a lone surrogate, which UTF-8 cannot encode\. Hint: rename it, .*'a\?'"
    ):
        data(column=BAD)
    assert data(column="a?").features == ("a?",)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: data(BAD), DataError),
        (lambda: data().add_splits({BAD: range(3)}), SplitError),
        (lambda: aa.Metric("mse", label=BAD), SpecError),
        (lambda: aa.AppliedLoss("mse", on="net", label=BAD), SpecError),
        (lambda: aa.ModelNode(BAD, aa.SequentialMLP(1), data().reference()), AnyaccelError),
        (lambda: aa.EvalPhase(BAD, data="all"), AnyaccelError),
    ],
)
def test_other_names_with_a_lone_surrogate_are_refused(make, error):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", ["rows.parquet", ["rows.parquet"], "folder"])
def test_a_parquet_stream_reads_its_files_after_the_working_folder_has_changed(path, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("rows.parquet", "folder/rows.parquet"):
        parquet.write_table(pa.table({"x": np.arange(8.0), "y": np.arange(8.0)}), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    stream = aa.ParquetStream("s", path, features=["x"], target=["y"], batch_size=4)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sorted(float(x) for batch in stream.batches(0) for x in batch["x"]) == list(range(8))


def frame_of(columns):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({str(number): values for number, values in enumerate(columns.values())})
    frame.columns = pandas.Index(list(columns), dtype=object)
    return frame


def test_a_frame_with_a_lone_surrogate_in_a_name_is_refused_where_the_column_is_used():
    frame = frame_of({BAD: [1.0, 2.0], "x": [1.0, 2.0], "y": [1.0, 2.0]})
    for features in (BAD, ...):
        with pytest.raises(ColumnError, match="has a lone surrogate"):
            aa.FeatureSet.from_pandas("d", frame, features, "y")
    with pytest.raises(ColumnError, match="has a lone surrogate"):
        aa.FeatureSet.from_arrow("d", pa.table({"x": [1.0]}), BAD)
    assert aa.FeatureSet.from_pandas("d", frame, "x", "y").features == ("x",)
    assert aa.FeatureSet.from_pandas("d", frame.set_axis(["a?", "x", "y"], axis=1), ..., "y").features == ("a?", "x")


def test_a_header_that_is_not_utf_8_is_an_error_whose_hint_works(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "old.csv"
    path.write_bytes("größe,y\n1.5,2.5\n3.5,4.5\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"old\.csv' is not UTF-8; its header: .*pandas\.read_csv\('.*old\.csv', encoding='latin-1'"
    ):
        aa.FeatureSet.from_csv("d", path, ..., "y")
    data = aa.FeatureSet.from_pandas("d", pandas.read_csv(path, encoding="latin-1"), ..., "y")
    assert data.features == ("größe",) and data.array("größe").tolist() == [1.5, 3.5]


READERS = {
    "from_csv": (lambda path: aa.FeatureSet.from_csv("d", path, "x", "y"), ".csv"),
    "from_parquet": (lambda path: aa.FeatureSet.from_parquet("d", path, "x", "y"), ".parquet"),
    "list": (lambda path: aa.FeatureSet.from_parquet("d", [path], "x", "y"), ".parquet"),
    "stream": (lambda path: aa.ParquetStream("d", path, features="x", target="y", batch_size=2), ".parquet"),
    "fit csv": (lambda path: fitted(path), ".csv"),
    "fit parquet": (lambda path: fitted(path), ".parquet"),
    "predict": (lambda path: fitted({"x": [1.5, 2.5], "y": [1.5, 2.5]}).predict(path), ".csv"),
}


def fitted(data):
    return aa.fit(aa.SequentialMLP(1), data, loss="mse", target="y", epochs=1, progress="none")


@pytest.mark.parametrize("name", READERS)
def test_a_path_that_is_not_there_names_those_that_look_like_it(name, tmp_path, monkeypatch):
    read, ending = READERS[name]
    monkeypatch.chdir(tmp_path)
    table = pa.table({"x": [1.5, 2.5], "y": [1.5, 2.5]})
    parquet.write_table(table, "train.parquet")
    pa_csv.write_csv(table, "train.csv")
    with pytest.raises(MissingFileError, match=rf"there is no file '.*trian{ending}' for ") as caught:
        read(f"trian{ending}")
    assert isinstance(caught.value, FileNotFoundError)
    assert f"'train{ending}'" in caught.value.available
    meant = caught.value.hint.removeprefix("did you mean '").removesuffix("'?")
    assert read(meant) is not None
    with pytest.raises(
        MissingFileError, match=r"and no folder '.*nowhere'\. Hint: use an absolute path; relative paths start"
    ):
        read(f"nowhere/train{ending}")
    assert read(str(tmp_path / f"train{ending}")) is not None
    with pytest.raises(MissingFileError, match="Hint: download it, and pass the path of the file"):
        read(f"https://example.org/train{ending}")


@pytest.mark.parametrize("kind", ["dict", "pandas", "arrow", "csv", "parquet"])
def test_a_prediction_without_columns_of_the_training_names_them(kind, tmp_path):
    def given(columns):
        table = pa.table(columns)
        if kind in ("csv", "parquet"):
            write = pa_csv.write_csv if kind == "csv" else parquet.write_table
            write(table, tmp_path / f"rows.{kind}")
            return tmp_path / f"rows.{kind}"
        return {"dict": columns, "pandas": frame_of(columns), "arrow": table}[kind]

    ones = [1.0, 1.5]
    model = aa.fit(
        aa.SequentialMLP(1),
        {"a": ones, "b": ones, "c": ones, "y": ones},
        loss="mse",
        target="y",
        epochs=1,
        progress="none",
    )
    with pytest.raises(
        ColumnError,
        match=r"^2 columns are missing that the model was trained with: 'b', 'c'; the table has 'a', 'z'\. "
        r"Hint: pass a table with 'a', 'b', 'c'; other columns are left out\.$",
    ):
        model.predict(given({"a": ones, "z": ones}))
    expected = model.predict({"a": ones, "b": ones, "c": ones})
    assert np.array_equal(model.predict(given({"a": ones, "b": ones, "c": ones, "z": ones})), expected)
    with pytest.raises(ColumnError, match=r"1 column is missing .*: 'b'; .*Hint: rename columns: \{'B': 'b'\}\.$"):
        model.predict(given({"a": ones, "B": ones, "c": ones}))
    with pytest.raises(ColumnError, match="1 column is missing that the model was trained with: 'y'"):
        model.evaluate(given({"a": ones, "b": ones, "c": ones}))
